package quiet_test

import (
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/quiet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWindows(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		x, err := time.Parse(time.RFC3339, text)
		require.NoError(t, err)
		return x
	}
	for _, c := range []struct{ window, now, ends string }{
		{"02:00-05:00 Asia/Shanghai", "2026-03-01T18:00:00Z", "2026-03-01T21:00:00Z"},
		{"02:00-05:00 Asia/Shanghai", "2026-03-01T20:59:59Z", "2026-03-01T21:00:00Z"},
		{"02:00-05:00 Asia/Shanghai", "2026-03-01T21:00:00Z", ""},
		{"02:00-05:00 Asia/Shanghai", "2026-03-01T03:00:00Z", ""},
		{"22:30-04:00 UTC", "2026-03-01T22:30:00Z", "2026-03-02T04:00:00Z"},
		{"22:30-04:00 UTC", "2026-03-02T03:59:59Z", "2026-03-02T04:00:00Z"},
		{"22:30-04:00 UTC", "2026-03-02T04:00:00Z", ""},
		{"22:30-04:00 UTC", "2026-03-02T22:29:59Z", ""},
		{"01:00-04:00 America/New_York", "2026-03-08T06:00:00Z", "2026-03-08T08:00:00Z"}, // an hour is missing that night
		{"01:00-04:00 America/New_York", "2026-11-01T05:00:00Z", "2026-11-01T09:00:00Z"}, // and is there twice
		{"always", "2026-03-01T12:00:00Z", "2026-03-02T00:00:00Z"},
		{"never", "2026-03-01T12:00:00Z", ""},
	} {
		w, err := quiet.Parse(c.window)
		require.NoError(t, err)
		require.Equal(t, c.window, w.String())
		ends, open := w.Open(at(c.now))
		require.Equal(t, c.ends != "", open, "%s at %s", c.window, c.now)
		if open {
			require.True(t, at(c.ends).Equal(ends), "%s at %s: %s", c.window, c.now, ends)
		}
	}
	_, open := quiet.Window{}.Open(time.Now())
	require.False(t, open)
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "02:00-05:00", "02:00-05:00 ", "02:00-05:00 Mars/Olympus", "02:00-05:00 Local", "2:00-05:00 UTC", "02:00 UTC", "02:00-25:00 UTC", "02:00-02:00 UTC", "ALWAYS",
	} {
		_, err := quiet.Parse(text)
		require.ErrorContains(t, err, "must be HH:MM-HH:MM ZONE", "%q", text)
	}
}

// TestAWindowEndsAfterTheInstant: for any hours and instant, and it is closed at its end.
func TestAWindowEndsAfterTheInstant(t *testing.T) {
	t.Parallel()
	zones := []string{"UTC", "Asia/Shanghai", "America/New_York", "Australia/Lord_Howe"}
	rapid.Check(t, func(r *rapid.T) {
		clock := func(name string) string {
			minute := rapid.IntRange(0, 24*60-1).Draw(r, name)
			return time.Time{}.Add(time.Duration(minute) * time.Minute).Format("15:04")
		}
		from, to := clock("from"), clock("to")
		if from == to {
			return
		}
		w, err := quiet.Parse(from + "-" + to + " " + rapid.SampledFrom(zones).Draw(r, "zone"))
		require.NoError(r, err)
		now := time.Unix(rapid.Int64Range(0, 4e9).Draw(r, "now"), 0)
		if ends, open := w.Open(now); open {
			require.True(r, ends.After(now))
			require.LessOrEqual(r, ends.Sub(now), 26*time.Hour)
			_, open = w.Open(ends)
			require.False(r, open)
		}
	})
}

// What is read is written as it was.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"02:00-05:00 Asia/Shanghai", "22:00-04:00 UTC", "always", "never", "", "02:00-02:00 UTC", "24:00-01:00 UTC", "2:00-3:00 UTC", "02:00-03:00 ", "02:00-03:00 Local",
		"02:00-03:00 ../etc/passwd", "02:00-03:00 UTC ", "٠٢:٠٠-٠٣:٠٠ UTC",
	} {
		f.Add(seed, int64(0))
	}
	f.Fuzz(func(t *testing.T, text string, unix int64) {
		w, err := quiet.Parse(text)
		if err != nil {
			require.ErrorContains(t, err, "must be HH:MM-HH:MM ZONE")
			return
		}
		require.Equal(t, text, w.String())
		now := time.Unix(unix%(1<<33), 0)
		if ends, open := w.Open(now); open {
			require.True(t, ends.After(now))
			require.LessOrEqual(t, ends.Sub(now), 26*time.Hour)
		}
	})
}
