package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal notes what happens, in order.
type journal struct {
	mu      sync.Mutex
	entries []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, fmt.Sprintf(format, args...))
}

func (j *journal) list() []string {
	j.mu.Lock()
	defer j.mu.Unlock()

	return append([]string(nil), j.entries...)
}

// noted returns a function that notes its name and returns err.
func (j *journal) noted(name string, err error) lifecycle.Func {
	return func(context.Context) error {
		j.add("%s", name)

		return err
	}
}

// loop returns a loop that notes its begin and end and ends with its context.
func (j *journal) loop(name string) lifecycle.Func {
	return func(ctx context.Context) error {
		j.add("%s begins", name)
		<-ctx.Done()
		j.add("%s ends, stopping=%t", name, lifecycle.Stopping(ctx))

		return ctx.Err()
	}
}

func TestRunStartsInOrderAndStopsInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		app := lifecycle.New(lifecycle.Options{})
		app.Add("database", j.noted("database up", nil), j.noted("database down", nil))
		app.Go("relay", j.loop("relay"))
		app.Add("nothing", nil, nil)
		app.Add("consumer", j.noted("consumer up", nil), j.noted("consumer down", nil))
		require.EqualError(t, app.Ready(), "not started")

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- app.Run(ctx) }()
		synctest.Wait()
		require.NoError(t, app.Ready())
		cancel()
		require.NoError(t, <-done)
		require.EqualError(t, app.Ready(), "stopped")
		require.Subset(t, j.list(), []string{"relay begins"})
		var rest []string
		for _, e := range j.list() {
			if e != "relay begins" { // its goroutine may come to it after the next start
				rest = append(rest, e)
			}
		}
		require.Equal(t, []string{"database up", "consumer up", "consumer down", "relay ends, stopping=true", "database down"}, rest)
	})
}

func TestReadinessGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := lifecycle.New(lifecycle.Options{Propagate: 5 * time.Second})
		var j journal
		began := time.Now()
		app.Add("server", nil, func(context.Context) error {
			j.add("server stops while %v", app.Ready())

			return nil
		})
		require.NoError(t, app.Start(t.Context()))
		stopped := make(chan error, 1)
		go func() { stopped <- app.Stop(t.Context()) }()
		synctest.Wait()
		require.EqualError(t, app.Ready(), "stopping", "false at once, while the server still serves")
		require.Empty(t, j.list(), "the server was not asked to stop yet")
		require.NoError(t, <-stopped)
		require.Equal(t, []string{"server stops while stopping"}, j.list())
		require.Equal(t, 5*time.Second, time.Since(began))
	})
}

func TestFailedStartStopsWhatStarted(t *testing.T) {
	var j journal
	boom, jam := errors.New("boom"), errors.New("jam")
	app := lifecycle.New(lifecycle.Options{})
	app.Add("a", j.noted("a up", nil), j.noted("a down", jam))
	app.Add("b", j.noted("b up", boom), j.noted("b down", nil))
	app.Add("c", j.noted("c up", nil), j.noted("c down", nil))
	err := app.Run(t.Context())
	require.ErrorIs(t, err, boom)
	require.ErrorIs(t, err, jam)
	require.EqualError(t, err, "starting b: boom\nstopping a: jam")
	require.Equal(t, []string{"a up", "b up", "a down"}, j.list())
	require.ErrorIs(t, app.Start(t.Context()), lifecycle.ErrStopped)
}

func TestStopJoinsAndNamesEveryFailure(t *testing.T) {
	var j journal
	app := lifecycle.New(lifecycle.Options{})
	app.Add("a", nil, j.noted("a down", errors.New("one")))
	app.Add("b", nil, j.noted("b down", nil))
	app.Add("c", nil, j.noted("c down", errors.New("three")))
	require.NoError(t, app.Start(t.Context()))
	err := app.Stop(t.Context())
	require.EqualError(t, err, "stopping c: three\nstopping a: one")
	require.Equal(t, err, app.Stop(t.Context()), "the same answer again")
	require.Equal(t, []string{"c down", "b down", "a down"}, j.list(), "a failure does not keep the others from stopping")
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		app := lifecycle.New(lifecycle.Options{StopWithin: time.Minute})
		obeys := func(ctx context.Context) error {
			<-ctx.Done()

			return ctx.Err()
		}
		hangs := func(context.Context) error {
			<-release

			return nil
		}
		app.Add("obeys", nil, obeys, lifecycle.StopWithin(2*time.Second))
		app.Add("hangs", nil, hangs, lifecycle.StopWithin(3*time.Second))
		app.Go("deaf", hangs, lifecycle.StopWithin(4*time.Second))
		require.NoError(t, app.Start(t.Context()))
		require.Equal(t, 10*time.Second+500*time.Millisecond, app.StopsWithin())
		began := time.Now()
		err := app.Stop(t.Context())
		require.EqualError(t, err, "stopping deaf: not done within 4s (context deadline exceeded)\n"+
			"stopping hangs: not done within 3s, and did not return: left behind\n"+
			"stopping obeys: not done within 2s (context deadline exceeded)")
		require.Equal(t, 9*time.Second+500*time.Millisecond, time.Since(began))
		close(release)
		synctest.Wait()

		slow := lifecycle.New(lifecycle.Options{})
		slow.Add("slow", obeys, nil, lifecycle.StartWithin(time.Second))
		require.EqualError(t, slow.Start(t.Context()), "starting slow: not done within 1s (context deadline exceeded)")
	})
}

func TestLoopThatEndsStopsTheApp(t *testing.T) {
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		returned error
		want     string
	}{
		"with an error": {boom, "relay: boom"},
		"without one":   {nil, "relay: returned before it was asked to"},
	} {
		t.Run(name, func(t *testing.T) {
			var j journal
			trigger := make(chan struct{})
			app := lifecycle.New(lifecycle.Options{})
			app.Add("database", nil, j.noted("database down", nil))
			app.Go("relay", func(context.Context) error {
				<-trigger

				return test.returned
			})
			app.Go("other", j.loop("other"))
			done := make(chan error, 1)
			go func() { done <- app.Run(t.Context()) }()
			close(trigger)
			err := <-done
			require.ErrorContains(t, err, test.want)
			require.Contains(t, j.list(), "database down")
			if test.returned != nil {
				require.ErrorIs(t, err, boom)
			}
		})
	}
}

func TestErrorAfterTheStopIsReported(t *testing.T) {
	app := lifecycle.New(lifecycle.Options{})
	app.Go("relay", func(ctx context.Context) error {
		<-ctx.Done()

		return errors.New("could not give back the lease")
	})
	require.NoError(t, app.Start(t.Context()))
	require.EqualError(t, app.Stop(t.Context()), "stopping relay: could not give back the lease")
}

func TestStopBeforeStart(t *testing.T) {
	var j journal
	app := lifecycle.New(lifecycle.Options{})
	app.Add("a", j.noted("up", nil), j.noted("down", nil))
	require.NoError(t, app.Stop(t.Context()))
	require.NoError(t, app.Stop(t.Context()))
	require.ErrorIs(t, app.Start(t.Context()), lifecycle.ErrStopped)
	require.ErrorIs(t, app.Run(t.Context()), lifecycle.ErrStopped)
	require.Empty(t, j.list())
}

func TestStopWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		app := lifecycle.New(lifecycle.Options{})
		app.Add("a", j.noted("a up", nil), j.noted("a down", nil))
		var cause error
		app.Add("b", func(ctx context.Context) error {
			<-ctx.Done()
			cause = context.Cause(ctx)

			return ctx.Err()
		}, j.noted("b down", nil))
		done := make(chan error, 1)
		go func() { done <- app.Run(t.Context()) }()
		synctest.Wait()
		require.EqualError(t, app.Ready(), "starting")
		require.NoError(t, app.Stop(t.Context()))
		require.NoError(t, <-done)
		require.ErrorIs(t, cause, lifecycle.ErrStop)
		require.Equal(t, []string{"a up", "a down"}, j.list())
	})
}

func TestStopping(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	require.False(t, lifecycle.Stopping(ctx))
	cancel()
	require.False(t, lifecycle.Stopping(ctx), "given up, not stopped")
	stopped, stop := context.WithCancelCause(t.Context())
	stop(lifecycle.ErrStop)
	require.True(t, lifecycle.Stopping(stopped))
}

func TestSignalIsTheLoggedCause(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	ctx, release := lifecycle.Signals(t.Context())
	defer release()
	app := lifecycle.New(lifecycle.Options{Logger: zap.New(core)})
	app.Add("kill", func(context.Context) error { return syscall.Kill(syscall.Getpid(), syscall.SIGTERM) }, nil)
	require.NoError(t, app.Run(ctx))
	require.Contains(t, logs.All()[logs.Len()-1].ContextMap()["cause"], "terminated")
}

// TestStress starts and stops from many sides at once: whatever the interleaving, every start is paired with one stop.
func TestStress(t *testing.T) {
	for range 300 {
		stress(t)
	}
}

func stress(t *testing.T) {
	t.Helper()
	var mu sync.Mutex
	up := map[string]int{}
	app := lifecycle.New(lifecycle.Options{})
	for _, name := range []string{"a", "b", "c"} {
		count := func(by int) lifecycle.Func {
			return func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				up[name] += by

				return nil
			}
		}
		app.Add(name, count(1), count(-1))
		app.Go("loop "+name, func(ctx context.Context) error {
			<-ctx.Done()

			return ctx.Err()
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { _ = app.Run(ctx) })
		wg.Go(func() { _ = app.Start(ctx) })
		wg.Go(func() { _ = app.Ready() })
		wg.Go(func() { _ = app.Stop(context.WithoutCancel(ctx)) })
		wg.Go(cancel)
	}
	wg.Wait()
	require.NoError(t, app.Stop(t.Context()))
	require.EqualError(t, app.Ready(), "stopped")
	for name, n := range up {
		require.Zero(t, n, name)
	}
}
