package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// probe is one way to run a statement.
type probe struct {
	with string // what distinguishes it, for people
	in   int    // members of its IN list
	page int    // rows that it has to look at
	args []any
}

// measure explains and runs the statement, and takes back what it changed.
func (p probe) measure(ctx context.Context, conn *sql.Conn, text string) (indexes string, rows int, err error) {
	if p.in > 1 {
		text = strings.Replace(text, "IN (?)", "IN (?"+strings.Repeat(",?", p.in-1)+")", 1)
	}
	if want := strings.Count(text, "?"); want != len(p.args) {
		return "", 0, fmt.Errorf("takes %d arguments, the table gives %d", want, len(p.args))
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return "", 0, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing is to be kept
	if indexes, err = explain(ctx, tx, text, p.args); err != nil {
		return "", 0, err
	}
	// Looking reads rows as well, as many each time.
	first, err := reads(ctx, tx)
	if err != nil {
		return "", 0, err
	}
	before, err := reads(ctx, tx)
	if err != nil {
		return "", 0, err
	}
	if err := drain(ctx, tx, text, p.args); err != nil {
		return "", 0, err
	}
	after, err := reads(ctx, tx)
	return indexes, after - before - (before - first), err
}

var errNothing = errors.New("it changed no row, so it proves nothing")

func drain(ctx context.Context, tx *sql.Tx, text string, args []any) error {
	if !strings.HasPrefix(text, "SELECT") {
		res, err := tx.ExecContext(ctx, text, args...)
		if err != nil {
			return wrap("running", err)
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return fmt.Errorf("running: %w", errors.Join(err, errNothing))
		}
		return nil
	}
	rows, err := tx.QueryContext(ctx, text, args...)
	if err != nil {
		return wrap("running", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	for rows.Next() {
		continue
	}
	return wrap("running", rows.Err())
}

// reads counts index entries and rows read by the session; on MariaDB also the entries that an index condition passed over,
// which no other counter shows. MySQL has no counter for those.
func reads(ctx context.Context, tx *sql.Tx) (sum int, err error) {
	rows, err := tx.QueryContext(ctx, `SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler_read%' OR Variable_name LIKE 'Handler_icp%'`)
	if err != nil {
		return 0, wrap("status", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			return 0, wrap("status", err)
		}
		if name == "Handler_icp_match" {
			n = -n
		}
		sum += n
	}
	return sum, wrap("status", rows.Err())
}

// explain gives the index of every table that the statement reads.
func explain(ctx context.Context, tx *sql.Tx, text string, args []any) (string, error) {
	rows, err := tx.QueryContext(ctx, "EXPLAIN "+text, args...)
	if err != nil {
		return "", wrap("explaining", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	columns, err := rows.Columns()
	if err != nil {
		return "", wrap("explaining", err)
	}
	var parts []string
	for rows.Next() {
		values, dest := make([]sql.NullString, len(columns)), make([]any, len(columns))
		at := make(map[string]string, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return "", wrap("explaining", err)
		}
		for i, c := range columns {
			at[c] = values[i].String
		}
		switch {
		case at["key"] != "":
			parts = append(parts, at["table"]+"."+at["key"])
		case strings.HasPrefix(at["table"], "<"), at["table"] == "", at["select_type"] == "INSERT", at["type"] == "ALL" && strings.HasPrefix(text, "INSERT"):
		default:
			parts = append(parts, at["table"]+" without an index")
		}
		if strings.Contains(at["Extra"], "filesort") {
			parts = append(parts, "sorted")
		}
	}
	if len(parts) == 0 {
		parts = []string{"–"}
	}
	return strings.Join(parts, ", "), wrap("explaining", rows.Err())
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
