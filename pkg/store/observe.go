package store

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// A coupon that is observed stays as it is. What would have become of it is noted, and its place in the indexes, by which triggers and
// sweep find it, moves to where something is owed next: else every sweep would meet all that was decided before. Its history keeps what
// the two instants were, for the day on which it becomes real: see ImportOver.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtObserve = define("expire.observe", `INSERT INTO observation (coupon_id, due_at, decided_at, decision, cause)
		VALUES (?,?,?,?,?) ON DUPLICATE KEY UPDATE coupon_id = coupon_id`)
	stmtObserveEnd = define("expire.observe_end", `UPDATE coupon FORCE INDEX (PRIMARY) SET due_at = '9999-12-31', lock_until = IF(status = 2, '9999-12-31', NULL)
		WHERE observed = 1 AND status IN (1,2) AND id IN (?)`)
	stmtObserveUnlock = define("expire.observe_unlock", `UPDATE coupon FORCE INDEX (PRIMARY) SET lock_until = due_at
		WHERE observed = 1 AND status = 2 AND lock_until <= ? AND id IN (?)`)
)

// observed is a decision about a coupon that it does not move.
type observed struct {
	coupon.Row
	action coupon.Action
	cause  coupon.Cause
	due    time.Time
}

// observe notes the decision in hand; a second trigger of the batch meets the row as it is left then.
func (row *settleRow) observe(d coupon.Decision) observed {
	o := observed{action: d.Action, cause: d.Cause, due: row.LockUntil}
	if d.Action == coupon.Expire {
		o.due, row.DueAt = row.Owed(), coupon.Never
		if row.Status == coupon.Locked {
			row.LockUntil = coupon.Never
		}
	} else {
		row.LockUntil = row.DueAt
	}
	o.Row = row.Row
	return o
}

// observe writes what was decided, and rings again for the end of those whose lock has run out, since no planner walks locks. What was
// decided about a coupon's end before is not owed again.
func (s *Store) observe(ctx context.Context, tx *txn, now time.Time, seen []observed) error {
	var args, ended, unlocked []any
	var next []outboxRow
	for i := range seen {
		o := &seen[i]
		if coupon.IsNever(o.due) {
			continue
		}
		args = append(args, o.ID, o.due, now, o.action.String(), string(o.cause))
		if o.action == coupon.Expire {
			ended = append(ended, o.ID)
			continue
		}
		unlocked = append(unlocked, o.ID)
		if !coupon.IsNever(o.LockUntil) {
			next = append(next, s.unlockRow(o))
		}
	}
	const columns = 5
	for n := len(args) / columns; n > 0; {
		k := min(n, insertRows)
		if _, err := s.exec(ctx, tx, stmtObserve.rows(k), args[:k*columns]...); err != nil {
			return err
		}
		n, args = n-k, args[k*columns:]
	}
	for _, u := range []struct {
		st   Statement
		args []any
		ids  []any
	}{{stmtObserveEnd, nil, ended}, {stmtObserveUnlock, []any{now}, unlocked}} {
		if len(u.ids) == 0 {
			continue
		}
		n, err := s.exec(ctx, tx, u.st.in(len(u.ids)), append(u.args, u.ids...)...)
		if err != nil {
			return err
		}
		if n != int64(len(u.ids)) {
			return fmt.Errorf("%s: %w: %d rows decided, %d changed", u.st.Name, coupon.ErrContention, len(u.ids), n)
		}
	}
	return s.writeOutbox(ctx, tx, next)
}

// unlockRow is the trigger that rings when an observed lock, which has run out, is looked at next.
func (s *Store) unlockRow(o *observed) outboxRow {
	t := coupon.Trigger{
		Kind: coupon.KindUnlock, CouponID: o.ID, At: o.LockUntil,
		ID: coupon.TriggerID(coupon.SentByVerb, o.ID, o.Version) + ".observed", Origin: coupon.OriginLadder,
	}
	return outboxRow{
		lane: LaneTrigger, part: coupon.Partition(o.ID), couponID: o.ID, msgID: t.ID, key: string(t.Kind), class: coupon.Standard.Class(),
		deliverAt: o.LockUntil, body: s.codec.Trigger(t),
	}
}
