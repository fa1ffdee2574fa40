package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
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

// New makes the channel, coupon.ChannelSMS or coupon.ChannelPush. The CA's file is read here; nothing is connected yet.
func New(channel coupon.Channel, cfg Config, now func() time.Time) (*Gateway, error) {
	if channel != coupon.ChannelSMS && channel != coupon.ChannelPush {
		return nil, fmt.Errorf("a gateway serves %s and %s, not %q", coupon.ChannelSMS, coupon.ChannelPush, channel)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CA != "" {
		pem, err := os.ReadFile(cfg.CA)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file: holds no certificate: %s", cfg.CA)
		}
	}
	g := &Gateway{channel: channel, cfg: cfg, now: now}
	g.transport = &http.Transport{
		DialContext:     (&net.Dialer{Timeout: connectWithin}).DialContext,
		TLSClientConfig: conf, TLSHandshakeTimeout: connectWithin,
		MaxIdleConnsPerHost: cfg.Connections, MaxIdleConns: cfg.Connections, IdleConnTimeout: cfg.Idle,
		MaxResponseHeaderBytes: answerLimit, DisableCompression: true,
		// A connection that was open before may have been closed by the gateway meanwhile, and only the attempt to use it
		// tells. Of an SMS one could then not say whether it went out.
		DisableKeepAlives: channel == coupon.ChannelSMS,
	}
	return g, nil
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
	if !g.cfg.Token.Empty() {
		req.Header.Set("Authorization", "Bearer "+g.cfg.Token.Reveal())
	}
	Sign(g.cfg.KeyID, g.cfg.Key, req.Header, text, g.now())
	// net/http takes a request with an Idempotency-Key for one that it may send again by itself; without this it cannot.
	req.GetBody = nil
	return req, nil
}

func (g *Gateway) deliver(ctx context.Context, m *notice.Message) notice.Result {
	var way way
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeStart: func() { way.shook.Store(true) },
		GotConn:           func(httptrace.GotConnInfo) { way.reached.Store(true) },
	})
	req, err := g.request(ctx, m)
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
	shook   atomic.Bool // a TLS handshake had begun
	reached atomic.Bool // there was a connection: from here on something may have been written
}

// unanswered judges a request that ended without a status.
func (g *Gateway) unanswered(ctx context.Context, w *way, err error) notice.Result {
	reached, reason := w.reached.Load(), "cut"
	var late net.Error
	switch {
	case ctx.Err() != nil || errors.As(err, &late) && late.Timeout():
		reason = "timeout"
	case !reached && w.shook.Load():
		reason = "tls"
	case !reached:
		reason = "connect"
	}
	if reached && g.AtMostOnce() {
		return notice.Result{Outcome: notice.Unknown, Reason: reason}
	}
	return notice.Result{Outcome: notice.Retry, Reason: reason}
}
