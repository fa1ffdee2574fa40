package store_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// transitions gives the counters of transitions by their labels.
func transitions(t testing.TB, reg prometheus.Gatherer) map[string]int {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	all := make(map[string]int)
	for _, f := range families {
		if f.GetName() != "lapse_transitions_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			label := make(map[string]string)
			for _, l := range m.GetLabel() {
				label[l.GetName()] = l.GetValue()
			}
			all[strings.Join([]string{label["from"], label["to"], label["cause"], label["result"]}, " ")] = int(m.GetCounter().GetValue())
		}
	}
	return all
}

// Whatever moves a coupon is counted once it is committed, in a series that was there before.
func TestEveryCommittedTransitionIsCounted(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	reg := prometheus.NewRegistry()
	s, err := open(t, d.Config, reg)
	require.NoError(t, err)
	before := transitions(t, reg)
	want := make(map[string]int)
	for k, n := range before {
		require.Zero(t, n, k)
		want[k] = 0
	}

	id, err := s.CreateTemplate(t.Context(), weekly())
	require.NoError(t, err)
	granted, err := s.Issue(t.Context(), []coupon.Grant{grant(id, "u", "a"), grant(id, "u", "a"), grant(id, "u", "b")})
	require.NoError(t, err)
	want["none unused grant ok"] = 2

	a, b := granted[0].CouponID, granted[2].CouponID
	done(t, s, ask(coupon.VerbLock, "o1", a, b))
	repeated(t, s, ask(coupon.VerbLock, "o1", a))
	refused(t, s, ask(coupon.VerbLock, "o2", a), coupon.CodeLockedByOther)
	renew := ask(coupon.VerbRenew, "o1", a)
	renew.LockFor = 2 * time.Hour
	done(t, s, renew)
	done(t, s, ask(coupon.VerbRedeem, "o1", a))
	done(t, s, ask(coupon.VerbRefund, "o1", a))
	done(t, s, ask(coupon.VerbVoid, "", a))
	done(t, s, ask(coupon.VerbRelease, "o1", b))
	want["unused locked order ok"] = 2
	want["locked locked order ok"] = 1
	want["locked used order ok"] = 1
	want["used unused refund ok"] = 1
	want["unused voided admin ok"] = 1
	want["locked unused order ok"] = 1

	plantLock(t, d, 1001, whole(3600), whole(-5))
	done(t, s, ask(coupon.VerbLock, "o3", 1001)) // two steps
	want["locked unused lock ok"]++
	want["unused locked order ok"]++

	plantUnused(t, d, 1011, 5, -60)
	_, _, err = s.ExpireBatch(t.Context(), triggersFor(1011, 5, coupon.OriginLadder), func(time.Time) error { return errors.New("not now") })
	require.Error(t, err)
	require.Equal(t, want, transitions(t, reg), "what was rolled back is not counted")
	_, _, err = s.ExpireBatch(t.Context(), triggersFor(1011, 2, coupon.OriginLadder), always)
	require.NoError(t, err)
	_, _, err = s.ExpireBatch(t.Context(), triggersFor(1011, 3, coupon.OriginLazy), always)
	require.NoError(t, err)
	swept, err := s.SweepBatch(t.Context(), false, time.Now().UTC(), coupon.Cursor{}, 10, always)
	require.NoError(t, err)
	require.Len(t, swept.Settled, 2)
	want["unused expired ladder ok"] = 2
	want["unused expired lazy ok"] = 1
	want["unused expired sweep ok"] = 2
	require.Equal(t, want, transitions(t, reg))
}
