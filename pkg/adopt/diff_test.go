package adopt_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/adopt"
	"github.com/lapsehq/lapse/pkg/coupon"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	const unused, locked, used, expired, voided = coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided
	for name, c := range map[string]struct {
		ended   time.Duration // of its end, before now
		there   coupon.Status
		at      time.Duration // when that was, after the end
		decided bool
		real    bool
		here    coupon.Status
		moved   bool // its end
		want    string
	}{
		"waits in both":                 {ended: -time.Hour, there: unused, here: unused, want: adopt.DiffAgrees},
		"expired in both":               {ended: time.Hour, there: expired, at: time.Minute, decided: true, here: unused, want: adopt.DiffAgrees},
		"the old job is late":           {ended: time.Hour, there: unused, decided: true, here: unused, want: adopt.DiffLate},
		"the old job has its time":      {ended: time.Minute, there: unused, decided: true, here: unused, want: adopt.DiffAgrees},
		"expired before its end":        {ended: -time.Hour, there: expired, here: unused, want: adopt.DiffEarly},
		"had expired before its end":    {ended: time.Hour, there: expired, at: -time.Minute, decided: true, here: unused, want: adopt.DiffEarly},
		"expired at its very end":       {ended: time.Hour, there: expired, at: -500 * time.Millisecond, decided: true, here: unused, want: adopt.DiffAgrees},
		"used after its end":            {ended: time.Hour, there: used, at: time.Minute, decided: true, here: unused, want: adopt.DiffUsedAfter},
		"used before its end":           {ended: time.Hour, there: used, at: -time.Minute, decided: true, here: unused, want: adopt.DiffMoved},
		"used, under a lock":            {ended: time.Hour, there: used, at: time.Minute, here: locked, want: adopt.DiffMoved},
		"nothing decided here":          {ended: time.Hour, there: expired, here: unused, want: adopt.DiffUndecided},
		"not decided yet":               {ended: time.Minute, there: expired, here: unused, want: adopt.DiffAgrees},
		"used in both":                  {ended: time.Hour, there: used, here: used, want: adopt.DiffAgrees},
		"withdrawn there":               {ended: -time.Hour, there: voided, here: unused, want: adopt.DiffMoved},
		"another end there":             {ended: -time.Hour, there: unused, here: unused, moved: true, want: adopt.DiffMoved},
		"used here, after the cut-over": {ended: -time.Hour, there: unused, here: used, real: true, want: adopt.DiffHere},
	} {
		ends := now.Add(-c.ended)
		row := coupon.ImportRow{Key: "k", Status: c.there, ExpiresAt: ends}
		switch {
		case c.at != 0 && c.there == expired:
			row.ExpiredAt = ends.Add(c.at)
		case c.at != 0:
			row.UsedAt = ends.Add(c.at)
		}
		im := &coupon.Imported{Key: "k", Hash: row.Hash(), Decided: c.decided, At: ends}
		im.Status, im.ExpiresAt, im.Observed = c.here, ends, !c.real
		if c.moved {
			row.ExpiresAt = ends.Add(time.Hour)
		}
		require.Equal(t, c.want, adopt.Compare(&row, im, now).Kind, name)
	}
	require.Equal(t, adopt.DiffMissing, adopt.Compare(&coupon.ImportRow{}, nil, now).Kind)
	require.True(t, adopt.Differs(adopt.DiffLate))
	require.False(t, adopt.Differs(adopt.DiffMoved))
}
