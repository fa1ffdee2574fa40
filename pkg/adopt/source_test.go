package adopt_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/adopt"
)

func file(t testing.TB, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// all reads a source to its end.
func all(t testing.TB, src adopt.Source) (recs []*adopt.Record) {
	t.Helper()
	for {
		rec, err := src.Next(t.Context())
		if errors.Is(err, io.EOF) {
			require.NoError(t, src.Close())
			return recs
		}
		require.NoError(t, err)
		recs = append(recs, rec)
	}
}

func TestFilesGoOnBehindEveryRow(t *testing.T) {
	t.Parallel()
	csv := "\xef\xbb\xbfid, name\n1,ann\n2,\"b\nob\"\n3,a,b\n\n4,\xff\n5,\"x,\"\"y\"\"\"\n6,last"
	jsonl := `{"id": 1, "name": "ann"}` + "\n\n" + `{"id": 12345678901234567890, "name": null}` + "\n[]\n" + `{"id": {}}` + "\n" + `{"ok": true, "f": 1.50}`
	for name, text := range map[string]string{"x.csv": csv, "x.jsonl": jsonl} {
		path := file(t, name, text)
		src, err := adopt.OpenFile(path, "")
		require.NoError(t, err)
		total, err := src.Total(t.Context())
		require.NoError(t, err)
		want := all(t, src)
		require.LessOrEqual(t, int64(len(want)), total)
		for i, rec := range want {
			src, err := adopt.OpenFile(path, rec.Place)
			require.NoError(t, err)
			require.Equal(t, want[i+1:], append([]*adopt.Record{}, all(t, src)...), "behind %s", rec.Where)
		}
		told := make([]string, len(want))
		for i, rec := range want {
			told[i] = fmt.Sprint(rec.Where, " ", rec.Values, rec.Fault)
		}
		if name == "x.csv" {
			require.Equal(t, []string{
				"line 2 map[id:1 name:ann]", "line 3 map[id:2 name:b\nob]", "line 5 map[]has 3 values for 2 columns", "line 7 map[]name: must be UTF-8",
				`line 8 map[id:5 name:x,"y"]`, "line 9 map[id:6 name:last]",
			}, told)
			continue
		}
		require.Equal(t, []string{
			"line 1 map[id:1 name:ann]", "line 3 map[id:12345678901234567890]", "line 4 map[]must be a JSON object",
			"line 5 map[]id: must be a text, a number, true, false or null", "line 6 map[f:1.50 ok:true]",
		}, told)
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for want, path := range map[string]string{
		"must end in .csv, .jsonl or .ndjson": file(t, "x.xls", "x"),
		"first line must name":                file(t, "x.csv", ""),
		"first line must name each column":    file(t, "y.csv", "id,id\n"),
		"no such file":                        filepath.Join(t.TempDir(), "none.csv"),
	} {
		_, err := adopt.OpenFile(path, "")
		require.ErrorContains(t, err, want)
	}
	_, err := adopt.OpenFile(file(t, "x.csv", "id\n1\n"), "elsewhere")
	require.ErrorContains(t, err, "is no place of a file")
	src, err := adopt.OpenFile(file(t, "x.csv", "id,n\n1,\"open\n"), "")
	require.NoError(t, err)
	_, err = src.Next(t.Context())
	require.ErrorContains(t, err, "line 2")
	require.NoError(t, src.Close())
	src, err = adopt.OpenFile(file(t, "x.jsonl", strings.Repeat("x", 1<<20+1)), "")
	require.NoError(t, err)
	_, err = src.Next(t.Context())
	require.ErrorContains(t, err, "line 1: is longer")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = src.Total(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, src.Close())
}
