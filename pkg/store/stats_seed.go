package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// settingSeed is where the seeding of the statistics is: "<table> <coupon> <version> <last coupon>", or seedDone.
const (
	settingSeed = "ledger.seed"
	seedDone    = "done"
)

// The tables that are walked, in order. What moves from the first to the second while that goes on is met there; what comes
// back meanwhile is counted by whoever brings it back: see seedArchived.
const (
	seedLive    = "live"
	seedArchive = "archive"
)

// The page is cut before it is joined: else the server may join everything to sort it.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtSeedState = define("seed.state", `SELECT value FROM setting WHERE name = 'ledger.seed'`)
	stmtSeedStart = define("seed.start", `INSERT INTO setting (name, value, updated_at) VALUES ('ledger.seed',?,UTC_TIMESTAMP(3))
		ON DUPLICATE KEY UPDATE value = value`)
	stmtSeedLast = define("seed.last", `SELECT GREATEST(COALESCE((SELECT MAX(coupon_id) FROM coupon_history), 0),
		COALESCE((SELECT MAX(coupon_id) FROM coupon_history_archive), 0))`)
	stmtSeedLock = define("seed.lock", `SELECT value FROM setting WHERE name = 'ledger.seed' FOR UPDATE SKIP LOCKED`)
	stmtSeedLive = define("seed.live", `SELECT h.coupon_id, h.version, h.from_status, h.to_status, h.at, c.template_id, t.value FROM (
		SELECT coupon_id, version, from_status, to_status, at FROM coupon_history
		WHERE coupon_id >= ? AND coupon_id <= ? AND (coupon_id > ? OR (coupon_id = ? AND version > ?))
		ORDER BY coupon_id, version LIMIT ?) h
		LEFT JOIN coupon c ON c.id = h.coupon_id
		LEFT JOIN coupon_template t ON t.id = c.template_id AND t.revision = c.revision
		ORDER BY h.coupon_id, h.version`)
	stmtSeedArchive = define("seed.archive", `SELECT h.coupon_id, h.version, h.from_status, h.to_status, h.at, c.template_id, t.value FROM (
		SELECT coupon_id, version, from_status, to_status, at FROM coupon_history_archive
		WHERE coupon_id >= ? AND coupon_id <= ? AND (coupon_id > ? OR (coupon_id = ? AND version > ?))
		ORDER BY coupon_id, version LIMIT ?) h
		LEFT JOIN coupon_archive c ON c.id = h.coupon_id
		LEFT JOIN coupon_template t ON t.id = c.template_id AND t.revision = c.revision
		ORDER BY h.coupon_id, h.version`)
	stmtSeedMove = define("seed.move", `UPDATE setting SET value = ?, updated_at = UTC_TIMESTAMP(3) WHERE name = 'ledger.seed'`)
)

// seedPlace is where the walk is.
type seedPlace struct {
	table   string
	coupon  uint64
	version uint32
	last    uint64 // the highest coupon when the seeding began: the events of later ones come by themselves
}

func (p seedPlace) String() string {
	return fmt.Sprintf("%s %d %d %d", p.table, p.coupon, p.version, p.last)
}

func parseSeed(value string) (p seedPlace, err error) {
	_, err = fmt.Sscanf(value, "%s %d %d %d", &p.table, &p.coupon, &p.version, &p.last)
	if err != nil || (p.table != seedLive && p.table != seedArchive) {
		return p, fmt.Errorf("setting %s: must be %s or a place, got %q", settingSeed, seedDone, value)
	}
	return p, nil
}

// SeedStats counts up to limit steps of what happened before the statistics were kept from events: coupons of earlier
// releases have history, but their events went by before anyone listened. The first call must come after the ledger's
// queue was bound: what is committed later than that is told to the queue, and what was committed before is found here;
// what comes by both ways counts once. Where the walk is goes in the transaction that counts, so that it can be broken
// off anywhere, and whichever pod calls goes on from there; one works at a time, and others are told that nothing was
// done. After done nothing is read any more but the setting.
func (s *Store) SeedStats(ctx context.Context, limit int) (counted int, done bool, err error) {
	limit = min(max(limit, 1), MaxCounted)
	err = s.tx(ctx, "seed statistics", func(ctx context.Context, tx *txn) error {
		counted, done = 0, false
		var value string
		switch err := s.queryRow(ctx, tx, stmtSeedState, []any{&value}); {
		case err == nil && value == seedDone:
			done = true
			return nil
		case errors.Is(err, coupon.ErrNotFound):
			var last uint64
			if err := s.queryRow(ctx, tx, stmtSeedLast, []any{&last}); err != nil {
				return err
			}
			if _, err := s.exec(ctx, tx, stmtSeedStart, seedPlace{table: seedLive, last: last}.String()); err != nil {
				return err
			}
		case err != nil:
			return err
		}
		switch err := s.queryRow(ctx, tx, stmtSeedLock, []any{&value}); {
		case errors.Is(err, coupon.ErrNotFound):
			return nil // another pod is at it
		case err != nil:
			return err
		}
		if done = value == seedDone; done {
			return nil
		}
		place, err := parseSeed(value)
		if err != nil {
			return err
		}
		events, last, err := s.seedPage(ctx, tx, place, limit)
		if err != nil {
			return err
		}
		if counted, err = s.countIn(ctx, tx, events); err != nil {
			return err
		}
		next := place.after(last, limit)
		done = next == seedDone
		_, err = s.exec(ctx, tx, stmtSeedMove, next)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	return counted, done, nil
}

// seedArchived counts the steps of an archived coupon that is about to go back among the live, where the walk may have been
// already, unless the seeding is done.
func (s *Store) seedArchived(ctx context.Context, tx querier, id uint64) error {
	var value string
	err := s.queryRow(ctx, tx, stmtSeedState, []any{&value})
	if value == seedDone || (err != nil && !errors.Is(err, coupon.ErrNotFound)) {
		return err
	}
	for p, more := (seedPlace{table: seedArchive, coupon: id, last: id}), true; more; {
		events, read, err := s.seedPage(ctx, tx, p, MaxCounted)
		if err != nil {
			return err
		}
		if _, err := s.countIn(ctx, tx, events); err != nil {
			return err
		}
		p.version, more = read.version, read.rows == MaxCounted
	}
	return nil
}

// seedRead is how far a page went.
type seedRead struct {
	rows    int
	coupon  uint64
	version uint32
}

// after is the place behind a page.
func (p seedPlace) after(page seedRead, limit int) string {
	switch {
	case page.rows == limit:
		p.coupon, p.version = page.coupon, page.version
	case p.table == seedLive:
		p = seedPlace{table: seedArchive, last: p.last}
	default:
		return seedDone
	}
	return p.String()
}

func (s *Store) seedPage(ctx context.Context, tx querier, p seedPlace, limit int) (page []coupon.Counted, read seedRead, err error) {
	st := stmtSeedLive
	if p.table == seedArchive {
		st = stmtSeedArchive
	}
	orphans := 0
	err = s.query(ctx, tx, st, func(r *sql.Rows) error {
		var e coupon.Counted
		var template sql.Null[uint64]
		var value sql.Null[int64]
		if err := r.Scan(&e.CouponID, &e.Version, &e.From, &e.To, &e.At, &template, &value); err != nil {
			return err
		}
		read.rows++
		read.coupon, read.version = e.CouponID, e.Version
		if !template.Valid || !value.Valid {
			orphans++
			return nil
		}
		e.TemplateID, e.Value = template.V, value.V
		page = append(page, e)
		return nil
	}, p.coupon, p.last, p.coupon, p.coupon, p.version, limit)
	if orphans > 0 {
		s.log.Warn("history without a coupon or template is not counted", zap.Int("rows", orphans))
	}
	return page, read, err
}
