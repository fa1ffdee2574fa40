package main

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/status"
	"github.com/lapsehq/lapse/pkg/store"
)

type statusCommand struct {
	Watch bool          `short:"w" help:"Show it again and again, until Ctrl-C."`
	Every time.Duration `default:"2s" help:"How often --watch looks."`
	JSON  bool          `name:"json" help:"Print JSON; with --watch one document a line."`
}

// Help says what is looked at and what the exit codes mean.
func (c *statusCommand) Help() string {
	return `One screen of the whole installation, read from the database and the broker alone: workers tell of themselves in the database each five
seconds. Exit code 0: healthy; 1: something needs attention, and is named; 2: it cannot be told.`
}

const (
	statusCount  = status.Counted // rows of one kind counted at most
	fastestWatch = time.Second
	slowestWatch = time.Hour
)

// Run shows the state of everything.
func (c *statusCommand) Run(ctx context.Context, s *system) error {
	if c.Every < fastestWatch || c.Every > slowestWatch {
		return fmt.Errorf("--every: must be between %s and %s, got %s", fastestWatch, slowestWatch, c.Every)
	}
	cfg, err := s.settings(keyInstallation)
	if err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		for {
			x, err := s.status(ctx, db, cfg)
			if c.Watch && ctx.Err() != nil {
				return nil // Ctrl-C ends the watch
			}
			if err != nil {
				return err
			}
			if err := c.show(s, x); err != nil {
				return err
			}
			if !c.Watch {
				if x.Healthy {
					return nil
				}
				return errMiss
			}
			again := time.NewTimer(c.Every)
			select {
			case <-ctx.Done():
				again.Stop()
				return nil
			case <-again.C:
			}
		}
	})
}

func (c *statusCommand) show(s *system, x statusJSON) error {
	if c.JSON && c.Watch {
		return s.printLine(x)
	}
	if c.JSON {
		return s.printJSON(x)
	}
	terminal := s.terminal()
	text := statusScreen{&x}.text(terminal && !s.plain())
	if c.Watch {
		if terminal {
			text = "\x1b[H\x1b[2J" + text
		} else {
			text += "\n"
		}
	}
	return s.print(text)
}

// plain says that colours are not wanted.
func (s *system) plain() bool {
	v, ok := s.lookup("NO_COLOR")
	return ok && v != ""
}

// status reads everything.
func (s *system) status(ctx context.Context, db *store.Store, cfg settings) (statusJSON, error) {
	return status.Read(ctx, db, status.Config{ //nolint:wrapcheck // says what it does
		Installation: cfg.Installation, Mechanism: cfg.Delay.Mechanism, Sweep: cfg.Expiry.Sweep, Horizon: cfg.Ladder.Horizon,
	}, func(ctx context.Context) status.Broker {
		if cfg.Broker.URL.Reveal() == "" {
			return status.Unread("broker.url is not configured")
		}
		client, l, err := s.broker(cfg, func(*ladder.Ladder) ladder.Plan { return ladder.Plan{} })
		if err != nil {
			return status.Unread(err.Error())
		}
		return status.Queues(ctx, client, l.Plan())
	})
}
