package lifecycle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

func TestEveryGoesOnAfterFailuresAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		bad := errors.New("bad")
		var at []time.Duration
		var told []error
		err := lifecycle.Every(ctx, time.Minute, func(ctx context.Context) error {
			at = append(at, time.Since(began))
			switch len(at) {
			case 2:
				require.NoError(t, lifecycle.Sleep(ctx, 10*time.Second)) // it takes its time
				return bad
			case 4:
				cancel(lifecycle.ErrStop)
				return context.Cause(ctx)
			default:
				return nil
			}
		}, func(err error) { told = append(told, err) })
		require.NoError(t, err)
		require.Equal(t, []time.Duration{0, time.Minute, 130 * time.Second, 190 * time.Second}, at)
		require.Equal(t, []error{nil, bad, nil}, told, "what was cut short is nobody's failure")
	})
}

func TestSleepSaysWhyItEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(lifecycle.ErrStop)
		require.ErrorIs(t, lifecycle.Sleep(ctx, time.Hour), lifecycle.ErrStop)
		require.NoError(t, lifecycle.Sleep(t.Context(), time.Hour))
	})
}
