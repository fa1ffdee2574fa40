package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"
)

const (
	bareConsumers = 2
	barePrefetch  = 2000
	bareAck       = 500
	bareBatch     = 500
	bareWorkers   = 2
)

// bareBroker takes every trigger from the due queue and acknowledges it: what the ladder can do with the machine to itself.
func (b *bench) bareBroker(n int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (m metrics, err error) {
		st, err := b.rivalStage(ctx)
		if err != nil {
			return nil, err
		}
		due, err := st.soon(ctx, b.lead(n))
		if err != nil {
			return nil, err
		}
		ahead, err := st.ahead(ctx)
		if err != nil {
			return nil, err
		}
		c := crop{first: 1, n: n, due: due}
		if err := st.ringLate(ctx, c); err != nil {
			return nil, err
		}
		limit, cancel := context.WithTimeout(ctx, time.Until(due)+time.Minute+time.Duration(n/500)*time.Second)
		defer cancel()
		last, twice, err := st.drain(limit, n)
		if err != nil {
			return nil, err
		}
		took := last.Add(ahead).Sub(due)
		return metrics{"coupons": float64(n), "took_s": took.Seconds(), "per_s": float64(n) / took.Seconds(), "doubled": float64(twice), "lost": 0}, nil
	}
}

// drain consumes until n different messages were acknowledged.
func (st *stage) drain(ctx context.Context, n int) (last time.Time, twice int, err error) {
	var mu sync.Mutex
	seen := make(map[string]struct{}, n)
	working, stop := context.WithCancel(ctx)
	defer stop()
	var all errgroup.Group
	for range bareConsumers {
		all.Go(func() error {
			return st.channel(func(ch *amqp.Channel) error {
				if err := ch.Qos(barePrefetch, 0, false); err != nil {
					return err
				}
				deliveries, err := ch.ConsumeWithContext(working, st.Ladder().DueExact(), "", false, false, false, false, nil)
				if err != nil {
					return err
				}
				unacked := 0
				for d := range deliveries {
					mu.Lock()
					if _, known := seen[d.MessageId]; known {
						twice++
					}
					seen[d.MessageId] = struct{}{}
					whole := len(seen) == n
					mu.Unlock()
					if unacked++; unacked < bareAck && len(deliveries) > 0 && !whole {
						continue
					}
					unacked = 0
					if err := d.Ack(true); err != nil {
						return err
					}
					mu.Lock()
					last = time.Now()
					mu.Unlock()
					if whole {
						stop()
					}
				}
				return nil
			})
		})
	}
	err = all.Wait()
	if err == nil && len(seen) < n {
		err = fmt.Errorf("bare broker: %d of %d came: %w", len(seen), n, errors.Join(ctx.Err()))
	}
	return last, twice, err
}

// bareDatabase runs the batch transaction over rows whose ids are known: what the database can do with the machine to itself.
func (b *bench) bareDatabase(n int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		st, err := b.rivalStage(ctx)
		if err != nil {
			return nil, err
		}
		now, err := st.now(ctx)
		if err != nil {
			return nil, err
		}
		c, err := st.plant(ctx, n, pace{}, now.Add(-time.Hour).Truncate(time.Second))
		if err != nil {
			return nil, err
		}
		start := time.Now()
		all, ctx := errgroup.WithContext(ctx)
		for w := range bareWorkers {
			all.Go(func() error {
				for from := w * bareBatch; from < c.n; from += bareWorkers * bareBatch {
					if err := st.known(ctx, c, from, min(from+bareBatch, c.n)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := all.Wait(); err != nil {
			return nil, err
		}
		took := time.Since(start)
		return metrics{"coupons": float64(n), "took_s": took.Seconds(), "per_s": float64(n) / took.Seconds(), "lost": 0, "doubled": 0}, nil
	}
}

// known is the transaction over the coupons from to to of a crop.
func (st *stage) known(ctx context.Context, c crop, from, to int) error {
	tx, err := st.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("a batch: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	ids, ends, args := make([]uint64, 0, to-from), make([]time.Time, 0, to-from), make([]any, 0, to-from)
	for i := from; i < to; i++ {
		ids, ends, args = append(ids, c.first+uint64(i)), append(ends, c.end(i)), append(args, c.first+uint64(i))
	}
	rows, err := tx.QueryContext(ctx, `SELECT id, template_id, revision, batch_id, user_id, status, version, expires_at, due_at FROM coupon
		WHERE id IN (`+many("?", len(ids))+`) ORDER BY id FOR UPDATE SKIP LOCKED`, args...)
	if err != nil {
		return fmt.Errorf("a batch: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	n := 0
	for rows.Next() {
		n++
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("a batch: %w", err)
	}
	if n != len(ids) {
		return fmt.Errorf("a batch: %d rows of %d", n, len(ids))
	}
	return st.finish(ctx, tx, ids, ends)
}

// finish expires what was locked, and commits.
func (st *stage) finish(ctx context.Context, tx *sql.Tx, ids []uint64, ends []time.Time) error {
	args := make([]any, len(ids))
	for i := range ids {
		args[i] = ids[i]
	}
	res, err := tx.ExecContext(ctx, `UPDATE coupon SET status = 4, version = version + 1, expired_at = UTC_TIMESTAMP(3), expire_cause = 'rival'
		WHERE id IN (`+many("?", len(ids))+`) AND status = 1 AND expires_at <= UTC_TIMESTAMP(3)`, args...)
	if err != nil {
		return fmt.Errorf("a batch: %w", err)
	}
	if n, err := res.RowsAffected(); err != nil || int(n) != len(ids) {
		return fmt.Errorf("a batch: %d rows changed of %d: %w", n, len(ids), errors.Join(err))
	}
	if err := st.records(ctx, tx, ids, ends); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("a batch: %w", err)
	}
	return nil
}
