package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// A look over the coupons of a bulk change goes by the narrowest index that the ask allows, in pages that cost a page whatever else is
// asked for. Only what has ended for good is looked for in the archive.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtBulkUser = define("bulk.user", `SELECT `+couponColumns+` FROM coupon FORCE INDEX (coupon_wallet) WHERE user_id = ? AND id > ? ORDER BY id LIMIT ?`)

	stmtBulkArchived         = define("bulk.archived", `SELECT `+couponColumns+` FROM coupon_archive FORCE INDEX (PRIMARY) WHERE id > ? ORDER BY id LIMIT ?`)
	stmtBulkArchivedTemplate = define("bulk.archived_template", `SELECT `+couponColumns+` FROM coupon_archive FORCE INDEX (archive_template)
		WHERE template_id = ? AND id > ? ORDER BY id LIMIT ?`)
	stmtBulkArchivedUser = define("bulk.archived_user", `SELECT `+couponColumns+` FROM coupon_archive FORCE INDEX (archive_wallet)
		WHERE user_id = ? AND id > ? ORDER BY id LIMIT ?`)
)

// bulkPart is one stretch of a look.
type bulkPart struct {
	st       Statement
	args     []any
	archived bool
	status   coupon.Status // not 0: by (due_at, id) of this state
	ids      []uint64      // of a list
}

// bulkParts are the stretches, in order.
func bulkParts(a *coupon.BulkAsk) []bulkPart {
	var parts []bulkPart
	if a.IDs != nil {
		for part := range slices.Chunk(a.IDs, maxIDs) {
			parts = append(parts, bulkPart{ids: part})
		}
		return parts
	}
	switch {
	case a.User != "":
		parts = append(parts, bulkPart{st: stmtBulkUser, args: []any{[]byte(a.User)}})
	case a.Batch != "":
		parts = append(parts, bulkPart{st: stmtListBatch, args: []any{[]byte(a.Batch)}})
	case a.Template != 0:
		parts = append(parts, bulkPart{st: stmtListTemplate, args: []any{a.Template}})
	default:
		states := []coupon.Status{coupon.Unused, coupon.Locked}
		if a.Verb == coupon.VerbReinstate {
			states = append(states, coupon.Expired)
		}
		for _, status := range states {
			parts = append(parts, bulkPart{st: stmtListState, status: status})
		}
	}
	if a.Verb != coupon.VerbReinstate {
		return parts
	}
	switch {
	case a.User != "":
		return append(parts, bulkPart{st: stmtBulkArchivedUser, args: []any{[]byte(a.User)}, archived: true})
	case a.Template != 0:
		return append(parts, bulkPart{st: stmtBulkArchivedTemplate, args: []any{a.Template}, archived: true})
	default:
		return append(parts, bulkPart{st: stmtBulkArchived, archived: true})
	}
}

// BulkPage looks at up to limit coupons from a place on, and gives those that the ask is about, as they are, with the database's
// clock of the reading (zero when there were none) and the place to go on from. Nothing is locked.
func (s *Store) BulkPage(ctx context.Context, a *coupon.BulkAsk, from coupon.BulkPlace, limit int) (cs []coupon.Coupon, now time.Time, next coupon.BulkPlace, err error) {
	parts := bulkParts(a)
	next = from
	if from.Part >= len(parts) {
		next.Done = true
		return nil, now, next, nil
	}
	part := &parts[from.Part]
	var read []coupon.Coupon
	switch {
	case part.ids != nil:
		read, now, err = s.couponsIn(ctx, s.sql, part.ids)
	case part.status != 0:
		read, now, err = s.coupons(ctx, s.sql, part.st, bulkRange(a, part.status, from.Cursor, limit)...)
	default:
		read, now, err = s.coupons(ctx, s.sql, part.st, append(slices.Clone(part.args), from.ID, limit)...)
	}
	if err != nil {
		return nil, now, from, fmt.Errorf("look for coupons: %w", err)
	}
	if part.ids == nil && len(read) == limit {
		last := &read[limit-1]
		next.Cursor = coupon.Cursor{At: last.DueAt, ID: last.ID}
	} else {
		next.Part, next.Cursor = from.Part+1, coupon.Cursor{}
	}
	next.Done = next.Part >= len(parts)
	for i := range read {
		read[i].Archived = read[i].Archived || part.archived
		if a.Admits(&read[i]) {
			cs = append(cs, read[i])
		}
	}
	return cs, now, next, nil
}

// bulkRange is the range of due instants in which coupons with such ends are.
func bulkRange(a *coupon.BulkAsk, status coupon.Status, from coupon.Cursor, limit int) []any {
	at := from.At
	if low := a.EndsFrom.Truncate(time.Millisecond); at.Before(low) {
		at, from.ID = low, 0
	}
	if at.IsZero() {
		at = epoch
	}
	return []any{uint8(status), a.EndsTo.Add(maxSpread).Truncate(time.Millisecond), at, at, at, from.ID, limit}
}
