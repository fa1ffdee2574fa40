package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const month = 30 * 24 * time.Hour

// age takes coupons so many days back, with what their history says, and lets everything of theirs be sent.
func age(t testing.TB, d testenv.Database, days int, where string) {
	t.Helper()
	d.Exec(t, `UPDATE coupon_history SET at = at - INTERVAL ? DAY WHERE coupon_id IN (SELECT id FROM coupon WHERE `+where+`)`, days)
	d.Exec(t, `DELETE FROM outbox WHERE coupon_id IN (SELECT id FROM coupon WHERE `+where+`)`)
	d.Exec(t, `UPDATE coupon SET used_at = used_at - INTERVAL ? DAY, expired_at = expired_at - INTERVAL ? DAY WHERE `+where, days, days)
}

// archiveAll walks every final state with pages and batches of that size, and gives the sums.
func archiveAll(ctx context.Context, t require.TestingT, s *store.Store, after time.Duration, page int) (sum coupon.Archived) {
	now, err := s.Now(ctx)
	require.NoError(t, err)
	for _, of := range coupon.FinalStatuses() {
		var at coupon.Cursor
		for more := true; more; {
			p, err := s.FinishedPage(ctx, of, now.Add(-after), at, page)
			require.NoError(t, err)
			res, err := s.ArchiveBatch(ctx, p.Old)
			require.NoError(t, err)
			require.Equal(t, len(p.Old), res.Moved+res.Waiting+res.Left)
			sum.Moved, sum.Steps, sum.Waiting, sum.Left = sum.Moved+res.Moved, sum.Steps+res.Steps, sum.Waiting+res.Waiting, sum.Left+res.Left
			at, more = p.Next, p.More
		}
	}
	return sum
}

// finished makes coupons 1 to n by the store's own verbs: expired, used before their end, voided, in turns; all long ago.
func finished(t testing.TB, d testenv.Database, s *store.Store, n int) {
	t.Helper()
	plantUnused(t, d, 1, n, 3600)
	for id := uint64(1); id <= uint64(n); id++ {
		switch id % 3 {
		case 0:
			done(t, s, ask(coupon.VerbVoid, "", id))
		case 1:
			done(t, s, ask(coupon.VerbLock, "o", id))
			done(t, s, ask(coupon.VerbRedeem, "o", id))
		case 2:
			for _, table := range []string{"coupon", "coupon_history"} {
				key := map[string]string{"coupon": "id", "coupon_history": "coupon_id"}[table]
				d.Exec(t, `UPDATE `+table+` SET expires_at = UTC_TIMESTAMP(0) - INTERVAL 1 MINUTE, due_at = UTC_TIMESTAMP(0) - INTERVAL 1 MINUTE WHERE `+key+` = ?`, id)
			}
			_, _, err := s.ExpireBatch(t.Context(), triggersFor(int(id), 1, coupon.OriginLadder), always)
			require.NoError(t, err)
		}
	}
	age(t, d, 40, "id <= "+fmt.Sprint(n))
	d.Exec(t, `UPDATE coupon SET due_at = due_at - INTERVAL 40 DAY, expires_at = expires_at - INTERVAL 40 DAY WHERE status = 4`)
	d.Exec(t, `UPDATE coupon_history h JOIN coupon c ON c.id = h.coupon_id SET h.expires_at = c.expires_at, h.due_at = c.due_at`)
}

func TestWhatIsFinishedAndOldGoesIntoTheArchive(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	finished(t, d, s, 30)
	plantUnused(t, d, 31, 2, 3600)
	done(t, s, ask(coupon.VerbLock, "o", 32))
	before := timelines(t, s, 30)
	require.Equal(t, coupon.Archived{}, archiveAll(t.Context(), t, s, 41*24*time.Hour, 7))
	lag, err := s.ArchiveLag(t.Context(), month)
	require.NoError(t, err)
	require.InDelta(t, (10 * 24 * time.Hour).Seconds(), lag.Seconds(), 300)

	require.Equal(t, coupon.Archived{Moved: 30, Steps: 70}, archiveAll(t.Context(), t, s, month, 7))
	require.EqualValues(t, 30, d.Int(t, `SELECT COUNT(*) FROM coupon_archive`))
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM coupon`))
	require.EqualValues(t, 70, d.Int(t, `SELECT COUNT(*) FROM coupon_history_archive`))
	require.Equal(t, before, timelines(t, s, 30))
	require.Equal(t, coupon.Archived{}, archiveAll(t.Context(), t, s, month, 7))
	lag, err = s.ArchiveLag(t.Context(), month)
	require.NoError(t, err)
	require.Zero(t, lag)
}

func timelines(t testing.TB, s *store.Store, n int) (all [][]coupon.Transition) {
	t.Helper()
	for id := uint64(1); id <= uint64(n); id++ {
		steps, err := s.Timeline(t.Context(), id)
		require.NoError(t, err)
		all = append(all, steps)
	}
	return all
}

func TestWhatIsNotDoneWithStays(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	finished(t, d, s, 12)
	d.Exec(t, `INSERT INTO outbox (lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, refused, created_at)
		VALUES (1,1,1,'1:3:used','coupon.used',' ',NULL,'','',0,UTC_TIMESTAMP(3))`)
	d.Exec(t, `INSERT INTO outbox_parked (id, lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, reason, parked_at)
		VALUES (900,1,2,2,'2:2:expired','coupon.expired',' ',NULL,'','','',UTC_TIMESTAMP(3))`)
	d.Exec(t, `INSERT INTO quota_return VALUES (3,1,'u3',1,UTC_TIMESTAMP(3))`)
	window := func(id, coupon int, closed, state string) {
		d.Exec(t, fmt.Sprintf(`INSERT INTO notice_window (id, user_id, kind, open_mark, items, opened_at, last_item_at, due_at, closed_at, closed_by)
			VALUES (%d,'u%d','expired',1,1,UTC_TIMESTAMP(3),UTC_TIMESTAMP(3),UTC_TIMESTAMP(3),%s,'')`, id, id, closed))
		d.Exec(t, `INSERT INTO notice_item (window_id, event_id, coupon_id, version, expires_at, value, currency, dropped, added_at)
			VALUES (?,?,?,2,UTC_TIMESTAMP(3),500,'CNY','',UTC_TIMESTAMP(3))`, id, fmt.Sprintf("%d:2:expired", coupon), coupon)
		if state != "" {
			d.Exec(t, `INSERT INTO notice (window_id, channel, user_id, kind, items, state, reason, attempts, try_at, created_at)
				VALUES (?,'inbox','u','expired',1,?,'',1,UTC_TIMESTAMP(3),UTC_TIMESTAMP(3))`, id, state)
		}
	}
	window(1, 5, "NULL", "")
	window(2, 8, "UTC_TIMESTAMP(3)", "pending")
	window(3, 11, "UTC_TIMESTAMP(3)", "sent")

	seen, err := s.FinishedPage(t.Context(), coupon.Used, time.Now().Add(-month), coupon.Cursor{}, 100)
	require.NoError(t, err)
	require.Equal(t, []coupon.Finished{{ID: 1, Version: 3}, {ID: 4, Version: 3}, {ID: 7, Version: 3}, {ID: 10, Version: 3}}, seen.Old)
	done(t, s, ask(coupon.VerbRefund, "o", 4))
	hold, err := d.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = hold.ExecContext(t.Context(), `SELECT id FROM coupon WHERE id = 7 FOR UPDATE`)
	require.NoError(t, err)
	res, err := s.ArchiveBatch(t.Context(), seen.Old)
	require.NoError(t, err)
	require.Equal(t, coupon.Archived{Moved: 1, Steps: 3, Waiting: 1, Left: 2}, res, "one waits in the outbox, one was refunded, one is held")
	require.NoError(t, hold.Rollback())

	require.Equal(t, coupon.Archived{Moved: 5, Steps: 11, Waiting: 5}, archiveAll(t.Context(), t, s, month, 100))
	for id, left := range map[int]int64{1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 8: 1, 11: 0} {
		require.Equal(t, left, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE id = ?`, id), "coupon %d", id)
	}
	long, err := s.OutboxLonger(t.Context(), 0)
	require.NoError(t, err)
	require.True(t, long)
	for _, table := range []string{"outbox", "outbox_parked", "quota_return", "notice_window"} {
		d.Exec(t, `DELETE FROM `+table)
	}
	require.Equal(t, coupon.Archived{Moved: 5, Steps: 11}, archiveAll(t.Context(), t, s, month, 100))
	long, err = s.OutboxLonger(t.Context(), 0)
	require.NoError(t, err)
	require.False(t, long)
}

func TestTheWalkKeepsItsPlace(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	at, err := s.ArchivePlace(t.Context(), coupon.Used)
	require.NoError(t, err)
	require.Zero(t, at)
	want := coupon.Cursor{At: time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC), ID: 7}
	require.NoError(t, s.PutArchivePlace(t.Context(), coupon.Used, want))
	at, err = s.ArchivePlace(t.Context(), coupon.Used)
	require.NoError(t, err)
	require.Equal(t, want, at)
	at, err = s.ArchivePlace(t.Context(), coupon.Voided)
	require.NoError(t, err)
	require.Zero(t, at)
	require.NoError(t, s.PutArchivePlace(t.Context(), coupon.Used, coupon.Cursor{}))
	at, err = s.ArchivePlace(t.Context(), coupon.Used)
	require.NoError(t, err)
	require.Zero(t, at)
	d.Exec(t, `INSERT INTO setting (name, value, updated_at) VALUES ('archive.voided', 'nonsense', UTC_TIMESTAMP(3))`)
	at, err = s.ArchivePlace(t.Context(), coupon.Voided)
	require.NoError(t, err)
	require.Zero(t, at)
	_, err = s.FinishedPage(t.Context(), coupon.Locked, time.Now(), coupon.Cursor{}, 1)
	require.ErrorContains(t, err, "not a final state")
}

// The first answer to a grant, and whether an item of a notice still stands, are found in the archive, too.
func TestTheArchiveAnswers(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	template := create(t, s, nil)
	first := issueOne(t, s, grant(template, "u", "k"))
	require.False(t, first.ExpiresAt.IsZero())
	d.Exec(t, `UPDATE coupon SET valid_from = valid_from - INTERVAL 90 DAY, expires_at = expires_at - INTERVAL 80 DAY, due_at = due_at - INTERVAL 80 DAY`)
	_, _, err := s.ExpireBatch(t.Context(), triggersFor(int(first.CouponID), 1, coupon.OriginLadder), always)
	require.NoError(t, err)
	event := fmt.Sprintf("%d:2:expired", first.CouponID)
	require.Equal(t, 1, collect(t, s, atOnce(), []coupon.NoticeItem{{
		EventID: event, Kind: coupon.NoticeExpired, UserID: "u", CouponID: first.CouponID, Version: 2, ExpiresAt: first.ExpiresAt, Value: 500, Currency: "CNY",
	}}))
	archive(t, d, "TRUE") // by plain SQL, since the window is open
	closed := closeWindows(t, s, closePlan(atOnce()))
	require.Len(t, closed.Pending, 2)
	require.Equal(t, 1, closed.Pending[0].Items)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM notice_item WHERE dropped = ''`))
	again := issueOne(t, s, grant(template, "u", "k"))
	require.True(t, again.Repeated)
	require.Equal(t, first.ExpiresAt, again.ExpiresAt)
	require.Equal(t, first.CouponID, again.CouponID)
}

func TestOldNoticesAreRemoved(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 40, coupon.Expired, past, "NULL")
	collect(t, s, atOnce(), told(1, 40, 20))
	written, err := deliver(t.Context(), s, closeWindows(t, s, closePlan(atOnce())).Pending)
	require.NoError(t, err)
	require.Equal(t, 20, written)
	prune := func(limit int) (n int) {
		var next uint64
		for {
			pruned, at, err := s.PruneNotices(t.Context(), time.Now().Add(-month), next, limit)
			require.NoError(t, err)
			n += pruned
			if next = at; next == 0 {
				return n
			}
		}
	}
	require.Zero(t, prune(3))
	d.Exec(t, `UPDATE notice_window SET opened_at = opened_at - INTERVAL 31 DAY, closed_at = closed_at - INTERVAL 31 DAY WHERE id <= 12`)
	d.Exec(t, `UPDATE notice_window SET closed_at = NULL WHERE id = 2`)
	d.Exec(t, `UPDATE notice SET state = 'pending' WHERE window_id = 4 AND channel = 'log'`)
	d.Exec(t, `UPDATE inbox SET created_at = created_at - INTERVAL 31 DAY WHERE id <= 7`)
	require.Equal(t, 10, prune(3))
	require.Zero(t, prune(3))
	for table, left := range map[string]int64{"notice_window": 10, "notice_item": 20, "notice": 20} {
		require.Equal(t, left, d.Int(t, `SELECT COUNT(*) FROM `+table), table)
	}
	for _, want := range []struct {
		n    int
		more bool
	}{{3, true}, {3, true}, {1, false}, {0, false}} {
		n, more, err := s.PruneInbox(t.Context(), time.Now().Add(-month), 3)
		require.NoError(t, err)
		require.Equal(t, want.n, n)
		require.Equal(t, want.more, more)
	}
	require.EqualValues(t, 13, d.Int(t, `SELECT COUNT(*) FROM inbox`))

	d.Exec(t, `UPDATE notice SET state = 'sending' WHERE window_id = 4 AND channel = 'log'`)
	require.Zero(t, prune(30), "nobody knows yet what became of it")
	for day := range 12 {
		d.Exec(t, `INSERT INTO notice_count VALUES ('u', 'sms', UTC_DATE() - INTERVAL ? DAY, 1)`, day)
	}
	pruned, more, err := s.PruneNoticeCounts(t.Context(), time.Now().Add(-9*24*time.Hour), 1)
	require.NoError(t, err)
	require.Equal(t, 1, pruned)
	require.True(t, more)
	pruned, more, err = s.PruneNoticeCounts(t.Context(), time.Now().Add(-9*24*time.Hour), 5)
	require.NoError(t, err)
	require.Equal(t, 1, pruned)
	require.False(t, more)
}

// TestArchiveUnderTraffic: while the archive takes what is finished, orders redeem and refund, and readers read. No coupon
// is lost or there twice, and no reader misses one at any moment; its history stays whole.
func TestArchiveUnderTraffic(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	pods := []*store.Store{d.Store(t), d.Store(t)}
	const n = 60
	plantUnused(t, d, 1, n, 36000)
	seed := testenv.Seed(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var rest sync.WaitGroup
	var moved, back, reads atomic.Int64
	for pod := range 2 {
		rest.Go(func() { // without an age: whatever is used goes at once
			for ctx.Err() == nil {
				d.Exec(t, `DELETE FROM outbox`)
				moved.Add(int64(archiveAll(context.WithoutCancel(ctx), t, pods[pod], 0, 17).Moved))
			}
		})
		rest.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(pod)))
			for ctx.Err() == nil {
				id := 1 + r.Uint64N(n)
				c, _, err := pods[pod].Coupon(context.WithoutCancel(ctx), id)
				if err != nil || c.ID != id {
					t.Errorf("coupon %d: %v", id, err)
					return
				}
				steps, err := pods[pod].Timeline(context.WithoutCancel(ctx), id)
				if err != nil || len(steps) == 0 || int(steps[len(steps)-1].Version) != len(steps) {
					t.Errorf("timeline of %d: %d steps, %v", id, len(steps), err)
					return
				}
				p, err := pods[pod].Wallet(context.WithoutCancel(ctx), coupon.WalletQuery{UserID: fmt.Sprintf("u%d", id%7), Limit: 100})
				found := 0
				for _, w := range p.Coupons {
					if w.ID == id {
						found++
					}
				}
				if err != nil || found != 1 {
					t.Errorf("wallet shows coupon %d %d times, %v", id, found, err)
					return
				}
				reads.Add(1)
			}
		})
	}
	var orders sync.WaitGroup
	for pod := range 4 {
		orders.Go(func() {
			r := rand.New(rand.NewPCG(seed, 100+uint64(pod)))
			for i := range 120 {
				order := fmt.Sprintf("o%d.%d", pod, i)
				id := 1 + r.Uint64N(n)
				_, out, err := pods[pod%2].Act(t.Context(), ask(coupon.VerbRedeem, order, id))
				if err != nil {
					t.Errorf("redeem: %v", err)
					return
				}
				if out[0].Refused == coupon.CodeNotFound {
					t.Errorf("redeem misses coupon %d", id)
					return
				}
				if out[0].Refused != "" || r.IntN(8) == 0 {
					continue
				}
				_, out, err = pods[pod%2].Act(t.Context(), ask(coupon.VerbRefund, order, id))
				if err != nil || out[0].Refused != "" {
					t.Errorf("refund: %v %v", err, out)
					return
				}
				back.Add(1)
			}
		})
	}
	orders.Wait()
	stop()
	rest.Wait()
	require.Positive(t, moved.Load())
	require.Positive(t, back.Load())
	require.Positive(t, reads.Load())
	t.Logf("%d moved, %d refunds, %d rounds of readers", moved.Load(), back.Load(), reads.Load())
	require.EqualValues(t, n, d.Int(t, `SELECT (SELECT COUNT(*) FROM coupon) + (SELECT COUNT(*) FROM coupon_archive)`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon c JOIN coupon_archive a ON a.id = c.id`))
	for table, past := range map[string]string{"coupon": "coupon_history", "coupon_archive": "coupon_history_archive"} {
		require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM `+table+` c WHERE c.version <> (SELECT COUNT(*) FROM `+past+` h WHERE h.coupon_id = c.id)`))
	}
}

// BenchmarkArchive moves used and expired coupons with two steps each. Run with -benchtime 40000x.
func BenchmarkArchive(b *testing.B) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			d := testenv.NewDatabase(b)
			s := d.Store(b)
			plantUnused(b, d, 1, b.N, -60*24*3600)
			d.Exec(b, `UPDATE coupon SET status = 4, version = 2, expired_at = expires_at, expire_cause = 'ladder'`)
			d.Exec(b, `INSERT INTO coupon_history SELECT coupon_id, 2, 1, 4, 'ladder', expires_at, expires_at, due_at, '', '', '', '', '', '', NULL, NULL FROM coupon_history`)
			d.Exec(b, `ANALYZE TABLE coupon, coupon_history`)
			b.ResetTimer()
			var moved atomic.Int64
			var all sync.WaitGroup
			for range workers {
				all.Go(func() {
					var at coupon.Cursor
					for more := true; more; {
						p, err := s.FinishedPage(b.Context(), coupon.Expired, time.Now().Add(-month), at, 500)
						if err != nil {
							b.Error(err)
							return
						}
						res, err := s.ArchiveBatch(b.Context(), p.Old)
						if err != nil {
							b.Error(err)
							return
						}
						moved.Add(int64(res.Moved))
						at, more = p.Next, p.More
					}
				})
			}
			all.Wait()
			b.StopTimer()
			require.EqualValues(b, b.N, moved.Load())
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "coupons/s")
		})
	}
}

// A late page costs a page, whatever stands before it; so does a range of ids, and the history in it.
func TestArchiveAndReconcileReadWhatTheyAskFor(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	const n, page = 6000, 300
	plant(t, d, 1, n, coupon.Used, "'2026-06-01 00:00:00'", "NULL")
	d.Exec(t, `UPDATE coupon SET used_at = granted_at`)
	d.Exec(t, `INSERT INTO grant_key SELECT 'shop', id, id, REPEAT('x', 32) FROM coupon`)
	d.Exec(t, `ANALYZE TABLE coupon, coupon_history, grant_key`)
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	late := coupon.Cursor{At: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC), ID: n - 2*page}
	cost := costOf(t, s, func() {
		p, err := s.FinishedPage(t.Context(), coupon.Used, now.Add(time.Hour), late, page)
		require.NoError(t, err)
		require.Len(t, p.Old, page)
	})
	require.LessOrEqual(t, cost, 2*page+20)
	for name, most := range map[string]int{"tally": page, "suspects": 2 * page, "steps": 3 * page, "lost": 3 * page, "next": 3} {
		cost := costOf(t, s, func() {
			var err error
			low, high := uint64(n-2*page), uint64(n-page)
			switch name {
			case "tally":
				_, err = s.TallyRange(t.Context(), low, high)
			case "suspects":
				_, err = s.Suspects(t.Context(), low, high, 10)
			case "steps":
				_, err = s.StepTallies(t.Context(), low, high, now)
			case "lost":
				_, err = s.LostCoupons(t.Context(), low, high, 10)
			case "next":
				_, _, err = s.NextCoupon(t.Context(), low)
			}
			require.NoError(t, err)
		})
		t.Logf("%s: %d", name, cost)
		require.LessOrEqual(t, cost, most+2*page+20, name) // and what is put into a table of groups is read from it
	}
}
