package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// What the rivals have in common. Each of them does what the fleet does, as its users would write it: in one transaction the state, a
// history row and an outbox row; a relay publishes the outbox with confirms. They use the fleet's tables with the fleet's indexes, and the
// fleet's own encoder and publisher, which are faster than what one would write in an afternoon.

// stage is a rival's place: a site without workers, an exchange and a durable queue for its events.
type stage struct {
	*site
	exchange string
}

// rivalStage opens it, empty.
func (b *bench) rivalStage(ctx context.Context) (*stage, error) {
	s, err := b.site(ctx, "rivals")
	if err != nil {
		return nil, err
	}
	st := &stage{site: s, exchange: s.Ladder().Prefix() + ".rival"}
	if err := s.clear(ctx); err != nil {
		return nil, err
	}
	return st, st.channel(func(ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare(st.exchange, "topic", true, false, false, false, nil); err != nil {
			return err
		}
		args := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
		if _, err := ch.QueueDeclare(st.exchange, true, false, false, false, args); err != nil {
			return err
		}
		if _, err := ch.QueuePurge(st.exchange, false); err != nil {
			return err
		}
		s.rest = st.remove
		if err := st.naiveQueues(ch); err != nil {
			return err
		}
		return ch.QueueBind(st.exchange, "#", st.exchange, false, nil)
	})
}

func (st *stage) remove() error {
	return st.channel(func(ch *amqp.Channel) error {
		if err := ch.ExchangeDelete(st.exchange, false, false); err != nil {
			return err
		}
		for _, queue := range []string{st.exchange, st.naiveWait(), st.naiveDue()} {
			if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
				return err
			}
		}
		return nil
	})
}

// channel does something over a connection of its own.
func (st *stage) channel(do func(*amqp.Channel) error) (err error) {
	conn, err := amqp.Dial(st.stack.AMQPURL.Reveal())
	if err != nil {
		return fmt.Errorf("a rival's connection: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err == nil {
		err = do(ch)
	}
	if err != nil {
		return fmt.Errorf("a rival's queues: %w", err)
	}
	return nil
}

const (
	rivalUpdate = `UPDATE coupon SET status = 4, version = version + 1, expired_at = UTC_TIMESTAMP(3), expire_cause = 'rival'
		WHERE id = ? AND status = 1 AND expires_at <= UTC_TIMESTAMP(3)`
	historyInto = `INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason,
		trigger_id, origin, trace) VALUES `
	historyValues = `(?, 2, 1, 4, 'rival', UTC_TIMESTAMP(3), ?, ?, '', 'rival', '', '', '', '')`
	outboxInto    = `INSERT INTO outbox (lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, refused, created_at) VALUES `
	outboxValues  = `(1, ?, ?, ?, ?, '', NULL, ?, '', 0, UTC_TIMESTAMP(3))`
)

// expired is the event of a coupon.
func (st *stage) expired(id uint64, end time.Time) (key, msg string, body []byte, err error) {
	key, msg, body, err = st.Codec().Transition(coupon.Transition{
		CouponID: id, Version: 2, From: coupon.Unused, To: coupon.Expired, Cause: coupon.CauseLadder, UserID: "user-" + strconv.FormatUint(id%100_000, 10),
		BatchID: "bench", Terms: coupon.Terms{TemplateID: st.template, Revision: 1, Value: 1000, Currency: "CNY", Precision: coupon.Exact},
		ExpiresAt: end, DueAt: end, At: time.Now().UTC().Truncate(time.Millisecond),
	})
	if err != nil {
		return "", "", nil, fmt.Errorf("an event: %w", err)
	}
	return key, msg, body, nil
}

// one expires one coupon in a transaction of its own; a coupon that is expired already, or not ended, it leaves.
func (st *stage) one(ctx context.Context, id uint64, end time.Time) error {
	key, msg, body, err := st.expired(id, end)
	if err != nil {
		return err
	}
	tx, err := st.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("expiring one: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	res, err := tx.ExecContext(ctx, rivalUpdate, id)
	if err != nil {
		return fmt.Errorf("expiring one: %w", err)
	}
	if n, err := res.RowsAffected(); n == 0 || err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, historyInto+historyValues, id, end, end); err != nil {
		return fmt.Errorf("expiring one: %w", err)
	}
	if _, err := tx.ExecContext(ctx, outboxInto+outboxValues, coupon.Partition(id), id, msg, key, body); err != nil {
		return fmt.Errorf("expiring one: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("expiring one: %w", err)
	}
	return nil
}

// records writes history and outbox rows of many.
func (st *stage) records(ctx context.Context, tx *sql.Tx, ids []uint64, ends []time.Time) error {
	history, outbox := make([]any, 0, 3*len(ids)), make([]any, 0, 5*len(ids))
	for i, id := range ids {
		key, msg, body, err := st.expired(id, ends[i])
		if err != nil {
			return err
		}
		history = append(history, id, ends[i], ends[i])
		outbox = append(outbox, coupon.Partition(id), id, msg, key, body)
	}
	if _, err := tx.ExecContext(ctx, historyInto+many(historyValues, len(ids)), history...); err != nil {
		return fmt.Errorf("a batch's history: %w", err)
	}
	if _, err := tx.ExecContext(ctx, outboxInto+many(outboxValues, len(ids)), outbox...); err != nil {
		return fmt.Errorf("a batch's outbox: %w", err)
	}
	return nil
}

func many(one string, n int) string { return strings.Repeat(one+",", n-1) + one }

const (
	relayBatch = 1000
	relayPoll  = 20 * time.Millisecond
)

// relay publishes the outbox until ctx ends.
func (st *stage) relay(ctx context.Context) error {
	for {
		n, err := st.relayOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if n == relayBatch {
			continue
		}
		if err := lifecycle.Sleep(ctx, relayPoll); err != nil {
			return nil //nolint:nilerr // it was told to stop
		}
	}
}

func (st *stage) relayOnce(ctx context.Context) (int, error) {
	rows, err := st.db.QueryContext(ctx, "SELECT id, msg_id, routing_key, body FROM outbox WHERE lane = 1 ORDER BY lane, part, id LIMIT ?", relayBatch)
	if err != nil {
		return 0, fmt.Errorf("relaying: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	var ids []any
	var ms []broker.Message
	for rows.Next() {
		var id uint64
		var m broker.Message
		if err := rows.Scan(&id, &m.ID, &m.Key, &m.Body); err != nil {
			return 0, fmt.Errorf("relaying: %w", err)
		}
		m.Exchange = st.exchange
		ids, ms = append(ids, id), append(ms, m)
	}
	if err := rows.Err(); err != nil || len(ids) == 0 {
		return 0, err
	}
	if err := errors.Join(st.publisher.Publish(ctx, ms)...); err != nil {
		return 0, fmt.Errorf("relaying: %w", err)
	}
	if _, err := st.db.ExecContext(ctx, "DELETE FROM outbox WHERE id IN ("+many("?", len(ids))+")", ids...); err != nil {
		return 0, fmt.Errorf("relaying: %w", err)
	}
	return len(ids), nil
}

// rival measures one: schedule tells it of every coupon before the end, work does its work until ctx ends.
func (b *bench) rival(n int, schedule func(ctx context.Context, st *stage, c crop) error, work func(ctx context.Context, st *stage, c crop) error) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (m metrics, err error) {
		st, err := b.rivalStage(ctx)
		if err != nil {
			return nil, err
		}
		e, err := listen(st.stack.AMQPURL.Reveal(), st.exchange)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, e.close()) }()
		due, err := st.soon(ctx, b.lead(n))
		if err != nil {
			return nil, err
		}
		c, err := st.plant(ctx, n, pace{}, due)
		if err != nil {
			return nil, err
		}
		e.expect(c.first, c.n)
		working, stop := context.WithCancelCause(ctx)
		ended := make(chan error, 2)
		for _, loop := range []func() error{
			func() error { return work(working, st, c) }, func() error { return st.relay(working) },
		} {
			go func() {
				err := loop()
				if err != nil {
					stop(err)
				}
				ended <- err
			}()
		}
		err = schedule(working, st, c)
		if err == nil && !time.Now().Before(due) {
			err = errLate
		}
		if err == nil {
			err = e.wait(working, c.due.Add(b.cfg.CronEvery), st.site.Fleet().Ended)
		}
		stop(nil)
		err = errors.Join(err, <-ended, <-ended)
		if err != nil {
			return nil, err
		}
		return b.weigh(ctx, st.site, e, c)
	}
}
