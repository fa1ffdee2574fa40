package store_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

var toldAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) // long past by any clock

func profileOf(t testing.TB, s *store.Store, user string) coupon.Profile {
	t.Helper()
	ps, err := s.Profiles(t.Context(), []string{user})
	require.NoError(t, err)
	p, ok := ps[user]
	require.True(t, ok)
	p.LastSeenAt = time.Time{}
	return p
}

func fullProfile(user string, at time.Time) coupon.UserEvent {
	return coupon.UserEvent{UserID: user, At: at, Profile: &coupon.ProfileChange{
		Locale: "zh-CN", Zone: "Asia/Shanghai", Sealed: []byte{0, 1, 255}, Key: "k1",
		OptOuts: []coupon.OptOut{
			{Channel: coupon.ChannelSMS, Kind: coupon.NoticeExpired, Out: true, At: at, Source: "profile"},
			{Channel: coupon.ChannelEmail, Kind: coupon.AllKinds, At: at, Source: "profile"},
		},
	}}
}

func TestProfilesAreKept(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	require.Equal(t, coupon.Profile{UserID: "nobody"}, profileOf(t, s, "nobody"))
	require.NoError(t, s.ApplyUserEvents(t.Context(), nil))

	events := []coupon.UserEvent{
		fullProfile("u", toldAt),
		{UserID: "u", At: toldAt.Add(time.Minute), Activity: coupon.ActivityCart},
		{UserID: "u", At: toldAt.Add(-time.Minute), Activity: coupon.ActivityCart},
		{UserID: "v", At: toldAt, Activity: coupon.ActivityOrder},
		{UserID: "u", At: toldAt.Add(-time.Hour), Profile: &coupon.ProfileChange{Locale: "en"}},
	}
	want := coupon.Profile{
		UserID: "u", Locale: "zh-CN", Zone: "Asia/Shanghai", Sealed: []byte{0, 1, 255}, Key: "k1", ProfileAt: toldAt,
		CartAt: toldAt.Add(time.Minute), ActiveAt: toldAt.Add(time.Minute),
		OptOuts: []coupon.OptOut{{Channel: coupon.ChannelSMS, Kind: coupon.NoticeExpired, Out: true, At: toldAt, Source: "profile"}},
	}
	for range 2 { // a repeat changes nothing
		require.NoError(t, s.ApplyUserEvents(t.Context(), events))
		require.Equal(t, want, profileOf(t, s, "u"))
		require.Equal(t, coupon.Profile{UserID: "v", OrderedAt: toldAt, ActiveAt: toldAt}, profileOf(t, s, "v"))
		slices.Reverse(events)
	}

	// Of decisions the last holds, whoever told it.
	yes := coupon.OptOut{Channel: coupon.ChannelSMS, Kind: coupon.NoticeExpired, At: toldAt.Add(-time.Second), Source: "receipt"}
	require.NoError(t, s.OptOut(t.Context(), "u", yes))
	require.Equal(t, want, profileOf(t, s, "u"))
	yes.At = toldAt.Add(time.Second)
	require.NoError(t, s.OptOut(t.Context(), "u", yes))
	want.OptOuts = nil
	require.Equal(t, want, profileOf(t, s, "u"))
	require.ErrorContains(t, s.OptOut(t.Context(), "u", coupon.OptOut{Channel: "fax"}), "channel: must be")
	require.NoError(t, s.OptOut(t.Context(), "w", coupon.OptOut{Channel: coupon.AllChannels, Kind: coupon.AllKinds, Out: true, At: toldAt, Source: "receipt"}))
	p := profileOf(t, s, "w")
	require.False(t, p.Wants(coupon.ChannelPush, coupon.NoticeExpiring))
}

// Of profiles that hurry ahead of the database's clock the last holds, though all of them count as of now.
func TestProfilesOfTheFuture(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	ahead := time.Now().Add(time.Minute)
	profile := func(at time.Duration, zone string) coupon.UserEvent {
		return coupon.UserEvent{UserID: "u", At: ahead.Add(at), Profile: &coupon.ProfileChange{Zone: zone}}
	}
	require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{
		profile(-time.Hour, "Asia/Seoul"), profile(0, "Asia/Tokyo"), profile(time.Second, "Asia/Shanghai"), profile(time.Millisecond, "Asia/Macau"),
		{UserID: "u", At: ahead, Activity: coupon.ActivityCart},
	}))
	p := profileOf(t, s, "u")
	require.Equal(t, "Asia/Shanghai", p.Zone)
	require.Equal(t, p.ProfileAt, p.CartAt)
}

// More users than an IN list holds, each once in the answer, whoever is asked for twice.
func TestProfilesOfMany(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	var events []coupon.UserEvent
	var users []string
	for i := range 2000 {
		user := fmt.Sprintf("u%04d", i)
		users = append(users, user, user)
		events = append(events, fullProfile(user, toldAt))
	}
	require.NoError(t, s.ApplyUserEvents(t.Context(), events))
	ps, err := s.Profiles(t.Context(), users)
	require.NoError(t, err)
	require.Len(t, ps, 2000)
	for user, p := range ps {
		require.Equal(t, user, p.UserID)
		require.Equal(t, toldAt, p.ProfileAt)
		require.Len(t, p.OptOuts, 1)
	}
}

// Pods that learn of the same users at once, in different orders, know the same in the end.
func TestProfilesFromManyPods(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for pod := range errs {
		wg.Go(func() {
			for round := range 5 {
				var events []coupon.UserEvent
				for i := range 20 {
					user, at := fmt.Sprintf("u%d", (i*7+pod)%20), toldAt.Add(time.Duration(round*6+pod)*time.Minute)
					events = append(events, coupon.UserEvent{UserID: user, At: at, Activity: coupon.ActivityBrowse},
						coupon.UserEvent{UserID: user, At: at, Profile: &coupon.ProfileChange{Locale: fmt.Sprintf("p%d", pod)}})
				}
				if err := s.ApplyUserEvents(t.Context(), events); err != nil {
					errs[pod] = err
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	last := toldAt.Add(29 * time.Minute)
	for i := range 20 {
		require.Equal(t, coupon.Profile{
			UserID: fmt.Sprintf("u%d", i), Locale: "p5", ProfileAt: last, BrowseAt: last, ActiveAt: last,
		}, profileOf(t, s, fmt.Sprintf("u%d", i)))
	}
}

// plantTold gives a user two windows, one of them open, a notice, inbox rows and a count.
func plantTold(t testing.TB, d testenv.Database, user string, first int, opened string) {
	t.Helper()
	for i, mark := range []string{"NULL", "1"} {
		id := first + i
		d.Exec(t, fmt.Sprintf(`INSERT INTO notice_window (id, user_id, kind, slot, open_mark, items, opened_at, last_item_at, due_at, closed_by)
			VALUES (%d,'%s','expired','s%d',%s,1,'%s','%s','%s','')`, id, user, id, mark, opened, opened, opened))
		d.Exec(t, fmt.Sprintf(`INSERT INTO notice_item (window_id, event_id, coupon_id, version, expires_at, value, currency, dropped, added_at)
			VALUES (%d,'e%d',%d,1,'%s',100,'EUR','','%s')`, id, id, id, opened, opened))
	}
	d.Exec(t, fmt.Sprintf(`INSERT INTO notice (window_id, channel, user_id, kind, items, state, reason, attempts, try_at, created_at)
		VALUES (%d,'sms','%s','expired',1,'pending','',0,'%s','%s')`, first, user, opened, opened))
	d.Exec(t, fmt.Sprintf(`INSERT INTO inbox (user_id, window_id, kind, items, texts, created_at) VALUES ('%s',%d,'expired',1,'{"en":{"title":"T"}}','%s')`, user, first, opened))
	d.Exec(t, `INSERT INTO notice_count (user_id, channel, day, sent) VALUES (?,'sms','2026-03-01',2)`, user)
}

func notices(t testing.TB, d testenv.Database, user string) int64 {
	t.Helper()
	return d.Int(t, `SELECT (SELECT COUNT(*) FROM notice_window WHERE user_id = ?) + (SELECT COUNT(*) FROM notice WHERE user_id = ?)
		+ (SELECT COUNT(*) FROM inbox WHERE user_id = ?) + (SELECT COUNT(*) FROM notice_count WHERE user_id = ?)`, user, user, user, user)
}

func TestDeletedUsersAreForgotten(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{fullProfile("u", toldAt), fullProfile("v", toldAt)}))
	plantTold(t, d, "u", 1, "2026-03-01 12:00:00")
	plantTold(t, d, "v", 11, "2026-03-01 12:00:00")
	gone := coupon.UserEvent{UserID: "u", At: toldAt.Add(time.Hour), Deleted: true}
	require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{gone}))
	require.Equal(t, coupon.Profile{UserID: "u", ErasedAt: gone.At}, profileOf(t, s, "u"))
	require.Zero(t, notices(t, d, "u"))
	require.EqualValues(t, 5, notices(t, d, "v"))
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM notice_item`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM user_optout WHERE user_id = 'u'`))
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM user_optout`))

	// What was told before is not taken up again, nor what they do.
	require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{
		fullProfile("u", toldAt), fullProfile("u", gone.At), {UserID: "u", At: gone.At.Add(time.Minute), Activity: coupon.ActivityCart},
	}))
	require.Equal(t, coupon.Profile{UserID: "u", ErasedAt: gone.At}, profileOf(t, s, "u"))

	// Who tells of themselves later is a user again; and the deletion, told once more, takes nothing of the new life.
	require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{{UserID: "u", At: gone.At.Add(time.Minute), Profile: &coupon.ProfileChange{Locale: "en"}}}))
	plantTold(t, d, "u", 21, "2026-03-02 12:00:00")
	d.Exec(t, `DELETE FROM notice_count WHERE user_id = 'u'`)
	require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{gone}))
	require.Equal(t, coupon.Profile{UserID: "u", Locale: "en", ProfileAt: gone.At.Add(time.Minute)}, profileOf(t, s, "u"))
	require.EqualValues(t, 4, notices(t, d, "u"))
}

func TestEraseUser(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{fullProfile("u", toldAt)}))
	for i := range 25 {
		plantTold(t, d, "u", 1+2*i, "2026-03-01 12:00:00")
		d.Exec(t, `DELETE FROM notice_count`)
	}
	plant(t, d, 1, 3, coupon.Unused, "'2027-01-01 00:00:00'", "NULL")
	d.Exec(t, `UPDATE coupon SET user_id = 'u'`)
	e, err := s.EraseUser(t.Context(), "u", "ann", "asked for it")
	require.NoError(t, err)
	require.Equal(t, coupon.Erasure{Windows: 50, Inbox: 25}, e)
	require.False(t, profileOf(t, s, "u").ErasedAt.IsZero())
	require.Zero(t, notices(t, d, "u"))
	require.EqualValues(t, 3, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE user_id = 'u'`), "coupons are money")
	deeds, err := s.Deeds(t.Context(), store.ActionErase, 0, 10)
	require.NoError(t, err)
	require.Len(t, deeds, 1)
	require.Equal(t, [3]string{"ann", "asked for it", "u"}, [3]string{deeds[0].Actor, deeds[0].Reason, deeds[0].Subject})
	_, err = s.EraseUser(t.Context(), "u", "ann", "")
	require.ErrorContains(t, err, "reason: must have")

	// The fact stays while there are coupons that somebody could tell of.
	d.Exec(t, `UPDATE user_profile SET seen_at = '2020-01-01'`)
	pruned, more, err := s.PruneProfiles(t.Context(), toldAt, 10)
	require.NoError(t, err)
	require.Zero(t, pruned)
	require.False(t, more)
	require.False(t, profileOf(t, s, "u").ErasedAt.IsZero())
	d.Exec(t, `UPDATE user_profile SET seen_at = '2020-01-01'`)
	d.Exec(t, `DELETE FROM coupon`)
	pruned, _, err = s.PruneProfiles(t.Context(), toldAt, 10)
	require.NoError(t, err)
	require.Equal(t, 1, pruned)
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM user_profile`))
}

// A notice that was prepared before the erasure comes into the inbox while it goes on.
func TestEraseWhatIsDeliveredMeanwhile(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{fullProfile("u", toldAt)}))
	plantTold(t, d, "u", 1, "2026-03-01 12:00:00")
	tx, err := d.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), `UPDATE notice_window SET items = 1, closed_by = 'held' WHERE id = 1`)
	require.NoError(t, err)
	var wg sync.WaitGroup
	d.Exec(t, `INSERT INTO inbox (user_id, window_id, kind, items, texts, created_at) VALUES ('u',2,'expired',1,'{}',UTC_TIMESTAMP(3) + INTERVAL 1 SECOND)`)
	wg.Go(func() { _, err = s.EraseUser(t.Context(), "u", "ann", "asked for it") })
	require.Eventually(t, func() bool { return d.Int(t, `SELECT COUNT(*) FROM inbox WHERE created_at < UTC_TIMESTAMP(3)`) == 2 }, 10*time.Second, 20*time.Millisecond)
	require.NoError(t, tx.Rollback())
	wg.Wait()
	require.NoError(t, err)
	require.Zero(t, notices(t, d, "u"))
}

func TestPruneProfiles(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	for i := range 5 {
		require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{fullProfile(fmt.Sprintf("u%d", i), toldAt)}))
	}
	d.Exec(t, `UPDATE user_profile SET seen_at = '2025-01-01' WHERE user_id <> 'u4'`)
	before := time.Date(2025, 6, 1, 0, 0, 0, 0, time.UTC)
	pruned, more, err := s.PruneProfiles(t.Context(), before, 3)
	require.NoError(t, err)
	require.Equal(t, 3, pruned)
	require.True(t, more)
	pruned, more, err = s.PruneProfiles(t.Context(), before, 3)
	require.NoError(t, err)
	require.Equal(t, 1, pruned)
	require.False(t, more)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM user_profile`))
	require.False(t, ptr(profileOf(t, s, "u0")).Wants(coupon.ChannelSMS, coupon.NoticeExpired), "no is no")
}

func ptr(p coupon.Profile) *coupon.Profile { return &p }

func TestReseal(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	var events []coupon.UserEvent
	for i := range 5 {
		events = append(events, fullProfile(fmt.Sprintf("u%d", i), toldAt))
	}
	events[4].Profile.Key = "k2"
	events = append(events, coupon.UserEvent{UserID: "none", At: toldAt, Activity: coupon.ActivityLogin})
	require.NoError(t, s.ApplyUserEvents(t.Context(), events))
	keys, err := s.AddressKeys(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"k1", "k2"}, keys)
	from, err := s.SealedWith(t.Context(), "k1", "u0", 2)
	require.NoError(t, err)
	require.Equal(t, []coupon.Sealed{{UserID: "u1", Key: "k1", Addresses: []byte{0, 1, 255}}, {UserID: "u2", Key: "k1", Addresses: []byte{0, 1, 255}}}, from)

	// One of them tells other addresses meanwhile.
	other := fullProfile("u2", toldAt.Add(time.Hour))
	other.Profile.Sealed = []byte("new")
	require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{other}))
	seen := d.Int(t, `SELECT CAST(MAX(seen_at) * 1000 AS UNSIGNED) FROM user_profile WHERE user_id = 'u1'`)
	n, err := s.Reseal(t.Context(), from, []coupon.Sealed{{UserID: "u1", Key: "k2", Addresses: []byte("a")}, {UserID: "u2", Key: "k2", Addresses: []byte("b")}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, "a", string(profileOf(t, s, "u1").Sealed))
	require.Equal(t, "k2", profileOf(t, s, "u1").Key)
	require.Equal(t, "new", string(profileOf(t, s, "u2").Sealed))
	require.Equal(t, "k1", profileOf(t, s, "u2").Key)
	require.Equal(t, seen, d.Int(t, `SELECT CAST(MAX(seen_at) * 1000 AS UNSIGNED) FROM user_profile WHERE user_id = 'u1'`), "nothing was heard of them")
}

// Everything that is stored of a user comes out, and nothing of others.
func TestExportUser(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{fullProfile("u", toldAt), fullProfile("v", toldAt)}))
	plantTold(t, d, "u", 1, "2026-03-01 12:00:00")
	plantTold(t, d, "v", 11, "2026-03-01 12:00:00")
	plant(t, d, 1, 1000, coupon.Unused, "'2027-01-01 00:00:00'", "NULL")
	d.Exec(t, `UPDATE coupon SET user_id = 'u'`)
	plant(t, d, 1001, 3, coupon.Unused, "'2027-01-01 00:00:00'", "NULL")
	d.Exec(t, `INSERT INTO user_quota (template_id, user_id, taken) VALUES (1,'u',7),(1,'v',8)`)
	rows := make(map[string]int)
	err := s.ExportUser(t.Context(), "u", func(r coupon.UserRecord) error {
		rows[r.Table]++
		require.Len(t, r.Values, len(r.Names))
		require.NotContains(t, r.Names, "user_id")
		require.NotContains(t, r.Names, "addresses")
		return nil
	})
	require.NoError(t, err)
	require.Subset(t, rows, map[string]int{
		"user_profile": 1, "user_optout": 2, "notice_count": 1, "notice_window": 2, "notice_item": 2, "notice": 1, "inbox": 1, "coupon": 1000,
	})
	require.Equal(t, 1, rows["user_quota"])
	stop := fmt.Errorf("enough")
	require.ErrorIs(t, s.ExportUser(context.Background(), "u", func(coupon.UserRecord) error { return stop }), stop)
}
