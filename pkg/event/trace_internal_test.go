package event

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Events carry on what the tracer takes for a trace.
func FuzzTrace(f *testing.F) {
	for _, seed := range []string{
		"", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-0x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		require.Equal(t, telemetry.Traceparent(text) != "", validTrace(text))
	})
}
