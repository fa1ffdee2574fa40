package audit

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

const (
	statusUnused  = 1
	statusLocked  = 2
	statusExpired = 4
)

const pageRows = 2000

const (
	couponQuery = `SELECT c.id, c.user_id, c.status, c.version, c.expires_at, c.expired_at, k.grant_key
		FROM coupon c LEFT JOIN grant_key k ON k.coupon_id = c.id WHERE c.id > ? ORDER BY c.id LIMIT ?`
	historyQuery = `SELECT coupon_id, version, from_status, to_status, cause, at FROM coupon_history
		WHERE coupon_id > ? AND coupon_id <= ? ORDER BY coupon_id, version`
)

// row is a coupon as the database has it.
type row struct {
	id        uint64
	user      string
	status    int
	version   uint32
	expiresAt time.Time
	expiredAt sql.NullTime
	key       sql.NullString
	history   []step
}

type step struct {
	version  uint32
	from, to int
	cause    string
	at       time.Time
}

// tally is a report in the making.
type tally struct {
	Report
	asks        map[string]Ask
	locks       bool // a locked row is not early
	watched     map[string]time.Time
	events      map[string][]*heard // by coupon id
	rows        map[uint64]string   // coupon id → user, of every row
	expired     map[uint64]bool     // coupons that were to end, and have
	ended       map[uint64]struct{} // waiting ones whose end has come meanwhile
	found       map[string]bool     // grant keys with a row
	transitions []time.Duration
	heard       []time.Duration
	first, last time.Time // of the transitions
	low, high   time.Time // bounds of the database's clock when the rows were read
}

// Report reads the rows, all as of one instant, and sets them against what was asked and heard.
func (a *Audit) Report(ctx context.Context) (Report, error) {
	tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return Report{}, fmt.Errorf("audit: reading rows: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it only reads
	t := &tally{locks: a.cfg.Locks, rows: make(map[uint64]string), expired: make(map[uint64]bool), ended: make(map[uint64]struct{}), found: make(map[string]bool)}
	a.tell(t)
	var after uint64
	for {
		page, err := readPage(ctx, tx, after)
		if err != nil {
			return Report{}, fmt.Errorf("audit: reading rows: %w", err)
		}
		if after == 0 { // the instant of the snapshot
			t.low, t.high = a.clock.at(time.Now())
		}
		if len(page) == 0 {
			break
		}
		for i := range page {
			t.row(&page[i])
		}
		after = page[len(page)-1].id
	}
	t.absent()
	t.strays()
	if err := t.notices(ctx, tx); err != nil {
		return Report{}, fmt.Errorf("audit: reading notices: %w", err)
	}
	t.TransitionLateness, t.EventLateness = lateness(t.transitions), lateness(t.heard)
	if n := len(t.transitions); n > 0 {
		seconds := max(1, t.last.Sub(t.first).Seconds())
		t.ThroughputPerS = math.Round(float64(n)/seconds*10) / 10
	}
	t.Details.Faults = a.Faults()
	return t.Report, nil
}

// tell copies what was asked and heard.
func (a *Audit) tell(t *tally) {
	a.mu.Lock()
	t.watched = maps.Clone(a.watched)
	a.mu.Unlock()
	b := &a.book
	b.mu.Lock()
	defer b.mu.Unlock()
	t.asks = maps.Clone(b.asks)
	t.events = make(map[string][]*heard, len(b.expired))
	for _, h := range b.expired {
		own := *h
		t.events[h.coupon] = append(t.events[h.coupon], &own)
		if h.times > 1 {
			t.DuplicateEventIDs++
		}
	}
	t.Events = len(b.expired)
	t.Details.Refused = maps.Clone(b.refused)
	t.Details.Strange, t.Details.StrangeEvents = slices.Clone(b.strange), b.nStrange
	users := make(map[string]struct{})
	for _, ask := range b.asks {
		if !ask.Waiting {
			t.Coupons++
			users[ask.User] = struct{}{}
		}
	}
	t.Users = len(users)
}

func readPage(ctx context.Context, tx *sql.Tx, after uint64) ([]row, error) {
	var page []row
	err := each(ctx, tx, couponQuery, []any{after, pageRows}, func(r *sql.Rows) error {
		var c row
		if err := r.Scan(&c.id, &c.user, &c.status, &c.version, &c.expiresAt, &c.expiredAt, &c.key); err != nil {
			return err
		}
		page = append(page, c)
		return nil
	})
	if err != nil || len(page) == 0 {
		return nil, err
	}
	i := 0
	err = each(ctx, tx, historyQuery, []any{after, page[len(page)-1].id}, func(r *sql.Rows) error {
		var id uint64
		var s step
		if err := r.Scan(&id, &s.version, &s.from, &s.to, &s.cause, &s.at); err != nil {
			return err
		}
		for i < len(page) && page[i].id < id {
			i++
		}
		if i < len(page) && page[i].id == id {
			page[i].history = append(page[i].history, s)
		}
		return nil
	})
	return page, err
}

func each(ctx context.Context, tx *sql.Tx, query string, args []any, do func(*sql.Rows) error) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	for rows.Next() {
		if err := do(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// row judges one coupon.
func (t *tally) row(c *row) {
	_, shared := t.rows[c.id] // two grant keys for one coupon
	t.rows[c.id] = c.user
	ask, asked := t.asks[c.key.String]
	if !asked || !c.key.Valid || shared {
		t.Details.Unasked++
		return
	}
	t.found[ask.Key] = true
	if !c.consistent() {
		t.Details.Inconsistent++
	}
	if c.user != ask.User {
		t.Details.WrongUsers++
	}
	if !c.expiresAt.Equal(ask.End) {
		t.Details.WrongEnds++
	}
	if t.early(c, ask) {
		t.Early++
	}
	if ask.Waiting {
		t.waiting(c, ask)
	} else if c.status == statusExpired {
		t.Expired++
		t.expired[c.id] = true
	} else {
		t.NotExpired++
	}
	t.steps(c, ask)
	t.told(c, ask)
}

func (t *tally) waiting(c *row, ask Ask) {
	if !t.low.Before(ask.End) { // its own end has come meanwhile
		t.ended[c.id] = struct{}{}
		t.Events -= len(t.events[strconv.FormatUint(c.id, 10)])
		return
	}
	t.Details.WaitingAsked++
	if c.status != statusUnused {
		return
	}
	t.Waiting++
	if left := ask.End.Sub(t.low); t.NextWaiting == 0 || left < t.NextWaiting {
		t.NextWaiting = left
	}
}

// consistent: the history is unbroken from the grant on and leads to the row.
func (c *row) consistent() bool {
	status, version := 0, uint32(0)
	for _, s := range c.history {
		if s.version != version+1 || s.from != status {
			return false
		}
		status, version = s.to, s.version
	}
	return status == c.status && version == c.version && c.expiredAt.Valid == (c.status == statusExpired)
}

// early: unusable, or heard of as expired, before the asked end, as any witness has it.
func (t *tally) early(c *row, ask Ask) bool {
	if _, seen := t.watched[ask.Key]; seen {
		return true
	}
	if c.status != statusUnused && (!t.locks || c.status != statusLocked) && t.high.Before(ask.End) {
		return true
	}
	if c.expiresAt.Before(ask.End) && !t.low.Before(c.expiresAt) { // by its own, shorter end it was unusable
		return true
	}
	if c.expiredAt.Valid && c.expiredAt.Time.Before(ask.End) {
		return true
	}
	for _, s := range c.history {
		if s.to == statusExpired && s.at.Before(ask.End) {
			return true
		}
	}
	for _, h := range t.events[strconv.FormatUint(c.id, 10)] {
		if h.by.Before(ask.End) || h.expiredAt.Before(ask.End) {
			return true
		}
	}
	return false
}

// steps counts the coupon's transitions to expired.
func (t *tally) steps(c *row, ask Ask) {
	n := 0
	for _, s := range c.history {
		if s.to != statusExpired {
			continue
		}
		n++
		if ask.Waiting && !t.low.Before(ask.End) {
			continue // neither of the run nor early
		}
		t.Transitions++
		if s.cause == "sweep" {
			t.SweepRecovered++
		}
		t.transitions = append(t.transitions, s.at.Sub(ask.End))
		if t.first.IsZero() || s.at.Before(t.first) {
			t.first = s.at
		}
		if s.at.After(t.last) {
			t.last = s.at
		}
	}
	if n > 1 {
		t.DuplicateTransitions++
	}
}

// told sets the coupon against the events about it.
func (t *tally) told(c *row, ask Ask) {
	events := t.events[strconv.FormatUint(c.id, 10)]
	if c.status == statusExpired && !ask.Waiting && len(events) == 0 {
		t.MissingEvents++
	}
	if len(events) > 1 {
		t.Details.DoubledEvents++
	}
	if len(events) > 0 && c.status != statusExpired {
		t.Details.StrayEvents++
	}
	for _, h := range events {
		if !h.expiresAt.Equal(ask.End) {
			t.Details.WrongEnds++
		}
		if h.user != ask.User {
			t.Details.WrongUsers++
		}
		if !ask.Waiting {
			t.heard = append(t.heard, h.by.Sub(ask.End))
		}
	}
}

// absent counts what was asked for and is not there.
func (t *tally) absent() {
	for key, ask := range t.asks {
		switch {
		case t.found[key]:
		case !ask.Waiting:
			t.Details.Ungranted++
			t.NotExpired++
		case t.low.Before(ask.End):
			t.Details.WaitingAsked++
		}
	}
}

// strays counts events of coupons that are not there.
func (t *tally) strays() {
	for id := range t.events {
		n, err := strconv.ParseUint(id, 10, 64)
		if _, there := t.rows[n]; err != nil || !there {
			t.Details.StrayEvents++
		}
	}
}
