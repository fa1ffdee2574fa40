package demo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/ladder"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestEndsAreFixedAndNoneLiesBeforeItsGrant grants at a random pace, and looks at what was asked for.
func TestEndsAreFixedAndNoneLiesBeforeItsGrant(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			Coupons: rapid.IntRange(1, 3000).Draw(t, "coupons"),
			Over:    time.Duration(rapid.IntRange(5, 120).Draw(t, "over")) * time.Second,
			Waiting: rapid.IntRange(0, 300).Draw(t, "waiting"),
			Kill:    rapid.SampledFrom([]string{"", Publisher, Broker}).Draw(t, "kill"),
		}
		cfg.Users = rapid.IntRange(1, cfg.Coupons).Draw(t, "users")
		start := time.Date(2026, 11, 29, 18, 0, 0, rapid.IntRange(0, 999).Draw(t, "ms")*1e6, time.UTC)
		s := newSchedule(cfg, start)
		now, moved := start, false
		users := make(map[string]int)
		keys := make(map[string]bool)
		for s.sent < cfg.Coupons+cfg.Waiting {
			slowest := time.Duration(rapid.IntRange(0, 20_000).Draw(t, "slowest")) * time.Millisecond
			moved = s.move(now, slowest) || moved
			asks := s.next(now, slowest, chunk)
			require.NotEmpty(t, asks)
			for _, ask := range asks {
				require.False(t, keys[ask.Key])
				keys[ask.Key] = true
				require.Equal(t, ask.End, ask.End.Truncate(time.Second))
				if ask.Waiting {
					require.False(t, ask.End.Before(s.closes().Add(soonest)))
					continue
				}
				users[ask.User]++
				require.GreaterOrEqual(t, ask.End.Sub(now), s.lead)
				require.False(t, ask.End.After(s.last))
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 8000).Draw(t, "pause")) * time.Millisecond)
		}
		require.Len(t, users, cfg.Users)
		for _, n := range users {
			require.InDelta(t, float64(cfg.Coupons)/float64(cfg.Users), n, 1)
		}
		if !moved && cfg.Coupons < 1000 && cfg.Over >= 30*time.Second {
			require.False(t, s.last.After(start.Add(cfg.Over)), "within what was asked for")
		}
	})
}

func TestWaitingCouponsShowEveryLevel(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 29, 18, 0, 0, 0, time.UTC)
	s := newSchedule(Config{Coupons: 1, Users: 1, Over: 30 * time.Second, Waiting: DefaultWaiting}, start)
	l, err := ladder.New(ladder.DefaultConfig())
	require.NoError(t, err)
	levels := make(map[int]int) // of the first hop, by the digit's place
	for _, ask := range s.next(start, 0, 1+DefaultWaiting) {
		if !ask.Waiting {
			continue
		}
		key, err := ladder.ParseKey(l.RouteAt(start, ask.End, ladder.Expire, ladder.Exact, 0).Key)
		require.NoError(t, err)
		for place, digit := range key.Digits {
			if digit > 0 {
				levels[place]++
				break
			}
		}
	}
	for place, name := range []string{"months", "days", "hours", "minutes"} {
		require.Greater(t, levels[place], 20, name)
	}
}

func TestPaceFollowsTheAnswers(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 18, 0, 0, 0, time.UTC)
	p := &pace{}
	require.Equal(t, fewest, p.outstanding())
	for i := range 20 { // two thousand a second, each chunk answered after 100 ms
		p.sent(200*(i+1), now)
		now = now.Add(100 * time.Millisecond)
		p.answered(200*(i+1), now)
	}
	require.InDelta(t, 2000, p.outstanding(), 100)
	require.Equal(t, 100*time.Millisecond, p.slowest)

	p.sent(4200, now)
	for range 10 { // then nothing comes back
		now = now.Add(time.Second)
		p.answered(4000, now)
	}
	require.Equal(t, fewest, p.outstanding())
	require.Equal(t, 10*time.Second, p.slowest)
}

func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	err := Config{Coupons: 0, Users: 0, Over: time.Second, Waiting: -1, Kill: "everything", Sabotage: "a little"}.Validate()
	for _, want := range []string{
		"coupons: must be between 1 and 1000000, got 0", "users: must be between 1 and coupons", "over: must be between 5s and 12h0m0s, got 1s",
		"waiting: must be", `kill: must be publisher, expirer, notifier or broker, got "everything"`, `sabotage: must be early, lose or double, got "a little"`,
	} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, Config{Coupons: 10_000, Users: 3000, Over: 30 * time.Second, Waiting: 300}.Validate())
	require.ErrorContains(t, Config{Coupons: 20_001, Users: 2, Over: time.Minute}.Validate(), "one notice would have to name 10001 coupons")
}
