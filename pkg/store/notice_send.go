package store

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// A notice's life. pending → (sending) → sent, failed, unknown or suppressed, and back to pending to be tried again. try_at is when
// any pod may take it; who takes it pushes it ahead by a lease and counts the attempt. Whatever is recorded afterwards names
// that attempt: a pod that was too slow records nothing.

//nolint:gochecknoglobals // statements are constants
var (
	stmtNoticeClaim = define("notice.claim", `SELECT window_id, user_id, kind, slot, items, attempts, not_after, next_channels, state
		FROM notice FORCE INDEX (notice_try)
		WHERE channel = ? AND try_at <= UTC_TIMESTAMP(3) ORDER BY try_at LIMIT ? FOR UPDATE SKIP LOCKED`)
	stmtNoticeLease = define("notice.lease", `UPDATE notice SET try_at = UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND, attempts = LEAST(attempts + 1, 65535)
		WHERE channel = ? AND window_id IN (?)`)
	stmtNoticeLost = define("notice.lost", `UPDATE notice SET state = 'unknown', try_at = '9999-12-31', settled_at = UTC_TIMESTAMP(3)
		WHERE channel = ? AND window_id IN (?) AND state = 'sending'`)
	stmtNoticeHeld = define("notice.held", `SELECT window_id, user_id, kind, slot, items, state, attempts, not_after, next_channels, counted_on,
		try_at > UTC_TIMESTAMP(3), UTC_TIMESTAMP(3) FROM notice FORCE INDEX (PRIMARY) WHERE channel = ? AND window_id IN (?) ORDER BY window_id FOR UPDATE`)
	stmtNoticeBegin = define("notice.begin", `UPDATE notice SET state = ?, items = ?, counted_on = ? WHERE channel = ? AND window_id IN (?)`)
	stmtNoticeDrop  = define("notice.drop", `UPDATE notice SET state = 'suppressed', reason = ?, items = IF(?, 0, items), counted_on = NULL,
		try_at = '9999-12-31', settled_at = UTC_TIMESTAMP(3) WHERE channel = ? AND window_id IN (?)`)
	stmtNoticeOthers = define("notice.others", `SELECT DISTINCT window_id FROM notice WHERE window_id IN (?)
		AND state IN ('sending','sent','delivered','unknown')`)
)

// maxAttempts is what the column holds, and the lease below counts to: a provider that is down for weeks must not have the row refused, and the channel with it.
const maxAttempts = 65535

// ClaimNotices takes over notices of the channel whose time has come and that nobody has under a lease, at most limit, and as many
// as have closeItems members together, since one transaction prepares them; one at least. more says that this left others that
// are due. Those that somebody had begun to send and that must not be sent twice are recorded as unknown; no other channel is tried
// for them, since they may have arrived. unknown has their numbers by kind.
func (s *Store) ClaimNotices(ctx context.Context, channel coupon.Channel, lease time.Duration, limit int) (ns []coupon.Notice,
	unknown map[coupon.NoticeKind]int, more bool, err error,
) {
	err = s.tx(ctx, "claim notices", func(ctx context.Context, tx *txn) error {
		ns, unknown, more = nil, make(map[coupon.NoticeKind]int), false
		var ids, lost []any
		members := 0
		err := s.query(ctx, tx, stmtNoticeClaim, func(r *sql.Rows) error {
			n := coupon.Notice{Channel: channel}
			var user, slot []byte
			var state coupon.NoticeState
			if err := r.Scan(&n.WindowID, &user, &n.Kind, &slot, &n.Items, &n.Attempt, &n.NotAfter, &n.Next, &state); err != nil {
				return err
			}
			if state == coupon.NoticeSending { // whatever the channel is now, it must not have been sent twice then
				lost = append(lost, n.WindowID)
				unknown[n.Kind]++
				return nil
			}
			if more = more || len(ns) > 0 && members+n.Items > closeItems; more {
				return nil
			}
			members += n.Items
			n.UserID, n.Slot = string(user), string(slot)
			n.Attempt = min(n.Attempt+1, maxAttempts)
			ns = append(ns, n)
			ids = append(ids, n.WindowID)
			return nil
		}, string(channel), limit)
		if err != nil {
			return err
		}
		if err := s.updateExactly(ctx, tx, stmtNoticeLost, []any{string(channel)}, lost); err != nil {
			return err
		}
		return s.updateExactly(ctx, tx, stmtNoticeLease, []any{lease.Microseconds(), string(channel)}, ids)
	})
	if err != nil {
		return nil, nil, false, err
	}
	return ns, unknown, more, nil
}

// heldNotice is a notice whose row this transaction has locked.
type heldNotice struct {
	coupon.Notice
	state   coupon.NoticeState
	counted sql.Null[time.Time] // local day that holds it
	leased  bool                // its lease has not run out
	now     time.Time           // the database's clock
}

// held locks the rows of a channel's notices, in order.
func (s *Store) held(ctx context.Context, tx querier, channel coupon.Channel, windows []uint64) (map[uint64]*heldNotice, error) {
	out := make(map[uint64]*heldNotice, len(windows))
	windows = slices.Clone(windows)
	slices.Sort(windows)
	for part := range slices.Chunk(windows, inList) {
		args := []any{string(channel)}
		for _, id := range part {
			args = append(args, id)
		}
		err := s.query(ctx, tx, stmtNoticeHeld.in(len(part)), func(r *sql.Rows) error {
			h := &heldNotice{Notice: coupon.Notice{Channel: channel}}
			var user, slot []byte
			err := r.Scan(&h.WindowID, &user, &h.Kind, &slot, &h.Items, &h.state, &h.Attempt, &h.NotAfter, &h.Next, &h.counted, &h.leased, &h.now)
			h.UserID, h.Slot = string(user), string(slot)
			out[h.WindowID] = h
			return err
		}, args...)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func windowsOf(ns []coupon.Notice) []uint64 {
	ids := make([]uint64, len(ns))
	for i := range ns {
		ids[i] = ns[i].WindowID
	}
	return ids
}

// PrepareNotices is the last step before a channel sends: of the notices that are still this pod's it gives what stands now, in
// their order. Those without a member that stands, of erased users, opted out of since, or beyond the cap are recorded as
// suppressed and come back so, and the next channel of their chain is started if coupon.HandsOn says so. Those that are not this
// pod's any more do not come back. The rest are counted on the user's local day (day gives it), and atMostOnce are recorded as
// being sent: whoever finds them so afterwards never sends them.
func (s *Store) PrepareNotices(ctx context.Context, channel coupon.Channel, ns []coupon.Notice, caps coupon.Cap, atMostOnce bool,
	day func(now time.Time, p *coupon.Profile) time.Time,
) ([]coupon.Prepared, error) {
	if len(ns) == 0 {
		return nil, nil
	}
	var out []coupon.Prepared
	err := s.tx(ctx, "prepare notices", func(ctx context.Context, tx *txn) error {
		p := preparation{s: s, tx: tx, channel: channel, caps: caps, day: day}
		var err error
		out, err = p.run(ctx, ns, atMostOnce)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// preparation is one transaction that prepares.
type preparation struct {
	s       *Store
	tx      *txn
	channel coupon.Channel
	caps    coupon.Cap
	day     func(time.Time, *coupon.Profile) time.Time
	held    map[uint64]*heldNotice
}

func (p *preparation) run(ctx context.Context, ns []coupon.Notice, atMostOnce bool) ([]coupon.Prepared, error) {
	var err error
	if p.held, err = p.s.held(ctx, p.tx, p.channel, windowsOf(ns)); err != nil {
		return nil, err
	}
	var out []coupon.Prepared
	var windows []any
	var users []string
	for i := range ns {
		h := p.held[ns[i].WindowID]
		if h == nil || h.state != coupon.NoticePending || h.Attempt != ns[i].Attempt || !h.leased {
			continue
		}
		out = append(out, coupon.Prepared{Notice: h.Notice, Now: h.now})
		windows = append(windows, h.WindowID)
		users = append(users, h.UserID)
	}
	if len(out) == 0 {
		return nil, nil
	}
	members, err := p.s.members(ctx, p.tx, windows)
	if err != nil {
		return nil, err
	}
	profiles, err := p.s.profilesIn(ctx, p.tx, users)
	if err != nil {
		return nil, err
	}
	var fallen []*memberRow
	for i := range out {
		o := &out[i]
		o.Profile = profiles[o.UserID]
		o.Profile.UserID = o.UserID
		fallen = append(fallen, prepare(o, members[o.WindowID])...)
	}
	if err := p.reserve(ctx, out); err != nil {
		return nil, err
	}
	if err := p.dropItems(ctx, fallen); err != nil {
		return nil, err
	}
	return out, p.begin(ctx, out, atMostOnce)
}

// prepare fills in what stands, and says why it is not to be sent. It gives the members that have fallen since the window closed.
func prepare(o *coupon.Prepared, rows []*memberRow) (fallen []*memberRow) {
	var standing []*memberRow
	for _, m := range rows {
		if m.dropped != "" {
			continue
		}
		if m.dropped = m.fallen(o.Kind); m.dropped != "" {
			fallen = append(fallen, m)
			continue
		}
		standing = append(standing, m)
	}
	o.Items, o.Notice.Items = len(standing), len(standing)
	o.Totals, o.EndsAt, o.LastEnd = sumOf(standing)
	slices.SortFunc(standing, func(a, b *memberRow) int {
		if c := a.ExpiresAt.Compare(b.ExpiresAt); c != 0 {
			return c
		}
		return int(int64(a.CouponID) - int64(b.CouponID))
	})
	for _, m := range standing[:min(len(standing), coupon.MembersShown)] {
		o.Members = append(o.Members, m.Member)
	}
	switch {
	case !o.Profile.ErasedAt.IsZero():
		o.Suppressed = coupon.ReasonErased
	case !o.Profile.Wants(o.Channel, o.Kind):
		o.Suppressed = coupon.ReasonOptOut
	case len(standing) == 0:
		o.Suppressed = coupon.ReasonEmpty
	}
	return fallen
}

// dropItems records the members that have fallen, unless a notice told of them before: the books say what users were told.
func (p *preparation) dropItems(ctx context.Context, fallen []*memberRow) error {
	if len(fallen) == 0 {
		return nil
	}
	var windows []any
	for _, m := range fallen {
		if len(windows) == 0 || windows[len(windows)-1] != any(m.window) {
			windows = append(windows, m.window)
		}
	}
	told := make(map[uint64]bool)
	for part := range slices.Chunk(windows, inList) {
		err := p.s.query(ctx, p.tx, stmtNoticeOthers.in(len(part)), func(r *sql.Rows) error {
			var id uint64
			err := r.Scan(&id)
			told[id] = true
			return err
		}, part...)
		if err != nil {
			return err
		}
	}
	drops := make(map[string][]any)
	for _, m := range fallen {
		if !told[m.window] {
			drops[m.dropped] = append(drops[m.dropped], m.event)
		}
	}
	for _, why := range []string{coupon.ReasonChanged, coupon.ReasonAbsent} {
		if err := p.s.updateExactly(ctx, p.tx, stmtItemDrop, []any{why}, drops[why]); err != nil {
			return err
		}
	}
	return nil
}

// beginning is what rows of one update have in common.
type beginning struct {
	reason  string // of those that are not sent
	items   int
	counted string // local day, or empty
}

// begin records what becomes of the rows.
func (p *preparation) begin(ctx context.Context, out []coupon.Prepared, atMostOnce bool) error {
	by := make(map[beginning][]any)
	var order []beginning
	var handOn []*heldNotice
	for i := range out {
		o := &out[i]
		h := p.held[o.WindowID]
		if o.Items > 0 && coupon.HandsOn(o.Suppressed) {
			handOn = append(handOn, h)
		}
		b := beginning{reason: o.Suppressed, items: o.Items}
		if b.reason == "" && h.counted.Valid {
			b.counted = h.counted.V.Format(time.DateOnly)
		}
		if b.reason != "" {
			b.items = 0
		}
		if by[b] == nil {
			order = append(order, b)
		}
		by[b] = append(by[b], o.WindowID)
	}
	state := coupon.NoticePending
	if atMostOnce {
		state = coupon.NoticeSending
	}
	for _, b := range order {
		if b.reason != "" {
			args := []any{b.reason, b.reason == coupon.ReasonEmpty, string(p.channel)}
			if err := p.s.updateExactly(ctx, p.tx, stmtNoticeDrop, args, by[b]); err != nil {
				return err
			}
			continue
		}
		counted := any(nil)
		if b.counted != "" {
			counted = b.counted
		}
		if err := p.s.updateExactly(ctx, p.tx, stmtNoticeBegin, []any{string(state), b.items, counted, string(p.channel)}, by[b]); err != nil {
			return err
		}
	}
	_, err := p.s.fallBack(ctx, p.tx, handOn)
	return err
}
