package compare

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/compare/report"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// site is where a mechanism runs: an installation of its own, with one publisher and one expirer.
type site struct {
	*demo.Installation
	cfg       Config
	ear       *ear
	template  uint64
	draw      *rand.Rand
	publisher *broker.Publisher
	stop      func() error
	sent      int // grants
	parts     int // of the load so far
}

func workers() []string { return []string{demo.Publisher, demo.Expirer} }

// failedLogs is where below the stack's log directory the workers' logs of a failed run are.
const failedLogs = "compare-failed"

// open makes the site. close must be called whatever it returns.
func open(ctx context.Context, cfg Config, mechanism string) (*site, error) {
	s := &site{cfg: cfg, ear: newEar(), draw: rand.New(rand.NewPCG(cfg.Seed, 1))}
	vars := map[string]string{"LAPSE__LOG__LEVEL": "warn"}
	var err error
	s.Installation, err = demo.Install(ctx, demo.InstallationConfig{
		Stack: cfg.Stack, Bin: cfg.Bin, Hear: s.ear.hear, Workers: workers(), Mechanism: mechanism, Env: func(string) map[string]string { return vars },
	})
	if err != nil {
		return s, err
	}
	s.ear.follow(s.Now)
	if s.template, err = s.Template(ctx, "compare"); err != nil {
		return s, err
	}
	if s.publisher, s.stop, err = s.Publisher(ctx); err != nil {
		return s, err
	}
	return s, s.publisher.WaitReady(ctx)
}

// close removes everything of the site; the workers' logs are kept if it failed.
func (s *site) close(ctx context.Context, failed bool) error {
	var errs []error
	if s.stop != nil {
		errs = append(errs, s.stop())
	}
	logs := ""
	if failed && !errors.Is(ctx.Err(), context.Canceled) {
		logs = failedLogs
	}
	kept, err := s.Remove(ctx, logs)
	errs = append(errs, err)
	if kept != "" {
		errs = append(errs, fmt.Errorf("logs of the workers: %s", kept))
	}
	return errors.Join(errs...)
}

const (
	usersOf10    = 3 // users for ten coupons
	grantChunk   = 200
	grantsAtOnce = 4000 // sent and not answered
	pollEvery    = 20 * time.Millisecond
)

// asks for n coupons, which end when end says.
func (s *site) asks(n int, end func(i int) time.Time) []audit.Ask {
	s.parts++
	users := max(1, n*usersOf10/10)
	asks := make([]audit.Ask, n)
	for i := range asks {
		asks[i] = audit.Ask{Key: fmt.Sprintf("compare-%d-%06d", s.parts, i), User: fmt.Sprintf("user-%06d", s.draw.IntN(users)), End: end(i)}
	}
	return asks
}

// grant asks for coupons as an issuer does, and waits until each of them is where it waits for its end. It gives how long that took.
func (s *site) grant(ctx context.Context, asks []audit.Ask) (time.Duration, error) {
	began := time.Now()
	s.Audit().Expect(asks...)
	for chunk := range slices.Chunk(asks, grantChunk) {
		if err := s.Answered(ctx, s.sent+len(chunk)-grantsAtOnce); err != nil {
			return 0, err
		}
		m, err := s.Grants(s.template, chunk)
		if err != nil {
			return 0, err
		}
		if err := errors.Join(s.publisher.Publish(ctx, []broker.Message{m})...); err != nil {
			return 0, fmt.Errorf("sending grants: %w", err)
		}
		s.sent += len(chunk)
	}
	if err := s.Answered(ctx, s.sent); err != nil {
		return 0, err
	}
	err := s.relayed(ctx)
	return time.Since(began), err
}

// relayed waits until every trigger and event is where it is to be: it is a row of the outbox until then.
func (s *site) relayed(ctx context.Context) error {
	return s.until(ctx, func() (bool, error) {
		var waiting bool
		if err := s.DB().QueryRowContext(ctx, "SELECT EXISTS(SELECT 1 FROM outbox)").Scan(&waiting); err != nil {
			return false, fmt.Errorf("asking the database: %w", err)
		}
		return !waiting, nil
	})
}

// until something has come about, or a worker has ended by itself.
func (s *site) until(ctx context.Context, ok func() (bool, error)) error {
	return rig.Until(ctx, pollEvery, func() (bool, error) {
		done, err := ok()
		if !done && err == nil {
			err = s.Fleet().Ended()
		}
		return done, err
	})
}

// transitions of the coupons that ended from one instant to another: how late each was, and how many the sweep found.
func (s *site) transitions(ctx context.Context, from, to time.Time) (late []time.Duration, swept int, err error) {
	rows, err := s.DB().QueryContext(ctx, `SELECT TIMESTAMPDIFF(MICROSECOND, due_at, at), cause = 'sweep' FROM coupon_history
		WHERE to_status = 4 AND due_at >= ? AND due_at <= ?`, from.UTC(), to.UTC())
	if err != nil {
		return nil, 0, fmt.Errorf("reading lateness: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var us int64
		var sweep bool
		if err := rows.Scan(&us, &sweep); err != nil {
			return nil, 0, fmt.Errorf("reading lateness: %w", err)
		}
		late = append(late, time.Duration(us)*time.Microsecond)
		if sweep {
			swept++
		}
	}
	return late, swept, rows.Err()
}

// judge asks the audit what is amiss.
func (s *site) judge(ctx context.Context, run *report.Run) error {
	r, err := s.Audit().Report(ctx)
	if err != nil {
		return err
	}
	run.Tally = report.Tally{
		Early: r.Early, Lost: r.NotExpired + r.MissingEvents, Doubled: r.DuplicateTransitions + r.Details.DoubledEvents, Again: r.DuplicateEventIDs,
	}
	run.Amiss = append(run.Amiss, r.Failures(audit.Rules{Repeats: true, Sweep: true, NoNotices: true})...)
	return nil
}
