package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtPlanClaim = define("plan.claim", `UPDATE plan_slice SET owner = ?, epoch = epoch + 1,
		lease_until = UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND
		WHERE plan = ? AND (owner = ? OR lease_until < UTC_TIMESTAMP(3))`)
	stmtPlanRead = define("plan.read", `SELECT slice_start, slice_end, cursor_at, cursor_id, epoch, owner, UTC_TIMESTAMP(3)
		FROM plan_slice WHERE plan = ?`)
	stmtPlanAdd = define("plan.add", `INSERT IGNORE INTO plan_slice (plan, slice_start, slice_end, cursor_at, cursor_id, owner, lease_until, epoch)
		VALUES (?,'1970-01-02','1970-01-02','1970-01-02',0,'','1970-01-02',0)`)
	stmtPlanMove = define("plan.move", `UPDATE plan_slice SET slice_start = ?, slice_end = ?, cursor_at = ?, cursor_id = ?,
		lease_until = UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND WHERE plan = ? AND owner = ? AND epoch = ?`)
	stmtPlanRelease = define("plan.release", `UPDATE plan_slice SET lease_until = UTC_TIMESTAMP(3) WHERE plan = ? AND owner = ? AND epoch = ?`)
	stmtPlanNext    = define("plan.next", `SELECT (SELECT due_at FROM coupon FORCE INDEX (coupon_due) WHERE status = 1 AND due_at >= ? ORDER BY due_at LIMIT 1), UTC_TIMESTAMP(3)`)
	stmtPlanPage    = define("plan.page", `SELECT id, version, template_id, revision, expires_at, due_at, UTC_TIMESTAMP(3) FROM coupon FORCE INDEX (coupon_due)
		WHERE status = 1 AND due_at < ? AND due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?)) ORDER BY due_at, id LIMIT ?`)
)

// SetHorizon stores how far ahead triggers are published (0 = unlimited) and the guard beyond that. Values equal to
// the stored ones keep their age.
func (s *Store) SetHorizon(ctx context.Context, horizon, guard time.Duration) error {
	return s.tx(ctx, "set horizon", func(ctx context.Context, tx *txn) error {
		for name, d := range map[string]time.Duration{settingHorizon: horizon, settingGuard: guard} {
			if err := s.putSetting(ctx, tx, name, d.Milliseconds()); err != nil {
				return err
			}
		}
		return nil
	})
}

// ClaimPlan takes or keeps a plan for owner; held is false when another pod has it, and when there is no such plan.
func (s *Store) ClaimPlan(ctx context.Context, plan, owner string, lease time.Duration) (p coupon.PlanPlace, held bool, err error) {
	err = s.tx(ctx, "claim plan", func(ctx context.Context, tx *txn) error {
		n, err := s.exec(ctx, tx, stmtPlanClaim, owner, lease.Microseconds(), plan, owner)
		if err != nil {
			return err
		}
		held = n == 1
		var who string
		switch err := s.queryRow(ctx, tx, stmtPlanRead, []any{&p.Start, &p.End, &p.Cursor.At, &p.Cursor.ID, &p.Epoch, &who, &p.Now}, plan); {
		case errors.Is(err, coupon.ErrNotFound): // the first who comes by makes it, and whoever comes next has it
			if _, err := s.exec(ctx, tx, stmtPlanAdd, plan); err != nil {
				return err
			}
			return s.queryRow(ctx, tx, stmtNow, []any{&p.Now})
		case err != nil || !held:
			return err
		}
		set, err := s.planSettings(ctx, tx)
		if err != nil {
			return err
		}
		held = set.place(plan, &p)
		return nil
	})
	return p, held, err
}

// place fills in what the settings say of a plan; false: there is no such plan.
func (p *planSettings) place(plan string, at *coupon.PlanPlace) bool {
	if plan == coupon.PlanPromote {
		at.Horizon, at.HorizonSince, at.Frontier = p.horizon, p.since, p.frontier
		return true
	}
	if p.reminders == nil {
		return false
	}
	for _, o := range p.reminders.Offsets {
		if o.Plan() != plan {
			continue
		}
		at.Horizon, at.HorizonSince, at.Frontier = p.reminders.Ahead(o), p.remindAge, p.frontiers[plan]
		at.Fresh = o.Reach() - o.Tolerance()
		if at.Frontier.IsZero() { // a slice of an earlier life
			at.Start, at.Cursor = at.End, coupon.Cursor{At: at.End}
		}
		return true
	}
	return false
}

// MovePlan stores slice, cursor and frontier, if owner still holds the plan at its epoch; false means that another
// pod has taken over and this one must stop. A zero frontier removes it. Reminders that were skipped on the way are recorded with it.
func (s *Store) MovePlan(ctx context.Context, plan, owner string, p coupon.PlanPlace, lease time.Duration) (held bool, err error) {
	err = s.tx(ctx, "move plan", func(ctx context.Context, tx *txn) error {
		n, err := s.exec(ctx, tx, stmtPlanMove, p.Start, p.End, p.Cursor.At, p.Cursor.ID, lease.Microseconds(), plan, owner, p.Epoch)
		if err != nil {
			return err
		}
		if held = n == 1; !held {
			return nil
		}
		if p.Skipped.N > 0 {
			if err := s.recordSkipped(ctx, tx, p.Skipped); err != nil {
				return err
			}
		}
		if p.Frontier.IsZero() {
			_, err = s.exec(ctx, tx, stmtSettingDrop, frontierOf(plan))
			return err
		}
		return s.putSetting(ctx, tx, frontierOf(plan), p.Frontier.UnixMilli())
	})
	return held, err
}

// ReleasePlan lets another pod take the plan at once.
func (s *Store) ReleasePlan(ctx context.Context, plan, owner string, epoch uint64) error {
	_, err := s.exec(ctx, s.sql, stmtPlanRelease, plan, owner, epoch)
	return err
}

// NextDue gives the earliest due instant of an unused coupon from the instant on, coupon.Never when there is none, and
// the database's clock.
func (s *Store) NextDue(ctx context.Context, from time.Time) (next, now time.Time, err error) {
	var due sql.NullTime
	if err := s.queryRow(ctx, s.sql, stmtPlanNext, []any{&due, &now}, from); err != nil {
		return next, now, err
	}
	if !due.Valid {
		return coupon.Never, now, nil
	}
	return due.Time, now, nil
}

// PlanPage gives the triggers of up to limit unused coupons that are due before end, behind the cursor, in keyset
// order, with the cursor behind the last one and the database's clock of the reading.
func (s *Store) PlanPage(ctx context.Context, end time.Time, from coupon.Cursor, limit int) (ts []coupon.Timed, next coupon.Cursor, now time.Time, err error) {
	next = from
	type key struct {
		id       uint64
		revision uint32
	}
	var templates []key
	var versions []uint32
	var ends []time.Time
	args := after(from, end, limit)
	err = s.query(ctx, s.sql, stmtPlanPage, func(r *sql.Rows) error {
		var t coupon.Timed
		var k key
		var version uint32
		var expires time.Time
		if err := r.Scan(&t.CouponID, &version, &k.id, &k.revision, &expires, &t.At, &now); err != nil {
			return err
		}
		next = coupon.Cursor{At: t.At, ID: t.CouponID}
		ts, templates, versions, ends = append(ts, t), append(templates, k), append(versions, version), append(ends, expires)
		return nil
	}, args...)
	if err != nil {
		return nil, from, now, err
	}
	for i := range ts {
		terms, err := s.termsOf(ctx, s.sql, templates[i].id, templates[i].revision)
		if err != nil {
			return nil, from, now, err
		}
		t := coupon.Trigger{
			Kind: coupon.KindExpire, CouponID: ts[i].CouponID, At: ends[i], Origin: coupon.OriginLadder,
			ID: coupon.TriggerID(coupon.SentByPlanner, ts[i].CouponID, versions[i]),
		}
		ts[i].ID, ts[i].Kind, ts[i].Class, ts[i].Body = t.ID, t.Kind, terms.Precision.Class(), s.codec.Trigger(t)
	}
	return ts, next, now, nil
}
