package store

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// An operator's list reads one index in its order; the conditions that the index does not hold are looked at
// afterwards, so that a page costs a page whatever they are.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtListTemplate = define("list.template", `SELECT `+couponColumns+` FROM coupon FORCE INDEX (coupon_template) WHERE template_id = ? AND id > ? ORDER BY id LIMIT ?`)
	stmtListBatch    = define("list.batch", `SELECT `+couponColumns+` FROM coupon FORCE INDEX (coupon_batch) WHERE batch_id = ? AND id > ? ORDER BY id LIMIT ?`)
	stmtListState    = define("list.state", `SELECT `+couponColumns+` FROM coupon FORCE INDEX (coupon_due) WHERE status = ? AND due_at <= ?
		AND due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?)) ORDER BY due_at, id LIMIT ?`)
)

// maxSpread is how far due_at may lie behind expires_at.
const maxSpread = 10 * time.Minute

// List gives a page of coupons for an operator: of the batch, else of the template, in the order of ids; else of the
// stored state, in the order of due_at. Errors: those of ListQuery.Validate, coupon.ErrPosition.
func (s *Store) List(ctx context.Context, q coupon.ListQuery) (coupon.Page, error) {
	if err := q.Validate(); err != nil {
		return coupon.Page{}, fmt.Errorf("list: %w", err)
	}
	query := fmt.Sprintf("list %d %d %d %d %s", q.Template, q.State, unixMilli(q.EndsFrom), unixMilli(q.EndsTo), q.Batch)
	from := position{place: beforeAll}
	if q.After != "" {
		var err error
		if from, err = parsePosition(q.After, query); err != nil {
			return coupon.Page{}, fmt.Errorf("list: %w", err)
		}
	}
	cs, now, err := s.listRows(ctx, q, from.place)
	if err == nil && now.IsZero() {
		now, err = s.Now(ctx)
	}
	if err != nil {
		return coupon.Page{}, fmt.Errorf("list: %w", err)
	}
	page := coupon.Page{Now: now}
	if len(cs) > q.Limit {
		cs = cs[:q.Limit]
		last := &cs[q.Limit-1]
		page.Next = position{place: place{last.DueAt, last.ID}}.token(query)
	}
	for i := range cs {
		if q.Admits(&cs[i]) {
			page.Coupons = append(page.Coupons, cs[i])
		}
	}
	return page, nil
}

// listRows reads one row more than the limit.
func (s *Store) listRows(ctx context.Context, q coupon.ListQuery, from place) ([]coupon.Coupon, time.Time, error) {
	n := q.Limit + 1
	switch {
	case q.Batch != "":
		return s.coupons(ctx, s.sql, stmtListBatch, []byte(q.Batch), from.id, n)
	case q.Template != 0:
		return s.coupons(ctx, s.sql, stmtListTemplate, q.Template, from.id, n)
	}
	until := afterAll.at
	if !q.EndsTo.IsZero() {
		until = q.EndsTo.Add(maxSpread).Truncate(time.Millisecond)
	}
	// What ends at the earliest is due then or later.
	if low := (place{at: q.EndsFrom.Truncate(time.Millisecond)}); from.less(low) {
		from = low
	}
	return s.coupons(ctx, s.sql, stmtListState, uint8(q.State), until, from.at, from.at, from.at, from.id, n)
}

func unixMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
