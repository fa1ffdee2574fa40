package notice

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice/text"
	"github.com/lapsehq/lapse/pkg/pulse"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// SendStore hands out notices that are due and records what became of them.
type SendStore interface {
	ClaimNotices(ctx context.Context, channel coupon.Channel, lease time.Duration, limit int) (ns []coupon.Notice,
		unknown map[coupon.NoticeKind]int, more bool, err error)
	PrepareNotices(ctx context.Context, channel coupon.Channel, ns []coupon.Notice, caps coupon.Cap, atMostOnce bool,
		day func(now time.Time, p *coupon.Profile) time.Time) ([]coupon.Prepared, error)
	SettleNotices(ctx context.Context, channel coupon.Channel, rs []coupon.NoticeResult) (settled, fallbacks int, err error)
}

// Permits is the part of the policy that the last step asks: whether the notice may go out now, or when, or why never; the
// caps; and the user's zone.
type Permits interface {
	Allowed(now time.Time, ch coupon.Channel, kind coupon.NoticeKind, notAfter time.Time, p *coupon.Profile) (at time.Time, reason string)
	Cap(ch coupon.Channel) coupon.Cap
	Zone(p *coupon.Profile) *time.Location
}

// Renderer writes notices.
type Renderer interface {
	Render(now time.Time, d text.Data) (text.Rendered, error)
	RenderAll(now time.Time, d text.Data) (map[string]coupon.NoticeText, error)
}

// Addresses opens the addresses of a profile; without any it gives none.
type Addresses interface {
	Addresses(p *coupon.Profile) (coupon.Addresses, error)
}

// SenderDeps is what a sender works with.
type SenderDeps struct {
	Store     SendStore
	Policy    Permits
	Texts     Renderer
	Addresses Addresses // nil: none are known here
	// Paused reports whether an operator has paused the channel: then nothing is claimed. It must not wait. Nil: none ever is.
	Paused  func(coupon.Channel) bool
	Metrics *Metrics
	Pulse   *pulse.Recorder
	Log     *zap.Logger
	Now     func() time.Time // with a monotonic reading
	Traces  *telemetry.Traces
	// TracesOf gives the traces of what windows tell of; nil: none are known.
	TracesOf func(ctx context.Context, windows []uint64) (map[uint64][]string, error)
}

// Sender sends what is due, each channel by a loop of its own: one whose provider is slow, hangs or is gone keeps no other
// from its work. Any number of pods run one.
type Sender struct {
	loops map[coupon.Channel]*dispatcher
}

// NewSender makes the loops.
func NewSender(c Config, d SenderDeps, channels []Channel) (*Sender, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("notice config: %w", err)
	}
	if len(channels) == 0 {
		return nil, errors.New("notice sender: needs a channel")
	}
	s := &Sender{loops: make(map[coupon.Channel]*dispatcher, len(channels))}
	for _, ch := range channels {
		if s.loops[ch.Name()] != nil {
			return nil, fmt.Errorf("notice sender: channel %s is there twice", ch.Name())
		}
		s.loops[ch.Name()] = newDispatcher(c, d, ch, s.ringAll)
	}
	return s, nil
}

// Run sends until ctx ends; what has been begun then is finished, within Config.Drain, and recorded.
func (s *Sender) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	for _, d := range s.loops {
		loops.Go(func() { d.run(ctx) })
	}
	loops.Wait()
	return nil
}

// Ring makes the channel's loop look at once.
func (s *Sender) Ring(ch coupon.Channel) {
	if d := s.loops[ch]; d != nil {
		select {
		case d.bell <- struct{}{}:
		default: // it will look anyway
		}
	}
}

func (s *Sender) ringAll() {
	for ch := range s.loops {
		s.Ring(ch)
	}
}
