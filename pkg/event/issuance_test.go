package event_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

const plain = "application/json"

func TestDecodeIssuanceSamples(t *testing.T) {
	s := schema(t, event.TypeGrant)
	first := coupon.Grant{
		Issuer: "shop", Key: "autumn:user-81:1", TemplateID: 7, UserID: "user-81", BatchID: "autumn",
		ValidFrom: time.Date(2026, 9, 30, 16, 0, 0, 0, time.UTC), ExpiresAt: ends, EventID: "evt-1", Trace: trace,
	}
	for name, tt := range map[string]struct {
		contentType string
		want        event.Issuance
	}{
		"in-grant":       {event.ContentType + "; charset=UTF-8", event.Issuance{EventID: "evt-1", Trace: trace, Grants: []coupon.Grant{first}}},
		"in-grant-plain": {plain, event.Issuance{EventID: "msg-1", Grants: []coupon.Grant{{Key: "k", TemplateID: 7, UserID: "u", EventID: "msg-1"}}}},
		"in-grant-batch": {event.ContentType, event.Issuance{EventID: "evt-2", Grants: []coupon.Grant{
			{Key: "rule", TemplateID: 7, UserID: "u1", EventID: "evt-2"},
			{Key: "never", TemplateID: 7, UserID: "u2", EventID: "evt-2", ExpiresAt: coupon.Never},
			{Key: "end", TemplateID: 7, UserID: "u3", EventID: "evt-2", ExpiresAt: ends},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			body := sample(t, name)
			require.NoError(t, validate(s, body))
			got, err := event.DecodeIssuance(body, tt.contentType, "msg-1")
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestEventIDOfPlainBodies(t *testing.T) {
	body := `{"grant_key":"k","template_id":"7","user_id":"u"}`
	a, err := event.DecodeIssuance([]byte(body), "", "")
	require.NoError(t, err)
	require.Regexp(t, `^[0-9a-f]{32}$`, a.EventID)
	again, err := event.DecodeIssuance([]byte(body), "", "")
	require.NoError(t, err)
	require.Equal(t, a, again)
	for _, id := range []string{strings.Repeat("x", 121), "a\x00"} {
		_, err = event.DecodeIssuance([]byte(body), "", id)
		require.ErrorContains(t, err, "message id: must have at most 120 bytes without control characters")
	}
}

func TestDecodeIssuanceErrors(t *testing.T) {
	s := schema(t, event.TypeGrant)
	const good = `{"specversion":"1.0","id":"e","source":"/s","type":"coupon.grant.v1","data":{"grant_key":"k","template_id":"7","user_id":"u"}}`
	swap := func(from, to string) string { return strings.Replace(good, from, to, 1) }
	in, err := event.DecodeIssuance([]byte(good), event.ContentType, "")
	require.NoError(t, err)
	require.Len(t, in.Grants, 1)
	for _, tt := range []struct {
		body, contentType, want string
		kind                    error
		schemaTakes             bool // what a schema cannot say
	}{
		{"", "", "body is empty", event.ErrMalformed, false},
		{"[]", "", "body: must be a JSON object, got []", event.ErrMalformed, false},
		{"null", "", "body: must be a JSON object, got null", event.ErrMalformed, false},
		{`{"a":1,}`, "", "byte 8: invalid character '}'", event.ErrMalformed, false},
		{good + strings.Repeat(" ", event.MaxBody), "", "too large", event.ErrTooLarge, true},
		{swap(`"k"`, "\"\xc3\""), "", "not UTF-8", event.ErrMalformed, true},
		{good, "application/cloudevents-batch+json", "content type: must be application/cloudevents+json or application/json, got application/cloudevents-batch+json", event.ErrMalformed, true},
		{`{"grant_key":"k","template_id":"7","user_id":"u"}`, event.ContentType, "specversion: is required", event.ErrMalformed, true},
		{swap("coupon.grant.v1", "coupon.grant.v2"), "", `type: must be coupon.grant.v1, got "coupon.grant.v2"`, event.ErrUnknownVersion, false},
		{swap("coupon.grant.v1", "coupon.grant.v10"), "", `type: must be`, event.ErrUnknownVersion, false},
		{swap("coupon.grant.v1", "coupon.grant.vx"), "", `type: must be`, event.ErrUnknownType, false},
		{swap("coupon.grant.v1", "order.paid.v1"), "", `type: must be coupon.grant.v1, got "order.paid.v1"`, event.ErrUnknownType, false},
		{swap(`"1.0"`, `"2.0"`), "", `specversion: must be 1.0, got "2.0"`, event.ErrUnknownVersion, false},
		{swap(`"1.0"`, `1.0`), "", `specversion: must be a string, got 1.0`, event.ErrMalformed, false},
		{swap(`"id":"e",`, ``), "", `id: is required`, event.ErrMalformed, false},
		{swap(`"e"`, `""`), "", `id: must not be empty, got ""`, event.ErrMalformed, false},
		{swap(`"e"`, `"`+strings.Repeat("x", 121)+`"`), "", `id: must have at most 120 bytes, has 121`, event.ErrTooLarge, false},
		{swap(`"source":"/s",`, ``), "", `source: is required`, event.ErrMalformed, false},
		{swap(`"id"`, `"datacontenttype":"text/xml","id"`), "", `datacontenttype: must be application/json, got "text/xml"`, event.ErrMalformed, true},
		{swap(`"data"`, `"data_base64":"e30=","data"`), "", `data_base64: is not read, send data`, event.ErrMalformed, true},
		{swap(`"data"`, `"date"`), "", `data: is required`, event.ErrMalformed, false},
		{swap(`"e"`, `"e","id":"f"`), "", `id: occurs twice`, event.ErrMalformed, true},
		{swap(`"k"`, `"k","grant\u005fkey":"l"`), "", `data.grant_key: occurs twice`, event.ErrMalformed, true},
		{swap(`"data":{`, `"data":7,"x":{`), "", `data: must be a JSON object, got 7`, event.ErrMalformed, false},
		{`{"grants":[]}`, "", `grants: must have between 1 and 1000 members`, event.ErrMalformed, false},
		{`{"grants":{}}`, "", `grants: must be an array, got {}`, event.ErrMalformed, false},
		{`{"grants":null}`, "", `grants: must be an array, got null`, event.ErrMalformed, false},
		{`{"grants":[` + strings.Repeat(`{},`, 1000) + `{}]}`, "", `grants: must have between 1 and 1000 members`, event.ErrTooLarge, false},
	} {
		_, err := event.DecodeIssuance([]byte(tt.body), tt.contentType, "")
		require.ErrorContains(t, err, tt.want, cutTo(tt.body))
		require.ErrorIs(t, err, tt.kind, cutTo(tt.body))
		require.Equal(t, tt.schemaTakes, validate(s, []byte(tt.body)) == nil, cutTo(tt.body))
	}
}

func cutTo(s string) string { return s[:min(len(s), 200)] }

// Bad members name field and value, their neighbours go on, and the schema
// agrees as far as it can tell.
func TestBadMembers(t *testing.T) {
	s := schema(t, event.TypeGrant)
	const good = `{"grant_key":"k","template_id":"7","user_id":"u"}`
	swap := func(from, to string) string { return strings.Replace(good, from, to, 1) }
	for _, tt := range []struct {
		member, want string
		schemaTakes  bool
	}{
		{`7`, "grants[1]: must be a JSON object, got 7", false},
		{`{}`, "grants[1].user_id: is required", false},
		{swap(`"k"`, `""`), `grants[1].grant_key: must not be empty, got ""`, false},
		{swap(`"k"`, `12`), `grants[1].grant_key: must be a string, got 12`, false},
		{swap(`"k"`, `"`+strings.Repeat("x", 129)+`"`), `grants[1].grant_key: must have at most 128 bytes, has 129, got "xxx`, false},
		{swap(`"k"`, `"`+strings.Repeat("过", 43)+`"`), `grants[1].grant_key: must have at most 128 bytes, has 129`, true},
		{swap(`"u"`, `"a\u0000b"`), `grants[1].user_id: must not contain control characters or noncharacters, got "a\u0000b"`, false},
		{swap(`"u"`, `"a\nb"`), `grants[1].user_id: must not contain control`, false},
		{swap(`"u"`, `"\u0085"`), `grants[1].user_id: must not contain control`, false},
		{swap(`"u"`, `"\ud800"`), `grants[1].user_id: must not contain control`, true},
		{swap(`"u"`, `"\uffff"`), `grants[1].user_id: must not contain control`, true},
		{swap(`"u"`, `null`), `grants[1].user_id: is required, got null`, false},
		{swap(`"7"`, `7.5`), `grants[1].template_id: must be a positive decimal integer without leading zeros, in a string, got 7.5`, false},
		{swap(`"7"`, `-7`), `grants[1].template_id: must be a positive decimal`, false},
		{swap(`"7"`, `0`), `grants[1].template_id: must be a positive decimal`, false},
		{swap(`"7"`, `9007199254740992`), `grants[1].template_id: is not exact as a number above 2^53-1, send a string, got 9007199254740992`, false},
		{swap(`"7"`, `7e0`), `grants[1].template_id: must be a positive decimal`, true},
		{swap(`"7"`, `"18446744073709551616"`), `grants[1].template_id: must be a positive decimal`, true},
		{swap(`"7"`, `"07"`), `grants[1].template_id: must be a positive decimal`, false},
		{swap(`"7"`, `"+7"`), `grants[1].template_id: must be a positive decimal`, false},
		{swap(`"7"`, `true`), `grants[1].template_id: must be a positive decimal`, false},
		{swap(`"k"`, `"k","expires_at":"2026-11-01T00:00:00"`), `grants[1].expires_at: must be an instant in RFC 3339 with a zone, got "2026-11-01T00:00:00"`, false},
		{swap(`"k"`, `"k","expires_at":"2026-02-30T00:00:00Z"`), `grants[1].expires_at: must be an instant`, false},
		{swap(`"k"`, `"k","expires_at":""`), `grants[1].expires_at: must be an instant`, false},
		{swap(`"k"`, `"k","expires_at":1790000000`), `grants[1].expires_at: must be an instant`, false},
		{swap(`"k"`, `"k","expires_at":"9999-12-31T00:00:00Z"`), `grants[1].expires_at: must be from 1970 on and before 9999-12-31 (never is null)`, true},
		{swap(`"k"`, `"k","valid_from":"1969-12-31T23:59:59Z"`), `grants[1].valid_from: must be from 1970 on`, true},
		{swap(`"k"`, `"k","issuer":7`), `grants[1].issuer: must be a string, got 7`, false},
		{swap(`"k"`, `"k","batch_id":["b"]`), `grants[1].batch_id: must be a string, got ["b"]`, false},
		{swap(`"k"`, `"k","user_id":"v"`), `grants[1].user_id: occurs twice`, true},
	} {
		body := []byte(`{"grants":[` + good + `, ` + tt.member + ` ,` + good + `]}`)
		in, err := event.DecodeIssuance(body, plain, "m")
		require.NoError(t, err, tt.member)
		require.Len(t, in.Grants, 2, tt.member)
		require.Len(t, in.Rejected, 1, tt.member)
		require.Equal(t, 1, in.Rejected[0].Index)
		require.Equal(t, tt.member, string(in.Rejected[0].Raw))
		require.ErrorContains(t, in.Rejected[0].Err, tt.want)
		require.Equal(t, tt.schemaTakes, validate(s, body) == nil, tt.member)

		// Alone it is refused for the same reason.
		if tt.member[0] == '{' && !strings.Contains(tt.want, "twice") {
			alone, err := event.DecodeIssuance([]byte(tt.member), plain, "m")
			require.NoError(t, err)
			require.Empty(t, alone.Grants)
			require.ErrorContains(t, alone.Rejected[0].Err, strings.Replace(tt.want, "grants[1].", "", 1))
		}
	}
}

func TestEverythingWrongIsTold(t *testing.T) {
	in, err := event.DecodeIssuance([]byte(`{"grant_key":7,"template_id":"x","expires_at":"soon"}`), plain, "m")
	require.NoError(t, err)
	for _, field := range []string{"grant_key: ", "template_id: ", "user_id: ", "expires_at: "} {
		require.ErrorContains(t, in.Rejected[0].Err, field)
	}
}

func TestInstantsOfGrants(t *testing.T) {
	decode := func(field, value string) coupon.Grant {
		in, err := event.DecodeIssuance(fmt.Appendf(nil, `{"grant_key":"k","template_id":7,"user_id":"u",%q:%s}`, field, value), plain, "m")
		require.NoError(t, err)
		require.Empty(t, in.Rejected)
		return in.Grants[0]
	}
	require.True(t, decode("unknown", "null").ExpiresAt.IsZero())
	require.Equal(t, coupon.Never, decode("expires_at", "null").ExpiresAt)
	require.Equal(t, ends, decode("expires_at", `"2026-11-01T08:00:00+08:00"`).ExpiresAt)
	require.Equal(t, ends, decode("expires_at", `"2026-10-31T23:59:59.000000001Z"`).ExpiresAt)
	require.True(t, decode("valid_from", "null").ValidFrom.IsZero())
	require.Equal(t, ends.Add(time.Millisecond), decode("valid_from", `"2026-11-01T00:00:00.0001Z"`).ValidFrom)
}

func TestBadTraceIsIgnored(t *testing.T) {
	for _, bad := range []string{`7`, `""`, `"x"`, `"` + strings.Replace(trace, "00-", "01-", 1) + `"`, `"` + strings.ToUpper(trace) + `"`, `"00-` + strings.Repeat("0", 32) + trace[35:] + `"`} {
		body := `{"specversion":"1.0","id":"e","source":"s","type":"coupon.grant.v1","traceparent":` + bad + `,"data":{"grant_key":"k","template_id":"7","user_id":"u"}}`
		in, err := event.DecodeIssuance([]byte(body), "", "")
		require.NoError(t, err)
		require.Empty(t, in.Trace)
		require.Len(t, in.Grants, 1)
	}
}

func anyGrant(t *rapid.T) coupon.Grant {
	g := coupon.Grant{
		Issuer:     keys(0).Draw(t, "issuer"),
		Key:        keys(1).Draw(t, "key"),
		TemplateID: rapid.Uint64Min(1).Draw(t, "template"),
		UserID:     keys(1).Draw(t, "user"),
		BatchID:    keys(0).Draw(t, "batch"),
	}
	if rapid.Bool().Draw(t, "from") {
		g.ValidFrom = time.UnixMilli(rapid.Int64Range(0, 253_370_000_000_000).Draw(t, "valid")).UTC()
	}
	switch rapid.IntRange(0, 2).Draw(t, "end") {
	case 0:
		g.ExpiresAt = coupon.Never
	case 1:
		g.ExpiresAt = time.Unix(rapid.Int64Range(0, 253_370_000_000).Draw(t, "expires"), 0).UTC()
	}
	return g
}

// What Grants writes validates and is read back.
func TestGrantsRoundTrip(t *testing.T) {
	c, s := codec(t), schema(t, event.TypeGrant)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(anyGrant), 1, 20).Draw(t, "grants")
		body, err := c.Grants("evt", granted, want)
		require.NoError(t, err)
		require.NoError(t, validate(s, body))
		in, err := event.DecodeIssuance(body, event.ContentType, "ignored")
		require.NoError(t, err)
		require.Empty(t, in.Rejected)
		for i := range want {
			want[i].EventID = "evt"
		}
		require.Equal(t, want, in.Grants)
	})
	_, err := c.Grants("evt", granted, nil)
	require.ErrorContains(t, err, "grants: must be between 1 and 1000, got 0")
	_, err = c.Grants("evt", granted, make([]coupon.Grant, 1001))
	require.ErrorContains(t, err, "got 1001")
	huge := make([]coupon.Grant, 1000)
	for i := range huge {
		huge[i] = coupon.Grant{Key: strings.Repeat("\u2028", 400)}
	}
	_, err = c.Grants("evt", granted, huge)
	require.ErrorContains(t, err, "bytes, at most 1048576")
}

// However a document is laid out, our reader sees what encoding/json sees.
func TestLayoutDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyGrant(t)
		grant := map[string]any{"grant_key": want.Key, "template_id": fmt.Sprint(want.TemplateID), "user_id": want.UserID, "issuer": want.Issuer}
		// Unknown fields of any shape around and between.
		for i := range rapid.IntRange(0, 4).Draw(t, "unknown") {
			grant[fmt.Sprintf("%s{[\"%d", keys(0).Draw(t, "name"), i)] = rapid.SampledFrom([]any{
				nil, true, -1.5e3, "}]\"\\", []any{}, []any{1, "]", []any{map[string]any{"}": "{"}}}, map[string]any{"a": map[string]any{}},
			}).Draw(t, "value")
		}
		body, err := json.MarshalIndent(map[string]any{"grants": []any{grant, grant}, "more": grant},
			rapid.StringMatching(`[ \t\n\r]{0,3}`).Draw(t, "prefix"), rapid.StringMatching(`[ \t]{0,3}`).Draw(t, "indent"))
		require.NoError(t, err)
		in, err := event.DecodeIssuance(body, plain, "m")
		require.NoError(t, err)
		require.Empty(t, in.Rejected)
		want = coupon.Grant{Issuer: want.Issuer, Key: want.Key, TemplateID: want.TemplateID, UserID: want.UserID, EventID: "m"}
		require.Equal(t, []coupon.Grant{want, want}, in.Grants)
	})
}
