package compare

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/compare/report"
	"github.com/lapsehq/lapse/pkg/rig"
)

const (
	runLeast = 6 * time.Minute       // of one mechanism in one round: what everything in it may wait for
	runEach  = 10 * time.Millisecond // and for each coupon
)

// Run compares. An error says that it could not begin, or was ended; what one mechanism could not do is in the result's errors, and the
// others are run all the same.
func Run(ctx context.Context, cfg Config) (report.Result, error) {
	r := report.Result{
		Began: time.Now().UTC(), Commit: cfg.Commit, Seed: cfg.Seed, Coupons: cfg.Coupons, Steady: cfg.steady(), SteadyForS: steadyFor.Seconds(),
		Rounds: cfg.Rounds, Machine: report.Machine(rig.ThisMachine()), Errors: []string{}, Runs: []report.Run{},
	}
	if err := cfg.Validate(); err != nil {
		return r, err
	}
	if cfg.NeedsRedis() && cfg.Stack.RedisURL.Empty() {
		return r, errors.New("mechanisms: zset needs Redis: scripts/stack up --redis")
	}
	if err := cfg.Stack.Check(ctx); err != nil {
		return r, err
	}
	are, err := cfg.Stack.Versions(ctx)
	if err != nil {
		return r, err
	}
	r.Servers = report.Servers(are)
	for round := 1; round <= cfg.Rounds; round++ {
		for _, mechanism := range order(cfg, round) {
			run, err := bounded(ctx, cfg, round, mechanism)
			if ctx.Err() != nil {
				return r, context.Cause(ctx)
			}
			if err != nil {
				r.Errors = append(r.Errors, fmt.Sprintf("%s, round %d: %s", mechanism, round, err))
				cfg.View.Step("could not be run to its end: " + err.Error())
				continue
			}
			r.Runs = append(r.Runs, run)
		}
	}
	r.TookS = report.Round(time.Since(r.Began).Seconds(), 1)
	r.Settle()
	return r, nil
}

// order of a round: a draw, and the next round the other way round, so that each follows the others as often as it goes before them.
func order(cfg Config, round int) []string {
	names := slices.Clone(cfg.Mechanisms)
	draw := rand.New(rand.NewPCG(cfg.Seed, uint64(round-1)/2))
	draw.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	if round%2 == 0 {
		slices.Reverse(names)
	}
	return names
}

func bounded(ctx context.Context, cfg Config, round int, mechanism string) (report.Run, error) {
	limit := runLeast + time.Duration(cfg.Coupons)*runEach
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it took longer than %s", limit))
	defer cancel()
	return one(ctx, cfg, round, mechanism)
}

// one is a mechanism in a round.
func one(ctx context.Context, cfg Config, round int, mechanism string) (run report.Run, err error) {
	say := func(format string, args ...any) {
		cfg.View.Step(fmt.Sprintf("%d/%d %-6s ", round, cfg.Rounds, mechanism) + fmt.Sprintf(format, args...))
	}
	run = report.Run{Round: round, Mechanism: mechanism, Amiss: []string{}}
	say("publisher and expirer start")
	s, err := open(ctx, cfg, mechanism)
	defer func() { err = errors.Join(err, s.close(ctx, err != nil)) }()
	if err != nil {
		return run, err
	}
	pace, err := s.steady(ctx, &run.Steady)
	if err != nil {
		return run, err
	}
	say("one after the other: p50 %.0f ms, p99 %.0f ms", run.Steady.Late.P50, run.Steady.Late.P99)
	if err := s.spike(ctx, pace, &run); err != nil {
		return run, err
	}
	say("spike: %.0f a second, p99 %.2f s; granted at %.0f a second", run.Spike.PerS, run.Spike.Late.P99/1000, run.AcceptPerS)
	if err := s.kill(ctx, pace, &run.Kill); err != nil {
		return run, err
	}
	if err := s.judge(ctx, &run); err != nil {
		return run, err
	}
	say("killed with %d left: nothing late after %.1f s; early %d, lost %d, twice %d", run.Kill.Left, run.Kill.RecoveryS, run.Early, run.Lost, run.Doubled)
	for _, a := range run.Amiss {
		say("AMISS: %s", a)
	}
	return run, nil
}
