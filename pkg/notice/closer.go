package notice

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/pulse"
)

// CloseStore closes windows and hands out what is left undelivered.
type CloseStore interface {
	CloseNotices(ctx context.Context, p coupon.ClosePlan) (coupon.Closing, error)
	ClaimNotices(ctx context.Context, channel coupon.Channel, lease time.Duration, limit int) ([]coupon.Notice, error)
}

const (
	backoffMax = 10 * time.Second
	// claimsPerLease is how often leftovers are looked for while a lease runs.
	claimsPerLease = 6
)

// Closer closes due windows and delivers their notices. One loop; any number of pods run one.
type Closer struct {
	config   Config
	plan     coupon.ClosePlan
	store    CloseStore
	texts    *Texts
	channels []Teller
	log      *zap.Logger
	metrics  *closerMetrics
	now      func() time.Time
	claimed  time.Time // when leftovers were last looked for
	pulse    *pulse.Recorder
}

// Tell gives what the closer tells of its work to. Called before Run.
func (c *Closer) Tell(p *pulse.Recorder) { c.pulse = p }

// NewCloser makes the loop that tells by the channels, in their order. now must carry a monotonic reading.
func NewCloser(c Config, store CloseStore, texts *Texts, channels []Teller, log *zap.Logger,
	reg prometheus.Registerer, now func() time.Time,
) (*Closer, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("notice config: %w", err)
	}
	if len(channels) == 0 {
		return nil, errors.New("notice closer: needs a channel")
	}
	names := make([]coupon.Channel, len(channels))
	for i, ch := range channels {
		names[i] = ch.Name()
	}
	return &Closer{
		config: c, store: store, texts: texts, channels: channels, log: log, metrics: newCloserMetrics(reg, names), now: now,
		plan: coupon.ClosePlan{Kind: coupon.NoticeExpired, Rules: c.Rules(), Channels: names, Lease: c.Lease, Limit: c.Batch},
	}, nil
}

// Run closes and delivers until ctx ends; what has been begun then is finished, within Config.Drain.
func (c *Closer) Run(ctx context.Context) error {
	work, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	var watch sync.WaitGroup
	defer watch.Wait()
	defer giveUp()
	watch.Go(func() { c.bound(ctx, work, giveUp) })

	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = c.config.PollMin, max(backoffMax, c.config.PollMin)
	failing := false
	for ctx.Err() == nil {
		wait, err := c.step(work)
		switch {
		case err != nil && ctx.Err() != nil:
			c.log.Warn("notices: stopped before the end of a batch; another pod takes it up", zap.Error(err))
		case err != nil:
			if !failing {
				c.log.Warn("notices: cannot close or deliver, trying again", zap.Error(err))
			}
			failing, wait = true, pause.NextBackOff()
		case failing:
			c.log.Info("notices: going on")
			failing = false
			pause.Reset()
		}
		sleep(ctx, wait)
	}
	return nil
}

// bound lets work live a while longer than ctx.
func (c *Closer) bound(ctx, work context.Context, giveUp context.CancelFunc) {
	select {
	case <-work.Done():
		return
	case <-ctx.Done():
	}
	sleep(work, c.config.Drain)
	giveUp()
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// step closes one batch of windows, delivers it, takes up leftovers now and then, and says how long to wait.
func (c *Closer) step(ctx context.Context) (time.Duration, error) {
	closing, err := c.store.CloseNotices(ctx, c.plan)
	if err != nil {
		return 0, fmt.Errorf("close windows: %w", err)
	}
	for reason, n := range closing.Suppressed {
		c.metrics.suppressed.WithLabelValues(reason).Add(float64(n))
	}
	err = c.deliver(ctx, closing.Pending)
	more, lerr := c.leftovers(ctx)
	if err := errors.Join(err, lerr); err != nil {
		return 0, err
	}
	switch {
	case more, closing.More:
		return 0, nil
	case closing.Next.IsZero():
		return c.config.PollMax, nil
	default:
		return min(max(closing.Next.Sub(closing.Now), c.config.PollMin), c.config.PollMax), nil
	}
}

// leftovers delivers notices that nobody has delivered within a lease.
func (c *Closer) leftovers(ctx context.Context) (more bool, err error) {
	if now := c.now(); !c.claimed.IsZero() && now.Sub(c.claimed) < c.config.Lease/claimsPerLease {
		return false, nil
	}
	var errs []error
	for _, ch := range c.channels {
		ns, err := c.store.ClaimNotices(ctx, ch.Name(), c.config.Lease, c.config.Batch)
		if err != nil {
			errs = append(errs, fmt.Errorf("claim notices: %w", err))
			continue
		}
		more = more || len(ns) == c.config.Batch
		if err := c.deliver(ctx, ns); err != nil {
			errs = append(errs, err)
		}
	}
	if !more {
		c.claimed = c.now()
	}
	return more, errors.Join(errs...)
}

// deliver renders the notices and hands each channel its own. A channel that fails keeps no other from its work.
func (c *Closer) deliver(ctx context.Context, ns []coupon.Notice) error {
	var errs []error
	for _, ch := range c.channels {
		ms, err := c.render(ch.Name(), ns)
		if err != nil {
			errs = append(errs, err)
		}
		if len(ms) == 0 {
			continue
		}
		sent, err := c.send(ctx, ch, ms)
		c.metrics.count(ch.Name(), c.plan.Kind, resultSent, sent)
		if err != nil {
			c.metrics.count(ch.Name(), c.plan.Kind, resultFailed, len(ms)-sent)
			errs = append(errs, fmt.Errorf("deliver notices: %w", err))
			continue
		}
		c.metrics.count(ch.Name(), c.plan.Kind, resultRepeated, len(ms)-sent)
	}
	return errors.Join(errs...)
}

// send hands over a channel's messages. What the channel's own records take of the time is the database's.
func (c *Closer) send(ctx context.Context, ch Teller, ms []coupon.NoticeMessage) (int, error) {
	ctx, spent := pulse.Measured(ctx)
	end := c.pulse.Begin(pulse.Send)
	sent, err := ch.Deliver(ctx, ms)
	end(spent(), err != nil && !errors.Is(err, coupon.ErrUnavailable) && !errors.Is(err, coupon.ErrContention))
	c.pulse.Count(pulse.CountNotices, sent)
	return sent, err //nolint:wrapcheck // by the caller
}

// render gives the channel's messages; a notice that cannot be rendered stays pending and is reported.
func (c *Closer) render(channel coupon.Channel, ns []coupon.Notice) ([]coupon.NoticeMessage, error) {
	var ms []coupon.NoticeMessage
	var failure error
	for i := range ns {
		if ns[i].Channel != channel {
			continue
		}
		texts, err := c.texts.Render(ns[i].Kind, ns[i].Items)
		if err != nil {
			c.metrics.count(channel, c.plan.Kind, resultFailed, 1)
			failure = err
			continue
		}
		ms = append(ms, coupon.NoticeMessage{Notice: ns[i], Texts: texts})
	}
	return ms, failure
}
