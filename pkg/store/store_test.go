package store_test

import (
	"context"
	"database/sql"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// open tries to open a store, as a worker does when it starts.
func open(t testing.TB, c store.Config, reg prometheus.Registerer) (*store.Store, error) {
	t.Helper()
	codec, err := event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	s, err := store.Open(t.Context(), c, codec, zap.NewNop(), reg)
	if err == nil {
		t.Cleanup(func() { require.NoError(t, s.Close()) })
	}
	return s, err
}

func TestMigrationsGoForthAndBack(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	tables := func() []string {
		rows, err := db.SQL.QueryContext(t.Context(), `SELECT CONCAT(table_name, ' ', column_name, ' ', column_type, ' ', is_nullable)
			FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name NOT LIKE 'goose%' ORDER BY 1`)
		require.NoError(t, err)
		defer rows.Close()
		var all []string
		for rows.Next() {
			var c string
			require.NoError(t, rows.Scan(&c))
			all = append(all, c)
		}
		require.NoError(t, rows.Err())
		return all
	}
	up := tables()
	require.NotEmpty(t, up)
	have, want, err := s.SchemaVersion(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, have)
	require.NoError(t, s.VerifySchema(t.Context()))

	for version := want - 1; version >= 0; version-- {
		require.NoError(t, s.MigrateDownTo(t.Context(), version))
		err = s.VerifySchema(t.Context())
		require.ErrorIs(t, err, store.ErrSchema)
		require.ErrorContains(t, err, "lapsectl migrate")
	}
	require.Empty(t, tables())
	require.NoError(t, s.MigrateUp(t.Context()))
	require.NoError(t, s.MigrateUp(t.Context()), "again changes nothing")
	require.Equal(t, up, tables())
	require.NoError(t, s.VerifySchema(t.Context()))
}

func TestOpenVerifiesTheSchema(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	c := db.Config
	c.Migrate = "verify"
	_, err := open(t, c, prometheus.NewRegistry())
	require.ErrorIs(t, err, store.ErrSchema)

	db.Store(t) // migrates
	_, err = open(t, c, prometheus.NewRegistry())
	require.NoError(t, err)

	db.Exec(t, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)`)
	_, err = open(t, c, prometheus.NewRegistry())
	require.NoError(t, err, "during a deploy the schema may be newer")
}

func TestOpenFromSeveralProcessesAtOnce(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	inParallel(4, func(int) {
		if _, err := open(t, db.Config, prometheus.NewRegistry()); err != nil {
			t.Error(err)
		}
	})
}

func TestEverySessionObeysTheRules(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	require.Equal(t, "+08:00", query(t, db.SQL, `SELECT @@global.time_zone`), "the stack's server is not in UTC")
	for range 3 { // connections of their own
		conn, err := s.Pool().Conn(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		one := func(q string) (v string) {
			require.NoError(t, conn.QueryRowContext(t.Context(), q).Scan(&v))
			return v
		}
		require.Equal(t, "+00:00", one(`SELECT @@session.time_zone`))
		require.Contains(t, one(`SELECT @@session.sql_mode`), "STRICT_ALL_TABLES")
		require.Equal(t, "15", one(`SELECT @@session.wait_timeout`))
		require.Equal(t, "3", one(`SELECT @@session.innodb_lock_wait_timeout`))
		var name, level string
		require.NoError(t, conn.QueryRowContext(t.Context(), `SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation','tx_isolation')`).Scan(&name, &level))
		require.Equal(t, "READ-COMMITTED", level)
		require.Equal(t, "0", one(`SELECT ABS(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(3), CURRENT_TIMESTAMP(3)))`), "the session's own clock is UTC too")
	}
	// Found rows, not changed rows: a compare-and-set that changes nothing has still matched.
	res, err := s.Pool().ExecContext(t.Context(), `UPDATE setting SET value = '' WHERE name = 'selftest.a'`)
	require.NoError(t, err)
	n, err := res.RowsAffected()
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	// Strict: what does not fit is refused, not cut.
	_, err = s.Pool().ExecContext(t.Context(), `INSERT INTO setting (name, value, updated_at) VALUES ('x', ?, UTC_TIMESTAMP(3))`, strings.Repeat("v", 513))
	require.Error(t, err)

	now, err := s.Now(t.Context())
	require.NoError(t, err)
	require.Equal(t, time.UTC, now.Location())
	var plain time.Time
	require.NoError(t, db.SQL.QueryRowContext(t.Context(), `SELECT UTC_TIMESTAMP(3)`).Scan(&plain))
	require.WithinDuration(t, plain, now, 5*time.Second)
}

func TestTransactionsReadWhatOthersCommitted(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	require.NoError(t, s.Tx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		read := func() (v string) {
			require.NoError(t, tx.QueryRowContext(ctx, `SELECT value FROM setting WHERE name = 'selftest.b'`).Scan(&v))
			return v
		}
		require.Empty(t, read())
		db.Exec(t, `UPDATE setting SET value = 'changed' WHERE name = 'selftest.b'`)
		require.Equal(t, "changed", read())
		return nil
	}))
}

func TestTransactionIsRetriedAfterADeadlock(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	reg := prometheus.NewRegistry()
	s, err := open(t, db.Config, reg)
	require.NoError(t, err)
	db.Exec(t, `INSERT INTO setting (name, value, updated_at) VALUES ('a','',UTC_TIMESTAMP(3)), ('b','',UTC_TIMESTAMP(3))`)

	other, err := db.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	// The server ends the transaction that changed less: ours.
	for i := range 50 {
		_, err = other.ExecContext(t.Context(), `INSERT INTO setting (name, value, updated_at) VALUES (?,'',UTC_TIMESTAMP(3))`, i)
		require.NoError(t, err)
	}
	_, err = other.ExecContext(t.Context(), `UPDATE setting SET value = 'other' WHERE name = 'b'`)
	require.NoError(t, err)

	tries := 0
	waited := make(chan error, 1)
	err = s.Tx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		tries++
		if _, err := tx.ExecContext(ctx, `UPDATE setting SET value = 'ours' WHERE name = 'a'`); err != nil {
			return err
		}
		if tries == 1 {
			go func() {
				_, err := other.ExecContext(t.Context(), `UPDATE setting SET value = 'other' WHERE name = 'a'`)
				waited <- err
			}()
		}
		_, err := tx.ExecContext(ctx, `UPDATE setting SET value = 'ours' WHERE name = 'b'`)
		if tries == 1 {
			require.ErrorContains(t, err, "Error 1213")
			require.NoError(t, <-waited)
			require.NoError(t, other.Commit())
		}
		return err
	})
	require.NoError(t, err)
	require.Equal(t, 2, tries)
	require.EqualValues(t, 2, db.Int(t, `SELECT COUNT(*) FROM setting WHERE name IN ('a','b') AND value = 'ours'`))
	n, err := testutil.GatherAndCount(reg, "lapse_transaction_retries_total")
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestTransactionIsRetriedAfterALockWait(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	c := db.Config
	c.LockWait = time.Second
	s, err := open(t, c, prometheus.NewRegistry())
	require.NoError(t, err)
	other, err := db.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = other.ExecContext(t.Context(), `UPDATE setting SET value = 'other' WHERE name = 'selftest.a'`)
	require.NoError(t, err)
	tries := 0
	require.NoError(t, s.Tx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		tries++
		_, err := tx.ExecContext(ctx, `UPDATE setting SET value = 'ours' WHERE name = 'selftest.a'`)
		if tries == 1 {
			require.ErrorContains(t, err, "Error 1205")
			require.NoError(t, other.Commit())
		}
		return err
	}))
	require.Equal(t, 2, tries)
}

func TestTransactionRollsBackOnError(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	tries := 0
	err := s.Tx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		tries++
		if _, err := tx.ExecContext(ctx, `UPDATE setting SET value = 'x' WHERE name = 'selftest.a'`); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO setting (name, value, updated_at) VALUES ('selftest.a','',UTC_TIMESTAMP(3))`)
		return err
	})
	require.ErrorIs(t, err, coupon.ErrIntegrity)
	require.ErrorIs(t, err, coupon.ErrConflict)
	require.Equal(t, 1, tries, "trying again cannot help")
	require.Zero(t, db.Int(t, `SELECT COUNT(*) FROM setting WHERE value = 'x'`))

	err = s.Tx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		var name string
		return tx.QueryRowContext(ctx, `SELECT name FROM setting WHERE name = 'none'`).Scan(&name)
	})
	require.ErrorIs(t, err, coupon.ErrNotFound)
}

func TestErrorsOfAServerThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	for name, c := range map[string]struct {
		change func(*store.Config)
		want   []string
	}{
		"password":      {func(c *store.Config) { c.Password = secret.New("wrong-hunter2") }, []string{"Access denied", "'lapse'@"}},
		"nobody there":  {func(c *store.Config) { c.Address = "127.0.0.1:1" }, []string{"127.0.0.1:1", "refused"}},
		"unknown host":  {func(c *store.Config) { c.Address = "nowhere.invalid:3306" }, []string{"nowhere.invalid"}},
		"other service": {func(c *store.Config) { c.DialTimeout = time.Second; c.Address = closedAfterAccept(t) }, []string{"database unavailable"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := db.Config
			c.change(&config)
			_, err := open(t, config, prometheus.NewRegistry())
			require.ErrorIs(t, err, coupon.ErrUnavailable)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "hunter2")
			require.NotContains(t, err.Error(), db.Config.Password.Reveal())
		})
	}
	missing := db.Config
	missing.Name = "lapse_t_none"
	_, err := open(t, missing, prometheus.NewRegistry())
	require.ErrorContains(t, err, "lapse_t_none")
}

func TestConfigReportsEveryFault(t *testing.T) {
	t.Parallel()
	require.NoError(t, store.DefaultConfig().Validate())
	_, err := open(t, store.Config{Address: "here", Password: secret.New("hunter2"), MaxOpen: 1, Migrate: "maybe"}, prometheus.NewRegistry())
	for _, want := range []string{
		`address: must be host:port, got "here"`, "user: must not be empty", "name: must have 1 to 64 characters",
		"max_open: must be between 2 and 1000, got 1", "dial_timeout: must be between 100ms and 1m0s, got 0s",
		"lock_wait:", "read_timeout:", "write_timeout:", "migrate_within:", `migrate: must be auto or verify, got "maybe"`,
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "hunter2")
}

var (
	comment   = regexp.MustCompile(`(?m)--.*$`)
	forbidden = regexp.MustCompile(`(?i)\b(NOW|CURDATE|CURTIME|SYSDATE|UNIX_TIMESTAMP)\s*\(|` +
		`\b(CURRENT_TIMESTAMP|CURRENT_DATE|CURRENT_TIME|LOCALTIME|LOCALTIMESTAMP|UTC_TIMESTAMP|UTC_DATE|UTC_TIME|RETURNING)\b|` +
		`\bAS\s+new\b|utf8mb4_0900`)
)

// withoutTheClock leaves out comments and the one clock function that is allowed.
func withoutTheClock(text string) string {
	return strings.ReplaceAll(comment.ReplaceAllString(text, ""), "UTC_TIMESTAMP(3)", "")
}

func TestStatementsUseTheOneClockAndBothDialects(t *testing.T) {
	t.Parallel()
	names := make(map[string]bool)
	for _, st := range store.Statements() {
		require.NotRegexp(t, forbidden, withoutTheClock(st.SQL), st.Name)
		require.Regexp(t, `^[a-z]+\.[a-z_]+$`, st.Name)
		require.False(t, names[st.Name], "%s is defined twice", st.Name)
		names[st.Name] = true
		require.NotRegexp(t, `(?i)\bOFFSET\b|LIMIT\s+\?\s*,`, st.SQL, "%s: pages go by key", st.Name)
		require.NotRegexp(t, `\([a-z_, ]+\)\s*[<>]=?\s*\(`, st.SQL, "%s: a row constructor in a keyset condition reads everything before the page", st.Name)
	}
	require.NotEmpty(t, names)
	for _, bad := range []string{
		"SELECT NOW()", "select now(3)", "SELECT UTC_TIMESTAMP()", "SELECT UTC_TIMESTAMP", "SELECT UTC_TIMESTAMP(6)", "DELETE FROM x RETURNING id",
		"VALUES (1) AS new ON DUPLICATE", "created_at DATETIME DEFAULT CURRENT_TIMESTAMP", "SELECT CURDATE()", "SELECT SYSDATE(3)",
	} {
		require.Regexp(t, forbidden, withoutTheClock(bad))
	}
}

func TestMigrationsUseTheOneClockAndBothDialects(t *testing.T) {
	t.Parallel()
	files, err := store.Migrations()
	require.NoError(t, err)
	for name, text := range readAll(t, files) {
		require.NotRegexp(t, forbidden, withoutTheClock(text), name)
		require.Contains(t, text, "-- +goose Down", name)
	}
}
