package receive_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/email"
	"github.com/lapsehq/lapse/pkg/notice/gateway"
	"github.com/lapsehq/lapse/pkg/rig/receive"
	"github.com/lapsehq/lapse/pkg/secret"
)

// What no result may show.
const (
	plantedMail  = "planted.person@hidden.example"
	plantedPhone = "+8613712345678"
	plantedToken = "pushtokenplanted0001"
	plantedUser  = "user-planted-77"
	plantedText  = "planted text of the notice"
)

const key = "0123456789abcdef-test"

// far is a channel with the receiver it sends to.
type far struct {
	channel notice.Channel
	fault   func(receive.Fault)
	cut     func()              // ends the connections that are kept for the next message
	came    func(id string) int // how often the message was taken
	given   func(id string) int // if set, deliver gives up when it is not zero
}

func message(channel coupon.Channel, window uint64) notice.Message {
	to := map[coupon.Channel]string{coupon.ChannelEmail: plantedMail, coupon.ChannelSMS: plantedPhone, coupon.ChannelPush: plantedToken}
	return notice.Message{
		ID: coupon.NoticeID(window, channel), Window: window, Kind: coupon.NoticeExpiring, Offset: "-1d", UserID: plantedUser,
		Locale: "en", Recipient: to[channel], Text: coupon.NoticeText{Title: "3 coupons expire", Text: plantedText},
		HTML: "<p>" + plantedText + "</p>", Params: map[string]string{"count": "3"}, Items: 3, NotAfter: coupon.Never,
	}
}

func authority(t *testing.T) (*receive.Authority, string) {
	t.Helper()
	a, err := receive.NewAuthority(time.Now())
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, a.WriteFile(file))
	return a, file
}

func startMail(t *testing.T) far {
	t.Helper()
	a, ca := authority(t)
	server, err := receive.StartMail(t.Context(), receive.MailConfig{Authority: a, User: "lapse", Password: "pass-word"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	cfg := email.DefaultConfig()
	cfg.Host, cfg.Port, cfg.CAFile, cfg.From = "127.0.0.1", server.Port(), ca, "Shop <coupons@shop.example>"
	cfg.Username, cfg.Password = "lapse", secret.New("pass-word")
	c, err := email.New(cfg, time.Now)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return far{c, server.Fault, server.CutAll, func(id string) int { return server.Counts()[id+"@shop.example"] }, nil}
}

func startGateway(t *testing.T, channel coupon.Channel) far {
	t.Helper()
	a, ca := authority(t)
	server, err := receive.StartGateway(t.Context(), receive.GatewayConfig{Authority: a, Keys: map[string]string{"k1": key}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	cfg := gateway.DefaultConfig()
	cfg.URL, cfg.CAFile, cfg.KeyID, cfg.Key = server.URL(), ca, "k1", secret.New(key)
	c, err := gateway.New(channel, cfg, time.Now)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return far{c, server.Fault, func() {}, func(id string) int { _, took := server.Counts(); return took[id] }, nil}
}

// deliver sends one message with a deadline, and looks that nothing private is in what is said of it.
func (f far) deliver(t *testing.T, m notice.Message, within time.Duration) notice.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	got := make(chan []notice.Result, 1)
	go func() { got <- f.channel.Deliver(ctx, []notice.Message{m}) }()
	if f.given != nil { // and to be given up as soon as it has arrived
		require.Eventually(t, func() bool { return f.given(m.ID) > 0 }, within, time.Millisecond)
		cancel()
	}
	select {
	case rs := <-got:
		require.Len(t, rs, 1)
		shown := fmt.Sprintf("%+v", rs[0])
		for _, private := range []string{plantedMail, "planted.person", plantedPhone, "13712345678", plantedToken, plantedUser, plantedText} {
			require.NotContains(t, shown, private)
		}
		require.Equal(t, rs[0].Outcome == notice.Sent, rs[0].Reason == "", shown)
		require.Less(t, len(rs[0].Reason), 33)
		return rs[0]
	case <-time.After(within + 20*time.Second):
		require.FailNow(t, "blocked beyond its deadline")
		return notice.Result{}
	}
}

// faultCase is a fault and what each channel makes of it; "" for a channel: it has no such fault.
type faultCase struct {
	name  string
	fault receive.Fault
	want  map[coupon.Channel]string // outcome and reason, such as "retry smtp_451"
	wait  time.Duration             // Throttled: about so long from now
}

const (
	mail = coupon.ChannelEmail
	sms  = coupon.ChannelSMS
	push = coupon.ChannelPush
)

func code(stage receive.Stage, number int, text string) receive.Fault {
	return receive.Fault{Act: receive.ActCode, Stage: stage, Code: number, Text: text}
}

func status(number int) receive.Fault {
	return receive.Fault{Act: receive.ActCode, Code: number, Text: "no: " + plantedPhone}
}

func later(number int, after string) receive.Fault {
	return receive.Fault{Act: receive.ActCode, Code: number, RetryAfter: after}
}

func of(m, s, p string) map[coupon.Channel]string {
	return map[coupon.Channel]string{mail: m, sms: s, push: p}
}

func faultCases() []faultCase {
	cases := []faultCase{
		// Both: silence and broken connections. That of the mail server is before anything was taken.
		{name: "hang", fault: receive.Fault{Act: receive.ActHang, Stage: ""}, want: of("", "unknown timeout", "retry timeout")},
		{name: "answer cut in the middle", fault: receive.Fault{Act: receive.ActCut}, want: of("", "unknown cut", "retry cut")},
		{name: "cut before an answer", fault: receive.Fault{Act: receive.ActDrop}, want: of("", "unknown cut", "retry cut")},
		{name: "garbage", fault: receive.Fault{Act: receive.ActGarbage}, want: of("", "unknown garbage", "retry garbage")},
		{name: "endless", fault: receive.Fault{Act: receive.ActEndless}, want: of("", "unknown garbage", "retry garbage")},
		{name: "redirect", fault: receive.Fault{Act: receive.ActRedirect, Text: "https://127.0.0.1:1/"}, want: of("", "retry redirect", "retry redirect")},
		{name: "slow", fault: receive.Fault{Act: receive.ActSlow, Delay: 20 * time.Millisecond}, want: of("", "sent", "sent")},

		{name: "429 in seconds", fault: later(429, "120"), want: of("", "throttled http_429", "throttled http_429"), wait: 2 * time.Minute},
		{name: "429 at a date", fault: later(429, time.Now().Add(5*time.Minute).UTC().Format(http.TimeFormat)), want: of("", "throttled http_429", "throttled http_429"), wait: 5 * time.Minute},
		{name: "429 in a year", fault: later(429, "31536000"), want: of("", "throttled http_429", "throttled http_429"), wait: 15 * time.Minute},
		{name: "429 in the past", fault: later(429, "Mon, 01 Jan 2024 00:00:00 GMT"), want: of("", "throttled http_429", "throttled http_429"), wait: time.Second},
		{name: "429 of nonsense", fault: later(429, "soon"), want: of("", "throttled http_429", "throttled http_429")},
		{name: "429", fault: status(429), want: of("", "throttled http_429", "throttled http_429")},
		{name: "425", fault: status(425), want: of("", "throttled http_425", "throttled http_425")},
		{name: "503 in seconds", fault: later(503, "30"), want: of("", "throttled http_503", "throttled http_503"), wait: 30 * time.Second},
		{name: "408 in seconds", fault: later(408, "30"), want: of("", "throttled http_408", "throttled http_408"), wait: 30 * time.Second},
		{name: "404", fault: status(404), want: of("", "permanent http_404", "permanent address_gone")},
		{name: "410", fault: status(410), want: of("", "permanent http_410", "permanent address_gone")},
	}
	for _, n := range []int{500, 501, 502, 503, 504, 599, 408, 409} {
		cases = append(cases, faultCase{name: fmt.Sprint(n), fault: status(n), want: of("", fmt.Sprintf("unknown http_%d", n), fmt.Sprintf("retry http_%d", n))})
	}
	for _, n := range []int{401, 402, 403, 405, 406, 407, 411, 415, 421, 426} {
		cases = append(cases, faultCase{name: fmt.Sprint(n), fault: status(n), want: of("", fmt.Sprintf("retry http_%d", n), fmt.Sprintf("retry http_%d", n))})
	}
	for _, n := range []int{400, 412, 413, 414, 422, 423, 431, 451, 499} {
		cases = append(cases, faultCase{name: fmt.Sprint(n), fault: status(n), want: of("", fmt.Sprintf("permanent http_%d", n), fmt.Sprintf("permanent http_%d", n))})
	}
	for _, n := range []int{300, 301, 302, 303, 304, 308} {
		cases = append(cases, faultCase{name: fmt.Sprint(n), fault: status(n), want: of("", "retry redirect", "retry redirect")})
	}

	for _, s := range []receive.Stage{receive.StageGreet, receive.StageTLS, receive.StageHelo, receive.StageAuth, receive.StageMail, receive.StageRcpt, receive.StageData, receive.StageDot} {
		cut := "retry cut"
		switch s {
		case receive.StageGreet:
			cut = "retry connect"
		case receive.StageTLS, receive.StageAuth:
			cut = "retry " + string(s)
		default:
		}
		cases = append(cases,
			faultCase{name: "hang at " + string(s), fault: receive.Fault{Act: receive.ActHang, Stage: s}, want: of("retry timeout", "", "")},
			faultCase{name: "cut at " + string(s), fault: receive.Fault{Act: receive.ActCut, Stage: s}, want: of(cut, "", "")})
	}
	for _, s := range []receive.Stage{receive.StageGreet, receive.StageHelo, receive.StageAuth, receive.StageMail, receive.StageRcpt, receive.StageDot} {
		at := func(name string, n int, text, want string) {
			cases = append(cases, faultCase{name: fmt.Sprintf("%s at %s", name, s), fault: code(s, n, text), want: of(want, "", "")})
		}
		at("421", 421, "4.3.0 closing", "retry smtp_421")
		only := map[bool]string{true: " of this alone"}[s == receive.StageRcpt || s == receive.StageDot] // a server speaks of a recipient after it was named
		at("450", 450, "4.2.1 <"+plantedMail+"> unavailable", "retry smtp_450"+only)
		at("greylisted", 450, "4.7.1 <"+plantedMail+">: greylisted, try again in 5 minutes", "retry smtp_450"+only)
		at("mailbox busy", 450, "4.2.1 the user gets mail at too high a rate", "retry smtp_450"+only)
		at("no such domain for now", 450, "4.1.2 <"+plantedMail+">: domain not found", "retry smtp_450"+only)
		at("sender's domain", 450, "4.1.8 sender's domain not found", "retry smtp_450")
		at("no room for anybody", 452, "4.3.1 insufficient storage", "retry smtp_452")
		at("throttled", 450, "4.7.28 unusual rate of mail", "throttled smtp_450")
		at("too many", 452, "4.5.3 too many recipients", "throttled smtp_452")
		at("451", 451, "4.3.0 local error", "retry smtp_451")
		at("452 full", 452, "4.2.2 over quota; too many letters", "retry smtp_452"+only)
		at("full", 452, "mailbox full", "retry smtp_452"+only)
	}
	for _, n := range []int{500, 501, 521, 550, 551, 552, 553, 554, 556} {
		for s, want := range map[receive.Stage]string{
			receive.StageAuth: "retry auth", receive.StageMail: "retry sender_refused",
			receive.StageRcpt: fmt.Sprintf("permanent smtp_%d", n), receive.StageDot: fmt.Sprintf("permanent smtp_%d", n),
			receive.StageGreet: fmt.Sprintf("retry smtp_%d", n), receive.StageHelo: fmt.Sprintf("retry smtp_%d", n),
		} {
			cases = append(cases, faultCase{name: fmt.Sprintf("%d at %s", n, s), fault: code(s, n, "5.3.0 <"+plantedMail+"> no"), want: of(want, "", "")})
		}
	}
	// What is of the sender holds for every letter: none is given up for it.
	for _, s := range []receive.Stage{receive.StageRcpt, receive.StageDot} {
		for text, want := range map[string]string{
			"5.7.1 <" + plantedMail + ">: relay access denied":        "retry sender_refused",
			"5.7.26 unauthenticated mail is prohibited":               "retry sender_refused",
			"5.1.8 sender's domain not found":                         "retry sender_refused",
			"relaying not permitted":                                  "retry sender_refused",
			"mail from this address is blocked using zen.example.org": "retry sender_refused",
			"your IP 192.0.2.1 is on a blacklist":                     "retry sender_refused",
			"5.2.0 client host [192.0.2.1] rejected":                  "retry sender_refused",
			"5.2.1 <" + plantedMail + "> is disabled":                 "permanent smtp_554",
			"5.3.4 too large":                                         "permanent smtp_554",
			"no such mailbox":                                         "permanent smtp_554",
		} {
			cases = append(cases, faultCase{name: fmt.Sprintf("554 %s at %s", text, s), fault: code(s, 554, text), want: of(want, "", "")})
		}
	}
	return append(cases,
		faultCase{name: "421 in time", fault: code(receive.StageMail, 421, "4.7.0 rate limited, try again in 120 seconds"), want: of("throttled smtp_421", "", ""), wait: 2 * time.Minute},
		faultCase{name: "451 in hours", fault: code(receive.StageRcpt, 451, "4.7.1 too many; wait 3 hours"), want: of("throttled smtp_451", "", ""), wait: 15 * time.Minute},
		faultCase{name: "no such user", fault: code(receive.StageRcpt, 550, "5.1.1 <"+plantedMail+"> unknown"), want: of("permanent bad_address", "", "")},
		faultCase{name: "login needed at rcpt", fault: code(receive.StageRcpt, 530, "5.7.0 log in"), want: of("retry auth", "", "")},
		faultCase{name: "slow at dot", fault: receive.Fault{Act: receive.ActSlow, Stage: receive.StageDot, Delay: 20 * time.Millisecond}, want: of("sent", "", "")},
	)
}

func outcome(r notice.Result) string {
	name := map[notice.Outcome]string{
		notice.Sent: "sent", notice.Retry: "retry", notice.Throttled: "throttled", notice.Permanent: "permanent", notice.Unknown: "unknown",
	}[r.Outcome]
	if r.MessageOnly {
		return name + " " + r.Reason + " of this alone"
	}
	return strings.TrimSpace(name + " " + r.Reason)
}

// TestEveryChannelSaysWhatBecameOfAMessage holds every channel against every status and fault, over real connections: what can
// be repeated, when, what cannot, and what may have gone out. When the fault is over the message goes out, as before.
func TestEveryChannelSaysWhatBecameOfAMessage(t *testing.T) {
	channels := map[coupon.Channel]far{mail: startMail(t), sms: startGateway(t, sms), push: startGateway(t, push)}
	window := uint64(0)
	for _, c := range faultCases() {
		for name, want := range c.want {
			if want == "" {
				continue
			}
			window++
			t.Run(c.name+"/"+string(name), func(t *testing.T) {
				f := channels[name]
				m := message(name, window)
				f.fault(c.fault)
				f.cut()
				within, try := 20*time.Second, f
				switch {
				case c.fault.Act == receive.ActHang && name == mail: // wherever it got to by then
					within = 150 * time.Millisecond
				case c.fault.Act == receive.ActHang:
					try.given = f.came
				}
				before := time.Now()
				r := try.deliver(t, m, within)
				require.Equal(t, want, outcome(r))
				if c.wait > 0 {
					require.WithinRange(t, r.Until, before.Add(c.wait-min(c.wait, 30*time.Second)), time.Now().Add(c.wait))
				} else {
					require.Zero(t, r.Until)
				}
				taken := f.came(m.ID)
				require.LessOrEqual(t, taken, 1)
				switch r.Outcome {
				case notice.Sent:
					require.Equal(t, 1, taken)
				case notice.Throttled, notice.Permanent:
					require.Zero(t, taken)
				case notice.Retry:
					require.True(t, taken == 0 || !f.channel.AtMostOnce(), "an SMS that was taken would be sent again")
				case notice.Unknown:
					require.True(t, f.channel.AtMostOnce(), "only an SMS is given up for this")
				}

				f.fault(receive.Fault{})
				if r.Outcome != notice.Unknown && r.Outcome != notice.Sent {
					require.Equal(t, "sent", outcome(f.deliver(t, m, 20*time.Second)))
					require.Equal(t, taken+1, f.came(m.ID), "under the same id")
				}
			})
		}
	}
}

// TestNobodyThere: nothing was written, so an SMS, too, may be tried again.
func TestNobodyThere(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	for _, name := range []coupon.Channel{sms, push} {
		cfg := gateway.DefaultConfig()
		cfg.URL, cfg.KeyID, cfg.Key = fmt.Sprintf("http://127.0.0.1:%d/", port), "k1", secret.New(key)
		c, err := gateway.New(name, cfg, time.Now)
		require.NoError(t, err)
		require.Equal(t, "retry connect", outcome(far{channel: c}.deliver(t, message(name, 1), 20*time.Second)))
	}
	cfg := email.DefaultConfig()
	cfg.Host, cfg.Port, cfg.From = "127.0.0.1", port, "coupons@shop.example"
	c, err := email.New(cfg, time.Now)
	require.NoError(t, err)
	require.Equal(t, "retry connect", outcome(far{channel: c}.deliver(t, message(mail, 1), 20*time.Second)))
	require.NoError(t, c.Close())
}

// TestTLSMustHold: to a server that another authority vouches for nothing is sent, and the channel is at fault.
func TestTLSMustHold(t *testing.T) {
	_, other := authority(t)
	a, _ := authority(t)
	server, err := receive.StartGateway(t.Context(), receive.GatewayConfig{Authority: a})
	require.NoError(t, err)
	defer server.Close()
	for _, name := range []coupon.Channel{sms, push} {
		cfg := gateway.DefaultConfig()
		cfg.URL, cfg.CAFile, cfg.KeyID, cfg.Key = server.URL(), other, "k1", secret.New(key)
		c, err := gateway.New(name, cfg, time.Now)
		require.NoError(t, err)
		require.Equal(t, "retry tls", outcome(far{channel: c}.deliver(t, message(name, 1), 20*time.Second)))
	}
	came, _ := server.Total()
	require.Zero(t, came)

	for _, mode := range []string{email.TLSStart, email.TLSImplicit} {
		box, err := receive.StartMail(t.Context(), receive.MailConfig{Authority: a, Implicit: mode == email.TLSImplicit})
		require.NoError(t, err)
		cfg := email.DefaultConfig()
		cfg.Host, cfg.Port, cfg.CAFile, cfg.From, cfg.TLS = "127.0.0.1", box.Port(), other, "coupons@shop.example", mode
		c, err := email.New(cfg, time.Now)
		require.NoError(t, err)
		require.Equal(t, "retry tls", outcome(far{channel: c}.deliver(t, message(mail, 1), 20*time.Second)))
		require.NoError(t, c.Close())
		taken, _ := box.Total()
		require.Zero(t, taken)
		require.NoError(t, box.Close())
	}
}
