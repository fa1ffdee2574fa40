package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// ending grants n coupons of a new template that end in two seconds, after what before does.
func ending(t *testing.T, s *store.Store, n int, before func(template uint64)) {
	t.Helper()
	id, err := s.CreateTemplate(t.Context(), coupon.Template{
		Name: "t", Rule: coupon.Rule{Kind: coupon.RuleAfter, After: "1h"},
		Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact}, Actor: "test", Reason: "test",
	})
	require.NoError(t, err)
	before(id)
	grants := make([]coupon.Grant, n)
	for i := range grants {
		grants[i] = coupon.Grant{
			Issuer: "shop", Key: fmt.Sprintf("%d.%d", id, i), TemplateID: id, UserID: "u", EventID: "e", ExpiresAt: time.Now().Add(2 * time.Second),
		}
	}
	out, err := s.Issue(t.Context(), grants)
	require.NoError(t, err)
	for _, g := range out {
		require.Empty(t, g.Refused, g.Detail)
	}
}

// While all of expiry is paused what comes due waits in its queue, without an attempt, and the worker is ready; afterwards it is settled.
// What belongs to a paused template is acknowledged, and settled by the sweep afterwards. Nothing is lost, and nothing done twice.
func TestPausedExpiryIsCaughtUpWith(t *testing.T) {
	t.Parallel()
	const n = 300
	w := newWard(t)
	p := w.admit(t)
	p.vars["EXPIRY__SWEEP__GRACE"], p.vars["EXPIRY__SWEEP__OUTAGE_GRACE"], p.vars["EXPIRY__SWEEP__INTERVAL"] = "2s", "2s", "200ms"
	worker := p.start()
	ready := func() bool {
		status, _ := worker.get("/readyz")
		return status == http.StatusOK
	}
	testenv.Wait(t, "it is ready", ready)
	s := w.db.Store(t)
	shows := func(what string) func() bool {
		return func() bool {
			_, body := worker.get("/metrics")
			return strings.Contains(body, what)
		}
	}
	expired := func() int64 { return w.db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE to_status = 4`) }
	bc := broker.DefaultConfig()
	bc.URL = w.stack.AMQPURL
	client, err := broker.New(bc, broker.Options{Role: "test"})
	require.NoError(t, err)

	all := coupon.Pause{Brake: coupon.BrakeExpiry}
	_, err = s.Pause(t.Context(), all, "test", "test")
	require.NoError(t, err)
	testenv.Wait(t, "it shows the pause", shows(`lapse_paused{what="expiry"} 1`))
	ending(t, s, n, func(uint64) {})
	testenv.Wait(t, "all triggers are due", func() bool {
		depths, err := client.Depths(t.Context(), []string{w.ladder.DueExact()})
		return err == nil && depths[w.ladder.DueExact()] == n
	})
	require.Zero(t, expired())
	require.True(t, ready(), "a worker that is told to wait is ready")
	_, err = s.Resume(t.Context(), all, "test", "test")
	require.NoError(t, err)
	testenv.Wait(t, "all are expired", func() bool { return expired() == n })
	require.EqualValues(t, n, w.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4 AND version = 2`))
	require.True(t, shows(`lapse_triggers_total{kind="expire",result="retried"} 0`)(), "no attempt was counted")

	some := coupon.Pause{Brake: coupon.BrakeExpiry, Scope: coupon.PauseTemplate}
	ending(t, s, n, func(template uint64) {
		some.ID = strconv.FormatUint(template, 10)
		_, err = s.Pause(t.Context(), some, "test", "test")
		require.NoError(t, err)
		testenv.Wait(t, "it shows the other pause", shows(`lapse_paused{what="expiry"} 1`))
	})
	testenv.Wait(t, "its triggers are acknowledged", shows(fmt.Sprintf(`lapse_triggers_total{kind="expire",result="paused"} %d`, n)))
	ending(t, s, n, func(uint64) {})
	testenv.Wait(t, "those of others are not", func() bool { return expired() == 2*n })
	require.EqualValues(t, n, w.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 1`))
	_, err = s.Resume(t.Context(), some, "test", "test")
	require.NoError(t, err)
	testenv.Wait(t, "the sweep settles it", func() bool { return expired() == 3*n })
	require.EqualValues(t, n, w.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE expire_cause = 'sweep' AND template_id = ?`, some.ID))
	worker.stop()
}
