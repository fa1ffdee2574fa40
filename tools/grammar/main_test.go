package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func check(t *testing.T, migration, statements string) (int, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "1_a.sql")
	if err := os.WriteFile(file, []byte(migration), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	return run([]string{file}, strings.NewReader(statements), &out), out.String()
}

const good = "-- +goose Up\nCREATE TABLE a (\n  id BIGINT NOT NULL -- key\n);\n\n-- +goose Down\nDROP TABLE a;\n"

func TestGood(t *testing.T) {
	code, out := check(t, good, `{"a":"SELECT id, 'NOW' FROM a WHERE id IN (?) ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED",
		"b":"INSERT INTO a (id) VALUES (?) ON DUPLICATE KEY UPDATE id = VALUES(id)", "c":"SELECT UTC_TIMESTAMP(3)"}`)
	if code != 0 || !strings.Contains(out, "5 statements and migrations are MySQL, 0 are not") {
		t.Fatal(code, out)
	}
}

func TestBad(t *testing.T) {
	for sql, want := range map[string]string{
		"SELEC 1":                "near",
		"SELECT NOW(3)":          "UTC_TIMESTAMP(3)",
		"SELECT UTC_TIMESTAMP()": "milliseconds",
		"DELETE FROM a WHERE id = ? RETURNING id":                                  "RETURNING",
		"SELECT 1; SELECT 2":                                                       "one statement",
		"CREATE INDEX IF NOT EXISTS i ON a (id)":                                   "not MySQL",
		"ALTER TABLE a ADD COLUMN IF NOT EXISTS b INT":                             "not MySQL",
		"INSERT INTO a (id) VALUES (?) AS new ON DUPLICATE KEY UPDATE id = new.id": "VALUES(column)",
	} {
		code, out := check(t, good, `{"x":"`+sql+`"}`)
		if code != 1 || !strings.Contains(out, "statement x: ") || !strings.Contains(out, want) {
			t.Errorf("%s: %d %s", sql, code, out)
		}
	}
	code, out := check(t, strings.Replace(good, "DROP TABLE a", "DROP TABEL a", 1), `{"a":"SELECT 1"}`)
	if code != 1 || !strings.Contains(out, "1_a.sql:7: ") {
		t.Fatal(code, out)
	}
	if code, _ := check(t, good, `{}`); code != 2 {
		t.Fatal("nothing checked must not pass")
	}
}
