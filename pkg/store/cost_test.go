package store_test

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/store"
)

// statement gives the text of a registered statement.
func statement(t testing.TB, name string) string {
	t.Helper()
	for _, st := range store.Statements() {
		if st.Name == name {
			return st.SQL
		}
	}
	require.FailNow(t, "no statement "+name)
	return ""
}

// rowsRead runs a statement on one connection and gives the index and table rows that the engine read for it.
func rowsRead(t testing.TB, conn *sql.Conn, query string, args ...any) int {
	t.Helper()
	look := handlerReads(t, conn) // looking itself reads rows, as many each time
	before := handlerReads(t, conn)
	look = before - look
	require.NoError(t, run(t, conn, query, args...))
	return handlerReads(t, conn) - before - look
}

func run(t testing.TB, conn *sql.Conn, query string, args ...any) error {
	t.Helper()
	rows, err := conn.QueryContext(t.Context(), query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		continue
	}
	return rows.Err()
}

func handlerReads(t testing.TB, conn *sql.Conn) (sum int) {
	t.Helper()
	// What the engine passed over by the index alone (MariaDB says how much) was read as well.
	rows, err := conn.QueryContext(t.Context(), `SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler_read%' OR Variable_name LIKE 'Handler_icp%'`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int
		require.NoError(t, rows.Scan(&name, &n))
		if name == "Handler_icp_match" {
			n = -n
		}
		sum += n
	}
	require.NoError(t, rows.Err())
	return sum
}
