package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/crash"
)

// Statement is a named SQL text. Lists are written as IN (?) and rows as VALUES (…): in and rows repeat them.
type Statement struct {
	Name string
	SQL  string
}

//nolint:gochecknoglobals // filled while package variables are initialised, read-only afterwards
var registry []Statement

// define registers a statement; called from package variables only.
func define(name, text string) Statement {
	s := Statement{Name: name, SQL: text}
	registry = append(registry, s)
	return s
}

// Statements lists every statement of the package, for the checks that hold for all of them.
func Statements() []Statement { return append([]Statement(nil), registry...) }

// querier is a connection pool or a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// exec runs a statement and gives the rows it matched (clientFoundRows).
func (s *Store) exec(ctx context.Context, q querier, st Statement, args ...any) (n int64, err error) {
	defer func(began time.Time) { s.ran(ctx, st, began, n, err) }(time.Now())
	crash.Before(crash.Write, st.Name)
	res, err := q.ExecContext(ctx, st.SQL, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", st.Name, classify(err))
	}
	crash.After(crash.Write, st.Name)
	if n, err = res.RowsAffected(); err != nil {
		return 0, fmt.Errorf("%s: rows affected: %w", st.Name, err)
	}
	if tx, ok := q.(*txn); crash.Enabled && ok && n > 0 {
		tx.change = true
	}
	return n, nil
}

// insertID runs an INSERT and gives the id of its first row.
func (s *Store) insertID(ctx context.Context, q querier, st Statement, args ...any) (_ uint64, err error) {
	var n int64
	defer func(began time.Time) { s.ran(ctx, st, began, n, err) }(time.Now())
	res, err := q.ExecContext(ctx, st.SQL, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", st.Name, classify(err))
	}
	if n, err = res.RowsAffected(); err != nil {
		return 0, fmt.Errorf("%s: rows affected: %w", st.Name, err)
	}
	if tx, ok := q.(*txn); crash.Enabled && ok && n > 0 {
		tx.change = true
	}
	id, err := res.LastInsertId()
	if err != nil {
		return 0, fmt.Errorf("%s: last insert id: %w", st.Name, err)
	}
	return uint64(id), nil
}

// query runs a statement and hands each row to scan.
func (s *Store) query(ctx context.Context, q querier, st Statement, scan func(*sql.Rows) error, args ...any) (err error) {
	var n int64
	defer func(began time.Time) { s.ran(ctx, st, began, n, err) }(time.Now())
	rows, err := q.QueryContext(ctx, st.SQL, args...)
	if err != nil {
		return fmt.Errorf("%s: %w", st.Name, classify(err))
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	for rows.Next() {
		n++
		if err := scan(rows); err != nil {
			return fmt.Errorf("%s: scan: %w", st.Name, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("%s: %w", st.Name, classify(err))
	}
	return nil
}

// queryRow runs a statement that gives one row at most; coupon.ErrNotFound when it gives none.
func (s *Store) queryRow(ctx context.Context, q querier, st Statement, dest []any, args ...any) (err error) {
	defer func(began time.Time) { s.ran(ctx, st, began, 1, err) }(time.Now())
	if err := q.QueryRowContext(ctx, st.SQL, args...).Scan(dest...); err != nil {
		return fmt.Errorf("%s: %w", st.Name, classify(err))
	}
	return nil
}

// in repeats the first "IN (?)" of the statement for n members.
func (st Statement) in(n int) Statement {
	return Statement{Name: st.Name, SQL: strings.Replace(st.SQL, "IN (?)", "IN (?"+strings.Repeat(",?", n-1)+")", 1)}
}

// rows repeats the row that follows VALUES n times. Only ON DUPLICATE KEY may follow the row.
func (st Statement) rows(n int) Statement {
	head, row, ok := strings.Cut(st.SQL, "VALUES ")
	if !ok || n <= 1 {
		return st
	}
	row, tail, onDuplicate := strings.Cut(row, " ON DUPLICATE KEY ")
	if onDuplicate {
		tail = " ON DUPLICATE KEY " + tail
	}
	return Statement{Name: st.Name, SQL: head + "VALUES " + row + strings.Repeat(","+row, n-1) + tail}
}
