package api_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

// BenchmarkLockAndRedeem is a pair of calls over HTTP against the store's verbs alone, 32 at a time.
func BenchmarkLockAndRedeem(b *testing.B) {
	unlimited := func(c *api.Config, d *store.Config) {
		d.MaxOpen = 40
		c.Limits.Order.Concurrent, c.Limits.Order.Waiting = 32, 4000
	}
	for _, way := range []string{"store", "http"} {
		b.Run(way, func(b *testing.B) {
			s := newShop(b, unlimited)
			template := s.template()
			var ids []string
			for len(ids) < b.N {
				ids = append(ids, s.grant(template, "u", min(b.N-len(ids), store.MaxGrants))...)
			}
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
			defer client.CloseIdleConnections()
			post := func(id, verb string) error {
				body := fmt.Sprintf(`{"user_id":"u","coupon_ids":[%q],"lock_for":"1h"}`, id)
				if verb == "redeem" {
					body = fmt.Sprintf(`{"user_id":"u","coupon_ids":[%q]}`, id)
				}
				req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, s.url+"/v1/orders/o-"+id+"/"+verb, bytes.NewReader([]byte(body)))
				if err != nil {
					return err
				}
				req.Header.Set("Authorization", "Bearer order")
				req.Header.Set("Content-Type", "application/json")
				res, err := client.Do(req)
				if err != nil {
					return err
				}
				defer res.Body.Close()
				if out, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
					return fmt.Errorf("%s: %d %s: %w", verb, res.StatusCode, out, err)
				}
				return nil
			}
			call := func(id string, verb coupon.Verb) error {
				n, err := strconv.ParseUint(id, 10, 64)
				if err != nil {
					return err
				}
				o := coupon.Order{Verb: verb, OrderID: "o-" + id, UserID: "u", CouponIDs: []uint64{n}, LockFor: coupon.DefaultLock}
				_, _, err = s.store.Act(b.Context(), o)
				return err
			}
			var next atomic.Int64
			b.SetParallelism(16) // on two cores
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					id := ids[next.Add(1)-1]
					for _, verb := range []coupon.Verb{coupon.VerbLock, coupon.VerbRedeem} {
						var failed error
						if way == "http" {
							failed = post(id, string(verb))
						} else {
							failed = call(id, verb)
						}
						require.NoError(b, failed)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
		})
	}
}

// BenchmarkClaims are single grants of one template with a limit per user, two hundred at a time.
func BenchmarkClaims(b *testing.B) {
	s := newSite(b, func(c *api.Config, _ *api.Deps) { c.Limits.Issue.PerSecond = 0 })
	template := s.template(func(t *coupon.Template) { t.Quota, t.PerUser = 10_000_000, 1 })
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
	defer client.CloseIdleConnections()
	var next atomic.Int64
	b.SetParallelism(100) // on two cores
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := next.Add(1)
			body := fmt.Sprintf(`{"grants":[{"grant_key":"k%d","template_id":"%d","user_id":"u%d"}]}`, i, template, i)
			req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, s.url+"/v1/grants", bytes.NewReader([]byte(body)))
			require.NoError(b, err)
			req.Header.Set("Authorization", "Bearer issue")
			req.Header.Set("Content-Type", "application/json")
			res, err := client.Do(req)
			require.NoError(b, err)
			out, err := io.ReadAll(res.Body)
			require.NoError(b, err)
			require.NoError(b, res.Body.Close())
			require.Equal(b, http.StatusOK, res.StatusCode, "%s", out)
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "claims/s")
}
