package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	usersPage = 2000
	keysPage  = 500
)

// users holds the counters of users against their coupons, each within one statement. Coupons that were granted before a
// template had a limit are not counted by anyone, so of a template that was revised only a surplus is a finding.
func (r *run) users(ctx context.Context) error {
	template, user := r.Template, ""
	for {
		differ, last, seen, err := r.books.UserCounts(ctx, template, user, usersPage)
		if err != nil {
			return err
		}
		for _, c := range differ {
			if c.Revised && c.Taken < c.Coupons || !r.about(c.Template) {
				continue
			}
			if err := r.userCount(ctx, c); err != nil {
				return err
			}
		}
		if seen < usersPage || !r.about(last.Template) {
			return nil
		}
		template, user = last.Template, last.UserID
		if r.Slow && lifecycle.Sleep(ctx, r.Pause) != nil {
			return context.Cause(ctx)
		}
	}
}

func (r *run) userCount(ctx context.Context, c coupon.UserCount) error {
	r.found.add(coupon.Finding{
		Kind: coupon.FindQuota, Subject: fmt.Sprintf("template %d user %s", c.Template, c.UserID),
		Expected: fmt.Sprintf("%d taken", c.Coupons), Found: fmt.Sprintf("%d taken", c.Taken),
	})
	if !r.mends(c.Template) {
		return nil
	}
	_, _, err := r.Repair.Mender.RepairUserCount(ctx, c.Template, c.UserID)
	if err == nil {
		r.found.repaired(coupon.FindQuota, 1)
	}
	return err
}

// overdue finds what should have been settled long before the reconciliation began.
func (r *run) overdue(ctx context.Context) error {
	cutoff := r.fence.Now.Add(-r.Overdue)
	for _, locks := range []bool{false, true} {
		var at coupon.Cursor
		for more := true; more; {
			keys, err := r.books.SweepKeys(ctx, locks, cutoff, at, keysPage)
			if err != nil {
				return err
			}
			if more = len(keys) == keysPage; len(keys) > 0 {
				at = keys[len(keys)-1]
			}
			if err := r.overdueOf(ctx, locks, cutoff, keys); err != nil {
				return err
			}
		}
	}
	return nil
}

// overdueOf looks at the coupons again: what was settled meanwhile, or moved, is no finding.
func (r *run) overdueOf(ctx context.Context, locks bool, cutoff time.Time, keys []coupon.Cursor) error {
	ids := make([]uint64, len(keys))
	for i, k := range keys {
		ids[i] = k.ID
	}
	cs, now, err := r.books.Coupons(ctx, ids)
	if err != nil {
		return err
	}
	kind := coupon.FindOverdue
	if locks {
		kind = coupon.FindStuckLock
	}
	var triggers []coupon.Trigger
	for i := range cs {
		c := &cs[i]
		late := c.Status == coupon.Unused && !c.DueAt.After(cutoff)
		since, was := c.DueAt, "unused, due "
		if locks {
			late = c.Status == coupon.Locked && !c.LockUntil.After(cutoff)
			since, was = c.LockUntil, "locked until "
		}
		if !late || !r.about(c.Terms.TemplateID) {
			continue
		}
		r.found.add(coupon.Finding{
			Kind: kind, Subject: fmt.Sprintf("coupon %d", c.ID), Expected: c.Seen(now).String(), Found: was + since.UTC().Format(time.RFC3339),
		})
		triggers = append(triggers, coupon.Trigger{Kind: coupon.KindExpire, CouponID: c.ID, At: c.ExpiresAt, Origin: coupon.OriginRepair})
	}
	if r.Repair == nil || len(triggers) == 0 {
		return nil
	}
	for i := range triggers {
		triggers[i].Actor, triggers[i].Reason = r.Repair.Actor, r.Repair.Reason
	}
	n, err := r.settle(ctx, triggers)
	r.found.repaired(kind, n)
	return err
}

// settle halves a batch that holds a coupon which cannot be changed, and leaves that one.
func (r *run) settle(ctx context.Context, ts []coupon.Trigger) (settled int, err error) {
	_, out, err := r.Repair.Mender.ExpireBatch(ctx, ts, r.Repair.Allow)
	switch {
	case errors.Is(err, coupon.ErrIntegrity) && len(ts) > 1:
		half := len(ts) / 2
		a, err := r.settle(ctx, ts[:half])
		if err != nil {
			return a, err
		}
		b, err := r.settle(ctx, ts[half:])
		return a + b, err
	case errors.Is(err, coupon.ErrIntegrity):
		return 0, nil // it stays a finding
	case err != nil:
		return 0, err
	}
	for _, s := range out {
		if a := s.Decision.Action; !s.Busy && (a == coupon.Expire || a == coupon.Unlock || a == coupon.Drop) {
			settled++ // or somebody was faster
		}
	}
	return settled, nil
}

// backlogs finds what nobody sends, folds or looks at.
func (r *run) backlogs(ctx context.Context) error {
	if r.Template != 0 {
		return nil // a backlog is not of one template
	}
	all, err := r.books.Backlogs(ctx, r.fence.Now.Add(-r.Waiting))
	r.waiting(all, r.Waiting)
	if err != nil {
		return err
	}
	all, err = r.books.Untold(ctx, r.fence.Now.Add(-r.Untold))
	r.waiting(all, r.Untold)
	return err
}

func (r *run) waiting(all []coupon.Backlog, most time.Duration) {
	for _, b := range all {
		r.found.add(coupon.Finding{
			Kind: b.Kind, Subject: b.Where, Expected: fmt.Sprintf("nothing older than %s", most),
			Found: fmt.Sprintf("%d rows, the oldest of %s", b.Rows, b.Oldest.UTC().Format(time.RFC3339)),
		})
	}
}
