package pulse_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/pulse"
)

type kept struct {
	mu      sync.Mutex
	reports []pulse.Report
	dropped []string
	fails   bool
}

func (k *kept) PutPulse(_ context.Context, r pulse.Report) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails {
		return errors.New("away")
	}
	k.reports = append(k.reports, r)
	return nil
}

func (k *kept) DropPulse(_ context.Context, pod string) error {
	k.dropped = append(k.dropped, pod)
	return nil
}

func (k *kept) last() pulse.Report {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reports[len(k.reports)-1]
}

func (k *kept) late() int64 {
	l := k.last().Late
	return l.Count()
}

func TestAProcessTellsOfTheLastFifteenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := pulse.NewRecorder(time.Now, prometheus.NewRegistry())
		k := &kept{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		teller := pulse.NewTeller(r, k, pulse.Report{Pod: "p", Role: "expirer", Version: "v1"}, zap.NewNop())
		go func() { ended <- teller.Run(ctx) }()
		synctest.Wait()
		require.Equal(t, "expirer", k.last().Role, "at once")
		for range 10 {
			r.Observe(pulse.Statement, 30*time.Millisecond, false)
		}
		r.Count(pulse.CountExpired, 7)
		r.Late(time.Second)
		r.Mode("full")
		end := r.Begin(pulse.Publish)
		<-time.After(pulse.Every)
		synctest.Wait()
		got := k.last()
		require.Equal(t, pulse.Timing{Count: 10, Mean: 30 * time.Millisecond, Max: 30 * time.Millisecond, Calm: 30 * time.Millisecond}, got.Stages[pulse.Statement])
		require.EqualValues(t, 7, got.Counts[pulse.CountExpired])
		require.EqualValues(t, 1, got.Late.Count())
		require.Equal(t, "full", got.Mode)
		require.Equal(t, pulse.Every, got.Stages[pulse.Publish].Mean, "one that hangs is seen before its end")
		end(pulse.Every-time.Second, true)
		require.Zero(t, got.Stages[pulse.Publish].Failed)
		<-time.After(pulse.Every)
		synctest.Wait()
		require.Equal(t, pulse.Timing{Count: 1, Failed: 1, Mean: time.Second, Max: time.Second, Calm: pulse.Publish.Floor()}, k.last().Stages[pulse.Publish])
		<-time.After(pulse.Window)
		synctest.Wait()
		require.Empty(t, k.last().Stages)
		require.Empty(t, k.last().Counts)
		require.EqualValues(t, 1, k.late(), "a minute")
		<-time.After(time.Minute)
		synctest.Wait()
		require.Zero(t, k.late())
		cancel()
		require.NoError(t, <-ended)
		require.Equal(t, []string{"p"}, k.dropped)
	})
}

func TestARowOutlivesItsTrip(t *testing.T) {
	t.Parallel()
	full := pulse.Report{
		Role: "publisher", Version: "v10.20.30-4567-gabcdef0123456789-and-more", Started: time.UnixMilli(1_764_450_000_000).UTC(), Mode: "reduced",
		Stages: map[pulse.Stage]pulse.Timing{}, Counts: map[string]int64{},
	}
	for _, s := range pulse.Stages() {
		full.Stages[s] = pulse.Timing{Count: 9_999_999, Failed: 999_999, Mean: 99 * time.Second, Max: 999 * time.Second, Calm: time.Second}
	}
	for _, what := range []string{pulse.CountIssued, pulse.CountExpired, pulse.CountPublished, pulse.CountNotices, pulse.CountRecovered, pulse.CountSkipped} {
		full.Counts[what] = 9_999_999
	}
	for i := range full.Late {
		full.Late[i] = 9_999_999
	}
	pod, stage, err := full.Rows()
	require.NoError(t, err, "the fullest report fits")
	var back pulse.Report
	require.True(t, back.ReadPod(pod))
	require.True(t, back.ReadStages(stage))
	full.Version = full.Version[:40]
	require.Equal(t, full, back)
	require.False(t, back.ReadPod("{"))
	require.False(t, back.ReadStages("[]"))
}

func TestTheSlowestPartyIsNamed(t *testing.T) {
	t.Parallel()
	took := func(n int64, mean, calm time.Duration) pulse.Timing {
		return pulse.Timing{Count: n, Mean: mean, Max: mean, Calm: calm}
	}
	calm := map[pulse.Stage]pulse.Timing{
		pulse.Publish: took(10, 20*time.Millisecond, 50*time.Millisecond), pulse.Statement: took(100, 29*time.Millisecond, 10*time.Millisecond),
		pulse.DueWait: took(5, time.Minute, 250*time.Millisecond),
	}
	require.Equal(t, pulse.Nobody, pulse.Judge(calm).Party)
	require.Equal(t, pulse.Nobody, pulse.Judge(nil).Party)
	for stage, want := range map[pulse.Stage]pulse.Party{pulse.Publish: pulse.Broker, pulse.Commit: pulse.Database, pulse.Send: pulse.Provider} {
		slow := map[pulse.Stage]pulse.Timing{}
		for s, x := range calm {
			slow[s] = x
		}
		slow[stage] = took(4, 4*stage.Floor(), stage.Floor())
		require.Equal(t, pulse.Verdict{Party: want, Stage: stage, Slowness: 4}, pulse.Judge(slow))
		slow[pulse.Lock] = took(1, time.Second, 20*time.Millisecond)
		require.Equal(t, pulse.Database, pulse.Judge(slow).Party)
		slow[stage] = pulse.Timing{Count: 3, Failed: 2, Calm: stage.Floor()}
		require.Equal(t, want, pulse.Judge(slow).Party, "failing is worse than slow")
	}
	// A process that does little does not outweigh one that does much.
	all, _, _ := pulse.Merge([]pulse.Report{
		{Stages: map[pulse.Stage]pulse.Timing{pulse.Publish: took(1, time.Second, 50*time.Millisecond)}},
		{Stages: map[pulse.Stage]pulse.Timing{pulse.Publish: took(99, 10*time.Millisecond, 50*time.Millisecond)}},
	})
	require.Equal(t, pulse.Nobody, pulse.Judge(all).Party)
	require.Equal(t, time.Second, all[pulse.Publish].Max)
}

func TestLatenessIsBoundedByItsBuckets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := pulse.NewRecorder(nil, prometheus.NewRegistry())
		k := &kept{}
		for range 98 {
			r.Late(5 * time.Millisecond)
		}
		r.Late(8*time.Millisecond + 1)
		r.Late(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- pulse.NewTeller(r, k, pulse.Report{}, zap.NewNop()).Run(ctx) }()
		synctest.Wait()
		cancel()
		require.NoError(t, <-ended)
		l := k.last().Late
		require.Equal(t, 8*time.Millisecond, l.AtMost(0.98))
		require.Equal(t, 16*time.Millisecond, l.AtMost(0.99))
		require.Greater(t, l.AtMost(1), 4*time.Minute)
		require.Zero(t, (&pulse.Lateness{}).AtMost(0.5))
	})
}

func TestTheDatabasesPartIsTakenOff(t *testing.T) {
	t.Parallel()
	ctx, sum := pulse.Measured(t.Context())
	pulse.Spent(ctx, time.Second)
	pulse.Spent(ctx, time.Second)
	pulse.Spent(t.Context(), time.Second)
	require.Equal(t, 2*time.Second, sum())
	var none *pulse.Recorder
	none.Observe(pulse.Send, 1, false)
	none.Count("", 1)
	none.Late(1)
	none.Mode("")
	none.Begin(pulse.Send)(0, false)
}

// Rows that other processes wrote, of this release or another: what can be read is written as it was read.
func FuzzRows(f *testing.F) {
	f.Add(`{"r":"expirer","v":"v1","s":1700000000000,"m":"near","c":{"expired":3},"l":[0,1]}`, `{"settle":[1,0,20,30,10]}`)
	f.Add(`{}`, `{}`)
	f.Add(`{"l":[0,0,0]}`, `{"settle":[1]}`)
	f.Add(`null`, `[]`)
	f.Add(`{"s":-9223372036854775808}`, `{"":[9223372036854775807,0,0,0,0]}`)
	f.Fuzz(func(t *testing.T, pod, stages string) {
		var r, again pulse.Report
		if !r.ReadPod(pod) || !r.ReadStages(stages) || len(r.Version) > 40 {
			return
		}
		for _, timing := range r.Stages {
			for _, d := range []time.Duration{timing.Mean, timing.Max, timing.Calm} {
				if d%time.Microsecond != 0 {
					return // more than three hundred years: no process waits so long
				}
			}
		}
		pod, stages, err := r.Rows()
		if err != nil {
			require.ErrorContains(t, err, "report: must be at most")
			return
		}
		require.True(t, again.ReadPod(pod) && again.ReadStages(stages))
		if len(r.Counts) == 0 {
			r.Counts, again.Counts = nil, nil
		}
		require.Equal(t, r, again)
		_, _, _ = pulse.Merge([]pulse.Report{r, again})
	})
}
