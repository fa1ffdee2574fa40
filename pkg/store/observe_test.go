package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/bulk"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// observing is an import whose coupons are observed: four of them end within the hour, one has ended, one is locked and one used.
func observing(t testing.TB) (testenv.Database, *store.Store, *importer, map[string]uint64) {
	t.Helper()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	template := create(t, s, nil)
	im := newImporter(t, s, true)
	now := dbNow(t, d).Truncate(time.Second)
	var rows []coupon.ImportRow
	for i := range 4 {
		rows = append(rows, theirs(fmt.Sprint("open", i), template, now.Add(time.Hour)))
	}
	rows = append(rows, theirs("ended", template, now.Add(-time.Minute)), theirs("locked", template, now.Add(time.Hour)), theirs("used", template, now.Add(time.Hour)))
	rows[5].Status, rows[5].OrderID, rows[5].LockUntil = coupon.Locked, "o5", now.Add(30*time.Minute)
	rows[6].Status, rows[6].OrderID, rows[6].UsedAt = coupon.Used, "o6", now.Add(-time.Hour)
	im.take(rows...)
	ids := make(map[string]uint64)
	for _, r := range rows {
		c, _, err := s.CouponByGrantKey(t.Context(), "import:shop", r.Key)
		require.NoError(t, err)
		require.True(t, c.Observed)
		ids[r.Key] = c.ID
	}
	return d, s, im, ids
}

// settledAs rings for a coupon and gives what became of that.
func settledAs(t testing.TB, s *store.Store, id uint64, origin coupon.Origin) coupon.Decision {
	t.Helper()
	_, out, err := s.ExpireBatch(t.Context(), []coupon.Trigger{{Kind: coupon.KindExpire, CouponID: id, At: time.Now(), Origin: origin}}, always)
	require.NoError(t, err)
	return out[0].Decision
}

// unmoved holds that no coupon has moved since it was imported, and that nobody was told of anything.
func unmoved(t testing.TB, d testenv.Database) {
	t.Helper()
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE cause <> 'import'`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon c JOIN coupon_history h ON h.coupon_id = c.id AND h.version = c.version WHERE h.to_status <> c.status`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 1`))
}

// Whoever rings, ladder, reader or sweep: the decision is noted once, and moves nothing.
func TestObservedCouponsOnlyHaveTheirEndsNoted(t *testing.T) {
	t.Parallel()
	for name, ring := range map[string]func(t testing.TB, s *store.Store, id uint64){
		"ladder": func(t testing.TB, s *store.Store, id uint64) {
			t.Helper()
			require.Equal(t, coupon.Decision{Action: coupon.Drop, Reason: coupon.DropObserved}, settledAs(t, s, id, coupon.OriginLadder))
		},
		"lazy": func(t testing.TB, s *store.Store, id uint64) {
			t.Helper()
			require.Equal(t, coupon.Decision{Action: coupon.Drop, Reason: coupon.DropObserved}, settledAs(t, s, id, coupon.OriginLazy))
		},
		"sweep": func(t testing.TB, s *store.Store, _ uint64) {
			t.Helper()
			for want := 1; want >= 0; want-- { // the second time there is nothing to be found
				now, err := s.Now(t.Context())
				require.NoError(t, err)
				swept, err := s.SweepBatch(t.Context(), false, now, coupon.Cursor{}, 100, always)
				require.NoError(t, err)
				require.Len(t, swept.Settled, want)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, s, _, ids := observing(t)
			ring(t, s, ids["ended"])
			unmoved(t, d)
			require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM observation`))
			require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM observation o JOIN coupon c ON c.id = o.coupon_id
				WHERE o.coupon_id = ? AND o.decision = 'expire' AND o.cause = ? AND o.due_at = c.expires_at AND o.decided_at >= o.due_at`, ids["ended"], name))
			require.Equal(t, coupon.DropObserved, settledAs(t, s, ids["ended"], coupon.OriginLadder).Reason)
			require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM observation`), "once")
			require.Equal(t, coupon.Reschedule, func() coupon.Action {
				_, out, err := s.ExpireBatch(t.Context(), []coupon.Trigger{{Kind: coupon.KindExpire, CouponID: ids["open0"], At: ends(t, s, ids["open0"]), Origin: coupon.OriginLadder}}, always)
				require.NoError(t, err)
				return out[0].Decision.Action
			}(), "what has not ended rings again, as any")
			n, _, err := s.Overdue(t.Context(), time.Second)
			require.NoError(t, err)
			require.Zero(t, n)
			seen, err := s.Imported(t.Context(), "shop", []string{"ended", "open0", "nobody"})
			require.NoError(t, err)
			require.Len(t, seen, 2)
			require.True(t, seen["ended"].Decided)
			require.False(t, seen["open0"].Decided)
		})
	}
}

func ends(t testing.TB, s *store.Store, id uint64) time.Time {
	t.Helper()
	c, _, err := s.Coupon(t.Context(), id)
	require.NoError(t, err)
	return c.ExpiresAt
}

// A lock that runs out is noted, and the coupon's end after it.
func TestObservedLocksRunOutAndEnd(t *testing.T) {
	t.Parallel()
	d, s, _, ids := observing(t)
	id := ids["locked"]
	d.Exec(t, `UPDATE coupon SET lock_until = `+whole(-10)+` WHERE id = ?`, id)
	d.Exec(t, `UPDATE coupon_history SET lock_until = `+whole(-10)+` WHERE coupon_id = ? AND version = 2`, id)
	d.Exec(t, `DELETE FROM outbox`)
	require.Equal(t, coupon.DropObserved, settledAs(t, s, id, coupon.OriginLadder).Reason)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM observation WHERE coupon_id = ? AND decision = 'unlock'`, id))
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE id = ? AND status = 2 AND lock_until = due_at`, id), "it is looked at next at its end")
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM outbox o JOIN coupon c ON c.id = o.coupon_id WHERE o.lane = 0 AND o.routing_key = 'unlock' AND o.deliver_at = c.due_at`))

	d.Exec(t, `UPDATE coupon SET expires_at = `+whole(-5)+`, due_at = `+whole(-5)+`, lock_until = `+whole(-5)+` WHERE id = ?`, id)
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	swept, err := s.SweepBatch(t.Context(), true, now, coupon.Cursor{}, 100, always)
	require.NoError(t, err)
	require.Len(t, swept.Settled, 1)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM observation WHERE coupon_id = ? AND decision = 'expire' AND cause = 'lock'`, id))
	swept, err = s.SweepBatch(t.Context(), true, now.Add(time.Hour), coupon.Cursor{}, 100, always)
	require.NoError(t, err)
	require.Empty(t, swept.Settled)
	unmoved(t, d)
}

// Nothing moves what is observed, and users are shown nothing of it.
func TestObservedCouponsAreNobodysHere(t *testing.T) {
	t.Parallel()
	d, s, _, ids := observing(t)
	for _, verb := range coupon.Verbs() {
		for key, id := range ids {
			o := ask(verb, "o6", id)
			switch verb {
			case coupon.VerbExtend, coupon.VerbReinstate:
				o = extend(id, time.Now().Add(48*time.Hour).UTC().Truncate(time.Second))
				o.Verb = verb
			case coupon.VerbVoid:
				o = coupon.Order{Verb: verb, CouponIDs: []uint64{id}, Actor: "a", Reason: "r", BreakLock: true}
			case coupon.VerbLock, coupon.VerbRenew:
				o.LockFor = time.Hour
			case coupon.VerbRedeem, coupon.VerbRelease, coupon.VerbRefund:
			}
			_, out, err := s.Act(t.Context(), o)
			require.NoError(t, err)
			require.Equal(t, coupon.CodeObserved, out[0].Refused, "%s %s", verb, key)
			require.NotEmpty(t, out[0].Detail)
		}
	}
	unmoved(t, d)
	require.ErrorContains(t, s.MigrateDownTo(t.Context(), 7), "1048", "a schema without observed coupons would make them real")
	a := bulkAsk(coupon.VerbVoid)
	a.Batch = "import.shop"
	b, err := bulk.New(bulkConfig(), "me", s)
	require.NoError(t, err)
	found, err := b.Look(t.Context(), &a, func(int) {})
	require.NoError(t, err)
	require.Zero(t, found.Changes())
	require.EqualValues(t, len(ids), found.Sums.Count(string(coupon.CodeObserved)))

	page, err := s.Wallet(t.Context(), coupon.WalletQuery{UserID: "u-open0", Limit: 10})
	require.NoError(t, err)
	require.Empty(t, page.Coupons)
	cs, _, _, err := s.Usable(t.Context(), "u-open0", 10)
	require.NoError(t, err)
	require.Empty(t, cs)
	sum, err := s.WalletSummary(t.Context(), "u-open0", time.Hour)
	require.NoError(t, err)
	require.Zero(t, sum.Usable)
	c, now, err := s.Coupon(t.Context(), ids["open0"])
	require.NoError(t, err, "who asks by its id is shown it")
	require.Equal(t, coupon.CodeObserved, coupon.Usable(c.Row, "", now))
	remind, err := s.RemindPage(t.Context(), coupon.Offset{Name: "-1d", Before: 24 * time.Hour}, time.UTC, coupon.Never, coupon.Cursor{}, 100)
	require.NoError(t, err)
	require.NotZero(t, remind.Rows)
	require.Empty(t, remind.Expiring)
}

// From the cut-over on they are real: what has ended expires, and is told of; verbs move the others.
func TestImportCutOverAndBackOut(t *testing.T) {
	t.Parallel()
	d, s, im, ids := observing(t)
	settledAs(t, s, ids["ended"], coupon.OriginLadder)
	d.Exec(t, `DELETE FROM outbox`)
	before := d.Int(t, `SELECT COUNT(*) FROM coupon_history`)
	im.place = 100
	walk := func(step func(h coupon.OperationHold) (coupon.ImportProgress, error)) (rows int64) {
		im.claim()
		im.place++
		for calls := 1; ; calls++ {
			p, err := step(im.h)
			require.NoError(t, err)
			if p.Done {
				require.Greater(t, calls, 2)
				return p.Rows
			}
		}
	}
	require.ErrorIs(t, s.SetImportMode(t.Context(), "nobody", false), coupon.ErrNotFound)
	require.NoError(t, s.SetImportMode(t.Context(), "shop", false))
	require.EqualValues(t, 7, walk(func(h coupon.OperationHold) (coupon.ImportProgress, error) {
		return s.ImportOver(t.Context(), h, "shop", false, 3)
	}))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE observed <> 0`)+d.Int(t, `SELECT COUNT(*) FROM observation`))
	require.Equal(t, before, d.Int(t, `SELECT COUNT(*) FROM coupon_history`))
	chained(t, d)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND routing_key = 'expire' AND coupon_id = ?`, ids["ended"]), "it rings at once")
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM outbox`), "and the lock's, whose trigger may have gone")
	require.Equal(t, coupon.Expire, settledAs(t, s, ids["ended"], coupon.OriginLadder).Action)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.expired'`))
	lock := ask(coupon.VerbLock, "here", ids["open1"])
	lock.LockFor = time.Hour
	done(t, s, lock)
	done(t, s, ask(coupon.VerbRedeem, "o5", ids["locked"]))

	require.NoError(t, s.SetImportMode(t.Context(), "shop", true))
	moved := map[string]coupon.Status{}
	require.EqualValues(t, 7, walk(func(h coupon.OperationHold) (coupon.ImportProgress, error) {
		cs, p, err := s.ImportBack(t.Context(), h, "shop", 3)
		for _, c := range cs {
			moved[c.Key] = c.Status
		}
		return p, err
	}))
	require.Equal(t, map[string]coupon.Status{"ended": coupon.Expired, "open1": coupon.Locked, "locked": coupon.Used}, moved)
	require.EqualValues(t, 7, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE observed = 1`))
	refused(t, s, ask(coupon.VerbRedeem, "here", ids["open1"]), coupon.CodeObserved)
}
