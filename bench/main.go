package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/pkg/rig"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command measures, and writes after every scenario what is known until then.
func command(ctx context.Context, args []string) error {
	cfg, out, merge, err := parse(ctx, args)
	if err != nil {
		return err
	}
	b := &bench{cfg: cfg, view: &view{out: os.Stderr, start: time.Now()}}
	var result Result
	if merge {
		if result, err = readResult(out); err != nil {
			return err
		}
	}
	if err := b.describe(ctx, &result); err != nil {
		return err
	}
	err = b.run(ctx, func(s Scenario) error {
		result.put(s)
		result.judge()
		return result.write(out)
	})
	for _, t := range result.Targets {
		if !t.Reached {
			b.view.step("falls short: %s is %s, target %s %s", t.Name, figure(t.Value), t.Op, figure(t.Bound))
		}
	}
	b.view.step("written to %s", out)
	return errors.Join(err, result.fails())
}

// describe notes what is measured on.
func (b *bench) describe(ctx context.Context, r *Result) (err error) {
	r.At, r.Machine, r.Runs = time.Now().UTC().Truncate(time.Second), Machine{rig.ThisMachine(), runtime.Version()}, b.cfg.Runs
	r.Full = b.cfg.full()
	if err := b.cfg.Stack.Check(ctx); err != nil {
		return err
	}
	if r.Versions, err = b.versions(ctx); err != nil {
		return err
	}
	r.Settings, err = b.settings(ctx)
	return err
}

func parse(ctx context.Context, args []string) (cfg Config, out string, merge bool, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	scenarios := flags.String("scenarios", "", "which, with commas between: "+strings.Join(scenarioNames(), ",")+"; all of them by default")
	subjects := flags.String("subjects", "", "which of a scenario's, with commas between; all of them by default")
	flags.IntVar(&cfg.Size, "size", fullSize, "coupons of a spike; the other sizes are in proportion")
	flags.IntVar(&cfg.Rows, "rows", 0, "rows of the large table; 300 times the size by default")
	flags.IntVar(&cfg.Runs, "runs", 3, "runs of each subject, alternating")
	flags.StringVar(&cfg.Bin, "bin", "bin", "where publisher, expirer and notifier are")
	flags.StringVar(&cfg.Redis, "redis", os.Getenv("TEST_REDIS_URL"), "the rivals' server, redis://[:password@]host:port[/number]")
	flags.DurationVar(&cfg.Lead, "lead", 8*time.Second, "from planting to the first end, beside what planting takes")
	flags.DurationVar(&cfg.Steady, "steady", 0, "how long the steady load lasts; 1m by default, less for small sizes")
	flags.DurationVar(&cfg.CronEvery, "cron-every", time.Minute, "the interval of the cron job among the rivals")
	flags.StringVar(&out, "out", "", "where benchmarks.json and benchmarks.md go; docs by default, .bench for other than the full sizes")
	flags.BoolVar(&merge, "merge", false, "keep what the files there say of other scenarios")
	if err := flags.Parse(args); err != nil {
		return cfg, "", false, err
	}
	if *scenarios != "" {
		cfg.Scenarios = strings.Split(*scenarios, ",")
	}
	if *subjects != "" {
		cfg.Subjects = strings.Split(*subjects, ",")
	}
	cfg.Rows = cmp.Or(cfg.Rows, 300*cfg.Size)
	cfg.token = strings.ToLower(rand.Text() + rand.Text())
	cfg.Steady = cmp.Or(cfg.Steady, min(fullSteady, max(time.Second, time.Duration(cfg.Size/2000)*time.Second)))
	if cfg.Commit = commit(ctx); out == "" {
		out = ".bench"
		if cfg.full() {
			out = "docs"
		}
	}
	if err := cfg.Validate(); err != nil {
		return cfg, "", false, err
	}
	cfg.Stack, err = rig.LoadStack(os.LookupEnv)
	return cfg, out, merge, err
}
