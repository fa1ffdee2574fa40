package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// A token is taken only as it was given out, and only by the query that it was given out to; it then says what it said.
func FuzzPosition(f *testing.F) {
	f.Add("", "", "", uint8(0), int64(0), uint64(0))
	for _, p := range []position{{section: 3, place: beforeAll}, {section: 5, place: afterAll}, {place: place{at: time.UnixMilli(1), id: 1}}} {
		f.Add(p.token("q"), "q", "r", p.section, p.at.UnixMilli(), p.id)
	}
	f.Fuzz(func(t *testing.T, token, query, other string, section uint8, at int64, id uint64) {
		if got, err := parsePosition(token, query); err == nil {
			require.Equal(t, token, got.token(query))
		} else {
			require.ErrorIs(t, err, coupon.ErrPosition)
			require.Zero(t, got)
		}
		p := position{section: section, place: place{at: time.UnixMilli(at).UTC(), id: id}}
		given := p.token(query)
		got, err := parsePosition(given, query)
		require.NoError(t, err)
		require.Equal(t, p, got)
		if other != query {
			_, err = parsePosition(given, other)
			require.ErrorIs(t, err, coupon.ErrPosition)
		}
		if token != "" {
			_, err = parsePosition(given+token, query)
			require.ErrorIs(t, err, coupon.ErrPosition)
		}
	})
}
