package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
)

// connectWithin bounds what is begun for a connection when the send that wanted it has ended.
const connectWithin = 10 * time.Second

// answerLimit bounds what is read of an answer.
const answerLimit = 64 << 10

// Gateway is the channel to one gateway. Safe for concurrent use.
type Gateway struct {
	channel   coupon.Channel
	cfg       Config
	transport *http.Transport
	now       func() time.Time
}

var _ notice.Channel = (*Gateway)(nil)

// New makes the channel, coupon.ChannelSMS or coupon.ChannelPush. The files for TLS must be there; they are read again for each
// connection. Nothing is connected yet.
func New(channel coupon.Channel, cfg Config, now func() time.Time) (*Gateway, error) {
	if channel != coupon.ChannelSMS && channel != coupon.ChannelPush {
		return nil, fmt.Errorf("a gateway serves %s and %s, not %q", coupon.ChannelSMS, coupon.ChannelPush, channel)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if _, err := cfg.Client(""); err != nil {
		return nil, err //nolint:wrapcheck // begins with the field's name
	}
	g := &Gateway{channel: channel, cfg: cfg, now: now}
	g.transport = &http.Transport{
		DialContext: (&net.Dialer{Timeout: connectWithin}).DialContext, DialTLSContext: g.dialTLS,
		MaxIdleConnsPerHost: cfg.Connections, MaxIdleConns: cfg.Connections, IdleConnTimeout: cfg.Idle,
		MaxResponseHeaderBytes: answerLimit, DisableCompression: true,
		// A connection that was open before may have been closed by the gateway meanwhile, and only the attempt to use it
		// tells. Of an SMS one could then not say whether it went out.
		DisableKeepAlives: channel == coupon.ChannelSMS,
	}
	return g, nil
}

// handshakeError is of a connection that could be made, and not trusted.
type handshakeError struct{ err error }

func (e *handshakeError) Error() string { return e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// dialTLS reads the files for TLS again: they may have been replaced.
func (g *Gateway) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	conf, err := g.cfg.Client(host)
	if err != nil {
		return nil, &handshakeError{err}
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, &handshakeError{err}
	}
	return conn, nil
}

// Name is sms or push.
func (g *Gateway) Name() coupon.Channel { return g.channel }

// Batch is 1: notices go out one by one, side by side.
func (*Gateway) Batch() int { return 1 }

// AtMostOnce is true of SMS.
func (g *Gateway) AtMostOnce() bool { return g.channel == coupon.ChannelSMS }

// Close lets go of the connections that idle.
func (g *Gateway) Close() error {
	g.transport.CloseIdleConnections()
	return nil
}

// Deliver posts the messages one after another.
func (g *Gateway) Deliver(ctx context.Context, ms []notice.Message) []notice.Result {
	results := make([]notice.Result, len(ms))
	for i := range ms {
		results[i] = g.deliver(ctx, &ms[i])
	}
	return results
}

// errSecret: token or key cannot be read, which is not the message's fault.
var errSecret = errors.New("secret")

// body is what a gateway is sent.
type body struct {
	NoticeID    string            `json:"notice_id"`
	Kind        string            `json:"kind"`
	Offset      string            `json:"offset,omitempty"`
	Locale      string            `json:"locale"`
	Recipient   string            `json:"recipient"`
	UserID      string            `json:"user_id"`
	Title       string            `json:"title"`
	Text        string            `json:"text"`
	TemplateKey string            `json:"template_key"`
	Params      map[string]string `json:"params"`
	Sign        string            `json:"sign"`
	NotAfter    string            `json:"not_after,omitempty"`
}

func (g *Gateway) request(ctx context.Context, m *notice.Message) (*http.Request, error) {
	b := body{
		NoticeID: m.ID, Kind: string(m.Kind), Offset: m.Offset, Locale: m.Locale, Recipient: m.Recipient, UserID: m.UserID,
		Title: m.Text.Title, Text: m.Text.Text, Params: m.Params,
	}
	b.TemplateKey, b.Sign = g.cfg.template(m.Kind, m.Offset, m.Locale)
	if b.Params == nil {
		b.Params = map[string]string{}
	}
	if !m.NotAfter.IsZero() && m.NotAfter.Before(coupon.Never) {
		b.NotAfter = m.NotAfter.UTC().Format(time.RFC3339)
	}
	text, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.cfg.URL, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "lapse")
	req.Header.Set("Idempotency-Key", m.ID)
	token, tokenErr := g.cfg.Token.Current()
	key, keyErr := g.cfg.Key.Current()
	if err := errors.Join(tokenErr, keyErr); err != nil {
		return nil, fmt.Errorf("%w: %w", errSecret, err)
	}
	if !token.Empty() {
		req.Header.Set("Authorization", "Bearer "+token.Reveal())
	}
	Sign(g.cfg.KeyID, key, req.Header, text, g.now())
	// net/http takes a request with an Idempotency-Key for one that it may send again by itself; without this it cannot.
	req.GetBody = nil
	return req, nil
}

func (g *Gateway) deliver(ctx context.Context, m *notice.Message) notice.Result {
	var way way
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { way.reached.Store(true) },
	})
	req, err := g.request(ctx, m)
	if errors.Is(err, errSecret) {
		return notice.Result{Outcome: notice.Retry, Reason: "secret"}
	}
	if err != nil {
		return notice.Result{Outcome: notice.Permanent, Reason: "bad_request"}
	}
	resp, err := g.transport.RoundTrip(req) // not through a Client: no redirects, no cookies
	if err != nil {
		return g.unanswered(ctx, &way, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit+1))
	return g.answered(resp, text, err, m)
}

// way is how far a request came.
type way struct {
	reached atomic.Bool // there was a connection: from here on something may have been written
}

// unanswered judges a request that ended without a status.
func (g *Gateway) unanswered(ctx context.Context, w *way, err error) notice.Result {
	reached, reason := w.reached.Load(), "cut"
	var (
		late  net.Error
		shake *handshakeError
	)
	switch {
	case ctx.Err() != nil || errors.As(err, &late) && late.Timeout():
		reason = "timeout"
	case !reached && errors.As(err, &shake):
		reason = "tls"
	case !reached:
		reason = "connect"
	}
	if reached && g.AtMostOnce() {
		return notice.Result{Outcome: notice.Unknown, Reason: reason}
	}
	return notice.Result{Outcome: notice.Retry, Reason: reason}
}
