package store

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// RefusalLimit is how often the broker may refuse an outbox row before it is parked.
const RefusalLimit = 20

const (
	outboxIDs = 900 // ids of one IN list at most
	maxReason = 255 // what outbox_parked.reason holds
)

// outboxArm reads one partition from a cursor on, by the primary key alone. The arms of all owned partitions make
// one statement (union): each is a range of the key, whatever lies in the partitions of others, and its own LIMIT
// keeps a full partition from starving the rest.
//
// A row leaves by its id and only after its confirm. Ids are handed out before the commit, so a lower id may appear
// after higher ones were published and deleted; the next walk from zero finds it. But the walk that has passed it must
// not come upon what was written after it, or a coupon's later event would overtake an earlier one. Hence a walk ends
// at the highest id that its first reading saw: a row up to there took its id before, so the row that it follows had
// been committed before, and no reading of this walk missed it.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtOutboxBatch = define("outbox.batch", `(SELECT id, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, refused, UTC_TIMESTAMP(3),
		(SELECT MAX(id) FROM outbox WHERE lane = ? AND part = ?)
		FROM outbox WHERE lane = ? AND part = ? AND id > ? AND id <= ? ORDER BY id LIMIT ?)`)
	stmtOutboxDelete = define("outbox.delete", `DELETE FROM outbox WHERE lane = ? AND part = ? AND id IN (?)`)
	stmtOutboxRefuse = define("outbox.refuse", `UPDATE outbox SET refused = refused + 1 WHERE lane = ? AND part = ? AND id IN (?)`)
	stmtOutboxTired  = define("outbox.tired", `SELECT id FROM outbox WHERE lane = ? AND part = ? AND id IN (?) AND refused >= ?`)
	stmtOutboxPark   = define("outbox.park", `INSERT INTO outbox_parked
		(id, lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, reason, parked_at)
		SELECT id, lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, ?, UTC_TIMESTAMP(3)
		FROM outbox WHERE lane = ? AND part = ? AND id = ?`)
	stmtOutboxRows   = define("outbox.rows", `SELECT COUNT(*) FROM (SELECT id FROM outbox WHERE lane = ? LIMIT ?) AS some`)
	stmtOutboxOldest = define("outbox.oldest", `(SELECT TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(3))
		FROM outbox WHERE lane = ? AND part = ? ORDER BY id LIMIT 1)`)
)

// union repeats a parenthesised SELECT for n arms.
func (st Statement) union(n int) Statement {
	return Statement{Name: st.Name, SQL: st.SQL + strings.Repeat(" UNION ALL "+st.SQL, n-1)}
}

// OutboxBatch reads up to limit rows of a lane over all given partitions (an equal part of it from each), in the order
// of the cursors and then of ids, with the database's clock at that moment (zero when there are no rows). rest are the
// cursors to go on from: those of partitions that hold more of what was there when the walk began.
func (s *Store) OutboxBatch(ctx context.Context, lane int, from []coupon.OutboxCursor, limit int) (
	rows []coupon.Outgoing, now time.Time, rest []coupon.OutboxCursor, err error,
) {
	if len(from) == 0 {
		return nil, now, nil, nil
	}
	each := (limit + len(from) - 1) / len(from)
	args := make([]any, 0, 7*len(from))
	var count [coupon.Partitions]int
	var upto [coupon.Partitions]uint64
	for _, c := range from {
		last := c.Upto
		if last == 0 {
			last = math.MaxUint64
		}
		args = append(args, lane, c.Part, lane, c.Part, c.After, last, each)
		upto[c.Part] = c.Upto
	}
	err = s.query(ctx, s.sql, stmtOutboxBatch.union(len(from)), func(r *sql.Rows) error {
		o := coupon.Outgoing{Lane: lane}
		var class string
		var at sql.NullTime
		var last uint64
		if err := r.Scan(&o.ID, &o.Part, &o.CouponID, &o.MsgID, &o.Key, &class, &at, &o.Body, &o.Trace, &o.Refused, &now, &last); err != nil {
			return err
		}
		o.DeliverAt = at.Time
		if class != "" {
			o.Class = class[0]
		}
		rows = append(rows, o)
		if upto[o.Part] == 0 {
			upto[o.Part] = last
		}
		if count[o.Part]++; count[o.Part] == each && o.ID < upto[o.Part] {
			rest = append(rest, coupon.OutboxCursor{Part: o.Part, After: o.ID, Upto: upto[o.Part]})
		}
		return nil
	}, args...)
	if err != nil {
		return nil, time.Time{}, nil, err
	}
	return rows, now, rest, nil
}

// DeleteOutbox removes rows by the ids that the broker confirmed, by partition, in one transaction. Rows that are gone
// already are not missed.
func (s *Store) DeleteOutbox(ctx context.Context, lane int, confirmed map[int][]uint64) error {
	if len(confirmed) == 0 {
		return nil
	}
	return s.tx(ctx, "delete outbox rows", func(ctx context.Context, tx *txn) error {
		return eachPart(confirmed, func(part int, ids []uint64) error {
			_, err := s.exec(ctx, tx, stmtOutboxDelete.in(len(ids)), partArgs(lane, part, ids)...)
			return err
		})
	})
}

// RefuseOutbox counts a refusal of each row, and parks those that were refused RefusalLimit times; it gives the number
// parked. One transaction.
func (s *Store) RefuseOutbox(ctx context.Context, lane int, refused map[int][]coupon.OutboxRefusal) (parked int, err error) {
	ids := make(map[int][]uint64, len(refused))
	reasons := make(map[uint64]string)
	for part, rs := range refused {
		for _, r := range rs {
			ids[part] = append(ids[part], r.ID)
			reasons[r.ID] = cut(r.Reason, maxReason)
		}
	}
	if len(reasons) == 0 {
		return 0, nil
	}
	err = s.tx(ctx, "refuse outbox rows", func(ctx context.Context, tx *txn) error {
		parked = 0
		return eachPart(ids, func(part int, ids []uint64) error {
			if _, err := s.exec(ctx, tx, stmtOutboxRefuse.in(len(ids)), partArgs(lane, part, ids)...); err != nil {
				return err
			}
			n, err := s.parkTired(ctx, tx, lane, part, ids, reasons)
			parked += n
			return err
		})
	})
	return parked, err
}

func (s *Store) parkTired(ctx context.Context, tx *txn, lane, part int, ids []uint64, reasons map[uint64]string) (int, error) {
	var tired []uint64
	err := s.query(ctx, tx, stmtOutboxTired.in(len(ids)), func(r *sql.Rows) error {
		var id uint64
		if err := r.Scan(&id); err != nil {
			return err
		}
		tired = append(tired, id)
		return nil
	}, append(partArgs(lane, part, ids), RefusalLimit)...)
	if err != nil || len(tired) == 0 {
		return 0, err
	}
	for _, id := range tired {
		if _, err := s.exec(ctx, tx, stmtOutboxPark, reasons[id], lane, part, id); err != nil {
			return 0, err
		}
	}
	_, err = s.exec(ctx, tx, stmtOutboxDelete.in(len(tired)), partArgs(lane, part, tired)...)
	return len(tired), err
}

// OutboxStats counts a lane's rows, up to limit, and gives the age of its oldest. Its cost is bounded by limit.
func (s *Store) OutboxStats(ctx context.Context, lane, limit int) (coupon.OutboxLane, error) {
	var l coupon.OutboxLane
	if err := s.queryRow(ctx, s.sql, stmtOutboxRows, []any{&l.Rows}, lane, limit); err != nil {
		return l, err
	}
	if l.Rows == 0 {
		return l, nil
	}
	args := make([]any, 0, 2*coupon.Partitions)
	for part := range coupon.Partitions {
		args = append(args, lane, part)
	}
	err := s.query(ctx, s.sql, stmtOutboxOldest.union(coupon.Partitions), func(r *sql.Rows) error {
		var micros int64
		if err := r.Scan(&micros); err != nil {
			return err
		}
		l.Oldest = max(l.Oldest, time.Duration(micros)*time.Microsecond)
		return nil
	}, args...)
	return l, err
}

// eachPart calls f for the ids of each partition, in ascending order of both, so that two relays never wait for each
// other crosswise; at most outboxIDs in one call.
func eachPart(ids map[int][]uint64, f func(part int, ids []uint64) error) error {
	for part := range coupon.Partitions {
		for chunk := range slices.Chunk(slices.Sorted(slices.Values(ids[part])), outboxIDs) {
			if err := f(part, chunk); err != nil {
				return fmt.Errorf("partition %d: %w", part, err)
			}
		}
	}
	return nil
}

func partArgs(lane, part int, ids []uint64) []any {
	args := make([]any, 0, len(ids)+3)
	args = append(args, lane, part)
	for _, id := range ids {
		args = append(args, id)
	}
	return args
}

// cut shortens s to at most n bytes, at a character's start.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
