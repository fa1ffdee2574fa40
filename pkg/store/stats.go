package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// MaxCounted is the most events that one call of CountEvents takes.
const MaxCounted = 1000

//nolint:gochecknoglobals // statements are constants
var (
	stmtSeenRead = define("stats.seen", `SELECT coupon_id, version FROM ledger_seen
		WHERE coupon_id IN (?) AND version BETWEEN ? AND ?`)
	stmtSeenAdd  = define("stats.seen_add", `INSERT INTO ledger_seen (coupon_id, version) VALUES (?,?)`)
	stmtStatsAdd = define("stats.add", `INSERT INTO template_stats
		(template_id, day, granted, locked, released, used, refunded, expired, voided,
		granted_value, used_value, refunded_value, expired_value, voided_value, reinstated, reinstated_value)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON DUPLICATE KEY UPDATE granted = granted + VALUES(granted),
		locked = locked + VALUES(locked), released = released + VALUES(released), used = used + VALUES(used),
		refunded = refunded + VALUES(refunded), expired = expired + VALUES(expired), voided = voided + VALUES(voided),
		granted_value = granted_value + VALUES(granted_value), used_value = used_value + VALUES(used_value),
		refunded_value = refunded_value + VALUES(refunded_value), expired_value = expired_value + VALUES(expired_value),
		voided_value = voided_value + VALUES(voided_value),
		reinstated = reinstated + VALUES(reinstated), reinstated_value = reinstated_value + VALUES(reinstated_value)`)
	stmtStatsRead = define("stats.read", `SELECT day, granted, locked, released, used, refunded, expired, voided,
		granted_value, used_value, refunded_value, expired_value, voided_value, reinstated, reinstated_value
		FROM template_stats WHERE template_id = ? AND day BETWEEN ? AND ? ORDER BY day`)
	stmtStatsTemplate = define("stats.template", `SELECT COUNT(*) FROM template_stock WHERE template_id = ?`)
	stmtTombPrune     = define("stats.tombstone_prune", `DELETE FROM order_tombstone
		WHERE created_at < UTC_TIMESTAMP(3) - INTERVAL ? MICROSECOND ORDER BY created_at LIMIT ?`)
)

// CountEvents adds events to the statistics of their template and UTC day, in one transaction, each once for ever,
// whoever brings it and how often: an event is its coupon and version. fresh is how many had not been counted.
//
// An error means that nothing was counted: coupon.ErrUnavailable, ErrContention, or ErrIntegrity when the database
// refuses an event for what it holds.
func (s *Store) CountEvents(ctx context.Context, events []coupon.Counted) (fresh int, err error) {
	if len(events) == 0 {
		return 0, nil
	}
	if len(events) > MaxCounted {
		return 0, fmt.Errorf("count events: at most %d at once, got %d", MaxCounted, len(events))
	}
	err = s.tx(ctx, "count events", func(ctx context.Context, tx *txn) error {
		var err error
		fresh, err = s.countIn(ctx, tx, events)
		return err
	})
	if err != nil {
		return 0, err
	}
	return fresh, nil
}

// seenKey is an event's identity.
type seenKey struct {
	coupon  uint64
	version uint32
}

// countIn notes the events that are new, then adds them up. Whoever counts takes its locks in the same order (events by
// coupon and version, then statistics by template and day), and the hot rows of today last.
func (s *Store) countIn(ctx context.Context, tx querier, events []coupon.Counted) (fresh int, err error) {
	byKey := make(map[seenKey]*coupon.Counted, len(events))
	for i := range events {
		byKey[seenKey{events[i].CouponID, events[i].Version}] = &events[i]
	}
	keys := slices.SortedFunc(maps.Keys(byKey), func(a, b seenKey) int {
		return cmp.Or(cmp.Compare(a.coupon, b.coupon), cmp.Compare(a.version, b.version))
	})
	sums := make(map[statsKey]*coupon.DayStats)
	for part := range slices.Chunk(keys, insertRows) {
		added, err := s.addSeen(ctx, tx, part)
		if err != nil {
			return 0, err
		}
		fresh += len(added)
		for _, k := range added {
			e := byKey[k]
			day := statsKey{e.TemplateID, e.At.UTC().Format(time.DateOnly)}
			if sums[day] == nil {
				sums[day] = &coupon.DayStats{}
			}
			sums[day].Count(e)
		}
	}
	return fresh, s.addStats(ctx, tx, sums)
}

// addSeen inserts those of keys (ascending) that are not there, and gives them. That an INSERT left a row out cannot be
// had from the server, so what is there is read first; a key that another transaction inserts between the two fails the
// whole INSERT, after waiting for that transaction, and is found by the next reading.
func (s *Store) addSeen(ctx context.Context, tx querier, keys []seenKey) ([]seenKey, error) {
	for range len(keys) + 1 { // each turn finds at least one more
		seen, err := s.readSeen(ctx, tx, keys)
		if err != nil {
			return nil, err
		}
		fresh := slices.DeleteFunc(slices.Clone(keys), func(k seenKey) bool { return seen[k] })
		if len(fresh) == 0 {
			return nil, nil
		}
		args := make([]any, 0, 2*len(fresh))
		for _, k := range fresh {
			args = append(args, k.coupon, k.version)
		}
		_, err = s.exec(ctx, tx, stmtSeenAdd.rows(len(fresh)), args...)
		if err == nil {
			return fresh, nil
		}
		if !errors.Is(err, coupon.ErrConflict) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("events counted by others meanwhile: %w", coupon.ErrContention)
}

func (s *Store) readSeen(ctx context.Context, tx querier, keys []seenKey) (map[seenKey]bool, error) {
	low, high := keys[0].version, keys[0].version
	args := make([]any, 0, len(keys)+2)
	for i, k := range keys {
		low, high = min(low, k.version), max(high, k.version)
		if i == 0 || keys[i-1].coupon != k.coupon {
			args = append(args, k.coupon)
		}
	}
	seen := make(map[seenKey]bool)
	err := s.query(ctx, tx, stmtSeenRead.in(len(args)), func(r *sql.Rows) error {
		var k seenKey
		if err := r.Scan(&k.coupon, &k.version); err != nil {
			return err
		}
		seen[k] = true
		return nil
	}, append(args, low, high)...)
	return seen, err
}

type statsKey struct {
	template uint64
	day      string
}

// addStats adds sums to their rows, one for each template and day, in order.
func (s *Store) addStats(ctx context.Context, tx querier, sums map[statsKey]*coupon.DayStats) error {
	keys := slices.SortedFunc(maps.Keys(sums), func(a, b statsKey) int {
		return cmp.Or(cmp.Compare(a.template, b.template), cmp.Compare(a.day, b.day))
	})
	keys = slices.DeleteFunc(keys, func(k statsKey) bool { return *sums[k] == coupon.DayStats{} })
	for part := range slices.Chunk(keys, insertRows) {
		args := make([]any, 0, 16*len(part))
		for _, k := range part {
			d := sums[k]
			args = append(args, k.template, k.day, d.Granted, d.Locked, d.Released, d.Used, d.Refunded, d.Expired, d.Voided,
				d.GrantedValue, d.UsedValue, d.RefundedValue, d.ExpiredValue, d.VoidedValue, d.Reinstated, d.ReinstatedValue)
		}
		if _, err := s.exec(ctx, tx, stmtStatsAdd.rows(len(part)), args...); err != nil {
			return err
		}
	}
	return nil
}

// TemplateStats gives the days of a template that have anything counted, in order, from the UTC day of from to that of
// to, both included; a zero time is no bound. coupon.ErrNotFound when there is no such template.
func (s *Store) TemplateStats(ctx context.Context, id uint64, from, to time.Time) ([]coupon.DayStats, error) {
	if to.IsZero() {
		to = coupon.Never
	}
	var days []coupon.DayStats
	err := s.query(ctx, s.sql, stmtStatsRead, func(r *sql.Rows) error {
		var d coupon.DayStats
		if err := r.Scan(&d.Day, &d.Granted, &d.Locked, &d.Released, &d.Used, &d.Refunded, &d.Expired, &d.Voided,
			&d.GrantedValue, &d.UsedValue, &d.RefundedValue, &d.ExpiredValue, &d.VoidedValue, &d.Reinstated, &d.ReinstatedValue); err != nil {
			return err
		}
		days = append(days, d)
		return nil
	}, id, from.UTC().Format(time.DateOnly), to.UTC().Format(time.DateOnly))
	if err != nil || len(days) > 0 {
		return days, err
	}
	var n int
	if err := s.queryRow(ctx, s.sql, stmtStatsTemplate, []any{&n}, id); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, fmt.Errorf("template %d: %w", id, coupon.ErrNotFound)
	}
	return nil, nil
}

// PruneTombstones removes up to limit tombstones of orders that are older than that, and says how many.
func (s *Store) PruneTombstones(ctx context.Context, olderThan time.Duration, limit int) (int, error) {
	var pruned int64
	err := s.tx(ctx, "prune tombstones", func(ctx context.Context, tx *txn) error {
		var err error
		pruned, err = s.exec(ctx, tx, stmtTombPrune, olderThan.Microseconds(), limit)
		return err
	})
	return int(pruned), err
}
