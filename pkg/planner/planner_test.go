package planner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/planner"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver takes triggers over, fails a few times first, and tells of every one.
type receiver struct {
	mu    sync.Mutex
	fails int
	got   map[uint64]int
	first map[uint64]time.Time
	ch    chan struct{}
}

func newReceiver(fails int) *receiver {
	return &receiver{fails: fails, got: map[uint64]int{}, first: map[uint64]time.Time{}, ch: make(chan struct{}, 1)}
}

func (r *receiver) Deliver(_ context.Context, now time.Time, ts []coupon.Timed) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := make([]error, len(ts))
	if r.fails > 0 {
		r.fails--
		errs[len(errs)-1] = errors.New("broker away")
		return errs
	}
	for _, t := range ts {
		r.got[t.CouponID]++
		if _, ok := r.first[t.CouponID]; !ok {
			r.first[t.CouponID] = now
		}
	}
	select {
	case r.ch <- struct{}{}:
	default:
	}
	return errs
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got)
}

const limit = time.Second

func config() planner.Config {
	return planner.Config{Slice: time.Second, Guard: 4 * time.Second, Page: 100, Poll: 50 * time.Millisecond, Lease: 2 * time.Second}
}

func run(t testing.TB, s *store.Store, owner string, horizon time.Duration, r *receiver) (stop func()) {
	t.Helper()
	p := planner.New(config(), planner.Deps{
		Rows: s, Deliver: r, Log: testenv.Log(t), Registry: prometheus.NewRegistry(), Owner: owner, Limit: limit, Horizon: horizon,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, p.Run(ctx)) })
	return func() { cancel(); wg.Wait() }
}

// plant inserts coupons that end at the given seconds from now, without triggers, as a verb beyond reach leaves them.
func plant(t testing.TB, d testenv.Database, first, n int, seconds func(i int) int) {
	t.Helper()
	d.Exec(t, `INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason)
		VALUES (1,1,'t','{"kind":"never"}',500,'CNY','exact',UTC_TIMESTAMP(3),'test','') ON DUPLICATE KEY UPDATE id = id`)
	rows := make([]string, n)
	for i := range rows {
		end := fmt.Sprintf("'1970-01-01' + INTERVAL (UNIX_TIMESTAMP() + %d) SECOND", seconds(i))
		rows[i] = fmt.Sprintf("(%d,1,1,'','u',1,1,UTC_TIMESTAMP(3),%s,%s,UTC_TIMESTAMP(3))", first+i, end, end)
	}
	d.Exec(t, `INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at)
		VALUES `+strings.Join(rows, ","))
}

func TestPromotesEverySliceInTimeAndOnce(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 250, func(int) int { return 12 })          // one instant, more than two pages
	plant(t, d, 301, 20, func(i int) int { return 11 + i/4 }) // spread
	plant(t, d, 401, 5, func(int) int { return 3600 })        // far beyond
	d.Exec(t, `UPDATE coupon SET status = 3 WHERE id = 301`)
	r := newReceiver(2)
	stop := run(t, s, "a", 8*time.Second, r)
	testenv.Wait(t, "269 promoted", func() bool { return r.count() == 269 })
	stop()
	for id, at := range r.first {
		var end time.Time
		require.NoError(t, d.SQL.QueryRowContext(t.Context(), `SELECT due_at FROM coupon WHERE id = ?`, id).Scan(&end))
		require.Less(t, at, end, "promoted before it is due")
		require.Greater(t, at.Add(8*time.Second+time.Second), end, "not before its slice is within the horizon")
	}
	for id, n := range r.got {
		require.Equal(t, 1, n, "coupon %d", id)
	}
	require.NotContains(t, r.got, uint64(401))
}

// A planner that dies in mid-slice is resumed by another from the cursor: everything comes, at most a page twice.
func TestResumesFromTheCursor(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	a, b := d.Store(t), d.Store(t)
	plant(t, d, 1, 1500, func(int) int { return 15 })
	r := newReceiver(0)
	stop := run(t, a, "a", 12*time.Second, r)
	<-r.ch
	stop()
	require.Positive(t, r.count())
	stop = run(t, b, "b", 12*time.Second, r)
	testenv.Wait(t, "all promoted", func() bool { return r.count() == 1500 })
	stop()
	twice := 0
	for _, n := range r.got {
		twice += n - 1
	}
	require.LessOrEqual(t, twice, 100)
}

// Two planners share a plan: one works, nothing comes twice.
func TestOneOfTwoWorks(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	a, b := d.Store(t), d.Store(t)
	plant(t, d, 1, 800, func(i int) int { return 6 + i%4 })
	r := newReceiver(0)
	stopA, stopB := run(t, a, "a", 3*time.Second, r), run(t, b, "b", 3*time.Second, r)
	testenv.Wait(t, "all promoted", func() bool { return r.count() == 800 })
	stopA()
	stopB()
	for id, n := range r.got {
		require.Equal(t, 1, n, "coupon %d", id)
	}
}

// When the horizon is lifted, what waited as rows is published, all of it, once.
func TestLiftedHorizonPublishesTheRest(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 150, func(i int) int { return 3600 * (1 + i) })
	r := newReceiver(0)
	stop := run(t, s, "a", 2*time.Second, r)
	testenv.Wait(t, "a frontier", func() bool { return d.Int(t, `SELECT COUNT(*) FROM setting WHERE name = 'frontier'`) == 1 })
	stop()
	require.Zero(t, r.count())
	stop = run(t, s, "a", 0, r)
	testenv.Wait(t, "all published", func() bool { return r.count() == 150 })
	testenv.Wait(t, "no frontier left", func() bool { return d.Int(t, `SELECT COUNT(*) FROM setting WHERE name = 'frontier'`) == 0 })
	stop()
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, planner.DefaultConfig().Validate())
	c := planner.Config{Slice: 1500 * time.Millisecond, Guard: 0, Page: 0, Poll: 0, Lease: 0}
	err := c.Validate()
	for _, field := range []string{"slice: must be whole seconds, got 1.5s", "guard: ", "page: must be between 1 and 10000, got 0", "poll: ", "lease: "} {
		require.ErrorContains(t, err, field)
	}
	require.ErrorContains(t, planner.Config{Slice: time.Minute, Guard: 2 * time.Minute}.ValidateLimit(10*time.Second), "guard: must be above")
	require.NoError(t, planner.Config{Slice: time.Second, Guard: 6 * time.Second}.ValidateLimit(3*time.Second))
}
