package operation_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/operation"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type place struct {
	Done int `json:"done"`
}

var config = operation.Config{Lease: time.Second}

// A process that was killed holds its lease for a while, and then another goes on; if the dead one wakes, it must stop.
func TestAnotherGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	ask := operation.Ask{Kind: "test", Hash: [32]byte{1}, Terms: "everything"}
	var p place
	dead, err := operation.Claim(t.Context(), s, config, "dead", ask, &p)
	require.NoError(t, err)
	require.False(t, dead.Resumed)
	require.NoError(t, dead.Keep(t.Context(), place{Done: 3}))

	op, open, err := operation.Peek(t.Context(), s, ask, &p)
	require.NoError(t, err)
	require.True(t, open)
	require.Equal(t, 3, p.Done)
	require.JSONEq(t, `"everything"`, string(op.Ask))
	require.Positive(t, op.Left)
	held, err := s.ClaimOperation(t.Context(), "b", ask.Kind, ask.Hash, nil, true, time.Second)
	require.NoError(t, err)
	require.False(t, held.Held, "while the lease runs, also with fresh")

	p = place{}
	w, err := operation.Claim(t.Context(), s, config, "b", ask, &p)
	require.NoError(t, err)
	require.True(t, w.Resumed)
	require.Equal(t, 3, p.Done)
	require.ErrorIs(t, dead.Keep(t.Context(), place{Done: 4}), coupon.ErrConflict)
	failed := errors.Join(coupon.ErrConflict, errors.New("lost"))
	require.Equal(t, failed, dead.End(t.Context(), place{Done: 4}, true, failed), "it is another's, and left alone")

	// It stops unfinished: the next one need not wait, and goes on, or begins again.
	stopped := errors.New("stopped")
	require.ErrorIs(t, w.End(t.Context(), place{Done: 7}, true, stopped), stopped)
	p = place{}
	_, open, err = operation.Peek(t.Context(), s, ask, &p)
	require.NoError(t, err)
	require.True(t, open)
	require.Equal(t, 7, p.Done)
	again := ask
	again.GoesOn = func(op coupon.Operation) bool { return op.Idle > time.Hour }
	_, open, err = operation.Peek(t.Context(), s, again, &p)
	require.NoError(t, err)
	require.False(t, open)
	p = place{}
	w, err = operation.Claim(t.Context(), s, config, "c", again, &p)
	require.NoError(t, err)
	require.False(t, w.Resumed)
	require.Zero(t, p)
	require.NoError(t, w.End(t.Context(), place{Done: 10}, true, nil))
	_, open, err = operation.Peek(t.Context(), s, ask, &p)
	require.NoError(t, err)
	require.False(t, open)
}

func TestALivingHolderKeepsOthersOut(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	ask := operation.Ask{Kind: "test"}
	w, err := operation.Claim(t.Context(), s, config, "a", ask, &place{})
	require.NoError(t, err)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				require.NoError(t, w.Keep(t.Context(), place{}))
			}
		}
	})
	ask.Fresh = true
	_, err = operation.Claim(t.Context(), s, config, "b", ask, &place{})
	close(stop)
	wg.Wait()
	require.ErrorIs(t, err, operation.ErrRunning)
}

func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	require.NoError(t, operation.DefaultConfig().Validate())
	err := operation.Config{Rate: 0.5}.Validate()
	require.ErrorContains(t, err, "rate: must be between 1 and 1000000 a second, or 0 for no bound, got 0.5")
	require.ErrorContains(t, err, "lease: must be between 1s and 1h0m0s, got 0s")
}

func TestPaceKeepsTheLease(t *testing.T) {
	t.Parallel()
	limit, batch := operation.Config{Rate: 30}.Pace(500)
	require.Equal(t, 30, batch, "a batch a second at least")
	require.Equal(t, 30, limit.Burst())
	_, batch = operation.Config{}.Pace(500)
	require.Equal(t, 500, batch)
}
