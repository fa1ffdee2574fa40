package main

import (
	"context"
	"io"
	"testing"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestItStopsWithinItsGrace(t *testing.T) {
	t.Parallel()
	testenv.StopsWithinItsGrace(t, "notifier", func(ctx context.Context, environ []string, stderr io.Writer) int {
		return run(ctx, config.Process{Environ: environ, Stdout: io.Discard, Stderr: stderr})
	})
}
