package store_test

import (
	"database/sql"
	"io/fs"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func query(t testing.TB, db *sql.DB, text string) (v string) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), text).Scan(&v))
	return v
}

func readAll(t testing.TB, files fs.FS) map[string]string {
	t.Helper()
	names, err := fs.Glob(files, "*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	all := make(map[string]string)
	for _, name := range names {
		b, err := fs.ReadFile(files, name)
		require.NoError(t, err)
		all[name] = string(b)
	}
	return all
}

// closedAfterAccept is the address of a server that hangs up at once, as a proxy without a backend does.
func closedAfterAccept(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		<-done
	})
	return l.Addr().String()
}
