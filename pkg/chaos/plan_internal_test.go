package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/chaos/model"
)

func TestALoadIsItsSeeds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		over := time.Duration(rapid.IntRange(30, 300).Draw(t, "s")) * time.Second
		coupons := rapid.IntRange(100, 2000).Draw(t, "coupons")
		load := plan(seed, coupons, over)
		require.Equal(t, load, plan(seed, coupons, over))
		keys := make(map[string]bool)
		for _, p := range load {
			keys[p.key] = true
			require.Zero(t, p.end%time.Second)
			require.GreaterOrEqual(t, p.end-p.grant, (soonest-1)*time.Second)
			require.Less(t, p.grant, over)
		}
		require.Len(t, keys, coupons)
	})
}

// Whatever can be asked of a coupon is asked of some.
func TestALoadAsksForEverything(t *testing.T) {
	t.Parallel()
	asked := make(map[model.Verb]bool)
	ways := make(map[by]bool)
	for _, p := range plan(1, 2000, time.Minute) {
		ways[p.by] = true
		for _, a := range p.acts {
			asked[a.verb] = true
		}
	}
	require.Len(t, asked, 11)
	require.Len(t, ways, 2)
}

// A run in which hardly anything happened has not held any promise.
func TestARunMustSaySomething(t *testing.T) {
	t.Parallel()
	require.NoError(t, hollow(0, 0, 500, 500))
	require.NoError(t, hollow(15, 8, 500, 250))
	require.EqualError(t, hollow(15, 0, 500, 500), "it says nothing: 0 of 15 faults struck, and 500 of 500 coupons were granted")
	require.Error(t, hollow(15, 15, 500, 40))
}
