package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
)

// What a user can read in the app is what counts as told.
const (
	toldQuery    = `SELECT COALESCE(SUM(items),0), (SELECT COUNT(*) FROM notice WHERE state = 'pending') FROM inbox WHERE kind LIKE '%expired'`
	inboxQuery   = `SELECT window_id, user_id, items, texts FROM inbox WHERE kind LIKE '%expired' ORDER BY id`
	itemQuery    = `SELECT i.window_id, i.coupon_id FROM notice_item i JOIN inbox b ON b.window_id = i.window_id WHERE i.dropped = '' AND b.kind LIKE '%expired'`
	pendingQuery = `SELECT COUNT(*) FROM notice n JOIN inbox b ON b.window_id = n.window_id WHERE n.state = 'pending' AND b.kind LIKE '%expired'`
)

type told struct {
	user  string
	items int // by its own count
	found int // items that it has
	texts []byte
}

// notices sets what users were told against what expired.
func (t *tally) notices(ctx context.Context, tx *sql.Tx) error {
	windows := make(map[uint64]*told)
	users := make(map[string]struct{})
	err := each(ctx, tx, inboxQuery, nil, func(r *sql.Rows) error {
		var id uint64
		var n told
		if err := r.Scan(&id, &n.user, &n.items, &n.texts); err != nil {
			return err
		}
		windows[id] = &n
		return nil
	})
	if err != nil {
		return err
	}
	named := make(map[uint64]int)
	ours := make(map[uint64]uint64) // notices that name a coupon of the run → that coupon
	err = each(ctx, tx, itemQuery, nil, func(r *sql.Rows) error {
		var window, coupon uint64
		if err := r.Scan(&window, &coupon); err != nil {
			return err
		}
		n := windows[window]
		n.found++
		if !t.expired[coupon] {
			if _, ran := t.ended[coupon]; !ran { // one of the waiting whose end has come is none of the run's
				t.Details.WrongNotices++
			}
			return nil
		}
		ours[window] = coupon
		named[coupon]++
		if n.user != t.rows[coupon] {
			t.Details.WrongUsers++
		}
		return nil
	})
	if err != nil {
		return err
	}
	for id, n := range windows {
		if n.found != n.items {
			t.Details.WrongNotices++
		}
		if _, ok := ours[id]; ok {
			users[n.user] = struct{}{}
		}
	}
	t.Notices, t.UsersWithNotice, t.CouponsInNotices = len(ours), len(users), len(named)
	for _, times := range named {
		if times > 1 {
			t.Details.InTwoNotices++
		}
	}
	t.example(windows, ours)
	return tx.QueryRowContext(ctx, pendingQuery).Scan(&t.Details.Unsent)
}

// example is the notice with the most coupons, the first of them.
func (t *tally) example(windows map[uint64]*told, ours map[uint64]uint64) {
	var first uint64
	for id := range ours {
		n, best := windows[id], windows[first]
		if best == nil || n.items > best.items || n.items == best.items && id < first {
			first = id
		}
	}
	n := windows[first]
	if n == nil {
		return
	}
	t.ExampleID = ours[first]
	var texts map[string]struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(n.texts, &texts); err != nil {
		t.Details.WrongNotices++
		return
	}
	var said []string
	for _, language := range []string{"zh-CN", "en"} {
		if text := strings.TrimSpace(texts[language].Text); text != "" {
			said = append(said, text)
		}
	}
	if len(said) < 2 {
		t.Details.WrongNotices++
	}
	t.Example = strings.Join(said, " / ")
}

// Counts is a quick look at the rows, to see how far a run has come. They judge nothing.
type Counts struct {
	Expired int // rows that are expired
	Told    int // coupons that notices in the app count
	Unsent  int // notices that a channel has still to send
}

// Counts reads the database.
func (a *Audit) Counts(ctx context.Context) (Counts, error) {
	var c Counts
	if err := a.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM coupon WHERE status = 4").Scan(&c.Expired); err != nil {
		return c, fmt.Errorf("audit: counting rows: %w", err)
	}
	if err := a.db.QueryRowContext(ctx, toldQuery).Scan(&c.Told, &c.Unsent); err != nil {
		return c, fmt.Errorf("audit: counting notices: %w", err)
	}
	return c, nil
}
