package outbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Store is what the relay needs of the database.
type Store interface {
	ClaimParts(ctx context.Context, owner string, lease time.Duration) (coupon.OutboxClaim, error)
	ReleaseParts(ctx context.Context, owner string, parts []int) error
	LeaveParts(ctx context.Context, owner string) error
	OutboxBatch(ctx context.Context, lane int, from []coupon.OutboxCursor, limit int) ([]coupon.Outgoing, time.Time, []coupon.OutboxCursor, error)
	DeleteOutbox(ctx context.Context, lane int, confirmed map[int][]uint64) error
	RefuseOutbox(ctx context.Context, lane int, refused map[int][]coupon.OutboxRefusal) (parked int, err error)
}

// Deliverer is the delay mechanism: one result for each trigger, nil when it is in safe hands.
type Deliverer interface {
	Deliver(ctx context.Context, now time.Time, ts []coupon.Timed) []error
}

// Publisher publishes with confirms: one result for each message.
type Publisher interface {
	Publish(ctx context.Context, ms []broker.Message) []error
}

// Deps are what a relay works with.
type Deps struct {
	Owner      string // names this process in the leases, at most 48 bytes; made unique by a random suffix
	Store      Store
	Delay      Deliverer
	Events     Publisher
	Exchange   string          // where events go
	Wake       <-chan struct{} // signals commits of this process that wrote rows; may be nil
	Log        *zap.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time // monotonic; nil: time.Now
	Traces     *telemetry.Traces
}

var lanes = []int{coupon.LaneTrigger, coupon.LaneEvent} //nolint:gochecknoglobals // constant

const (
	backoffMin = 100 * time.Millisecond
	backoffMax = 5 * time.Second
	// foreignFor is how long, after rows of other processes came by, more of them are expected.
	foreignFor = 5 * time.Second
	// gather is how long after the beginning of a round that found little the next one begins: a round for every commit costs the
	// database and the broker more than the commit did.
	gather = 25 * time.Millisecond
)

// Relay moves the outbox to the broker. Run it once.
type Relay struct {
	cfg     Config
	deps    Deps
	owner   string
	log     *zap.Logger
	metrics *metrics
	troubles,
	leaseTroubles *telemetry.Repeats

	lease   lease
	sweeps  [2]sweep
	foreign time.Time // when rows that no wake announced were last seen
}

// New makes a relay; Run starts it.
func New(cfg Config, d Deps) (*Relay, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("outbox config: %w", err)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Log == nil {
		d.Log = zap.NewNop()
	}
	var id [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("name the relay: %w", err)
	}
	log := d.Log.Named("outbox")
	r := &Relay{
		cfg: cfg, deps: d, owner: d.Owner[:min(len(d.Owner), 48)] + "." + hex.EncodeToString(id[:]),
		log: log, metrics: newMetrics(d.Registerer),
		troubles: telemetry.NewRepeats(log, 0, d.Now), leaseTroubles: telemetry.NewRepeats(log, 0, d.Now),
		lease: lease{changed: make(chan struct{}, 1)},
	}
	for lane := range r.sweeps {
		r.sweeps[lane].held = make(map[uint64]time.Time)
	}
	return r, nil
}

// Run relays until ctx ends, then finishes the batch in hand (stop_timeout), gives its partitions up and returns nil.
func (r *Relay) Run(ctx context.Context) error {
	work, done := lingering(ctx, r.cfg.StopTimeout)
	defer done()
	// The leases are renewed until the last batch is finished.
	keeping, stopKeeping := context.WithCancel(work)
	defer stopKeeping()
	var keeper sync.WaitGroup
	keeper.Go(func() { r.keep(keeping) })
	r.loop(ctx, work)
	stopKeeping()
	keeper.Wait()
	if err := r.deps.Store.LeaveParts(work, r.owner); err != nil {
		r.log.Warn("could not give the outbox partitions up; they wait for the end of their lease", zap.Error(err))
	}
	return nil
}

// lingering gives a context that outlives ctx by limit.
func lingering(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var mu sync.Mutex
	var timer *time.Timer
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(limit, cancel)
	})
	return work, func() {
		stop()
		cancel()
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
	}
}

func (r *Relay) loop(ctx, work context.Context) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = backoffMin, backoffMax, 2
	woken := true
	for ctx.Err() == nil {
		began := r.deps.Now()
		sent, more, err := r.round(ctx, work)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			r.troubles.Failed("outbox: nothing can be relayed, trying again", err)
			_ = lifecycle.Sleep(ctx, wait.NextBackOff())
			continue
		default:
			r.troubles.Recovered("outbox: relaying again")
			wait.Reset()
		}
		if sent > 0 && (!woken || r.lease.shared()) {
			r.foreign = r.deps.Now()
		}
		woken = sent > 0 // what is found right after was committed meanwhile
		switch {
		case more:
		case sent > 0:
			_ = lifecycle.Sleep(ctx, gather-r.deps.Now().Sub(began))
		default:
			woken = r.idle(ctx)
		}
	}
}

// round makes one pass over each lane. more: there is more to do at once. What keeps triggers from being handed over need not keep
// events: a delay mechanism may be away while the broker is there.
func (r *Relay) round(ctx, work context.Context) (sent int, more bool, err error) {
	parts := r.handOver(work)
	if len(parts) == 0 {
		return 0, false, nil
	}
	var errs error
	for _, lane := range lanes {
		limit := triggerBatches
		if lane == coupon.LaneEvent {
			limit = eventBatches
		}
		if more {
			limit = 1 // triggers are waiting; but events must not wait for ever
		}
		n, rest, err := r.pass(ctx, work, lane, parts, limit)
		sent += n
		more = more || rest
		errs = errors.Join(errs, err)
	}
	return sent, more, errs
}

// idle waits for something to do; woken says that a commit of this process ended the wait.
func (r *Relay) idle(ctx context.Context) (woken bool) {
	every := r.cfg.IdlePoll
	if !r.foreign.IsZero() && r.deps.Now().Sub(r.foreign) < foreignFor {
		every = r.cfg.Poll
	}
	t := time.NewTimer(every)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-r.lease.changed:
	case <-r.deps.Wake:
		return true
	}
	return false
}

// lease is what this relay owns. Its lock is also held while the store is asked for a change of it.
type lease struct {
	mu      sync.Mutex
	claim   coupon.OutboxClaim
	until   time.Time // the claim is not relied on from here
	changed chan struct{}
}

func (l *lease) shared() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.claim.Live > 1
}

// keep renews the leases and takes what is free, three times a lease, until ctx ends.
func (r *Relay) keep(ctx context.Context) {
	for ctx.Err() == nil {
		if err := r.renew(ctx); err == nil {
			r.leaseTroubles.Recovered("outbox: partition leases renewed again")
		} else if ctx.Err() == nil {
			r.leaseTroubles.Failed("outbox: cannot renew the partition leases", err)
		}
		_ = lifecycle.Sleep(ctx, r.cfg.Lease/3)
	}
}

func (r *Relay) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Lease/3)
	defer cancel()
	l := &r.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := r.deps.Now()
	claim, err := r.deps.Store.ClaimParts(ctx, r.owner, r.cfg.Lease)
	if err != nil {
		return fmt.Errorf("claim partitions: %w", err)
	}
	news := !slices.Equal(claim.Parts, l.claim.Parts) || len(claim.Surplus) > 0
	l.claim, l.until = claim, asked.Add(r.cfg.Lease)
	r.metrics.parts.Set(float64(len(claim.Parts)))
	if news {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
	return nil
}

// Parts are the partitions that this process relays now.
func (r *Relay) Parts() []int {
	l := &r.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if !r.deps.Now().Before(l.until) {
		return nil
	}
	return slices.Clone(l.claim.Parts)
}

// handOver gives up what other relays have a right to and tells the partitions to work on. It is called between
// passes only, when nothing of them is under way.
func (r *Relay) handOver(ctx context.Context) []int {
	l := &r.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if !r.deps.Now().Before(l.until) {
		return nil
	}
	surplus := l.claim.Surplus
	if len(surplus) > 0 {
		l.claim.Surplus = nil
		l.claim.Parts = slices.DeleteFunc(slices.Clone(l.claim.Parts), func(p int) bool { return slices.Contains(surplus, p) })
		if err := r.deps.Store.ReleaseParts(ctx, r.owner, surplus); err != nil {
			r.leaseTroubles.Failed("outbox: cannot give partitions up, the next renewal will", err)
		}
		r.metrics.parts.Set(float64(len(l.claim.Parts)))
	}
	return l.claim.Parts
}
