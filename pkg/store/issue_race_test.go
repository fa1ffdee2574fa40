package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// inParallel runs n calls at once and waits for them.
func inParallel(n int, call func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			call(i)
		})
	}
	close(start)
	wg.Wait()
}

func TestIssueQuotaHoldsUnderParallelGrants(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	stores := []*store.Store{db.Store(t), db.Store(t)}
	template := create(t, stores[0], func(c *coupon.Template) { c.Quota = 10 })

	var granted, exhausted atomic.Int64
	inParallel(64, func(i int) {
		n := strconv.Itoa(i)
		answers, err := stores[i%2].Issue(t.Context(), []coupon.Grant{grant(template, "u"+n, "k"+n)})
		if err != nil {
			t.Error(err)
			return
		}
		switch answers[0].Refused {
		case "":
			granted.Add(1)
		case coupon.CodeQuotaExhausted:
			exhausted.Add(1)
		default:
			t.Errorf("refused: %s", answers[0].Refused)
		}
	})
	require.Equal(t, []int64{10, 54}, []int64{granted.Load(), exhausted.Load()})
	require.EqualValues(t, 10, db.Int(t, `SELECT COUNT(*) FROM coupon`))
	require.EqualValues(t, 54, db.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.refused'`))
	consistent(t, db)
}

func TestIssueParallelBatchesFillAQuotaExactly(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	stores := []*store.Store{db.Store(t), db.Store(t)}
	template := create(t, stores[0], func(c *coupon.Template) { c.Quota, c.PerUser = 130, 4 })
	var granted atomic.Int64
	inParallel(8, func(i int) {
		var grants []coupon.Grant
		for n := range 40 {
			grants = append(grants, grant(template, fmt.Sprintf("u%d", (n*7+i)%50), fmt.Sprintf("k%d.%d", i, n)))
		}
		answers, err := stores[i%2].Issue(t.Context(), grants)
		if err != nil {
			t.Error(err)
			return
		}
		for _, a := range answers {
			if a.Refused == "" {
				granted.Add(1)
			}
		}
	})
	require.EqualValues(t, 130, granted.Load())
	require.EqualValues(t, 130, db.Int(t, `SELECT COUNT(*) FROM coupon`))
	consistent(t, db)
}

func TestIssueUserLimitHoldsUnderParallelGrants(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	stores := []*store.Store{db.Store(t), db.Store(t)}
	template := create(t, stores[0], func(c *coupon.Template) { c.PerUser = 3 })
	var granted atomic.Int64
	inParallel(32, func(i int) {
		n := strconv.Itoa(i)
		answers, err := stores[i%2].Issue(t.Context(), []coupon.Grant{grant(template, "greedy", "k"+n), grant(template, "u"+n, "o"+n)})
		if err != nil {
			t.Error(err)
			return
		}
		if answers[0].Refused == "" {
			granted.Add(1)
		} else if answers[0].Refused != coupon.CodeUserLimit {
			t.Errorf("refused: %s", answers[0].Refused)
		}
		if answers[1].Refused != "" {
			t.Errorf("another user: %s", answers[1].Refused)
		}
	})
	require.EqualValues(t, 3, granted.Load())
	consistent(t, db)
}

func TestIssueSameKeyInParallelGivesOneCouponAndEqualAnswers(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	stores := []*store.Store{db.Store(t), db.Store(t)}
	// The last one of the stock: whoever comes second must not hear that it is taken.
	template := create(t, stores[0], func(c *coupon.Template) { c.Quota, c.PerUser = 1, 1 })
	answers := make([]coupon.Granted, 32)
	inParallel(len(answers), func(i int) {
		got, err := stores[i%2].Issue(t.Context(), []coupon.Grant{grant(template, "u", "k")})
		if err != nil {
			t.Error(err)
			return
		}
		answers[i] = got[0]
	})
	first := 0
	for _, a := range answers {
		require.Empty(t, a.Refused)
		require.Equal(t, answers[0].CouponID, a.CouponID)
		require.Equal(t, answers[0].ExpiresAt, a.ExpiresAt)
		if !a.Repeated {
			first++
		}
	}
	require.Equal(t, 1, first)
	require.EqualValues(t, 1, db.Int(t, `SELECT COUNT(*) FROM coupon`))
	consistent(t, db)
}

func TestIssueOverlappingBatchesInAnyOrder(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	stores := []*store.Store{db.Store(t), db.Store(t)}
	template := create(t, stores[0], func(c *coupon.Template) { c.Quota, c.PerUser = 150, 10 })
	var mu sync.Mutex
	ids := make(map[string]map[uint64]bool)
	inParallel(10, func(i int) {
		var grants []coupon.Grant
		for _, n := range rand.New(rand.NewPCG(uint64(i), 1)).Perm(100) {
			grants = append(grants, grant(template, fmt.Sprintf("u%d", n%20), fmt.Sprintf("k%d", n)))
		}
		answers, err := stores[i%2].Issue(t.Context(), grants)
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for j, a := range answers {
			if a.Refused != "" {
				t.Errorf("refused: %s", a.Refused)
			}
			if ids[grants[j].Key] == nil {
				ids[grants[j].Key] = make(map[uint64]bool)
			}
			ids[grants[j].Key][a.CouponID] = true
		}
	})
	require.Len(t, ids, 100)
	for key, got := range ids {
		require.Len(t, got, 1, key)
	}
	require.EqualValues(t, 100, db.Int(t, `SELECT COUNT(*) FROM coupon`))
	consistent(t, db)
}

func TestIssueParallelBatchesKeepIdsAndUsersTogether(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, nil)
	inParallel(8, func(i int) {
		for round := range 5 {
			grants := make([]coupon.Grant, 1+(i*37+round*61)%400)
			for n := range grants {
				key := fmt.Sprintf("%d.%d.%d", i, round, n)
				grants[n] = grant(template, key, key)
			}
			if _, err := s.Issue(t.Context(), grants); err != nil {
				t.Error(err)
			}
		}
	})
	require.Zero(t, db.Int(t, `SELECT COUNT(*) FROM grant_key k JOIN coupon c ON c.id = k.coupon_id WHERE c.user_id <> k.grant_key`))
	consistent(t, db)
}

// BenchmarkIssue: 2 workers, batches of 500 of one template, all effects written.
func BenchmarkIssue(b *testing.B) {
	for _, c := range []struct {
		name    string
		perUser int64
	}{{"plain", 0}, {"per_user", 5}} {
		b.Run(c.name, func(b *testing.B) {
			db := testenv.NewDatabase(b)
			s := db.Store(b)
			template := create(b, s, func(t *coupon.Template) { t.Quota, t.PerUser = 1<<40, c.perUser })
			const batch, workers = 500, 2
			ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
			defer cancel()
			var next atomic.Int64
			b.ResetTimer()
			start := time.Now()
			inParallel(workers, func(int) {
				for {
					n := next.Add(1)
					if n > int64(b.N) {
						return
					}
					grants := make([]coupon.Grant, batch)
					for i := range grants {
						key := fmt.Sprintf("%d.%d", n, i)
						grants[i] = grant(template, "user-"+key, key)
					}
					if _, err := s.Issue(ctx, grants); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N*batch)/time.Since(start).Seconds(), "grants/s")
		})
	}
}
