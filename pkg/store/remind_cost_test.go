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

// Verbs read all of their settings at once: reminders cost them no statement, set or not, except for rare refunds.
func TestRemindersCostVerbsNoStatement(t *testing.T) {
	t.Parallel()
	count := func(r coupon.Reminders) map[string]uint64 {
		d := testenv.NewDatabase(t)
		s := d.Store(t)
		require.NoError(t, s.SetHorizon(t.Context(), time.Hour, time.Minute))
		require.NoError(t, s.SetReminders(t.Context(), r))
		template := create(t, s, func(t *coupon.Template) { t.Rule = coupon.Rule{Kind: coupon.RuleAfter, After: "2h"} })
		reg := prometheus.NewRegistry()
		s.WatchStages(pulse.NewRecorder(time.Now, reg))
		var before uint64
		spent := func() uint64 {
			families, err := reg.Gather()
			require.NoError(t, err)
			var sum uint64
			for _, m := range families[0].GetMetric() {
				if stage := m.GetLabel()[0].GetValue(); stage == string(pulse.Lock) || stage == string(pulse.Statement) {
					sum += m.GetHistogram().GetSampleCount()
				}
			}
			n := sum - before
			before = sum
			return n
		}
		out := map[string]uint64{}
		fresh := func() { // as in a worker, which reads the brakes with the clock
			_, err := s.Pauses(t.Context())
			require.NoError(t, err)
			spent()
		}
		fresh()
		issueOne(t, s, grant(template, "u", "k"))
		out["the first grant"] = spent() // reads the template's terms
		fresh()
		id := issueOne(t, s, grant(template, "u", "l")).CouponID
		out["grant"] = spent()
		for _, verb := range []coupon.Verb{coupon.VerbLock, coupon.VerbRelease, coupon.VerbLock, coupon.VerbRedeem, coupon.VerbRefund} {
			fresh()
			done(t, s, ask(verb, "o", id))
			out[string(verb)] = spent()
		}
		return out
	}
	none := count(coupon.Reminders{})
	require.Equal(t, map[string]uint64{"the first grant": 11, "grant": 10, "lock": 6, "redeem": 6, "release": 7, "refund": 7}, none)
	require.Equal(t, none, count(remindAt(t, time.Hour, "-90m", "-30m")))
	// A refund asks since when the coupon was held, if a reminder's instant has passed.
	none["refund"]++
	require.Equal(t, none, count(remindAt(t, time.Hour, "-3h", "-30m")))
}
