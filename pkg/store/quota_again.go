package store

import (
	"cmp"
	"context"
	"database/sql"
	"maps"
	"slices"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtQuotaHeld      = define("quota.held", `SELECT coupon_id FROM quota_return WHERE coupon_id IN (?) ORDER BY coupon_id FOR UPDATE`)
	stmtQuotaUserAgain = define("quota.user_again", `UPDATE user_quota SET taken = taken + ? WHERE template_id = ? AND user_id IN (?)`)
	stmtQuotaAgain     = define("quota.again", `UPDATE template_stock SET taken = taken + ?, reinstated = reinstated + ? WHERE template_id = ?`)
)

// again is what coupons of one template take of the quota once more.
type again struct {
	folded int64 // whose return has reached the counters
	all    int64
	users  map[string]int64 // of those that are folded, where it went to the user, too
}

// takeQuotaAgain takes back what reinstated coupons had returned when they expired: the note of it, or, where that has been folded,
// from the counters. A quota may be exceeded by that: the holder's coupon goes before those that are still to be granted. Locks are
// taken in the order of FoldQuota and Issue, and the hot rows of stocks last.
func (s *Store) takeQuotaAgain(ctx context.Context, tx *txn, ts []coupon.Transition) error {
	templates := map[uint64]*again{}
	var back []*coupon.Transition
	for i := range ts {
		t := &ts[i]
		passing := i > 0 && ts[i-1].CouponID == t.CouponID // it had not expired before this transaction
		if t.From != coupon.Expired || t.To != coupon.Unused || passing || t.Terms.QuotaBack == "" || t.Terms.QuotaBack == coupon.QuotaBackNone {
			continue
		}
		back = append(back, t)
	}
	slices.SortFunc(back, func(a, b *coupon.Transition) int { return cmp.Compare(a.CouponID, b.CouponID) })
	for part := range slices.Chunk(back, insertRows) {
		waiting, err := s.dropReturns(ctx, tx, part)
		if err != nil {
			return err
		}
		for _, t := range part {
			a := templates[t.Terms.TemplateID]
			if a == nil {
				a = &again{users: map[string]int64{}}
				templates[t.Terms.TemplateID] = a
			}
			a.all++
			if waiting[t.CouponID] {
				continue
			}
			a.folded++
			if t.Terms.QuotaBack == coupon.QuotaBackTotalAndUser {
				a.users[t.UserID]++
			}
		}
	}
	ids := slices.Sorted(maps.Keys(templates))
	for _, id := range ids {
		if err := s.takeUsersAgain(ctx, tx, id, templates[id].users); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if _, err := s.exec(ctx, tx, stmtQuotaAgain, templates[id].folded, templates[id].all, id); err != nil {
			return err
		}
	}
	return nil
}

// dropReturns takes the notes away that are still there, and says of which coupons.
func (s *Store) dropReturns(ctx context.Context, tx *txn, back []*coupon.Transition) (map[uint64]bool, error) {
	ids := make([]any, len(back))
	for i, t := range back {
		ids[i] = t.CouponID
	}
	waiting := map[uint64]bool{}
	var drop []any
	err := s.query(ctx, tx, stmtQuotaHeld.in(len(ids)), func(r *sql.Rows) error {
		var id uint64
		err := r.Scan(&id)
		waiting[id] = true
		drop = append(drop, id)
		return err
	}, ids...)
	if err == nil && len(drop) > 0 {
		_, err = s.exec(ctx, tx, stmtQuotaDone.in(len(drop)), drop...)
	}
	return waiting, err
}

// takeUsersAgain raises the counters that there are, by as much as each user's coupons took.
func (s *Store) takeUsersAgain(ctx context.Context, tx *txn, template uint64, users map[string]int64) error {
	by := map[int64][]string{}
	for user, n := range users {
		by[n] = append(by[n], user)
	}
	for _, n := range slices.Sorted(maps.Keys(by)) {
		slices.Sort(by[n])
		for part := range slices.Chunk(by[n], insertRows) {
			args := []any{n, template}
			for _, user := range part {
				args = append(args, []byte(user))
			}
			if _, err := s.exec(ctx, tx, stmtQuotaUserAgain.in(len(part)), args...); err != nil {
				return err
			}
		}
	}
	return nil
}
