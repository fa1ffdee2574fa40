//go:build proof

package crash_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/chaos/model"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/rig/receive"
)

// notices are what users are told, and what they and providers tell.
func notices() *stage {
	popups := map[string]string{"before": "popup-before", "after": "popup-after"} // users, by side
	return &stage{
		name: "notices", post: true, runs: []string{crash.Publisher, crash.Expirer},
		begin: func(w *world) {
			for _, user := range popups {
				w.grant(crash.Publisher, w.soon(remindAt+20*time.Second), func(g *client.Grant) { g.UserID = user })
			}
		},
		lanes: []lane{{worker: crash.Notifier, scenes: []scene{
			{point: "commit apply user events", pass: func(v *visit) {
				v.profiled(func(there int) { require.Equal(v, v.done(), there) })
			}},
			{point: "ack users", pass: func(v *visit) { v.profiled(nil) }}, // perhaps that of one that came again
			{point: "commit collect notices", pass: func(v *visit) { v.toldOnce() }},
			{point: "ack notice", pass: func(v *visit) { v.toldOnce() }},
			{point: "commit close notices", pass: func(v *visit) { v.toldOnce() }},
			{point: "commit claim notices", pass: func(v *visit) { v.told() }},
			{point: "commit prepare notices", pass: func(v *visit) { v.told() }},
			{point: "commit deliver inbox", pass: func(v *visit) { v.told() }},
			{point: "commit settle notices", pass: func(v *visit) {
				r := v.told()
				if !v.after() {
					again := r.came["push"] == 2 || r.came["email"] == 2 || r.sms == "unknown"
					require.True(v, again, "what was not recorded is sent once more, or unknown: %+v", r)
				}
			}},
			{point: "send sms", pass: func(v *visit) {
				r := v.told()
				require.Equal(v, "unknown", r.sms)
				require.Equal(v, v.done(), r.came["sms"])
			}},
			{point: "send push", pass: func(v *visit) { require.Equal(v, 1+v.done(), v.told().came["push"]) }},
			{point: "send email", pass: func(v *visit) { require.Equal(v, 1+v.done(), v.told().came["email"]) }},
			{point: "commit take popups", worker: crash.Publisher, pass: func(v *visit) {
				user := popups[v.side]
				v.counted("a popup", 1, "SELECT COUNT(*) FROM notice WHERE user_id = ? AND channel = 'popup' AND state = 'sent'", []byte(user))
				var first, second []client.Notice
				v.call(func(ctx context.Context, api *client.Client) (err error) {
					first, err = api.TakePopups(ctx, user, "en", 0)
					return err
				})
				v.again(v.worker, func(ctx context.Context, api *client.Client) (err error) {
					second, err = api.TakePopups(ctx, user, "en", 0)
					return err
				})
				require.Empty(v, first)
				require.Len(v, second, 1-v.done(), "popups that are handed out by the next call")
				require.Equal(v, 1, v.count("SELECT COUNT(*) FROM inbox WHERE user_id = ?", []byte(user)), "it is kept")
			}},
			{point: "commit notice receipts", worker: crash.Publisher, pass: func(v *visit) {
				window := v.count("SELECT MAX(window_id) FROM notice WHERE channel = 'push' AND state = 'sent'")
				delivered := func() int {
					return v.count("SELECT COUNT(*) FROM notice WHERE channel = 'push' AND state = 'delivered' AND window_id = ?", window)
				}
				tell := func() error {
					v.ready(v.worker)
					provider := receive.Receipts{URL: v.url(v.worker), KeyID: providerKey, Key: providerSecret}
					return provider.Post(v.ctx, "/v1/receipts", map[string]any{
						"receipts": []map[string]string{{"notice_id": fmt.Sprintf("%d-push", window), "status": "delivered"}},
					})
				}
				v.stop(func() { require.Error(v, tell()) }, func() { require.Equal(v, v.done(), delivered()) })
				require.NoError(v, tell())
				require.Equal(v, 1, delivered())
			}},
		}}},
	}
}

// profile is what the shop tells of a user who can be reached by every channel.
func (w *world) profile(user string) broker.Message {
	n := w.number()
	body, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": fmt.Sprintf("profile-%d", n), "source": "/crash", "type": event.TypeUserProfile, "datacontenttype": "application/json",
		"data": map[string]any{
			"user_id": user, "locale": "en", "zone": "UTC", "at": w.i.Now().UTC().Format(time.RFC3339Nano),
			"addresses": map[string]string{"email": user + "@example.com", "phone": fmt.Sprintf("+86139%08d", n), "push": "token-" + user},
		},
	})
	require.NoError(w, err)
	return broker.Message{
		Exchange: w.i.Ladder().Users(), Key: event.KeyUserProfile, ID: fmt.Sprintf("profile-%d", n), Body: body, ContentType: event.ContentType, Mandatory: true,
	}
}

const profileQuery = "SELECT COUNT(*) FROM user_profile WHERE user_id = ? AND profile_at IS NOT NULL"

// profiled has the worker stopped by a user's profile, which is there in the end; dead, which may be nil, is asked whether it is there then.
func (v *visit) profiled(dead func(there int)) {
	v.ready(v.worker)
	user := fmt.Sprintf("profiled-%d", v.number())
	v.stop(func() { v.publish(v.profile(user)) }, func() {
		if dead != nil {
			dead(v.count(profileQuery, []byte(user)))
		}
	})
	v.counted("the profile", 1, profileQuery, []byte(user))
}

// reached is what became of the notice of one coupon's end.
type reached struct {
	window uint64
	sms    string         // state of that notice
	came   map[string]int // by far channel
}

// told has the worker stopped while it tells a user of an end, and says how the user was told. Whatever the point: once in the inbox,
// never twice by SMS, and by the others at most once more than once.
func (v *visit) told() reached {
	v.ready(v.worker)
	user := fmt.Sprintf("told-%d", v.number())
	v.publish(v.profile(user))
	v.counted("the profile", 1, profileQuery, []byte(user))
	c := v.grant(time.Second, func(g *client.Grant) { g.UserID = user })
	v.stop(func() {})
	v.becomes(c, 2, model.Expired)
	v.counted("channels that have told", 4, "SELECT COUNT(*) FROM notice WHERE user_id = ? AND state NOT IN ('pending', 'sending')", []byte(user))
	var r reached
	require.NoError(v, v.i.DB().QueryRowContext(v.ctx, "SELECT window_id, state FROM notice WHERE user_id = ? AND channel = 'sms'", []byte(user)).
		Scan(&r.window, &r.sms))
	r.came = v.post.came(r.window)
	require.Equal(v, 1, v.count("SELECT COUNT(*) FROM notice_item WHERE coupon_id = ? AND dropped = ''", c.ID), "items of the end")
	require.Equal(v, 1, v.count("SELECT COUNT(*) FROM inbox WHERE user_id = ?", []byte(user)), "in the inbox")
	require.Equal(v, 3, v.count("SELECT COUNT(*) FROM notice WHERE user_id = ? AND channel <> 'sms' AND state = 'sent'", []byte(user)), "that are recorded as sent")
	for _, channel := range []string{"push", "email"} {
		require.Contains(v, []int{1, 2}, r.came[channel], channel)
	}
	require.LessOrEqual(v, r.came["sms"], 1)
	if r.sms == "sent" {
		require.Equal(v, 1, r.came["sms"])
	} else {
		require.Equal(v, "unknown", r.sms)
	}
	return r
}

// toldOnce is for points before anything is sent: nothing comes twice.
func (v *visit) toldOnce() {
	r := v.told()
	require.Equal(v, map[string]int{"sms": 1, "push": 1, "email": 1}, r.came)
	require.Equal(v, "sent", r.sms)
}
