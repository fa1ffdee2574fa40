package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func nextOf(t testing.TB, d testenv.Database, window uint64) int64 {
	t.Helper()
	return d.Int(t, `SELECT COUNT(*) FROM notice WHERE window_id = ? AND channel = 'push' AND state = 'pending' AND reason = ''
		AND next_channels = 'email' AND attempts = 0 AND items = 1`, window)
}

// What the last look finds not permitted by the channel goes to the next of the chain, in the same transaction and once; what
// nobody is to be told does not.
func TestALastLookStartsTheRestOfTheChain(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ns := sending(t, d, s, 6, chain(coupon.ChannelSMS, coupon.ChannelPush, coupon.ChannelEmail))
	const optedOut, empty, erased, emptyAndOut, capped, sent = 0, 1, 2, 3, 4, 5
	for _, i := range []int{empty, emptyAndOut} {
		d.Exec(t, `UPDATE coupon c JOIN notice_item i ON i.coupon_id = c.id SET c.status = 1, c.version = 2 WHERE i.window_id = ?`, ns[i].WindowID)
	}
	d.Exec(t, `INSERT INTO user_profile (user_id, locale, zone, addresses, address_key, deleted_at, seen_at)
		VALUES (?, '', '', '', '', UTC_TIMESTAMP(3), UTC_TIMESTAMP(3))`, []byte(ns[erased].UserID))
	for _, i := range []int{optedOut, emptyAndOut} {
		d.Exec(t, `INSERT INTO user_optout VALUES (?, 'sms', '*', 1, 'operator', UTC_TIMESTAMP(3))`, []byte(ns[i].UserID))
	}
	d.Exec(t, `INSERT INTO notice_count (user_id, channel, day, sent) VALUES (?, 'sms', ?, 2)`, []byte(ns[capped].UserID), today(time.Time{}, nil).Format(time.DateOnly))

	for range 2 {
		prepare(t, s, coupon.ChannelSMS, ns, coupon.Cap{Day: 2}, true)
		require.Equal(t, map[string]int{
			"sms suppressed opt_out": 2, "sms suppressed empty": 1, "sms suppressed erased": 1, "sms suppressed cap": 1, "sms sending": 1,
			"push pending": 2,
		}, states(t, d))
	}
	for i, want := range map[int]int64{optedOut: 1, empty: 0, erased: 0, emptyAndOut: 0, capped: 1, sent: 0} {
		require.Equal(t, want, nextOf(t, d, ns[i].WindowID), i)
	}
	// … and so on, until one tells.
	d.Exec(t, `INSERT INTO user_optout VALUES (?, 'push', '*', 1, 'operator', UTC_TIMESTAMP(3))`, []byte(ns[optedOut].UserID))
	push, _ := claimOf(t, s, coupon.ChannelPush)
	require.Len(t, push, 2)
	prepare(t, s, coupon.ChannelPush, push, coupon.Cap{}, false)
	email, _ := claimOf(t, s, coupon.ChannelEmail)
	require.Len(t, email, 1)
	require.Equal(t, ns[optedOut].WindowID, email[0].WindowID)
	require.Empty(t, email[0].Next)
}

// The same of what the sender finds after that look.
func TestASuppressedTryStartsTheRestOfTheChain(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	whys := map[string]int64{
		coupon.ReasonInactive: 1, coupon.ReasonQuiet: 1, coupon.ReasonOptOut: 1, coupon.ReasonAddress: 1, coupon.ReasonCap: 1,
		coupon.ReasonTooLate: 0, coupon.ReasonErased: 0, coupon.ReasonEmpty: 0, coupon.ReasonChanged: 0,
	}
	ns := sending(t, d, s, len(whys), chain(coupon.ChannelSMS, coupon.ChannelPush, coupon.ChannelEmail))
	require.Len(t, prepare(t, s, coupon.ChannelSMS, ns, coupon.Cap{Day: 2}, true), len(ns))
	rs := results(ns, coupon.NoticeSuppressed)
	by := map[string]uint64{}
	for why := range whys {
		i := len(by)
		rs[i].Reason, by[why] = why, ns[i].WindowID
	}
	settled, fallbacks := settle(t, s, coupon.ChannelSMS, append(rs, rs...))
	require.Equal(t, len(ns), settled)
	require.Equal(t, 5, fallbacks)
	settled, fallbacks = settle(t, s, coupon.ChannelSMS, rs)
	require.Zero(t, settled+fallbacks)
	for why, want := range whys {
		require.Equal(t, want, nextOf(t, d, by[why]), why)
	}
	require.Zero(t, d.Int(t, `SELECT COALESCE(SUM(sent), 0) FROM notice_count WHERE channel = 'sms'`), "none went out")
}

// Two routes of a window that are refused at the same time, by two pods, and name the same channel: it tells once.
func TestChainsThatMeetTellOnce(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	pods := []*store.Store{d.Store(t), d.Store(t)}
	const n = 12
	ns := sending(t, d, pods[0], n, func(now time.Time, c *coupon.Closed) coupon.Decided {
		out := chain(coupon.ChannelSMS, coupon.ChannelEmail)(now, c)
		out.Notices = append(out.Notices, chain(coupon.ChannelPush, coupon.ChannelEmail)(now, c).Notices...)
		return out
	})
	by := map[coupon.Channel][]coupon.Notice{}
	for _, x := range ns {
		by[x.Channel] = append(by[x.Channel], x)
		d.Exec(t, `INSERT IGNORE INTO user_optout VALUES (?, ?, '*', 1, 'operator', UTC_TIMESTAMP(3))`, []byte(x.UserID), string(x.Channel))
	}
	errs := make(chan error, 2*n)
	for i, ch := range []coupon.Channel{coupon.ChannelSMS, coupon.ChannelPush} {
		go func() {
			for _, x := range by[ch] {
				ps, err := pods[i].PrepareNotices(t.Context(), ch, []coupon.Notice{x}, coupon.Cap{}, false, today)
				if err == nil && (len(ps) != 1 || ps[0].Suppressed != coupon.ReasonOptOut) {
					err = fmt.Errorf("notice %s is not refused", x.ID())
				}
				errs <- err
			}
		}()
	}
	for range 2 * n {
		require.NoError(t, <-errs)
	}
	require.Equal(t, map[string]int{"sms suppressed opt_out": n, "push suppressed opt_out": n, "email pending": n}, states(t, d))
}

// What a dead pod had begun is told by kind.
func TestUnknownByKind(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ns := sending(t, d, s, 3, chain(coupon.ChannelSMS))
	require.Len(t, prepare(t, s, coupon.ChannelSMS, ns, coupon.Cap{}, true), 3)
	d.Exec(t, `UPDATE notice SET kind = 'expiring' WHERE window_id = ?`, ns[0].WindowID)
	leasesEnd(t, d)
	again, unknown, _, err := s.ClaimNotices(t.Context(), coupon.ChannelSMS, time.Minute, 100)
	require.NoError(t, err)
	require.Empty(t, again)
	require.Equal(t, map[coupon.NoticeKind]int{coupon.NoticeExpiring: 1, coupon.NoticeExpired: 2}, unknown)
}
