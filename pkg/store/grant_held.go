package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtHeldAdd   = define("issue.hold", `INSERT INTO grant_held (template_id, batch_id, body, created_at) VALUES (?,?,?,UTC_TIMESTAMP(3))`)
	stmtHeldList  = define("issue.held", `SELECT id, template_id, batch_id, body FROM grant_held WHERE id > ? ORDER BY id LIMIT ?`)
	stmtHeldCount = define("issue.held_count", `SELECT COUNT(*) FROM (SELECT id FROM grant_held LIMIT ?) h`)
	stmtHeldDrop  = define("issue.held_drop", `DELETE FROM grant_held WHERE id IN (?)`)
)

// pausedFor says which grant it is that must wait.
func pausedFor(ps *coupon.Pauses, grants []coupon.Grant) error {
	for i := range grants {
		if g := &grants[i]; ps.Coupon(coupon.BrakeIssuance, g.TemplateID, g.BatchID) {
			return fmt.Errorf("issue: template %d: %w", g.TemplateID, coupon.ErrPaused)
		}
	}
	return nil
}

// IssueOrHold is Issue for grants that nobody waits for: those that an operator has paused are kept as rows (Held), and granted
// by IssueHeld when that is over. A grant that is kept twice is granted once, by its key.
func (s *Store) IssueOrHold(ctx context.Context, grants []coupon.Grant) ([]coupon.Granted, error) {
	ps, err := s.Brakes(ctx)
	if err != nil {
		return nil, err
	}
	if pausedFor(ps, grants) == nil {
		return s.Issue(ctx, grants)
	}
	out := make([]coupon.Granted, len(grants))
	var free, held []coupon.Grant
	var at []int // of those that are free
	for i, g := range grants {
		if ps.Coupon(coupon.BrakeIssuance, g.TemplateID, g.BatchID) {
			held, out[i].Held = append(held, g), true
		} else {
			free, at = append(free, g), append(at, i)
		}
	}
	if len(free) > 0 {
		answers, err := s.Issue(ctx, free)
		if err != nil {
			return nil, err
		}
		for k := range answers {
			out[at[k]] = answers[k]
		}
	}
	if err := s.holdGrants(ctx, held); err != nil {
		return nil, err // what was granted is found again by its keys
	}
	return out, nil
}

func (s *Store) holdGrants(ctx context.Context, grants []coupon.Grant) error {
	args := make([]any, 0, 3*len(grants))
	for i := range grants {
		g := &grants[i]
		body, err := json.Marshal(g)
		if err != nil {
			return fmt.Errorf("hold a grant: %w", err)
		}
		batch := g.BatchID[:min(len(g.BatchID), coupon.MaxText)] // one that is too long is refused when it is granted
		args = append(args, g.TemplateID, []byte(batch), body)
	}
	return s.tx(ctx, "hold grants", func(ctx context.Context, tx *txn) error {
		for left := args; len(left) > 0; {
			n := min(len(left), 3*insertRows)
			if _, err := s.exec(ctx, tx, stmtHeldAdd.rows(n/3), left[:n]...); err != nil {
				return err
			}
			left = left[n:]
		}
		return nil
	})
}

// HeldGrants counts the grants that are kept, up to limit.
func (s *Store) HeldGrants(ctx context.Context, limit int) (n int64, err error) {
	err = s.queryRow(ctx, s.sql, stmtHeldCount, []any{&n}, limit)
	return n, err
}

// IssueHeld grants what was kept after the id from and is paused no more, of at most limit rows, and gives the id to go on
// from, also with an error of Issue; more says that there may be more. Any number of processes may do it at once.
func (s *Store) IssueHeld(ctx context.Context, from uint64, limit int) (next uint64, answers []coupon.Granted, more bool, err error) {
	ps, err := s.Brakes(ctx)
	if err != nil {
		return from, nil, false, err
	}
	next = from
	read := 0
	var grants []coupon.Grant
	var ids []any
	err = s.query(ctx, s.sql, stmtHeldList, func(r *sql.Rows) error {
		var template uint64
		var batch, body []byte
		if err := r.Scan(&next, &template, &batch, &body); err != nil {
			return err
		}
		read++
		if ps.Coupon(coupon.BrakeIssuance, template, string(batch)) {
			return nil
		}
		var g coupon.Grant
		if err := json.Unmarshal(body, &g); err != nil {
			return fmt.Errorf("grant %d: %w", next, err)
		}
		grants, ids = append(grants, g), append(ids, next)
		return nil
	}, from, min(limit, maxIDs))
	if err != nil {
		return from, nil, false, err
	}
	if len(grants) > 0 {
		if answers, err = s.Issue(ctx, grants); err != nil {
			return next, nil, false, err
		}
		if _, err = s.exec(ctx, s.sql, stmtHeldDrop.in(len(ids)), ids...); err != nil {
			return from, nil, false, err
		}
	}
	return next, answers, read == min(limit, maxIDs), nil
}
