package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// watched opens a store whose log can be read.
func watched(t *testing.T, c store.Config) (*store.Store, *observer.ObservedLogs, *prometheus.Registry) {
	t.Helper()
	codec, err := event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	level, logs := observer.New(zapcore.WarnLevel)
	reg := prometheus.NewRegistry()
	s, err := store.Open(t.Context(), c, codec, zap.New(level), reg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, logs, reg
}

func TestASlowStatementIsLoggedWithoutWhatItAskedFor(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	db.Store(t) // migrates
	c := db.Config
	c.Slow = 200 * time.Millisecond
	s, logs, reg := watched(t, c)
	template := create(t, s, nil)
	// Somebody holds the template's stock, so the grant's last statement waits.
	held, err := db.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = held.ExecContext(t.Context(), `UPDATE template_stock SET taken = taken`)
	require.NoError(t, err)
	answered := make(chan error, 1)
	go func() {
		g := grant(template, "a-secret-user", "a-secret-key")
		_, err := s.Issue(context.WithoutCancel(t.Context()), []coupon.Grant{g})
		answered <- err
	}()
	testenv.Wait(t, "the wait for the row", func() bool {
		return db.Int(t, `SELECT COUNT(*) FROM information_schema.processlist
			WHERE db = DATABASE() AND info LIKE 'UPDATE template_stock SET taken = taken +%' AND time >= 1`) > 0
	})
	require.NoError(t, held.Rollback())
	require.NoError(t, <-answered)

	entries := logs.FilterMessage("slow statement").All()
	require.Len(t, entries, 1)
	fields := entries[0].ContextMap()
	require.Equal(t, "issue.reserve", fields["statement"])
	require.EqualValues(t, 1, fields["rows"])
	require.Greater(t, fields["took"], 200*time.Millisecond)
	for _, v := range fields {
		if text, ok := v.(string); ok {
			require.NotContains(t, text, "secret")
		}
	}
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP lapse_slow_statements_total SQL statements that took longer than database.slow.
# TYPE lapse_slow_statements_total counter
`+slowCounts("issue.reserve")), "lapse_slow_statements_total"))
}

// slowCounts is the expected exposition: one run of the statement named, none of all others.
func slowCounts(slow string) string {
	var b strings.Builder
	for _, st := range store.Statements() {
		n := " 0\n"
		if st.Name == slow {
			n = " 1\n"
		}
		b.WriteString(`lapse_slow_statements_total{statement="` + st.Name + `"}` + n)
	}
	return b.String()
}

func TestTheSlowLogIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	level, logs := observer.New(zapcore.WarnLevel)
	w := store.NewSlow(500*time.Millisecond, zap.New(level), func() time.Time { return now })
	w.Note("a", 500*time.Millisecond, 1, nil)
	require.Zero(t, logs.Len(), "exactly the threshold is not past it")
	for i := range 100 {
		w.Note("a", time.Duration(501+i)*time.Millisecond, 7, nil)
	}
	w.Note("b", time.Second, 0, errors.New("Duplicate entry 'a-secret-user' for key"))
	require.Equal(t, 2, logs.Len(), "once for each statement")
	require.Equal(t, map[string]any{"statement": "a", "took": 501 * time.Millisecond, "rows": int64(7)}, logs.All()[0].ContextMap())
	require.Equal(t, map[string]any{"statement": "b", "took": time.Second, "failed": true}, logs.All()[1].ContextMap())
	now = now.Add(time.Minute)
	w.Note("a", time.Second, 7, nil)
	last := logs.All()[2].ContextMap()
	require.EqualValues(t, 99, last["withheld"])
	require.Equal(t, 600*time.Millisecond, last["longest_withheld"])

	off := store.NewSlow(0, zap.New(level), func() time.Time { return now })
	off.Note("a", time.Hour, 1, nil)
	require.Equal(t, 3, logs.Len())
}
