package linear_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/notice/text"
	"github.com/lapsehq/lapse/pkg/rig/linear"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const (
	pairs    = 200
	atOnce   = 70 // pairs
	clients  = 3  // of a pair
	moments  = 5  // of a pair, at which each client makes a call
	patience = time.Minute
)

// fleet is two pods of the API over one database, and a sweep that settles what is due.
type fleet struct {
	pods      []*client.Client
	templates map[coupon.LatePay]string
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	db := testenv.NewDatabase(t)
	f := &fleet{templates: map[coupon.LatePay]string{}}
	for range 2 {
		f.pods = append(f.pods, newPod(t, db))
	}
	for _, policy := range []coupon.LatePay{coupon.HonourLock, coupon.Strict} {
		made, err := f.pods[0].CreateTemplate(t.Context(), client.Terms{
			Name: string(policy), Rule: client.Rule{Kind: "never"}, Value: 500, Currency: "CNY", LatePayPolicy: string(policy),
			LatePayWindow: lateWindow.String(), Reason: "linear",
		})
		require.NoError(t, err)
		f.templates[policy] = made.TemplateID
	}
	s := db.Store(t)
	testenv.Run(t, func(ctx context.Context) error { return sweep(ctx, s) })
	return f
}

const lateWindow = time.Second

func newPod(t *testing.T, db testenv.Database) *client.Client {
	t.Helper()
	s := db.Store(t)
	c := api.DefaultConfig()
	c.Address, c.QueueTimeout, c.RequestTimeout = "127.0.0.1:0", patience, patience
	c.Tokens = []api.Token{{Name: "shop", Hash: api.HashToken("s3cret"), Scopes: []string{"issue", "order", "read", "ops"}}}
	for _, limit := range []*api.LimitConfig{&c.Limits.Issue, &c.Limits.Order, &c.Limits.Read, &c.Limits.Ops} {
		limit.PerSecond, limit.Waiting = 0, 1000 // as fast as they can
	}
	texts, err := text.New("en")
	require.NoError(t, err)
	a, err := api.New(c, api.Deps{
		Templates: s, Checkout: s, Coupons: s, Wallets: s, Grants: s, Stats: s, Keys: s, Notices: s, Texts: texts,
	}, testenv.Log(t).WithOptions(zap.IncreaseLevel(zap.WarnLevel)), prometheus.NewRegistry())
	require.NoError(t, err)
	require.NoError(t, a.Listen(t.Context()))
	testenv.Run(t, a.Run)
	pod, err := client.New(client.Config{
		URL: "http://127.0.0.1:" + strconv.Itoa(a.Port()), Token: "s3cret", Actor: "linear", Attempts: 1, Timeout: patience, MaxConns: clients * atOnce,
	})
	require.NoError(t, err)
	t.Cleanup(pod.Close)
	return pod
}

// sweep settles what is due five times a second, so that calls meet both what is settled and what is not.
func sweep(ctx context.Context, s *store.Store) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	allow := func(time.Time) error { return nil }
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := s.Now(ctx)
		for _, locks := range []bool{true, false} {
			for from, more := (coupon.Cursor{}), true; more && err == nil; {
				var swept coupon.Swept
				swept, err = s.SweepBatch(ctx, locks, now, from, 500, allow)
				from, more = swept.Next, swept.More
			}
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, coupon.ErrContention) {
			return err
		}
	}
}

// pair grants two coupons that end in one to three seconds, or never.
func (f *fleet) pair(ctx context.Context, r *rand.Rand, n int) (*linear.Pair, error) {
	p := &linear.Pair{Name: fmt.Sprint("pair-", n), User: fmt.Sprint("user-", n)}
	policy := coupon.HonourLock
	if r.IntN(2) == 0 {
		policy = coupon.Strict
	}
	for i := range p.Coupons {
		g := client.Grant{GrantKey: fmt.Sprint(p.Name, "-", i), TemplateID: f.templates[policy], UserID: p.User, Never: r.IntN(8) == 0}
		if !g.Never {
			end := coupon.CeilSecond(time.Now().Add(time.Duration(1+r.IntN(2)) * time.Second))
			g.ExpiresAt = &end
		}
		granted, err := f.pods[0].Grant(ctx, g)
		if err != nil {
			return nil, err
		}
		c, err := f.pods[0].Coupon(ctx, granted.CouponID)
		if err != nil {
			return nil, err
		}
		id, err := strconv.ParseUint(c.CouponID, 10, 64)
		if err != nil {
			return nil, err
		}
		end := coupon.Never
		if c.ExpiresAt != nil {
			end = c.ExpiresAt.UTC()
		}
		p.Coupons[i] = coupon.Coupon{
			Row: coupon.Row{
				ID: id, Status: coupon.Unused, Version: c.Version, ValidFrom: c.ValidFrom.UTC(), ExpiresAt: end, DueAt: end, LatePay: policy, LateWindow: lateWindow,
			},
			Terms:  coupon.Terms{Value: c.Value, Currency: c.Currency, Precision: coupon.Exact, LatePay: policy, LateWindow: lateWindow},
			UserID: p.User, GrantedAt: c.GrantedAt.UTC(),
		}
	}
	return p, nil
}

// game is a pair with what its clients recorded.
type game struct {
	pair    *linear.Pair
	history []linear.Event
	away    int
}

// play lets the clients have their plan, and one of them look at the end.
func (f *fleet) play(ctx context.Context, seed uint64, n int) (game, error) {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	p, err := f.pair(ctx, r, n)
	if err != nil {
		return game{}, err
	}
	rec := linear.NewRecorder(p, f.pods...)
	for _, m := range linear.NewPlan(r, p, time.Now(), clients, moments) {
		if err := lifecycle.Sleep(ctx, time.Until(m.At)); err != nil {
			return game{}, err
		}
		var wg sync.WaitGroup
		errs := make([]error, len(m.Calls))
		for i, c := range m.Calls {
			wg.Go(func() {
				ctx, hangUp := ctx, context.CancelFunc(func() {})
				if m.CutOff[i] > 0 {
					ctx, hangUp = context.WithTimeout(ctx, m.CutOff[i])
				}
				defer hangUp()
				errs[i] = rec.Do(ctx, i, c)
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return game{}, err
		}
	}
	for i := range p.Coupons {
		if err := rec.Do(ctx, 0, linear.Call{Verb: linear.Show, Of: []int{i}, Key: linear.NoKey}); err != nil {
			return game{}, err
		}
	}
	g := game{pair: p}
	g.history, g.away = rec.History()
	return g, nil
}

// Three clients, two pods and the sweep have two hundred pairs of coupons at once, while their ends pass and their locks run out: the answers of
// each pair are those of one call after the other.
func TestTheAPIIsLinearizable(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	seed := testenv.Seed(t)
	games := make([]game, pairs)
	playing, ctx := errgroup.WithContext(t.Context())
	playing.SetLimit(atOnce)
	begun := time.Now()
	for n := range games {
		playing.Go(func() (err error) {
			games[n], err = f.play(ctx, seed, n)
			return err
		})
	}
	require.NoError(t, playing.Wait())
	t.Logf("played for %s", time.Since(begun).Round(time.Millisecond))

	begun = time.Now()
	for _, g := range games {
		if err := g.pair.Check(g.history, patience); err != nil {
			page, drawing := g.pair.Draw(g.history, patience)
			require.NoError(t, drawing)
			require.NoError(t, err, "seed %d: open %s", seed, page)
		}
		// And what is found right is found wrong with more steps than workers and cut-off calls can explain.
		lie := slices.Clone(g.history)
		last := &lie[len(lie)-1]
		answer := *last.Answer
		answer.Shown[0].Version += 10
		last.Answer = &answer
		require.ErrorIs(t, g.pair.Check(lie, patience), linear.ErrNotLinear, g.pair.Name)
	}
	t.Logf("checked twice in %s", time.Since(begun).Round(time.Millisecond))
	requireOccasions(t, games)
}

// requireOccasions: a history in which nothing happens shows nothing.
func requireOccasions(t *testing.T, games []game) {
	t.Helper()
	calls, away, seen := 0, 0, map[string]int{}
	for _, g := range games {
		calls, away = calls+len(g.history), away+g.away
		for _, e := range g.history {
			switch {
			case e.Answer == nil:
				seen["cut off"]++
			case e.Answer.Code != "":
				seen["refused: "+string(e.Answer.Code)]++
			case e.Answer.Shown[0].Repeated:
				seen["repeated"]++
			default:
				seen["done: "+string(e.Call.Verb)]++
			}
			if a := e.Answer; a != nil && e.Call.Verb == linear.Show && a.Shown[0].State != a.Shown[0].Stored {
				seen["shown before it was settled"]++
			}
		}
	}
	t.Logf("%d calls, %d sent away; %v", calls, away, seen)
	require.Greater(t, calls, 2000)
	require.Less(t, away, calls/10)
	for _, what := range []string{
		"cut off", "repeated", "refused: expired", "refused: locked_by_other_order", "refused: already_used", "refused: not_found", "done: lock",
		"done: renew", "done: redeem", "done: release", "done: refund", "done: extend", "done: void", "done: show", "shown before it was settled",
	} {
		require.NotZero(t, seen[what], what)
	}
}
