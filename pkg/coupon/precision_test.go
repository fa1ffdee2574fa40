package coupon_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
)

var midnight = time.Date(2026, 11, 11, 16, 0, 0, 0, time.UTC)

// The offset belongs to the coupon: it depends on the seed alone, and keeps the promise with time to spare.
func TestDueAtKeepsThePromise(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom([]coupon.Precision{coupon.Exact, coupon.Standard, coupon.Relaxed}).Draw(t, "precision")
		issuer, key := rapid.String().Draw(t, "issuer"), rapid.String().Draw(t, "key")
		ends := time.Unix(rapid.Int64Range(0, 4_000_000_000).Draw(t, "ends"), 0).UTC()
		due := coupon.DueAt(ends, p, issuer, key)
		offset := due.Sub(ends)
		require.GreaterOrEqual(t, offset, time.Duration(0))
		require.Less(t, offset, time.Duration(p.Slots())*time.Second)
		require.Zero(t, offset%time.Second, "a due instant is a whole second, as an end is")
		if p != coupon.Exact {
			require.LessOrEqual(t, offset+10*time.Second, p.Promise(), "time is left for the work itself")
		}
		require.Equal(t, offset, coupon.DueAt(midnight, p, issuer, key).Sub(midnight), "whatever the end")
		require.Equal(t, coupon.Never, coupon.DueAt(coupon.Never, p, issuer, key))
	})
}

func TestDueAtOfExactIsTheEnd(t *testing.T) {
	t.Parallel()
	require.Equal(t, midnight, coupon.DueAt(midnight, coupon.Exact, "shop", "k"))
	require.Equal(t, midnight, coupon.DueAt(midnight, "unknown", "shop", "k"), "what is not known is not spread")
}

func TestSeedsDoNotRunTogether(t *testing.T) {
	t.Parallel()
	differ := 0
	for i := range 100 {
		n := fmt.Sprint(i)
		if coupon.DueAt(midnight, coupon.Relaxed, "a", "b"+n) != coupon.DueAt(midnight, coupon.Relaxed, "ab", n) {
			differ++
		}
	}
	require.Greater(t, differ, 90)
}

// Stored rows keep their offset, so a change here would break nothing; but it would tell two releases apart.
func TestDueAtIsTheSameInEveryRelease(t *testing.T) {
	t.Parallel()
	for seed, want := range map[string][2]int{"k1": {4, 144}, "k2": {15, 425}, "优惠": {27, 357}} {
		require.Equal(t, time.Duration(want[0])*time.Second, coupon.DueAt(midnight, coupon.Standard, "shop", seed).Sub(midnight), seed)
		require.Equal(t, time.Duration(want[1])*time.Second, coupon.DueAt(midnight, coupon.Relaxed, "shop", seed).Sub(midnight), seed)
	}
}

// A campaign's coupons end at one midnight and are known by keys that count up. Spread, no second holds much more than its
// share: chi-square, which for many slots is about normal with mean slots−1 and variance 2(slots−1).
func TestAMidnightSpikeIsFlattened(t *testing.T) {
	t.Parallel()
	const coupons = 300_000
	for _, p := range []coupon.Precision{coupon.Standard, coupon.Relaxed} {
		slots := p.Slots()
		count := make([]int, slots)
		for i := range coupons {
			due := coupon.DueAt(midnight, p, "shop", fmt.Sprintf("double-eleven:%d", i))
			count[int(due.Sub(midnight)/time.Second)]++
		}
		share := float64(coupons) / float64(slots)
		chi, most := 0.0, 0
		for _, n := range count {
			chi += (float64(n) - share) * (float64(n) - share) / share
			most = max(most, n)
		}
		t.Logf("%s: %d coupons end in one second; due in %d seconds, %.0f each, %d at most", p, coupons, slots, share, most)
		freedom := float64(slots - 1)
		require.InDelta(t, freedom, chi, 6*math.Sqrt(2*freedom), "%s: no pattern of the keys shows", p)
		require.Less(t, float64(most), share*1.25)
	}
}

func BenchmarkDueAt(b *testing.B) {
	for b.Loop() {
		coupon.DueAt(midnight, coupon.Relaxed, "shop", "double-eleven:alice:1")
	}
}

// A lock that reaches the end is settled when it runs out: neither it nor the expiry that comes of it is spread.
func TestOwedIsTheDueInstantOrTheEndOfTheLock(t *testing.T) {
	t.Parallel()
	ends, due := midnight, midnight.Add(500*time.Second)
	for _, c := range []struct {
		name  string
		until time.Time
		owed  time.Time
	}{
		{"no lock", time.Time{}, due},
		{"the lock ran out before the end", ends.Add(-time.Second), due},
		{"the lock ends with the coupon", ends, ends},
		{"the lock ends between end and due instant", ends.Add(100 * time.Second), ends.Add(100 * time.Second)},
		{"the lock outlives the due instant", due.Add(time.Minute), due.Add(time.Minute)},
	} {
		require.Equal(t, c.owed, coupon.Row{ExpiresAt: ends, DueAt: due, LockUntil: c.until}.Owed(), c.name)
		at := c.owed.Add(3 * time.Second)
		tr := coupon.Transition{From: coupon.Locked, To: coupon.Expired, ExpiresAt: ends, DueAt: due, LockUntil: c.until, At: at}
		require.Equal(t, 3*time.Second, tr.Lateness(), c.name)
	}
}
