package store

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The lanes of the outbox. Triggers are drained first: they are what keeps coupons on time.
const (
	LaneTrigger = 0
	LaneEvent   = 1
)

const (
	maxBody    = 64<<10 - 1 // what a BLOB holds
	insertRows = 500        // rows of one INSERT at most: about 100 KiB of SQL
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtHistory = define("effects.history", `INSERT INTO coupon_history
		(coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)`)
	stmtOutbox = define("effects.outbox", `INSERT INTO outbox
		(lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, refused, created_at)
		VALUES (?,?,?,?,?,?,?,?,?,0,UTC_TIMESTAMP(3))`)
)

// outboxRow is a row to write.
type outboxRow struct {
	lane      int
	part      int
	couponID  uint64
	msgID     string
	key       string // routing key of an event, kind of a trigger
	class     byte
	deliverAt time.Time // zero for events
	body      []byte
	trace     string
}

// reach is how far ahead triggers are published at once; what ends later waits for the planner.
type reach struct {
	unlimited bool
	until     time.Time
}

func (r reach) holds(at time.Time) bool { return r.unlimited || at.Before(r.until) }

// reachAt is max(now + horizon, frontier) + guard (design.md §5).
func (s *Store) reachAt(ctx context.Context, q querier, now time.Time) (reach, error) {
	p, err := s.planSettings(ctx, q)
	if err != nil {
		return reach{}, err
	}
	if p.horizon == 0 {
		return reach{unlimited: true}, nil
	}
	until := now.Add(p.horizon)
	if p.frontier.After(until) {
		until = p.frontier
	}
	return reach{until: until.Add(p.guard)}, nil
}

// record writes what transitions leave behind, in their own transaction: history, the event, and the trigger of
// every coupon that is unused (or locked) now. No verb writes these by itself.
func (s *Store) record(ctx context.Context, tx querier, now time.Time, ts []coupon.Transition) error {
	if len(ts) == 0 {
		return nil
	}
	rows := make([]outboxRow, 0, 2*len(ts))
	triggers, err := s.triggerRows(ctx, tx, now, ts)
	if err != nil {
		return err
	}
	rows = append(rows, triggers...)
	for i := range ts {
		key, id, body, err := s.codec.Transition(ts[i])
		if err != nil {
			return fmt.Errorf("encode event of a transition to %s: %w", ts[i].To, err)
		}
		rows = append(rows, outboxRow{
			lane: LaneEvent, part: coupon.Partition(ts[i].CouponID), couponID: ts[i].CouponID,
			msgID: id, key: key, class: ' ', body: body, trace: ts[i].Trace,
		})
	}
	if err := s.writeHistory(ctx, tx, ts); err != nil {
		return err
	}
	return s.writeOutbox(ctx, tx, rows)
}

// triggerRows is the one place that decides which coupons get a trigger now: those that wait for their end within
// reach. The planner brings the others in time.
func (s *Store) triggerRows(ctx context.Context, q querier, now time.Time, ts []coupon.Transition) ([]outboxRow, error) {
	waiting := 0
	for i := range ts {
		if ts[i].To == coupon.Unused && !coupon.IsNever(ts[i].ExpiresAt) {
			waiting++
		}
	}
	if waiting == 0 {
		return nil, nil
	}
	r, err := s.reachAt(ctx, q, now)
	if err != nil {
		return nil, err
	}
	rows := make([]outboxRow, 0, waiting)
	for i := range ts {
		t := &ts[i]
		if t.To != coupon.Unused || coupon.IsNever(t.ExpiresAt) || !r.holds(t.DueAt) {
			continue
		}
		trigger := coupon.Trigger{
			Kind: coupon.KindExpire, CouponID: t.CouponID, At: t.ExpiresAt,
			ID: coupon.TriggerID(coupon.SentByVerb, t.CouponID, t.Version), Origin: coupon.OriginLadder,
		}
		rows = append(rows, outboxRow{
			lane: LaneTrigger, part: coupon.Partition(t.CouponID), couponID: t.CouponID, msgID: trigger.ID,
			key: string(coupon.KindExpire), class: t.Terms.Precision.Class(), deliverAt: t.DueAt,
			body: s.codec.Trigger(trigger), trace: t.Trace,
		})
	}
	return rows, nil
}

func (s *Store) writeHistory(ctx context.Context, tx querier, ts []coupon.Transition) error {
	for len(ts) > 0 {
		n := min(len(ts), insertRows)
		args := make([]any, 0, n*14)
		for i := range ts[:n] {
			t := &ts[i]
			args = append(args, t.CouponID, t.Version, uint8(t.From), uint8(t.To), string(t.Cause), t.At, t.ExpiresAt, t.DueAt,
				[]byte(t.OrderID), t.Actor, t.Reason, t.TriggerID, string(t.Origin), t.Trace)
		}
		if _, err := s.exec(ctx, tx, stmtHistory.rows(n), args...); err != nil {
			return err
		}
		ts = ts[n:]
	}
	return nil
}

// writeOutbox inserts rows in order; the caller signals wake after its commit.
func (s *Store) writeOutbox(ctx context.Context, tx querier, rows []outboxRow) error {
	for len(rows) > 0 {
		n := min(len(rows), insertRows)
		args := make([]any, 0, n*9)
		for i := range rows[:n] {
			r := &rows[i]
			if len(r.body) > maxBody {
				return fmt.Errorf("%w: outbox body of %s has %d bytes, at most %d", coupon.ErrIntegrity, r.key, len(r.body), maxBody)
			}
			var at any
			if !r.deliverAt.IsZero() {
				at = r.deliverAt
			}
			args = append(args, r.lane, r.part, r.couponID, []byte(r.msgID), r.key, string(r.class), at, r.body, r.trace)
		}
		if _, err := s.exec(ctx, tx, stmtOutbox.rows(n), args...); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}
