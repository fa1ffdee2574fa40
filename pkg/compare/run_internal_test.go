package compare

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/compare/report"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/rig"
)

func TestEveryFaultOfTheConfigurationIsSaid(t *testing.T) {
	t.Parallel()
	good := Config{Coupons: 20_000, Rounds: 2, Mechanisms: report.Names()}
	require.NoError(t, good.Validate())
	require.True(t, good.NeedsRedis())
	bad := Config{Coupons: 99, Rounds: 10, Mechanisms: []string{"sweep", "cron", "sweep"}}
	err := bad.Validate()
	require.ErrorContains(t, err, "coupons: must be between 100 and 100000, got 99")
	require.ErrorContains(t, err, "rounds: must be between 1 and 9, got 10")
	require.ErrorContains(t, err, `mechanisms: must be ladder, zset, wheel or sweep, got "cron"`)
	require.ErrorContains(t, err, "mechanisms: sweep is named twice")
	require.ErrorContains(t, Config{Coupons: 100, Rounds: 1}.Validate(), "mechanisms: must name at least one")
	require.False(t, bad.NeedsRedis())
}

// Whoever goes first in one round goes last in the next.
func TestTheOrderIsDrawnAndTurned(t *testing.T) {
	t.Parallel()
	orders := make(map[string]bool)
	for seed := range uint64(20) {
		cfg := Config{Mechanisms: report.Names(), Seed: seed}
		for round := 1; round < mostRounds; round += 2 {
			first, second := order(cfg, round), order(cfg, round+1)
			require.Equal(t, first, order(cfg, round), "the seed's")
			require.ElementsMatch(t, report.Names(), first)
			slices.Reverse(second)
			require.Equal(t, first, second)
			orders[fmt.Sprint(first)] = true
		}
	}
	require.Greater(t, len(orders), 10)
	require.Equal(t, []string{"ladder", "zset", "wheel", "sweep"}, report.Names(), "the caller's stay as they are")
}

func TestHearings(t *testing.T) {
	t.Parallel()
	zero := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	now := zero
	e := newEar()
	tell := func(typ, id string, end time.Time) {
		data, err := json.Marshal(map[string]any{"coupon_id": id, "expires_at": end})
		require.NoError(t, err)
		e.hear(audit.Event{Type: typ, Data: data})
	}
	h := e.expect(zero, zero.Add(9*time.Second), 3)
	tell(event.TypeExpired, "1", zero) // before the clock is known
	e.follow(func() time.Time { return now })
	other := e.expect(zero.Add(20*time.Second), zero.Add(20*time.Second), 1)

	now = zero.Add(100 * time.Millisecond)
	tell("coupon.issued.v1", "1", zero)
	tell(event.TypeExpired, "1", zero)
	tell(event.TypeExpired, "1", zero) // again
	tell(event.TypeExpired, "9", zero.Add(10*time.Second))
	e.hear(audit.Event{Type: event.TypeExpired, Data: []byte("{")})
	n, last := h.heard()
	require.Equal(t, 1, n)
	require.Equal(t, now, last)
	require.False(t, closed(h.half))

	now = zero.Add(2 * time.Second)
	tell(event.TypeExpired, "2", zero.Add(1*time.Second))
	require.True(t, closed(h.half))
	tell(event.TypeExpired, "3", zero.Add(9*time.Second)) // early: the audit's matter
	require.Equal(t, []time.Duration{100 * time.Millisecond, time.Second, -7 * time.Second}, h.lateness())
	n, _ = other.heard()
	require.Zero(t, n)
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestCostsAreOfTheirStages(t *testing.T) {
	t.Parallel()
	m := &meter{ask: map[string]func() (rig.Usage, error){"broker": nil}, peak: map[string]float64{"broker": 150}}
	at := func(s, cpu, mib float64) reading {
		return reading{time.Unix(0, int64(s*1e9)), map[string]usage{"broker": {time.Duration(cpu * 1e9), mib}}}
	}
	require.Equal(t, map[string]report.Cost{"broker": {AcceptCPU: 10, DueCPU: 15, WaitCores: 0.125, WaitingMiB: 200, PeakMiB: 150, GrownMiB: 50}},
		m.costs(20_000, at(0, 5, 100), at(4, 7, 130), at(8, 7.5, 140), at(12, 10.5, 120)))
	short := m.costs(20_000, at(0, 5, 100), at(4, 7, 130), at(4.5, 7.5, 90), at(12, 10.5, 120))
	require.Zero(t, short["broker"].WaitCores, "half a second says nothing")
	require.Zero(t, short["broker"].WaitingMiB, "memory that was given back is not of what waits")
}
