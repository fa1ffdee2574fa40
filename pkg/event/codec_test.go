package event_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

func TestGoldenEvents(t *testing.T) {
	c := codec(t)
	for name, tt := range map[string]struct {
		t        coupon.Transition
		key, id  string
		contract string
	}{
		"issued": {transition(nil), "coupon.issued", "4711:1:issued", event.TypeIssued},
		"issued-never": {transition(func(t *coupon.Transition) {
			t.ExpiresAt, t.DueAt, t.BatchID, t.Issuer, t.Trace = coupon.Never, coupon.Never, "", "", ""
		}), "coupon.issued", "4711:1:issued", event.TypeIssued},
		"expired": {transition(toExpired), "coupon.expired", "4711:2:expired", event.TypeExpired},
		"expired-from-lock": {transition(func(t *coupon.Transition) {
			toExpired(t)
			t.From, t.Version, t.Cause, t.BatchID, t.Trace = coupon.Locked, 5, coupon.CauseLock, "", ""
			t.UserID = `名"字\<&>` + "\u2028"
		}), "coupon.expired", "4711:5:expired", event.TypeExpired},
		"expired-from-used": {transition(func(t *coupon.Transition) {
			toExpired(t)
			t.From, t.Version, t.Cause, t.OrderID = coupon.Used, 4, coupon.CauseRefund, "order-9"
			t.At = ends.Add(3 * time.Hour)
		}), "coupon.expired", "4711:4:expired", event.TypeExpired},
		"expired-late-lock": {transition(func(t *coupon.Transition) {
			toExpired(t)
			t.From, t.Version, t.Cause, t.OrderID, t.LockUntil = coupon.Locked, 3, coupon.CauseLock, "order-9", ends.Add(time.Minute)
			t.At = ends.Add(time.Minute + 21*time.Millisecond)
		}), "coupon.expired", "4711:3:expired", event.TypeExpired},
		"locked": {transition(func(t *coupon.Transition) {
			t.Version, t.From, t.To = 2, coupon.Unused, coupon.Locked
			byOrder(t)
		}), "coupon.locked", "4711:2:locked", event.TypeLocked},
		"locked-renewed": {transition(func(t *coupon.Transition) {
			t.Version, t.From, t.To = 3, coupon.Locked, coupon.Locked
			byOrder(t)
			t.ExpiresAt, t.DueAt = coupon.Never, coupon.Never
		}), "coupon.locked", "4711:3:locked", event.TypeLocked},
		"released": {transition(func(t *coupon.Transition) {
			t.Version, t.From, t.Cause, t.OrderID = 3, coupon.Locked, coupon.CauseLock, "order-9"
		}), "coupon.released", "4711:3:released", event.TypeReleased},
		"released-by-order": {transition(func(t *coupon.Transition) {
			t.Version, t.From = 3, coupon.Locked
			byOrder(t)
			t.Reason = "cancelled: \"too slow\""
		}), "coupon.released", "4711:3:released", event.TypeReleased},
		"used": {transition(func(t *coupon.Transition) {
			t.Version, t.From, t.To = 3, coupon.Locked, coupon.Used
			byOrder(t)
		}), "coupon.used", "4711:3:used", event.TypeUsed},
		"refunded": {transition(func(t *coupon.Transition) {
			t.Version, t.From = 4, coupon.Used
			byOrder(t)
			t.Cause, t.LockUntil = coupon.CauseRefund, time.Time{}
		}), "coupon.refunded", "4711:4:refunded", event.TypeRefunded},
		"extended": {transition(func(t *coupon.Transition) {
			t.Version, t.From, t.Cause, t.Reason = 2, coupon.Unused, coupon.CauseAdmin, "sorry for the outage"
			t.ExpiresAt, t.Previous = coupon.Never, ends
		}), "coupon.extended", "4711:2:extended", event.TypeExtended},
		"extended-under-lock": {transition(func(t *coupon.Transition) {
			t.Version, t.From, t.To, t.Cause, t.Reason = 3, coupon.Locked, coupon.Locked, coupon.CauseAdmin, "goodwill"
			t.OrderID, t.LockUntil, t.Previous = "order-9", granted.Add(time.Hour), coupon.Never
		}), "coupon.extended", "4711:3:extended", event.TypeExtended},
		"voided": {transition(func(t *coupon.Transition) {
			t.Version, t.From, t.To, t.Cause, t.Reason = 2, coupon.Unused, coupon.Voided, coupon.CauseAdmin, "fraud"
		}), "coupon.voided", "4711:2:voided", event.TypeVoided},
		"reinstated": {transition(func(t *coupon.Transition) {
			t.Version, t.From, t.Cause, t.Reason = 3, coupon.Expired, coupon.CauseAdmin, "ended an hour too early"
			t.At, t.Previous, t.ExpiresAt = ends.Add(time.Hour), ends, ends.Add(48*time.Hour)
			t.DueAt = t.ExpiresAt
		}), "coupon.reinstated", "4711:3:reinstated", event.TypeReinstated},
	} {
		t.Run(name, func(t *testing.T) {
			key, id, body, err := c.Transition(tt.t)
			require.NoError(t, err)
			require.Equal(t, tt.key, key)
			require.Equal(t, tt.id, id)
			golden(t, name, body)
			checkEvent(t, body, tt.contract, id, tt.t.UserID, tt.t.Trace)
			checkLife(t, tt.t, body)
		})
	}
}

func TestGoldenRefused(t *testing.T) {
	c := codec(t)
	grant := coupon.Grant{
		Issuer: "shop", Key: "autumn:user-81:1", TemplateID: 7, UserID: "user-81", BatchID: "autumn",
		EventID: "evt-1", Trace: trace,
	}
	refusal := coupon.Granted{Refused: coupon.CodeQuotaExhausted, Detail: "template_id: 7 has granted its 1000 coupons"}
	key, id, body, err := c.Refused(grant, refusal, granted)
	require.NoError(t, err)
	require.Equal(t, event.KeyRefused, key)
	require.Regexp(t, `^[0-9a-f]{64}:evt-1:refused$`, id)
	golden(t, "refused", body)
	checkEvent(t, body, event.TypeRefused, id, "user-81", trace)

	// The same delivery again: the same answer. Another issuer, key or event: another one.
	_, again, _, err := c.Refused(grant, refusal, granted)
	require.NoError(t, err)
	require.Equal(t, id, again)
	for _, change := range []func(*coupon.Grant){
		func(g *coupon.Grant) { g.Issuer = "" },
		func(g *coupon.Grant) { g.Key = "x" },
		func(g *coupon.Grant) { g.EventID = "evt-2" },
		func(g *coupon.Grant) { g.Issuer, g.Key = "shopa", "utumn:user-81:1" },
	} {
		other := grant
		change(&other)
		_, otherID, _, err := c.Refused(other, refusal, granted)
		require.NoError(t, err)
		require.NotEqual(t, id, otherID)
	}

	_, _, _, err = c.Refused(grant, coupon.Granted{CouponID: 1}, granted)
	require.ErrorContains(t, err, "was not refused")

	refusal.Detail = strings.Repeat("过", 1000)
	_, _, body, err = c.Refused(grant, refusal, granted)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("过", 170), data(t, body)["detail"])
}

// checkEvent holds an event against its schema and the CloudEvents SDK.
func checkEvent(t require.TestingT, body []byte, typ, id, user, traceparent string) {
	s := schema(t, typ)
	require.NoError(t, validate(s, body))
	documented := s.Properties["data"].Properties
	for field := range data(t, body) {
		require.Contains(t, documented, field, "a field that the schema does not tell of")
	}

	e := cloudevents.New()
	require.NoError(t, json.Unmarshal(body, &e))
	require.NoError(t, e.Validate())
	require.Equal(t, "1.0", e.SpecVersion())
	require.Equal(t, typ, e.Type())
	require.Equal(t, id, e.ID())
	require.Equal(t, "/lapse/test", e.Source())
	require.Equal(t, user, e.Extensions()["partitionkey"])
	if traceparent == "" {
		require.NotContains(t, e.Extensions(), "traceparent")
	} else {
		require.Equal(t, traceparent, e.Extensions()["traceparent"])
	}
}

// What the SDK makes of an event and writes again means the same.
func TestSDKRoundTrip(t *testing.T) {
	_, _, body, err := codec(t).Transition(transition(toExpired))
	require.NoError(t, err)
	e := cloudevents.New()
	require.NoError(t, json.Unmarshal(body, &e))
	again, err := json.Marshal(e)
	require.NoError(t, err)
	require.JSONEq(t, string(body), string(again))
	mine, err := event.DecodeExpired(body)
	require.NoError(t, err)
	theirs, err := event.DecodeExpired(again)
	require.NoError(t, err)
	require.Equal(t, mine, theirs)
}

func TestNoEventNoTransition(t *testing.T) {
	c := codec(t)
	told := map[[2]coupon.Status]bool{}
	all := []coupon.Status{0, coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided}
	for _, from := range all {
		for _, to := range all {
			tr := transition(func(t *coupon.Transition) { t.From, t.To, t.OrderID = from, to, "order-9" })
			if _, _, _, err := c.Transition(tr); err == nil {
				told[[2]coupon.Status{from, to}] = true
			} else {
				require.ErrorContains(t, err, fmt.Sprintf("none is defined for %s to %s", from, to))
			}
		}
	}
	const u, l, s, e, v = coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided
	require.Equal(t, map[[2]coupon.Status]bool{
		{0, u}: true, {u, l}: true, {l, l}: true, {l, u}: true, {l, s}: true, {u, s}: true, {s, u}: true,
		{u, e}: true, {l, e}: true, {s, e}: true, {u, v}: true, {l, v}: true, {e, u}: true,
	}, told, "the transitions of requirement R2")
	_, _, _, err := c.Transition(transition(func(t *coupon.Transition) {
		toExpired(t)
		t.ExpiresAt = coupon.Never
	}))
	require.ErrorContains(t, err, "without an end cannot expire")
	_, _, _, err = c.Transition(transition(func(t *coupon.Transition) { t.From = coupon.Unused })) // no end was moved
	require.ErrorContains(t, err, "none is defined for unused to unused")
}

func TestInstallation(t *testing.T) {
	for _, good := range []string{"a", "lapse", "eu-1.shop_2", strings.Repeat("x", 63)} {
		require.NoError(t, event.CheckInstallation(good))
	}
	for _, bad := range []string{"", "A", "-a", "a/b", "a b", "a\n", strings.Repeat("x", 64)} {
		_, err := event.NewCodec(bad)
		require.ErrorContains(t, err, "installation: must match")
	}
}

// Our writer escapes as encoding/json does, whatever the strings hold.
func TestWriterAgreesWithEncodingJSON(t *testing.T) {
	c := codec(t)
	anything := rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.StringOf(rapid.SampledFrom([]rune("\"\\/<>&\x00\b\f\n\r\t\x1f\x7f\u0080\u2027\u2028\u2029\ufffd\uffff😀a"))),
	)
	rapid.Check(t, func(t *rapid.T) {
		user, batch := anything.Draw(t, "user"), anything.Draw(t, "batch")
		tr := transition(toExpired)
		tr.UserID, tr.BatchID = user, batch
		tr.CouponID = rapid.Uint64().Draw(t, "id")
		_, _, body, err := c.Transition(tr)
		require.NoError(t, err)
		require.True(t, json.Valid(body))
		require.Contains(t, string(body), `,"user_id":`+stdlib(t, user)+`,`)
		if batch != "" {
			require.Contains(t, string(body), `,"batch_id":`+stdlib(t, batch)+`,`)
		}
		require.JSONEq(t, stdlib(t, data(t, body)["user_id"]), stdlib(t, user))
	})
}

func stdlib(t require.TestingT, v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	require.NoError(t, enc.Encode(v))
	return strings.TrimSuffix(b.String(), "\n")
}

// Whatever a transition holds, its event validates, and what is read is what was written.
func TestExpiredRoundTrip(t *testing.T) {
	c := codec(t)
	s := schema(t, event.TypeExpired)
	rapid.Check(t, func(t *rapid.T) {
		tr := anyExpiry(t)
		key, id, body, err := c.Transition(tr)
		require.NoError(t, err)
		require.Equal(t, "coupon.expired", key)
		require.NoError(t, validate(s, body))
		got, err := event.DecodeExpired(body)
		require.NoError(t, err)
		require.Equal(t, event.Expired{
			EventID: id, Source: "/lapse/test", Trace: tr.Trace, CouponID: tr.CouponID, UserID: tr.UserID,
			TemplateID: tr.Terms.TemplateID, BatchID: tr.BatchID, From: tr.From, OrderID: tr.OrderID,
			ExpiresAt: tr.ExpiresAt, ExpiredAt: tr.At,
			Lateness: tr.Lateness(), Cause: tr.Cause, Version: tr.Version, Value: tr.Terms.Value, Currency: tr.Terms.Currency,
		}, got)
	})
}

// keys draws ids as they may come in.
func keys(least int) *rapid.Generator[string] {
	return rapid.StringOfN(rapid.RuneFrom([]rune(`"\/<&'é过😀`+" \u2028\u00a0"), nil...).Filter(func(r rune) bool { return r >= ' ' }), least, 30, 128)
}

func anyExpiry(t *rapid.T) coupon.Transition {
	end := time.Unix(rapid.Int64Range(0, 253_370_000_000).Draw(t, "end"), 0).UTC()
	due := end.Add(time.Duration(rapid.IntRange(0, 539).Draw(t, "spread")) * time.Second)
	return coupon.Transition{
		CouponID: rapid.Uint64Min(1).Draw(t, "coupon"),
		Version:  rapid.Uint32Min(1).Draw(t, "version"),
		OrderID:  keys(0).Draw(t, "order"),
		From:     rapid.SampledFrom([]coupon.Status{coupon.Unused, coupon.Locked, coupon.Used}).Draw(t, "from"),
		To:       coupon.Expired,
		Cause:    rapid.SampledFrom([]coupon.Cause{coupon.CauseLadder, coupon.CauseSweep, coupon.CauseLazy, coupon.CauseLock}).Draw(t, "cause"),
		UserID:   keys(1).Draw(t, "user"),
		BatchID:  keys(0).Draw(t, "batch"),
		Terms: coupon.Terms{
			TemplateID: rapid.Uint64Min(1).Draw(t, "template"),
			Value:      rapid.Int64Min(0).Draw(t, "value"),
			Currency:   rapid.StringMatching(`[A-Z]{3}`).Draw(t, "currency"),
		},
		ExpiresAt: end, DueAt: due,
		At:    due.Add(time.Duration(rapid.Int64Range(-1_000_000, 1_000_000_000).Draw(t, "late")) * time.Millisecond),
		Trace: rapid.SampledFrom([]string{"", trace}).Draw(t, "trace"),
	}
}
