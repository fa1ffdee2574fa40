package heartbeat_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/heartbeat"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is the store's part.
type fake struct {
	mu                        sync.Mutex
	down                      bool
	prepared, none, beat, ask int
	every                     time.Duration
	ages                      map[coupon.Precision]time.Duration
}

var errDown = errors.New("the database is away")

func (f *fake) do(n *int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errDown
	}
	*n++
	return nil
}

func (f *fake) PrepareBeats(context.Context) error { return f.do(&f.prepared) }
func (f *fake) NoBeats(context.Context) error      { return f.do(&f.none) }

func (f *fake) Beat(_ context.Context, every time.Duration) (bool, error) {
	f.every = every
	return true, f.do(&f.beat)
}

func (f *fake) BeatAges(context.Context) (map[coupon.Precision]time.Duration, error) {
	return f.ages, f.do(&f.ask)
}

func run(t *testing.T, c heartbeat.Config, f *fake, during func()) {
	t.Helper()
	h, err := heartbeat.New(c, f, zaptest.NewLogger(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	during()
	cancel()
	require.NoError(t, <-ended)
}

func TestItBeatsAndGoesOnAfterAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{down: true}
		run(t, heartbeat.DefaultConfig(), f, func() {
			require.NoError(t, lifecycle.Sleep(t.Context(), 65*time.Second))
			synctest.Wait()
			require.Zero(t, f.prepared)
			f.mu.Lock()
			f.down = false
			f.mu.Unlock()
			require.NoError(t, lifecycle.Sleep(t.Context(), 2*time.Minute))
			synctest.Wait()
			require.Equal(t, [...]int{1, 0, 4}, [...]int{f.prepared, f.none, f.beat})
			require.Less(t, f.every, 30*time.Second)
		})
	})
}

// Where there are none, nobody must be told that they are missing.
func TestWhereThereAreNoneNoneAreMissed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		run(t, heartbeat.Config{Interval: time.Second}, f, func() {
			require.NoError(t, lifecycle.Sleep(t.Context(), time.Minute))
			synctest.Wait()
			require.Equal(t, [...]int{0, 1, 0}, [...]int{f.prepared, f.none, f.beat})
		})
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, heartbeat.DefaultConfig().Validate())
	require.EqualError(t, heartbeat.Config{Interval: time.Millisecond}.Validate(), "interval: must be between 1s and 1h, got 1ms")
	_, err := heartbeat.New(heartbeat.Config{}, &fake{}, zaptest.NewLogger(t))
	require.Error(t, err)
}

func TestGauges(t *testing.T) {
	t.Parallel()
	f := &fake{ages: map[coupon.Precision]time.Duration{coupon.Exact: 12500 * time.Millisecond}}
	now := time.Now()
	reg := prometheus.NewRegistry()
	reg.MustRegister(heartbeat.NewGauges(f, func() time.Time { return now }))
	says := `# HELP lapse_heartbeat_age_seconds How long ago the latest heartbeat coupon ended that has come all the way to the notifier.
# TYPE lapse_heartbeat_age_seconds gauge
lapse_heartbeat_age_seconds{precision="exact"} 12.5
`
	for range 3 {
		require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(says)))
	}
	require.Equal(t, 1, f.ask, "asked once in ten seconds")
	now, f.down = now.Add(11*time.Second), true
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader("")), "absent while the database is away")
}
