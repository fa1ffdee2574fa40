package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtRemindPage = define("remind.page", `SELECT id, version, template_id, revision, user_id, batch_id, expires_at, due_at, observed, UTC_TIMESTAMP(3)
		FROM coupon FORCE INDEX (coupon_due)
		WHERE status = 1 AND due_at < ? AND due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?)) ORDER BY due_at, id LIMIT ?`)
	stmtRemindPast = define("remind.past", `SELECT coupon_id, to_status, at, expires_at FROM coupon_history FORCE INDEX (PRIMARY)
		WHERE coupon_id IN (?) ORDER BY coupon_id, version`)
)

// DeedRemindersSkipped is what MovePlan records of PlanPlace.Skipped; the subject is the offset.
const DeedRemindersSkipped = "reminders.skipped"

// RemindPage reads up to limit unused coupons that are due before end, behind the cursor, in keyset order, and gives the
// reminders at the offset of those whose templates pick it.
//
// A reminder whose instant has passed already is told of as well, up to a quarter of the offset late, or given as skipped,
// but only of a coupon that was unused with this end before that instant: of others the verb that brought them here told
// what there was to tell.
func (s *Store) RemindPage(ctx context.Context, o coupon.Offset, zone *time.Location, end time.Time, from coupon.Cursor, limit int) (coupon.RemindPage, error) {
	page := coupon.RemindPage{Next: from}
	type key struct {
		id       uint64
		revision uint32
	}
	var es []coupon.Expiring
	var keys []key
	err := s.query(ctx, s.sql, stmtRemindPage, func(r *sql.Rows) error {
		var e coupon.Expiring
		var k key
		var observed bool
		if err := r.Scan(&e.CouponID, &e.Version, &k.id, &k.revision, &e.UserID, &e.BatchID, &e.ExpiresAt, &page.Next.At, &observed, &page.Now); err != nil {
			return err
		}
		page.Next.ID = e.CouponID
		page.Rows++
		if observed {
			return nil // its owner tells of it
		}
		es, keys = append(es, e), append(keys, k)
		return nil
	}, after(from, end, limit)...)
	if err != nil {
		return coupon.RemindPage{Next: from}, err
	}
	var passed []coupon.Expiring
	for i := range es {
		terms, err := s.termsOf(ctx, s.sql, keys[i].id, keys[i].revision)
		if err != nil {
			return coupon.RemindPage{Next: from}, err
		}
		if !terms.Reminders.Has(o.Name) {
			continue
		}
		e := &es[i]
		e.TemplateID, e.Offset, e.NotifyAt, e.Value, e.Currency = terms.TemplateID, o.Name, o.NotifyAt(e.ExpiresAt, zone), terms.Value, terms.Currency
		if page.Now.Before(e.NotifyAt) {
			page.Expiring = append(page.Expiring, *e)
		} else {
			passed = append(passed, *e)
		}
	}
	owed, err := s.owedThen(ctx, passed)
	if err != nil {
		return coupon.RemindPage{Next: from}, err
	}
	for i := range owed {
		if page.Now.Sub(owed[i].NotifyAt) > o.Tolerance() {
			page.Skipped = append(page.Skipped, owed[i])
		} else {
			page.Expiring = append(page.Expiring, owed[i])
		}
	}
	return page, nil
}

// owedThen gives those whose coupons were unused, with the end that they have now, just before the reminder's instant.
func (s *Store) owedThen(ctx context.Context, es []coupon.Expiring) ([]coupon.Expiring, error) {
	owed := es[:0]
	for len(es) > 0 {
		n := min(len(es), maxIDs)
		ids := make([]any, n)
		of := make(map[uint64]*coupon.Expiring, n)
		for i := range es[:n] {
			ids[i], of[es[i].CouponID] = es[i].CouponID, &es[i]
		}
		then := make(map[uint64]bool, n)
		err := s.query(ctx, s.sql, stmtRemindPast.in(n), func(r *sql.Rows) error {
			var id uint64
			var to coupon.Status
			var at, ends time.Time
			if err := r.Scan(&id, &to, &at, &ends); err != nil {
				return err
			}
			if e := of[id]; at.Before(e.NotifyAt) {
				then[id] = to == coupon.Unused && ends.Equal(e.ExpiresAt)
			}
			return nil
		}, ids...)
		if err != nil {
			return nil, err
		}
		for i := range es[:n] {
			if then[es[i].CouponID] {
				owed = append(owed, es[i])
			}
		}
		es = es[n:]
	}
	return owed, nil
}

// recordSkipped keeps that reminders were not told of, where operators look.
func (s *Store) recordSkipped(ctx context.Context, q querier, k coupon.Skipped) error {
	return s.recordDeed(ctx, q, Deed{
		Actor: "planner", Action: DeedRemindersSkipped, Subject: k.Offset,
		Reason: fmt.Sprintf("found later than a quarter of %s after their instants", k.Offset),
		Detail: struct {
			Skipped int       `json:"skipped"`
			From    time.Time `json:"from"`
			To      time.Time `json:"to"`
		}{k.N, k.From.UTC(), k.To.UTC()},
	})
}
