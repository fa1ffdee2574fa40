package expiry

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

const (
	drainEvery  = 5 * time.Second
	drainWithin = 3 * time.Second
	// drainFull is how full batches must be on average for a window to count: only a backlog shows what a pod can do.
	drainFull = 0.5
	// drainBatches is how many batches a window must have at least.
	drainBatches = 10
)

// DrainStore keeps the rate for forecasts.
type DrainStore interface {
	PutDrainRate(ctx context.Context, perPod float64, measured bool) error
}

// Drain measures how fast this pod expires coupons while there is a backlog: coupons a second over five seconds in which
// batches were at least half full. Forecasts reckon by it. Safe for concurrent use.
type Drain struct {
	batch      int
	configured int
	store      DrainStore
	fails      *telemetry.Repeats

	mu      sync.Mutex
	coupons int
	filled  int // deliveries of all batches
	batches int
}

// NewDrain makes the measure.
func NewDrain(c Config, store DrainStore, log *zap.Logger) *Drain {
	configured := c.DrainRate
	if c.MaxRate > 0 {
		configured = min(configured, c.MaxRate)
	}
	return &Drain{batch: c.Consumer.Batch, configured: configured, store: store, fails: telemetry.NewRepeats(log, time.Minute, nil)}
}

func (d *Drain) settled(filled int, rs []Result) {
	n := 0
	for _, r := range rs {
		if a := r.Decision.Action; r.Err == nil && (a == coupon.Expire || a == coupon.Unlock) {
			n++
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.coupons, d.filled, d.batches = d.coupons+n, d.filled+filled, d.batches+1
}

// window ends a window and gives its rate; not ok: there was no backlog.
func (d *Drain) window(length time.Duration) (perSecond float64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	coupons, filled, batches := d.coupons, d.filled, d.batches
	d.coupons, d.filled, d.batches = 0, 0, 0
	if batches < drainBatches || float64(filled) < drainFull*float64(d.batch*batches) || coupons == 0 {
		return 0, false
	}
	return float64(coupons) / length.Seconds(), true
}

// Run stores what is configured, unless a measure is known, and each measure, until ctx ends.
func (d *Drain) Run(ctx context.Context) error {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	told := false
	for {
		if !told {
			told = d.put(ctx, float64(d.configured), false)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if rate, ok := d.window(drainEvery); ok {
			d.put(ctx, rate, true)
		}
	}
}

func (d *Drain) put(ctx context.Context, rate float64, measured bool) bool {
	ctx, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	err := d.store.PutDrainRate(ctx, rate, measured)
	if err != nil && ctx.Err() == nil {
		d.fails.Failed("the drain rate could not be stored", err)
	}
	return err == nil
}
