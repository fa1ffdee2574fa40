package store_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// Every step of the schema, with rows that use what it adds: from the newest version back to each earlier one, and up again. What the schema
// there can keep is kept row for row, what goes is what StepsBack has said beforehand, and the fleet goes on.
func TestMigrationsKeepData(t *testing.T) {
	t.Parallel()
	newest := newestVersion(t)
	for version := range newest {
		t.Run(fmt.Sprintf("down to %d", version), func(t *testing.T) {
			t.Parallel()
			d := testenv.NewDatabase(t)
			m := openSchema(t, d)
			for v := int64(1); v <= newest; v++ {
				require.NoError(t, m.UpTo(t.Context(), v))
				plantVersion(t, d, v)
			}
			full := readTables(t, d)
			for name, tb := range full {
				require.NotEmpty(t, tb.rows, "testdata/planted has no row of %s", name)
			}
			steps, err := m.StepsBack(t.Context(), version)
			require.NoError(t, err)
			require.Len(t, steps, int(newest-version))
			require.Equal(t, full, readTables(t, d), "to ask changes nothing")

			require.NoError(t, m.DownTo(t.Context(), version))
			down := readTables(t, d)
			require.NoError(t, m.Up(t.Context()))
			up := readTables(t, d)

			lost := losses(t, full, down, up)
			said := map[string]int64{}
			for _, step := range steps {
				require.Empty(t, step.Refused)
				for _, l := range step.Losses {
					if _, gone := down[l.Table]; !gone && l.Kept {
						continue // its table goes with a later step
					}
					said[l.String()] += l.Rows
				}
			}
			require.Equal(t, lost, said)
			for name, tb := range down {
				require.Equal(t, tb.rows, up[name].of(tb.columns), "%s, up again", name)
			}
			fleetGoesOn(t, d, version > 0)
		})
	}
}

func newestVersion(t *testing.T) int64 {
	t.Helper()
	files, err := store.Migrations()
	require.NoError(t, err)
	return int64(len(readAll(t, files)))
}

func openSchema(t *testing.T, d testenv.Database) *store.Schema {
	t.Helper()
	m, err := store.OpenSchema(t.Context(), d.Config, zap.NewNop())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// plantVersion inserts what testdata has for a version of the schema. A new migration brings its rows.
func plantVersion(t *testing.T, d testenv.Database, version int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("testdata/planted/%05d.sql", version))
	require.NoError(t, err)
	for statement := range strings.SplitSeq(comment.ReplaceAllString(string(text), ""), ";\n") {
		if strings.TrimSpace(statement) != "" {
			d.Exec(t, statement)
		}
	}
}

// tableRows is what a table holds: a row is its values in the order of columns, and rows are sorted.
type tableRows struct{ columns, rows []string }

const between = "\x1f" // values of a row, which are quoted

func readTables(t *testing.T, d testenv.Database) map[string]tableRows {
	t.Helper()
	names := readStrings(t, d, `SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name NOT LIKE 'goose%'`)
	out := map[string]tableRows{}
	for _, name := range names {
		out[name] = readTable(t, d, name)
	}
	return out
}

func readStrings(t *testing.T, d testenv.Database, query string) (out []string) {
	t.Helper()
	rows, err := d.SQL.QueryContext(t.Context(), query)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var s string
		require.NoError(t, rows.Scan(&s))
		out = append(out, s)
	}
	require.NoError(t, rows.Err())
	return out
}

func readTable(t *testing.T, d testenv.Database, name string) (tb tableRows) {
	t.Helper()
	rows, err := d.SQL.QueryContext(t.Context(), "SELECT * FROM "+name)
	require.NoError(t, err)
	defer rows.Close()
	tb.columns, err = rows.Columns()
	require.NoError(t, err)
	for rows.Next() {
		values, into := make([]sql.Null[string], len(tb.columns)), make([]any, len(tb.columns))
		for i := range values {
			into[i] = &values[i]
		}
		require.NoError(t, rows.Scan(into...))
		row := make([]string, len(values))
		for i, v := range values {
			if row[i] = "NULL"; v.Valid {
				row[i] = strconv.Quote(v.V)
			}
		}
		tb.rows = append(tb.rows, strings.Join(row, between))
	}
	require.NoError(t, rows.Err())
	slices.Sort(tb.rows)
	return tb
}

// of gives the rows as they are with these columns alone.
func (tb tableRows) of(columns []string) (out []string) {
	for _, row := range tb.rows {
		values := strings.Split(row, between)
		var some []string
		for _, c := range columns {
			some = append(some, values[slices.Index(tb.columns, c)])
		}
		out = append(out, strings.Join(some, between))
	}
	slices.Sort(out)
	return out
}

func (tb tableRows) column(name string) (out []string) { return tb.of([]string{name}) }

// losses compares what was there with what is there after the way back, and after the way up again, where every column holds its default.
func losses(t *testing.T, full, down, up map[string]tableRows) map[string]int64 {
	t.Helper()
	lost := map[string]int64{}
	for name, before := range full {
		after, stays := down[name]
		if !stays {
			lost["table "+name] = int64(len(before.rows))
			continue
		}
		kept := before.of(after.columns)
		for _, row := range after.rows {
			i := slices.Index(kept, row)
			require.GreaterOrEqual(t, i, 0, "%s: a row that was not there: %q", name, row)
			kept = slices.Delete(kept, i, i+1)
		}
		if len(kept) > 0 {
			lost["rows of "+name] = int64(len(kept))
		}
		for _, c := range before.columns {
			if slices.Contains(after.columns, c) {
				continue
			}
			usual := up[name].column(c)
			require.NotEmpty(t, usual, name)
			n := 0
			for _, value := range before.column(c) {
				if value != usual[0] {
					n++
				}
			}
			require.Positive(t, n, "testdata/planted has nothing but the default in %s.%s", name, c)
			lost["column "+name+"."+c] = int64(n)
		}
	}
	return lost
}

// fleetGoesOn: every statement of this build is one that the schema takes, what was planted expires, and coupons are issued, locked and paid.
func fleetGoesOn(t *testing.T, d testenv.Database, planted bool) {
	t.Helper()
	for _, st := range store.Statements() {
		p, err := d.SQL.PrepareContext(t.Context(), st.SQL)
		require.NoError(t, err, st.Name)
		require.NoError(t, p.Close()) //nolint:sqlclosecheck // one at a time
	}
	s := d.Store(t)
	if planted {
		_, out, err := s.ExpireBatch(t.Context(), []coupon.Trigger{{
			Kind: coupon.KindExpire, CouponID: 1, At: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), ID: "v", Origin: coupon.OriginLadder,
		}}, always)
		require.NoError(t, err)
		require.Equal(t, coupon.Expire, out[0].Decision.Action)
		seen, err := s.Templates(t.Context(), 1, 10)
		require.NoError(t, err)
		require.NotEmpty(t, seen)
	}
	g := issueOne(t, s, grant(create(t, s, nil), "u9", "new"))
	require.Empty(t, g.Refused)
	done(t, s, ask(coupon.VerbLock, "o9", g.CouponID))
	require.Equal(t, coupon.Used, done(t, s, ask(coupon.VerbRedeem, "o9", g.CouponID)).Status)
}

// A step waits for whoever reads the table, however short read_timeout is.
func TestMigratingMayTakeLong(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	d.Store(t) // migrates
	d.Config.ReadTimeout = time.Second
	m := openSchema(t, d)
	to := newestVersion(t) - 1
	for _, step := range []func() error{
		func() error { return m.DownTo(t.Context(), to) },
		func() error { // a worker that may migrate
			codec, err := event.NewCodec(testenv.Installation)
			if err != nil {
				return err
			}
			s, err := store.Open(t.Context(), d.Config, codec, zap.NewNop(), prometheus.NewRegistry())
			if err != nil {
				return err
			}
			return s.Close()
		},
	} {
		reader, err := d.SQL.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = reader.ExecContext(t.Context(), "SELECT COUNT(*) FROM coupon")
		require.NoError(t, err)
		went := make(chan error, 1)
		go func() { went <- step() }()
		testenv.Wait(t, "a step that has waited for longer than read_timeout", func() bool {
			return d.Int(t, `SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE 'Waiting for table metadata lock%' AND time >= 2`) > 0
		})
		require.NoError(t, errors.Join(reader.Rollback(), <-went))
	}
}

// What a way back may take away is told in any form that a migration uses, and a form that is not known is an error.
func TestStepsBackKnowEveryForm(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	m := openSchema(t, d)
	require.NoError(t, m.Up(t.Context()))
	steps, err := m.StepsBack(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, newestVersion(t), steps[0].Version)
	for _, step := range steps {
		require.NotEmpty(t, step.Losses, step.Name)
	}
	steps, err = m.StepsBack(t.Context(), newestVersion(t))
	require.NoError(t, err)
	require.Empty(t, steps)
	for _, bad := range []string{"UPDATE coupon SET status = 1", "ALTER TABLE coupon MODIFY order_id INT", "TRUNCATE coupon"} {
		require.ErrorContains(t, m.Loses(t.Context(), bad), "it is not known what this takes away: "+bad)
	}
}
