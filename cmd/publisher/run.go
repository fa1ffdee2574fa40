package main

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/heartbeat"
	"github.com/lapsehq/lapse/pkg/issuance"
	"github.com/lapsehq/lapse/pkg/ledger"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/notice/gateway"
	"github.com/lapsehq/lapse/pkg/notice/text"
	"github.com/lapsehq/lapse/pkg/order"
	"github.com/lapsehq/lapse/pkg/planner"
	"github.com/lapsehq/lapse/pkg/pulse"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/telemetry"
	"github.com/lapsehq/lapse/pkg/worker"
	"github.com/lapsehq/lapse/pkg/yield"
)

func run(ctx context.Context, p config.Process) int {
	return worker.Run(ctx, telemetry.NewBuild("publisher", version), config.DefaultPublisher(),
		func(c config.Publisher) config.Common { return c.Common }, p, add)
}

// add wires the publisher: grants and orders come in, their triggers and events go out, the planner promotes what waits as rows and
// tells of ends that come near.
// Readiness depends on the database alone: while the broker is away the outbox holds.
func add(w *worker.Worker, c config.Publisher) error {
	w.WatchClock(clock.DefaultTolerance)
	if err := w.AddRelay(c.Outbox); err != nil {
		return err
	}
	reminders, err := c.Reminders.Reminders()
	if err != nil {
		return fmt.Errorf("reminders: %w", err)
	}
	plan := planner.New(c.Planner, planner.Deps{
		Rows: w.Store, Deliver: w.Promote, Events: w.Publisher, Exchange: w.Ladder.Events(), Encoder: w.Codec, Log: w.Log, Registry: w.Registry,
		Owner: w.Pod, Limit: c.Database.TxLimit, Horizon: c.Ladder.Horizon, Reminders: reminders,
	})
	w.App.Go("planner", plan.Run)
	beats, err := heartbeat.New(c.Heartbeat, w.Store, w.Log)
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	w.App.Go("heartbeat", beats.Run)
	if err := addLedger(w, c); err != nil {
		return err
	}
	handler, err := issuance.NewHandler(c.Issuance, holding{issuer{w.Store, w.Pulse}}, w.Codec, w.Ladder.ParkExchange(), w.Log, w.Registry)
	if err != nil {
		return fmt.Errorf("issuance: %w", err)
	}
	handler.Trace(w.Traces)
	w.App.Go("held grants", handler.NewHeld(holding{issuer{w.Store, w.Pulse}}).Run)
	if err := addOrders(w, c); err != nil {
		return err
	}
	if err := w.Consume(broker.ConsumerOptions{
		Config: c.Issuance.Consumer(), Queue: w.Ladder.Issuance(), Handler: handler.Handle,
		Held: func() bool { return w.Paused(coupon.BrakeIssuance) },
	}); err != nil {
		return err //nolint:wrapcheck // names the queue
	}
	if err := addConsole(w, c); err != nil {
		return err
	}
	return addAPI(w, c.API)
}

// issuer is the store, and what it issues is counted.
type issuer struct {
	*store.Store
	pulse *pulse.Recorder
}

// Issue issues.
func (i issuer) Issue(ctx context.Context, gs []coupon.Grant) ([]coupon.Granted, error) {
	out, err := i.Store.Issue(ctx, gs)
	i.count(out)
	return out, err //nolint:wrapcheck // the store's
}

func (i issuer) count(out []coupon.Granted) {
	fresh := 0
	for k := range out {
		if out[k].Refused == "" && !out[k].Repeated && !out[k].Held {
			fresh++
		}
	}
	i.pulse.Count(pulse.CountIssued, fresh)
}

// holding is the issuer for grants that nobody waits for: while an operator has paused them they are kept.
type holding struct{ issuer }

// Issue issues what is not paused.
func (h holding) Issue(ctx context.Context, gs []coupon.Grant) ([]coupon.Granted, error) {
	out, err := h.IssueOrHold(ctx, gs)
	h.count(out)
	return out, err //nolint:wrapcheck // the store's
}

// IssueHeld issues what was kept.
func (h holding) IssueHeld(ctx context.Context, from uint64, limit int) (uint64, []coupon.Granted, bool, error) {
	next, out, more, err := h.Store.IssueHeld(ctx, from, limit)
	h.count(out)
	return next, out, more, err //nolint:wrapcheck // the store's
}

// addAPI wires the API. It is added last, so it is the first to stop: whatever a request leaves is sent by those before it.
func addAPI(w *worker.Worker, c api.Config) error {
	if c.Address == "" {
		return nil
	}
	aside := api.NewAside(api.AsideDeps{
		Publisher: w.Publisher, Router: w.Route, Encoder: w.Codec, Now: time.Now, Log: w.Log, Registry: w.Registry,
		Paused: func(template uint64, batch string) bool {
			return w.Store.BrakesSeen().Coupon(coupon.BrakeExpiry, template, batch)
		},
	})
	w.App.Go("lazy checks", aside.Run)
	texts, err := text.New(c.Locale)
	if err != nil {
		return fmt.Errorf("api.%w", err)
	}
	server, err := api.New(c, api.Deps{
		Notices: w.Store, Receipts: w.Store, Texts: texts, Signature: gateway.Keys(c.Providers), Sandbox: w.Store,
		Templates: w.Store, Grants: issuer{w.Store, w.Pulse}, Stats: w.Store, Keys: w.Store, Checkout: w.Store, Coupons: w.Store, Wallets: w.Store, Aside: aside, Traces: w.Traces,
	}, w.Log, w.Registry)
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	w.App.Add("api port", func(ctx context.Context) error {
		if err := server.Listen(ctx); err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		w.Log.Info("the API listens", zap.Int("api_port", server.Port()))
		return w.Listens("api", server.Port())
	}, nil)
	w.App.Go("api", server.Run, lifecycle.StopWithin(c.DrainWithin()+time.Second))
	return nil
}

// addOrders wires the events of orders.
func addOrders(w *worker.Worker, c config.Publisher) error {
	if !c.Ladder.Orders {
		return nil
	}
	handler, err := order.NewHandler(c.Order, w.Store, w.Ladder, w.Log, w.Registry)
	if err != nil {
		return fmt.Errorf("order: %w", err)
	}
	return w.Consume(broker.ConsumerOptions{
		Config: c.Order.Consumer(), Queue: w.Ladder.Orders(), Handler: handler.Handle,
	})
}

// addLedger wires statistics and quota return.
func addLedger(w *worker.Worker, c config.Publisher) error {
	counts, err := ledger.New(c.Ledger, w.Store, w.Log, w.Registry)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	w.App.Go("ledger housekeeping", counts.Run)
	if !c.Ladder.Ledger {
		return nil
	}
	back, err := yield.New(c.Yield, w.Store, w.Registry, nil)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	consumer, err := w.EventConsumer(broker.ConsumerOptions{
		Config: c.Ledger.Consumer(), Queue: w.Ladder.Ledger(), Handler: back.Handler(counts.Handle),
	})
	if err != nil {
		return err //nolint:wrapcheck // names the queue
	}
	w.App.Go("ledger, standing back", back.Run) // ends before the consumer
	w.App.Go("ledger seeding", func(ctx context.Context) error { return counts.Seed(ctx, consumer.Ready) })
	return nil
}
