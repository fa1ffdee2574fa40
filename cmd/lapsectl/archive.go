package main

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/archive"
	"github.com/lapsehq/lapse/pkg/store"
)

type archiveCommand struct {
	Once   bool          `required:"" help:"One pass, then end: the scheduler says when the next one is."`
	Shard  string        `placeholder:"I/N" help:"Only the I-th of N shares, from 1 on: coupons whose id modulo N is I−1."`
	After  time.Duration `placeholder:"720h" help:"How long a coupon must have been finished, in place of archive.after."`
	Budget time.Duration `default:"1h" help:"The longest pass."`
	JSON   bool          `name:"json" help:"Print one JSON line."`
}

// Help says what it is for.
func (c *archiveCommand) Help() string {
	return `For an outside scheduler (XXL-JOB, a CronJob): moves coupons that were used, expired or voided long ago into the archive, with their
history, and removes old notices, as the expirers do in their quiet hours (archive.window). Any number of them may run at once, beside
expirers too: they share the work without waiting for each other, so --shard is only needed by a scheduler that insists on it. Exit code 0:
done; 1: the time was up before the end, or the outbox is long (archive.max_outbox); 2: it could not run.`
}

// archiveJSON is the one line.
type archiveJSON struct {
	Moved    int    `json:"moved"`   // coupons
	Steps    int    `json:"steps"`   // rows of their history
	Waiting  int    `json:"waiting"` // left: something of theirs is still to be sent, folded or told
	Left     int    `json:"left"`    // left: held by somebody, or changed meanwhile
	Digests  int    `json:"digests"` // old notices removed
	Inbox    int    `json:"inbox"`   // old inbox rows removed
	Complete bool   `json:"complete"`
	Busy     bool   `json:"busy"` // stopped, since the outbox is long
	Shard    string `json:"shard"`
	TookMS   int64  `json:"took_ms"`
}

// Run archives once.
func (c *archiveCommand) Run(ctx context.Context, s *system) error {
	of, rest, err := parseShard(c.Shard)
	if err != nil {
		return err
	}
	if c.Budget < time.Second || c.Budget > 24*time.Hour {
		return fmt.Errorf("--budget: must be between 1s and 24h, got %s", c.Budget)
	}
	cfg, err := s.settings(keyInstallation)
	if err != nil {
		return err
	}
	if c.After != 0 {
		cfg.Archive.After = c.After
		if err := cfg.Archive.Validate(); err != nil {
			return fmt.Errorf("--after: archive.%w", err)
		}
	}
	return s.withStore(ctx, func(db *store.Store) error {
		a, err := archive.New(cfg.Archive, archive.Shard{Part: int(rest), Of: int(of)}, db, zap.NewNop(), prometheus.NewRegistry())
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		began := time.Now()
		r, err := a.Pass(ctx, c.Budget)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		x := archiveJSON{
			Moved: r.Moved, Steps: r.Steps, Waiting: r.Waiting, Left: r.Left, Digests: r.Windows, Inbox: r.Inbox, Complete: r.Complete, Busy: r.Busy,
			Shard: fmt.Sprintf("%d/%d", rest+1, of), TookMS: time.Since(began).Milliseconds(),
		}
		if c.JSON {
			err = s.printLine(x)
		} else {
			err = s.print(fmt.Sprintf("archived %s coupons; %s still wait for something, %s were held; removed %s digests and %s inbox rows; in %s\n",
				grouped(x.Moved), grouped(x.Waiting), grouped(x.Left), grouped(x.Digests), grouped(x.Inbox), ms(float64(x.TookMS))))
		}
		switch {
		case err != nil:
			return err
		case x.Busy:
			return s.miss("more than %d rows wait in the outbox (archive.max_outbox): this is no quiet hour", cfg.Archive.MaxOutbox)
		case !x.Complete:
			return s.miss("the time was up (--budget %s); the next pass goes on", c.Budget)
		}
		return nil
	})
}
