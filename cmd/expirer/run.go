package main

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/pkg/archive"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/expiry"
	"github.com/lapsehq/lapse/pkg/heartbeat"
	"github.com/lapsehq/lapse/pkg/outbox"
	"github.com/lapsehq/lapse/pkg/reconcile"
	"github.com/lapsehq/lapse/pkg/telemetry"
	"github.com/lapsehq/lapse/pkg/worker"
)

// parkedEvery is how often the expirer counts what was set aside.
const parkedEvery = 10 * time.Second

func run(ctx context.Context, p config.Process) int {
	return worker.Run(ctx, telemetry.NewBuild("expirer", version), config.DefaultExpirer(),
		func(c config.Expirer) config.Common { return c.Common }, p, add)
}

// add wires the expirer: what the due queues release goes through the core, and the sweep picks up what they missed.
func add(w *worker.Worker, c config.Expirer) error {
	w.ReadyOnBroker()
	w.Registry.MustRegister(outbox.NewGauges(w.Store, nil), expiry.NewForecastGauges(w.Store, nil),
		expiry.NewLockGauges(w.Store, c.Expiry.Sweep.Grace, nil), heartbeat.NewGauges(w.Store, nil))
	if err := w.AddRelay(c.Outbox); err != nil {
		return err
	}
	aside := []string{w.Ladder.Parked(), w.Ladder.Unroutable()}
	w.App.Go("parked gauge", func(ctx context.Context) error { return w.Broker.WatchParked(ctx, aside, parkedEvery) })
	core := expiry.NewCore(w.Store, w.WatchClock(c.Expiry.ClockAhead), w.Registry)
	core.Tell(w.Pulse)
	core.Heed(w.Store)
	core.Trace(w.Traces)
	limit := expiry.NewLimiter(c.Expiry)
	drain := expiry.NewDrain(c.Expiry, w.Store, w.Log)
	w.App.Go("drain rate", drain.Run)
	sweep := c.Expiry.Sweep
	if c.Delay.Mechanism == config.MechanismSweep {
		sweep = sweep.Alone()
	}
	w.App.Go("sweep", expiry.NewSweeper(sweep, w.Store, core, w.Heard, limit, w.Log).Run)
	if err := addNights(w, c); err != nil {
		return err
	}
	if c.Delay.Mechanism == config.MechanismSweep {
		return nil
	}
	handler := expiry.NewHandler(core, w.Route, w.Codec, limit, w.Log).WithDrain(drain)
	ready := func(ctx context.Context) error { return core.Ready(ctx, w.Store) }
	paused := func() bool { return w.Paused(coupon.BrakeExpiry) }
	for _, queue := range w.Ladder.DueQueues() {
		marks := expiry.NewMarks(queue, w.Pod, w.Store, time.Now, w.Log)
		w.App.Go("ladder mark "+queue, marks.Run)
		o := broker.ConsumerOptions{Config: c.Expiry.Consumer, Queue: queue, Handler: handler.WithMarks(marks).Waiting().Handle, Ready: ready, Held: paused}
		if queue == w.Ladder.DueUnlock() { // a pause of expiry keeps no lock from running out
			o.Handler, o.Held = handler.WithMarks(marks).Handle, nil
		}
		err := w.Consume(o)
		if err != nil {
			return err
		}
	}
	return w.Consume(broker.ConsumerOptions{
		Config: c.Expiry.CatchAll(), Queue: w.Ladder.Unroutable(), Handler: handler.Waiting().Handle, Ready: ready, Held: paused, CatchAll: true,
	})
}

// addNights adds what is done in quiet hours.
func addNights(w *worker.Worker, c config.Expirer) error {
	a, err := archive.New(c.Archive, archive.Shard{}, w.Store, w.Log, w.Registry)
	if err != nil {
		return err
	}
	n, err := reconcile.NewNightly(c.Reconcile, w.Store, w.Store, w.Log, w.Registry)
	if err != nil {
		return err
	}
	w.App.Go("archive", a.Run)
	w.App.Go("reconcile", n.Run)
	return nil
}
