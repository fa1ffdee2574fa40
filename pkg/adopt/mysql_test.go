package adopt_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/adopt"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// theirs is the address of a database as that of another system.
func theirs(t testing.TB, d testenv.Database) adopt.Address {
	t.Helper()
	u := url.URL{Scheme: "mysql", User: url.User(d.Config.User), Host: d.Config.Address, Path: d.Config.Name}
	a, err := adopt.ParseAddress(u.String(), d.Config.Password)
	require.NoError(t, err)
	require.NotContains(t, a.String(), d.Config.Password.Reveal())
	return a
}

func query(text string, tables ...string) *adopt.Query {
	return &adopt.Query{Select: text, Tables: tables, Key: "c.id", Page: 3, Timeout: 10 * time.Second}
}

// Pages go by the key, also where it is beyond what a float holds, over several tables, and from every row on.
func TestMySQLIsReadInPages(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	for _, table := range []string{"c_0", "c_1", "c_2"} {
		d.Exec(t, `CREATE TABLE `+table+` (id BIGINT UNSIGNED PRIMARY KEY, at DATETIME, seen TIMESTAMP NULL, gone BIT(1) NOT NULL, name VARCHAR(9) NULL)`)
	}
	for i := range 7 {
		d.Exec(t, `INSERT INTO c_0 VALUES (18446744073709551600 + ?, '2026-10-31 23:59:59', '2026-10-31 12:00:00', b'1', NULL)`, i)
	}
	d.Exec(t, `INSERT INTO c_2 VALUES (5, '2026-10-31 23:59:59', NULL, b'0', 'e'), (6, NULL, NULL, b'1', 'f'), (7, NULL, NULL, b'0', 'g')`)
	q := query("SELECT c.id, c.at, c.seen, c.gone, c.name FROM {table} c WHERE 1 = 1 AND {page}", "c_0", "c_1", "c_2")
	src, err := adopt.OpenMySQL(theirs(t, d), q, "")
	require.NoError(t, err)
	total, err := src.Total(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 10, total)
	want := all(t, src)
	require.Len(t, want, 10)
	require.Equal(t, map[string]string{
		"id": "18446744073709551601", "at": "2026-10-31 23:59:59", "seen": "2026-10-31T12:00:00Z", "gone": "1",
	}, want[1].Values, "an instant is one, a wall clock's time is none")
	require.Equal(t, map[string]string{"id": "7", "gone": "0", "name": "g"}, want[9].Values)
	require.Equal(t, "c_2 id 7", want[9].Where)
	for i, rec := range want {
		src, err := adopt.OpenMySQL(theirs(t, d), q, rec.Place)
		require.NoError(t, err)
		require.Equal(t, want[i+1:], append([]*adopt.Record{}, all(t, src)...), "behind %s", rec.Where)
	}
}

func TestMySQLByTextKeys(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	d.Exec(t, `CREATE TABLE c (id VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY)`)
	d.Exec(t, `INSERT INTO c VALUES ('1'), ('10'), ('2'), ('a''b'), ('b'), ('c')`)
	src, err := adopt.OpenMySQL(theirs(t, d), query("SELECT c.id FROM c WHERE {page}"), "")
	require.NoError(t, err)
	require.Len(t, all(t, src), 6)
}

// Nothing is written there, and no statement runs for longer than it may.
func TestMySQLIsLeftAlone(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	d.Exec(t, `CREATE TABLE c (id INT PRIMARY KEY)`)
	d.Exec(t, `INSERT INTO c VALUES (1), (2), (3)`)
	variable, version := "transaction_read_only", ""
	require.NoError(t, d.SQL.QueryRowContext(t.Context(), "SELECT VERSION()").Scan(&version))
	if strings.Contains(version, "MariaDB") {
		variable = "tx_read_only"
	}
	src, err := adopt.OpenMySQL(theirs(t, d), query("SELECT c.id, @@SESSION."+variable+" AS locked FROM c WHERE {page}"), "")
	require.NoError(t, err)
	require.Equal(t, "1", all(t, src)[0].Values["locked"])
	for want, text := range map[string]string{
		"source: read":  "SELECT c.id, SLEEP(20) FROM c WHERE {page}",
		"no column":     "SELECT c.id AS other FROM c WHERE {page}",
		"doesn't exist": "SELECT c.id FROM nothing c WHERE {page}",
	} {
		q := query(text)
		q.Timeout = 300 * time.Millisecond
		began := time.Now()
		src, err := adopt.OpenMySQL(theirs(t, d), q, "")
		require.NoError(t, err)
		_, err = src.Next(t.Context())
		require.ErrorContains(t, err, want, text)
		require.Less(t, time.Since(began), 15*time.Second, text)
		require.NoError(t, src.Close())
	}
	require.EqualValues(t, 3, d.Int(t, `SELECT COUNT(*) FROM c`))
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"mysql://host/db", "mysql://u@host", "postgres://u@host/db", "mysql://u@h/d?charset=x", "://"} {
		_, err := adopt.ParseAddress(text, secret.New("p"))
		require.ErrorContains(t, err, "source: ", text)
	}
	a, err := adopt.ParseAddress("mysql://u:hidden@host/db?tls=skip-verify", secret.New(""))
	require.NoError(t, err)
	require.Equal(t, "mysql://host:3306/db", a.String())
	_, err = adopt.OpenMySQL(a, query("SELECT 1 {page}"), "7\tn 1")
	require.ErrorContains(t, err, "is no place of it")
	_, err = adopt.OpenMySQL(a, &adopt.Query{}, "")
	require.ErrorContains(t, err, "mapping: source")
}
