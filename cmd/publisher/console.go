package main

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/console"
	"github.com/lapsehq/lapse/pkg/expiry"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/parked"
	"github.com/lapsehq/lapse/pkg/status"
	"github.com/lapsehq/lapse/pkg/worker"
)

// addConsole wires the page for people on the admin port. What it asks the broker and what it replays goes over a client of its own,
// which declares nothing: a message that the broker refuses must not end the relay's channel.
func addConsole(w *worker.Worker, c config.Publisher) error {
	if !c.Console.Enabled {
		return nil
	}
	client, err := broker.New(c.Broker, broker.Options{Role: "console", Plan: ladder.Plan{}, Log: w.Log})
	if err != nil {
		return fmt.Errorf("console: broker: %w", err)
	}
	publisher := client.NewPublisher()
	page, err := console.New(c.Console, console.Deps{
		Store: w.Store, Tokens: c.API.Tokens, Publisher: publisher, Ready: publisher.Ready, Log: w.Log, Now: time.Now,
		Desk: parked.Desk{DB: w.Store, Client: client, Ladder: w.Ladder, Codec: w.Codec},
		Queues: func(ctx context.Context) status.Broker {
			return status.Queues(ctx, client, w.Ladder.Plan())
		},
		Installation: status.Config{
			Installation: c.Installation, Mechanism: c.Delay.Mechanism, Sweep: expiry.DefaultConfig().Sweep, Horizon: c.Ladder.Horizon,
		},
	})
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	w.Admin.Mount(console.Path, page)
	w.App.Go("console publisher", publisher.Run, lifecycle.StopWithin(c.Console.Timeout))
	w.App.Go("console", page.Run, lifecycle.StopWithin(c.Console.Timeout))
	return nil
}
