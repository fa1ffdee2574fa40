package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

const pendingFor = 20 * time.Hour

func (b *bench) pendings() []subject {
	few, many := max(1, b.cfg.Size/10), 10*b.cfg.Size
	return []subject{
		{name: "few", what: fmt.Sprintf("publisher and expirer, %d others pending", few), run: b.pending(few)},
		{name: "many", what: fmt.Sprintf("publisher and expirer, %d others pending", many), run: b.pending(many)},
	}
}

// pending measures a spike while others wait, as rows and as messages in the ladder.
func (b *bench) pending(others int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		s, err := b.fresh(ctx, "lapse", twoWorkers()...)
		if err != nil {
			return nil, err
		}
		due, err := s.soon(ctx, pendingFor)
		if err != nil {
			return nil, err
		}
		c, err := s.plant(ctx, others, pace{}, due)
		if err != nil {
			return nil, err
		}
		if err := s.ring(ctx, c); err != nil {
			return nil, err
		}
		m, err := b.expire(ctx, s, b.cfg.Size, pace{}, twoWorkers())
		if err == nil {
			m["pending"] = float64(others)
		}
		return m, err
	}
}

func (b *bench) tables() []subject {
	return []subject{
		{name: "few", what: fmt.Sprintf("publisher and expirer, %d other rows: four fifths used, one fifth ending weeks later", b.cfg.Size), run: b.table("rows_few", b.cfg.Size)},
		{name: "many", what: fmt.Sprintf("publisher and expirer, %d other rows of the same kinds", b.cfg.Rows), run: b.table("rows_many", b.cfg.Rows)},
	}
}

// table measures a spike in a table of so many other rows. They are planted once.
func (b *bench) table(name string, others int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		_, known := b.sites[name]
		s, err := b.site(ctx, name)
		if err != nil {
			return nil, err
		}
		if !known {
			if err := b.room(ctx, others); err != nil {
				return nil, err
			}
			if err := s.bulk(ctx, others); err != nil {
				return nil, err
			}
		}
		if err := s.work(ctx, twoWorkers()...); err != nil {
			return nil, err
		}
		m, err := b.expire(ctx, s, b.cfg.Size, pace{}, twoWorkers())
		if err != nil {
			return nil, err
		}
		m["rows"] = float64(others)
		size, err := s.count(ctx, `SELECT (data_length + index_length) DIV 1048576 FROM information_schema.tables
			WHERE table_schema = DATABASE() AND table_name = 'coupon'`)
		m["table_mib"] = float64(size)
		return m, errors.Join(err, s.Fleet().Stop(ctx))
	}
}

const (
	bytesPerRow = 480 // 280 with its indexes, and what the bulk load sorts beside it
	mostBytes   = 20 << 30
)

// room refuses what the disk has not twice the place for.
func (b *bench) room(_ context.Context, rows int) error {
	free, err := freeBytes(b.cfg.Stack.Dir)
	if err != nil {
		return err
	}
	need := uint64(rows) * bytesPerRow
	if need > mostBytes || free < 2*need {
		return fmt.Errorf("%d rows need about %d MiB, twice that must be free and at most %d MiB are taken: %d MiB are free; give -rows", rows, need>>20, mostBytes>>20, free>>20)
	}
	return nil
}

const bulkCoupons = `INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at, order_id, used_at)
	SELECT 1 + x.i, ?, 1, 'bench', CONCAT('user-', x.i % 1000000), IF(x.i % 5 = 0, 1, 3), IF(x.i % 5 = 0, 1, 3), ?, ? + INTERVAL (x.i % 1000000) SECOND,
		? + INTERVAL (x.i % 1000000) SECOND, ?, IF(x.i % 5 = 0, NULL, CONCAT('order-', x.i)), IF(x.i % 5 = 0, NULL, ?)
	FROM (SELECT a.n + 100000 * b.n AS i FROM bench_number b STRAIGHT_JOIN bench_number a WHERE b.n < ? AND a.n + 100000 * b.n < ?) x`

// bulk fills an empty table by one statement in the order of its key: MariaDB then loads in bulk. The rows have no history.
func (s *site) bulk(ctx context.Context, n int) error {
	due, err := s.soon(ctx, 14*24*time.Hour)
	if err != nil {
		return err
	}
	if err := s.clear(ctx); err != nil {
		return err
	}
	granted := due.Add(-15 * 24 * time.Hour)
	err = s.root(ctx, func(conn *sql.Conn) error {
		for _, statement := range []string{
			"USE " + s.database(), "SET SESSION sql_log_bin = 0", "SET SESSION unique_checks = 0", "SET SESSION foreign_key_checks = 0",
			"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", numbersTable, fillNumbers,
		} {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("planting: %w", err)
			}
		}
		_, err := conn.ExecContext(ctx, bulkCoupons, s.template, granted, due, due, granted, granted, (n+plantChunk-1)/plantChunk, n)
		if err != nil {
			return fmt.Errorf("planting: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, "ANALYZE TABLE coupon")
	return err
}
