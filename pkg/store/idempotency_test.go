package store_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const idemLease = time.Minute

// TestIdempotencyKeyIsGivenToOne: of many that come at once, one is to do it; afterwards all get the same answer.
func TestIdempotencyKeyIsGivenToOne(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	body := [32]byte{1}
	var fresh, busy int
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			got, err := s.BeginIdempotent(t.Context(), "shop", "k", body, idemLease)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Error(err)
			case got.State == coupon.IdempotentFresh:
				fresh++
			case got.State == coupon.IdempotentBusy:
				busy++
			}
		})
	}
	all.Wait()
	require.Equal(t, []int{1, 63}, []int{fresh, busy})

	require.NoError(t, s.FinishIdempotent(t.Context(), "shop", "k", 200, []byte(`{"a":1}`)))
	require.ErrorIs(t, s.FinishIdempotent(t.Context(), "shop", "k", 200, []byte(`{"a":2}`)), coupon.ErrConflict)
	require.NoError(t, s.AbandonIdempotent(t.Context(), "shop", "k"), "an answer stays")
	got, err := s.BeginIdempotent(t.Context(), "shop", "k", body, idemLease)
	require.NoError(t, err)
	require.Equal(t, coupon.Idempotent{State: coupon.IdempotentAnswered, Status: 200, Answer: []byte(`{"a":1}`)}, got)

	got, err = s.BeginIdempotent(t.Context(), "shop", "k", [32]byte{2}, idemLease)
	require.NoError(t, err)
	require.Equal(t, coupon.Idempotent{State: coupon.IdempotentReused}, got)
	got, err = s.BeginIdempotent(t.Context(), "other", "k", [32]byte{2}, idemLease)
	require.NoError(t, err)
	require.Equal(t, coupon.IdempotentFresh, got.State, "keys are the caller's own")
}

func TestIdempotencyKeyGivenUp(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	begin := func(body byte) coupon.Idempotent {
		got, err := s.BeginIdempotent(t.Context(), "shop", "k", [32]byte{body}, idemLease)
		require.NoError(t, err)
		return got
	}
	require.Equal(t, coupon.IdempotentFresh, begin(1).State)
	require.Equal(t, coupon.IdempotentBusy, begin(1).State)
	require.NoError(t, s.AbandonIdempotent(t.Context(), "shop", "k"))
	require.Equal(t, coupon.IdempotentFresh, begin(2).State, "what came to nothing is forgotten, its body too")
}

// TestTemplateIsMadeOnce: whoever takes over from a try that died after its commit finds what it made; one that was only
// slow cannot make a second.
func TestTemplateIsMadeOnce(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	tpl := coupon.Template{
		Name: "t", Rule: coupon.Rule{Kind: coupon.RuleNever}, Terms: coupon.Terms{Value: 1, Currency: "EUR", Precision: coupon.Exact},
		Actor: "a", Reason: "r",
	}
	begin := func() coupon.Idempotent {
		got, err := s.BeginIdempotent(t.Context(), "shop", "k", [32]byte{1}, idemLease)
		require.NoError(t, err)
		return got
	}
	leaseEnds := func() { d.Exec(t, "UPDATE idempotency_key SET lease_until = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND") }

	_, err := s.CreateTemplateOnce(t.Context(), tpl, "shop", "k")
	require.ErrorIs(t, err, coupon.ErrConflict, "no key has begun")
	require.Zero(t, d.Int(t, "SELECT COUNT(*) FROM template_stock"))

	require.Empty(t, begin().Answer)
	leaseEnds()
	require.Empty(t, begin().Answer, "taken over before anything was made")
	id, err := s.CreateTemplateOnce(t.Context(), tpl, "shop", "k")
	require.NoError(t, err)
	_, err = s.CreateTemplateOnce(t.Context(), tpl, "shop", "k")
	require.ErrorIs(t, err, coupon.ErrConflict)
	require.EqualValues(t, 1, d.Int(t, "SELECT COUNT(*) FROM template_stock"))
	require.ErrorIs(t, s.FinishIdempotent(t.Context(), "shop", "k", 409, nil), coupon.ErrConflict, "it was made: no failure stands for it")

	leaseEnds()
	got := begin()
	require.Equal(t, coupon.IdempotentFresh, got.State)
	require.EqualValues(t, d.Int(t, "SELECT MAX(template_id) FROM template_stock"), id)
	require.Equal(t, strconv.FormatUint(id, 10), string(got.Answer))
	require.NoError(t, s.AbandonIdempotent(t.Context(), "shop", "k"))
	got = begin()
	require.Equal(t, coupon.IdempotentFresh, got.State, "given back at once")
	require.Equal(t, strconv.FormatUint(id, 10), string(got.Answer), "with what was made")
}

func TestIdempotencyKeysArePruned(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	for _, key := range []string{"old", "older", "young", "at work"} {
		_, err := s.BeginIdempotent(t.Context(), "shop", key, [32]byte{}, idemLease)
		require.NoError(t, err)
	}
	d.Exec(t, "UPDATE idempotency_key SET created_at = created_at - INTERVAL 25 HOUR WHERE idem_key <> 'young'")
	d.Exec(t, "UPDATE idempotency_key SET lease_until = lease_until - INTERVAL 25 HOUR WHERE idem_key <> 'at work'")
	n, err := s.PruneIdempotent(t.Context(), 24*time.Hour, 1)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = s.PruneIdempotent(t.Context(), 24*time.Hour, 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, 2, d.Int(t, "SELECT COUNT(*) FROM idempotency_key WHERE idem_key IN ('young', 'at work')"))
}
