package audit

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Config says what to audit.
type Config struct {
	DSN     string // of the database, in go-sql-driver's form
	AMQPURL string // with user, password and vhost
	// Addresses (host:port) of a cluster's nodes, tried in turn instead of the URL's host. May be none.
	Addresses []string
	Exchange  string // that the installation publishes its events to; it must exist
	Queue     string // the audit's own; declared here, deleted by Close
	// Sample is how often the clock is read, Watch how often rows are looked at for coupons that are unusable too
	// early. Defaults 50ms and 250ms.
	Sample, Watch time.Duration
	// Locks says that coupons are locked on purpose: a locked row is not early.
	Locks bool
	// Hear is told of every event that is heard, again too if it comes again, one at a time; it must not wait. May be nil.
	Hear func(Event)
}

// Event is a CloudEvent as it was heard.
type Event struct {
	ID, Source, Type string
	Data             json.RawMessage
	Redelivered      bool // the broker says that it delivers it again: it may be our own unacknowledged delivery
}

// Ask is one coupon that the auditor asked for.
type Ask struct {
	Key     string    // its grant key
	User    string    // whose
	End     time.Time // the end asked for, a whole second
	Waiting bool      // asked to outlive the run: counted as waiting, not among the coupons
}

// Audit listens and watches until it is closed. Safe for concurrent use.
type Audit struct {
	cfg   Config
	db    *sql.DB
	clock clock
	book  book
	dials atomic.Uint64
	stop  context.CancelFunc
	loops sync.WaitGroup

	mu      sync.Mutex
	watched map[string]time.Time // grant key → when its row was seen unusable before its asked end
	seen    map[uint64]struct{}  // rows the watch has looked at
	faults  []error              // of the loops, for the report
}

const maxFaults = 16

// Open connects to both servers, declares the queue and binds it to every event, and starts to listen, to sample the
// clock and to watch. Whatever is granted afterwards is heard.
func Open(ctx context.Context, cfg Config) (*Audit, error) {
	cfg.Sample = cmp.Or(cfg.Sample, 50*time.Millisecond)
	cfg.Watch = cmp.Or(cfg.Watch, 250*time.Millisecond)
	db, err := openDB(cfg.DSN)
	if err != nil {
		return nil, err
	}
	a := &Audit{cfg: cfg, db: db, watched: make(map[string]time.Time), seen: make(map[uint64]struct{}), book: newBook()}
	if err := a.clock.sample(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	first, err := a.subscribe(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	a.stop = stop
	a.loops.Go(func() { a.listen(running, first) })
	a.loops.Go(func() {
		a.every(running, cfg.Sample, func(ctx context.Context) error { return a.clock.sample(ctx, db) })
	})
	a.loops.Go(func() { a.every(running, cfg.Watch, a.watch) })
	return a, nil
}

func openDB(dsn string) (*sql.DB, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("audit: database address: %w", err)
	}
	c.ParseTime, c.Loc = true, time.UTC
	c.Timeout, c.ReadTimeout, c.WriteTimeout = 5*time.Second, 2*time.Minute, 5*time.Second
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("audit: database address: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	db.SetConnMaxIdleTime(time.Minute)
	return db, nil
}

// Expect adds what is asked for; call it before the grants are sent.
func (a *Audit) Expect(asks ...Ask) { a.book.expect(asks) }

// Now is the database's clock, as last sampled and carried on.
func (a *Audit) Now() time.Time {
	low, high := a.clock.at(time.Now())
	return low.Add(high.Sub(low) / 2)
}

// Bounds are the earliest and the latest that the database's clock can show now.
func (a *Audit) Bounds() (low, high time.Time) { return a.clock.at(time.Now()) }

// Close stops listening, deletes the queue and disconnects. ctx bounds it.
func (a *Audit) Close(ctx context.Context) error {
	a.stop()
	a.loops.Wait()
	return errors.Join(a.deleteQueue(ctx), a.db.Close())
}

// every runs do at the interval until ctx ends; a failure is remembered, and tried again at the next turn.
func (a *Audit) every(ctx context.Context, interval time.Duration, do func(context.Context) error) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		turn, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := do(turn)
		cancel()
		if err != nil && ctx.Err() == nil {
			a.fault(err)
		}
	}
}

func (a *Audit) fault(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.faults) < maxFaults && !slices.ContainsFunc(a.faults, func(e error) bool { return e.Error() == err.Error() }) {
		a.faults = append(a.faults, err)
	}
}

// Faults are the auditor's own troubles so far (a lost connection, a failed read), each kind once.
func (a *Audit) Faults() []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.faults)
}
