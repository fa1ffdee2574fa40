package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/email"
	"github.com/lapsehq/lapse/pkg/notice/gateway"
	"github.com/lapsehq/lapse/pkg/notice/inbox"
	"github.com/lapsehq/lapse/pkg/notice/policy"
	"github.com/lapsehq/lapse/pkg/notice/text"
	"github.com/lapsehq/lapse/pkg/profile"
	"github.com/lapsehq/lapse/pkg/telemetry"
	"github.com/lapsehq/lapse/pkg/wakeup"
	"github.com/lapsehq/lapse/pkg/worker"
	"github.com/lapsehq/lapse/pkg/yield"
)

func run(ctx context.Context, p config.Process) int {
	return worker.Run(ctx, telemetry.NewBuild("notifier", version), config.DefaultNotifier(),
		func(c config.Notifier) config.Common { return c.Common }, p, add)
}

// add wires the notifier: events are gathered per user, a closed window becomes notices by the policy, and each channel sends
// its own. What users tell of themselves is kept beside that.
//
// Consumers stop first, then closing, then sending, then what channels hold open.
func add(w *worker.Worker, c config.Notifier) error {
	w.WatchClock(clock.DefaultTolerance)
	w.ReadyOnBroker()
	rules, err := policy.New(c.Notice.Policy, c.Notice.Names())
	if err != nil {
		return fmt.Errorf("notices: %w", err)
	}
	if off := rules.Off(); len(off) > 0 {
		w.Log.Info("the policy names channels that are not configured here; they are passed over", zap.Any("channels", off))
	}
	keeper, err := profile.New(c.Profile, w.Store, w.Ladder.ParkExchange(), w.Log, w.Registry)
	if err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	risk, err := wakeup.New(c.Wakeup, wakeup.Deps{
		Store: w.Store, Zone: rules.Zone(nil), Log: w.Log, Registerer: w.Registry,
	})
	if err != nil {
		return fmt.Errorf("wake-up: %w", err)
	}
	if err := addNotices(w, c.Notice, c.Yield, rules, keeper, risk); err != nil {
		return fmt.Errorf("notices: %w", err)
	}
	w.App.Go("offsets", notice.NewOffsets(w.Store, map[string][]string{
		"notice.policy.rules": c.Notice.Policy.Offsets(), "wakeup.offset": {c.Wakeup.Offset},
	}, w.Log).Run)
	w.App.Go("profiles", keeper.Run)
	if !c.Ladder.Users {
		return nil
	}
	return w.Consume(broker.ConsumerOptions{Config: c.Profile.Consumer(), Queue: w.Ladder.Users(), Handler: keeper.Handle})
}

func addNotices(w *worker.Worker, c config.Notice, stand yield.Config, rules *policy.Policy, keeper *profile.Keeper, risk *wakeup.Wakeup) error {
	texts, err := text.New(c.Locale)
	if err != nil {
		return fmt.Errorf("texts: %w", err)
	}
	channels, err := channelsOf(w, c)
	if err != nil {
		return err
	}
	metrics := notice.NewMetrics(w.Registry, c.Names())
	sender, err := notice.NewSender(c.Config, notice.SenderDeps{
		Store: w.Store, Policy: rules, Texts: texts, Addresses: keeper, Metrics: metrics, Pulse: w.Pulse, Log: w.Log, Now: time.Now,
		Paused: func(ch coupon.Channel) bool { return w.Store.BrakesSeen().Channel(ch) },
		Traces: w.Traces, TracesOf: w.Store.NoticeTraces,
	}, channels)
	if err != nil {
		return err
	}
	closer, err := notice.NewCloser(c.Config, notice.CloserDeps{
		Store: w.Store, Decide: notice.Decide(rules.Decide).With(risk.More), Ring: sender.Ring, Metrics: metrics, Log: w.Log,
	})
	if err != nil {
		return err
	}
	collector, err := notice.NewCollector(c.Config, notice.CollectorDeps{
		Source: w.Codec.Source(), Store: w.Store, Policy: rules, AtRisk: risk.Handle,
		Heartbeat: func(ctx context.Context, h event.Heartbeat) error { return w.Store.BeatDone(ctx, h.Precision, h.Ended) },
		Log:       w.Log, Registerer: w.Registry, Traces: w.Traces,
	})
	if err != nil {
		return err
	}
	w.App.Add("channels", nil, closing(channels))
	w.App.Go("notices, sending", sender.Run, lifecycle.StopWithin(c.StopWithin()))
	w.App.Go("notices, closing", closer.Run, lifecycle.StopWithin(c.StopWithin()))
	back, err := yield.New(stand, w.Store, w.Registry, nil)
	if err != nil {
		return err
	}
	if _, err := w.EventConsumer(broker.ConsumerOptions{Config: c.Consumer, Queue: w.Ladder.Notice(), Handler: back.Handler(collector.Handle)}); err != nil {
		return err
	}
	w.App.Go("notices, standing back", back.Run) // ends before the consumer
	return nil
}

// channelsOf makes the channels that the configuration names.
func channelsOf(w *worker.Worker, c config.Notice) ([]notice.Channel, error) {
	channels := make([]notice.Channel, 0, len(c.Channels))
	for _, name := range c.Names() {
		var ch notice.Channel
		var err error
		switch name {
		case coupon.ChannelInbox:
			ch = inbox.New(w.Store, c.Batch, w.Log)
		case coupon.ChannelPopup:
			ch = inbox.NewPopup(w.Store, c.Batch, w.Log)
		case coupon.ChannelEmail:
			ch, err = email.New(c.Email, time.Now)
		case coupon.ChannelSMS:
			ch, err = gateway.New(name, c.Gateway.SMS, time.Now)
		case coupon.ChannelPush:
			ch, err = gateway.New(name, c.Gateway.Push, time.Now)
		case coupon.ChannelLog:
			ch = notice.NewLog(c.Batch, w.Log)
		default: // Validate has refused it
			err = errors.New("is none")
		}
		if err != nil {
			return nil, fmt.Errorf("channel %s: %w", name, err)
		}
		channels = append(channels, ch)
	}
	return channels, nil
}

// closing lets go of the connections that channels keep.
func closing(channels []notice.Channel) func(context.Context) error {
	return func(context.Context) error {
		var errs []error
		for _, ch := range channels {
			if c, ok := ch.(interface{ Close() error }); ok {
				if err := c.Close(); err != nil {
					errs = append(errs, fmt.Errorf("channel %s: %w", ch.Name(), err))
				}
			}
		}
		return errors.Join(errs...)
	}
}
