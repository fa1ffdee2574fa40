package main

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/issuance"
	"github.com/lapsehq/lapse/pkg/planner"
	"github.com/lapsehq/lapse/pkg/telemetry"
	"github.com/lapsehq/lapse/pkg/worker"
)

func run(ctx context.Context, p config.Process) int {
	return worker.Run(ctx, telemetry.NewBuild("publisher", version), config.DefaultPublisher(),
		func(c config.Publisher) config.Common { return c.Common }, p, add)
}

// add wires the publisher: grants come in, their triggers and events go out, the planner promotes what waits as rows.
// Readiness depends on the database alone: while the broker is away the outbox holds.
func add(w *worker.Worker, c config.Publisher) error {
	if err := w.AddRelay(c.Outbox); err != nil {
		return err
	}
	plan := planner.New(c.Planner, c.Ladder.Horizon, c.Database.TxLimit, w.Pod, w.Store, w.Delay, w.Log, w.Registry)
	w.App.Go("planner", plan.Run)
	handler, err := issuance.NewHandler(c.Issuance, w.Store, w.Codec, w.Ladder.ParkExchange(), w.Log, w.Registry)
	if err != nil {
		return fmt.Errorf("issuance: %w", err)
	}
	return w.Consume(broker.ConsumerOptions{
		Config: c.Issuance.Consumer(), Queue: w.Ladder.Issuance(), Handler: handler.Handle,
	})
}
