package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/ladder"
)

// crop is coupons that were put into the table as a grant leaves them: rows and history, in the order of their ids.
type crop struct {
	first uint64
	n     int
	due   time.Time // of the first, a whole second
	pace  pace
	span  time.Duration // from the first end to the last
}

// pace is how many coupons end in each second, and at how many instants of it; the zero pace: all of them in one instant.
type pace struct{ each, instants int }

// after is how long after the first the i-th ends.
func (p pace) after(i int) time.Duration {
	if p.each == 0 {
		return 0
	}
	return time.Duration(i*p.instants/p.each) * (time.Second / time.Duration(p.instants))
}

// end of the i-th.
func (c crop) end(i int) time.Time {
	return c.due.Add(c.pace.after(i))
}

func (c crop) last() time.Time { return c.due.Add(c.span) }

const (
	plantChunk = 100_000
	digits     = `(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
		UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)`
	numbersTable = `CREATE TABLE IF NOT EXISTS bench_number (n INT UNSIGNED PRIMARY KEY)`
	fillNumbers  = `INSERT IGNORE INTO bench_number SELECT a.d + 10*b.d + 100*c.d + 1000*d.d + 10000*e.d
		FROM ` + digits + ` a, ` + digits + ` b, ` + digits + ` c, ` + digits + ` d, ` + digits + ` e`
	plantCoupons = `INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at,
			order_id, used_at)
		SELECT ? + n, ?, 1, 'bench', CONCAT('user-', (? + n) % 100000), ?, IF(? = 3, 3, 1), ?, ? + INTERVAL (((? + n) * ?) DIV ?) * ? MICROSECOND,
			? + INTERVAL (((? + n) * ?) DIV ?) * ? MICROSECOND, ?, IF(? = 3, CONCAT('order-', ? + n), NULL), IF(? = 3, ?, NULL)
		FROM bench_number WHERE n < ? ORDER BY n`
	plantHistory = `INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason,
			trigger_id, origin, trace)
		SELECT id, 1, 0, 1, 'grant', granted_at, expires_at, due_at, '', 'bench', '', '', '', '' FROM coupon FORCE INDEX (PRIMARY) WHERE id >= ? AND id < ?`
)

const (
	statusUnused  = 1
	statusUsed    = 3
	statusExpired = 4
)

// plant puts n coupons there that end at due, or each of them in every second from due on.
func (s *site) plant(ctx context.Context, n int, p pace, due time.Time) (crop, error) {
	c := crop{n: n, due: due, pace: p, span: p.after(n - 1)}
	var err error
	c.first, err = s.plantRows(ctx, n, p, due, statusUnused, true)
	return c, err
}

// plantRows is plant for rows of any state, with their history or without.
func (s *site) plantRows(ctx context.Context, n int, p pace, due time.Time, status int, history bool) (first uint64, err error) {
	if err := s.db.QueryRowContext(ctx, "SELECT 1 + COALESCE(MAX(id), 0) FROM coupon").Scan(&first); err != nil {
		return 0, fmt.Errorf("planting: %w", err)
	}
	if p.each == 0 {
		p = pace{1 << 30, 1}
	}
	tick := int(time.Second/time.Microsecond) / p.instants
	granted := due.Add(-24 * time.Hour)
	return first, s.root(ctx, func(conn *sql.Conn) error {
		run := func(statement string, args ...any) error {
			if _, err := conn.ExecContext(ctx, statement, args...); err != nil {
				return fmt.Errorf("planting: %w", err)
			}
			return nil
		}
		for _, statement := range []string{
			"USE " + s.database(), "SET SESSION sql_log_bin = 0", "SET SESSION unique_checks = 0",
			"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", numbersTable, fillNumbers,
		} {
			if err := run(statement); err != nil {
				return err
			}
		}
		for at := 0; at < n; at += plantChunk {
			id, size := first+uint64(at), min(plantChunk, n-at)
			err := run(plantCoupons, id, s.template, id, status, status, granted, due, at, p.instants, p.each, tick, due, at, p.instants, p.each, tick, granted,
				status, id, status, granted, size)
			if err == nil && history {
				err = run(plantHistory, id, id+uint64(size))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

const (
	ringBatch = 1000
	ringLanes = 4
)

var errLate = errors.New("the triggers were not all sent before the first was due: this machine needs a longer lead (-lead)")

// ring sends the triggers of a crop into the ladder as the relay does, and waits until all of them are confirmed. Some of them come up to
// a second early, and the expirer holds them (ladder.RouteAt).
func (s *site) ring(ctx context.Context, c crop) error {
	way := delay.NewLadder(s.Ladder(), s.publisher)
	return s.send(ctx, c, func(ctx context.Context, now time.Time, ts []coupon.Timed) error {
		return errors.Join(way.Deliver(ctx, now, ts)...)
	})
}

// ringLate sends them so that none comes early.
func (s *site) ringLate(ctx context.Context, c crop) error {
	way := delay.NewLadder(s.Ladder(), s.publisher)
	return s.send(ctx, c, func(ctx context.Context, now time.Time, ts []coupon.Timed) error {
		ms := make([]broker.Message, len(ts))
		for i := range ts {
			ms[i] = way.After(ts[i].At.Sub(now)+ladder.Margin, ts[i])
		}
		return errors.Join(s.publisher.Publish(ctx, ms)...)
	})
}

func (s *site) send(ctx context.Context, c crop, deliver func(ctx context.Context, now time.Time, ts []coupon.Timed) error) error {
	ahead, err := s.ahead(ctx)
	if err != nil {
		return err
	}
	codec := s.Codec()
	var next atomic.Int64
	all, ctx := errgroup.WithContext(ctx)
	for range ringLanes {
		all.Go(func() error {
			for {
				from := int(next.Add(ringBatch)) - ringBatch
				if from >= c.n {
					return nil
				}
				batch := make([]coupon.Timed, 0, ringBatch)
				for i := from; i < min(from+ringBatch, c.n); i++ {
					t := coupon.Trigger{
						Kind: coupon.KindExpire, CouponID: c.first + uint64(i), At: c.end(i), Origin: coupon.OriginLadder,
						ID: coupon.TriggerID(coupon.SentByVerb, c.first+uint64(i), 1),
					}
					batch = append(batch, coupon.Timed{
						ID: t.ID, Body: codec.Trigger(t), Kind: t.Kind, Class: coupon.Exact.Class(), CouponID: t.CouponID, At: t.At,
					})
				}
				if err := deliver(ctx, time.Now().Add(ahead), batch); err != nil {
					return fmt.Errorf("sending triggers: %w", err)
				}
			}
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	if !time.Now().Add(ahead).Before(c.due) {
		return errLate
	}
	return nil
}
