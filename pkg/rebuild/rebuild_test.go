package rebuild_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/operation"
	"github.com/lapsehq/lapse/pkg/rebuild"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver takes triggers over, and fails as asked.
type receiver struct {
	mu   sync.Mutex
	got  map[string]int // by kind and coupon
	of   map[uint64]coupon.Timed
	fail func(batch int, ts []coupon.Timed) []error // nil: never
	n    int
}

func newReceiver() *receiver {
	return &receiver{got: map[string]int{}, of: map[uint64]coupon.Timed{}}
}

func (r *receiver) Deliver(_ context.Context, _ time.Time, ts []coupon.Timed) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	errs := make([]error, len(ts))
	if r.fail != nil {
		errs = r.fail(r.n, ts)
	}
	for i, t := range ts {
		if errs[i] == nil {
			r.got[fmt.Sprintf("%s %d", t.Kind, t.CouponID)]++
			r.of[t.CouponID] = t
		}
	}
	return errs
}

// plant inserts coupons of a status that are due (or whose lock ends) so many seconds from now.
func plant(t testing.TB, d testenv.Database, first, n int, status coupon.Status, seconds func(i int) int) {
	t.Helper()
	d.Exec(t, `INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason)
		VALUES (1,1,'t','{"kind":"never"}',500,'CNY','relaxed',UTC_TIMESTAMP(3),'test','') ON DUPLICATE KEY UPDATE id = id`)
	rows := make([]string, n)
	for i := range rows {
		at := fmt.Sprintf("'1970-01-01' + INTERVAL (UNIX_TIMESTAMP() + %d) SECOND", seconds(i))
		end, until := at, "NULL"
		if status == coupon.Locked {
			end, until = "'2040-01-01'", at
		}
		rows[i] = fmt.Sprintf("(%d,1,1,'','u',%d,%d,UTC_TIMESTAMP(3),%s,%s,%s,UTC_TIMESTAMP(3))", first+i, status, 3, end, end, until)
	}
	d.Exec(t, `INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, lock_until, granted_at)
		VALUES `+strings.Join(rows, ","))
}

var ask = coupon.RebuildAsk{Target: "p at broker/v", Grace: time.Minute}

func config(page int) rebuild.Config {
	c := rebuild.DefaultConfig()
	c.Page, c.Lease, c.Patience = page, time.Second, time.Second
	return c
}

func run(t testing.TB, s *store.Store, owner string, r *receiver, ask coupon.RebuildAsk, page int) coupon.RebuildPlace {
	t.Helper()
	b := rebuild.New(config(page), owner, s, r, testenv.Log(t))
	w, place, err := b.Claim(t.Context(), ask)
	require.NoError(t, err)
	place, err = b.Run(t.Context(), w, place, func(coupon.RebuildPlace) {})
	require.NoError(t, err)
	require.True(t, place.Done)
	return place
}

// peek says whether an unfinished one would be gone on with, and where.
func peek(t testing.TB, s *store.Store, ask coupon.RebuildAsk) (resumed bool, place coupon.RebuildPlace) {
	t.Helper()
	op, place, err := rebuild.New(config(1), "", s, nil, testenv.Log(t)).Peek(t.Context(), ask)
	require.NoError(t, err)
	return op.Resumed, place
}

func TestPublishesWhatWaitsAndNothingElse(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 250, coupon.Unused, func(int) int { return 3600 }) // one instant, more than two pages
	plant(t, d, 301, 30, coupon.Unused, func(i int) int { return 10 * i })
	plant(t, d, 401, 5, coupon.Unused, func(int) int { return -30 })   // overdue, within the grace
	plant(t, d, 411, 5, coupon.Unused, func(int) int { return -3600 }) // the sweep's
	plant(t, d, 501, 120, coupon.Locked, func(i int) int { return 60 + i })
	plant(t, d, 701, 5, coupon.Locked, func(int) int { return -3600 })
	for i, status := range []coupon.Status{coupon.Used, coupon.Expired, coupon.Voided} {
		plant(t, d, 801+10*i, 5, status, func(int) int { return 600 })
	}
	plant(t, d, 901, 1, coupon.Unused, func(int) int { return 600 })
	d.Exec(t, `UPDATE coupon SET expires_at = '9999-12-31', due_at = '9999-12-31' WHERE id = 901`)

	_, place := peek(t, s, ask)
	n, err := s.RebuildCounts(t.Context(), place)
	require.NoError(t, err)
	require.Equal(t, coupon.RebuildCounts{Unlocks: 120, Expires: 285, Overdue: 10}, n)

	r := newReceiver()
	place = run(t, s, "a", r, ask, 100)
	require.Equal(t, [2]int64{120, 285}, [2]int64{place.Unlocks, place.Expires})
	require.Len(t, r.got, 405)
	for key, times := range r.got {
		require.Equal(t, 1, times, key)
	}
	for id, kind := range map[uint64]coupon.Kind{1: coupon.KindExpire, 301: coupon.KindExpire, 401: coupon.KindExpire, 501: coupon.KindUnlock} {
		timed := r.of[id]
		require.Equal(t, kind, timed.Kind)
		require.Equal(t, coupon.Relaxed.Class(), timed.Class)
		trigger, err := event.DecodeTrigger(timed.Body)
		require.NoError(t, err)
		require.Equal(t, coupon.Trigger{
			Kind: kind, CouponID: id, At: timed.At, Origin: coupon.OriginRebuild, ID: fmt.Sprintf("b%d.3", id),
		}, trigger)
	}

	// What is done is not gone on with: the next one begins again.
	place = run(t, s, "b", newReceiver(), ask, 1000)
	require.Equal(t, [2]int64{120, 285}, [2]int64{place.Unlocks, place.Expires})
}

// With a finite horizon it covers what lies before the planner's frontier, and what verbs publish beyond it themselves.
func TestStopsAtTheHorizon(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	require.NoError(t, s.SetHorizon(t.Context(), time.Hour, 10*time.Minute))
	plant(t, d, 1, 10, coupon.Unused, func(int) int { return 3600 + 300 })   // within the guard
	plant(t, d, 101, 10, coupon.Unused, func(int) int { return 3600 + 900 }) // beyond
	plant(t, d, 201, 10, coupon.Locked, func(int) int { return 7200 })       // no planner walks locks
	r := newReceiver()
	place := run(t, s, "a", r, ask, 1000)
	require.Equal(t, [2]int64{10, 10}, [2]int64{place.Unlocks, place.Expires})
	n, err := s.RebuildCounts(t.Context(), coupon.RebuildPlace{Until: place.Until, Since: place.Since})
	require.NoError(t, err)
	require.Equal(t, coupon.RebuildCounts{Unlocks: 10, Expires: 10, Beyond: 10}, n)

	// The planner has come further: so must the rebuild.
	d.Exec(t, `INSERT INTO setting (name, value, updated_at) VALUES ('frontier', CAST((UNIX_TIMESTAMP() + 4500) * 1000 AS UNSIGNED), UTC_TIMESTAMP(3))`)
	place = run(t, s, "b", newReceiver(), ask, 1000)
	require.Equal(t, int64(20), place.Expires)
}

var errAway = errors.New("broker away")

// Broken off in the middle, it goes on where it stood, repeating a page at most; --from-scratch and another target begin again.
func TestGoesOnWhereItStood(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 1000, coupon.Unused, func(i int) int { return 600 + i/100 })
	plant(t, d, 2001, 100, coupon.Locked, func(i int) int { return 600 + i })
	r := newReceiver()
	dead, die := context.WithCancelCause(t.Context())
	killed := errors.New("killed")
	b := rebuild.New(config(50), "a", s, r, testenv.Log(t))
	w, place, err := b.Claim(t.Context(), ask)
	require.NoError(t, err)
	place, err = b.Run(dead, w, place, func(p coupon.RebuildPlace) {
		if p.Expires == 300 {
			die(killed)
		}
	})
	require.ErrorIs(t, err, killed)
	require.Equal(t, [2]int64{100, 300}, [2]int64{place.Unlocks, place.Expires})

	resumed, _ := peek(t, s, ask)
	require.True(t, resumed)
	for name, other := range map[string]coupon.RebuildAsk{
		"another target": {Target: "q at broker/v"}, "from scratch": {Target: ask.Target, FromScratch: true},
	} {
		resumed, from := peek(t, s, other)
		require.False(t, resumed, name)
		require.Zero(t, from.Expires, name)
	}

	d.Exec(t, `UPDATE operation SET updated_at = updated_at - INTERVAL 1 HOUR`)
	resumed, _ = peek(t, s, ask)
	require.False(t, resumed, "who knows what was lost since")
	d.Exec(t, `UPDATE operation SET updated_at = updated_at + INTERVAL 1 HOUR`)

	place = run(t, s, "b", r, ask, 50)
	require.Equal(t, [2]int64{100, 1000}, [2]int64{place.Unlocks, place.Expires})
	require.Len(t, r.got, 1100)
	for key, times := range r.got {
		require.Equal(t, 1, times, key)
	}
}

// There is one in the installation, whatever it is to do.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	b := rebuild.New(config(5), "a", s, newReceiver(), testenv.Log(t))
	_, _, err := b.Claim(t.Context(), ask)
	require.NoError(t, err)
	op, err := s.ClaimOperation(t.Context(), "b", rebuild.Kind, [32]byte{}, []byte(`{"target":"another"}`), true, time.Second)
	require.NoError(t, err)
	require.False(t, op.Held)
}

// What the broker refuses is sent again, and nothing else; the place moves only when all of a page is confirmed.
func TestABrokerThatRefuses(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 100, coupon.Unused, func(i int) int { return 600 + i })
	r := newReceiver()
	r.fail = func(n int, ts []coupon.Timed) []error {
		errs := make([]error, len(ts))
		if n%2 == 1 {
			errs[len(ts)-1] = errAway
		}
		return errs
	}
	run(t, s, "a", r, ask, 40)
	require.Len(t, r.got, 100)
	for key, times := range r.got {
		require.Equal(t, 1, times, key)
	}

	// One that takes nothing is given up, and the place stays.
	r = newReceiver()
	r.fail = func(_ int, ts []coupon.Timed) []error {
		errs := make([]error, len(ts))
		for i := range errs {
			errs[i] = errAway
		}
		return errs
	}
	b := rebuild.New(config(40), "b", s, r, testenv.Log(t))
	w, place, err := b.Claim(t.Context(), ask)
	require.NoError(t, err)
	place, err = b.Run(t.Context(), w, place, func(coupon.RebuildPlace) {})
	require.ErrorIs(t, err, errAway)
	require.Zero(t, place.Expires)
	require.Empty(t, r.got)
	resumed, _ := peek(t, s, ask)
	require.True(t, resumed)
}

func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	require.NoError(t, rebuild.DefaultConfig().Validate())
	err := rebuild.Config{Config: operation.Config{Rate: 0.5}, Patience: 2 * time.Hour}.Validate()
	for _, text := range []string{"page: ", "rate: ", "lease: ", "patience: "} {
		require.ErrorContains(t, err, text)
	}
}
