package chaos

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/chaos/model"
	"github.com/lapsehq/lapse/pkg/rig"
)

// Config says what to run.
type Config struct {
	Stack    rig.Stack     // of the run alone
	Bin      string        // directory of publisher, expirer and notifier
	Seed     uint64        // of schedule and load
	Coupons  int           // granted in all
	For      time.Duration // of the load and the faults
	Faults   []string      // names of faults or groups; none: all of them
	Shifted  string        // directory of the workers of rig.BuildShifted, if NeedsShifted
	Sabotage string        // "" or what to damage before the judge looks: see Sabotages
	Commit   string        // that the binaries were built from
	View     View
}

// View shows how a run goes. Its methods may be called from several goroutines.
type View interface {
	Step(text string)
}

// Defaults and bounds.
const (
	DefaultCoupons = 10_000
	DefaultFor     = 90 * time.Second

	fewestCoupons = 100
	mostCoupons   = 200_000
	leastFor      = 30 * time.Second
	mostFor       = 2 * time.Hour
)

// Validate reports every fault, each beginning with the field's name as the command line has it.
func (c Config) Validate() error {
	var errs []error
	if c.Coupons < fewestCoupons || c.Coupons > mostCoupons {
		errs = append(errs, fmt.Errorf("coupons: must be between %d and %d, got %d", fewestCoupons, mostCoupons, c.Coupons))
	}
	if c.For < leastFor || c.For > mostFor {
		errs = append(errs, fmt.Errorf("for: must be between %s and %s, got %s", leastFor, mostFor, c.For))
	}
	for _, name := range c.Faults {
		if len(choose([]string{name})) == 0 && name != None {
			errs = append(errs, fmt.Errorf("faults: must be of %s, got %q", strings.Join(append(Groups(), Names()...), ", "), name))
		}
	}
	if c.Sabotage != "" && !slices.Contains(Sabotages(), c.Sabotage) {
		errs = append(errs, fmt.Errorf("sabotage: must be of %s, got %q", strings.Join(Sabotages(), ", "), c.Sabotage))
	}
	return errors.Join(errs...)
}

// NeedsCluster says whether a fault needs a broker of three nodes.
func (c Config) NeedsCluster() bool { return c.needs(GroupCluster) }

// NeedsShifted says whether a fault needs workers whose clock can be another one.
func (c Config) NeedsShifted() bool { return c.needs(GroupClock) }

func (c Config) needs(group string) bool {
	return slices.ContainsFunc(choose(c.Faults), func(f Fault) bool { return f.group == group })
}

// Result is what came of a run.
type Result struct {
	Seed     uint64       `json:"seed"`
	Coupons  int          `json:"coupons"`
	For      float64      `json:"for_s"`
	Asked    string       `json:"asked"` // the faults asked for, as on the command line
	Servers  rig.Versions `json:"servers"`
	Commit   string       `json:"commit"`
	Passed   bool         `json:"passed"`
	Died     []string     `json:"died,omitempty"` // workers that ended by themselves
	Findings []string     `json:"findings,omitempty"`

	Early          int `json:"early"`
	Lost           int `json:"lost"`
	Doubled        int `json:"doubled"`
	WrongState     int `json:"wrong_state"`
	NoticesDoubled int `json:"notices_doubled"`
	Stuck          int `json:"stuck"`

	Faults    []Struck `json:"faults"`
	Recovery  float64  `json:"longest_recovery_s"` // from the end of a fault until nothing was late any more
	RecoverOf string   `json:"longest_recovery_of,omitempty"`
	Quiet     float64  `json:"quiet_s"` // from the end of load and faults until everything was settled

	Calls         map[string]int `json:"calls"`           // of the load, by answer
	States        map[string]int `json:"states"`          // coupons, in the end
	Steps         int            `json:"steps"`           // rows of history, each of them replayed
	Events        int            `json:"events"`          // different ones heard
	EventsAgain   int            `json:"events_again"`    // heard more than once under one id, which consumers must know
	Notices       int            `json:"notices"`         // by all channels
	LettersAgain  int            `json:"letters_again"`   // e-mails that came more than once, which is not promised away
	PoisonSent    int            `json:"poison_sent"`     //
	PoisonParked  int            `json:"poison_parked"`   // the rest was answered or dropped
	SweepRescued  int            `json:"sweep_rescued"`   // expired by the sweep
	Transitions   int            `json:"transitions"`     // to expired, by themselves
	LatenessMaxMS int64          `json:"lateness_max_ms"` // of these; faults included
}

// Struck is a fault that was injected.
type Struck struct {
	Seed     uint64  `json:"seed,omitempty"`
	Fault    string  `json:"fault"`
	Target   string  `json:"target,omitempty"`
	At       float64 `json:"at_s"`       // planned
	Began    float64 `json:"began_s"`    // from the start of the load
	Ended    float64 `json:"ended_s"`    // undone
	Recovery float64 `json:"recovery_s"` // from then until nothing was late; below 0: not before the end
	Note     string  `json:"note,omitempty"`
	Error    string  `json:"error,omitempty"` // it could not be injected or undone
}

// Line is the run as a line of a list of regressions.
func (r Result) Line() string {
	return fmt.Sprintf("seed=%d coupons=%d for=%s faults=%s", r.Seed, r.Coupons, time.Duration(r.For*float64(time.Second)), r.Asked)
}

// judge holds the model against the facts.
func (r *Result) judge(promises []model.Promise, f model.Facts) {
	v := model.Judge(promises, f)
	r.Early, r.Lost, r.Doubled = v.Counts[model.Early], v.Counts[model.Lost], v.Counts[model.Doubled]
	r.WrongState, r.NoticesDoubled, r.Stuck = v.Counts[model.WrongState], v.Counts[model.NoticesDoubled], v.Counts[model.Stuck]
	r.Steps, r.States, r.Events, r.EventsAgain = v.Steps, v.States, len(f.Events), v.Repeats
	for _, found := range v.Findings {
		r.Findings = append(r.Findings, found.String())
	}
	r.Calls = make(map[string]int)
	for _, p := range promises {
		r.Calls["grant "+string(p.Answer)]++
		for _, c := range p.Calls {
			r.Calls[string(c.Answer)]++
		}
	}
	faulty := slices.ContainsFunc(r.Faults, func(s Struck) bool { return s.Error != "" })
	r.Passed = v.Clean() && len(r.Died) == 0 && !faulty
}
