package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/gateway"
	"github.com/lapsehq/lapse/pkg/rig/receive"
	"github.com/lapsehq/lapse/pkg/secret"
)

func open(t *testing.T, channel coupon.Channel, url string, shape func(*gateway.Config)) *gateway.Gateway {
	t.Helper()
	cfg := valid()
	cfg.URL = url
	if shape != nil {
		shape(&cfg)
	}
	g, err := gateway.New(channel, cfg, time.Now)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g
}

func start(t *testing.T) *receive.Gateway {
	t.Helper()
	server, err := receive.StartGateway(t.Context(), receive.GatewayConfig{Keys: map[string]string{"2026-01": key}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}

func message(channel coupon.Channel, window uint64) notice.Message {
	return notice.Message{
		ID: coupon.NoticeID(window, channel), Window: window, Kind: coupon.NoticeExpiring, Offset: "-1d", UserID: "u1", Locale: "zh-CN",
		Recipient: "+8613700000000", Text: coupon.NoticeText{Title: "题", Text: "3 张优惠券明天到期"}, Params: map[string]string{"count": "3"},
		NotAfter: time.Date(2026, 12, 1, 8, 0, 0, 0, time.FixedZone("", 8*3600)),
	}
}

func send(t *testing.T, g *gateway.Gateway, m notice.Message) notice.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rs := g.Deliver(ctx, []notice.Message{m})
	require.Len(t, rs, 1)
	return rs[0]
}

func TestWhatAGatewayIsSent(t *testing.T) {
	server := start(t)
	g := open(t, coupon.ChannelSMS, server.URL(), func(c *gateway.Config) {
		c.Sign, c.Token = "商城", secret.New("t0ken")
		c.Templates = []gateway.Template{
			{Kind: "expired", Key: "SMS_0"},
			{Kind: "expiring", Offset: "-3d", Key: "SMS_1"},
			{Kind: "expiring", Offset: "-1d", Locale: "en", Key: "SMS_2"},
			{Kind: "expiring", Locale: "ZH", Key: "SMS_3", Sign: "商城二"},
			{Key: "SMS_4"},
		}
	})
	require.Equal(t, notice.Result{Outcome: notice.Sent, Ref: "p-5-sms"}, send(t, g, message(coupon.ChannelSMS, 5)))
	a := server.Arrivals()[0]
	require.JSONEq(t, `{"notice_id":"5-sms","kind":"expiring","offset":"-1d","locale":"zh-CN","recipient":"+8613700000000","user_id":"u1",
		"title":"题","text":"3 张优惠券明天到期","template_key":"SMS_3","params":{"count":"3"},"sign":"商城二","not_after":"2026-12-01T00:00:00Z"}`, string(a.Body))
	require.Equal(t, "5-sms", a.Key)
	require.Equal(t, "Bearer t0ken", a.Header.Get("Authorization"))
	require.Equal(t, "application/json", a.Header.Get("Content-Type"))

	m := message(coupon.ChannelSMS, 6)
	m.Kind, m.Offset, m.Locale, m.Recipient, m.NotAfter, m.Params = coupon.NoticeExpired, "", "en", "", coupon.Never, nil
	require.Equal(t, notice.Sent, send(t, g, m).Outcome)
	a = server.Arrivals()[1]
	require.JSONEq(t, `{"notice_id":"6-sms","kind":"expired","locale":"en","recipient":"","user_id":"u1",
		"title":"题","text":"3 张优惠券明天到期","template_key":"SMS_0","params":{},"sign":"商城"}`, string(a.Body))

	m.Kind, m.Locale = coupon.NoticeExpiring, "de"
	require.Equal(t, notice.Sent, send(t, g, m).Outcome)
	require.Equal(t, "SMS_4", server.Arrivals()[2].TemplateKey)

	g = open(t, coupon.ChannelPush, server.URL(), nil)
	require.Equal(t, notice.Sent, send(t, g, message(coupon.ChannelPush, 7)).Outcome)
	require.Empty(t, server.Arrivals()[3].TemplateKey)
	require.Empty(t, server.Arrivals()[3].Header.Get("Authorization"))
	_, unsigned := server.Total()
	require.Zero(t, unsigned)

	g = open(t, coupon.ChannelPush, server.URL(), func(c *gateway.Config) { c.Key = secret.New("another-key-01234567") })
	require.Equal(t, notice.Result{Outcome: notice.Retry, Reason: "http_401"}, send(t, g, message(coupon.ChannelPush, 8)))
}

// TestNothingSendsARequestAgain: net/http does so by itself with what it takes for idempotent, when a connection that was open
// before breaks. An SMS would go out twice.
func TestNothingSendsARequestAgain(t *testing.T) {
	server := start(t)
	for window, c := range map[uint64]struct {
		channel coupon.Channel
		want    notice.Result
	}{
		1: {coupon.ChannelSMS, notice.Result{Outcome: notice.Unknown, Reason: "cut"}},
		2: {coupon.ChannelPush, notice.Result{Outcome: notice.Retry, Reason: "cut"}},
	} {
		g := open(t, c.channel, server.URL(), nil)
		server.Fault(receive.Fault{})
		require.Equal(t, notice.Sent, send(t, g, message(c.channel, 10*window)).Outcome)
		server.Fault(receive.Fault{Act: receive.ActDrop})
		m := message(c.channel, 10*window+1)
		require.Equal(t, c.want, send(t, g, m))
		came, _ := server.Counts()
		require.Equal(t, 1, came[m.ID])
	}
}

// TestAnSMSHasAConnectionOfItsOwn: one that was kept may be gone without our knowing, and the SMS would be given up for it.
func TestAnSMSHasAConnectionOfItsOwn(t *testing.T) {
	var opened atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	for channel, want := range map[coupon.Channel]int64{coupon.ChannelSMS: 3, coupon.ChannelPush: 1} {
		opened.Store(0)
		g := open(t, channel, server.URL, nil)
		for i := range uint64(3) {
			require.Equal(t, notice.Result{Outcome: notice.Sent}, send(t, g, message(channel, i+1)))
		}
		require.Equal(t, want, opened.Load(), channel)
		require.NoError(t, g.Close())
	}
}

// TestNoRedirectIsFollowedAndNoProxyAsked: the address would go where nobody configured it to go.
func TestNoRedirectIsFollowedAndNoProxyAsked(t *testing.T) {
	server, elsewhere := start(t), start(t)
	t.Setenv("HTTP_PROXY", "http://"+elsewhere.Addr())
	t.Setenv("HTTPS_PROXY", "http://"+elsewhere.Addr())
	server.Fault(receive.Fault{Act: receive.ActRedirect, Text: elsewhere.URL(), Times: 1})
	g := open(t, coupon.ChannelPush, server.URL(), nil)
	require.Equal(t, notice.Result{Outcome: notice.Retry, Reason: "redirect"}, send(t, g, message(coupon.ChannelPush, 1)))
	require.Equal(t, notice.Sent, send(t, g, message(coupon.ChannelPush, 1)).Outcome)
	came, unsigned := elsewhere.Total()
	require.Zero(t, came+unsigned)
}

func TestAnswersThatSayYes(t *testing.T) {
	var answer atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, answer.Load().(string))
	}))
	defer server.Close()
	sms, push := open(t, coupon.ChannelSMS, server.URL, nil), open(t, coupon.ChannelPush, server.URL, nil)
	for text, ref := range map[string]string{
		"": "", " \n": "", "{}": "", `{"id":"abc"}`: "abc", ` {"id":42,"more":[1]} `: "42", `{"id":12345678901234567890}`: "12345678901234567890",
		`{"id":null}`: "", `{"id":{"x":1}}`: "", `{"id":"with space"}`: "", `{"id":"to +8613700000000"}`: "", `{"id":"x+8613700000000"}`: "",
		`{"id":"for-u1"}`: "", `{"id":"` + strings.Repeat("x", 101) + `"}`: "", `{"id":"行"}`: "", `{"ID":"abc"}`: "abc",
	} {
		answer.Store(text)
		require.Equal(t, notice.Result{Outcome: notice.Sent, Ref: ref}, send(t, sms, message(coupon.ChannelSMS, 1)), text)
		require.Equal(t, notice.Result{Outcome: notice.Sent, Ref: ref}, send(t, push, message(coupon.ChannelPush, 1)), text)
	}
	for _, text := range []string{"OK", "[]", "null", "{", `{"id":"a"} {}`, `"id"`, "<html>", `{"id":"` + strings.Repeat("x", 70_000) + `"}`} {
		answer.Store(text)
		require.Equal(t, notice.Result{Outcome: notice.Unknown, Reason: "garbage"}, send(t, sms, message(coupon.ChannelSMS, 1)))
		require.Equal(t, notice.Result{Outcome: notice.Retry, Reason: "garbage"}, send(t, push, message(coupon.ChannelPush, 1)))
	}
}

// TestAContextThatEndsBeforehand: nothing was written.
func TestAContextThatEndsBeforehand(t *testing.T) {
	server := start(t)
	for _, channel := range []coupon.Channel{coupon.ChannelSMS, coupon.ChannelPush} {
		g := open(t, channel, server.URL(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Equal(t, []notice.Result{{Outcome: notice.Retry, Reason: "timeout"}}, g.Deliver(ctx, []notice.Message{message(channel, 1)}))
	}
	came, _ := server.Total()
	require.Zero(t, came)
}

// TestAHandshakeThatHangs: a port that takes connections and says nothing; over TLS nothing was written.
func TestAHandshakeThatHangs(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, channel := range []coupon.Channel{coupon.ChannelSMS, coupon.ChannelPush} {
		g := open(t, channel, "https://"+l.Addr().String(), nil)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		require.Equal(t, []notice.Result{{Outcome: notice.Retry, Reason: "timeout"}}, g.Deliver(ctx, []notice.Message{message(channel, 1)}))
		cancel()
	}
}

// FuzzAnswer: whatever a gateway answers, there is a result without a word of it but the id.
func FuzzAnswer(f *testing.F) {
	f.Add(200, "", `{"id":"a"}`)
	f.Add(429, "99999999999999999999", "")
	f.Add(503, "Mon, 01 Jan 2024 00:00:00 GMT", "x")
	f.Add(999, "-1", "\x00")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var say struct{ Text string }
		_ = json.NewDecoder(r.Body).Decode(&say)
		parts := strings.SplitN(say.Text, "\n", 3)
		code := 0
		_ = json.Unmarshal([]byte(parts[0]), &code)
		w.Header().Set("Retry-After", parts[1])
		w.WriteHeader(code)
		_, _ = io.WriteString(w, parts[2])
	}))
	f.Cleanup(server.Close)
	cfg := valid()
	cfg.URL = server.URL
	g, err := gateway.New(coupon.ChannelPush, cfg, time.Now)
	require.NoError(f, err)
	f.Cleanup(func() { g.Close() })
	f.Fuzz(func(t *testing.T, code int, after, text string) {
		if code < 200 || code > 999 || strings.ContainsAny(after, "\r\n") {
			return
		}
		number, err := json.Marshal(code)
		require.NoError(t, err)
		m := message(coupon.ChannelPush, 1)
		m.Text.Text = string(number) + "\n" + after + "\n" + text
		before := time.Now()
		r := g.Deliver(t.Context(), []notice.Message{m})[0]
		require.NotEqual(t, notice.Unknown, r.Outcome)
		require.Equal(t, r.Outcome == notice.Sent, r.Reason == "")
		require.Regexp(t, `^(http_\d{3}|address_gone|garbage|redirect|cut)?$`, r.Reason)
		if !r.Until.IsZero() {
			require.Equal(t, notice.Throttled, r.Outcome)
			require.WithinRange(t, r.Until, before, time.Now().Add(15*time.Minute))
		}
	})
}
