package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// sweepOnly is the environment of workers without a ladder.
func sweepOnly() map[string]string { return map[string]string{"LAPSE__DELAY__MECHANISM": "sweep"} }

// counts the coupons of the run that have expired, by who did it.
const causeQuery = `SELECT h.cause, LEFT(h.trigger_id, 1) = 'p', COUNT(*) FROM coupon_history h WHERE h.to_status = 4 GROUP BY 1, 2`

// causes is how many coupons expired by each cause, and how many of them by a trigger that the planner sent.
type causes struct {
	by      map[string]int
	planner int
}

func readCauses(ctx context.Context, db *sql.DB) (causes, error) {
	c := causes{by: make(map[string]int)}
	rows, err := db.QueryContext(ctx, causeQuery)
	if err != nil {
		return c, fmt.Errorf("reading causes: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	for rows.Next() {
		var cause string
		var planner bool
		var n int
		if err := rows.Scan(&cause, &planner, &n); err != nil {
			return c, fmt.Errorf("reading causes: %w", err)
		}
		c.by[cause] += n
		if planner {
			c.planner += n
		}
	}
	return c, rows.Err()
}

// countIn asks for one number.
func countIn(ctx context.Context, db *sql.DB, query string, args ...any) (int, error) {
	var n int
	if err := db.QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting: %w", err)
	}
	return n, nil
}

const (
	expiredQuery = "SELECT COUNT(*) FROM coupon WHERE status = 4"
	outboxQuery  = "SELECT COUNT(*) FROM outbox"
)

func (w *walk) sweep(ctx context.Context, t *tally) error {
	var found causes
	cfg := w.base(t, w.small, 12*time.Second)
	cfg.Env = func(string) map[string]string { return sweepOnly() }
	cfg.Allow.Sweep = true
	cfg.Inspect = func(ctx context.Context, s *demo.Stage, _ *audit.Report) (err error) {
		found, err = readCauses(ctx, s.DB())
		return err
	}
	r, err := w.run(ctx, cfg)
	if err != nil {
		return err
	}
	walked(t, "", &r.Report, r.Failures)
	want(t, "notices", r.Report.Notices, Equal, r.Report.Users)
	want(t, "expired_by_sweep", found.by["sweep"], Equal, r.Report.Coupons)
	want(t, "duplicate_event_ids", r.Report.DuplicateEventIDs, Equal, 0)
	want(t, "transition_p99_ms", r.Report.TransitionLateness.P99, Below, 5*second)
	return nil
}

// away is what was seen while the broker was out of reach.
type away struct {
	before, expired int // coupons expired when it went, and when it came back
	events          int // expired events heard in between
}

// sweepBrokerDown puts the workers' connections behind a proxy, which then refuses them. The broker itself lives on for everybody
// else: the audit's own connection would hear whatever were sent.
func (w *walk) sweepBrokerDown(ctx context.Context, t *tally) (err error) {
	u, err := url.Parse(w.cfg.Stack.AMQPURL.Reveal())
	if err != nil {
		return errors.New("TEST_AMQP_URL is malformed")
	}
	proxy, err := rig.NewProxy(u.Host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, proxy.Close()) }()
	u.Host = proxy.Addr()

	var seen away
	var found causes
	cfg := w.base(t, w.small, 30*time.Second)
	cfg.First, cfg.Closing = 15*time.Second, 15*time.Second
	cfg.Allow.Sweep = true
	cfg.Env = func(string) map[string]string {
		vars := sweepOnly()
		vars["LAPSE__BROKER__URL"] = u.String()
		return vars
	}
	cfg.During = func(ctx context.Context, s *demo.Stage) error {
		seen, err = w.withoutBroker(ctx, s, proxy, cfg.Coupons)
		return err
	}
	cfg.Inspect = func(ctx context.Context, s *demo.Stage, _ *audit.Report) (err error) {
		found, err = readCauses(ctx, s.DB())
		return err
	}
	r, err := w.run(ctx, cfg)
	if err != nil {
		return err
	}
	want(t, "expired_before_away", seen.before, AtMost, cfg.Coupons/10)
	want(t, "expired_at_return", seen.expired, Equal, cfg.Coupons)
	want(t, "events_while_away", seen.events, Equal, 0)
	walked(t, "", &r.Report, r.Failures)
	want(t, "notices", r.Report.Notices, Equal, r.Report.Users)
	want(t, "expired_by_sweep", found.by["sweep"], Equal, r.Report.Coupons)
	want(t, "events", r.Report.Events, Equal, r.Report.Coupons)
	want(t, "duplicate_event_ids", r.Report.DuplicateEventIDs, Equal, 0)
	return nil
}

const (
	poll     = 100 * time.Millisecond
	drainFor = 20 * time.Second
)

func (w *walk) withoutBroker(ctx context.Context, s *demo.Stage, proxy *rig.Proxy, coupons int) (away, error) {
	// What is half-way through when the line is cut would be sent again, and heard twice.
	if err := drained(ctx, s.DB()); err != nil {
		return away{}, err
	}
	before, err := countIn(ctx, s.DB(), expiredQuery)
	if err != nil {
		return away{}, err
	}
	proxy.Refuse(true)
	defer proxy.Refuse(false)
	s.Step(fmt.Sprintf("the broker is out of the workers' reach, %d connections cut", proxy.Cut()))
	if err := lifecycle.Sleep(ctx, time.Second); err != nil { // what the broker had taken is heard by then
		return away{}, err
	}
	heard := s.Audit().Progress().Expired
	expired := 0
	limit, cancel := context.WithTimeout(ctx, s.Last().Sub(s.Now())+30*time.Second)
	defer cancel()
	err = until(limit, func() (bool, error) {
		expired, err = countIn(limit, s.DB(), expiredQuery)
		return expired >= coupons && s.Now().After(s.Last()), err
	})
	if err != nil && (ctx.Err() != nil || limit.Err() == nil) {
		return away{}, err
	}
	seen := away{before: before, expired: expired, events: s.Audit().Progress().Expired - heard}
	s.Step(fmt.Sprintf("%d of %d expired without it; it is in reach again", expired, coupons))
	return seen, nil
}

// drained waits until nothing waits to be sent.
func drained(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	err := until(ctx, func() (bool, error) {
		n, err := countIn(ctx, db, outboxQuery)
		return n == 0, err
	})
	if err != nil {
		return fmt.Errorf("waiting until everything is sent: %w", err)
	}
	return nil
}

func until(ctx context.Context, ask func() (bool, error)) error { return rig.Until(ctx, poll, ask) }
