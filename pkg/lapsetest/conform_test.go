package lapsetest_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/lapsetest"
	"github.com/lapsehq/lapse/pkg/lapsetest/conform"
	"github.com/lapsehq/lapse/pkg/notice/text"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// unhurried takes the limits of rates away: the suite asks as fast as it can.
func unhurried(c *api.Config) {
	l := &c.Limits
	for _, of := range []*api.LimitConfig{&l.Issue, &l.Order, &l.Read, &l.Ops} {
		of.PerSecond = 0
	}
	c.QueueTimeout = time.Minute
	c.RequestTimeout = time.Minute
}

func TestMemoryConforms(t *testing.T) {
	t.Parallel()
	conform.Run(t, inMemory(t))
}

func inMemory(t testing.TB) conform.Target {
	s := lapsetest.New(t, lapsetest.API(unhurried))
	return conform.Target{
		URL: s.URL, Token: lapsetest.TokenOf,
		Until:  func(_ testing.TB, at time.Time) { s.AdvanceTo(at) },
		Settle: func(testing.TB) {},
		Heard: func(_ testing.TB, id string) (keys []string) {
			for _, e := range s.Events() {
				if e.CouponID == id && e.Key != event.KeyExpiring {
					keys = append(keys, e.Key)
				}
			}
			return keys
		},
		Reminded: func(_ testing.TB, id string) (ids []string) {
			for _, e := range s.Events() {
				if e.CouponID == id && e.Key == event.KeyExpiring {
					ids = append(ids, e.ID)
				}
			}
			return ids
		},
	}
}

// The publisher's API over a real database passes the same suite.
func TestRealAPIConforms(t *testing.T) {
	t.Parallel()
	conform.Run(t, overDatabase(t))
}

const patience = time.Minute

func overDatabase(t testing.TB) conform.Target {
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	offsets, err := coupon.ParseOffsets([]string{"-3d", "-1d", "-30m"})
	require.NoError(t, err)
	reminders := coupon.Reminders{Offsets: offsets, Zone: time.UTC, Leads: map[string]time.Duration{"-3d": 36 * time.Hour, "-1d": 36 * time.Hour, "-30m": 12 * time.Hour}}
	require.NoError(t, s.SetReminders(t.Context(), reminders))
	texts, err := text.New("en")
	require.NoError(t, err)
	c := api.DefaultConfig()
	c.Address, c.Sandbox = "127.0.0.1:0", true
	unhurried(&c)
	for _, scope := range api.Scopes() {
		c.Tokens = append(c.Tokens, api.Token{Name: string(scope) + "-only", Hash: api.HashToken(lapsetest.TokenOf(scope)), Scopes: []string{string(scope)}})
	}
	a, err := api.New(c, api.Deps{
		Templates: s, Checkout: s, Coupons: s, Wallets: s, Grants: s, Stats: s, Keys: s, Notices: s, Receipts: s, Sandbox: s, Texts: texts,
	}, testenv.Log(t).WithOptions(zap.IncreaseLevel(zap.WarnLevel)), prometheus.NewRegistry())
	require.NoError(t, err)
	require.NoError(t, a.Listen(t.Context()))
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
	// Cases run side by side, and a sweep goes past the rows that another has in work: whoever came second would read a coupon
	// that the first has not committed yet.
	var one sync.Mutex
	return conform.Target{
		URL: "http://127.0.0.1:" + strconv.Itoa(a.Port()), Token: lapsetest.TokenOf,
		Until: func(t testing.TB, at time.Time) { until(t, s, &one, at) },
		Settle: func(t testing.TB) {
			_, _, err := s.FoldQuota(t.Context(), store.MaxFolded)
			require.NoError(t, err)
		},
		Heard: func(t testing.TB, id string) []string {
			return column(t, db, "SELECT routing_key FROM outbox WHERE lane = 1 AND coupon_id = ? AND routing_key <> ? ORDER BY id", id, event.KeyExpiring)
		},
		Reminded: func(t testing.TB, id string) []string {
			return column(t, db, "SELECT DISTINCT msg_id FROM outbox WHERE lane = 1 AND coupon_id = ? AND routing_key = ?", id, event.KeyExpiring)
		},
	}
}

// until waits for the database's clock, and settles what is due as the expirer's sweep does.
func until(t testing.TB, s *store.Store, one *sync.Mutex, at time.Time) {
	t.Helper()
	require.Eventually(t, func() bool {
		now, err := s.Now(t.Context())
		return err == nil && !now.Before(at)
	}, patience, 50*time.Millisecond)
	one.Lock()
	defer one.Unlock()
	allow := func(time.Time) error { return nil }
	for _, locks := range []bool{true, false} {
		for from, more := (coupon.Cursor{}), true; more; {
			swept, err := s.SweepBatch(t.Context(), locks, at, from, 500, allow)
			require.NoError(t, err)
			from, more = swept.Next, swept.More
		}
	}
}

// column reads one column of text.
func column(t testing.TB, db testenv.Database, query string, args ...any) (out []string) {
	t.Helper()
	rows, err := db.SQL.QueryContext(t.Context(), query, args...)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var text string
		require.NoError(t, rows.Scan(&text))
		out = append(out, text)
	}
	require.NoError(t, rows.Err())
	return out
}

// The same requests, drawn by chance: memory and database answer the same.
func TestMemoryAndDatabaseAreTwins(t *testing.T) {
	t.Parallel()
	conform.Twins(t, inMemory(t), overDatabase(t), testenv.Seed(t), 400)
}
