package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// importer is an import under way.
type importer struct {
	testing.TB
	s     *store.Store
	a     coupon.ImportAsk
	h     coupon.OperationHold
	place int
}

func newImporter(t testing.TB, s *store.Store, observe bool) *importer {
	t.Helper()
	im := &importer{TB: t, s: s, a: coupon.ImportAsk{Name: "shop", Batch: "import.shop", Observe: observe, Actor: "amy", Reason: "moving in"}}
	require.NoError(t, im.a.Validate())
	require.NoError(t, s.RegisterImport(t.Context(), "shop", observe))
	im.claim()
	return im
}

func (im *importer) claim() {
	im.Helper()
	op, err := im.s.ClaimOperation(im.Context(), "me", "import", [32]byte{byte(im.place), 1}, []byte("{}"), true, time.Minute)
	require.NoError(im, err)
	im.h = coupon.OperationHold{Owner: "me", ID: op.ID, Epoch: op.Epoch, Lease: time.Minute}
}

// take takes rows over and gives what became of each.
func (im *importer) take(rows ...coupon.ImportRow) []string {
	im.Helper()
	im.place++
	out, p, err := im.s.ImportBatch(im.Context(), im.h, &im.a, rows, fmt.Sprint(im.place), len(rows), 0)
	require.NoError(im, err)
	require.Equal(im, fmt.Sprint(im.place), p.Place)
	look, err := im.s.ImportLook(im.Context(), &im.a, rows)
	require.NoError(im, err)
	what := make([]string, len(out))
	for i := range out {
		what[i] = out[i].What
		switch out[i].What {
		case coupon.ImportNew, coupon.ImportUpdated:
			require.Equal(im, coupon.ImportSame, look[i].What, "once more it is as it is")
		default:
			require.Equal(im, out[i].What, look[i].What, out[i].Detail)
		}
	}
	return what
}

// theirs is a coupon of the other system, unused, that ends then.
func theirs(key string, template uint64, ends time.Time) coupon.ImportRow {
	return coupon.ImportRow{
		Key: key, UserID: "u-" + key, Template: template, Status: coupon.Unused, ExpiresAt: ends, ValidFrom: ends.Add(-240 * time.Hour),
		GrantedAt: ends.Add(-240 * time.Hour), LockFor: 30 * time.Minute,
	}
}

// fiveStates are coupons in every state.
func fiveStates(template uint64, now time.Time) []coupon.ImportRow {
	now = now.Truncate(time.Second)
	ends := now.Add(time.Hour)
	rows := make([]coupon.ImportRow, 5)
	for i := range rows {
		rows[i] = theirs(fmt.Sprint(i+1), template, ends)
		rows[i].Status = coupon.Status(i + 1)
	}
	rows[1].OrderID, rows[1].LockedAt = "o1", now.Add(-time.Minute)
	rows[2].OrderID, rows[2].UsedAt = "o2", now.Add(-48*time.Hour)
	rows[3].ExpiresAt, rows[3].ValidFrom = now.Add(-24*time.Hour), now.Add(-96*time.Hour)
	return rows
}

func TestImportTakesStatesEndsAndOrdersOver(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	template := create(t, s, func(c *coupon.Template) { c.Quota, c.PerUser = 3, 1 })
	im := newImporter(t, s, false)
	now := dbNow(t, d)
	rows := fiveStates(template, now)
	require.Equal(t, []string{"new", "new", "new", "new", "new"}, im.take(rows...))

	for i, r := range rows {
		c, _, err := s.CouponByGrantKey(t.Context(), "import:shop", r.Key)
		require.NoError(t, err)
		require.Equal(t, r.Status, c.Status, i)
		require.True(t, r.ExpiresAt.Equal(c.ExpiresAt))
		require.True(t, r.GrantedAt.Equal(c.GrantedAt))
		require.Equal(t, []string{r.UserID, "import.shop", r.OrderID}, []string{c.UserID, c.BatchID, c.OrderID})
		steps, err := s.Timeline(t.Context(), c.ID)
		require.NoError(t, err)
		require.Len(t, steps, int(c.Version))
		for _, step := range steps {
			require.Equal(t, []any{coupon.CauseImport, "amy", "moving in"}, []any{step.Cause, step.Actor, step.Reason})
		}
		require.Equal(t, r.Key, steps[0].GrantKey)
		require.Equal(t, coupon.Unused, steps[0].To)
	}
	c, _, err := s.CouponByGrantKey(t.Context(), "import:shop", "2")
	require.NoError(t, err)
	require.WithinDuration(t, now.Add(30*time.Minute), c.LockUntil, time.Minute, "its lock lasts from the import on")
	c, _, err = s.CouponByGrantKey(t.Context(), "import:shop", "3")
	require.NoError(t, err)
	require.True(t, rows[2].UsedAt.Equal(c.UsedAt))
	chained(t, d)

	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 1`), "nothing is told of")
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND routing_key = 'expire'`))
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND routing_key = 'unlock'`))
	require.EqualValues(t, 5, d.Int(t, `SELECT taken FROM template_stock WHERE template_id = ?`, template), "whatever the quota says")
	require.EqualValues(t, 5, d.Int(t, `SELECT SUM(taken) FROM user_quota`))
	require.EqualValues(t, 9, d.Int(t, `SELECT COUNT(*) FROM ledger_seen`))
	require.EqualValues(t, 5111, d.Int(t, `SELECT 1000 * granted + 100 * used + 10 * expired + voided FROM template_stats`))

	require.Equal(t, []string{"same", "same", "same", "same", "same"}, im.take(rows...), "repeated it doubles nothing")
	require.EqualValues(t, 5, d.Int(t, `SELECT COUNT(*) FROM coupon`))
}

func TestImportRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	template := create(t, s, func(*coupon.Template) {})
	im := newImporter(t, s, false)
	ends := dbNow(t, d).Truncate(time.Second).Add(time.Hour)
	good := theirs("good", template, ends)
	rows := []coupon.ImportRow{good}
	for _, change := range []func(*coupon.ImportRow){
		func(r *coupon.ImportRow) { r.Key = "" },
		func(r *coupon.ImportRow) { r.UserID = "" },
		func(r *coupon.ImportRow) { r.Status = coupon.Locked }, // by no order
		func(r *coupon.ImportRow) { r.Template = 4711 },
		func(r *coupon.ImportRow) { r.ValidFrom = ends },
		func(r *coupon.ImportRow) { r.ExpiresAt = time.Time{} },
		func(r *coupon.ImportRow) { r.Status, r.ExpiresAt = coupon.Expired, coupon.Never },
		func(r *coupon.ImportRow) { r.Key = "good" }, // twice
		func(r *coupon.ImportRow) { r.UsedAt, r.Status = time.Unix(0, 0), coupon.Used },
	} {
		r := theirs(fmt.Sprint(len(rows)), template, ends)
		change(&r)
		rows = append(rows, r)
	}
	out, p, err := s.ImportBatch(t.Context(), im.h, &im.a, rows, "x", len(rows)+2, 2)
	require.NoError(t, err)
	for i := range out {
		require.Equal(t, i > 0, out[i].What == coupon.ImportRefused, out[i])
		require.Equal(t, i > 0, out[i].Detail != "")
	}
	require.EqualValues(t, len(rows)+1, p.Count(coupon.ImportRefused))
	require.EqualValues(t, len(rows)+2, p.Rows)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM coupon`))
}

// A commit whose answer was lost is not done again, and a row that is new is new once, whoever comes.
func TestImportBatchIsDoneOnce(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	template := create(t, s, func(*coupon.Template) {})
	im := newImporter(t, s, false)
	rows := fiveStates(template, dbNow(t, d))
	require.NoError(t, s.RegisterImport(t.Context(), "shop", true), "it has no coupons yet")
	require.NoError(t, s.RegisterImport(t.Context(), "shop", false))
	out, first, err := s.ImportBatch(t.Context(), im.h, &im.a, rows, "7", 5, 0)
	require.NoError(t, err)
	require.Len(t, out, 5)
	out, again, err := s.ImportBatch(t.Context(), im.h, &im.a, rows, "7", 5, 0)
	require.NoError(t, err)
	require.Empty(t, out)
	require.Equal(t, first, again)

	require.ErrorIs(t, s.RegisterImport(t.Context(), "shop", true), store.ErrImportMode)
	im.a.Observe = true
	_, _, err = s.ImportBatch(t.Context(), im.h, &im.a, rows, "8", 5, 0)
	require.ErrorIs(t, err, store.ErrImportMode)
	im.a.Observe = false
	im.h.Owner = "other"
	_, _, err = s.ImportBatch(t.Context(), im.h, &im.a, rows, "8", 5, 0)
	require.ErrorIs(t, err, coupon.ErrConflict)
}

// What has changed there changes here, as long as nothing else has touched the coupon here.
func TestImportAgain(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	template := create(t, s, func(c *coupon.Template) { c.Terms.QuotaBack = coupon.QuotaBackTotal })
	im := newImporter(t, s, false)
	now := dbNow(t, d).Truncate(time.Second)
	ends := now.Add(time.Hour)
	var rows []coupon.ImportRow
	for i := range 10 {
		rows = append(rows, theirs(fmt.Sprint(i), template, ends))
	}
	rows[7].Status, rows[7].ExpiresAt = coupon.Expired, now.Add(-time.Hour)
	rows[8].Status, rows[8].OrderID = coupon.Used, "o8"
	im.take(rows...)
	id := func(key string) uint64 {
		c, _, err := s.CouponByGrantKey(t.Context(), "import:shop", key)
		require.NoError(t, err)
		return c.ID
	}
	lock := ask(coupon.VerbLock, "here", id("3"))
	lock.LockFor = time.Hour
	done(t, s, lock)
	lock = ask(coupon.VerbLock, "o4", id("4"))
	lock.LockFor = time.Hour
	done(t, s, lock)
	done(t, s, ask(coupon.VerbRedeem, "o4", id("4")))

	rows[0].Status, rows[0].OrderID, rows[0].UsedAt = coupon.Used, "o0", now
	rows[1].ExpiresAt = ends.Add(time.Hour)
	rows[2].Status, rows[2].OrderID = coupon.Locked, "o2"
	rows[3].Status = coupon.Voided                          // locked here meanwhile
	rows[4].Status, rows[4].OrderID = coupon.Used, "o4"     // so it was here
	rows[5].UserID = "another"                              // not the same coupon
	rows[7].Status, rows[7].ExpiresAt = coupon.Unused, ends // they gave it back
	rows[8].Status, rows[8].OrderID = coupon.Locked, "o8"
	require.Equal(t, []string{"updated", "updated", "updated", "changed_here", "same", "refused", "same", "updated", "updated", "same"}, im.take(rows...))
	require.Equal(t, []string{"same", "same", "same", "changed_here", "same", "refused", "same", "same", "same", "same"}, im.take(rows...))
	chained(t, d)
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key NOT IN ('expire','unlock','coupon.locked','coupon.used')`))
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = ?`, id("1")), "a trigger for the end that moved")
	_, _, err := s.FoldQuota(t.Context(), 100)
	require.NoError(t, err)
	require.EqualValues(t, 10, d.Int(t, `SELECT taken FROM template_stock WHERE template_id = ?`, template), "what was given back there is taken again")
}

// Events are of coupons that can still be used; reminders are those that a verb would tell of.
func TestImportTellsIfAsked(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	template := create(t, s, func(*coupon.Template) {})
	im := newImporter(t, s, false)
	im.a.Events, im.a.Notices = true, true
	im.take(fiveStates(template, dbNow(t, d))...)
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.issued'`))
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.locked'`))
	require.EqualValues(t, 3, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 1`))
}
