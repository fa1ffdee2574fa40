package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtReconUntold = define("reconcile.untold", `SELECT channel, COUNT(*), MIN(try_at) FROM (SELECT channel, try_at FROM notice FORCE INDEX (notice_try)
		WHERE channel IN (?) AND try_at <= ? LIMIT 100000) n GROUP BY channel ORDER BY channel`)
	stmtReconUnclosed = define("reconcile.unclosed", `SELECT kind, COUNT(*), MIN(due_at) FROM (SELECT kind, due_at FROM notice_window FORCE INDEX (notice_window_due)
		WHERE kind IN (?) AND due_at <= ? LIMIT 100000) w GROUP BY kind ORDER BY kind`)
)

// Untold gives, by channel, the notices whose time came before an instant and that nobody has taken up since, and by kind the windows
// that nobody has closed.
func (s *Store) Untold(ctx context.Context, before time.Time) ([]coupon.Backlog, error) {
	var out []coupon.Backlog
	read := func(what string) func(*sql.Rows) error {
		return func(r *sql.Rows) error {
			b := coupon.Backlog{Kind: coupon.FindUntold}
			var of string
			err := r.Scan(&of, &b.Rows, &b.Oldest)
			b.Where = what + of
			out = append(out, b)
			return err
		}
	}
	var args []any
	for _, c := range coupon.Channels() {
		args = append(args, string(c))
	}
	if err := s.query(ctx, s.sql, stmtReconUntold.in(len(args)), read("notices by "), append(args, before)...); err != nil {
		return nil, err
	}
	args = args[:0]
	for _, k := range coupon.NoticeKinds() {
		args = append(args, string(k))
	}
	return out, s.query(ctx, s.sql, stmtReconUnclosed.in(len(args)), read("windows of "), append(args, before)...)
}
