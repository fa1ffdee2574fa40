package event_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/event"
)

// There is a sample of every event in and out, and each validates against its schema.
func TestSamples(t *testing.T) {
	all := append(append([]string{event.TypeGrant}, event.OrderTypes()...), append(event.UserTypes(), event.OutTypes()...)...)
	for _, typ := range all {
		samples, err := event.Samples(typ)
		require.NoError(t, err)
		require.NotEmpty(t, samples, typ)
		for _, s := range samples {
			require.Equal(t, typ, s.Type)
			require.NotEmpty(t, s.ID, s.Name)
			require.NoError(t, validate(schema(t, typ), s.Body), s.Name)
		}
	}
	none, err := event.Samples("coupon.none.v1")
	require.NoError(t, err)
	require.Empty(t, none)
	out, err := event.OutSamples()
	require.NoError(t, err)
	types := map[string]bool{}
	for _, s := range out {
		types[s.Type] = true
	}
	require.Len(t, types, len(event.OutTypes()))
}
