package coupon_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
)

var someInstant = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func anyUserEvents(t *rapid.T, deletions bool) []coupon.UserEvent {
	// Distinct instants: of two profiles of one instant the first that comes stays.
	order := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7}).Draw(t, "instants")
	out := make([]coupon.UserEvent, rapid.IntRange(1, len(order)).Draw(t, "events"))
	for i := range out {
		e := coupon.UserEvent{UserID: "u", At: someInstant.Add(time.Duration(order[i]) * time.Minute)}
		switch kind := rapid.IntRange(0, 3).Draw(t, "type"); {
		case kind == 0 && deletions:
			e.Deleted = true
		case kind <= 1:
			e.Profile = &coupon.ProfileChange{Locale: string(rune('a' + i)), Zone: "UTC", Sealed: []byte{byte(i)}, Key: "k"}
			for range rapid.IntRange(0, 2).Draw(t, "outs") {
				e.Profile.OptOuts = append(e.Profile.OptOuts, coupon.OptOut{
					Channel: rapid.SampledFrom([]coupon.Channel{coupon.ChannelSMS, coupon.AllChannels}).Draw(t, "channel"), Kind: coupon.AllKinds,
					Out: rapid.Bool().Draw(t, "out"), At: someInstant.Add(time.Duration(rapid.IntRange(0, 7).Draw(t, "decided")) * time.Minute),
				})
			}
		default:
			e.Activity = rapid.SampledFrom([]coupon.ActivityKind{"login", "browse", "cart", "order"}).Draw(t, "activity")
		}
		out[i] = e
	}
	return out
}

func knownOf(events []coupon.UserEvent, now time.Time) coupon.Known {
	k := coupon.Known{Decisions: map[coupon.OptOutOf]coupon.OptOut{}}
	for i := range events {
		k.Apply(&events[i], now)
	}
	return k
}

// In whatever order events come, and however often: the same is known afterwards.
func TestKnownDoesNotDependOnTheOrder(t *testing.T) {
	now := someInstant.Add(time.Hour)
	rapid.Check(t, func(t *rapid.T) {
		deletions := rapid.Bool().Draw(t, "deletions")
		events := anyUserEvents(t, deletions)
		want := knownOf(events, now)
		again := rapid.Permutation(append(events, events...)).Draw(t, "order")
		got := knownOf(again, now)
		if deletions { // then what they did may wait for a profile
			for _, k := range []*coupon.Known{&want, &got} {
				k.LoginAt, k.BrowseAt, k.CartAt, k.OrderedAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
			}
		}
		require.Equal(t, want, got)
	})
}

// After a deletion nothing is known that was told before it, and nothing that is told of a deleted user but decisions.
func TestKnownForgets(t *testing.T) {
	now := someInstant.Add(time.Hour)
	rapid.Check(t, func(t *rapid.T) {
		events := anyUserEvents(t, true)
		deleted := someInstant.Add(time.Duration(rapid.IntRange(0, 8).Draw(t, "deleted"))*time.Minute - time.Second)
		at := rapid.IntRange(0, len(events)).Draw(t, "at")
		events = append(events[:at:at], append([]coupon.UserEvent{{UserID: "u", At: deleted, Deleted: true}}, events[at:]...)...)
		k := knownOf(events, now)
		require.False(t, k.DeletedAt.Before(deleted))
		for _, fact := range []time.Time{k.ProfileAt, k.LoginAt, k.BrowseAt, k.CartAt, k.OrderedAt} {
			require.True(t, fact.IsZero() || fact.After(k.DeletedAt))
			require.True(t, fact.IsZero() || !k.Erased())
		}
		for _, o := range k.Decisions {
			require.True(t, o.At.After(k.DeletedAt))
		}
		if k.ProfileAt.IsZero() {
			require.Empty(t, k.Locale+k.Zone+k.Key+string(k.Sealed))
		}
	})
}

// A sender whose clock is ahead shuts nobody out.
func TestTheFutureCountsAsNow(t *testing.T) {
	var k coupon.Known
	k.Apply(&coupon.UserEvent{At: someInstant.AddDate(1, 0, 0), Deleted: true}, someInstant)
	require.Equal(t, someInstant, k.DeletedAt)
	require.True(t, k.Erased())
	later := someInstant.Add(time.Millisecond)
	k.Apply(&coupon.UserEvent{At: later, Activity: coupon.ActivityCart}, later)
	require.Zero(t, k.CartAt, "nobody has said that this is a user again")
	k.Apply(&coupon.UserEvent{At: later, Profile: &coupon.ProfileChange{
		Locale: "en", OptOuts: []coupon.OptOut{{Channel: coupon.ChannelSMS, Kind: coupon.AllKinds, Out: true, At: later.AddDate(1, 0, 0)}},
	}}, later)
	require.False(t, k.Erased())
	require.Equal(t, later, k.Decisions[coupon.OptOutOf{Channel: coupon.ChannelSMS, Kind: coupon.AllKinds}].At)
	later = later.Add(time.Millisecond)
	k.Apply(&coupon.UserEvent{At: later, Activity: coupon.ActivityCart}, later)
	require.Equal(t, later, k.CartAt)
}

// Profiles that hurry ahead all count as of now: of those that come together the last holds, in whatever order they came.
func TestTheLastOfTheFutureHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := anyUserEvents(t, false)
		now := someInstant.Add(time.Duration(rapid.IntRange(-1, 8).Draw(t, "now")) * time.Minute)
		want, last := "", time.Time{}
		es := make([]*coupon.UserEvent, len(events))
		for i := range events {
			if es[i] = &events[i]; es[i].Profile != nil && es[i].At.After(last) {
				want, last = es[i].Profile.Locale, es[i].At
			}
		}
		k := coupon.Known{}
		k.ApplyAll(es, now)
		require.Equal(t, want, k.Locale)
	})
}
