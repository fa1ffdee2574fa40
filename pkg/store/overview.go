package store

import (
	"context"
	"database/sql"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// What is locked is counted by the index of locks, up to a bound; the rest are the sums of a template's days.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtOverviewStock = define("overview.templates", `SELECT s.template_id, t.name, t.value, t.currency, t.offer, t.basis_points, t.cap, s.stopped FROM template_stock s
		JOIN coupon_template t ON t.id = s.template_id AND t.revision = s.revision ORDER BY s.template_id DESC LIMIT ?`)
	stmtOverviewStats = define("overview.stats", `SELECT template_id, SUM(granted), SUM(used) - SUM(refunded), SUM(expired) - SUM(reinstated), SUM(voided)
		FROM template_stats WHERE template_id IN (?) GROUP BY template_id`)
	stmtOverviewLocked = define("overview.locked", `SELECT template_id, COUNT(*) FROM
		(SELECT template_id FROM coupon FORCE INDEX (coupon_lock) WHERE status = 2 ORDER BY lock_until LIMIT ?) l GROUP BY template_id`)
)

const overviewLocked = 20_000 // locks counted at most

// TemplateStates counts the coupons of the templates that were made last, limit at most, by state. The counts are those of the
// statistics, which follow what happened by seconds; locked ones are counted as they are stored. more: there are further templates.
func (s *Store) TemplateStates(ctx context.Context, limit int) (out []coupon.TemplateStates, more bool, err error) {
	at := map[uint64]*coupon.TemplateStates{}
	err = s.query(ctx, s.sql, stmtOverviewStock, func(r *sql.Rows) error {
		var t coupon.TemplateStates
		if err := r.Scan(&t.TemplateID, &t.Name, &t.Value, &t.Currency, &t.Offer.Kind, &t.Offer.BasisPoints, &t.Offer.Cap, &t.Stopped); err != nil {
			return err
		}
		out = append(out, t)
		return nil
	}, limit+1)
	if err != nil || len(out) == 0 {
		return nil, false, err
	}
	if more = len(out) > limit; more {
		out = out[:limit]
	}
	ids := make([]any, len(out))
	for i := range out {
		at[out[i].TemplateID], ids[i] = &out[i], out[i].TemplateID
	}
	err = s.query(ctx, s.sql, stmtOverviewStats.in(len(ids)), func(r *sql.Rows) error {
		var id uint64
		var granted, used, expired, voided int64
		if err := r.Scan(&id, &granted, &used, &expired, &voided); err != nil {
			return err
		}
		t := at[id]
		t.Granted, t.Used, t.Expired, t.Voided = granted, used, expired, voided
		t.Unused = granted - used - expired - voided
		return nil
	}, ids...)
	if err != nil {
		return nil, false, err
	}
	err = s.query(ctx, s.sql, stmtOverviewLocked, func(r *sql.Rows) error {
		var id uint64
		var n int64
		if err := r.Scan(&id, &n); err != nil {
			return err
		}
		if t := at[id]; t != nil {
			t.Locked = n
			t.Unused = max(0, t.Unused-n)
		}
		return nil
	}, overviewLocked)
	return out, more, err
}
