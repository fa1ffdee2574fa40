package email

import (
	"context"
	"fmt"
	"net/mail"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
)

// Email is the channel to mail. Safe for concurrent use.
type Email struct {
	cfg     Config
	from    *mail.Address
	replyTo *mail.Address // nil: none
	bounce  string        // of the envelope
	domain  string
	now     func() time.Time
	hints   hints
	pool    *pool
}

var _ notice.Channel = (*Email)(nil)

// New makes the channel. The files for TLS must be there; they are read again for each connection. Nothing is connected yet.
// Close it.
func New(cfg Config, now func() time.Time) (*Email, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := &Email{cfg: cfg, now: now, hints: newHints()}
	from, err := mail.ParseAddress(cfg.From)
	if err != nil {
		return nil, fmt.Errorf("from: %w", err)
	}
	e.from, e.bounce = from, from.Address
	if cfg.ReturnPath != "" {
		e.bounce = cfg.ReturnPath
	}
	if cfg.ReplyTo != "" {
		if e.replyTo, err = mail.ParseAddress(cfg.ReplyTo); err != nil {
			return nil, fmt.Errorf("reply_to: %w", err)
		}
	}
	e.domain = cfg.Domain
	if e.domain == "" {
		e.domain = from.Address[strings.LastIndexByte(from.Address, '@')+1:]
	}
	if _, err := cfg.Client(cfg.Host); err != nil {
		return nil, err //nolint:wrapcheck // begins with the field's name
	}
	e.pool = newPool(cfg.Connections, cfg.Idle)
	return e, nil
}

// Name is email.
func (*Email) Name() coupon.Channel { return coupon.ChannelEmail }

// Batch is 1: letters go out one by one, side by side.
func (*Email) Batch() int { return 1 }

// AtMostOnce is false: a letter is sent again under its Message-ID.
func (*Email) AtMostOnce() bool { return false }

// Close waits for the letters on their way and ends the connections. Nothing is delivered afterwards.
func (e *Email) Close() error {
	e.pool.close()
	return nil
}

// Deliver sends the letters one after another.
func (e *Email) Deliver(ctx context.Context, ms []notice.Message) []notice.Result {
	results := make([]notice.Result, len(ms))
	for i := range ms {
		results[i] = e.deliver(ctx, &ms[i])
	}
	return results
}

func (e *Email) deliver(ctx context.Context, m *notice.Message) notice.Result {
	to, smtpUTF8, err := parse(m.Recipient)
	if err != nil {
		return notice.Result{Outcome: notice.Permanent, Reason: "bad_address"}
	}
	if m.ID == "" || strings.ContainsFunc(m.ID, odd) || strings.Contains(m.ID, "@") {
		return notice.Result{Outcome: notice.Permanent, Reason: "bad_notice"}
	}
	wire, err := e.letter(m, to, e.now())
	if err != nil {
		return notice.Result{Outcome: notice.Permanent, Reason: "bad_notice"}
	}
	if reason := e.pool.enter(ctx); reason != "" {
		return notice.Result{Outcome: notice.Retry, Reason: reason}
	}
	defer e.pool.leave()

	if l := e.pool.idle(); l != nil {
		fail := e.over(ctx, l, to, smtpUTF8, wire)
		if fail == nil {
			return notice.Result{Outcome: notice.Sent}
		}
		if !fail.stale() {
			return e.judge(ctx, fail)
		}
	}
	l, fail := e.dial(ctx)
	if fail == nil {
		fail = e.over(ctx, l, to, smtpUTF8, wire)
	}
	if fail != nil {
		return e.judge(ctx, fail)
	}
	return notice.Result{Outcome: notice.Sent}
}

// over sends a letter over a link, and puts the link back if it can be used again.
func (e *Email) over(ctx context.Context, l *link, to string, smtpUTF8 bool, wire []byte) *failure {
	release := l.within(ctx)
	fail := e.send(l, to, smtpUTF8, wire)
	usable := fail == nil || l.settled(fail)
	l.used++
	switch {
	case !release() || !usable:
		l.drop()
	case l.used < e.cfg.PerConnection:
		e.pool.put(l)
	default:
		e.pool.part(l)
	}
	return fail
}

// send is one mail transaction.
func (e *Email) send(l *link, to string, smtpUTF8 bool, wire []byte) *failure {
	if allowed, _ := l.client.Extension("SMTPUTF8"); smtpUTF8 && !allowed {
		return &failure{stageTo, errAddress}
	}
	l.client.SkipSMTPUTF8(!smtpUTF8)
	if err := l.client.Mail("<" + e.bounce + ">"); err != nil {
		return &failure{stageFrom, err}
	}
	if err := l.client.Rcpt("<" + to + ">"); err != nil {
		return &failure{stageTo, err}
	}
	w, err := l.client.Data()
	if err != nil {
		return &failure{stageContent, err}
	}
	if _, err := w.Write(wire); err != nil {
		return &failure{stageContent, err}
	}
	if err := w.Close(); err != nil {
		return &failure{stageDot, err}
	}
	return nil
}
