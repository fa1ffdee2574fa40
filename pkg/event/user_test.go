package event_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

func TestDecodeUserSamples(t *testing.T) {
	of := func(e coupon.UserEvent) coupon.UserEvent {
		e.UserID, e.At = "user-81", granted
		return e
	}
	for name, tt := range map[string]struct {
		contentType, key, typ string
		want                  event.User
	}{
		"in-user-activity": {event.ContentType, "", event.TypeUserActivity, event.User{
			EventID: "evt-20", UserEvent: of(coupon.UserEvent{Activity: coupon.ActivityCart}),
		}},
		"in-user-activity-plain": {plain, event.KeyUserActivity, event.TypeUserActivity, event.User{
			EventID: "msg-1", UserEvent: of(coupon.UserEvent{Activity: coupon.ActivityBrowse}),
		}},
		"in-user-profile": {event.ContentType, "whatever", event.TypeUserProfile, event.User{
			EventID: "evt-21", UserEvent: of(coupon.UserEvent{Profile: &coupon.ProfileChange{
				Locale: "zh-CN", Zone: "Asia/Shanghai",
				Addresses: coupon.Addresses{Email: "wang@example.com", Phone: "+8613800000000", Push: "d3Vj:APA91b-x_1"},
				OptOuts: []coupon.OptOut{
					{Channel: coupon.ChannelSMS, Kind: coupon.NoticeExpired, Out: true, At: time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC), Source: "profile"},
					{Channel: coupon.AllChannels, Kind: coupon.AllKinds, At: time.Date(2026, 9, 1, 22, 0, 0, 0, time.UTC), Source: "profile"},
				},
			}}),
		}},
		// What is not known here is left out, and the rest taken.
		"in-user-profile-plain": {plain, event.TypeUserProfile, event.TypeUserProfile, event.User{
			EventID: "msg-1", UserEvent: of(coupon.UserEvent{Profile: &coupon.ProfileChange{}}), Unknown: []string{"locale", "zone"},
		}},
		"in-user-deleted": {event.ContentType, event.KeyUserDeleted, event.TypeUserDeleted, event.User{
			EventID: "evt-22", UserEvent: of(coupon.UserEvent{Deleted: true}),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			body := sample(t, name)
			require.NoError(t, validate(schema(t, tt.typ), body))
			got, err := event.DecodeUser(body, tt.contentType, "msg-1", tt.key)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestTheRoutingKeyNamesThePlainUserEvent(t *testing.T) {
	_, err := event.DecodeUser(sample(t, "in-user-activity-plain"), plain, "", "user.moved")
	require.ErrorIs(t, err, event.ErrUnknownType)
	require.ErrorContains(t, err, "must name the type of what is no CloudEvent: user.activity, user.profile or user.deleted")
	require.NotContains(t, err.Error(), "moved")
	_, err = event.DecodeUser(sample(t, "in-user-activity-plain"), plain, "", "user.activity.v2")
	require.ErrorIs(t, err, event.ErrUnknownVersion)
}

// What is refused is refused by the schema, too, and is told by the names of fields alone: what was in them may be an address.
func TestDecodeUserErrors(t *testing.T) {
	const good = `{"user_id":"u","locale":"en","zone":"UTC","addresses":{"email":"a@b.c","phone":"+123","push":"t"},` +
		`"optouts":[{"channel":"sms","kind":"*","out":true,"at":"2026-01-01T00:00:00Z"}],"at":"2026-01-01T00:00:00Z"}`
	const secret = "s3cret"
	s := schema(t, event.TypeUserProfile)
	_, err := event.DecodeUser([]byte(good), plain, "m", event.KeyUserProfile)
	require.NoError(t, err)
	require.NoError(t, validate(s, []byte(good)))
	for _, tt := range []struct {
		from, to, want string
		schemaTakes    bool
	}{
		{`"u"`, `""`, "user_id: must not be empty", false},
		{`"u"`, `["s3cret"]`, "user_id: must be a string", false},
		{`"at":"2026-01-01T00:00:00Z"}`, `"at":"s3cret"}`, "at: must be an instant", false},
		{`"at":"2026-01-01T00:00:00Z"}`, `"at":"1969-12-31T00:00:00Z"}`, "at: must be from 1970 on", true},
		{`"en"`, `7`, "locale: must be a string", false},
		{`"UTC"`, `{"s3cret":1}`, "zone: must be a string", false},
		{`{"email":"a@b.c","phone":"+123","push":"t"}`, `"s3cret@b.c"`, "addresses: must be a JSON object", false},
		{`"a@b.c"`, `"s3cret"`, "addresses.email: must be an address such as name@example.com", false},
		{`"a@b.c"`, `"S <s3cret@b.c>"`, "addresses.email: must be an address", false},
		{`"a@b.c"`, `"s3cret@b.c\nBcc: x@y.z"`, "addresses.email: must not contain control characters", false},
		{`"a@b.c"`, `"s3cret@` + strings.Repeat("b", 255) + `"`, "addresses.email: must have at most 254 bytes", false},
		{`"+123"`, `"s3cret"`, "addresses.phone: must be digits", false},
		{`"+123"`, `"+` + strings.Repeat("1", 32) + `"`, "addresses.phone: must have at most 32 bytes", false},
		{`"t"`, `"s3cret token"`, "addresses.push: must be visible ASCII", false},
		{`"t"`, `"` + strings.Repeat("t", 1025) + `"`, "addresses.push: must have at most 1024 bytes", false},
		{`"sms"`, `"s3cret"`, "optouts[0].channel: must be inbox, popup, email, sms, push, log or *", false},
		{`"kind":"*"`, `"kind":"s3cret"`, "optouts[0].kind: must be expiring, expired or *", false},
		{`"out":true,`, ``, "optouts[0].out: is required", false},
		{`"out":true,"at":"2026-01-01T00:00:00Z"`, `"out":false`, "optouts[0].at: is required of what is wanted again", false},
		{`"out":true`, `"out":"s3cret"`, "optouts[0].out: must be true or false", false},
		{`[{"channel":"sms","kind":"*","out":true,"at":"2026-01-01T00:00:00Z"}]`, `{"s3cret":1}`, "optouts: must be an array", false},
		{`[{"channel":"sms","kind":"*","out":true,"at":"2026-01-01T00:00:00Z"}]`, `["s3cret"]`, "optouts[0]: must be a JSON object", false},
		{`"u"`, `"u","s3cret":1,"s3cret":2`, "(a name): occurs twice", true},
		{`"t"`, `"t","s3cret":1,"s3cret":2`, "addresses.(a name): occurs twice", true},
		{`"u"`, `"u","user_id":"s3cret"`, "user_id: occurs twice", true},
		{`"u"`, `"u" s3cret`, "malformed", false},
	} {
		require.Contains(t, good, tt.from)
		body := []byte(strings.Replace(good, tt.from, tt.to, 1))
		_, err := event.DecodeUser(body, plain, "m", event.KeyUserProfile)
		require.ErrorContains(t, err, tt.want)
		require.NotContains(t, err.Error(), secret, "%s", body)
		require.Equal(t, tt.schemaTakes, validate(s, body) == nil, "%s", body)
	}
	for _, tt := range [][2]string{
		{`{"user_id":"u","kind":"s3cret","at":"2026-01-01T00:00:00Z"}`, "kind: must be login, browse, cart or order"},
		{`{"user_id":"u","at":"2026-01-01T00:00:00Z"}`, "kind: is required"},
	} {
		_, err := event.DecodeUser([]byte(tt[0]), plain, "m", event.KeyUserActivity)
		require.ErrorContains(t, err, tt[1])
		require.NotContains(t, err.Error(), secret)
		require.Error(t, validate(schema(t, event.TypeUserActivity), []byte(tt[0])))
	}
	// Everything that is wrong is told.
	_, err = event.DecodeUser([]byte(`{"user_id":7,"addresses":{"email":"x","phone":"y"},"optouts":[{}]}`), plain, "m", event.KeyUserProfile)
	for _, field := range []string{"user_id: ", "at: ", "addresses.email: ", "addresses.phone: ", "optouts[0].channel: ", "optouts[0].out: "} {
		require.ErrorContains(t, err, field)
	}
	for _, body := range []string{`{"specversion":"1.0","id":"e","source":"/s","type":"s3cret","data":{}}`, `["s3cret"]`, `"s3cret"`} {
		_, err := event.DecodeUser([]byte(body), "", "", event.KeyUserProfile)
		require.Error(t, err)
		require.NotContains(t, err.Error(), secret)
	}
	_, err = event.DecodeUser([]byte(good), "application/cloudevents+s3cret", "", event.KeyUserProfile)
	require.Error(t, err)
	require.NotContains(t, err.Error(), secret)
	_, err = event.DecodeUser([]byte(good), plain, "s3cret\n", event.KeyUserProfile)
	require.Error(t, err)
	require.NotContains(t, err.Error(), secret)
}

func anyUser(t *rapid.T) coupon.UserEvent {
	instant := func(name string) time.Time {
		return time.UnixMilli(rapid.Int64Range(0, 253_370_000_000_000).Draw(t, name)).UTC()
	}
	u := coupon.UserEvent{UserID: keys(1).Draw(t, "user"), At: instant("at")}
	switch rapid.IntRange(0, 2).Draw(t, "type") {
	case 0:
		u.Deleted = true
	case 1:
		u.Activity = rapid.SampledFrom([]coupon.ActivityKind{"login", "browse", "cart", "order"}).Draw(t, "kind")
	default:
		u.Profile = &coupon.ProfileChange{
			Locale: rapid.SampledFrom([]string{"", "en", "zh-Hant-HK"}).Draw(t, "locale"),
			Zone:   rapid.SampledFrom([]string{"", "UTC", "Pacific/Kiritimati"}).Draw(t, "zone"),
			Addresses: coupon.Addresses{
				Email: rapid.SampledFrom([]string{"", "a@b", "冬@例え.jp"}).Draw(t, "email"),
				Phone: rapid.SampledFrom([]string{"", "+49 (30) 1-2", "13800000000"}).Draw(t, "phone"),
				Push:  rapid.StringMatching(`[!-~]{0,40}`).Draw(t, "push"),
			},
		}
		for range rapid.IntRange(0, 3).Draw(t, "outs") {
			u.Profile.OptOuts = append(u.Profile.OptOuts, coupon.OptOut{
				Channel: rapid.SampledFrom(append(coupon.Channels(), coupon.AllChannels)).Draw(t, "channel"),
				Kind:    rapid.SampledFrom([]coupon.NoticeKind{coupon.NoticeExpiring, coupon.NoticeExpired, coupon.AllKinds}).Draw(t, "kind"),
				Out:     rapid.Bool().Draw(t, "out"), At: instant("decided"), Source: "profile",
			})
		}
	}
	return u
}

// What User writes validates and is read back.
func TestUserRoundTrip(t *testing.T) {
	c := codec(t)
	rapid.Check(t, func(t *rapid.T) {
		want := anyUser(t)
		key, body := c.User("e-1", want)
		require.NoError(t, validate(schema(t, key+".v1"), body))
		got, err := event.DecodeUser(body, event.ContentType, "ignored", "ignored")
		require.NoError(t, err)
		require.Equal(t, event.User{EventID: "e-1", UserEvent: want}, got)
	})
}
