package store_test

import (
	"database/sql"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// statementCost runs a registered statement on one connection and gives the index and table rows that the engine read.
func statementCost(t testing.TB, c *sql.Conn, name string, args ...any) int {
	t.Helper()
	for _, st := range store.Statements() {
		if st.Name != name {
			continue
		}
		look := statusSum(t, c) // looking itself reads rows, as many each time
		before := statusSum(t, c)
		look = before - look
		rows, err := c.QueryContext(t.Context(), st.SQL, args...)
		require.NoError(t, err)
		got := 0
		for rows.Next() {
			got++
		}
		require.NoError(t, rows.Err())
		require.NoError(t, rows.Close())
		require.Positive(t, got, "the page is not empty")
		return statusSum(t, c) - before - look
	}
	require.FailNow(t, "no statement "+name)
	return 0
}

func statusSum(t testing.TB, c *sql.Conn) int {
	t.Helper()
	rows, err := c.QueryContext(t.Context(), "SHOW SESSION STATUS LIKE 'Handler_read%'")
	require.NoError(t, err)
	defer rows.Close() //nolint:errcheck // read to its end
	sum := 0
	for rows.Next() {
		var name, value string
		require.NoError(t, rows.Scan(&name, &value))
		if !strings.HasPrefix(name, "Handler_read_") {
			continue
		}
		n, err := strconv.Atoi(value)
		require.NoError(t, err)
		sum += n
	}
	require.NoError(t, rows.Err())
	return sum
}

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
	defer c.Close() //nolint:errcheck // the pool closes it
	at, end := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	late, lateLock := uint64(n-2*page), uint64(2*n-2*page)
	for name, cursor := range map[string]uint64{
		"sweep.keys": late, "sweep.due": late, "plan.page": late, "sweep.lock_keys": lateLock, "sweep.locks": lateLock,
	} {
		read := statementCost(t, c, name, end, at, at, at, cursor, page)
		// SELECT … FOR UPDATE of columns outside the index reads each row once more.
		require.LessOrEqual(t, read, 2*page+20, name)
	}
}
