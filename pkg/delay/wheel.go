package delay

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// WheelRows is what the wheel reads of the database: the triggers of unused coupons (KindExpire, by due_at) or of locks
// (KindUnlock, by lock_until) of these partitions, due before end and behind the cursor, in keyset order, with the cursor behind
// the last.
type WheelRows interface {
	Upcoming(ctx context.Context, kind coupon.Kind, parts []int, end time.Time, from coupon.Cursor, limit int) ([]coupon.Timed, coupon.Cursor, error)
}

// WheelDeps are what a Wheel works with.
type WheelDeps struct {
	Exchange   string // that due triggers are published to
	Publisher  Publisher
	Rows       WheelRows
	Clock      Clock
	Parts      func() []int // the partitions that this process relays now
	Log        *zap.Logger
	Registerer prometheus.Registerer
}

// Wheel keeps triggers in a timing wheel in the memory of the process that relays their partition. It is no authority: it holds
// what the rows say of the next minutes (window), forgets it when it ends, and whoever relays the partition then reads it again.
//
// Memory is bounded: rows are read in the order of their instants until Max are held, and on from there as they leave.
type Wheel struct {
	config  WheelConfig
	deps    WheelDeps
	metrics *metrics
	log     *zap.Logger
	wake    chan struct{} // the publishing loop has something to look at
	read    chan struct{} // the reading loop has

	mu     sync.Mutex
	wheel  *wheel[*coupon.Timed]
	held   map[heldKey]struct{}
	of     [2]int             // how many of each kind
	due    []*coupon.Timed    // to be published now
	clock  func() time.Time   // the database's, never ahead of it; nil: not known yet
	until  time.Time          // rows before it were read or are being read
	missed [2]time.Time       // the earliest that found no room; zero: none
	tells  *telemetry.Repeats // of the reading loop
	says   *telemetry.Repeats // of the publishing loop
}

// heldKey is one trigger, whoever sent it.
type heldKey struct {
	coupon uint64
	at     int64
	kind   int8
}

// ErrNotHere says that another process relays the partition: the trigger is left to it.
var ErrNotHere = errors.New("another process relays this partition")

// NewWheel makes the mechanism; Run turns it.
func NewWheel(c WheelConfig, d WheelDeps) (*Wheel, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if d.Log == nil {
		d.Log = zap.NewNop()
	}
	log := d.Log.Named("wheel")
	return &Wheel{
		config: c, deps: d, metrics: newMetrics(d.Registerer, "wheel"), log: log,
		wake: make(chan struct{}, 1), read: make(chan struct{}, 1), held: make(map[heldKey]struct{}),
		tells: telemetry.NewRepeats(log, 0, time.Now), says: telemetry.NewRepeats(log, 0, time.Now),
	}, nil
}

// Ready is always nil: what the wheel does not hold here, another process holds, or reads when it takes the partition over.
func (w *Wheel) Ready() error { return nil }

// tick is the wheel's unit.
const tick = 10 * time.Millisecond

func tickOf(t time.Time) uint64 { return uint64(max(0, t.UnixMilli())) / uint64(tick.Milliseconds()) }

// dueTick is the first tick that is not before the instant.
func dueTick(t time.Time) uint64 {
	n := tickOf(t)
	if time.UnixMilli(int64(n) * tick.Milliseconds()).Before(t) {
		n++
	}
	return n
}

func kindOf(k coupon.Kind) int8 {
	if k == coupon.KindUnlock {
		return 1
	}
	return 0
}

// Deliver puts in what comes within the window. What is later is read from its row when the window comes there, and what finds no
// room as soon as there is some; both are answered with nil. What another process relays is an error.
func (w *Wheel) Deliver(_ context.Context, _ time.Time, ts []coupon.Timed) []error {
	parts := w.deps.Parts()
	errs := make([]error, len(ts))
	w.mu.Lock()
	defer w.mu.Unlock()
	left := 0
	for i := range ts {
		t := &ts[i]
		switch {
		case !slices.Contains(parts, coupon.Partition(t.CouponID)):
			errs[i] = ErrNotHere
		case t.At.After(w.until) && w.clock != nil:
			left++
		case !w.put(t, w.config.Max+w.config.Max/4):
			k := kindOf(t.Kind)
			if w.missed[k].IsZero() || t.At.Before(w.missed[k]) {
				w.missed[k] = t.At
			}
			left++
		}
	}
	w.metrics.answered(errs)
	w.metrics.taken.WithLabelValues(resultLeft).Add(float64(left))
	signal(w.wake)
	return errs
}

// put holds a trigger, unless it is held, or as many are as there may be: false.
func (w *Wheel) put(t *coupon.Timed, most int) bool {
	k := heldKey{t.CouponID, t.At.UnixMilli(), kindOf(t.Kind)}
	if _, ok := w.held[k]; ok {
		return true
	}
	if len(w.held) >= most {
		return false
	}
	w.held[k] = struct{}{}
	w.of[k.kind]++
	copied := *t
	if w.wheel == nil {
		w.due = append(w.due, &copied) // not turning yet: looked at when it does
	} else {
		w.wheel.add(dueTick(t.At), &copied)
	}
	return true
}

// drop forgets a trigger that was published or is another's.
func (w *Wheel) drop(t *coupon.Timed) {
	k := heldKey{t.CouponID, t.At.UnixMilli(), kindOf(t.Kind)}
	if _, ok := w.held[k]; ok {
		delete(w.held, k)
		w.of[k.kind]--
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run reads rows ahead and publishes what comes due, until ctx ends.
func (w *Wheel) Run(ctx context.Context) error {
	var side sync.WaitGroup
	side.Go(func() { w.reading(ctx) })
	w.publishing(ctx)
	side.Wait()
	return nil
}

// set takes the database's clock over, as it was when answered; the wheel begins to turn with the first.
func (w *Wheel) set(db, answered time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock = func() time.Time { return db.Add(time.Since(answered)) }
	if w.wheel != nil {
		return
	}
	w.wheel = newWheel[*coupon.Timed](tickOf(db))
	waiting := w.due
	w.due = nil
	for _, t := range waiting {
		w.wheel.add(dueTick(t.At), t)
	}
}
