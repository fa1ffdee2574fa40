package store_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/pulse"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestProcessesTellOfThemselves(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	rs, err := s.Pulses(t.Context())
	require.NoError(t, err)
	require.Empty(t, rs)
	r := pulse.Report{
		Pod: "a.1", Role: "expirer", Version: "v1", Started: time.UnixMilli(1).UTC(), Mode: "full", Counts: map[string]int64{"expired": 3},
		Stages: map[pulse.Stage]pulse.Timing{pulse.Commit: {Count: 2, Mean: time.Second, Max: 2 * time.Second, Calm: time.Millisecond}},
	}
	r.Late[3] = 7
	require.NoError(t, s.PutPulse(t.Context(), r))
	require.NoError(t, s.PutPulse(t.Context(), pulse.Report{Pod: "b.2", Role: "notifier"}))
	d.Exec(t, `INSERT INTO setting (name, value, updated_at) VALUES ('pod.odd', 'not json', UTC_TIMESTAMP(3)), ('stage.odd', '{}', UTC_TIMESTAMP(3))`)
	rs, err = s.Pulses(t.Context())
	require.NoError(t, err)
	require.Len(t, rs, 2)
	require.WithinDuration(t, time.Now(), rs[0].Seen, time.Minute)
	rs[0].Seen = time.Time{}
	require.Equal(t, r, rs[0])
	require.NoError(t, s.DropPulse(t.Context(), "a.1"))
	d.Exec(t, `UPDATE setting SET updated_at = UTC_TIMESTAMP(3) - INTERVAL 25 HOUR WHERE name LIKE 'pod.%' OR name LIKE 'stage.%'`)
	require.NoError(t, s.PrunePods(t.Context()))
	require.EqualValues(t, 0, d.Int(t, `SELECT COUNT(*) FROM setting WHERE name LIKE 'pod.%' OR name LIKE 'stage.%'`))
}

func TestTimesOfStatementsAreTold(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	_, err := s.Pauses(t.Context()) // as in a worker, which reads the brakes with the clock
	require.NoError(t, err)
	reg := prometheus.NewRegistry()
	s.WatchStages(pulse.NewRecorder(time.Now, reg))
	ctx, spent := pulse.Measured(t.Context())
	_, err = s.SweepBatch(ctx, false, time.Now(), coupon.Cursor{}, 10, func(time.Time) error { return nil })
	require.NoError(t, err)
	require.Positive(t, spent())
	seen := map[string]uint64{}
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, m := range families[0].GetMetric() {
		seen[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
	}
	require.Equal(t, map[string]uint64{"publish": 0, "due_wait": 0, "lock": 1, "statement": 1, "commit": 1, "send": 0}, seen)
}

func TestLocksAndPlanAreCounted(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	l, err := s.Locks(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Zero(t, l)
	p, err := s.Plan(t.Context())
	require.NoError(t, err)
	require.Equal(t, []any{time.Duration(0), true, false, time.Duration(0)}, []any{p.Horizon, p.Frontier.IsZero(), p.Held, p.Lag})

	plantUnused(t, d, 1, 3, 3600)
	done(t, s, ask(coupon.VerbLock, "a", 1))
	done(t, s, ask(coupon.VerbLock, "b", 2))
	d.Exec(t, `UPDATE coupon SET lock_until = UTC_TIMESTAMP(3) - INTERVAL 100 SECOND WHERE id = 2`)
	l, err = s.Locks(t.Context(), time.Minute, 10)
	require.NoError(t, err)
	require.Equal(t, [2]int64{2, 1}, [2]int64{l.Locked, l.RunOut})
	require.InDelta(t, 100, l.Oldest.Seconds(), 5)
	require.NoError(t, s.SetHorizon(t.Context(), 2*time.Hour, time.Minute))
	p, err = s.Plan(t.Context())
	require.NoError(t, err)
	require.InDelta(t, 3600, p.Lag.Seconds(), 10, "coupon 3 ends in an hour, and was within the horizon an hour ago")
	require.Empty(t, p.Reminders)
	require.NoError(t, s.SetReminders(t.Context(), remindAt(t, time.Hour, "-30m", "-3s")))
	d.Exec(t, `INSERT INTO setting (name, value, updated_at) VALUES ('frontier.remind-3s', ?, UTC_TIMESTAMP(3))`, time.Now().Add(2*time.Hour).UnixMilli())
	p, err = s.Plan(t.Context())
	require.NoError(t, err)
	require.Len(t, p.Reminders, 2)
	require.Equal(t, "-30m", p.Reminders[0].Offset)
	require.Zero(t, p.Reminders[0].Frontier)
	require.InDelta(t, 1800, p.Reminders[0].Lag.Seconds(), 10, "coupon 3 was within half an hour and the lead half an hour ago")
	require.Zero(t, p.Reminders[1].Lag, "the planner is past it")
	n, err := s.ParkedRows(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, n)
}
