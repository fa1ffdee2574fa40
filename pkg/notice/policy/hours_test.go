package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/notice/policy"
)

func TestHours(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"21:00-08:00", "00:00-06:30", "13:00-14:00", "08:00-07:00", "never"} {
		h, err := policy.ParseHours(good)
		require.NoError(t, err, good)
		require.Equal(t, good, h.String())
	}
	for text, why := range map[string]string{
		"":              "no two times",
		"21:00":         "no two times",
		"21:00-":        "no time of day",
		"9:00-10:00":    "no time of day",
		"21:00-24:00":   "no time of day",
		"21:00-08:60":   "no time of day",
		"21:00 - 08:00": "no time of day",
		"08:00-08:00":   "no span",
		"08:00-07:30":   "less than an hour",
		"Never":         "no two times",
	} {
		_, err := policy.ParseHours(text)
		require.ErrorContains(t, err, why, text)
	}
}

func FuzzHours(f *testing.F) {
	for _, seed := range []string{"21:00-08:00", "never", "00:00-00:00", "23:59-00:01", "1:00-2:00", "-", "21:00-08:00 UTC", "٢١:٠٠-٠٨:٠٠"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := policy.ParseHours(text)
		if err != nil {
			require.Contains(t, err.Error(), "must be HH:MM-HH:MM")
			return
		}
		require.Equal(t, text, h.String())
		quiet, day := 0, time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
		for minute := range 24 * 60 {
			if h.Quiet(day.Add(time.Duration(minute)*time.Minute), time.UTC) {
				quiet++
			}
		}
		require.LessOrEqual(t, quiet, 23*60)
		require.Equal(t, text == policy.Never, quiet == 0)
	})
}
