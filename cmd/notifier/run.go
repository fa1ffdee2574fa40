package main

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/inbox"
	"github.com/lapsehq/lapse/pkg/telemetry"
	"github.com/lapsehq/lapse/pkg/worker"
)

func run(ctx context.Context, p config.Process) int {
	return worker.Run(ctx, telemetry.NewBuild("notifier", version), config.DefaultNotifier(),
		func(c config.Notifier) config.Common { return c.Common }, p, add)
}

// add wires the notifier: expired events are gathered per user, and a closed window becomes one notice per channel.
func add(w *worker.Worker, c config.Notifier) error {
	w.WatchClock(clock.DefaultTolerance)
	w.ReadyOnBroker()
	texts, err := notice.NewTexts(c.Notice.Locale)
	if err != nil {
		return fmt.Errorf("texts: %w", err)
	}
	var channels []notice.Teller
	for _, name := range c.Notice.Channels {
		switch coupon.Channel(name) {
		case coupon.ChannelInbox:
			channels = append(channels, inbox.New(w.Store))
		case coupon.ChannelLog:
			channels = append(channels, notice.NewLog(w.Store, w.Log))
		}
	}
	closer, err := notice.NewCloser(c.Notice, w.Store, texts, channels, w.Log, w.Registry, time.Now)
	if err != nil {
		return fmt.Errorf("notices: %w", err)
	}
	closer.Tell(w.Pulse)
	w.App.Go("notices", closer.Run)
	collector, err := notice.NewCollector(c.Notice, w.Codec.Source(), w.Store, w.Log, w.Registry)
	if err != nil {
		return fmt.Errorf("notices: %w", err)
	}
	return w.Consume(broker.ConsumerOptions{Config: c.Notice.Consumer, Queue: w.Ladder.Notice(), Handler: collector.Handle})
}
