package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestCouponIsReadWithItsTermsWhereverItIs(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := plantRows(t, d, []plantRow{
		{id: 1, user: "u", batch: "b", status: coupon.Unused, ends: 3600, valid: 60},
		{id: 2, user: "u", status: coupon.Locked, ends: 3600, lock: 600},
		{id: 3, user: "u", template: 2, status: coupon.Used, ends: -10, archived: true},
		{id: 4, user: "u", status: coupon.Unused, ends: -10},
		{id: 5, user: "u", status: coupon.Unused},
	})
	d.Exec(t, `INSERT INTO grant_key (issuer, grant_key, coupon_id, content_hash) VALUES ('i','k1',1,''),('i','k3',3,'')`)

	c, at, err := s.Coupon(t.Context(), 1)
	require.NoError(t, err)
	require.WithinDuration(t, now, at, 30*time.Second)
	require.Equal(t, coupon.Coupon{
		Row: coupon.Row{
			ID: 1, Status: coupon.Unused, Version: 1, ValidFrom: now.Add(time.Minute), ExpiresAt: now.Add(time.Hour), DueAt: now.Add(time.Hour),
			LatePay: coupon.Strict, LateWindow: time.Minute,
		},
		Terms: coupon.Terms{
			TemplateID: 1, Revision: 1, Value: 500, Currency: "CNY", Precision: coupon.Exact, Offer: coupon.Offer{Kind: coupon.OfferAmount},
			LatePay: coupon.Strict, LateWindow: time.Minute, QuotaBack: coupon.QuotaBackNone,
		},
		UserID: "u", BatchID: "b", GrantedAt: now.Add(-100 * time.Second),
	}, c)

	c, _, err = s.Coupon(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, coupon.HonourLock, c.LatePay, "the lock's own terms")
	require.Equal(t, 15*time.Minute, c.LateWindow)
	require.Equal(t, coupon.Strict, c.Terms.LatePay)
	require.Equal(t, "o2", c.OrderID)
	require.Equal(t, now.Add(-time.Minute), c.LockedAt)
	require.Equal(t, now.Add(10*time.Minute), c.LockUntil)

	c, at, err = s.Coupon(t.Context(), 3)
	require.NoError(t, err)
	require.True(t, c.Archived)
	require.Equal(t, coupon.Used, c.Seen(at))
	require.Equal(t, "EUR", c.Terms.Currency)

	_, _, err = s.Coupon(t.Context(), 9)
	require.ErrorIs(t, err, coupon.ErrNotFound)

	cs, at, err := s.Coupons(t.Context(), []uint64{4, 3, 9, 1, 4})
	require.NoError(t, err)
	require.Equal(t, []uint64{4, 3, 1}, idsOf(cs))
	require.Equal(t, coupon.Expired, cs[0].Seen(at))
	cs, at, err = s.Coupons(t.Context(), []uint64{7, 8})
	require.NoError(t, err)
	require.Empty(t, cs)
	require.False(t, at.IsZero())
	cs, at, err = s.Coupons(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, cs)
	require.False(t, at.IsZero())
	_, _, err = s.Coupons(t.Context(), make([]uint64, coupon.MaxPage+1))
	require.ErrorIs(t, err, store.ErrBatch)

	for key, id := range map[string]uint64{"k1": 1, "k3": 3} {
		c, _, err = s.CouponByGrantKey(t.Context(), "i", key)
		require.NoError(t, err)
		require.Equal(t, id, c.ID)
	}
	_, _, err = s.CouponByGrantKey(t.Context(), "other", "k1")
	require.ErrorIs(t, err, coupon.ErrNotFound)
	_, _, err = s.CouponByGrantKey(t.Context(), "i", "k1 ")
	require.ErrorIs(t, err, coupon.ErrNotFound)
}

// A row of another's lock is read all the same: readers take no lock and wait for none.
func TestReadersDoNotWait(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantRows(t, d, []plantRow{{id: 1, user: "u", status: coupon.Unused, ends: 3600}})
	require.NoError(t, s.Tx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE coupon SET status = 3 WHERE id = 1`); err != nil {
			return err
		}
		c, at, err := s.Coupon(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, coupon.Unused, c.Seen(at))
		p, err := s.Wallet(ctx, coupon.WalletQuery{UserID: "u", Limit: 5})
		require.NoError(t, err)
		require.Len(t, p.Coupons, 1)
		return nil
	}))
}

func TestTimeline(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantRows(t, d, []plantRow{
		{id: 1, user: "u", batch: "b", status: coupon.Unused, ends: 3600},
		{id: 2, user: "u", status: coupon.Expired, ends: -3600, archived: true},
		{id: 3, user: "u", status: coupon.Unused, ends: 3600},
	})
	d.Exec(t, `INSERT INTO grant_key (issuer, grant_key, coupon_id, content_hash) VALUES ('i','k1',1,'')`)
	d.Exec(t, `INSERT INTO coupon_history VALUES
		(1,1,0,1,'grant','2026-01-01','2026-02-01','2026-02-01','','','','','','tr',NULL,NULL),
		(1,2,1,2,'order','2026-01-02','2026-02-01','2026-02-01','o1','shop','why','','','','2026-01-03',NULL),
		(1,3,2,2,'admin','2026-01-02 01:00:00','2026-03-01','2026-03-01','o1','ops','longer','','','','2026-01-03','2026-02-01'),
		(1,4,2,1,'lock','2026-01-03','2026-03-01','2026-03-01','o1','','','v1.2','ladder','','2026-01-03',NULL)`)
	d.Exec(t, `INSERT INTO coupon_history_archive VALUES (2,1,0,1,'grant','2026-01-01','2026-02-01','2026-02-01','','','','','','',NULL,NULL)`)
	steps, err := s.Timeline(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, steps, 4)
	day := func(month time.Month, d int) time.Time { return time.Date(2026, month, d, 0, 0, 0, 0, time.UTC) }
	require.Equal(t, "k1", steps[0].GrantKey)
	require.Equal(t, "i", steps[0].Issuer)
	require.Equal(t, "tr", steps[0].Trace)
	require.Equal(t, "u", steps[1].UserID)
	require.Equal(t, "b", steps[1].BatchID)
	require.EqualValues(t, 500, steps[1].Terms.Value)
	require.Equal(t, coupon.Locked, steps[1].To)
	require.Equal(t, day(1, 3), steps[1].LockUntil)
	require.Equal(t, "o1", steps[1].OrderID)
	require.Equal(t, day(2, 1), steps[2].Previous)
	require.Equal(t, day(3, 1), steps[2].ExpiresAt)
	require.Equal(t, "v1.2", steps[3].TriggerID)
	require.Equal(t, coupon.OriginLadder, steps[3].Origin)
	require.Equal(t, coupon.CauseLock, steps[3].Cause)

	steps, err = s.Timeline(t.Context(), 2)
	require.NoError(t, err)
	require.Len(t, steps, 1)
	require.Empty(t, steps[0].GrantKey)

	_, err = s.Timeline(t.Context(), 9)
	require.ErrorIs(t, err, coupon.ErrNotFound)

	var rows []string
	for v := 1; v <= 1005; v++ {
		rows = append(rows, fmt.Sprintf("(3,%d,1,1,'admin','2026-01-01','2026-02-01','2026-02-01','','','','','','',NULL,NULL)", v))
	}
	d.Exec(t, `INSERT INTO coupon_history VALUES `+strings.Join(rows, ","))
	steps, err = s.Timeline(t.Context(), 3)
	require.NoError(t, err)
	require.Len(t, steps, 1000)
	require.EqualValues(t, 6, steps[0].Version)
	require.EqualValues(t, 1005, steps[999].Version)
}

func TestAPositionBelongsToItsQuery(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	var rows []plantRow
	for i := 1; i <= 10; i++ {
		rows = append(rows, plantRow{id: i, user: "u", batch: "b", status: coupon.Unused, ends: 3600 + i})
	}
	plantRows(t, d, rows)
	walletOf := func(user string, state coupon.Status, after string) (coupon.Page, error) {
		return s.Wallet(t.Context(), coupon.WalletQuery{UserID: user, State: state, Limit: 3, After: after})
	}
	p, err := walletOf("u", coupon.Unused, "")
	require.NoError(t, err)
	token := p.Next
	require.NotEmpty(t, token)
	_, err = walletOf("u", coupon.Unused, token)
	require.NoError(t, err)

	list := coupon.ListQuery{Batch: "b", Limit: 3}
	l, err := s.List(t.Context(), list)
	require.NoError(t, err)
	wrong := []string{"x", "=", token + "=", token + "A", token[1:], strings.ToUpper(token), strings.Repeat("A", 1<<16), l.Next, "' OR 1=1"}
	for i := range token {
		b := []byte(token)
		b[i] = "BA"[map[bool]int{true: 1, false: 0}[b[i] == 'B']]
		if string(b) != token {
			wrong = append(wrong, string(b))
		}
	}
	for _, w := range wrong {
		_, err := walletOf("u", coupon.Unused, w)
		require.ErrorIs(t, err, coupon.ErrPosition, w)
		require.ErrorContains(t, err, "page_token: ")
		list.After = w
		if w != l.Next {
			_, err = s.List(t.Context(), list)
			require.ErrorIs(t, err, coupon.ErrPosition, w)
		}
	}
	for _, q := range []func() (coupon.Page, error){
		func() (coupon.Page, error) { return walletOf("v", coupon.Unused, token) },
		func() (coupon.Page, error) { return walletOf("u", 0, token) },
		func() (coupon.Page, error) { return walletOf("u", coupon.Used, token) },
		func() (coupon.Page, error) {
			return s.List(t.Context(), coupon.ListQuery{Template: 1, Batch: "b", Limit: 3, After: l.Next})
		},
	} {
		_, err := q()
		require.ErrorIs(t, err, coupon.ErrPosition)
	}
	// The limit may change between pages.
	p, err = s.Wallet(t.Context(), coupon.WalletQuery{UserID: "u", State: coupon.Unused, Limit: 100, After: token})
	require.NoError(t, err)
	require.Len(t, p.Coupons, 7)
	require.Empty(t, p.Next)
}

func TestQueriesSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	err := coupon.WalletQuery{State: 9, Limit: 1001}.Validate()
	for _, want := range []string{"user_id: must have 1 to 128", "state: must be unused, ", "limit: must be between 1 and 1000, got 1001"} {
		require.ErrorContains(t, err, want)
	}
	err = coupon.ListQuery{
		Batch: strings.Repeat("b", 129), EndsFrom: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), EndsTo: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}.Validate()
	for _, want := range []string{"batch_id: must have at most 128", "ends_to: must not be before", "limit: must be between"} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, coupon.ListQuery{Limit: 1}.Validate(), "template_id, batch_id, state: one of them")
	require.ErrorContains(t, coupon.ListQuery{State: 1, EndsTo: time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC), Limit: 1}.Validate(), "ends_to: must be between")
}

// A coupon that is archived between two pages is shown once.
func TestArchivingBetweenPagesLosesNothing(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	var rows []plantRow
	for i := 1; i <= 30; i++ {
		rows = append(rows, plantRow{id: i, user: "u", status: coupon.Expired, ends: -1000 - i%4})
	}
	plantRows(t, d, rows)
	q := coupon.WalletQuery{UserID: "u", State: coupon.Expired, Limit: 4}
	var ids []uint64
	for step := 1; ; step++ {
		p, err := s.Wallet(t.Context(), q)
		require.NoError(t, err)
		ids = append(ids, idsOf(p.Coupons)...)
		if p.Next == "" {
			break
		}
		q.After = p.Next
		d.Exec(t, `INSERT INTO coupon_archive SELECT c.*, UTC_TIMESTAMP(3) FROM coupon c WHERE id % 7 = ?`, step)
		d.Exec(t, `DELETE FROM coupon WHERE id % 7 = ?`, step)
	}
	require.Equal(t, expectWallet(rows, "u", coupon.Expired), ids)
}

func TestWalletSummary(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := plantRows(t, d, []plantRow{
		{id: 1, user: "u", status: coupon.Unused, ends: 7200},
		{id: 2, user: "u", status: coupon.Unused, ends: 1800, valid: 900},                // not valid yet
		{id: 3, user: "u", status: coupon.Locked, ends: 3600, lock: -5, template: 2},     // its lock ran out
		{id: 4, user: "u", status: coupon.Locked, ends: 3600, lock: 600},                 // reserved
		{id: 5, user: "u", status: coupon.Unused, ends: -5},                              // ended
		{id: 6, user: "u", status: coupon.Unused},                                        // never ends
		{id: 7, user: "v", status: coupon.Unused, ends: 60},                              // another's
		{id: 8, user: "u", status: coupon.Used, ends: 60},                                //
		{id: 9, user: "u", status: coupon.Expired, ends: -60, archived: true},            //
		{id: 10, user: "w", status: coupon.Unused, ends: 60, valid: 30, archived: false}, //
	})
	sum, err := s.WalletSummary(t.Context(), "u", 90*time.Minute)
	require.NoError(t, err)
	require.WithinDuration(t, now, sum.Now, 30*time.Second)
	sum.Now = time.Time{}
	require.Equal(t, coupon.Summary{
		Usable: 3, Ending: 1, NextEnd: now.Add(time.Hour),
		Value: []coupon.MoneySum{{Amount: 1000, Currency: "CNY"}, {Amount: 300, Currency: "EUR"}},
	}, sum)
	for _, user := range []string{"w", "nobody"} {
		sum, err = s.WalletSummary(t.Context(), user, time.Hour)
		require.NoError(t, err)
		require.False(t, sum.Now.IsZero())
		sum.Now = time.Time{}
		require.Equal(t, coupon.Summary{}, sum)
	}
}

func TestListIsWhatBruteForceSees(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	rapid.Check(t, func(rt *rapid.T) {
		d.Exec(t, `DELETE FROM coupon`)
		n := rapid.IntRange(0, 50).Draw(rt, "coupons")
		rows := make([]plantRow, n)
		for i := range rows {
			rows[i] = plantRow{
				id: i + 1, user: "u", batch: rapid.SampledFrom([]string{"", "b", "c"}).Draw(rt, "batch"), template: rapid.IntRange(1, 2).Draw(rt, "template"),
				status: rapid.SampledFrom(allStates).Draw(rt, "status"), ends: rapid.SampledFrom([]int{-100, 100, 200, 300, 0}).Draw(rt, "ends"), lock: 50,
			}
		}
		now := plantRows(t, d, rows)
		q := coupon.ListQuery{
			Template: rapid.SampledFrom([]uint64{0, 1, 2}).Draw(rt, "by template"), Batch: rapid.SampledFrom([]string{"", "b"}).Draw(rt, "by batch"),
			State: rapid.SampledFrom([]coupon.Status{0, coupon.Unused, coupon.Expired}).Draw(rt, "by state"), Limit: rapid.IntRange(1, 20).Draw(rt, "limit"),
		}
		if rapid.Bool().Draw(rt, "from") {
			q.EndsFrom = now.Add(100 * time.Second)
		}
		if rapid.Bool().Draw(rt, "to") {
			q.EndsTo = now.Add(300 * time.Second)
		}
		if q.Template == 0 && q.Batch == "" && q.State == 0 {
			_, err := s.List(t.Context(), q)
			require.ErrorContains(rt, err, "one of them must be given")
			return
		}
		var want []uint64
		for _, r := range rows {
			if (q.Template == 0 || q.Template == uint64(r.template)) && (q.Batch == "" || q.Batch == r.batch) && (q.State == 0 || q.State == r.status) &&
				(q.EndsFrom.IsZero() || r.ends == 0 || r.ends >= 100) && (q.EndsTo.IsZero() || r.ends != 0 && r.ends < 300) {
				want = append(want, uint64(r.id))
			}
		}
		var got []coupon.Coupon
		for {
			p, err := s.List(t.Context(), q)
			require.NoError(rt, err)
			require.LessOrEqual(rt, len(p.Coupons), q.Limit)
			require.False(rt, p.Now.IsZero())
			got = append(got, p.Coupons...)
			if q.After = p.Next; p.Next == "" {
				break
			}
		}
		if q.Template == 0 && q.Batch == "" {
			for i := 1; i < len(got); i++ {
				require.False(rt, got[i].DueAt.Before(got[i-1].DueAt))
			}
			require.ElementsMatch(rt, want, idsOf(got))
			return
		}
		require.Equal(rt, want, idsOf(got))
	})
}

func TestStopTemplateIsRecorded(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	id, err := s.CreateTemplate(t.Context(), coupon.Template{Name: "t", Rule: coupon.Rule{Kind: coupon.RuleNever}, Terms: coupon.Terms{Currency: "CNY", Precision: coupon.Exact}})
	require.NoError(t, err)
	reason := strings.Repeat("因", 85)
	require.NoError(t, s.StopTemplate(t.Context(), id, true, strings.Repeat("a", 128), reason))
	require.NoError(t, s.StopTemplate(t.Context(), id, true, "again", "changes nothing"))
	tpl, err := s.Template(t.Context(), id)
	require.NoError(t, err)
	require.True(t, tpl.Stopped)
	out, err := s.Issue(t.Context(), []coupon.Grant{{Issuer: "i", Key: "k", TemplateID: id, UserID: "u"}})
	require.NoError(t, err)
	require.Equal(t, coupon.CodeTemplateStopped, out[0].Refused)
	require.NoError(t, s.StopTemplate(t.Context(), id, false, "ops", "fixed"))
	out, err = s.Issue(t.Context(), []coupon.Grant{{Issuer: "i", Key: "k", TemplateID: id, UserID: "u"}})
	require.NoError(t, err)
	require.Empty(t, out[0].Refused)

	for action, want := range map[string]store.Deed{
		store.DeedTemplateStop: {Actor: strings.Repeat("a", 128), Reason: reason}, store.DeedTemplateResume: {Actor: "ops", Reason: "fixed"},
	} {
		deeds, err := s.Deeds(t.Context(), action, 0, 10)
		require.NoError(t, err)
		require.Len(t, deeds, 1)
		require.Equal(t, []string{want.Actor, want.Reason, fmt.Sprint(id)}, []string{deeds[0].Actor, deeds[0].Reason, deeds[0].Subject})
	}

	require.ErrorIs(t, s.StopTemplate(t.Context(), 99, true, "a", "r"), coupon.ErrNotFound)
	require.ErrorContains(t, s.StopTemplate(t.Context(), id, true, "", "r"), "actor: must have 1 to 128")
	require.ErrorContains(t, s.StopTemplate(t.Context(), id, true, "a", ""), "reason: must have 1 to 255")
	tpl, err = s.Template(t.Context(), id)
	require.NoError(t, err)
	require.False(t, tpl.Stopped)
}
