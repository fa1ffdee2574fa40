package store

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// ExplainSuspect looks at a coupon and its whole history once more, in one snapshot, and says where they disagree. A
// coupon whose history is as it must be gives none; so does one that is gone.
func (s *Store) ExplainSuspect(ctx context.Context, id uint64) (template uint64, found []coupon.Finding, err error) {
	err = s.snapshot(ctx, func(ctx context.Context, q querier) error {
		cs, _, err := s.couponsIn(ctx, q, []uint64{id})
		if err != nil || len(cs) == 0 {
			return err
		}
		c := &cs[0]
		template = c.Terms.TemplateID
		b := chain{of: c}
		st := stmtReconPast
		if c.Archived {
			st = stmtReconPastArchive
		}
		if err := s.query(ctx, q, st, b.step, id); err != nil {
			return err
		}
		found = b.end()
		return nil
	})
	if err != nil {
		return 0, nil, fmt.Errorf("look at coupon %d: %w", id, err)
	}
	return template, found, nil
}

//nolint:gochecknoglobals // statements are constants
var (
	stmtReconPast = define("reconcile.past", `SELECT version, from_status, to_status, expires_at, due_at FROM coupon_history
		WHERE coupon_id = ? ORDER BY version`)
	stmtReconPastArchive = define("reconcile.past_archived", `SELECT version, from_status, to_status, expires_at, due_at FROM coupon_history_archive
		WHERE coupon_id = ? ORDER BY version`)
)

// chain walks a history. It keeps the last step and the first fault alone.
type chain struct {
	of      *coupon.Coupon
	last    coupon.Transition
	history *coupon.Finding
}

func (b *chain) find(kind coupon.FindingKind, expected, found string) coupon.Finding {
	where := "coupon"
	if b.of.Archived {
		where = "archived coupon"
	}
	return coupon.Finding{Kind: kind, Subject: fmt.Sprintf("%s %d", where, b.of.ID), Expected: expected, Found: found}
}

func (b *chain) step(r *sql.Rows) error {
	var t coupon.Transition
	if err := r.Scan(&t.Version, &t.From, &t.To, &t.ExpiresAt, &t.DueAt); err != nil {
		return err
	}
	if b.history == nil && (t.Version != b.last.Version+1 || t.From != b.last.To) {
		f := b.find(coupon.FindHistory, fmt.Sprintf("version %d from %s", b.last.Version+1, stateName(b.last.To)),
			fmt.Sprintf("version %d from %s", t.Version, stateName(t.From)))
		b.history = &f
	}
	b.last = t
	return nil
}

func stateName(s coupon.Status) string {
	if s == 0 {
		return "nothing"
	}
	return s.String()
}

// end says what is wrong.
func (b *chain) end() []coupon.Finding {
	var out []coupon.Finding
	switch {
	case b.last.Version == 0:
		return []coupon.Finding{b.find(coupon.FindHistory, fmt.Sprintf("%d steps", b.of.Version), "none")}
	case b.history != nil:
		out = append(out, *b.history)
	}
	describe := func(version uint32, status coupon.Status, ends, due any) string {
		return fmt.Sprintf("version %d %s, ends %s, due %s", version, status, ends, due)
	}
	const layout = "2006-01-02T15:04:05.000Z"
	want := describe(b.last.Version, b.last.To, b.last.ExpiresAt.Format(layout), b.last.DueAt.Format(layout))
	have := describe(b.of.Version, b.of.Status, b.of.ExpiresAt.Format(layout), b.of.DueAt.Format(layout))
	if want != have {
		out = append(out, b.find(coupon.FindState, want, have))
	}
	return out
}
