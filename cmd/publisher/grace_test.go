package main

import (
	"context"
	"io"
	"testing"

	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestItStopsWithinItsGrace(t *testing.T) {
	t.Parallel()
	testenv.StopsWithinItsGrace(t, "publisher", func(ctx context.Context, environ []string, stderr io.Writer) int {
		return run(ctx, config.Process{Environ: environ, Stdout: io.Discard, Stderr: stderr})
	}, "LAPSE__API__ADDRESS=127.0.0.1:0")
}
