package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// Twenty thousand coupons end at one instant: a late page must cost a page, not all rows before it.
func TestKeysetCostAtALatePage(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	d.Store(t) // migrates
	const n, page = 20_000, 500
	plant(t, d, 1, n, coupon.Unused, "'2026-01-01 00:00:00'", "NULL")
	plant(t, d, n+1, n, coupon.Locked, "'2026-06-01 00:00:00'", "'2026-01-01 00:00:00'")
	d.Exec(t, "ANALYZE TABLE coupon")
	c, err := d.SQL.Conn(t.Context())
	require.NoError(t, err)
	defer c.Close()
	at, end := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	late, lateLock := uint64(n-2*page), uint64(2*n-2*page)
	for name, cursor := range map[string]uint64{
		"sweep.keys": late, "sweep.due": late, "plan.page": late, "sweep.lock_keys": lateLock, "sweep.locks": lateLock,
	} {
		read := rowsRead(t, c, statement(t, name), end, at, at, at, cursor, page)
		// SELECT … FOR UPDATE of columns outside the index reads each row once more.
		require.LessOrEqual(t, read, 2*page+20, name)
	}
}
