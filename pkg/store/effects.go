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
		(coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace,
		lock_until, previous)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`)
	stmtQuotaReturn = define("effects.quota_return", `INSERT INTO quota_return (coupon_id, template_id, user_id, to_user, created_at)
		VALUES (?,?,?,?,UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE to_user = VALUES(to_user)`)
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

// reachAt is how far ahead triggers are published now.
func (s *Store) reachAt(ctx context.Context, q querier, now time.Time) (reach, error) {
	p, err := s.planSettings(ctx, q)
	if err != nil {
		return reach{}, err
	}
	return p.reach(now), nil
}

// reach is max(now + horizon, frontier) + guard (design.md §5).
func (p *planSettings) reach(now time.Time) reach {
	if p.horizon == 0 {
		return reach{unlimited: true}
	}
	return reach{until: later(now.Add(p.horizon), p.frontier).Add(p.guard)}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// record writes what transitions leave behind, in their own transaction: history, the event, the trigger of every
// coupon that is unused or locked now, its reminders, and the quota that one gives back. No verb writes these by itself. Transitions
// of one coupon follow one another in ts. They are counted once they are committed.
func (s *Store) record(ctx context.Context, tx *txn, now time.Time, ts []coupon.Transition) error {
	if len(ts) == 0 {
		return nil
	}
	rows, reminders, err := s.aheadRows(ctx, tx, now, ts)
	if err != nil {
		return err
	}
	for i := range ts {
		tx.moves[move{ts[i].From, ts[i].To, ts[i].Cause}]++
		key, id, body, err := s.codec.Transition(ts[i])
		if err != nil {
			return fmt.Errorf("encode event of a transition to %s: %w", ts[i].To, err)
		}
		if key == "" {
			continue // a heartbeat's
		}
		rows = append(rows, outboxRow{
			lane: LaneEvent, part: coupon.Partition(ts[i].CouponID), couponID: ts[i].CouponID,
			msgID: id, key: key, class: ' ', body: body, trace: ts[i].Trace,
		})
	}
	if err := s.writeHistory(ctx, tx, ts); err != nil {
		return err
	}
	if err := s.writeQuotaReturns(ctx, tx, ts); err != nil {
		return err
	}
	if err := s.writeOutbox(ctx, tx, append(rows, reminders...)); err != nil {
		return err
	}
	return s.takeQuotaAgain(ctx, tx, ts)
}

// writeQuotaReturns notes what expired and voided coupons give back. The counters are hot rows that no transition may
// wait for: the publisher folds the notes into them.
func (s *Store) writeQuotaReturns(ctx context.Context, tx querier, ts []coupon.Transition) error {
	var args []any
	n := 0
	for i := range ts {
		t := &ts[i]
		ended := t.To == coupon.Expired || t.To == coupon.Voided
		if i+1 < len(ts) && ts[i+1].CouponID == t.CouponID {
			ended = false // the same transaction gives it back to its holder
		}
		if !ended || t.Terms.QuotaBack == "" || t.Terms.QuotaBack == coupon.QuotaBackNone {
			continue
		}
		n++
		args = append(args, t.CouponID, t.Terms.TemplateID, []byte(t.UserID), t.Terms.QuotaBack == coupon.QuotaBackTotalAndUser)
	}
	const columns = 4
	for n > 0 {
		k := min(n, insertRows)
		if _, err := s.exec(ctx, tx, stmtQuotaReturn.rows(k), args[:k*columns]...); err != nil {
			return err
		}
		n, args = n-k, args[k*columns:]
	}
	return nil
}

// aheadRows is the one place that decides which coupons get a trigger now: the unlock trigger of every lock, since no
// planner walks locks, and the expire trigger of those that wait for their end within reach; and which reminders are told of
// now. The planner brings the others in time. A state that the same transaction leaves again needs none.
func (s *Store) aheadRows(ctx context.Context, tx *txn, now time.Time, ts []coupon.Transition) (triggers, reminders []outboxRow, err error) {
	var set *planSettings
	var r reach
	var rem *remindAhead
	triggers = make([]outboxRow, 0, 2*len(ts)) // with the events
	first := 0
	for i := range ts {
		t := &ts[i]
		if i+1 < len(ts) && ts[i+1].CouponID == t.CouponID {
			continue
		}
		steps := ts[first : i+1]
		first = i + 1
		trigger := coupon.Trigger{
			Kind: coupon.KindExpire, CouponID: t.CouponID, At: t.ExpiresAt,
			ID: coupon.TriggerID(coupon.SentByVerb, t.CouponID, t.Version), Origin: coupon.OriginLadder,
		}
		at := t.DueAt
		switch {
		case t.To == coupon.Locked && t.From == coupon.Locked && !t.Previous.IsZero():
			continue // its end moved, its lock did not: that trigger is out
		case t.To == coupon.Locked:
			trigger.Kind, trigger.At, at = coupon.KindUnlock, t.LockUntil, t.LockUntil
		case t.To != coupon.Unused || coupon.IsNever(t.ExpiresAt):
			continue
		default:
			if set == nil {
				p, err := s.planSettings(ctx, tx)
				if err != nil {
					return nil, nil, err
				}
				set, r, rem = &p, p.reach(now), p.remindAhead(now)
			}
			if reminders, err = s.reminderRows(ctx, tx, rem, now, steps, reminders); err != nil {
				return nil, nil, err
			}
			if !r.holds(t.DueAt) {
				continue
			}
		}
		triggers = append(triggers, outboxRow{
			lane: LaneTrigger, part: coupon.Partition(t.CouponID), couponID: t.CouponID, msgID: trigger.ID,
			key: string(trigger.Kind), class: t.Terms.Precision.Class(), deliverAt: at,
			body: s.codec.Trigger(trigger), trace: t.Trace,
		})
	}
	return triggers, reminders, nil
}

const historyColumns = 16

func instantOrNull(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at
}

func (s *Store) writeHistory(ctx context.Context, tx querier, ts []coupon.Transition) error {
	for len(ts) > 0 {
		n := min(len(ts), insertRows)
		args := make([]any, 0, n*historyColumns)
		for i := range ts[:n] {
			t := &ts[i]
			args = append(args, t.CouponID, t.Version, uint8(t.From), uint8(t.To), string(t.Cause), t.At, t.ExpiresAt, t.DueAt,
				[]byte(t.OrderID), t.Actor, t.Reason, t.TriggerID, string(t.Origin), t.Trace, instantOrNull(t.LockUntil), instantOrNull(t.Previous))
		}
		if _, err := s.exec(ctx, tx, stmtHistory.rows(n), args...); err != nil {
			return err
		}
		ts = ts[n:]
	}
	return nil
}

// writeOutbox inserts rows in order.
func (s *Store) writeOutbox(ctx context.Context, tx *txn, rows []outboxRow) error {
	for len(rows) > 0 {
		n := min(len(rows), insertRows)
		args := make([]any, 0, n*9)
		for i := range rows[:n] {
			r := &rows[i]
			if len(r.body) > maxBody {
				return fmt.Errorf("%w: outbox body of %s has %d bytes, at most %d", coupon.ErrIntegrity, r.key, len(r.body), maxBody)
			}
			args = append(args, r.lane, r.part, r.couponID, []byte(r.msgID), r.key, string(r.class), instantOrNull(r.deliverAt), r.body, r.trace)
		}
		if _, err := s.exec(ctx, tx, stmtOutbox.rows(n), args...); err != nil {
			return err
		}
		rows, tx.wrote = rows[n:], true
	}
	return nil
}
