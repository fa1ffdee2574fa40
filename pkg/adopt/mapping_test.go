package adopt_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/adopt"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/secret"
)

const small = `
name: shop
zone: Asia/Shanghai
lock_for: 10m
user_prefix: s-
fields: {external_id: id, user_id: uid, state: st, template: tpl, expires_at: ends, valid_from: begins, order_id: oid, used_at: used, lock_until: until, expired_at: over}
states: {"0": unused, "1": locked, "2": used, "3": expired, "4": voided}
templates: {"7": 70, "*": 1}
`

func parse(t testing.TB, text string) *adopt.Mapping {
	t.Helper()
	m, err := adopt.ParseMapping([]byte(text))
	require.NoError(t, err)
	return m
}

// Every fault is told at once, with its path and line.
func TestMappingTellsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := adopt.ParseMapping([]byte(`name: Shop!
zone: Asia/Nowhere
colour: red
last_second: sometimes
lock_for: soon
fields:
  external_id: id
  user: uid
  state: st
  state: st2
states:
  "0": fresh
  "1": locked
templates: {"7": seven}
source:
  tables: [a b]
  select: DELETE FROM x
  page: 0
  timeout: 1h
`))
	require.Error(t, err)
	for _, want := range []string{
		"name: must be of a-z", "zone: must be a time zone such as Asia/Shanghai, got \"Asia/Nowhere\" (line 2)", "colour: is unknown; there are batch, ",
		"last_second: must be midnight, always or never", "lock_for: must be a duration", "fields.user: is unknown", "fields.state: is given twice (line 10)",
		"fields.user_id: must name a column", "fields.expires_at: must name a column", "fields.order_id: must name a column, since there are locked",
		"states.0: must be unused, locked", "templates.7: must be the id", "source.select: must begin with SELECT", "source.key: must be the unique column",
		"source.tables: must be given if, and only if", "source.tables[0]: must be the name of a table", "source.page: must be between 1", "source.timeout: must be between",
	} {
		require.ErrorContains(t, err, want)
	}
	for _, text := range []string{"", "[]", "name: [a]", "a: b: c", "? [x]\n: y"} {
		_, err := adopt.ParseMapping([]byte(text))
		require.Error(t, err, text)
	}
	require.Equal(t, "import.shop", parse(t, small).Batch)
	require.NotEqual(t, parse(t, small).Hash(), parse(t, small+"\n").Hash())
}

// What is shipped is whole, but for the templates, and its tables are what they stand for.
func TestReadyMappings(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../configs/import/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 4)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		m := parse(t, string(text))
		require.NotEmpty(t, m.Query.Select, file)
		require.Contains(t, string(text), "https://", file)
		for _, column := range m.Fields {
			require.Contains(t, m.Query.Select, column, file)
		}
		if m.Name == "onecoupon" {
			require.Len(t, m.Query.Tables, 16)
			require.True(t, strings.HasPrefix(m.Query.Tables[15], "t_user_coupon_"))
			require.Equal(t, "id", m.Query.KeyColumn())
		}
	}
}

func row(m *adopt.Mapping, values map[string]string) (coupon.ImportRow, error) {
	all := map[string]string{"id": "1", "uid": "u", "st": "0", "tpl": "7", "ends": "2026-10-31 23:59:59"}
	for k, v := range values {
		all[k] = v
	}
	return m.Row(&adopt.Record{Values: all})
}

// An end that names the last second of a day is the midnight behind it, in the source's zone; other ends are the instant itself.
func TestEnds(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		if text == "never" {
			return coupon.Never
		}
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return time.Time{}
		}
		return t
	}
	for _, c := range []struct{ text, more, want string }{
		{"2026-10-31 23:59:59", "", "2026-11-01T00:00:00+08:00"},
		{"2026-10-31 23:59:59.999", "", "2026-11-01T00:00:00+08:00"},
		{"2026-10-31T15:59:59Z", "", "2026-11-01T00:00:00+08:00"},
		{"2026-10-31 23:59:00", "", "2026-10-31T23:59:00+08:00"},
		{"2026-11-01 00:00:00", "", "2026-11-01T00:00:00+08:00"},
		{"2026-10-31 12:00:00.5", "", "2026-10-31T12:00:01+08:00"},
		{"2026-10-31", "", "2026-11-01T00:00:00+08:00"},
		{"2026/10/31 08:00:00", "", "2026-10-31T08:00:00+08:00"},
		{"1793404800", "", "2026-10-31T00:00:00Z"},
		{"1793404800000", "", "2026-10-31T00:00:00Z"},
		{"2026-10-31 23:59:59", "last_second: never", "2026-10-31T23:59:59+08:00"},
		{"2026-10-31 12:00:00", "last_second: always", "2026-10-31T12:00:01+08:00"},
		{"", "empty_end: never", "never"},
		{"0000-00-00 00:00:00", "empty_end: never", "never"},
		{"9999-12-31 23:59:59", "", "never"},
		{"", "", ""},
		{"tomorrow", "", ""},
		{"2026-02-30", "", ""},
	} {
		got, err := row(parse(t, small+c.more), map[string]string{"ends": c.text})
		if c.want == "" {
			require.ErrorContains(t, err, "expires_at: ", c.text)
			continue
		}
		require.NoError(t, err, c.text)
		require.True(t, at(c.want).Equal(got.ExpiresAt), "%s %s: %s", c.text, c.more, got.ExpiresAt)
	}
	// In a zone whose clocks are put forward at midnight, and where the day has no such second.
	m := parse(t, strings.Replace(small, "Asia/Shanghai", "America/Santiago", 1))
	got, err := row(m, map[string]string{"ends": "2026-09-05 23:59:59"})
	require.NoError(t, err)
	require.True(t, time.Date(2026, 9, 6, 4, 0, 0, 0, time.UTC).Equal(got.ExpiresAt), got.ExpiresAt)
}

func TestRowIsWhatTheMappingSays(t *testing.T) {
	t.Parallel()
	m := parse(t, small)
	got, err := row(m, map[string]string{"st": "1", "oid": "o", "until": "2026-10-01 08:00:00.2", "begins": "2026-09-01 00:00:00", "used": "nonsense"})
	require.NoError(t, err, "when it was used does not matter")
	require.Equal(t, coupon.ImportRow{
		Key: "1", UserID: "s-u", Template: 70, Status: coupon.Locked, OrderID: "o", LockFor: 10 * time.Minute,
		ValidFrom: time.Date(2026, 8, 31, 16, 0, 0, 0, time.UTC), ExpiresAt: time.Date(2026, 10, 31, 16, 0, 0, 0, time.UTC),
		LockUntil: time.Date(2026, 10, 1, 0, 0, 1, 0, time.UTC),
	}, got)
	got, err = row(m, map[string]string{"st": "2", "oid": "0", "tpl": "else", "used": "2026-10-01"})
	require.NoError(t, err)
	require.Equal(t, []any{coupon.Used, "", uint64(1)}, []any{got.Status, got.OrderID, got.Template})
	for want, values := range map[string]map[string]string{
		`state: the mapping says nothing of "9"`:   {"st": "9"},
		"user_id: must have 1 to 128 bytes":        {"uid": ""},
		"external_id: must have 1 to 128 bytes":    {"id": strings.Repeat("x", 129)},
		"order_id: must have 1 to 128 bytes":       {"st": "1", "oid": "0"},
		"used_at: must be a time":                  {"st": "2", "used": "nonsense"},
		"valid_from: must be before the end":       {"begins": "2026-12-01"},
		"expires_at: what has expired had an end":  {"st": "3", "ends": "9999-12-31"},
		"used_at: must be between 1970 and 9999":   {"st": "2", "used": "1969-01-01"},
		"lock_until: must be a time such as 2026-": {"st": "1", "oid": "o", "until": "x"},
	} {
		_, err := row(m, values)
		require.ErrorContains(t, err, want)
	}
	_, err = m.Row(&adopt.Record{Fault: "has 3 values for 4 columns"})
	require.EqualError(t, err, "has 3 values for 4 columns")
	m.Templates = map[string]uint64{"8": 1}
	_, err = row(m, nil)
	require.ErrorContains(t, err, `template: the mapping says nothing of "7"`)
}

// A mapping that is taken says all that an import needs to know; one that is not says where it is wrong.
func FuzzMapping(f *testing.F) {
	examples, err := filepath.Glob(filepath.Join("..", "..", "configs", "import", "*.yaml"))
	require.NoError(f, err)
	for _, file := range examples {
		text, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(text)
	}
	for _, seed := range []string{
		small, "", "{}", "- a", "name: a\nname: b\n", "states: {[a]: unused}", "a: &a [*a]", "zone: Local\n", "fields: {external_id: ''}\n", "\xff",
		small + "source: {tables: ['t_{0..15}'], select: 'SELECT * FROM {table} {page}', key: id, page: 10000, timeout: 10m}\n",
		small + "source: {tables: ['t_{0..4096}'], select: 'SELECT 1; {page}', key: 'a b', page: 0, timeout: 1ms}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := adopt.ParseMapping(text)
		if err != nil {
			require.Nil(t, m)
			require.ErrorContains(t, err, "mapping: ")
			return
		}
		require.NoError(t, coupon.ValidImportName(m.Name))
		require.NotNil(t, m.Zone)
		require.True(t, m.LockFor >= time.Second && m.LockFor <= coupon.MaxLock)
		require.True(t, m.Batch != "" && len(m.Batch) <= coupon.MaxText)
		for _, field := range []string{adopt.FieldExternalID, adopt.FieldUser, adopt.FieldState, adopt.FieldExpiresAt} {
			require.NotEmpty(t, m.Fields[field], field)
		}
		require.NotEmpty(t, m.States)
		for word, status := range m.States {
			require.True(t, status >= coupon.Unused && status <= coupon.Voided, word)
			require.True(t, status != coupon.Locked || m.Fields[adopt.FieldOrder] != "")
		}
		for word, id := range m.Templates {
			require.NotZero(t, id, word)
		}
		if q := m.Query; q.Select != "" {
			require.True(t, strings.HasSuffix(q.Select, "{page}") && !strings.Contains(q.Select, ";"))
			require.Equal(t, strings.Contains(q.Select, "{table}"), len(q.Tables) > 0)
			require.NotEmpty(t, q.KeyColumn())
			require.True(t, q.Page >= 1 && q.Timeout > 0)
		}
		again, err := adopt.ParseMapping(text)
		require.NoError(t, err)
		require.Equal(t, m.Hash(), again.Hash())
	})
}

// An address of another database is shown without what must not be seen.
func FuzzAddress(f *testing.F) {
	for _, seed := range []string{
		"mysql://reader@db.example:3306/shop", "mysql://reader:pa%3Ass@db.example/shop?tls=skip-verify", "mysql://r@[::1]:3306/s", "mysql://db/shop", "postgres://a@b/c",
		"mysql://a@b/c?charset=x", "file.csv", "", "mysql://a@b/", "mysql://%zz@b/c", "mysql://a:b@c/d/e",
	} {
		f.Add(seed, "pa:ss")
	}
	f.Fuzz(func(t *testing.T, text, password string) {
		hidden := "\x01" + password + "\x01" // in no address
		a, err := adopt.ParseAddress(text, secret.New(hidden))
		if err != nil {
			require.ErrorContains(t, err, "source: ")
			require.NotContains(t, err.Error(), hidden)
			return
		}
		shown, err := url.Parse(a.String())
		if err != nil {
			return // a name that only a driver can make something of
		}
		require.Equal(t, "mysql", shown.Scheme)
		require.Nil(t, shown.User)
		require.NotContains(t, a.String(), hidden)
	})
}
