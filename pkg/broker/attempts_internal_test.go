package broker

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A wrong password, or a queue that cannot be consumed, lasts until somebody reads of it.
func TestAFailureThatLastsIsToldAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		c := &Client{cfg: DefaultConfig()}
		a := c.attempts(zap.New(core))
		for since := time.Now(); time.Since(since) < 10*time.Minute; {
			require.True(t, a.failed(t.Context(), "cannot open a session", errors.New("refused")))
		}
		require.InDelta(t, 10, logs.Len(), 1)
		require.True(t, a.failed(t.Context(), "cannot open a session", errors.New("other")))
		require.InDelta(t, 11, logs.Len(), 1, "another one is told at once")
	})
}
