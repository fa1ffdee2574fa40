package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtVersion    = define("store.version", `SELECT VERSION()`)
	stmtBinlog     = define("store.binlog", `SELECT @@log_bin, @@binlog_format`)
	stmtSelfLock   = define("store.selftest_lock", `SELECT name FROM setting WHERE name = 'selftest.a' FOR UPDATE`)
	stmtSelfSkip   = define("store.selftest_skip", `SELECT name FROM setting WHERE name IN ('selftest.a','selftest.b') ORDER BY name FOR UPDATE SKIP LOCKED`)
	errSkipIgnored = errors.New("SKIP LOCKED: the server returned a locked row")
)

// Version gives the server's own version text.
func (s *Store) Version(ctx context.Context) (string, error) {
	var v string
	err := s.queryRow(ctx, s.sql, stmtVersion, []any{&v})
	return v, err
}

func (s *Store) checkServer(ctx context.Context) error {
	var on, format string
	if err := s.queryRow(ctx, s.sql, stmtBinlog, []any{&on, &format}); err != nil {
		return err
	}
	if on == "1" && format == "STATEMENT" {
		return fmt.Errorf("database server: binlog_format is STATEMENT, which READ COMMITTED cannot use; set ROW or MIXED")
	}
	return nil
}

// selfTest proves that SKIP LOCKED locks and skips: some engines accept the words only, and a sweep by two pods
// would do its work twice. Another pod's test may hold the second row for a moment, hence the tries.
func (s *Store) selfTest(ctx context.Context) error {
	var last error
	for range 20 {
		last = s.tx(ctx, "self-test", func(ctx context.Context, holder *txn) error {
			var name string
			if err := s.queryRow(ctx, holder, stmtSelfLock, []any{&name}); err != nil {
				return err
			}
			return s.tx(ctx, "self-test skip", func(ctx context.Context, other *txn) error {
				var got []string
				err := s.query(ctx, other, stmtSelfSkip, func(r *sql.Rows) error {
					var n string
					got = append(got, n)
					return r.Scan(&got[len(got)-1])
				})
				switch {
				case err != nil:
					return err
				case len(got) == 0:
					return fmt.Errorf("%w: the free row was not returned", coupon.ErrContention)
				case got[0] != "selftest.b":
					return errSkipIgnored
				}
				return nil
			})
		})
		if last == nil || !errors.Is(last, coupon.ErrContention) {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("self-test: %w", context.Cause(ctx))
		case <-time.After(25 * time.Millisecond):
		}
	}
	return last
}
