package store

import (
	"context"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Forward brings what a coupon waits for to an instant near, for a sandbox: by a step like an operator's extension, with its
// history, event and trigger, so that everything that follows takes its real way. The history's actor is coupon.Sandbox. A
// refusal is an answer, not an error. Errors: those of f.Validate, and of Act.
func (s *Store) Forward(ctx context.Context, f coupon.Forward) (coupon.Forwarded, error) {
	if err := f.Validate(); err != nil {
		return coupon.Forwarded{}, err
	}
	var out coupon.Forwarded
	now, acted, err := s.actAs(ctx, f.Order(), func(ctx context.Context, tx *txn, a *act) error {
		out = coupon.Forwarded{}
		return s.forwardIn(ctx, tx, a, f, &out)
	})
	if err != nil {
		return coupon.Forwarded{}, err
	}
	out.Now, out.Acted = now, acted[0]
	return out, nil
}

func (s *Store) forwardIn(ctx context.Context, tx *txn, a *act, f coupon.Forward, out *coupon.Forwarded) error {
	if err := s.actRows(ctx, tx, a); err != nil {
		return err
	}
	row := a.rows[f.CouponID]
	if row == nil {
		a.out[0] = coupon.NoCoupon(f.CouponID)
		return nil
	}
	var reminders coupon.Reminders
	if f.What == coupon.AheadReminder {
		set, err := s.planSettings(ctx, tx)
		if err != nil {
			return err
		}
		if set.reminders != nil {
			reminders = *set.reminders
		}
	}
	v, at, detail := f.Apply(&row.Coupon, reminders, a.now)
	out.At = at
	a.out[0].Refused, a.out[0].Detail, a.out[0].Repeated = v.Refused, detail, v.Repeat
	return s.actMoves(ctx, tx, a, []coupon.Verdict{v})
}
