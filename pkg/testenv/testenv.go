// Package testenv gives each test a database and a name prefix of its own on the real servers of the stack, so that
// tests run in parallel and leave nothing behind. A missing server fails the test; nothing is skipped.
//
// Only tests import it.
package testenv

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
)

const patience = 60 * time.Second

// Servers gives the stack's servers after the fence has let them pass: loopback, and of this checkout.
func Servers(t testing.TB) rig.Stack {
	t.Helper()
	stack, err := rig.LoadStack(os.LookupEnv)
	require.NoError(t, err, "start the stack and read its environment: scripts/stack up; eval \"$(scripts/stack env)\"")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, stack.Check(ctx))
	return stack
}

// Redis gives the address of the stack's Redis.
func Redis(t testing.TB) secret.String {
	t.Helper()
	stack := Servers(t)
	require.False(t, stack.RedisURL.Empty(), "start the stack with Redis: scripts/stack up --redis; eval \"$(scripts/stack env)\"")
	return stack.RedisURL
}

// Prefix gives a fresh name prefix for broker topology.
func Prefix(t testing.TB) string {
	t.Helper()
	return "t" + token(t)
}

// Database is a database of the test's own, dropped when it ends.
type Database struct {
	Config store.Config // Migrate is auto
	SQL    *sql.DB      // plain connection, session time zone UTC
}

// NewDatabase creates one, empty.
func NewDatabase(t testing.TB) Database {
	t.Helper()
	Servers(t)
	base, err := mysql.ParseDSN(os.Getenv("TEST_MYSQL_DSN"))
	require.NoError(t, err, "TEST_MYSQL_DSN")
	base.Params = map[string]string{"time_zone": "'+00:00'"}
	base.ParseTime = true
	name := "lapse_t_" + token(t)
	admin := open(t, base)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = admin.ExecContext(ctx, "CREATE DATABASE "+name+" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := admin.ExecContext(ctx, "DROP DATABASE "+name)
		require.NoError(t, err)
		require.NoError(t, admin.Close())
	})
	own := base.Clone()
	own.DBName = name
	plain := open(t, own)
	t.Cleanup(func() { require.NoError(t, plain.Close()) })
	c := store.DefaultConfig()
	c.Address, c.User, c.Password, c.Name, c.Migrate = base.Addr, base.User, secret.New(base.Passwd), name, "auto"
	return Database{Config: c, SQL: plain}
}

func open(t testing.TB, c *mysql.Config) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(c)
	require.NoError(t, err)
	return sql.OpenDB(connector)
}

// Installation is the installation id of every test.
const Installation = "test"

// Store opens another pool on the database, as another pod would, and closes it when the test ends.
func (d Database) Store(t testing.TB) *store.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	codec, err := event.NewCodec(Installation)
	require.NoError(t, err)
	s, err := store.Open(ctx, d.Config, codec, zap.NewNop(), prometheus.NewRegistry())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// Exec runs plain SQL on the test's database.
func (d Database) Exec(t testing.TB, query string, args ...any) {
	t.Helper()
	_, err := d.SQL.ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}

// Int reads one number by plain SQL.
func (d Database) Int(t testing.TB, query string, args ...any) int64 {
	t.Helper()
	var n sql.NullInt64
	require.NoError(t, d.SQL.QueryRowContext(t.Context(), query, args...).Scan(&n))
	return n.Int64
}

// Log writes to the test.
func Log(t testing.TB) *zap.Logger { return zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel)) }

func token(t testing.TB) string {
	t.Helper()
	b := make([]byte, 6)
	_, err := rand.Read(b)
	require.NoError(t, err)
	return hex.EncodeToString(b)
}

// Wait polls until ok reports true or patience runs out. For real servers only, where no event can be awaited.
func Wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 20*time.Millisecond, "waited %s for: %s", patience, what)
}

// Seed gives the run's seed (TEST_SEED, which make test sets and prints) for a test's random choices.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(1)
	if text, ok := os.LookupEnv("TEST_SEED"); ok {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "TEST_SEED")
	}
	t.Logf("seed %d", seed)
	return seed
}
