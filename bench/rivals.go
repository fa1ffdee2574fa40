package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	asynqWorkers = 16
	asynqCheck   = time.Second
	asynqWhat    = "asynq scheduled tasks (ProcessAt), 16 workers, check interval 1 s, a transaction each"
	asynqTask    = "expire"
	feeders      = 8

	zsetPull  = 500
	zsetSleep = time.Second
	zsetWhat  = "Redis ZSET poller: pull 500, remove, a transaction each, sleep 1 s; what it has removed dies with it"

	naivePrefetch = 100
	naiveWhat     = "a TTL on each message of one durable queue, dead-lettered into another, a transaction each"

	cronBatch = 500
)

func (b *bench) cronWhat() string {
	return fmt.Sprintf("a job every %s, batches of 500 (SELECT … LIMIT 500 FOR UPDATE, UPDATE, history, outbox) until nothing is left; the instant is in mid-interval", b.cfg.CronEvery)
}

// redis connects to the rivals' server.
func (b *bench) redis() (*redis.Client, error) {
	o, err := redis.ParseURL(b.cfg.Redis)
	if err != nil {
		return nil, errors.New("redis: must be redis://[:password@]host:port/number; start it with scripts/stack up, or give -redis")
	}
	return redis.NewClient(o), nil
}

// each does something for every coupon of a crop, from several at once.
func each(ctx context.Context, c crop, do func(ctx context.Context, id uint64, end time.Time) error) error {
	var next atomic.Int64
	all, ctx := errgroup.WithContext(ctx)
	for range feeders {
		all.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= c.n {
					return nil
				}
				if err := do(ctx, c.first+uint64(i), c.end(i)); err != nil {
					return err
				}
			}
		})
	}
	return all.Wait()
}

// asynq enqueues a task for each coupon; its server runs in this process, as it would in its user's.
func (b *bench) asynq(n int) func(context.Context) (metrics, error) {
	schedule := func(ctx context.Context, st *stage, c crop) (err error) {
		rdb, err := b.redis()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rdb.Close()) }()
		client := asynq.NewClientFromRedisClient(rdb)
		queue := st.Ladder().Prefix()
		return each(ctx, c, func(ctx context.Context, id uint64, end time.Time) error {
			task := asynq.NewTask(asynqTask, strconv.AppendUint(nil, id, 10))
			_, err := client.EnqueueContext(ctx, task, asynq.ProcessAt(end), asynq.Queue(queue))
			return err
		})
	}
	work := func(ctx context.Context, st *stage, c crop) (err error) {
		rdb, err := b.redis()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rdb.Close()) }()
		queue := st.Ladder().Prefix()
		server := asynq.NewServerFromRedisClient(rdb, asynq.Config{
			Concurrency: asynqWorkers, DelayedTaskCheckInterval: asynqCheck, Queues: map[string]int{queue: 1}, LogLevel: asynq.FatalLevel,
			ShutdownTimeout: 5 * time.Second,
		})
		mux := asynq.NewServeMux()
		mux.HandleFunc(asynqTask, func(ctx context.Context, t *asynq.Task) error {
			id, err := strconv.ParseUint(string(t.Payload()), 10, 64)
			if err != nil {
				return err
			}
			return st.one(ctx, id, c.due)
		})
		if err := server.Start(mux); err != nil {
			return fmt.Errorf("asynq: %w", err)
		}
		<-ctx.Done()
		server.Shutdown()
		inspector := asynq.NewInspectorFromRedisClient(rdb)
		if err := inspector.DeleteQueue(queue, true); err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
			return fmt.Errorf("asynq: %w", err)
		}
		return nil
	}
	return b.rival(n, schedule, work)
}

// zset keeps the ends in a sorted set, which one poller walks.
func (b *bench) zset(n int) func(context.Context) (metrics, error) {
	schedule := func(ctx context.Context, st *stage, c crop) (err error) {
		rdb, err := b.redis()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rdb.Close()) }()
		return each(ctx, c, func(ctx context.Context, id uint64, end time.Time) error {
			return rdb.ZAdd(ctx, st.zsetKey(), redis.Z{Score: float64(end.UnixMilli()), Member: id}).Err()
		})
	}
	work := func(ctx context.Context, st *stage, c crop) (err error) {
		rdb, err := b.redis()
		if err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, rdb.Del(context.WithoutCancel(ctx), st.zsetKey()).Err(), rdb.Close())
		}()
		for ctx.Err() == nil {
			if err := st.poll(ctx, rdb, c); err != nil && ctx.Err() == nil {
				return err
			}
			if lifecycle.Sleep(ctx, zsetSleep) != nil {
				return nil
			}
		}
		return nil
	}
	return b.rival(n, schedule, work)
}

func (st *stage) zsetKey() string { return "bench:" + st.Ladder().Prefix() }

func (st *stage) poll(ctx context.Context, rdb *redis.Client, c crop) error {
	due, err := rdb.ZRangeArgs(ctx, redis.ZRangeArgs{
		Key: st.zsetKey(), ByScore: true, Start: "-inf", Stop: strconv.FormatInt(time.Now().UnixMilli(), 10), Count: zsetPull,
	}).Result()
	if err != nil || len(due) == 0 {
		return err
	}
	members := make([]any, len(due))
	for i := range due {
		members[i] = due[i]
	}
	if err := rdb.ZRem(ctx, st.zsetKey(), members...).Err(); err != nil {
		return err
	}
	for _, member := range due {
		id, err := strconv.ParseUint(member, 10, 64)
		if err != nil {
			return fmt.Errorf("a member: %w", err)
		}
		if err := st.one(ctx, id, c.due); err != nil {
			return err
		}
	}
	return nil
}

func (st *stage) naiveWait() string { return st.exchange + ".wait" }

func (st *stage) naiveDue() string { return st.exchange + ".due" }

// naive gives each message its time to live, in one queue.
func (b *bench) naive(n int) func(context.Context) (metrics, error) {
	schedule := func(ctx context.Context, st *stage, c crop) error {
		ahead, err := st.ahead(ctx)
		if err != nil {
			return err
		}
		ms := make([]broker.Message, 0, ringBatch)
		for i := range c.n {
			id := strconv.FormatUint(c.first+uint64(i), 10)
			ms = append(ms, broker.Message{
				Key: st.naiveWait(), ID: id, Body: []byte(id), Mandatory: true, Expiration: c.end(i).Sub(time.Now().Add(ahead)) + 10*time.Millisecond,
			})
			if len(ms) == cap(ms) || i == c.n-1 {
				if err := errors.Join(st.publisher.Publish(ctx, ms)...); err != nil {
					return fmt.Errorf("sending: %w", err)
				}
				ms = make([]broker.Message, 0, ringBatch)
			}
		}
		return nil
	}
	work := func(ctx context.Context, st *stage, c crop) error {
		return st.channel(func(ch *amqp.Channel) error {
			if err := ch.Qos(naivePrefetch, 0, false); err != nil {
				return err
			}
			deliveries, err := ch.ConsumeWithContext(ctx, st.naiveDue(), "", false, false, false, false, nil)
			if err != nil {
				return err
			}
			for d := range deliveries {
				id, err := strconv.ParseUint(string(d.Body), 10, 64)
				if err == nil {
					err = st.one(ctx, id, c.due)
				}
				if ctx.Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
				if err := d.Ack(false); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return b.rival(n, schedule, work)
}

// naiveQueues makes both, empty.
func (st *stage) naiveQueues(ch *amqp.Channel) error {
	for queue, args := range map[string]amqp.Table{
		st.naiveDue(): nil, st.naiveWait(): {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": st.naiveDue()},
	} {
		if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
			return err
		}
		if _, err := ch.QueuePurge(queue, false); err != nil {
			return err
		}
	}
	return nil
}

// cron works off what is due at every tick.
func (b *bench) cron(n int) func(context.Context) (metrics, error) {
	schedule := func(context.Context, *stage, crop) error { return nil }
	work := func(ctx context.Context, st *stage, c crop) error {
		for tick := c.due.Add(b.cfg.CronEvery / 2); ; tick = tick.Add(b.cfg.CronEvery) {
			if lifecycle.Sleep(ctx, time.Until(tick)) != nil {
				return nil
			}
			for {
				n, err := st.batch(ctx)
				if ctx.Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
				if n < cronBatch {
					break
				}
			}
		}
	}
	return b.rival(n, schedule, work)
}

// batch expires up to 500 that are due.
func (st *stage) batch(ctx context.Context) (int, error) {
	tx, err := st.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("a batch: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	rows, err := tx.QueryContext(ctx, `SELECT id, expires_at FROM coupon WHERE status = 1 AND due_at <= UTC_TIMESTAMP(3)
		ORDER BY due_at, id LIMIT ? FOR UPDATE`, cronBatch)
	if err != nil {
		return 0, fmt.Errorf("a batch: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	var ids []uint64
	var ends []time.Time
	for rows.Next() {
		var id uint64
		var end time.Time
		if err := rows.Scan(&id, &end); err != nil {
			return 0, fmt.Errorf("a batch: %w", err)
		}
		ids, ends = append(ids, id), append(ends, end)
	}
	if err := rows.Err(); err != nil || len(ids) == 0 {
		return 0, err
	}
	if err := st.finish(ctx, tx, ids, ends); err != nil {
		return 0, err
	}
	return len(ids), nil
}
