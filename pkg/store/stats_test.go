package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// steps lists, for each state, those that may follow, and the moves that stay.
var steps = map[coupon.Status][]coupon.Status{
	coupon.Unused: {coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided},
	coupon.Locked: {coupon.Locked, coupon.Unused, coupon.Used, coupon.Expired, coupon.Voided},
	coupon.Used:   {coupon.Unused, coupon.Expired},
}

// live draws the lives of n coupons of three templates, from the id on, over four days around midnight.
func live(t *rapid.T, first uint64, n int) []coupon.Counted {
	var events []coupon.Counted
	for id := first; id < first+uint64(n); id++ {
		e := coupon.Counted{CouponID: id, TemplateID: 1 + id%3, To: coupon.Unused, Value: int64(100 * (1 + id%3))}
		at := time.Date(2026, 3, 1, 23, 59, 59, 999_000_000, time.UTC)
		for e.Version = 1; ; e.Version++ {
			e.Moved = e.From == e.To
			e.At = at
			events = append(events, e)
			next := steps[e.To]
			if len(next) == 0 || e.Version > 6 || rapid.IntRange(0, 5).Draw(t, "rest") == 0 {
				break
			}
			e.From, e.To = e.To, rapid.SampledFrom(next).Draw(t, "next")
			at = at.Add(rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Hour, 24 * time.Hour}).Draw(t, "later"))
		}
	}
	return events
}

// write plants what the events tell of, in the archive or not.
func write(t require.TestingT, d testenv.Database, events []coupon.Counted, archive bool) {
	table, history := "coupon", "coupon_history"
	columns, values := "", ""
	if archive {
		table, history, columns, values = "coupon_archive", "coupon_history_archive", ", archived_at", ",UTC_TIMESTAMP(3)"
	}
	var rows, steps []string
	for i, e := range events {
		at := e.At.Format("'2006-01-02 15:04:05.000'")
		steps = append(steps, fmt.Sprintf("(%d,%d,%d,%d,'order',%s,%s,%s,'','','','','','',NULL,NULL)", e.CouponID, e.Version, e.From, e.To, at, at, at))
		if i == len(events)-1 || events[i+1].CouponID != e.CouponID {
			rows = append(rows, fmt.Sprintf("(%d,%d,1,'','u',%d,%d,%s,%s,%s,%s%s)", e.CouponID, e.TemplateID, e.To, e.Version, at, at, at, at, values))
		}
	}
	for _, q := range []string{
		"INSERT INTO " + table + " (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at" +
			columns + ") VALUES " + strings.Join(rows, ","),
		"INSERT INTO " + history + " VALUES " + strings.Join(steps, ","),
	} {
		_, err := d.SQL.ExecContext(context.Background(), q)
		require.NoError(t, err)
	}
}

// agree holds template_stats against history, by plain SQL.
func agree(t require.TestingT, d testenv.Database) {
	const columns = `SUM(h.from_status = 0), SUM(h.from_status = 1 AND h.to_status = 2), SUM(h.from_status = 2 AND h.to_status = 1),
		SUM(h.from_status IN (1,2) AND h.to_status = 3), SUM(h.from_status = 3), SUM(h.from_status IN (1,2,3) AND h.to_status = 4),
		SUM(h.from_status IN (1,2) AND h.to_status = 5),
		SUM(t.value * (h.from_status = 0)), SUM(t.value * (h.to_status = 3)), SUM(t.value * (h.from_status = 3)),
		SUM(t.value * (h.to_status = 4)), SUM(t.value * (h.to_status = 5))`
	const wanted = `SELECT CONCAT_WS(' ', c.template_id, DATE(h.at), ` + columns + `) FROM (
		SELECT coupon_id, version, from_status, to_status, at FROM coupon_history
		UNION ALL SELECT coupon_id, version, from_status, to_status, at FROM coupon_history_archive) h
		JOIN (SELECT id, template_id, revision FROM coupon UNION ALL SELECT id, template_id, revision FROM coupon_archive) c ON c.id = h.coupon_id
		JOIN coupon_template t ON t.id = c.template_id AND t.revision = c.revision
		WHERE h.from_status <> h.to_status GROUP BY c.template_id, DATE(h.at) ORDER BY c.template_id, DATE(h.at)`
	const kept = `SELECT CONCAT_WS(' ', template_id, day, granted, locked, released, used, refunded, expired, voided,
		granted_value, used_value, refunded_value, expired_value, voided_value) FROM template_stats ORDER BY template_id, day`
	require.Equal(t, texts(t, d, wanted), texts(t, d, kept))
	// What was granted is what there is, in one state each.
	const states = `SELECT COUNT(*) FROM (SELECT template_id, SUM(granted) AS n, SUM(used) - SUM(refunded) AS used,
		SUM(expired) AS expired, SUM(voided) AS voided FROM template_stats GROUP BY template_id) s
		LEFT JOIN (SELECT template_id, COUNT(*) AS n, SUM(status = 3) AS used, SUM(status = 4) AS expired, SUM(status = 5) AS voided
			FROM (SELECT template_id, status FROM coupon UNION ALL SELECT template_id, status FROM coupon_archive) a GROUP BY template_id) c
		ON c.template_id = s.template_id AND c.n = s.n AND c.used = s.used AND c.expired = s.expired AND c.voided = s.voided
		WHERE c.template_id IS NULL`
	require.Equal(t, []string{"0"}, texts(t, d, states))
}

func texts(t require.TestingT, d testenv.Database, query string) (all []string) {
	rows, err := d.SQL.QueryContext(context.Background(), query)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	for rows.Next() {
		var s string
		require.NoError(t, rows.Scan(&s))
		all = append(all, s)
	}
	require.NoError(t, rows.Err())
	return all
}

func threeTemplates(t testing.TB, d testenv.Database) {
	t.Helper()
	for id := 1; id <= 3; id++ {
		d.Exec(t, `INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason)
			VALUES (?,1,'t','{"kind":"never"}',?,'CNY','exact',UTC_TIMESTAMP(3),'test','')`, id, 100*id)
	}
}

// TestStatsAgreeWithHistory: whatever happened, however it is told (again, out of order, by several pods, broken off
// before and after the commit), and whatever of it was not told at all and is found by the seeding.
func TestStatsAgreeWithHistory(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	stores := []*store.Store{d.Store(t), d.Store(t)}
	threeTemplates(t, d)
	first := uint64(1)
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(rt, "coupons")
		events := live(rt, first, n)
		old := live(rt, first+uint64(n), 2)
		_, err := d.SQL.ExecContext(context.Background(), `DELETE FROM setting WHERE name = 'ledger.seed'`)
		require.NoError(rt, err)
		// Some were told of before anyone listened.
		missed := rapid.IntRange(0, len(events)).Draw(rt, "missed")
		seed := rapid.Uint64().Draw(rt, "seed")
		first += uint64(n) + 2
		write(rt, d, events, false)
		write(rt, d, old, true)
		var failed [2]error
		var wg sync.WaitGroup
		for pod := range stores {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(pod)))
				told := append([]coupon.Counted(nil), events[missed:]...)
				r.Shuffle(len(told), func(i, j int) { told[i], told[j] = told[j], told[i] })
				for len(told) > 0 {
					batch := told[:min(len(told), 1+r.IntN(20))]
					ctx, cancel := context.WithCancel(context.Background())
					if r.IntN(10) == 0 { // a crash, at any point; the broker brings the batch again
						ctx, cancel = context.WithTimeout(context.Background(), time.Duration(r.IntN(4000))*time.Microsecond)
					}
					_, err := stores[pod].CountEvents(ctx, batch)
					cut := ctx.Err() != nil
					cancel()
					switch {
					case err == nil:
						if r.IntN(5) > 0 { // else: a crash between commit and ack
							told = told[len(batch):]
						}
					case !cut && !errors.Is(err, coupon.ErrUnavailable):
						failed[pod] = err
						return
					}
				}
				for done := false; !done; {
					var err error
					_, done, err = stores[pod].SeedStats(context.Background(), 10+r.IntN(40))
					if err != nil && !errors.Is(err, coupon.ErrUnavailable) {
						failed[pod] = err
						return
					}
				}
			})
		}
		wg.Wait()
		for pod := range failed {
			require.NoError(rt, failed[pod])
		}
		agree(rt, d)
		again, err := stores[0].CountEvents(context.Background(), append(events, old...))
		require.NoError(rt, err)
		require.Zero(rt, again)
	})
	agree(t, d)
}

func TestCountEventsTellsWhatIsNew(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	day := time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC)
	grant := coupon.Counted{CouponID: 7, Version: 1, TemplateID: 1, To: coupon.Unused, At: day, Value: 500}
	lock := coupon.Counted{CouponID: 7, Version: 2, TemplateID: 1, From: coupon.Unused, To: coupon.Locked, At: day, Value: 500}
	renewed := coupon.Counted{CouponID: 7, Version: 3, TemplateID: 1, From: coupon.Locked, To: coupon.Locked, Moved: true, At: day, Value: 500}
	used := coupon.Counted{CouponID: 7, Version: 4, TemplateID: 1, From: coupon.Locked, To: coupon.Used, At: day.Add(time.Hour), Value: 500}
	refunded := coupon.Counted{CouponID: 7, Version: 5, TemplateID: 1, From: coupon.Used, To: coupon.Expired, At: day.Add(time.Hour), Value: 500}
	for _, call := range []struct {
		events []coupon.Counted
		fresh  int
	}{
		{nil, 0},
		{[]coupon.Counted{lock, grant, lock}, 2},
		{[]coupon.Counted{lock, grant}, 0},
		{[]coupon.Counted{renewed}, 1},
		{[]coupon.Counted{refunded, used, renewed, grant}, 2},
	} {
		n, err := s.CountEvents(t.Context(), call.events)
		require.NoError(t, err)
		require.Equal(t, call.fresh, n)
	}
	first := coupon.DayStats{Day: day.Truncate(24 * time.Hour), Granted: 1, Locked: 1, GrantedValue: 500}
	second := coupon.DayStats{
		Day: first.Day.AddDate(0, 0, 1), Used: 1, Refunded: 1, Expired: 1, UsedValue: 500, RefundedValue: 500, ExpiredValue: 500,
	}
	for _, c := range []struct {
		from, to time.Time
		want     []coupon.DayStats
	}{
		{time.Time{}, time.Time{}, []coupon.DayStats{first, second}},
		{day, time.Time{}, []coupon.DayStats{first, second}},
		{second.Day, time.Time{}, []coupon.DayStats{second}},
		{time.Time{}, day, []coupon.DayStats{first}},
		{day, day, []coupon.DayStats{first}},
	} {
		got, err := s.TemplateStats(t.Context(), 1, c.from, c.to)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	_, err := s.TemplateStats(t.Context(), 2, time.Time{}, time.Time{})
	require.ErrorIs(t, err, coupon.ErrNotFound)
	id := create(t, s, nil)
	got, err := s.TemplateStats(t.Context(), id, day.AddDate(1, 0, 0), time.Time{})
	require.NoError(t, err)
	require.Empty(t, got)
	_, err = s.CountEvents(t.Context(), make([]coupon.Counted, store.MaxCounted+1))
	require.ErrorContains(t, err, "at most 1000")
}

// One that the database refuses fails its call whole, and says that it is the event's fault.
func TestCountEventsRefusesWhatCannotBeCounted(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	good := coupon.Counted{CouponID: 1, Version: 1, TemplateID: 1, To: coupon.Unused, At: at, Value: 1 << 62}
	_, err := s.CountEvents(t.Context(), []coupon.Counted{good})
	require.NoError(t, err)
	over := good
	over.CouponID, over.Value = 2, 1<<62
	_, err = s.CountEvents(t.Context(), []coupon.Counted{over})
	require.ErrorIs(t, err, coupon.ErrIntegrity)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM ledger_seen`))
	require.EqualValues(t, 1, d.Int(t, `SELECT granted FROM template_stats`))
}

// TestSeedingIsOnce: it can be broken off anywhere, goes on where it was, and when it is done it looks at nothing.
func TestSeedingIsOnce(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 2500, coupon.Unused, future, "NULL")
	total, calls := 0, 0
	for done := false; !done; calls++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+calls%3)*time.Minute)
		if calls%3 == 1 {
			cancel()
		}
		n, over, err := s.SeedStats(ctx, 1000)
		cancel()
		if calls%3 == 1 {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		total, done = total+n, over
	}
	require.Equal(t, 2500, total)
	agree(t, d)
	// Later coupons' events come by themselves.
	plant(t, d, 2501, 10, coupon.Unused, future, "NULL")
	n, done, err := s.SeedStats(t.Context(), 1000)
	require.NoError(t, err)
	require.Equal(t, []any{0, true}, []any{n, done})
	require.EqualValues(t, 2500, d.Int(t, `SELECT SUM(granted) FROM template_stats`))
	d.Exec(t, `UPDATE setting SET value = 'nonsense' WHERE name = 'ledger.seed'`)
	_, _, err = s.SeedStats(t.Context(), 1000)
	require.ErrorContains(t, err, `got "nonsense"`)
}

func TestSeedingWaitsForNobody(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 10, coupon.Unused, future, "NULL")
	_, _, err := s.SeedStats(t.Context(), 5)
	require.NoError(t, err)
	tx, err := d.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), `SELECT value FROM setting WHERE name = 'ledger.seed' FOR UPDATE`)
	require.NoError(t, err)
	n, done, err := s.SeedStats(t.Context(), 5)
	require.NoError(t, err)
	require.Equal(t, []any{0, false}, []any{n, done})
	require.NoError(t, tx.Rollback())
}

func TestPruneTombstones(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	d.Exec(t, `INSERT INTO order_tombstone VALUES (1,'a',1,0,UTC_TIMESTAMP(3) - INTERVAL 31 DAY), (2,'b',1,0,UTC_TIMESTAMP(3) - INTERVAL 32 DAY),
		(3,'c',0,1,UTC_TIMESTAMP(3) - INTERVAL 29 DAY)`)
	for _, want := range []int{1, 1, 0} {
		n, err := s.PruneTombstones(t.Context(), 30*24*time.Hour, 1)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	require.EqualValues(t, 3, d.Int(t, `SELECT coupon_id FROM order_tombstone`))
}

// A page of a walk, or a batch of events, costs what it holds, however much was counted before.
func TestLedgerCosts(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	d.Store(t) // migrates
	const n, page = 20_000, 500
	plant(t, d, 1, n, coupon.Unused, future, "NULL")
	d.Exec(t, `INSERT INTO ledger_seen SELECT coupon_id, version FROM coupon_history`)
	d.Exec(t, "ANALYZE TABLE coupon, coupon_history, ledger_seen, coupon_template")
	c, err := d.SQL.Conn(t.Context())
	require.NoError(t, err)
	defer c.Close()
	late := n - 2*page
	read := rowsRead(t, c, statement(t, "seed.live"), late, n, late, late, 1, page)
	require.LessOrEqual(t, read, 4*page+20)
	read = rowsRead(t, c, strings.Replace(statement(t, "stats.seen"), "IN (?)", "IN (?,?,?)", 1), 10, 400, late, 1, 1)
	require.LessOrEqual(t, read, 20)
}

// TestSeedingMeetsWhatARefundBringsBack: a coupon that was archived before the walk reached it, and came back before the
// walk reached the archive.
func TestSeedingMeetsWhatARefundBringsBack(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	finished(t, d, s, 4) // 1 and 4 are used
	moved := archiveAll(t.Context(), t, s, month, 10)
	require.Equal(t, 4, moved.Moved)
	plant(t, d, 5, 3, coupon.Unused, future, "NULL")
	for range 2 { // past them among the live, not yet in the archive
		_, done, err := s.SeedStats(t.Context(), 2)
		require.NoError(t, err)
		require.False(t, done)
	}
	done(t, s, ask(coupon.VerbRefund, "o", 1))
	for over := false; !over; {
		var err error
		_, over, err = s.SeedStats(t.Context(), 2)
		require.NoError(t, err)
	}
	// The refund itself is told by its event.
	fresh, err := s.CountEvents(t.Context(), []coupon.Counted{{CouponID: 1, Version: 4, TemplateID: 1, From: coupon.Used, To: coupon.Unused, At: time.Now(), Value: 500}})
	require.NoError(t, err)
	require.Equal(t, 1, fresh)
	agree(t, d)
	done(t, s, ask(coupon.VerbRefund, "o", 4)) // from now on nothing is looked for
	require.EqualValues(t, 1, d.Int(t, `SELECT SUM(refunded) FROM template_stats`))
}
