package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// plantNotices makes n closed windows of ten users, with an item each; notices of two channels in every state, and of
// windows by turns an expired and an expiring one.
func plantNotices(t testing.TB, d testenv.Database, n int) {
	t.Helper()
	var windows, items, notices []string
	states := coupon.NoticeStates()
	for i := 1; i <= n; i++ {
		kind, offset := "expired", ""
		if i%2 == 0 {
			kind, offset = "expiring", "-1d"
		}
		user := fmt.Sprintf("u%d", i%10)
		windows = append(windows, fmt.Sprintf("(%d,'%s','%s','%s','%s',NULL,1,'2026-11-01','2026-11-01','9999-12-31','2026-11-02','quiet')", i, user, kind, offset, offset))
		items = append(items, fmt.Sprintf("(%d,'%d:1:x',%d,1,'2026-11-03',500,'CNY','','2026-11-01')", i, i, i))
		for k, channel := range []string{"inbox", "sms"} {
			state := states[(i+k)%len(states)]
			notices = append(notices, fmt.Sprintf("(%d,'%s','%s','%s',1,'%s','r%d',2,'9999-12-31',TIMESTAMPADD(SECOND,%d,'2026-11-02'),'2026-11-02')",
				i, channel, user, kind, state, k, i))
		}
	}
	insert := func(head string, rows []string) {
		for part := range slices.Chunk(rows, 500) {
			d.Exec(t, head+strings.Join(part, ","))
		}
	}
	insert(`INSERT INTO notice_window (id,user_id,kind,remind_at,slot,open_mark,items,opened_at,last_item_at,due_at,closed_at,closed_by) VALUES `, windows)
	insert(`INSERT INTO notice_item (window_id,event_id,coupon_id,version,expires_at,value,currency,dropped,added_at) VALUES `, items)
	insert(`INSERT INTO notice (window_id,channel,user_id,kind,items,state,reason,attempts,try_at,created_at,settled_at) VALUES `, notices)
}

// noticePages reads a list to its end.
func noticePages(t testing.TB, s *store.Store, q coupon.NoticeQuery) (all []coupon.NoticeRow) {
	t.Helper()
	for pages := 0; ; pages++ {
		require.Less(t, pages, 1000)
		p, err := s.NoticeList(t.Context(), q)
		require.NoError(t, err)
		require.LessOrEqual(t, len(p.Notices), q.Limit)
		all = append(all, p.Notices...)
		if q.After = p.Next; q.After == "" {
			return all
		}
	}
}

func TestNoticesAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	const n = 140
	plantNotices(t, d, n)
	all := noticePages(t, s, coupon.NoticeQuery{Limit: coupon.MaxPage})
	require.Len(t, all, 2*n)
	require.True(t, slices.IsSortedFunc(all, func(a, b coupon.NoticeRow) int {
		if a.WindowID != b.WindowID {
			return int(b.WindowID) - int(a.WindowID)
		}
		return strings.Compare(string(b.Channel), string(a.Channel))
	}))
	for name, q := range map[string]coupon.NoticeQuery{
		"all":              {},
		"a user":           {User: "u3"},
		"a user's kind":    {User: "u4", Kind: coupon.NoticeExpiring},
		"of none":          {User: "u4", Kind: coupon.NoticeExpired},
		"a state":          {States: []coupon.NoticeState{coupon.NoticeFailed}},
		"two states":       {States: []coupon.NoticeState{coupon.NoticeUnknown, coupon.NoticeFailed, coupon.NoticeUnknown}},
		"a user's state":   {User: "u4", States: []coupon.NoticeState{coupon.NoticePending}},
		"a channel":        {Channel: coupon.ChannelSMS},
		"a channel's kind": {Channel: coupon.ChannelSMS, Kind: coupon.NoticeExpired, States: []coupon.NoticeState{coupon.NoticeSent}},
		"a reason":         {Reason: "r1"},
		"since":            {Since: time.Date(2026, 11, 2, 0, 1, 0, 0, time.UTC)},
	} {
		want := slices.DeleteFunc(slices.Clone(all), func(r coupon.NoticeRow) bool { return !q.Admits(&r) })
		for _, limit := range []int{1, 7, 500} {
			q.Limit = limit
			require.Equal(t, want, append([]coupon.NoticeRow{}, noticePages(t, s, q)...), "%s by %d", name, limit)
		}
	}
	first, err := s.NoticeList(t.Context(), coupon.NoticeQuery{User: "u3", Limit: 1})
	require.NoError(t, err)
	for _, q := range []coupon.NoticeQuery{{User: "u4", Limit: 1, After: first.Next}, {User: "u3", Limit: 1, After: "AAAA"}} {
		_, err = s.NoticeList(t.Context(), q)
		require.ErrorIs(t, err, coupon.ErrPosition)
	}
	_, err = s.NoticeList(t.Context(), coupon.NoticeQuery{Limit: 0, States: []coupon.NoticeState{"lost"}, Kind: "x", Channel: "fax", User: strings.Repeat("u", 129)})
	for _, want := range []string{"limit: ", `state: must be one of`, `got "lost"`, `got "x"`, `got "fax"`, "user_id: "} {
		require.ErrorContains(t, err, want)
	}
}

func TestAPageOfNoticesCostsAPage(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantNotices(t, d, 7000)
	d.Exec(t, `ANALYZE TABLE notice, notice_window, notice_item`)
	const page = 100
	for _, q := range []coupon.NoticeQuery{
		{}, {User: "u4", Kind: coupon.NoticeExpiring}, {States: []coupon.NoticeState{coupon.NoticeFailed}}, {Channel: coupon.ChannelSMS, Reason: "r1"},
	} {
		q.Limit = page
		for range 5 {
			cost := costOf(t, s, func() {
				p, err := s.NoticeList(t.Context(), q)
				require.NoError(t, err)
				require.NotEmpty(t, p.Next)
				q.After = p.Next
			})
			require.LessOrEqual(t, cost, page+20, "%v", q)
		}
	}
	cost := costOf(t, s, func() {
		_, err := s.NoticeShow(t.Context(), 4242)
		require.NoError(t, err)
		told, err := s.NoticesOfCoupon(t.Context(), 4242)
		require.NoError(t, err)
		require.Len(t, told, 1)
		require.Len(t, told[0].Notices, 2)
	})
	require.LessOrEqual(t, cost, 20)
}

func TestANoticeShownAndSentAgain(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantNotices(t, d, 14)
	w, err := s.NoticeShow(t.Context(), 4)
	require.NoError(t, err)
	require.Equal(t, coupon.NoticeExpiring, w.Kind)
	require.Equal(t, "-1d", w.Offset)
	require.Equal(t, "u4", w.UserID)
	require.Len(t, w.Members, 1)
	require.EqualValues(t, 4, w.Members[0].CouponID)
	require.Len(t, w.Notices, 2)
	_, err = s.NoticeShow(t.Context(), 4711)
	require.ErrorIs(t, err, coupon.ErrNotFound)
	user, err := s.NoticeUser(t.Context(), 4, coupon.ChannelSMS)
	require.NoError(t, err)
	require.Equal(t, "u4", user)
	_, err = s.NoticeUser(t.Context(), 4, coupon.ChannelEmail)
	require.ErrorIs(t, err, coupon.ErrNotFound)

	state := func(window int) string {
		t.Helper()
		w, err := s.NoticeShow(t.Context(), uint64(window))
		require.NoError(t, err)
		for _, n := range w.Notices {
			if n.Channel == coupon.ChannelInbox {
				return string(n.State) + " " + n.Reason
			}
		}
		return ""
	}
	for i := 1; i <= 7; i++ {
		before := state(i)
		name, _, _ := strings.Cut(before, " ")
		err := s.ResendNotice(t.Context(), uint64(i), coupon.ChannelInbox, "zoe", "the provider was down")
		if coupon.NoticeState(name).Resendable() {
			require.NoError(t, err)
			require.Equal(t, "pending ", state(i))
			require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM notice WHERE window_id = ? AND channel = 'inbox' AND attempts = 2
				AND try_at <= UTC_TIMESTAMP(3) AND settled_at IS NULL`, i))
		} else {
			require.ErrorIs(t, err, coupon.ErrConflict, name)
			require.ErrorContains(t, err, "-inbox is "+name)
			require.Equal(t, before, state(i))
		}
	}
	deeds, err := s.Deeds(t.Context(), "notice.resend", 0, 10)
	require.NoError(t, err)
	require.Len(t, deeds, 3)
	require.Equal(t, "zoe", deeds[0].Actor)
	require.Regexp(t, `^\d-inbox$`, deeds[0].Subject)
	require.ErrorIs(t, s.ResendNotice(t.Context(), 4711, coupon.ChannelInbox, "zoe", "r"), coupon.ErrNotFound)

	d.Exec(t, `UPDATE notice SET state = 'failed', not_after = UTC_TIMESTAMP(3) WHERE window_id = 10`)
	err = s.ResendNotice(t.Context(), 10, coupon.ChannelSMS, "zoe", "r")
	require.ErrorIs(t, err, coupon.ErrConflict)
	require.ErrorContains(t, err, "of no use since")
	d.Exec(t, `UPDATE notice SET not_after = UTC_TIMESTAMP(3) + INTERVAL 1 HOUR WHERE window_id = 10`)
	require.ErrorContains(t, s.ResendNotice(t.Context(), 10, coupon.ChannelSMS, "", "r"), "actor")
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM notice WHERE window_id = 10 AND state = 'failed'`), "without an actor nothing is done")
}
