package delay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/telemetry"
)

const (
	measureEvery = 10 * time.Second // how long the difference of the clocks is relied on
	pauseMin     = 100 * time.Millisecond
	pauseMax     = 2 * time.Second
)

// mover brings the due triggers of its shards to the broker.
type mover struct {
	*ZSet
	own      []int
	wake     <-chan struct{}
	troubles *telemetry.Repeats
	measured time.Time
	looked   bool
}

func (m *mover) run(ctx context.Context) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = pauseMin, pauseMax, 2
	for ctx.Err() == nil {
		pause, err := m.round(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			m.troubles.Failed("zset: due triggers cannot be moved, trying again", err)
			pause = wait.NextBackOff()
		default:
			m.troubles.Recovered("zset: moving again")
			wait.Reset()
		}
		m.rest(ctx, pause)
	}
}

// rest waits, or until something near was handed over.
func (m *mover) rest(ctx context.Context, pause time.Duration) {
	if pause <= 0 {
		return
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-m.wake:
	}
}

// round moves a batch of each shard, and says how long nothing is due. What Redis answers is asked even while the broker is away:
// the sweep must know.
func (m *mover) round(ctx context.Context) (pause time.Duration, err error) {
	if m.ahead.Load() == nil || time.Since(m.measured) >= measureEvery {
		err := m.measure(ctx)
		if err != nil && m.ahead.Load() == nil {
			m.heard(errors.Join(err, m.ping(ctx)))
			return 0, err
		}
		m.measured = time.Now() // else: the old difference will do
	}
	if !m.looked {
		m.look(ctx)
		m.looked = true
	}
	if err := m.deps.Publisher.Ready(); err != nil {
		m.heard(m.ping(ctx))
		return m.config.Poll, nil //nolint:nilerr // the publisher tells of it
	}
	pause = m.config.Poll
	for _, s := range m.own {
		rest, err := m.shard(ctx, s)
		if err != nil {
			return 0, err
		}
		pause = min(pause, rest)
	}
	return pause, nil
}

func (m *mover) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.config.Timeout)
	defer cancel()
	if err := m.client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("ask redis: %w", err)
	}
	return nil
}

// shard moves one batch; rest is how long nothing of the shard is due.
func (m *mover) shard(ctx context.Context, s int) (rest time.Duration, err error) {
	c, err := m.claim(ctx, s)
	if ctx.Err() == nil {
		m.heard(err)
	}
	if err != nil {
		return 0, err
	}
	m.saw(s, c.waiting, c.flight)
	m.metrics.reclaimed.Add(float64(c.ranOut))
	if len(c.broken) > 0 {
		m.metrics.unread.Add(float64(len(c.broken)))
		m.log.Error("entries in Redis cannot be read and are dropped; the sweep settles their coupons", zap.Int("entries", len(c.broken)))
	}
	// What is claimed is finished, even when the process is told to stop meanwhile.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.config.Lease/2)
	defer cancel()
	done, left, err := m.publish(work, &c)
	if done = append(done, c.broken...); len(done) > 0 {
		if failed := m.settle(work, s, done, true); failed != nil {
			return 0, failed
		}
	}
	if len(left) > 0 {
		return 0, errors.Join(err, m.settle(work, s, left, false))
	}
	switch {
	case len(c.members) > 0:
		return 0, nil
	case c.rest < 0:
		return m.config.Poll, nil
	}
	return max(c.rest, time.Millisecond), nil
}

func (m *mover) claim(ctx context.Context, s int) (claimed, error) {
	ctx, cancel := context.WithTimeout(ctx, m.config.Timeout)
	defer cancel()
	ahead := m.ahead.Load().Truncate(time.Millisecond)
	if ahead > *m.ahead.Load() {
		ahead -= time.Millisecond // towards zero is the wrong way for a clock that is behind
	}
	v, err := claim.Run(ctx, m.client, m.shards[s].keys(), ahead.Milliseconds(), m.config.Batch, m.config.Lease.Milliseconds()).Result()
	if err != nil {
		return claimed{}, fmt.Errorf("claim what is due: %w", err)
	}
	return readClaim(v, m.deps.Exchange)
}

// publish sends what was claimed, and says what the broker confirmed and what it did not.
func (m *mover) publish(ctx context.Context, c *claimed) (done, left []string, err error) {
	if len(c.messages) == 0 {
		return nil, nil, nil
	}
	began := time.Now()
	for i, failed := range m.deps.Publisher.Publish(ctx, c.messages) {
		if failed != nil {
			left, err = append(left, c.members[i]), fmt.Errorf("publish: %w", failed)
			continue
		}
		done = append(done, c.members[i])
		m.metrics.lag.Observe(max(0, c.now.Add(*m.ahead.Load()).Add(time.Since(began)).Sub(c.at[i]).Seconds()))
	}
	m.metrics.moved.WithLabelValues(resultConfirmed).Add(float64(len(done)))
	m.metrics.moved.WithLabelValues(resultFailed).Add(float64(len(left)))
	return done, left, err
}

// settle removes what was published, or gives back what was not.
func (m *mover) settle(ctx context.Context, s int, members []string, over bool) error {
	ctx, cancel := context.WithTimeout(ctx, m.config.Timeout)
	defer cancel()
	script, what := finish, "remove what was published"
	if !over {
		script, what = giveBack, "give back what was not published"
	}
	if err := runOver(ctx, m.client, script, m.shards[s], members); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
