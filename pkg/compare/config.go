package compare

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/compare/report"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/rig"
)

// Config says what to compare.
type Config struct {
	Stack      rig.Stack
	Bin        string // directory of the workers
	Commit     string // that they were built from
	Coupons    int    // of a spike
	Rounds     int
	Mechanisms []string
	Seed       uint64 // of the order in a round, the users, and the ends before the spike
	View       View
}

// View shows how it goes.
type View interface {
	Step(text string) // what is being done now
}

const (
	fewestCoupons, mostCoupons = 100, 100_000 // the wheel holds no more in one process
	mostRounds                 = 9
)

// Validate reports every fault, each beginning with the field's name as the command line has it.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Coupons < fewestCoupons || c.Coupons > mostCoupons {
		bad("coupons: must be between %d and %d, got %d", fewestCoupons, mostCoupons, c.Coupons)
	}
	if c.Rounds < 1 || c.Rounds > mostRounds {
		bad("rounds: must be between 1 and %d, got %d", mostRounds, c.Rounds)
	}
	if len(c.Mechanisms) == 0 {
		bad("mechanisms: must name at least one")
	}
	for i, m := range c.Mechanisms {
		if !slices.Contains(report.Names(), m) {
			bad("mechanisms: must be ladder, zset, wheel or sweep, got %q", m)
		}
		if slices.Contains(c.Mechanisms[:i], m) {
			bad("mechanisms: %s is named twice", m)
		}
	}
	return errors.Join(errs...)
}

// NeedsRedis reports whether one of the mechanisms does.
func (c Config) NeedsRedis() bool { return slices.Contains(c.Mechanisms, config.MechanismZSet) }

// The load beside the spike.
const (
	steadyFor    = 10 * time.Second
	steadyShare  = 10 // a tenth of the spike's
	steadyFewest = 50
	steadyMost   = 2000
)

func (c Config) steady() int { return min(steadyMost, max(steadyFewest, c.Coupons/steadyShare)) }
