package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig"
)

// What can be killed in mid-run.
const (
	Publisher = "publisher"
	Expirer   = "expirer"
	Notifier  = "notifier"
	Broker    = "broker"
)

// What one coupon can suffer, so that the audit is seen to fail.
const (
	SabotageEarly  = "early"  // expired with everything that belongs to it, before its end
	SabotageLose   = "lose"   // its end moved away
	SabotageDouble = "double" // a second transition, and its event again
)

// Config says what to run.
type Config struct {
	Stack    rig.Stack
	Bin      string        // directory of publisher, expirer and notifier
	Coupons  int           // that end in the run
	Users    int           // that share them, evenly
	Over     time.Duration // within which they end, from the first grant on; longer if granting takes longer
	Waiting  int           // coupons that outlive the run, from 2 min to 400 d
	Kill     string        // "" or what to kill
	Sabotage string        // "" or how to damage a coupon
	Keep     bool          // leave fleet, database and queues
	Seed     uint64        // of the spread of ends
	// Mechanism of delay: ladder, zset, wheel or sweep; "" is ladder.
	Mechanism string
	View      View

	Setup
}

// Setup changes what a demo is run with; the zero value is the demo as anybody sees it.
type Setup struct {
	First   time.Duration                         // from a grant to the earliest end in it; default 5 s, 10 s if the publisher is killed
	Closing time.Duration                         // added to the time from the last end to the closing of the notices' windows
	Ladder  func(*ladder.Config)                  // changes the ladder that is declared; Env must tell the workers the same
	Env     func(worker string) map[string]string // further variables of a worker's environment
	Allow   audit.Rules                           // what the audit lets pass beyond what Kill does
	Logs    string                                // where below .stack/log the workers' logs of a failed run go; default demo-failed
	Locks   bool                                  // locked coupons are the run's own doing: not early
	// During is called when everything is granted and answered; the audit comes after it and after the last end. Inspect is called
	// after the audit, before anything is cleared up.
	During  func(ctx context.Context, s *Stage) error
	Inspect func(ctx context.Context, s *Stage, r *audit.Report) error
}

// View shows how a run goes. Its methods are called from one goroutine at a time.
type View interface {
	Step(text string)    // what is being done now
	Progress(p Progress) // four times a second, from the first grant on
}

// Progress of a run.
type Progress struct {
	audit.Progress
	Coupons int           // to be granted and to end
	Waiting int           // granted, end not come yet; those that outlive the run included
	Due     int           // end has come, not heard of as expired
	Told    int           // coupons that notices count
	Left    time.Duration // until the last end
}

// Defaults and bounds.
const (
	DefaultWaiting = 300
	maxCoupons     = 1_000_000
	minOver        = 5 * time.Second
	maxOver        = 12 * time.Hour
)

// Validate reports every fault, each beginning with the field's name as the command line has it.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Coupons < 1 || c.Coupons > maxCoupons {
		bad("coupons: must be between 1 and %d, got %d", maxCoupons, c.Coupons)
	}
	if c.Users < 1 || c.Users > max(1, c.Coupons) {
		bad("users: must be between 1 and coupons (%d), got %d", c.Coupons, c.Users)
	} else if each := (c.Coupons + c.Users - 1) / c.Users; each > maxItems {
		bad("users: so few that one notice would have to name %d coupons, at most %d; got %d", each, maxItems, c.Users)
	}
	if known := []string{"", config.MechanismLadder, config.MechanismZSet, config.MechanismWheel, config.MechanismSweep}; !slices.Contains(known, c.Mechanism) {
		bad("mechanism: must be ladder, zset, wheel or sweep, got %q", c.Mechanism)
	}
	if c.Mechanism == config.MechanismZSet && c.Stack.RedisURL.Empty() {
		bad("mechanism: zset needs Redis: scripts/stack up --redis")
	}
	if c.Over < minOver || c.Over > maxOver {
		bad("over: must be between %s and %s, got %s", minOver, maxOver, c.Over)
	}
	if c.First < 0 || c.First > c.Over || c.Closing < 0 || c.Closing > maxOver {
		bad("first, closing: must be between 0 and over (%s), and 0 and %s, got %s, %s", c.Over, maxOver, c.First, c.Closing)
	}
	if c.Waiting < 0 || c.Waiting > 10_000 {
		bad("waiting: must be between 0 and 10000, got %d", c.Waiting)
	}
	if kills := []string{"", Publisher, Expirer, Notifier, Broker}; !slices.Contains(kills, c.Kill) {
		bad("kill: must be publisher, expirer, notifier or broker, got %q", c.Kill)
	}
	if damages := []string{"", SabotageEarly, SabotageLose, SabotageDouble}; !slices.Contains(damages, c.Sabotage) {
		bad("sabotage: must be early, lose or double, got %q", c.Sabotage)
	}
	return errors.Join(errs...)
}

// Rules are what the audit allows this run.
func (c Config) Rules() audit.Rules {
	killed := c.Kill != ""
	r := c.Allow
	r.Repeats, r.Sweep, r.Faults, r.OnePerUser = r.Repeats || killed, r.Sweep || killed, r.Faults || c.Kill == Broker, c.Kill != Broker
	if c.Mechanism == config.MechanismSweep {
		r.Sweep = true
	}
	if c.Kill == Broker {
		r.MaxLate = 30 * time.Second
	}
	return r
}
