package store

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Counts are kept under a lock on the user's row of the day, taken in the order of users, and whoever adds reads all of the
// user's days under it: two pods cannot both find room for the last one.

//nolint:gochecknoglobals // statements are constants
var (
	stmtCountRow  = define("notice.count_row", `INSERT INTO notice_count (user_id, channel, day, sent) VALUES (?,?,?,0) ON DUPLICATE KEY UPDATE sent = sent`)
	stmtCountRead = define("notice.count_read", `SELECT user_id, day, sent FROM notice_count FORCE INDEX (PRIMARY)
		WHERE channel = ? AND day >= ? AND user_id IN (?) ORDER BY user_id, day FOR UPDATE`)
	stmtCountAdd = define("notice.count_add", `INSERT INTO notice_count (user_id, channel, day, sent) VALUES (?,?,?,?) ON DUPLICATE KEY UPDATE
		sent = LEAST(65535, sent + VALUES(sent))`)
	stmtCountBack = define("notice.count_back", `UPDATE notice_count SET sent = sent - 1 WHERE user_id = ? AND channel = ? AND day = ? AND sent > 0`)
)

const week = 7 * 24 * time.Hour

// dayCount is a user's local day.
type dayCount struct {
	user string
	day  string
}

// reserve counts the notices that are to be sent on their users' local days, and suppresses those beyond the cap.
func (p *preparation) reserve(ctx context.Context, out []coupon.Prepared) error {
	var asks []*coupon.Prepared
	for i := range out {
		o := &out[i]
		h := p.held[o.WindowID]
		if o.Suppressed == "" && (p.caps != coupon.Cap{}) {
			asks = append(asks, o)
		} else if err := p.s.giveBack(ctx, p.tx, h); err != nil {
			return err
		}
	}
	if len(asks) == 0 {
		return nil
	}
	slices.SortStableFunc(asks, func(a, b *coupon.Prepared) int { return cmp.Compare(a.UserID, b.UserID) })
	days := make(map[*coupon.Prepared]time.Time, len(asks))
	var first time.Time
	for _, o := range asks {
		y, m, d := p.day(o.Now, &o.Profile).Date()
		days[o] = time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
		first = least(first, days[o])
	}
	counts, err := p.countsOf(ctx, asks, days, first.Add(-week+24*time.Hour))
	if err != nil {
		return err
	}
	added := make(map[dayCount]int)
	var order []dayCount
	for _, o := range asks {
		h, day := p.held[o.WindowID], days[o]
		if h.counted.Valid && h.counted.V.Equal(day) {
			continue // by a try before this one
		}
		if h.counted.Valid { // on another day
			counts.add(o.UserID, h.counted.V, -1)
			if err := p.s.giveBack(ctx, p.tx, h); err != nil {
				return err
			}
		}
		if counts.full(o.UserID, day, p.caps) {
			o.Suppressed = coupon.ReasonCap
			continue
		}
		counts.add(o.UserID, day, 1)
		h.counted = sql.Null[time.Time]{V: day, Valid: true}
		key := dayCount{o.UserID, day.Format(time.DateOnly)}
		if added[key]++; added[key] == 1 {
			order = append(order, key)
		}
	}
	rows := make([]any, 0, 4*len(order))
	for _, key := range order {
		rows = append(rows, []byte(key.user), string(p.channel), key.day, added[key])
	}
	return p.s.insertAll(ctx, p.tx, stmtCountAdd, rows, 4)
}

// counts are users' counts by day.
type counts map[string]map[time.Time]int

func (c counts) add(user string, day time.Time, n int) {
	if c[user] == nil {
		c[user] = make(map[time.Time]int)
	}
	c[user][day] += n
}

// full reports whether there is no room on the day. Days after it count as well: the user may have come from further east.
func (c counts) full(user string, day time.Time, caps coupon.Cap) bool {
	sum := 0
	for d, n := range c[user] {
		if d.After(day.Add(-week)) {
			sum += n
		}
	}
	return caps.Day > 0 && c[user][day] >= caps.Day || caps.Week > 0 && sum >= caps.Week
}

// countsOf locks and reads the users' days from first on.
func (p *preparation) countsOf(ctx context.Context, asks []*coupon.Prepared, days map[*coupon.Prepared]time.Time, first time.Time) (counts, error) {
	var rows []any
	var users []any
	seen := make(map[dayCount]bool, len(asks))
	for i, o := range asks {
		if key := (dayCount{o.UserID, days[o].Format(time.DateOnly)}); !seen[key] {
			seen[key] = true
			rows = append(rows, []byte(o.UserID), string(p.channel), key.day)
		}
		if i == 0 || asks[i-1].UserID != o.UserID {
			users = append(users, []byte(o.UserID))
		}
	}
	if err := p.s.insertAll(ctx, p.tx, stmtCountRow, rows, 3); err != nil {
		return nil, err
	}
	c := make(counts, len(users))
	for part := range slices.Chunk(users, inList) {
		args := append([]any{string(p.channel), first.Format(time.DateOnly)}, part...)
		err := p.s.query(ctx, p.tx, stmtCountRead.in(len(part)), func(r *sql.Rows) error {
			var user []byte
			var day time.Time
			var n int
			err := r.Scan(&user, &day, &n)
			c.add(string(user), day, n)
			return err
		}, args...)
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// giveBack takes a notice off the day that holds it.
func (s *Store) giveBack(ctx context.Context, tx querier, h *heldNotice) error {
	if !h.counted.Valid {
		return nil
	}
	day := h.counted.V.Format(time.DateOnly)
	h.counted = sql.Null[time.Time]{}
	_, err := s.exec(ctx, tx, stmtCountBack, []byte(h.UserID), string(h.Channel), day)
	return err
}
