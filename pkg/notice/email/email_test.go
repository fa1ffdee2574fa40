package email_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/email"
	"github.com/lapsehq/lapse/pkg/rig/receive"
	"github.com/lapsehq/lapse/pkg/secret"
)

// box is a server and a channel to it.
type box struct {
	*receive.Mail
	channel *email.Email
}

// open starts both: shape may change either's configuration.
func open(t *testing.T, shape func(*receive.MailConfig, *email.Config)) box {
	t.Helper()
	a, err := receive.NewAuthority(time.Now())
	require.NoError(t, err)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, a.WriteFile(ca))
	there, here := receive.MailConfig{Authority: a}, email.DefaultConfig()
	here.Host, here.CAFile, here.From = "127.0.0.1", ca, "优惠券 <coupons@shop.example>"
	if shape != nil {
		shape(&there, &here)
	}
	server, err := receive.StartMail(t.Context(), there)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	here.Port = server.Port()
	c, err := email.New(here, time.Now)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return box{server, c}
}

func letter(window uint64) notice.Message {
	return notice.Message{
		ID: coupon.NoticeID(window, coupon.ChannelEmail), Window: window, Kind: coupon.NoticeExpiring, UserID: "u&1", Locale: "zh-CN",
		Recipient: "buyer@mail.example", HTML: "<p>您有 3 张优惠券<br>明天到期</p>\n",
		Text: coupon.NoticeText{Title: "您有 3 张优惠券明天到期", Text: "您有 3 张优惠券\n.\n明天到期\n" + strings.Repeat("长行", 400) + "\n"},
	}
}

func (b box) send(t *testing.T, m notice.Message) notice.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rs := b.channel.Deliver(ctx, []notice.Message{m})
	require.Len(t, rs, 1)
	return rs[0]
}

func TestALetterArrivesAsItWasMeant(t *testing.T) {
	unsubscribe := "https://shop.example/stop?n={notice_id}&u={user_id}&s={sign}"
	for _, mode := range []string{email.TLSStart, email.TLSImplicit} {
		b := open(t, func(there *receive.MailConfig, here *email.Config) {
			there.User, there.Password, there.Implicit = "lapse", "p w", mode == email.TLSImplicit
			here.TLS, here.Username, here.Password = mode, "lapse", secret.New("p w")
			here.ReplyTo, here.ReturnPath, here.Domain = "help@shop.example", "bounces@shop.example", "lapse.shop.example"
			here.Unsubscribe, here.UnsubscribeKey = unsubscribe, secret.New("0123456789abcdef")
		})
		m := letter(7)
		require.Equal(t, notice.Result{Outcome: notice.Sent}, b.send(t, m))
		got := b.Letters()[0]
		require.Equal(t, []any{"bounces@shop.example", []string{"buyer@mail.example"}, "7-email@lapse.shop.example", true, "lapse"},
			[]any{got.From, got.To, got.MessageID, got.TLS, got.User})
		require.Equal(t, m.Text.Title, got.Subject)
		require.Equal(t, m.Text.Text, got.Text)
		require.Equal(t, m.HTML, got.HTML)
		from, err := got.Header.AddressList("From")
		require.NoError(t, err)
		require.Equal(t, "优惠券", from[0].Name)
		require.Equal(t, "coupons@shop.example", from[0].Address)
		require.Equal(t, "<buyer@mail.example>", got.Header.Get("To"))
		require.Equal(t, "<help@shop.example>", got.Header.Get("Reply-To"))
		require.Equal(t, "auto-generated", got.Header.Get("Auto-Submitted"))
		mac := hmac.New(sha256.New, []byte("0123456789abcdef"))
		mac.Write([]byte("7-email\nu&1"))
		require.Equal(t, "<https://shop.example/stop?n=7-email&u=u%261&s="+base64.RawURLEncoding.EncodeToString(mac.Sum(nil))+">", got.Header.Get("List-Unsubscribe"))
		require.Equal(t, "List-Unsubscribe=One-Click", got.Header.Get("List-Unsubscribe-Post"))
	}
}

func TestTextAlone(t *testing.T) {
	b := open(t, nil)
	m := letter(1)
	m.HTML = ""
	require.Equal(t, notice.Sent, b.send(t, m).Outcome)
	got := b.Letters()[0]
	require.Equal(t, m.Text.Text, got.Text)
	require.Empty(t, got.HTML)
	require.Equal(t, "1-email@shop.example", got.MessageID)
	require.Empty(t, got.Header.Get("List-Unsubscribe"))
}

// TestNothingIsInjected: what is in a message cannot become a header, a command or another recipient.
func TestNothingIsInjected(t *testing.T) {
	b := open(t, func(_ *receive.MailConfig, here *email.Config) {
		here.Unsubscribe = "mailto:stop@shop.example?subject={user_id}"
	})
	m := letter(1)
	m.Text.Title = "Hello\r\nBcc: thief@evil.example\r\n\r\nbody\u2028X: y\x00"
	m.Text.Text = "a\r\n.\r\nMAIL FROM:<thief@evil.example>\r\n"
	m.UserID = "u>\r\nBcc: thief@evil.example"
	require.Equal(t, notice.Sent, b.send(t, m).Outcome)
	got := b.Letters()[0]
	require.Equal(t, "Hello  Bcc: thief@evil.example    body X: y", got.Subject)
	require.Empty(t, got.Header.Get("Bcc"))
	require.Empty(t, got.Header.Get("X"))
	require.Equal(t, []string{"buyer@mail.example"}, got.To)
	require.Equal(t, "a\n.\nMAIL FROM:<thief@evil.example>\n", got.Text)
	require.NotContains(t, got.Header.Get("List-Unsubscribe"), "\n")

	for _, recipient := range []string{"", "a@b.example\r\nBcc: thief@evil.example", "a@b.example>\r\nRCPT TO:<thief@evil.example", "a@b.example, c@d.example"} {
		m.Recipient = recipient
		require.Equal(t, notice.Result{Outcome: notice.Permanent, Reason: "bad_address"}, b.send(t, m))
	}
	m = letter(2)
	m.ID = "2-email>\r\nBcc: thief@evil.example"
	require.Equal(t, notice.Result{Outcome: notice.Permanent, Reason: "bad_notice"}, b.send(t, m))
	taken, _ := b.Total()
	require.Equal(t, 1, taken)
}

func TestAddressesOfOtherScripts(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		b := open(t, func(there *receive.MailConfig, _ *email.Config) { there.UTF8 = allowed })
		m := letter(1)
		m.Recipient = "info@bücher.example"
		require.Equal(t, notice.Sent, b.send(t, m).Outcome)
		require.Equal(t, []string{"info@xn--bcher-kva.example"}, b.Letters()[0].To)
		require.False(t, b.Letters()[0].UTF8)

		m = letter(2)
		m.Recipient = "用户@例子.测试"
		if !allowed {
			require.Equal(t, notice.Result{Outcome: notice.Permanent, Reason: "bad_address"}, b.send(t, m))
			require.Equal(t, notice.Sent, b.send(t, letter(3)).Outcome)
			continue
		}
		require.Equal(t, notice.Sent, b.send(t, m).Outcome)
		require.Equal(t, []string{"用户@xn--fsqu00a.xn--0zwm56d"}, b.Letters()[1].To)
		require.True(t, b.Letters()[1].UTF8)
	}
}

// TestARepeatHasTheSameMessageID: the connection breaks after the server took the letter, and before it could say so.
func TestARepeatHasTheSameMessageID(t *testing.T) {
	b := open(t, nil)
	b.Fault(receive.Fault{Act: receive.ActCut, Stage: receive.StageDot, Times: 1})
	require.Equal(t, notice.Result{Outcome: notice.Retry, Reason: "cut"}, b.send(t, letter(9)))
	require.Equal(t, notice.Sent, b.send(t, letter(9)).Outcome)
	require.Equal(t, map[string]int{"9-email@shop.example": 2}, b.Counts())
}

func TestWithoutTLSNothingIsSent(t *testing.T) {
	b := open(t, func(there *receive.MailConfig, here *email.Config) {
		there.Authority, there.User, there.Password = nil, "lapse", "pass-word"
		here.CAFile, here.Username, here.Password = "", "lapse", secret.New("pass-word")
	})
	require.Equal(t, notice.Result{Outcome: notice.Retry, Reason: "tls"}, b.send(t, letter(1)))
	taken, _ := b.Total()
	require.Zero(t, taken)

	b = open(t, func(there *receive.MailConfig, here *email.Config) {
		there.Authority, here.CAFile, here.TLS = nil, "", email.TLSNone
	})
	require.Equal(t, notice.Sent, b.send(t, letter(1)).Outcome, "to loopback, when asked to")
}

func TestAWrongPasswordIsTheChannelsFault(t *testing.T) {
	b := open(t, func(there *receive.MailConfig, here *email.Config) {
		there.User, there.Password = "lapse", "right"
		here.Username, here.Password = "lapse", secret.New("wrong")
	})
	require.Equal(t, notice.Result{Outcome: notice.Retry, Reason: "auth"}, b.send(t, letter(1)))

	b = open(t, func(_ *receive.MailConfig, here *email.Config) {
		here.Username, here.Password = "lapse", secret.New("any")
	})
	require.Equal(t, notice.Result{Outcome: notice.Retry, Reason: "auth"}, b.send(t, letter(1)), "of a server without a login")
}

// TestConnectionsAreKeptForTheNextLetter: sessions count twice for each connection, before STARTTLS and after.
func TestConnectionsAreKeptForTheNextLetter(t *testing.T) {
	b := open(t, func(_ *receive.MailConfig, here *email.Config) { here.PerConnection = 3 })
	for i := range uint64(3) {
		require.Equal(t, notice.Sent, b.send(t, letter(i+1)).Outcome)
	}
	require.Equal(t, 2, b.Sessions())
	require.Equal(t, notice.Sent, b.send(t, letter(4)).Outcome)
	require.Equal(t, 4, b.Sessions(), "three letters each")

	b.Fault(receive.Fault{Act: receive.ActCode, Stage: receive.StageRcpt, Code: 550, Text: "5.2.1 no", Times: 1})
	require.Equal(t, notice.Permanent, b.send(t, letter(5)).Outcome)
	require.Equal(t, notice.Sent, b.send(t, letter(6)).Outcome)
	require.Equal(t, 4, b.Sessions(), "a letter that was refused leaves the connection in order")

	require.Equal(t, notice.Sent, b.send(t, letter(7)).Outcome)
	require.Equal(t, 6, b.Sessions())
	b.CutAll()
	require.Equal(t, notice.Sent, b.send(t, letter(8)).Outcome, "one that idled and is gone is not the letter's trouble")
	require.Equal(t, 8, b.Sessions())
	b.Fault(receive.Fault{Act: receive.ActCode, Stage: receive.StageMail, Code: 421, Text: "4.4.2 idle too long", Times: 1})
	require.Equal(t, notice.Sent, b.send(t, letter(9)).Outcome, "nor is one that the server says goodbye on")
	for id, n := range b.Counts() {
		require.Equal(t, 1, n, id)
	}
}

func TestConnectionsEndWhenTheyIdle(t *testing.T) {
	b := open(t, func(_ *receive.MailConfig, here *email.Config) { here.Idle = 100 * time.Millisecond })
	require.Equal(t, notice.Sent, b.send(t, letter(1)).Outcome)
	require.Eventually(t, func() bool { return b.Connections() == 0 }, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, notice.Sent, b.send(t, letter(2)).Outcome)
}

// TestConnectionsAreBounded: more letters than connections wait for their turn, none longer than its context.
func TestConnectionsAreBounded(t *testing.T) {
	b := open(t, func(_ *receive.MailConfig, here *email.Config) { here.Connections = 2 })
	b.Fault(receive.Fault{Act: receive.ActHang, Stage: receive.StageDot})
	var wg sync.WaitGroup
	hung := make(chan notice.Result, 2)
	for i := range uint64(2) {
		wg.Go(func() { hung <- b.send(t, letter(i+1)) })
	}
	require.NoError(t, b.Wait(t.Context(), 2))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Equal(t, notice.Result{Outcome: notice.Retry, Reason: "busy"}, b.channel.Deliver(ctx, []notice.Message{letter(3)})[0])
	require.Equal(t, 2, b.Connections())
	b.Fault(receive.Fault{})
	wg.Wait()
	require.Equal(t, notice.Retry, (<-hung).Outcome)

	for i := range uint64(40) {
		wg.Go(func() { require.Equal(t, notice.Sent, b.send(t, letter(100+i)).Outcome) })
	}
	wg.Wait()
	require.LessOrEqual(t, b.Connections(), 2)
	require.LessOrEqual(t, b.Most(), 2)
}

func TestCloseWaitsForLettersOnTheirWay(t *testing.T) {
	b := open(t, nil)
	require.Equal(t, notice.Sent, b.send(t, letter(1)).Outcome)
	b.Fault(receive.Fault{Act: receive.ActSlow, Stage: receive.StageDot, Delay: 100 * time.Millisecond})
	got := make(chan notice.Result, 1)
	go func() { got <- b.channel.Deliver(context.WithoutCancel(t.Context()), []notice.Message{letter(2)})[0] }()
	require.NoError(t, b.Wait(t.Context(), 2))
	require.NoError(t, b.channel.Close())
	select {
	case r := <-got:
		require.Equal(t, notice.Sent, r.Outcome)
	case <-time.After(20 * time.Second):
		require.FailNow(t, "it was not waited for")
	}
	require.Equal(t, notice.Result{Outcome: notice.Retry, Reason: "closed"}, b.send(t, letter(3)))
}
