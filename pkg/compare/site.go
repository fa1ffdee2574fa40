package compare

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/compare/report"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/rig/demo"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
)

// site is where a mechanism runs: an installation of its own, with one publisher and one expirer.
type site struct {
	*demo.Installation
	cfg       Config
	ear       *ear
	template  uint64
	draw      *rand.Rand
	publisher *broker.Publisher
	stop      context.CancelFunc
	stopped   chan error
	sent      int // grants
	parts     int // of the load so far
}

func workers() []string { return []string{demo.Publisher, demo.Expirer} }

// failedLogs is where below the stack's log directory the workers' logs of a failed run are.
const failedLogs = "compare-failed"

// open makes the site. close must be called whatever it returns.
func open(ctx context.Context, cfg Config, mechanism string) (*site, error) {
	s := &site{cfg: cfg, ear: newEar(), draw: rand.New(rand.NewPCG(cfg.Seed, 1))}
	vars := map[string]string{"LAPSE__LOG__LEVEL": "warn", "LAPSE__DELAY__MECHANISM": mechanism}
	if mechanism == config.MechanismZSet {
		vars["LAPSE__DELAY__REDIS__URL"] = cfg.Stack.RedisURL.Reveal()
	}
	var err error
	s.Installation, err = demo.Install(ctx, demo.InstallationConfig{
		Stack: cfg.Stack, Bin: cfg.Bin, Hear: s.ear.hear, Workers: workers(), Env: func(string) map[string]string { return vars },
	})
	if err != nil {
		return s, err
	}
	s.ear.follow(s.Now)
	if s.template, err = s.newTemplate(ctx); err != nil {
		return s, err
	}
	client, err := s.Client()
	if err != nil {
		return s, err
	}
	s.publisher, s.stopped = client.NewPublisher(), make(chan error, 1)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	go func() { s.stopped <- s.publisher.Run(running) }()
	return s, s.publisher.WaitReady(ctx)
}

// close removes everything of the site; the workers' logs are kept if it failed.
func (s *site) close(ctx context.Context, failed bool) error {
	var errs []error
	if s.stop != nil {
		s.stop()
		errs = append(errs, <-s.stopped)
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

// newTemplate makes what coupons are granted from.
func (s *site) newTemplate(ctx context.Context) (uint64, error) {
	own, err := mysql.ParseDSN(s.DSN())
	if err != nil {
		return 0, errors.New("the database's address is malformed")
	}
	c := store.DefaultConfig()
	c.Address, c.User, c.Password, c.Name, c.MaxOpen = own.Addr, own.User, secret.New(own.Passwd), own.DBName, 2
	st, err := store.Open(ctx, c, s.Codec(), zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		return 0, fmt.Errorf("opening the store for a template: %w", err)
	}
	id, err := st.CreateTemplate(ctx, coupon.Template{
		Name: "compare", Rule: coupon.Rule{Kind: coupon.RuleAfter, After: "24h"},
		Terms: coupon.Terms{Value: 1000, Currency: "CNY", Precision: coupon.Exact}, Actor: "lapsectl compare", Reason: "compare",
	})
	return id, errors.Join(err, st.Close())
}

const (
	usersOf10    = 3 // users for ten coupons
	grantChunk   = 200
	grantsAtOnce = 4000 // sent and not answered
	pollEvery    = 20 * time.Millisecond
	grantPatient = time.Minute // without any answer
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
		if err := s.answered(ctx, s.sent+len(chunk)-grantsAtOnce); err != nil {
			return 0, err
		}
		m, err := s.message(chunk)
		if err != nil {
			return 0, err
		}
		if err := errors.Join(s.publisher.Publish(ctx, []broker.Message{m})...); err != nil {
			return 0, fmt.Errorf("sending grants: %w", err)
		}
		s.sent += len(chunk)
	}
	if err := s.answered(ctx, s.sent); err != nil {
		return 0, err
	}
	// What a mechanism is to keep is a row of the outbox until it has taken it.
	err := until(ctx, s.died, func() (bool, error) { return s.none(ctx, "SELECT EXISTS(SELECT 1 FROM outbox)") })
	return time.Since(began), err
}

func (s *site) message(asks []audit.Ask) (broker.Message, error) {
	grants := make([]coupon.Grant, len(asks))
	for i, ask := range asks {
		grants[i] = coupon.Grant{Key: ask.Key, TemplateID: s.template, UserID: ask.User, BatchID: "compare", ExpiresAt: ask.End}
	}
	id := "grants-" + asks[0].Key
	body, err := s.Codec().Grants(id, s.Now(), grants)
	if err != nil {
		return broker.Message{}, err
	}
	return broker.Message{
		Exchange: s.Ladder().Issuance(), Key: event.KeyGrant, ID: id, Body: body, ContentType: event.ContentType, Mandatory: true,
	}, nil
}

// answered waits until so many grants were answered.
func (s *site) answered(ctx context.Context, want int) error {
	last, since := -1, time.Now()
	return until(ctx, s.died, func() (bool, error) {
		have := s.Audit().Answered()
		switch {
		case have >= want:
			return true, nil
		case have > last:
			last, since = have, time.Now()
		case time.Since(since) > grantPatient:
			return false, fmt.Errorf("grants are not answered: %d of %d for %s; refused: %s", have, want, grantPatient, s.Audit().Refusals())
		}
		return false, nil
	})
}

// none reports whether a question that asks for the existence of something is answered with no.
func (s *site) none(ctx context.Context, question string) (bool, error) {
	var there bool
	if err := s.DB().QueryRowContext(ctx, question).Scan(&there); err != nil {
		return false, fmt.Errorf("asking the database: %w", err)
	}
	return !there, nil
}

// died tells of a worker that ended by itself.
func (s *site) died() error {
	select {
	case err := <-s.Fleet().Died():
		return err
	default:
		return nil
	}
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

// until asks again and again whether something has come about.
func until(ctx context.Context, died func() error, ok func() (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		if err := died(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// servers asks what they are.
func servers(ctx context.Context, cfg Config) (report.Servers, error) {
	v, err := cfg.Stack.Versions(ctx)
	s := report.Servers{Broker: v.Broker, Database: v.Database}
	if err != nil || !cfg.NeedsRedis() {
		return s, err
	}
	s.Redis, err = redisVersion(ctx, cfg.Stack)
	return s, err
}
