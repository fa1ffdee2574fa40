package store

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// A page of a wallet merges a few streams, one for each stored status that can be seen as the state asked for. Each is
// a range of (user_id, status, expires_at, id), from one place to another, both excluded. The index is forced: left to
// itself MariaDB takes two columns of it and reads backwards through all that lies beyond the range. And instants are
// whole milliseconds, since it makes no range of finer ones.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtWallet = define("read.wallet", `SELECT `+couponColumns+` FROM coupon FORCE INDEX (coupon_wallet) WHERE user_id = ? AND status = ?
		AND expires_at >= ? AND (expires_at > ? OR (expires_at = ? AND id > ?)) AND expires_at <= ? AND (expires_at < ? OR (expires_at = ? AND id < ?))
		ORDER BY expires_at, id LIMIT ?`)
	stmtWalletBack = define("read.wallet_back", `SELECT `+couponColumns+` FROM coupon FORCE INDEX (coupon_wallet) WHERE user_id = ? AND status = ?
		AND expires_at >= ? AND (expires_at > ? OR (expires_at = ? AND id > ?)) AND expires_at <= ? AND (expires_at < ? OR (expires_at = ? AND id < ?))
		ORDER BY expires_at DESC, id DESC LIMIT ?`)
	stmtWalletOld = define("read.wallet_archived", `SELECT `+couponColumns+` FROM coupon_archive FORCE INDEX (archive_wallet) WHERE user_id = ? AND status = ?
		AND expires_at >= ? AND (expires_at > ? OR (expires_at = ? AND id > ?)) AND expires_at <= ? AND (expires_at < ? OR (expires_at = ? AND id < ?))
		ORDER BY expires_at, id LIMIT ?`)
	stmtWalletOldBack = define("read.wallet_archived_back", `SELECT `+couponColumns+` FROM coupon_archive FORCE INDEX (archive_wallet) WHERE user_id = ? AND status = ?
		AND expires_at >= ? AND (expires_at > ? OR (expires_at = ? AND id > ?)) AND expires_at <= ? AND (expires_at < ? OR (expires_at = ? AND id < ?))
		ORDER BY expires_at DESC, id DESC LIMIT ?`)
	stmtSummary = define("read.summary", `SELECT template_id, revision, status, valid_from, expires_at, lock_until, UTC_TIMESTAMP(3) FROM coupon FORCE INDEX (coupon_wallet)
		WHERE user_id = ? AND status IN (1,2) AND expires_at > UTC_TIMESTAMP(3) AND observed = 0 ORDER BY status, expires_at, id LIMIT ?`)
)

const (
	summaryRows = 1000 // a summary counts no more rows than these
	probeRows   = 2    // what is read of a stream to learn where it stands among the others
	passedOver  = 2    // rows of another state that a page looks at beyond its limit
)

// sections are the states in the order in which a wallet of every state shows them.
func sections(state coupon.Status) []coupon.Status {
	if state != 0 {
		return []coupon.Status{state}
	}
	return []coupon.Status{coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided}
}

// Wallet gives a page of a user's coupons, in their states as seen at Page.Now. Whatever the wallet holds, a page
// looks at few more rows than its limit. A coupon that moves into the archive keeps its place. Errors: those of
// WalletQuery.Validate, coupon.ErrPosition.
func (s *Store) Wallet(ctx context.Context, q coupon.WalletQuery) (coupon.Page, error) {
	if err := q.Validate(); err != nil {
		return coupon.Page{}, fmt.Errorf("wallet: %w", err)
	}
	states, query := sections(q.State), fmt.Sprintf("wallet %d %s", q.State, q.UserID)
	var from *position
	if q.After != "" {
		at, err := parsePosition(q.After, query)
		if err != nil {
			return coupon.Page{}, fmt.Errorf("wallet: %w", err)
		}
		i := slices.Index(states, coupon.Status(at.section))
		if i < 0 {
			return coupon.Page{}, fmt.Errorf("wallet: %w", coupon.ErrPosition)
		}
		states, from = states[i:], &at
	}
	w := walk{store: s, user: q.UserID, limit: q.Limit}
	page, err := w.page(ctx, states, from)
	if err != nil {
		return coupon.Page{}, fmt.Errorf("wallet: %w", err)
	}
	if w.more {
		page.Next = w.last.token(query)
	}
	return page, nil
}

// Usable gives up to limit coupons of a user that are seen as unused, valid or not yet valid, by earliest end; and the
// database's clock. They are what the best one is chosen from; more says that not all were looked at.
func (s *Store) Usable(ctx context.Context, user string, limit int) (cs []coupon.Coupon, more bool, now time.Time, err error) {
	if err := (coupon.WalletQuery{UserID: user, Limit: limit}).Validate(); err != nil {
		return nil, false, time.Time{}, fmt.Errorf("usable coupons: %w", err)
	}
	w := walk{store: s, user: user, limit: limit}
	page, err := w.page(ctx, sections(coupon.Unused), nil)
	if err != nil {
		return nil, false, time.Time{}, fmt.Errorf("usable coupons: %w", err)
	}
	return page.Coupons, w.more, page.Now, nil
}

// walk is the reading of one page.
type walk struct {
	store *Store
	user  string
	limit int

	q      querier
	now    time.Time
	out    []coupon.Coupon
	looked int
	last   position // of the row looked at last
	more   bool     // rows follow it
}

// page reads the sections from a position on, or from the beginning. One instant judges every row, and one view of
// the database shows each row in one stream only.
func (w *walk) page(ctx context.Context, states []coupon.Status, from *position) (coupon.Page, error) {
	err := w.store.snapshot(ctx, func(ctx context.Context, q querier) error {
		w.q = q
		if err := w.store.queryRow(ctx, q, stmtNow, []any{&w.now}); err != nil {
			return err
		}
		for _, state := range states {
			if err := w.section(ctx, state, from); err != nil || w.more {
				return err
			}
			from = nil
		}
		return nil
	})
	return coupon.Page{Now: w.now, Coupons: w.out}, err
}

// streams gives what a section is merged from.
func (w *walk) streams(state coupon.Status, from *position) []*stream {
	ended := place{w.now, lastID} // the last that has ended
	var ss []*stream
	add := func(stored coupon.Status, archived bool, low, high place) {
		st := stream{status: stored, archived: archived, back: state == coupon.Expired, low: low, high: high}
		if from != nil {
			st.skip(from.place)
		}
		ss = append(ss, &st)
	}
	switch state {
	case coupon.Unused:
		add(coupon.Unused, false, ended, afterAll)
		add(coupon.Locked, false, ended, afterAll)
	case coupon.Locked:
		add(coupon.Locked, false, beforeAll, afterAll)
	case coupon.Expired:
		after := place{w.now.Add(time.Millisecond), 0}
		add(coupon.Unused, false, beforeAll, after)
		add(coupon.Locked, false, beforeAll, after)
		add(coupon.Expired, false, beforeAll, afterAll)
		add(coupon.Expired, true, beforeAll, afterAll)
	case coupon.Used, coupon.Voided:
		add(state, false, beforeAll, afterAll)
		add(state, true, beforeAll, afterAll)
	}
	return ss
}

// section merges its streams until the page is full. It reads little of a stream while others may come first, and
// what comes before all others in one go.
func (w *walk) section(ctx context.Context, state coupon.Status, from *position) error {
	ss := w.streams(state, from)
	for {
		n := probeRows
		if len(ss) == 1 {
			n = w.need()
		}
		for _, st := range ss {
			if len(st.rows) == 0 {
				if err := st.read(ctx, w, min(n, w.need()), nil); err != nil {
					return err
				}
			}
		}
		ss = slices.DeleteFunc(ss, func(st *stream) bool { return len(st.rows) == 0 })
		if len(ss) == 0 {
			return nil
		}
		first, bound := leading(ss)
		had := len(first.rows)
		for len(first.rows) > 0 && (bound == nil || first.before(place{first.rows[0].ExpiresAt, first.rows[0].ID}, *bound)) {
			if !w.take(&first.rows[0], state) {
				return nil
			}
			first.rows = first.rows[1:]
		}
		if had >= probeRows && len(first.rows) == 0 && bound != nil { // a run of them: there may be more
			if err := first.read(ctx, w, w.need(), bound); err != nil {
				return err
			}
		}
		ss = slices.DeleteFunc(ss, func(st *stream) bool { return len(st.rows) == 0 && st.done })
	}
}

// need is how many rows are still to be looked at, with the one that tells that there are more.
func (w *walk) need() int {
	return min(w.limit-len(w.out), w.limit+passedOver-w.looked) + 1
}

// take looks at a row; false when the page is full, so that it belongs to the next.
func (w *walk) take(c *coupon.Coupon, state coupon.Status) bool {
	if w.need() == 1 {
		w.more = true
		return false
	}
	w.looked++
	w.last = position{uint8(state), place{c.ExpiresAt, c.ID}}
	if !c.Observed && c.Seen(w.now) == state { // its owner shows what is observed
		w.out = append(w.out, *c)
	}
	return true
}

// leading gives the stream whose first row comes first, and where the next stream's first row stands.
func leading(ss []*stream) (first *stream, bound *place) {
	for _, st := range ss {
		at := place{st.rows[0].ExpiresAt, st.rows[0].ID}
		switch {
		case first == nil:
			first = st
		case st.before(at, place{first.rows[0].ExpiresAt, first.rows[0].ID}):
			bound = &place{first.rows[0].ExpiresAt, first.rows[0].ID}
			first = st
		case bound == nil || st.before(at, *bound):
			bound = &at
		}
	}
	return first, bound
}

// stream is a range of the rows of one stored status, in either direction.
type stream struct {
	status    coupon.Status
	archived  bool
	back      bool  // latest end first
	low, high place // what was not read lies between them, both excluded
	rows      []coupon.Coupon
	done      bool // nothing lies between them
}

func (st *stream) before(a, b place) bool {
	if st.back {
		return b.less(a)
	}
	return a.less(b)
}

// skip leaves out what comes up to p.
func (st *stream) skip(p place) {
	if st.back && p.less(st.high) {
		st.high = p
	} else if !st.back && st.low.less(p) {
		st.low = p
	}
}

// read appends up to n rows, only those before the bound if there is one.
func (st *stream) read(ctx context.Context, w *walk, n int, bound *place) error {
	if st.done {
		return nil
	}
	low, high := st.low, st.high
	stmt := stmtWallet
	switch {
	case st.archived && st.back:
		stmt = stmtWalletOldBack
	case st.archived:
		stmt = stmtWalletOld
	case st.back:
		stmt = stmtWalletBack
	}
	if bound != nil && st.back {
		low = *bound
	} else if bound != nil {
		high = *bound
	}
	cs, _, err := w.store.coupons(ctx, w.q, stmt, []byte(w.user), uint8(st.status),
		low.at, low.at, low.at, low.id, high.at, high.at, high.at, high.id, n)
	if err != nil {
		return err
	}
	for i := range cs {
		cs[i].Archived = st.archived
		st.skip(place{cs[i].ExpiresAt, cs[i].ID})
	}
	st.rows = append(st.rows, cs...)
	st.done = bound == nil && len(cs) < n
	return nil
}

// WalletSummary counts what a user can use now, by one reading of an index: how many, how many of them end within the
// time given, the next end, and what they take off. It looks at a thousand coupons at most, the earliest ends first;
// More says that there are others.
func (s *Store) WalletSummary(ctx context.Context, user string, within time.Duration) (coupon.Summary, error) {
	type row struct {
		coupon.Row
		key termsKey
	}
	var sum coupon.Summary
	var rows []row
	err := s.query(ctx, s.sql, stmtSummary, func(r *sql.Rows) error {
		var c row
		var until sql.NullTime
		if err := r.Scan(&c.key.id, &c.key.revision, &c.Status, &c.ValidFrom, &c.ExpiresAt, &until, &sum.Now); err != nil {
			return err
		}
		c.LockUntil = until.Time
		rows = append(rows, c)
		return nil
	}, []byte(user), summaryRows+1)
	if err == nil && len(rows) == 0 {
		sum.Now, err = s.Now(ctx)
	}
	if err != nil {
		return coupon.Summary{}, fmt.Errorf("wallet summary: %w", err)
	}
	if len(rows) > summaryRows {
		rows, sum.More = rows[:summaryRows], true
	}
	value := make(map[string]int64)
	for _, c := range rows {
		if c.Seen(sum.Now) != coupon.Unused || c.ValidFrom.After(sum.Now) {
			continue
		}
		terms, err := s.termsOf(ctx, s.sql, c.key.id, c.key.revision)
		if err != nil {
			return coupon.Summary{}, fmt.Errorf("wallet summary: %w", err)
		}
		sum.Usable++
		if terms.Offer.Kind == coupon.OfferAmount {
			value[terms.Currency] += terms.Value
		}
		if coupon.IsNever(c.ExpiresAt) {
			continue
		}
		if !c.ExpiresAt.After(sum.Now.Add(within)) {
			sum.Ending++
		}
		if sum.NextEnd.IsZero() || c.ExpiresAt.Before(sum.NextEnd) {
			sum.NextEnd = c.ExpiresAt
		}
	}
	for _, currency := range slices.Sorted(maps.Keys(value)) {
		sum.Value = append(sum.Value, coupon.MoneySum{Amount: value[currency], Currency: currency})
	}
	return sum, nil
}
