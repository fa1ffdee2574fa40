package telemetry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/telemetry"
)

func TestAskedFiguresAreReadSeldomAndAbsentAfterAnError(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	var asked int
	var fault error
	desc := prometheus.NewDesc("asked", "How often.", nil, nil)
	reg := prometheus.NewRegistry()
	reg.MustRegister(telemetry.NewAsked(func(ctx context.Context) (int, error) {
		_, bounded := ctx.Deadline()
		require.True(t, bounded)
		asked++
		return asked, fault
	}, func(n int, ch chan<- prometheus.Metric) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n))
	}, func() time.Time { return now }, desc))
	count := func() int {
		n, err := testutil.GatherAndCount(reg, "asked")
		require.NoError(t, err)
		return n
	}

	require.Equal(t, 1, count())
	now = now.Add(10*time.Second - time.Nanosecond)
	require.Equal(t, 1, count())
	require.Equal(t, 1, asked, "kept")
	now, fault = now.Add(time.Nanosecond), errors.New("away")
	require.Zero(t, count())
	require.Zero(t, count())
	require.Equal(t, 2, asked, "a failure is kept as long")
	now, fault = now.Add(10*time.Second), nil
	require.Equal(t, 1, count())
}
