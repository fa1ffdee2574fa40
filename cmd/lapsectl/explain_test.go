package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
)

func TestExplainAWholeLife(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	id := c.template("--after=1h", "--late-pay=strict", "--late-window=1m", "--quota-back=total_and_user", "--min-spend=900", "--scope=shoes")
	c.ok("grant", "--template", id, "--user=u", "--batch=b")
	_, made := c.issue()
	require.Equal(t, 1, made)
	act := func(o coupon.Order) {
		o.CouponIDs, o.Actor, o.Reason = []uint64{1}, "shop", "because"
		_, out, err := c.store.Act(c.ctx(), o)
		require.NoError(t, err)
		require.Empty(t, out[0].Refused)
	}
	explain := func() (string, explainedJSON) {
		var e explainedJSON
		require.NoError(t, json.Unmarshal([]byte(c.ok("explain", "1", "--json")), &e))
		return c.ok("explain", "1"), e
	}
	act(coupon.Order{Verb: coupon.VerbLock, OrderID: "o1", LockFor: 10 * time.Minute})
	ends := time.Now().Add(3 * time.Hour).Truncate(time.Second)
	act(coupon.Order{Verb: coupon.VerbExtend, EndsAt: ends})

	text, e := explain()
	require.Contains(t, text, "state      locked\n")
	require.Contains(t, text, "trigger    in the outbox, on its way to the broker\nrings      unlock at "+*e.LockUntil+", v1.2\n")
	require.Contains(t, text, "late pay   strict: ")
	require.Contains(t, text, "offer      500 CNY (minor units) off, from 900 CNY (minor units), for shoes\n")
	require.Contains(t, text, "quota      comes back to the total and the user")
	require.Contains(t, text, "lock until "+*e.LockUntil)
	require.Contains(t, text, "end moved from ")
	require.Equal(t, &scheduledJSON{Kind: "unlock", At: *e.LockUntil, State: "outbox", IDs: []string{"v1.2"}}, e.Trigger)
	require.Equal(t, "strict", e.LatePay)
	require.Equal(t, "1m0s", e.LateWindow)
	require.Equal(t, []string{"shoes"}, e.Template.Terms.Scopes)
	require.Equal(t, "o1", *e.History[1].OrderID)
	require.Equal(t, e.LockUntil, e.History[1].LockUntil)
	require.True(t, e.History[2].Moved)
	require.Equal(t, e.History[1].ExpiresAt, e.History[2].Previous)
	require.Equal(t, instant(ends), *e.ExpiresAt)
	c.db.Exec(t, `DELETE FROM outbox`)
	text, e = explain()
	require.Contains(t, text, "trigger    with the broker, or rung already\n")
	require.Equal(t, []string{"v1.2"}, e.Trigger.IDs)

	// Its lock runs out: a reader sees it as unused before a worker has settled it.
	c.db.Exec(t, `UPDATE coupon SET lock_until = '2020-01-02'`)
	text, e = explain()
	require.Contains(t, text, "state      unused; the row still says locked\n")
	require.Equal(t, "unused", e.SeenAs)

	act(coupon.Order{Verb: coupon.VerbRelease, OrderID: "o1", Tombstone: true})
	act(coupon.Order{Verb: coupon.VerbVoid})
	text, e = explain()
	require.Contains(t, text, "orders that are over\n")
	require.Contains(t, text, "  o1     closed  ")
	require.Contains(t, text, "returns    to its template's quota and its user's since ")
	require.NotContains(t, text, "\ntrigger")
	require.Nil(t, e.Trigger)
	require.True(t, e.Return.ToUser)
	require.Equal(t, []string{"o1"}, []string{e.Tombstones[0].OrderID})
	require.True(t, e.Tombstones[0].Closed)

	c.db.Exec(t, `INSERT INTO coupon_archive SELECT c.*, '2026-01-02' FROM coupon c`)
	c.db.Exec(t, `INSERT INTO coupon_history_archive SELECT * FROM coupon_history`)
	c.db.Exec(t, `DELETE FROM coupon`)
	c.db.Exec(t, `DELETE FROM coupon_history`)
	text, archived := explain()
	require.Contains(t, text, "archived   2026-01-02T00:00:00.000Z\n")
	require.Equal(t, e.History, archived.History)
	require.Equal(t, "2026-01-02T00:00:00.000Z", *archived.ArchivedAt)
	require.Equal(t, "b:u:1", *archived.GrantKey)
}
