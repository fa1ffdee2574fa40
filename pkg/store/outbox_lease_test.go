package store_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const longLease = time.Minute

func claim(t testing.TB, s *store.Store, owner string) coupon.OutboxClaim {
	t.Helper()
	c, err := s.ClaimParts(t.Context(), owner, longLease)
	require.NoError(t, err)
	return c
}

func TestPartitionsAreSharedFairly(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	require.Len(t, claim(t, s, "a").Parts, 16)
	for n := 2; n <= 5; n++ {
		names := strings.Split("abcde"[:n], "")
		require.Empty(t, claim(t, s, names[n-1]).Parts, "all is taken, but the newcomer is known now")
		for _, name := range names[:n-1] {
			c := claim(t, s, name)
			require.Equal(t, n, c.Live)
			require.NoError(t, s.ReleaseParts(t.Context(), name, c.Surplus))
		}
		var all []int
		for _, name := range names {
			c := claim(t, s, name)
			require.Empty(t, c.Surplus)
			require.GreaterOrEqual(t, len(c.Parts), 16/n)
			require.LessOrEqual(t, len(c.Parts), 16/n+1)
			all = append(all, c.Parts...)
		}
		slices.Sort(all)
		require.Len(t, slices.Compact(all), 16, "each partition has one owner")
	}
	// One leaves in order, one dies: the others take what they had.
	require.NoError(t, s.LeaveParts(t.Context(), "b"))
	d.Exec(t, `UPDATE outbox_part SET lease_until = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE owner = 'e'`)
	d.Exec(t, `UPDATE setting SET updated_at = UTC_TIMESTAMP(3) - INTERVAL 1 HOUR WHERE name LIKE 'relay.%'`)
	total := 0
	for _, name := range []string{"a", "c", "d"} {
		c := claim(t, s, name)
		require.Equal(t, 3, c.Live)
		total += len(c.Parts)
	}
	require.Equal(t, 16, total)
	require.NoError(t, s.ReleaseParts(t.Context(), "a", claim(t, s, "c").Parts), "not a's to give")
	require.Len(t, claim(t, s, "c").Parts, 5)
}

// At most one of many that ask at once gets a partition.
func TestPartitionsAreClaimedOnce(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	one, two := d.Store(t), d.Store(t)
	var mu sync.Mutex
	owners := make(map[int][]string)
	var g errgroup.Group
	for i := range 8 {
		s := one
		if i%2 == 1 {
			s = two
		}
		name := fmt.Sprintf("relay-%d", i)
		g.Go(func() error {
			c, err := s.ClaimParts(t.Context(), name, longLease)
			mu.Lock()
			defer mu.Unlock()
			for _, p := range c.Parts {
				owners[p] = append(owners[p], name)
			}
			return err
		})
	}
	require.NoError(t, g.Wait())
	require.Len(t, owners, 16)
	for p, names := range owners {
		require.Len(t, names, 1, "partition %d", p)
	}
}

// published is what a broker would have got, in order.
type published struct {
	mu  sync.Mutex
	ids []string
}

func (p *published) add(rows []coupon.Outgoing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = append(p.ids, messages(rows)...)
}

// check demands every message at least once, and each coupon's first appearances in order. It gives the repeats.
func (p *published) check(t testing.TB, coupons, each int) (repeats int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := make(map[string]bool)
	next := make(map[int]int)
	for _, id := range p.ids {
		if seen[id] {
			repeats++
			continue
		}
		seen[id] = true
		var c, n int
		_, err := fmt.Sscanf(id, "%d:%d", &c, &n)
		require.NoError(t, err)
		next[c]++
		require.Equal(t, next[c], n, "coupon %d", c)
	}
	require.Len(t, seen, coupons*each)
	return repeats
}

func TestCompetingRelaysPublishEverythingInOrder(t *testing.T) {
	t.Parallel()
	const coupons, each = 100, 20
	d := testenv.NewDatabase(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out published
	var g errgroup.Group
	for i, s := range []*store.Store{d.Store(t), d.Store(t), d.Store(t)} {
		g.Go(func() error {
			owner := fmt.Sprintf("relay-%d", i)
			for ctx.Err() == nil {
				c, err := s.ClaimParts(t.Context(), owner, longLease)
				if err != nil {
					return err
				}
				if err := s.ReleaseParts(t.Context(), owner, c.Surplus); err != nil {
					return err
				}
				parts := slices.DeleteFunc(c.Parts, func(p int) bool { return slices.Contains(c.Surplus, p) })
				rows, _, _, err := s.OutboxBatch(t.Context(), coupon.LaneEvent, start(parts...), 100)
				if err != nil {
					return err
				}
				out.add(rows)
				if err := s.DeleteOutbox(t.Context(), coupon.LaneEvent, byPart(rows)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for n := 1; n <= each; n++ {
		var ids []string
		for c := range coupons {
			ids = append(ids, fmt.Sprintf("%d:%d", c, n))
		}
		leave(t, d.SQL, coupon.LaneEvent, ids...)
	}
	testenv.Wait(t, "an empty outbox", func() bool { return d.Int(t, `SELECT COUNT(*) FROM outbox`) == 0 })
	cancel()
	require.NoError(t, g.Wait())
	require.Zero(t, out.check(t, coupons, each), "repeats without a stall")
}

// A relay reads, stalls until its lease has run out and another has published the same rows and more, then goes on as
// if nothing had happened.
func TestStalledOwnerCostsRepeatsOnly(t *testing.T) {
	t.Parallel()
	const coupons, each = 40, 3
	d := testenv.NewDatabase(t)
	slow, quick := d.Store(t), d.Store(t)
	var out published
	all := func(n int) (ids []string) {
		for c := range coupons {
			ids = append(ids, fmt.Sprintf("%d:%d", c, n))
		}
		return ids
	}
	leave(t, d.SQL, coupon.LaneEvent, all(1)...)
	c := claim(t, slow, "slow")
	require.Len(t, c.Parts, 16)
	inHand, _, _, err := slow.OutboxBatch(t.Context(), coupon.LaneEvent, start(c.Parts...), 1000)
	require.NoError(t, err)
	require.Len(t, inHand, coupons)

	d.Exec(t, `UPDATE outbox_part SET lease_until = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND`)
	d.Exec(t, `UPDATE setting SET updated_at = UTC_TIMESTAMP(3) - INTERVAL 1 HOUR WHERE name LIKE 'relay.%'`)
	leave(t, d.SQL, coupon.LaneEvent, all(2)...)
	c = claim(t, quick, "quick")
	require.Len(t, c.Parts, 16, "a dead owner's partitions are taken")
	rows, _, _, err := quick.OutboxBatch(t.Context(), coupon.LaneEvent, start(c.Parts...), 1000)
	require.NoError(t, err)
	out.add(rows)
	require.NoError(t, quick.DeleteOutbox(t.Context(), coupon.LaneEvent, byPart(rows)))

	leave(t, d.SQL, coupon.LaneEvent, all(3)...)
	out.add(inHand)
	require.NoError(t, slow.DeleteOutbox(t.Context(), coupon.LaneEvent, byPart(inHand)))
	require.Empty(t, claim(t, slow, "slow").Parts)
	c = claim(t, quick, "quick")
	require.Len(t, c.Surplus, 8, "the stalled one is back and asks for its share")
	rows, _, _, err = quick.OutboxBatch(t.Context(), coupon.LaneEvent, start(c.Parts...), 1000)
	require.NoError(t, err)
	out.add(rows)
	require.Equal(t, coupons, out.check(t, coupons, each))
}
