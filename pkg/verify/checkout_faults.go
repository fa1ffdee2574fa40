package verify

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	liveLocks   = 1000
	lockedFor   = 24 * time.Second // to the first deadline
	lockSeconds = 10               // over which the deadlines lie; the expirer returns in the middle of them
	settleBound = 5 * second
)

// killLocks kills every worker while 1 000 locks live, and brings one expirer back when some of them have run out. The triggers of half of
// them are on the ladder by then; those of the others may wait in the outbox.
func (w *checkout) killLocks(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		ids, err := s.grant(ctx, template, liveLocks, func(_ int, g *client.Grant) { g.UserID = "one" })
		if err != nil {
			return err
		}
		w.cfg.View.Step(fmt.Sprintf("%d locks, and then kill -9 of publisher and expirer", liveLocks))
		first := s.soon(lockedFor)
		lock := func(from, to int) error {
			locking, limit := errgroup.WithContext(ctx)
			locking.SetLimit(16)
			for i := from; i < to; i += roundOrders {
				until := first.Add(time.Duration(i/roundOrders%lockSeconds) * time.Second)
				locking.Go(func() error {
					_, err := s.api.Lock(limit, "kill-"+strconv.Itoa(i), client.Order{
						UserID: "one", CouponIDs: ids[i : i+roundOrders], LockFor: until.Add(-500 * time.Millisecond).Sub(s.Now()),
					})
					return err
				})
			}
			return locking.Wait()
		}
		if err := lock(0, liveLocks/2); err != nil {
			return err
		}
		if err := drained(ctx, s.DB()); err != nil {
			return err
		}
		if err := lock(liveLocks/2, liveLocks); err != nil {
			return err
		}
		if err := errors.Join(s.Fleet().Kill(demo.Publisher), s.Fleet().Kill(demo.Expirer)); err != nil {
			return err
		}
		live, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE status = 2 AND lock_until > UTC_TIMESTAMP(3)")
		if err != nil {
			return err
		}
		unsent, err := countIn(ctx, s.DB(), outboxQuery)
		if err != nil {
			return err
		}
		if err := lifecycle.Sleep(ctx, first.Add(lockSeconds*time.Second/2).Sub(s.Now())); err != nil {
			return err
		}
		overdue, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE status = 2 AND lock_until <= UTC_TIMESTAMP(3)")
		if err != nil {
			return err
		}
		if err := s.Start(ctx, demo.Expirer); err != nil {
			return err
		}
		back := s.Now()
		w.cfg.View.Step(fmt.Sprintf("one expirer is back; %d locks have run out meanwhile", overdue))
		wait, cancel := context.WithTimeout(ctx, first.Add(lockSeconds*time.Second).Sub(s.Now())+drainFor)
		defer cancel()
		err = until(wait, func() (bool, error) {
			n, err := countIn(wait, s.DB(), "SELECT COUNT(*) FROM coupon WHERE status = 2")
			return n == 0, err
		})
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if err := s.judgeKilledLocks(ctx, back); err != nil {
			return err
		}
		want(t, "live_when_killed", live, Equal, liveLocks)
		told(t, "messages_unsent_when_killed", unsent)
		want(t, "overdue_at_the_return", overdue, AtLeast, liveLocks/20)
		return s.agreed(ctx, "", true)
	})
}

const unlocksQuery = `SELECT lock_until, at, cause FROM coupon_history WHERE from_status = 2 ORDER BY coupon_id`

func (s *shop) judgeKilledLocks(ctx context.Context, back time.Time) error {
	rows, err := s.DB().QueryContext(ctx, unlocksQuery)
	if err != nil {
		return fmt.Errorf("reading unlocks: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	n, early := 0, 0
	var ds []time.Duration
	for rows.Next() {
		var due, at time.Time
		var cause string
		if err := rows.Scan(&due, &at, &cause); err != nil {
			return fmt.Errorf("reading unlocks: %w", err)
		}
		n++
		if at.Before(due) {
			early++
		}
		if due.Before(back) {
			due = back
		}
		ds = append(ds, at.Sub(due))
	}
	want(s.t, "settled", n, Equal, liveLocks)
	want(s.t, "settled_early", early, Equal, 0)
	want(s.t, "settled_p50_ms", late(ds, 50), AtMost, settleBound)
	want(s.t, "settled_latest_ms", late(ds, 100), AtMost, settleBound)
	return rows.Err()
}

const (
	awayRate   = 300 // pairs a second
	awayBefore = 5 * time.Second
	awayBroker = 2 * time.Minute
	awayAfter  = 10 * time.Second
	awayDrain  = 3 * time.Minute // for the events afterwards
	perPair    = 3               // steps of a coupon: granted, locked, used
)

func (w *checkout) brokerAway(ctx context.Context, t *tally) error {
	return w.brokerAwayFor(ctx, t, awayRate, awayBroker)
}

// brokerAwayFor puts the workers' connections behind a proxy, which cuts and refuses them for so long, under so many pairs a second. The
// stack's broker itself lives on for everybody else.
func (w *checkout) brokerAwayFor(ctx context.Context, t *tally, rate int, gone time.Duration) (err error) {
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
	o := opening{env: func(string) map[string]string { return map[string]string{"LAPSE__BROKER__URL": u.String()} }}
	return w.open(ctx, t, o, func(ctx context.Context, s *shop) error {
		total := int((awayBefore + gone + awayAfter).Seconds()) * rate
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		w.cfg.View.Step(fmt.Sprintf("granting %d coupons", total))
		ids, err := s.grant(ctx, template, total, func(_ int, g *client.Grant) { g.UserID = "one" })
		if err != nil {
			return err
		}
		grants, cancel := context.WithTimeout(ctx, awayDrain)
		defer cancel()
		if err := drainedWithin(grants, s); err != nil {
			return err
		}
		away := make(chan error, 1)
		var heard [2]int // events when it had gone, and when it came back
		go func() {
			away <- func() error {
				if err := lifecycle.Sleep(ctx, awayBefore); err != nil {
					return err
				}
				proxy.Refuse(true)
				w.cfg.View.Step(fmt.Sprintf("the broker is out of reach, %d connections cut", proxy.Cut()))
				defer proxy.Refuse(false)
				if err := lifecycle.Sleep(ctx, time.Second); err != nil {
					return err
				}
				heard[0] = s.ears.len()
				if err := lifecycle.Sleep(ctx, gone-time.Second); err != nil {
					return err
				}
				heard[1] = s.ears.len()
				w.cfg.View.Step("it is in reach again")
				return nil
			}()
		}()
		offered := time.Now()
		pairs := s.pairsAt(ctx, ids, float64(rate))
		if err := <-away; err != nil {
			return err
		}
		want(t, "pairs", pairs.done, Equal, total)
		want(t, "calls_failed", pairs.failed, Equal, 0)
		// How fast is the machine's affair, and the speed section's: a slower one falls behind what is asked of it, and must not fail.
		told(t, "call_p99_ms", int(late(pairs.took, 99)))
		want(t, "slowest_call_ms", late(pairs.took, 100), AtMost, 5*second)
		told(t, "behind_at_most_ms", int(late(pairs.behind, 99)))
		told(t, "pairs_per_s", int(float64(pairs.done)/time.Since(offered).Seconds()))
		want(t, "events_while_away", heard[1]-heard[0], Equal, 0)
		start := time.Now()
		rest, cancel := context.WithTimeout(ctx, awayDrain)
		defer cancel()
		if err := drainedWithin(rest, s); err != nil {
			return err
		}
		_ = until(rest, func() (bool, error) { return s.ears.len() >= perPair*total, nil }) // what is missing is counted below
		told(t, "events_all_there_after_s", int(time.Since(start).Seconds()))
		want(t, "used_events", s.ears.of("used"), Equal, total)
		return s.agreed(ctx, "", true)
	})
}

func drainedWithin(ctx context.Context, s *shop) error {
	err := until(ctx, func() (bool, error) {
		n, err := countIn(ctx, s.DB(), outboxQuery)
		return n == 0, err
	})
	if err != nil {
		return fmt.Errorf("waiting until everything is sent: %w", err)
	}
	return nil
}

// load is what pairs of lock and redeem were like.
type load struct {
	done, failed int
	took         []time.Duration // of calls
	behind       []time.Duration // of pairs: begun later than they were to be
}

// pairsAt locks and redeems each coupon, so many pairs a second, whether or not earlier ones are answered.
func (s *shop) pairsAt(ctx context.Context, ids []string, rate float64) load {
	var mu sync.Mutex
	var l load
	var done, failed atomic.Int64
	var all sync.WaitGroup
	slots := make(chan struct{}, apiConns)
	start := time.Now()
	for i, id := range ids {
		due := start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		if lifecycle.Sleep(ctx, time.Until(due)) != nil {
			break
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			behind := time.Since(due)
			ask := client.Order{UserID: "one", CouponIDs: []string{id}, LockFor: time.Hour}
			var took [2]time.Duration
			for k, call := range []func(context.Context, string, client.Order) (client.Acted, error){s.api.Lock, s.api.Redeem} {
				began := time.Now()
				_, err := call(ctx, "pair-"+id, ask)
				took[k] = time.Since(began)
				if err != nil {
					failed.Add(1)
				}
			}
			done.Add(1)
			mu.Lock()
			defer mu.Unlock()
			l.took = append(l.took, took[:]...)
			l.behind = append(l.behind, behind)
		})
	}
	all.Wait()
	l.done, l.failed = int(done.Load()), int(failed.Load())
	return l
}
