package store_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// sending plants n users with one expired coupon each, closes their windows and gives the notices.
func sending(t testing.TB, d testenv.Database, s *store.Store, n int, decide func(time.Time, *coupon.Closed) coupon.Decided) []coupon.Notice {
	t.Helper()
	first := int(d.Int(t, `SELECT COALESCE(MAX(id), 0) FROM coupon`)) + 1
	plant(t, d, first, n, coupon.Expired, past, "NULL")
	collect(t, s, atOnce(), told(first, n, n))
	plan := closePlan(atOnce())
	plan.Limit, plan.Decide = 2*n, decide
	c := closeWindows(t, s, plan)
	require.Equal(t, n, c.Windows)
	return c.Pending
}

// chain decides for one channel with a fallback chain.
func chain(ch coupon.Channel, next ...coupon.Channel) func(time.Time, *coupon.Closed) coupon.Decided {
	return func(now time.Time, _ *coupon.Closed) coupon.Decided {
		return coupon.Decided{Notices: []coupon.PlannedNotice{{
			Channel: ch, State: coupon.NoticePending, SendAt: now, NotAfter: now.Add(time.Hour), Next: next,
		}}}
	}
}

func results(ns []coupon.Notice, state coupon.NoticeState) []coupon.NoticeResult {
	rs := make([]coupon.NoticeResult, len(ns))
	for i, n := range ns {
		rs[i] = coupon.NoticeResult{WindowID: n.WindowID, Attempt: n.Attempt, State: state}
	}
	return rs
}

func settle(t testing.TB, s *store.Store, ch coupon.Channel, rs []coupon.NoticeResult) (settled, fallbacks int) {
	t.Helper()
	settled, fallbacks, err := s.SettleNotices(t.Context(), ch, rs)
	require.NoError(t, err)
	return settled, fallbacks
}

func claimOf(t testing.TB, s *store.Store, ch coupon.Channel) ([]coupon.Notice, int) {
	t.Helper()
	ns, unknown, _, err := s.ClaimNotices(t.Context(), ch, time.Minute, 100)
	require.NoError(t, err)
	require.Zero(t, unknown[coupon.NoticeExpiring], "all that is sent here has ended")
	return ns, unknown[coupon.NoticeExpired]
}

func leasesEnd(t testing.TB, d testenv.Database) {
	t.Helper()
	d.Exec(t, `UPDATE notice SET try_at = UTC_TIMESTAMP(3) WHERE state IN ('pending','sending')`)
}

func states(t testing.TB, d testenv.Database) map[string]int {
	t.Helper()
	rows, err := d.SQL.QueryContext(t.Context(), `SELECT CONCAT(channel, ' ', state, IF(reason = '', '', CONCAT(' ', reason))), COUNT(*) FROM notice GROUP BY 1`)
	require.NoError(t, err)
	defer rows.Close()
	out := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		require.NoError(t, rows.Scan(&name, &n))
		out[name] = n
	}
	require.NoError(t, rows.Err())
	return out
}

func TestDecidedNoticesAreRecorded(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := dbNow(t, d)
	decide := func(at time.Time, c *coupon.Closed) coupon.Decided {
		return coupon.Decided{
			Notices: []coupon.PlannedNotice{
				{Channel: coupon.ChannelSMS, State: coupon.NoticePending, SendAt: now.Add(time.Hour), NotAfter: now.Add(2 * time.Hour), Next: []coupon.Channel{"push", "email"}},
				{Channel: coupon.ChannelInbox, State: coupon.NoticePending, SendAt: at},
				{Channel: coupon.ChannelInbox, State: coupon.NoticePending, SendAt: at}, // twice is once
				{Channel: coupon.ChannelEmail, State: coupon.NoticeSuppressed, Reason: coupon.ReasonQuiet, NotAfter: coupon.Never},
			},
			AtRisk: &coupon.AtRisk{UserID: c.UserID, Day: "2026-11-30", EndsAt: now, Coupons: c.Items, Offer: "grant", At: at},
		}
	}
	ns := sending(t, d, s, 2, decide)
	require.Len(t, ns, 2)
	require.Equal(t, coupon.ChannelInbox, ns[0].Channel)
	require.Equal(t, 1, ns[0].Attempt)
	require.True(t, coupon.IsNever(ns[0].NotAfter))
	require.Equal(t, map[string]int{"sms pending": 2, "inbox pending": 2, "email suppressed quiet": 2}, states(t, d))
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM notice WHERE channel = 'sms' AND try_at = ? AND not_after = ? AND attempts = 0 AND next_channels = 'push,email'`,
		now.Add(time.Hour), now.Add(2*time.Hour)))
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.at_risk'`))
	none, _ := claimOf(t, s, coupon.ChannelSMS)
	require.Empty(t, none, "its hour has not come")
	leasesEnd(t, d)
	sms, _ := claimOf(t, s, coupon.ChannelSMS)
	require.Len(t, sms, 2)
	require.Equal(t, coupon.Notice{
		WindowID: sms[0].WindowID, Channel: coupon.ChannelSMS, UserID: sms[0].UserID, Kind: coupon.NoticeExpired, Items: 1, Attempt: 1,
		NotAfter: now.Add(2 * time.Hour), Next: "push,email",
	}, sms[0])
}

func TestPrepareIsTheLastLook(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ns := sending(t, d, s, 7, chain(coupon.ChannelSMS))
	user := func(i int) string { return ns[i].UserID }
	d.Exec(t, `UPDATE coupon c JOIN notice_item i ON i.coupon_id = c.id SET c.status = 1, c.version = 2 WHERE i.window_id = ?`, ns[1].WindowID)
	d.Exec(t, `INSERT INTO user_profile (user_id, locale, zone, addresses, address_key, deleted_at, seen_at) VALUES (?, '', '', '', '', UTC_TIMESTAMP(3), UTC_TIMESTAMP(3))`, []byte(user(2)))
	d.Exec(t, `INSERT INTO user_optout VALUES (?, 'sms', '*', 1, 'operator', UTC_TIMESTAMP(3)), (?, 'sms', '*', 0, 'operator', UTC_TIMESTAMP(3))`, []byte(user(3)), []byte(user(0)))
	settle(t, s, coupon.ChannelSMS, results(ns[4:5], coupon.NoticeSent))
	d.Exec(t, `UPDATE notice SET attempts = 2 WHERE window_id = ?`, ns[5].WindowID)
	d.Exec(t, `UPDATE notice SET try_at = UTC_TIMESTAMP(3) WHERE window_id = ?`, ns[6].WindowID)

	got := prepare(t, s, coupon.ChannelSMS, ns, coupon.Cap{}, true)
	require.Len(t, got, 4, "of three somebody else has the say, or they are done")
	why := map[uint64]string{}
	for _, p := range got {
		why[p.WindowID] = p.Suppressed
		require.Equal(t, p.UserID, p.Profile.UserID)
	}
	require.Equal(t, map[uint64]string{
		ns[0].WindowID: "", ns[1].WindowID: coupon.ReasonEmpty, ns[2].WindowID: coupon.ReasonErased, ns[3].WindowID: coupon.ReasonOptOut,
	}, why)
	require.Equal(t, 1, got[0].Items)
	require.Len(t, got[0].Members, 1)
	require.Equal(t, map[string]int{
		"sms sending": 1, "sms suppressed empty": 1, "sms suppressed erased": 1, "sms suppressed opt_out": 1, "sms sent": 1, "sms pending": 2,
	}, states(t, d))
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM notice_item WHERE dropped = 'changed'`))
	require.Empty(t, prepare(t, s, coupon.ChannelSMS, ns, coupon.Cap{}, true), "once is once")
}

// What a notice has told stays in the books, though another channel's does not tell of it any more.
func TestWhatWasToldStaysAMember(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 2, coupon.Expired, past, "NULL")
	collect(t, s, atOnce(), told(1, 2, 1))
	plan := closePlan(atOnce())
	plan.Decide = toldBy(coupon.ChannelInbox, coupon.ChannelPush)
	c := closeWindows(t, s, plan)
	require.Len(t, c.Pending, 2)
	_, err := deliver(t.Context(), s, c.Pending[:1])
	require.NoError(t, err)
	d.Exec(t, `UPDATE coupon SET status = 1, version = 2 WHERE id = 1`)
	p := prepare(t, s, coupon.ChannelPush, c.Pending[1:], coupon.Cap{}, false)
	require.Equal(t, 1, p[0].Items)
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM notice_item WHERE dropped = ''`))
	require.EqualValues(t, 1, d.Int(t, `SELECT items FROM notice WHERE channel = 'push'`))
}

func TestAnUnknownSMSIsNeverSentAgain(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s, other := d.Store(t), d.Store(t)
	ns := sending(t, d, s, 3, chain(coupon.ChannelSMS, coupon.ChannelEmail))
	require.Len(t, prepare(t, s, coupon.ChannelSMS, ns[:2], coupon.Cap{}, true), 2)
	again, unknown := claimOf(t, other, coupon.ChannelSMS)
	require.Empty(t, again, "its pod may be at it")
	require.Zero(t, unknown)
	leasesEnd(t, d)
	again, unknown = claimOf(t, other, coupon.ChannelSMS)
	require.Len(t, again, 1, "the one that nobody had begun to send")
	require.Equal(t, ns[2].WindowID, again[0].WindowID)
	require.Equal(t, 2, unknown)
	require.Equal(t, map[string]int{"sms pending": 1, "sms unknown": 2}, states(t, d), "no fallback: they may have arrived")
	settled, _ := settle(t, s, coupon.ChannelSMS, results(ns, coupon.NoticeSent))
	require.Zero(t, settled, "a pod that was too slow records nothing")

	// The provider knows.
	known, err := noticeReceipt(t, s, ns[0].WindowID, coupon.ChannelSMS, true, "", time.Now())
	require.NoError(t, err)
	require.True(t, known)
	known, err = noticeReceipt(t, s, ns[1].WindowID, coupon.ChannelSMS, false, "unreachable", time.Now())
	require.NoError(t, err)
	require.True(t, known)
	require.Equal(t, map[string]int{"sms pending": 1, "sms delivered": 1, "sms failed unreachable": 1, "email pending": 1}, states(t, d))
}

// A notice that is tried again keeps its id; a slow pod and the one that took over settle one after the other.
func TestRetryKeepsTheNotice(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s, other := d.Store(t), d.Store(t)
	now := dbNow(t, d)
	ns := sending(t, d, s, 1, chain(coupon.ChannelEmail))
	rs := results(ns, coupon.NoticePending)
	rs[0].TryAt, rs[0].Reason = now.Add(time.Hour), "451"
	settled, fallbacks := settle(t, s, coupon.ChannelEmail, rs)
	require.Equal(t, 1, settled)
	require.Zero(t, fallbacks)
	none, _ := claimOf(t, other, coupon.ChannelEmail)
	require.Empty(t, none)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM notice WHERE try_at = ? AND reason = '451' AND state = 'pending' AND settled_at IS NULL`, now.Add(time.Hour)))
	leasesEnd(t, d)
	second, _ := claimOf(t, other, coupon.ChannelEmail)
	require.Equal(t, 2, second[0].Attempt)
	require.Equal(t, ns[0].ID(), second[0].ID())
	settled, _ = settle(t, s, coupon.ChannelEmail, results(ns, coupon.NoticeFailed))
	require.Zero(t, settled, "of the first try")
	rs = results(second, coupon.NoticeSent)
	rs[0].Ref = "q-1"
	settled, _ = settle(t, other, coupon.ChannelEmail, rs)
	require.Equal(t, 1, settled)
	settled, _ = settle(t, other, coupon.ChannelEmail, rs)
	require.Zero(t, settled, "once")
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM notice WHERE state = 'sent' AND ref = 'q-1' AND reason = '' AND attempts = 2`))
	_, _, err := s.SettleNotices(t.Context(), coupon.ChannelEmail, results(second, coupon.NoticeDelivered))
	require.Error(t, err, "a try cannot know")
}

func TestFallbackOnce(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ns := sending(t, d, s, 1, func(now time.Time, c *coupon.Closed) coupon.Decided {
		out := chain(coupon.ChannelPush, coupon.ChannelSMS, coupon.ChannelEmail, coupon.ChannelInbox)(now, c)
		more := chain(coupon.ChannelLog, coupon.ChannelEmail)(now, c)
		out.Notices = append(out.Notices, more.Notices...)
		out.Notices = append(out.Notices, coupon.PlannedNotice{Channel: coupon.ChannelSMS, State: coupon.NoticeSuppressed, Reason: coupon.ReasonInactive})
		return out
	})
	require.Len(t, ns, 2)
	rs := results(ns[:1], coupon.NoticeFailed)
	rs[0].Reason = "no such device"
	settled, fallbacks := settle(t, s, coupon.ChannelPush, append(rs, rs...))
	require.Equal(t, 1, settled)
	require.Equal(t, 1, fallbacks)
	settled, fallbacks = settle(t, s, coupon.ChannelPush, rs)
	require.Zero(t, settled+fallbacks)
	require.Equal(t, map[string]int{"push failed no such device": 1, "log pending": 1, "sms suppressed inactive": 1, "email pending": 1}, states(t, d),
		"what is there and suppressed is passed over")
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM notice e JOIN notice p USING (window_id) WHERE e.channel = 'email' AND p.channel = 'push'
		AND e.next_channels = 'inbox' AND e.attempts = 0 AND e.not_after = p.not_after AND e.user_id = p.user_id AND e.items = 1`))
	_, fallbacks = settle(t, s, coupon.ChannelLog, results(ns[1:], coupon.NoticeFailed))
	require.Zero(t, fallbacks, "e-mail tells already")
	email, _ := claimOf(t, s, coupon.ChannelEmail)
	require.Len(t, email, 1)
	require.Equal(t, 1, email[0].Attempt)

	// E-mail fails by receipts, at the same time: the inbox tells, once.
	settle(t, s, coupon.ChannelEmail, results(email, coupon.NoticeSent))
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = noticeReceipt(t, s, email[0].WindowID, coupon.ChannelEmail, false, "bounced", time.Now())
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	box, _ := claimOf(t, s, coupon.ChannelInbox)
	require.Len(t, box, 1)
	require.Empty(t, box[0].Next)
	require.EqualValues(t, 5, d.Int(t, `SELECT COUNT(*) FROM notice`))
}

func TestReceipts(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ns := sending(t, d, s, 3, chain(coupon.ChannelSMS, coupon.ChannelEmail))
	receipt := func(window uint64, delivered bool) bool {
		known, err := noticeReceipt(t, s, window, coupon.ChannelSMS, delivered, "x", time.Now().Add(time.Hour))
		require.NoError(t, err)
		return known
	}
	require.False(t, receipt(1<<40, true))
	d.Exec(t, `UPDATE notice SET attempts = 0 WHERE window_id = ?`, ns[2].WindowID)
	require.False(t, receipt(ns[2].WindowID, false), "never handed out")

	// Before the try is settled.
	prepare(t, s, coupon.ChannelSMS, ns[:1], coupon.Cap{}, true)
	require.True(t, receipt(ns[0].WindowID, true))
	settled, _ := settle(t, s, coupon.ChannelSMS, results(ns[:1], coupon.NoticeSent))
	require.Zero(t, settled)
	require.True(t, receipt(ns[0].WindowID, false), "out of order: it has arrived")
	require.True(t, receipt(ns[0].WindowID, true))
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM notice WHERE state = 'delivered' AND settled_at <= UTC_TIMESTAMP(3) AND try_at > '9999-01-01'`))

	settle(t, s, coupon.ChannelSMS, results(ns[1:2], coupon.NoticeSent))
	require.True(t, receipt(ns[1].WindowID, false))
	require.True(t, receipt(ns[1].WindowID, false))
	require.True(t, receipt(ns[1].WindowID, true), "it did arrive")
	require.Equal(t, map[string]int{"sms delivered": 2, "sms pending": 1, "email pending": 1}, states(t, d))
}

// A claim has no more members than one transaction can look at, but one notice at least.
func TestClaimIsBoundedByMembers(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 4, coupon.Expired, past, "NULL")
	collect(t, s, atOnce(), told(1, 4, 4))
	plan := closePlan(atOnce())
	plan.Decide, plan.Lease = toldBy(coupon.ChannelSMS), 0
	require.Equal(t, 4, closeWindows(t, s, plan).Windows)
	d.Exec(t, `UPDATE notice SET items = IF(window_id = 1, 30000, 9000), try_at = UTC_TIMESTAMP(3) - INTERVAL 10 - window_id SECOND`)
	for _, want := range []struct {
		windows []uint64
		more    bool
	}{{[]uint64{1}, true}, {[]uint64{2, 3}, true}, {[]uint64{4}, false}, {nil, false}} {
		ns, _, more, err := s.ClaimNotices(t.Context(), coupon.ChannelSMS, time.Minute, 100)
		require.NoError(t, err)
		var got []uint64
		for _, n := range ns {
			require.Equal(t, 1, n.Attempt)
			got = append(got, n.WindowID)
		}
		require.Equal(t, want.windows, got)
		require.Equal(t, want.more, more)
	}
}

func noticeReceipt(t *testing.T, s *store.Store, window uint64, channel coupon.Channel, delivered bool, reason string, at time.Time) (bool, error) {
	t.Helper()
	known, err := s.NoticeReceipts(t.Context(), []coupon.Receipt{{WindowID: window, Channel: channel, Delivered: delivered, Reason: reason, At: at}})
	if err != nil {
		return false, err
	}
	return known[0], nil
}

// The row of a provider that is down for weeks keeps no other from being claimed.
func TestTriesBeyondWhatTheColumnHolds(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	sending(t, d, s, 2, chain(coupon.ChannelPush))
	d.Exec(t, `UPDATE notice SET attempts = 65534 WHERE window_id = 1`)
	for range 3 {
		leasesEnd(t, d)
		ns, _ := claimOf(t, s, coupon.ChannelPush)
		require.Len(t, ns, 2)
		ps, err := s.PrepareNotices(t.Context(), coupon.ChannelPush, ns, coupon.Cap{}, false, nil)
		require.NoError(t, err)
		require.Len(t, ps, 2)
		settled, _ := settle(t, s, coupon.ChannelPush, results(ns, coupon.NoticePending))
		require.Equal(t, 2, settled)
	}
}

// Of what went to no provider no provider can tell: an inbox row that were sent again would meet itself, and hold up its batch.
func TestReceiptsAreOfProviders(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ns := sending(t, d, s, 1, toldBy(coupon.Channels()...))
	require.Len(t, ns, 6)
	rs := []coupon.Receipt{{WindowID: math.MaxUint64, Channel: coupon.ChannelSMS}}
	want := []bool{false}
	for _, n := range ns {
		rs = append(rs, coupon.Receipt{WindowID: n.WindowID, Channel: n.Channel, Reason: "refused"})
		want = append(want, n.Channel == coupon.ChannelEmail || n.Channel == coupon.ChannelSMS || n.Channel == coupon.ChannelPush)
	}
	known, err := s.NoticeReceipts(t.Context(), rs)
	require.NoError(t, err)
	require.Equal(t, want, known)
	require.Equal(t, map[string]int{
		"inbox pending": 1, "popup pending": 1, "log pending": 1, "email failed refused": 1, "sms failed refused": 1, "push failed refused": 1,
	}, states(t, d))
}
