package ladder_test

import (
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/ladder"
)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

func build(t require.TestingT, change func(*ladder.Config)) *ladder.Ladder {
	c := ladder.DefaultConfig()
	if change != nil {
		change(&c)
	}
	l, err := ladder.New(c)
	require.NoError(t, err)
	return l
}

func TestRouteTable(t *testing.T) {
	full := build(t, nil)
	short := build(t, func(c *ladder.Config) { c.Horizon = 20 * time.Second })
	tiny := build(t, func(c *ladder.Config) { *c = c.Scaled(10 * time.Millisecond) })
	tests := []struct {
		name       string
		ladder     *ladder.Ladder
		delay      time.Duration
		key        string
		expiration time.Duration
		wait       time.Duration
		clamped    bool
	}{
		{"overdue", full, -time.Hour, "00.00.00.00.00", 0, 0, false},
		{"least", full, math.MinInt64, "00.00.00.00.00", 0, 0, false},
		{"now", full, 0, "00.00.00.00.00", 0, 0, false},
		{"one nanosecond", full, 1, "00.00.00.00.01", time.Millisecond, time.Millisecond, false},
		{"under a second", full, 999 * time.Millisecond, "00.00.00.00.01", 999 * time.Millisecond, 999 * time.Millisecond, false},
		{"59 s", full, 59 * time.Second, "00.00.00.00.59", 0, 59 * time.Second, false},
		{"59 s and a bit", full, 59*time.Second + 1, "00.00.00.01.00", 59_001 * time.Millisecond, 59_001 * time.Millisecond, false},
		{"60 s", full, time.Minute, "00.00.00.01.00", 0, time.Minute, false},
		{"61 s", full, 61 * time.Second, "00.00.00.01.01", 0, 61 * time.Second, false},
		{"24 h", full, day, "00.01.00.00.00", 0, day, false},
		{"30 d", full, 30 * day, "01.00.00.00.00", 0, 30 * day, false},
		{"the longest", full, full.Max(), "12.29.23.59.59", 0, full.Max(), false},
		{"the longest, trimmed", full, full.Max() - 300*time.Millisecond, "12.29.23.59.59", 360*day - 300*time.Millisecond, full.Max() - 300*time.Millisecond, false},
		{"400 d", full, 400 * day, "12.29.23.59.59", 0, full.Max(), true},
		{"400 d and 0.3 s: the rest stays whole", full, 400*day + 300*time.Millisecond, "12.29.23.59.59", 360*day - 700*time.Millisecond, full.Max() - 700*time.Millisecond, true},
		{"ten years", full, 10 * year, "12.29.23.59.59", 0, full.Max(), true},
		{"never", full, math.MaxInt64, "12.29.23.59.59", 0, 0, true},
		{"short: the retries fit", short, 10 * time.Minute, "00.00.00.10.00", 0, 10 * time.Minute, false},
		{"short: an hour is cut", short, time.Hour, "00.00.00.59.59", 0, 3599 * time.Second, true},
		{"tiny: 61 units", tiny, 610 * time.Millisecond, "00.00.00.01.01", 0, 610 * time.Millisecond, false},
		{"tiny: trimmed", tiny, 604 * time.Millisecond, "00.00.00.01.01", 594 * time.Millisecond, 604 * time.Millisecond, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.ladder.Route(tt.delay, ladder.Unlock, ladder.Relaxed, 19)
			require.Equal(t, "lapse.enter", got.Exchange)
			require.Equal(t, tt.key+".unlock.r.03", got.Key)
			require.Equal(t, tt.clamped, got.Clamped)
			if tt.delay != math.MaxInt64 { // its phase within a second means nothing
				require.Equal(t, tt.expiration, got.Expiration)
				require.Equal(t, tt.wait, got.Wait)
			}
		})
	}
}

func TestRouteAt(t *testing.T) {
	l := build(t, nil)
	now := time.Date(2026, 10, 31, 23, 59, 0, 123_456_789, time.UTC)
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

	got := l.RouteAt(now, at, ladder.Expire, ladder.Exact, -1)
	require.Equal(t, "00.00.00.01.00.expire.x.15", got.Key)
	require.Equal(t, 59_877*time.Millisecond+ladder.Margin, got.Wait)
	require.Equal(t, got.Wait, got.Expiration)

	require.Zero(t, l.RouteAt(at, now, ladder.Expire, ladder.Exact, 0).Wait)
	require.Zero(t, l.RouteAt(at, at, ladder.Expire, ladder.Exact, 0).Wait, "what is left is held by the receiver")
	require.Equal(t, 1110*time.Millisecond, l.RouteAt(at.Add(-2100*time.Millisecond), at, ladder.Expire, ladder.Exact, 0).Wait, "a unit early")
	require.Equal(t, 1310*time.Millisecond, l.RouteAt(at.Add(-1300*time.Millisecond), at, ladder.Expire, ladder.Exact, 0).Wait)

	never := l.RouteAt(now, time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), ladder.Expire, ladder.Exact, 0)
	require.True(t, never.Clamped)
	require.LessOrEqual(t, never.Wait, l.Max())
	require.Zero(t, l.RouteAt(now, time.Time{}, ladder.Expire, ladder.Exact, 0).Wait)
}

// checkRoute holds every promise of a route that arithmetic alone can show.
func checkRoute(t require.TestingT, l *ladder.Ladder, delay time.Duration, route ladder.Route) {
	fail := func(what string) {
		require.FailNow(t, what, "delay %s, route %+v", delay, route)
	}
	key, err := ladder.ParseKey(route.Key)
	if err != nil || key.String() != route.Key {
		fail("the key does not parse back")
	}
	sum, err := l.Delay(key)
	if err != nil {
		fail("the key needs a queue that is not declared")
	}
	levels := l.Levels()
	trim, first := time.Duration(0), true
	for i, level := range levels {
		digit := key.Digits[len(key.Digits)-len(levels)+i]
		ttl := time.Duration(digit) * level.Unit
		if ttl > ladder.MaxTTL {
			fail("a TTL that the broker refuses")
		}
		if digit > 0 && first {
			first = false
			if route.Expiration > 0 {
				trim = ttl - route.Expiration
			}
		}
	}
	switch {
	case route.Expiration < 0, route.Expiration%time.Millisecond != 0:
		fail("an expiration that the broker refuses")
	case trim < 0 || trim >= l.Base():
		fail("the trim must be under one base unit")
	case route.Wait != sum-trim:
		fail("the wait must be the sum of the stays")
	}
	switch {
	case delay <= 0:
		if sum != 0 || route.Expiration != 0 || route.Clamped {
			fail("nothing to wait for")
		}
	case route.Clamped:
		if sum != l.Max() || delay <= l.Max() {
			fail("clamped without need, or not to the longest")
		}
		if rest := delay - route.Wait; delay%time.Millisecond == 0 && rest%l.Base() != 0 {
			fail("the rest must be whole base units")
		}
	default:
		if route.Wait < delay || route.Wait >= delay+time.Millisecond {
			fail("the wait must be the delay rounded up to the millisecond")
		}
		if sum%l.Base() != 0 || sum < delay || sum >= delay+time.Millisecond+l.Base() {
			fail("the stays must sum to the delay rounded up to the base unit")
		}
	}
}

func TestRouteByTheMillion(t *testing.T) {
	const routes = 1_000_000
	seed := uint64(1)
	if text, ok := os.LookupEnv("TEST_SEED"); ok { // make test sets and prints it
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "TEST_SEED")
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	ladders := []*ladder.Ladder{
		build(t, nil),
		build(t, func(c *ladder.Config) { c.Horizon = 24 * time.Hour }),
		build(t, func(c *ladder.Config) { c.Horizon = time.Second; c.Shards = 3 }),
		build(t, func(c *ladder.Config) { *c = c.Scaled(10 * time.Millisecond) }),
	}
	for range routes / len(ladders) {
		// Magnitudes evenly, from nanoseconds to centuries, some negative.
		delay := time.Duration(rnd.Int64()>>rnd.UintN(62)) * time.Duration(1-2*int(rnd.UintN(8)/7))
		for _, l := range ladders {
			checkRoute(t, l, delay, l.Route(delay, ladder.Expire, ladder.Exact, int(rnd.UintN(16))))
		}
	}
}

// anyConfig draws ladders that nobody would configure but that are valid.
func anyConfig(t *rapid.T) ladder.Config {
	c := ladder.Config{
		Prefix:    rapid.StringMatching(`[a-z][a-z0-9-]{0,30}`).Draw(t, "prefix"),
		Shards:    rapid.IntRange(1, 16).Draw(t, "shards"),
		GroupSize: rapid.IntRange(1, 9).Draw(t, "group"),
		Orders:    true,
	}
	unit := time.Duration(rapid.Int64Range(1, 2000).Draw(t, "base")) * time.Millisecond
	for _, name := range []string{"s", "m", "h", "d", "mo"}[:rapid.IntRange(1, 5).Draw(t, "levels")] {
		digits := rapid.IntRange(1, 60).Draw(t, "digits")
		if time.Duration(digits) > ladder.MaxTTL/unit {
			break
		}
		c.Levels = append([]ladder.Level{{Name: name, Unit: unit, Digits: digits}}, c.Levels...)
		unit *= time.Duration(digits + 1)
	}
	if rapid.Bool().Draw(t, "finite") {
		c.Horizon = time.Duration(rapid.Int64Range(1, int64(20*year)).Draw(t, "horizon"))
	}
	return c
}

func TestRouteOnAnyLadder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := ladder.New(anyConfig(t))
		require.NoError(t, err)
		around := func(d time.Duration) *rapid.Generator[time.Duration] {
			return rapid.Map(rapid.Int64Range(-3*int64(l.Base()), 3*int64(l.Base())), func(n int64) time.Duration { return d + time.Duration(n) })
		}
		delays := rapid.OneOf(around(0), around(l.Max()),
			rapid.Map(rapid.Int64Range(0, int64(l.Max())), func(n int64) time.Duration { return time.Duration(n) }),
			rapid.Map(rapid.Int64(), func(n int64) time.Duration { return time.Duration(n) }))
		for range 50 {
			delay := delays.Draw(t, "delay")
			checkRoute(t, l, delay, l.Route(delay, ladder.Unlock, ladder.Relaxed, rapid.Int().Draw(t, "partition")))
		}
	})
}

// A delay longer than the ladder arrives by rescheduling, and on time.
func TestRescheduledToTheEnd(t *testing.T) {
	for name, l := range map[string]*ladder.Ladder{
		"full":  build(t, nil),
		"short": build(t, func(c *ladder.Config) { c.Horizon = 24 * time.Hour }),
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Date(2026, 1, 1, 12, 0, 0, 345_600_000, time.UTC)
			at := now.Truncate(time.Second).Add(10 * year)
			hops := 0
			for {
				route := l.RouteAt(now, at, ladder.Expire, ladder.Exact, 0)
				now = now.Add(route.Wait)
				if hops++; !route.Clamped {
					break
				}
				require.Less(t, hops, 200)
			}
			require.Equal(t, ladder.Margin, now.Sub(at).Truncate(time.Millisecond))
		})
	}
}

func TestParseKeyErrors(t *testing.T) {
	for key, want := range map[string]string{
		"":                                "want 8 words, got 1",
		"00.00.00.00.00.expire.x":         "want 8 words, got 7",
		"00.00.00.00.00.expire.x.01.":     "want 8 words, got 9",
		"0.00.00.00.00.expire.x.01":       `word 1 must be two digits, got "0"`,
		"00.00.00.00.+1.expire.x.01":      `word 5 must be two digits, got "+1"`,
		"00.00.00.00.00.remind.x.01":      `unknown kind "remind"`,
		"00.00.00.00.00.expire.y.01":      `unknown class "y"`,
		"00.00.00.00.00.expire..01":       `unknown class ""`,
		"00.00.00.00.00.expire.x.16":      `partition must be 00 to 15, got "16"`,
		"00.00.00.00.00.expire.x.1":       `partition must be 00 to 15, got "1"`,
		"00.00.00.00.00.expire.x.\u0661٢": "partition must be 00 to 15",
	} {
		_, err := ladder.ParseKey(key)
		require.ErrorContains(t, err, want, key)
	}
}

func TestDelayNeedsDeclaredDigits(t *testing.T) {
	l := build(t, func(c *ladder.Config) { c.Horizon = time.Hour })
	for key, want := range map[string]string{
		"00.01.00.00.00.expire.x.00": "digit 2 belongs to no declared level",
		"00.00.24.00.00.expire.x.00": `level "h" has no digit 24`,
	} {
		k, err := ladder.ParseKey(key)
		require.NoError(t, err)
		_, err = l.Delay(k)
		require.ErrorContains(t, err, want)
	}
}

func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{"03.07.12.59.30.expire.x.07", "00.00.00.00.00.unlock.r.15", "99.99.99.99.99.expire.x.16", "", "........"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := ladder.ParseKey(s)
		if err == nil && key.String() != s {
			t.Fatalf("%q reads as %q", s, key.String())
		}
	})
}

func BenchmarkRoute(b *testing.B) {
	l := build(b, nil)
	delay := 97*day + 12*time.Hour + 59*time.Minute + 30*time.Second + 5*time.Millisecond
	for b.Loop() {
		_ = l.Route(delay, ladder.Expire, ladder.Exact, 7)
	}
}

// Publishers that are out of step by less than the slack never make a message late: whatever stands before it in its
// bucket has left by its instant.
func TestPublishersOutOfStepMakeNothingLate(t *testing.T) {
	t.Parallel()
	l := build(t, nil)
	epoch := time.Date(2026, 10, 31, 16, 0, 0, 0, time.UTC)
	const step = 5 * time.Millisecond
	jitter := l.Slack() - step
	for _, end := range []time.Duration{2 * time.Second, 3 * time.Second, 65 * time.Second} {
		for routed := time.Duration(0); routed < 2*time.Second; routed += step {
			mine := l.RouteAt(epoch.Add(routed), epoch.Add(end), ladder.Expire, ladder.Exact, 0)
			require.Greater(t, routed+mine.Wait, end-time.Second, "no more than a unit early")
			require.LessOrEqual(t, routed+mine.Wait, end+ladder.Margin)
			if mine.Wait == 0 {
				continue
			}
			// Another's message, routed up to the jitter later and sent before mine, that ends later.
			for other := routed; other <= routed+jitter; other += step {
				for _, gap := range []time.Duration{time.Second, 2 * time.Second} {
					ahead := l.RouteAt(epoch.Add(other), epoch.Add(end+gap), ladder.Expire, ladder.Exact, 0)
					if ahead.Key == mine.Key {
						require.LessOrEqual(t, other+ahead.Wait, end+ladder.Margin+jitter, "%s routed at %s behind one of %s later", mine.Key, routed, other-routed)
					}
				}
			}
		}
	}
}
