package clock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/coupon"
)

// database is the source; its clock is the true time, stepped by step.
type database struct {
	mu       sync.Mutex
	step     time.Duration
	accepted time.Time
	reports  map[string]coupon.ClockReport
	written  int
	err      error
}

func newDatabase() *database { return &database{reports: map[string]coupon.ClockReport{}} }

func (d *database) now() time.Time { return time.Now().Round(0).UTC().Add(time.Hour + d.step) }

func (d *database) stepped(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.step += by
}

func (d *database) accept() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.accepted = d.now()
}

func (d *database) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *database) ReadClock(context.Context) (now, accepted time.Time, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now(), d.accepted, d.err
}

func (d *database) ReportClock(_ context.Context, r coupon.ClockReport) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.At = d.now()
	d.reports[r.Pod] = r
	d.written++
	return d.err
}

func (d *database) ClockReports(context.Context) ([]coupon.ClockReport, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []coupon.ClockReport
	for _, r := range d.reports {
		if d.now().Sub(r.At) < 15*time.Second {
			out = append(out, r)
		}
	}
	return out, d.err
}

func (d *database) of(pod string) coupon.ClockReport {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reports[pod]
}

// process is one process with a clock of its own; asleep, its monotonic clock stands still.
type process struct {
	guard  *clock.Guard
	logs   *observer.ObservedLogs
	reg    *prometheus.Registry
	mu     sync.Mutex
	behind time.Duration
	stop   func()
}

func (p *process) now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Add(-p.behind)
}

// slept tells the process that its monotonic clock stood still for so long.
func (p *process) slept(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.behind += d
}

func startProcess(t *testing.T, db *database, pod string) *process {
	t.Helper()
	level, logs := observer.New(zapcore.InfoLevel)
	p := &process{logs: logs, reg: prometheus.NewRegistry()}
	p.guard = clock.NewGuard(2*time.Second, p.now)
	w := clock.NewWatch(p.guard, db, clock.Options{Pod: pod, Role: "expirer", Now: time.Now, Log: zap.New(level), Registerer: p.reg})
	require.NoError(t, w.Start(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return p
}

// expires tells whether a transaction of this moment would be let.
func (p *process) expires(db *database) bool {
	now, _, _ := db.ReadClock(context.Background())
	return p.guard.Allow(now) == nil
}

// wait lets the watches look a few times.
func wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestTheFleetStopsOnAJumpAndGoesOnByAcceptance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		a, b := startProcess(t, db, "a"), startProcess(t, db, "b")
		defer a.stop()
		defer b.stop()
		wait(10 * time.Second)
		require.True(t, a.expires(db) && b.expires(db))
		require.InDelta(t, time.Hour.Seconds(), db.of("a").Offset.Seconds(), 0.01, "another clock than its own, and it does not matter")

		db.stepped(time.Minute)
		require.False(t, a.expires(db), "at once")
		wait(2 * time.Second)
		require.True(t, db.of("a").Tripped && db.of("b").Tripped, "told within two seconds")
		require.Equal(t, time.Minute, db.of("b").Jump)
		require.Equal(t, 1, a.logs.FilterLevelExact(zapcore.ErrorLevel).Len(), "told once")
		n, err := testutil.GatherAndCount(a.reg, "lapse_clock_tripped", "lapse_clock_offset_seconds", "lapse_clock_jump_seconds")
		require.NoError(t, err)
		require.Equal(t, 3, n)

		wait(time.Hour)
		require.False(t, a.expires(db) || b.expires(db), "time alone does not make it right")
		db.accept()
		wait(2 * time.Second)
		require.True(t, a.expires(db) && b.expires(db), "within two seconds")
		require.False(t, db.of("a").Tripped)
		require.Equal(t, db.accepted, db.of("a").Accepted)

		db.stepped(time.Minute)
		wait(10 * time.Second)
		require.False(t, a.expires(db) || b.expires(db), "an acceptance holds for one jump")
		db.stepped(-time.Minute)
		wait(2 * time.Second)
		require.True(t, a.expires(db) && b.expires(db), "both agree again")
	})
}

// To a process whose machine was suspended the database's clock has jumped, although that is right.
func TestASuspendedProcessGoesOnByAcceptance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		a, b := startProcess(t, db, "a"), startProcess(t, db, "b")
		defer a.stop()
		defer b.stop()
		wait(10 * time.Second)
		a.slept(8 * time.Hour)
		wait(2 * time.Second)
		require.False(t, a.expires(db))
		require.True(t, b.expires(db), "it alone")
		require.InDelta(t, time.Hour.Seconds(), db.of("a").Offset.Seconds(), 0.01, "its own clock shows that the database's is right")
		db.accept()
		wait(2 * time.Second)
		require.True(t, a.expires(db))
		anchored := db.of("b").Anchored
		require.True(t, b.expires(db) && anchored.Equal(b.guard.State().Anchored), "nothing changes for the other")
	})
}

// What an operator accepted is the clock that was seen then. A step after it is another one.
func TestAnAcceptanceDoesNotCoverAStepAfterIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		a := startProcess(t, db, "a")
		defer a.stop()
		wait(10 * time.Second)
		db.stepped(time.Minute)
		wait(3 * time.Second)
		db.accept()
		db.stepped(time.Minute) // before the process hears of it
		wait(10 * time.Second)
		require.False(t, a.expires(db))
		db.accept()
		wait(2 * time.Second)
		require.True(t, a.expires(db))

		// Nor one that the process sees only after the acceptance: a machine that wakes later.
		db.accept()
		a.slept(time.Hour)
		wait(10 * time.Second)
		require.False(t, a.expires(db))
	})
}

// A fresh process would take the first reading for right. While the others have stopped it must not.
func TestAFreshProcessIsHeldWhileTheFleetHasStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		a := startProcess(t, db, "a")
		wait(10 * time.Second)
		db.stepped(time.Hour)
		wait(3 * time.Second)
		b := startProcess(t, db, "b")
		require.False(t, b.expires(db))
		wait(3 * time.Second)
		require.True(t, db.of("b").Tripped)
		a.stop() // a rolling restart: the last one that knew is gone
		wait(time.Minute)
		require.False(t, b.expires(db), "held all the same")
		c := startProcess(t, db, "c")
		wait(3 * time.Second)
		require.False(t, c.expires(db), "and holds the next one")
		db.accept()
		wait(2 * time.Second)
		require.True(t, b.expires(db) && c.expires(db))
		b.stop()
		c.stop()

		// With one that goes on among the others a stopped one is the odd one out.
		wait(time.Minute)
		d, e := startProcess(t, db, "d"), startProcess(t, db, "e")
		defer d.stop()
		defer e.stop()
		wait(10 * time.Second)
		d.slept(time.Hour)
		wait(3 * time.Second)
		f := startProcess(t, db, "f")
		defer f.stop()
		require.True(t, f.expires(db) && e.expires(db) && !d.expires(db))
	})
}

// Processes that start between a jump and the moment when the others tell of it believe the clock, since nothing speaks
// against it; but not for long, and they are no witnesses to each other.
func TestAProcessThatStartsRightAfterAJumpIsStoppedWithTheOthers(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{5 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			db := newDatabase()
			a := startProcess(t, db, "a")
			wait(10*time.Second + 500*time.Millisecond)
			db.stepped(jump)
			b, c := startProcess(t, db, "b"), startProcess(t, db, "c")
			wait(3 * time.Second)
			require.False(t, a.expires(db) || b.expires(db) || c.expires(db))
			a.stop()
			wait(time.Minute)
			require.False(t, b.expires(db) || c.expires(db), "time alone does not make it right")
			db.accept()
			wait(2 * time.Second)
			require.True(t, b.expires(db) && c.expires(db))
			b.stop()
			c.stop()
		})
	}
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		a, b := startProcess(t, db, "a"), startProcess(t, db, "b")
		defer a.stop()
		defer b.stop()
		wait(2 * time.Second)
		db.stepped(time.Hour)
		wait(2 * time.Second)
		require.False(t, a.expires(db) || b.expires(db))
		db.stepped(-time.Hour)
		wait(2 * time.Second)
		require.True(t, a.expires(db) && b.expires(db), "who saw the jump keeps its anchor, however young")

		wait(10 * time.Second)
		c := startProcess(t, db, "c")
		defer c.stop()
		a.slept(time.Hour)
		wait(10 * time.Second)
		require.True(t, !a.expires(db) && b.expires(db) && c.expires(db), "one that knows better goes on")
	})
}

func TestAHeldProcessGoesOnWhenTheOthersDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		a := startProcess(t, db, "a")
		defer a.stop()
		wait(10 * time.Second)
		db.stepped(time.Hour)
		wait(3 * time.Second)
		b := startProcess(t, db, "b")
		defer b.stop()
		db.stepped(-time.Hour)
		wait(5 * time.Second)
		require.True(t, a.expires(db) && b.expires(db))
	})
}

func TestTheWatchReportsSeldomAndOutlivesTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		a := startProcess(t, db, "a")
		defer a.stop()
		wait(time.Minute)
		require.LessOrEqual(t, db.written, 14)
		db.fail(errors.New("away"))
		wait(10 * time.Second)
		require.Equal(t, 1, a.logs.FilterMessage("the clocks could not be compared").Len())
		db.fail(nil)
		wait(2 * time.Second)
		require.Equal(t, 1, a.logs.FilterMessage("the clocks are compared again").Len())
		require.True(t, a.expires(db))
	})
}

// However the database's clock steps and whenever somebody accepts it: what is let lies no further ahead of the clock as it
// was last believed or accepted than the tolerance and the slew.
func TestNothingEarlyWhateverStepsAndAcceptances(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		mono := start
		g := clock.NewGuard(2*time.Second, func() time.Time { return mono })
		step := time.Duration(0)     // of the database's clock, against mono
		believed := time.Duration(0) // the step that a person or the first reading vouched for
		var accepted time.Time
		acceptedStep := time.Duration(0)
		require.NoError(t, g.Allow(mono))
		slewed, all := time.Duration(0), time.Duration(0)
		for range rapid.IntRange(1, 80).Draw(t, "n") {
			pass := time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond
			mono = mono.Add(pass)
			slewed += pass/1000 + time.Microsecond
			all += pass/1000 + time.Microsecond
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				step += time.Duration(rapid.SampledFrom([]int{-100_000, -3000, -1500, 1500, 1900, 2100, 60_000}).Draw(t, "step")) * time.Millisecond
			case 1:
				accepted, acceptedStep = mono.Add(step), step
			case 2:
				if g.Accept(mono, mono.Add(step), accepted) {
					require.LessOrEqual(t, step-acceptedStep, 2*time.Second+all, "only the clock that was accepted, or one behind it")
					believed, slewed = step, 0
				}
			}
			if g.Allow(mono.Add(step)) == nil {
				require.LessOrEqual(t, step-believed, 2*time.Second+slewed)
			}
		}
	})
}
