package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	speedRuns    = 3
	speedRun     = 5 * time.Second
	speedConns   = 32
	paceRun      = 5 * time.Second
	speedBound   = 0.55
	p99Bound     = 10
	claimsFor    = 5 * time.Second
	hotStock     = 20_000
	claimsBound  = 1000
	claimWorkers = 200
	spare        = 2000 // coupons granted at once while a run uses them up
)

// stock hands coupons out, each once.
type stock struct {
	ids  []string
	next atomic.Int64
}

func (k *stock) take() (string, bool) {
	i := k.next.Add(1) - 1
	if i >= int64(len(k.ids)) {
		return "", false
	}
	return k.ids[i], true
}

var errSoldOut = errors.New("too few coupons were granted for this machine's speed")

// speed runs lock and redeem over HTTP and as bare transactions, in turns, on the same rows of the same database.
func (w *checkout) speed(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		bare, err := newBare(ctx, s)
		if err != nil {
			return err
		}
		defer bare.close()
		http := func(ctx context.Context, id string) error { return s.lockAndRedeem(ctx, id, false) }
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		var rates [2][]float64
		pairs := [2]func(context.Context, string) error{bare.pair, http}
		need := spare
		for run := range speedRuns + 1 { // the first one warms up
			for k, pair := range pairs {
				rate, err := w.race(ctx, s, template, fmt.Sprintf("%d-%d", run, k), need, pair)
				if err != nil {
					return err
				}
				need = max(need, int(rate*speedRun.Seconds()*1.5)+spare)
				if run > 0 {
					rates[k] = append(rates[k], rate)
				}
				w.cfg.View.Step(fmt.Sprintf("%s: %.0f lock + redeem a second", [...]string{"bare transactions", "over HTTP"}[k], rate))
			}
		}
		bareRate, httpRate := median(rates[0]), median(rates[1])
		told(t, "bare_pairs_per_s", int(bareRate))
		told(t, "http_pairs_per_s", int(httpRate))
		want(t, "http_to_bare", httpRate/bareRate, AtLeast, speedBound)
		keyed, err := w.race(ctx, s, template, "keyed", need, func(ctx context.Context, id string) error {
			return s.lockAndRedeem(ctx, id, true)
		})
		if err != nil {
			return err
		}
		told(t, "http_pairs_with_keys_per_s", int(keyed))
		if err := w.paced(ctx, s, template, httpRate/2, pairs); err != nil {
			return err
		}
		if err := w.hotTemplate(ctx, s); err != nil {
			return err
		}
		rest, cancel := context.WithTimeout(ctx, awayDrain)
		defer cancel()
		if err := drainedWithin(rest, s); err != nil {
			return err
		}
		return s.agreed(ctx, "", false)
	})
}

// lockAndRedeem is a pair over HTTP, with an Idempotency-Key for each call or without.
func (s *shop) lockAndRedeem(ctx context.Context, id string, keys bool) error {
	ask := client.Order{UserID: "one", CouponIDs: []string{id}, LockFor: time.Hour}
	locking, redeeming := ctx, ctx
	if keys {
		locking, redeeming = client.WithIdempotencyKey(ctx, "lock-"+id), client.WithIdempotencyKey(ctx, "redeem-"+id)
	}
	if _, err := s.api.Lock(locking, "speed-"+id, ask); err != nil {
		return err
	}
	_, err := s.api.Redeem(redeeming, "speed-"+id, ask)
	return err
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// fill grants coupons for a run and waits until their own messages are sent.
func (s *shop) fill(ctx context.Context, template, name string, n int) (*stock, error) {
	ids, err := s.grant(ctx, template, n, func(i int, g *client.Grant) { g.UserID, g.GrantKey = "one", name+"-"+strconv.Itoa(i) })
	if err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeout(ctx, awayDrain)
	defer cancel()
	return &stock{ids: ids}, drainedWithin(limit, s)
}

// race lets 32 workers do as many pairs as they can, and gives the pairs per second.
func (w *checkout) race(ctx context.Context, s *shop, template, name string, n int, pair func(context.Context, string) error) (float64, error) {
	k, err := s.fill(ctx, template, "race-"+name, n)
	if err != nil {
		return 0, err
	}
	var done atomic.Int64
	var mu sync.Mutex
	var first error
	var workers sync.WaitGroup
	start := time.Now()
	for range speedConns {
		workers.Go(func() {
			for time.Since(start) < speedRun && ctx.Err() == nil {
				id, ok := k.take()
				if !ok {
					return
				}
				if err := pair(ctx, id); err != nil {
					mu.Lock()
					first = cmp.Or(first, err)
					mu.Unlock()
					return
				}
				done.Add(1)
			}
		})
	}
	workers.Wait()
	took := time.Since(start)
	if first != nil {
		return 0, first
	}
	if took < speedRun && took < time.Second {
		return 0, errSoldOut
	}
	return float64(done.Load()) / took.Seconds(), ctx.Err()
}

// paced offers both the same load, half of what HTTP can do, and compares how long a pair takes.
func (w *checkout) paced(ctx context.Context, s *shop, template string, rate float64, pairs [2]func(context.Context, string) error) error {
	var p99 [2]float64
	for k, name := range []string{"bare", "http"} {
		var runs []float64
		for run := range speedRuns {
			st, err := s.fill(ctx, template, fmt.Sprintf("paced-%d-%d", run, k), int(rate*paceRun.Seconds())+1)
			if err != nil {
				return err
			}
			var mu sync.Mutex
			var took []time.Duration
			var failed atomic.Int64
			var all sync.WaitGroup
			start := time.Now()
			for i, id := range st.ids {
				due := start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
				if err := lifecycle.Sleep(ctx, time.Until(due)); err != nil {
					break
				}
				all.Go(func() {
					if err := pairs[k](ctx, id); err != nil {
						failed.Add(1)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					took = append(took, time.Since(due)) // from when it was due: what waits is late
				})
			}
			all.Wait()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if failed.Load() > 0 {
				return fmt.Errorf("%d pairs failed at half the load (%s)", failed.Load(), name)
			}
			runs = append(runs, late(took, 99))
		}
		p99[k] = median(runs)
	}
	told(s.t, "paced_pairs_per_s", int(rate))
	want(s.t, "paced_bare_p99_ms", p99[0], AtLeast, 0)
	want(s.t, "paced_http_p99_ms", p99[1], AtMost, p99Bound*p99[0])
	return nil
}

// hotTemplate lets many users claim from one template over HTTP, first as fast as they can, then more than there are.
func (w *checkout) hotTemplate(ctx context.Context, s *shop) error {
	hot, err := s.template(ctx, func(t *client.Terms) { t.Quota, t.PerUser = hotStock, 1 })
	if err != nil {
		return err
	}
	claim := func(i int64) error {
		_, err := s.api.Grant(ctx, client.Grant{GrantKey: "hot-" + strconv.FormatInt(i, 10), TemplateID: hot, UserID: "hot-" + strconv.FormatInt(i, 10)})
		return err
	}
	var next, granted, refused, failed atomic.Int64
	var workers sync.WaitGroup
	start := time.Now()
	for range claimWorkers {
		workers.Go(func() {
			for time.Since(start) < claimsFor && ctx.Err() == nil {
				switch answerOf(claim(next.Add(1))) {
				case "ok":
					granted.Add(1)
				case string(client.CodeQuotaExhausted):
					refused.Add(1)
				default:
					failed.Add(1)
				}
			}
		})
	}
	workers.Wait()
	took := time.Since(start)
	want(s.t, "claims_per_s", float64(granted.Load()+refused.Load())/took.Seconds(), AtLeast, claimsBound)
	want(s.t, "claims_failed", failed.Load(), Equal, 0)
	rows, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE template_id = ?", hot)
	if err != nil {
		return err
	}
	want(s.t, "claimed_rows", rows, Equal, granted.Load())
	want(s.t, "over_issue", max(0, rows-hotStock), Equal, 0)
	return nil
}
