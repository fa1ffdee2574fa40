package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/chaos"
	"github.com/lapsehq/lapse/pkg/rig"
)

type chaosCommand struct {
	Seed        []uint64      `default:"1" help:"Of schedule and load; several run one after the other."`
	Coupons     int           `default:"10000" help:"How many coupons are granted."`
	For         time.Duration `default:"90s" help:"How long load and faults last."`
	Faults      []string      `placeholder:"NAME,..." help:"Only these faults, or groups of them; none: the load alone."`
	Regressions string        `placeholder:"FILE" help:"Run the lines of this file, too: seeds that have failed before."`
	Sabotage    string        `placeholder:"WHAT" help:"Damage one coupon before the judge looks, which must then fail."`
	PortBase    int           `default:"21000" help:"First port of the stack that is made for it."`
	KeepStack   bool          `help:"Stop that stack in the end, and leave its data and logs."`
	Plan        bool          `help:"Print the schedule, and do nothing."`
	JSON        string        `name:"json" placeholder:"FILE" help:"Write what was found to this file, - for standard output."`
}

// Help names the faults and the exit codes.
func (c *chaosCommand) Help() string {
	var b strings.Builder
	b.WriteString("It makes a stack of its own beside this checkout's (.stack/chaos, ports from --port-base on), stops and kills its servers, and removes it.\nGroups: " +
		strings.Join(chaos.Groups(), ", ") + ".\nFaults:\n")
	for _, f := range chaos.Faults() {
		fmt.Fprintf(&b, "  %-17s %s\n", f.Name, f.What)
	}
	b.WriteString("Sabotage: " + strings.Join(chaos.Sabotages(), ", ") +
		".\nExit code 0: every promise held, 1: one did not, or a worker died by itself, or a fault could not be injected, 2: it could not run.")
	return b.String()
}

// Run runs the seeds and prints what came of them.
func (c *chaosCommand) Run(ctx context.Context, s *system) error {
	runs, err := c.runs()
	if err != nil {
		return err
	}
	if c.Plan {
		return c.plan(s, runs)
	}
	view := &stepView{out: s.stdout, start: time.Now()}
	if c.JSON == "-" {
		view.out = s.stderr
	}
	own := ownStack{name: "chaos", portBase: c.PortBase, keep: c.KeepStack}
	if slices.ContainsFunc(runs, chaos.Config.NeedsCluster) {
		own.name, own.options = "chaos-cluster", []string{"--nodes", "3"}
	}
	return s.onOwnStack(ctx, own, view, func(stack rig.Stack) error {
		shifted, remove, err := c.shifted(ctx, s, view, runs)
		if err != nil {
			return err
		}
		for i := range runs {
			runs[i].Shifted = shifted
		}
		return errors.Join(c.all(ctx, s, view, stack, runs), remove())
	})
}

// shifted builds the workers whose clock can be another one, if a run needs them.
func (c *chaosCommand) shifted(ctx context.Context, s *system, view *stepView, runs []chaos.Config) (dir string, remove func() error, err error) {
	if !slices.ContainsFunc(runs, chaos.Config.NeedsShifted) {
		return "", func() error { return nil }, nil
	}
	checkout, err := s.checkout()
	if err != nil {
		return "", nil, err
	}
	view.Step("workers whose clock can be another one are built; that takes minutes")
	if dir, err = os.MkdirTemp("", "lapse-shifted-"); err != nil {
		return "", nil, fmt.Errorf("a place for the workers: %w", err)
	}
	remove = func() error { return os.RemoveAll(dir) }
	err = rig.BuildShifted(ctx, checkout, dir, "./cmd/publisher", "./cmd/expirer", "./cmd/notifier")
	if err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return dir, remove, nil
}

// runs are those of the command line, and those of the file.
func (c *chaosCommand) runs() ([]chaos.Config, error) {
	var runs []chaos.Config
	for _, seed := range c.Seed {
		runs = append(runs, chaos.Config{Seed: seed, Coupons: c.Coupons, For: c.For, Faults: c.Faults, Sabotage: c.Sabotage})
	}
	if c.Regressions != "" {
		body, err := os.ReadFile(c.Regressions)
		if err != nil {
			return nil, fmt.Errorf("--regressions: %w", err)
		}
		more, err := chaos.ReadSeeds(string(body))
		if err != nil {
			return nil, fmt.Errorf("--regressions %s: %w", c.Regressions, err)
		}
		runs = append(runs, more...)
	}
	var errs []error
	for _, r := range runs {
		errs = append(errs, r.Validate())
	}
	return runs, errors.Join(errs...)
}

func (c *chaosCommand) plan(s *system, runs []chaos.Config) error {
	for _, r := range runs {
		if _, err := fmt.Fprintf(s.stdout, "seed %d\n", r.Seed); err != nil {
			return fmt.Errorf("printing: %w", err)
		}
		for _, k := range chaos.Schedule(r.Seed, r.For, r.Faults) {
			if _, err := fmt.Fprintln(s.stdout, k); err != nil {
				return fmt.Errorf("printing: %w", err)
			}
		}
	}
	return nil
}

func (c *chaosCommand) all(ctx context.Context, s *system, view *stepView, stack rig.Stack, runs []chaos.Config) error {
	out := chaosJSON{Passed: true, Faults: []chaos.Struck{}}
	var failed error
	for _, r := range runs {
		r.Stack, r.Bin, r.Commit, r.View = stack, s.bin(), commit(), view
		result, err := chaos.Run(ctx, r)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("seed %d could not run to its end: %w", r.Seed, err))
			result.Passed = false
		}
		out.add(result)
		view.told(result)
		if ctx.Err() != nil {
			break
		}
	}
	if err := s.writeJSON(c.JSON, out); err != nil {
		return errors.Join(failed, err)
	}
	switch {
	case failed != nil:
		return failed
	case !out.Passed:
		return errMiss
	default:
		return nil
	}
}

// chaosJSON is what --json writes; docs/chaos.md says what each means. The counts are of all runs.
type chaosJSON struct {
	Passed         bool           `json:"passed"`
	Early          int            `json:"early"`
	Lost           int            `json:"lost"`
	Doubled        int            `json:"doubled"`
	WrongState     int            `json:"wrong_state"`
	NoticesDoubled int            `json:"notices_doubled"`
	Stuck          int            `json:"stuck"`
	Died           int            `json:"died"`
	Recovery       float64        `json:"longest_recovery_s"`
	RecoverOf      string         `json:"longest_recovery_of"`
	Faults         []chaos.Struck `json:"faults"`
	Runs           []chaos.Result `json:"runs"`
}

func (j *chaosJSON) add(r chaos.Result) {
	j.Passed = j.Passed && r.Passed
	j.Early += r.Early
	j.Lost += r.Lost
	j.Doubled += r.Doubled
	j.WrongState += r.WrongState
	j.NoticesDoubled += r.NoticesDoubled
	j.Stuck += r.Stuck
	j.Died += len(r.Died)
	if r.Recovery > j.Recovery {
		j.Recovery, j.RecoverOf = r.Recovery, r.RecoverOf
	}
	for _, f := range r.Faults {
		f.Seed = r.Seed
		j.Faults = append(j.Faults, f)
	}
	r.Faults = nil // they are above
	j.Runs = append(j.Runs, r)
}

// told prints the verdict of a run.
func (v *stepView) told(r chaos.Result) {
	verdict := "PASS"
	if !r.Passed {
		verdict = "FAIL"
	}
	v.Step(fmt.Sprintf("%s: early %d, lost %d, doubled %d, wrong state %d, notices doubled %d, stuck %d; died %d; %d faults, longest recovery %.1f s (%s)",
		verdict, r.Early, r.Lost, r.Doubled, r.WrongState, r.NoticesDoubled, r.Stuck, len(r.Died), len(r.Faults), r.Recovery, r.RecoverOf))
	v.Step(fmt.Sprintf("%d steps of history, %d events (%d heard again), %d notices, calls %v, states %v, latest %.1f s", r.Steps, r.Events, r.EventsAgain, r.Notices, r.Calls,
		r.States, float64(r.LatenessMaxMS)/1000))
	if !r.Passed {
		v.Step("to run it again, or for the list of regressions: " + r.Line())
	}
}
