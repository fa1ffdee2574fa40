package api

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
)

// Bounds of the aside.
const (
	asideBuffer   = 1024             // triggers that wait to be published
	asideBatch    = 128              // published together
	asideAgain    = 30 * time.Second // a coupon rings at most once in this time
	asideRemember = 16 * 1024        // coupons that this is known of
	asideTimeout  = 5 * time.Second  // of a publish
)

// sentByReader is the first letter of a lazy trigger's id (coupon.TriggerID).
const sentByReader = 'l'

// The values of the label result.
const (
	asideSent     = "sent"     // confirmed by the broker
	asideDropped  = "dropped"  // the buffer is full or the broker is away; the sweep finds the row
	asideRepeated = "repeated" // it has rung a moment ago
	asideFailed   = "failed"   // the broker did not take it
)

// AsidePublisher publishes with confirms.
type AsidePublisher interface {
	Publish(ctx context.Context, ms []broker.Message) []error
	Ready() error
}

// AsideRouter gives the first step of a trigger's way; without a wait, to the due queue.
type AsideRouter interface {
	After(wait time.Duration, t coupon.Timed) broker.Message
}

// AsideEncoder renders a trigger.
type AsideEncoder interface {
	Trigger(t coupon.Trigger) []byte
}

// AsideDeps is what an Aside works with.
type AsideDeps struct {
	Publisher AsidePublisher
	Router    AsideRouter
	Encoder   AsideEncoder
	Now       func() time.Time // monotonic time for "a moment ago"; decides nothing about a coupon
	Log       *zap.Logger
	Registry  prometheus.Registerer
	// Paused reports whether an operator has paused the expiry of coupons of the template and batch: nobody need ring for them.
	// It must not wait. Nil: none ever is.
	Paused func(template uint64, batch string) bool
}

// Aside is the lazy check (requirement R20). Whoever reads a coupon asks it what to show (Seen), and it rings for those
// that are shown otherwise than they are stored: an unused coupon past its end, a lock that has run out. It rings aside, through
// a bounded buffer and one goroutine (Run): a reader never waits for it, nor for the broker, and writes nothing. A refresh
// storm makes one trigger. What is dropped here is found by the sweep, or by the next reader.
//
// A nil Aside shows and does not ring.
type Aside struct {
	deps    AsideDeps
	results *prometheus.CounterVec
	queue   chan ring

	mu   sync.Mutex
	rung map[uint64]time.Time // coupons that rang of late, and when
	past []rang               // the same, oldest first
}

type ring struct {
	trigger coupon.Trigger
	class   byte
}

type rang struct {
	id uint64
	at time.Time
}

// NewAside rings nothing until Run runs.
func NewAside(d AsideDeps) *Aside {
	a := &Aside{
		deps: d, queue: make(chan ring, asideBuffer), rung: make(map[uint64]time.Time),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_lazy_total", Help: "Triggers for coupons that a reader was shown otherwise than they are stored, by what became of them.",
		}, []string{"result"}),
	}
	for _, result := range []string{asideSent, asideDropped, asideRepeated, asideFailed} {
		a.results.WithLabelValues(result)
	}
	if d.Registry != nil {
		d.Registry.MustRegister(a.results)
	}
	return a
}

// Seen is the state in which a reader is shown the coupon; now is the database's clock of the reading. It never waits.
func (a *Aside) Seen(now time.Time, c *coupon.Coupon) coupon.Status {
	seen := c.Seen(now)
	if seen != c.Status && a != nil && (seen != coupon.Expired || a.deps.Paused == nil || !a.deps.Paused(c.Terms.TemplateID, c.BatchID)) {
		a.ring(c)
	}
	return seen
}

// ring hands a trigger over, unless the coupon has rung a moment ago.
func (a *Aside) ring(c *coupon.Coupon) {
	if a.deps.Publisher.Ready() != nil {
		a.count(asideDropped, 1)
		return
	}
	t := coupon.Trigger{
		Kind: coupon.KindExpire, CouponID: c.ID, At: c.ExpiresAt, ID: coupon.TriggerID(sentByReader, c.ID, c.Version), Origin: coupon.OriginLazy,
	}
	if c.Status == coupon.Locked { // its settlement says what becomes of the coupon
		t.Kind, t.At = coupon.KindUnlock, c.LockUntil
	}
	now := a.deps.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forget(now)
	if _, ok := a.rung[c.ID]; ok {
		a.count(asideRepeated, 1)
		return
	}
	select {
	case a.queue <- ring{trigger: t, class: c.Terms.Precision.Class()}:
		a.rung[c.ID] = now
		a.past = append(a.past, rang{c.ID, now})
	default:
		a.count(asideDropped, 1)
	}
}

// forget makes room: of what rang long ago, and of the oldest if there is too much.
func (a *Aside) forget(now time.Time) {
	n := max(0, len(a.past)-asideRemember+1)
	for n < len(a.past) && now.Sub(a.past[n].at) >= asideAgain {
		n++
	}
	for _, r := range a.past[:n] {
		if a.rung[r.id].Equal(r.at) { // else it was let go and has rung again
			delete(a.rung, r.id)
		}
	}
	a.past = a.past[n:]
}

// again lets coupons ring at once, whose triggers did not get out.
func (a *Aside) again(batch []ring) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range batch {
		delete(a.rung, r.trigger.CouponID)
	}
}

func (a *Aside) count(result string, n int) { a.results.WithLabelValues(result).Add(float64(n)) }

// Run publishes what was handed over until ctx ends; what waits then is dropped.
func (a *Aside) Run(ctx context.Context) error {
	batch := make([]ring, 0, asideBatch)
	for {
		batch = batch[:0]
		select {
		case <-ctx.Done():
			a.count(asideDropped, len(a.queue))
			return nil
		case r := <-a.queue:
			batch = append(batch, r)
		}
	more:
		for len(batch) < asideBatch {
			select {
			case r := <-a.queue:
				batch = append(batch, r)
			default:
				break more
			}
		}
		a.publish(ctx, batch)
	}
}

func (a *Aside) publish(ctx context.Context, batch []ring) {
	if a.deps.Publisher.Ready() != nil { // Publish would wait for the broker, with the buffer filling up
		a.count(asideDropped, len(batch))
		a.again(batch)
		return
	}
	ms := make([]broker.Message, len(batch))
	for i, r := range batch {
		ms[i] = a.deps.Router.After(0, coupon.Timed{
			ID: r.trigger.ID, Body: a.deps.Encoder.Trigger(r.trigger), Kind: r.trigger.Kind, Class: r.class,
			CouponID: r.trigger.CouponID, At: r.trigger.At,
		})
	}
	ctx, cancel := context.WithTimeout(ctx, asideTimeout)
	defer cancel()
	failed := 0
	crash.Before(crash.Publish, "lazy")
	results := a.deps.Publisher.Publish(ctx, ms)
	crash.After(crash.Publish, "lazy")
	for i, err := range results {
		if err != nil {
			failed++
			a.again(batch[i : i+1])
			a.deps.Log.Debug("a lazy trigger did not get out; the sweep finds its coupon", zap.Error(err))
		}
	}
	a.count(asideFailed, failed)
	a.count(asideSent, len(batch)-failed)
}
