package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	settleRate = 12_000           // rows and triggers a second that any machine plants and sends
	patience   = 15 * time.Second // without any event, before what is missing is lost
)

// lead is the time from planting to the first end.
func (b *bench) lead(n int) time.Duration {
	return b.cfg.Lead + time.Duration(n)*time.Second/settleRate
}

// soon is a whole second, at least d from now on the database's clock.
func (s *site) soon(ctx context.Context, d time.Duration) (time.Time, error) {
	now, err := s.now(ctx)
	return now.Add(d + time.Second - 1).Truncate(time.Second), err
}

// sow plants a crop and sends its triggers. A machine that needs longer than the lead gets twice the time, once.
func (b *bench) sow(ctx context.Context, s *site, n int, p pace) (c crop, err error) {
	for lead := b.lead(n); ; lead *= 2 {
		due, err := s.soon(ctx, lead)
		if err != nil {
			return c, err
		}
		if c, err = s.plant(ctx, n, p, due); err != nil {
			return c, err
		}
		if err = s.ring(ctx, c); !errors.Is(err, errLate) || lead > b.lead(n) {
			return c, err
		}
		b.view.step("planting took longer than the lead; again, with twice as much")
		if err := s.again(ctx, c); err != nil {
			return c, err
		}
	}
}

// again makes the site ready for the same crop: what was sown too late is waited out.
func (s *site) again(ctx context.Context, c crop) error {
	limited, cancel := context.WithTimeout(ctx, 10*time.Minute+c.span)
	defer cancel()
	return rig.Until(limited, time.Second, func() (bool, error) {
		left, err := s.count(limited, "SELECT EXISTS(SELECT 1 FROM coupon WHERE id >= ? AND id < ? AND status = 1)", c.first, c.first+uint64(c.n))
		return left == 0, err
	})
}

// lapse measures the fleet: n coupons that end in one instant, or at a pace, and the workers that are named.
func (b *bench) lapse(n int, p pace, workers ...string) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		s, err := b.site(ctx, "lapse")
		if err != nil {
			return nil, err
		}
		if err := s.clear(ctx); err != nil {
			return nil, err
		}
		if err := s.work(ctx, workers...); err != nil {
			return nil, err
		}
		return b.expire(ctx, s, n, p, workers)
	}
}

// expire sows a crop where workers are at work, and measures from its first end to its last event.
func (b *bench) expire(ctx context.Context, s *site, n int, p pace, workers []string) (m metrics, err error) {
	e, err := listen(s.stack.AMQPURL.Reveal(), s.Ladder().Events())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	c, err := b.sow(ctx, s, n, p)
	if err != nil {
		return nil, err
	}
	e.expect(c.first, c.n)
	if err := e.wait(ctx, c.last(), s.Fleet().Ended); err != nil {
		return nil, err
	}
	if m, err = b.weigh(ctx, s, e, c); err != nil {
		return nil, err
	}
	for _, worker := range workers {
		if m["rss_"+worker+"_mib"], err = s.peak(worker); err != nil {
			return nil, err
		}
	}
	return m, nil
}

const (
	expiredQuery = `SELECT COUNT(*) FROM coupon WHERE id >= ? AND id < ? AND status = 4`
	doubledQuery = `SELECT COUNT(*) FROM coupon_history WHERE coupon_id >= ? AND coupon_id < ? AND to_status = 4 AND version > 2`
	earlyQuery   = `SELECT COUNT(*) FROM coupon_history WHERE coupon_id >= ? AND coupon_id < ? AND to_status = 4 AND at < expires_at`
	sweptQuery   = `SELECT COUNT(*) FROM coupon_history WHERE coupon_id >= ? AND coupon_id < ? AND to_status = 4 AND cause = 'sweep'`
)

// weigh is what was heard, and what the rows say.
func (b *bench) weigh(ctx context.Context, s *site, e *ear, c crop) (metrics, error) {
	ahead, err := s.ahead(ctx)
	if err != nil {
		return nil, err
	}
	h := e.harvest(c, ahead)
	m := metrics{"coupons": float64(c.n), "took_s": h.took.Seconds(), "lost": float64(h.lost), "doubled": float64(h.twice)}
	if h.n > 0 && h.took > 0 {
		m["per_s"] = float64(h.n) / h.took.Seconds()
	}
	m["event_p50_ms"], m["event_p99_ms"] = percentile(h.late, 500), percentile(h.late, 990)
	m["event_p999_ms"], m["event_max_ms"] = percentile(h.late, 999), percentile(h.late, 1000)
	for query, add := range map[string]func(n int){
		expiredQuery: func(n int) { m["not_expired"] = float64(c.n - n) },
		doubledQuery: func(n int) { m["doubled"] += float64(n) },
		earlyQuery:   func(n int) { m["early"] = float64(n) },
		sweptQuery:   func(n int) { m["swept"] = float64(n) },
	} {
		n, err := s.count(ctx, query, c.first, c.first+uint64(c.n))
		if err != nil {
			return nil, err
		}
		add(n)
	}
	late, err := s.lateness(ctx, c)
	if err != nil {
		return nil, err
	}
	m["p50_ms"], m["p99_ms"], m["p999_ms"] = percentile(late, 500), percentile(late, 990), percentile(late, 999)
	return m, nil
}

// lateness of every transition after its end, sorted; the table tells of more coupons than any event of them is kept.
func (s *site) lateness(ctx context.Context, c crop) ([]time.Duration, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT TIMESTAMPDIFF(MICROSECOND, due_at, at) AS late FROM coupon_history
		WHERE coupon_id >= ? AND coupon_id < ? AND to_status = 4 ORDER BY late`, c.first, c.first+uint64(c.n))
	if err != nil {
		return nil, fmt.Errorf("reading lateness: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	late := make([]time.Duration, 0, c.n)
	for rows.Next() {
		var us int64
		if err := rows.Scan(&us); err != nil {
			return nil, fmt.Errorf("reading lateness: %w", err)
		}
		late = append(late, time.Duration(us)*time.Microsecond)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("reading lateness: %w", err)
	}
	return late, nil
}

func twoWorkers() []string { return []string{demo.Publisher, demo.Expirer} }

func allWorkers() []string { return []string{demo.Publisher, demo.Expirer, demo.Notifier} }

// spikes are the subjects of the cliff.
func (b *bench) spikes() []subject {
	n := b.cfg.Size
	few, some := min(n, 10_000), min(n, 20_000)
	return []subject{
		{name: "lapse", what: "publisher and expirer: state, history, statistics, event", run: b.lapse(n, pace{}, twoWorkers()...)},
		{name: "lapse_all", what: "the whole fleet: the notifier gathers every event for its notices meanwhile", run: b.lapse(n, pace{}, allWorkers()...)},
		{name: "lapse_10x", what: "the whole fleet, ten times as many", run: b.lapse(10*n, pace{}, allWorkers()...)},
		{name: "asynq", what: asynqWhat, run: b.asynq(n)},
		{name: "zset", what: zsetWhat, run: b.zset(few)},
		{name: "naive_ttl", what: naiveWhat, run: b.naive(some)},
		{name: "cron", what: b.cronWhat(), run: b.cron(n)},
		{name: "bare_broker", what: "limit: the ladder, its triggers consumed and acknowledged, no database", run: b.bareBroker(n)},
		{name: "bare_database", what: "limit: the batch transaction of 500 by two workers, no broker", run: b.bareDatabase(n)},
	}
}
