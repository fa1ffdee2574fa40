package event_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

func TestDecodeOrderSamples(t *testing.T) {
	for name, tt := range map[string]struct {
		contentType, key string
		want             event.Order
	}{
		"in-order-paid": {event.ContentType + "; charset=UTF-8", "whatever", event.Order{
			Type: event.TypeOrderPaid, EventID: "evt-7", Trace: trace, OrderID: "order-9", UserID: "user-81", CouponIDs: []uint64{4711, 4712},
		}},
		"in-order-closed-plain": {plain, event.KeyOrderClosed, event.Order{
			Type: event.TypeOrderClosed, EventID: "msg-1", OrderID: "order-9", CouponIDs: []uint64{4711}, Reason: "not paid within 30 minutes",
		}},
		"in-order-payment-failed": {event.ContentType, "", event.Order{
			Type: event.TypeOrderPaymentFailed, EventID: "evt-8", OrderID: "order-9", CouponIDs: []uint64{4711},
		}},
		"in-order-refunded-part": {event.ContentType, event.KeyOrderRefunded, event.Order{
			Type: event.TypeOrderRefunded, EventID: "evt-9", OrderID: "order-9", CouponIDs: []uint64{4711}, Partial: true,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			body := sample(t, name)
			require.NoError(t, validate(schema(t, tt.want.Type), body))
			got, err := event.DecodeOrder(body, tt.contentType, "msg-1", tt.key)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

// What is no CloudEvent is of the type that the routing key names, with its version or without.
func TestTheRoutingKeyNamesThePlainOrder(t *testing.T) {
	body := sample(t, "in-order-closed-plain")
	for _, typ := range event.OrderTypes() {
		for _, key := range []string{typ, strings.TrimSuffix(typ, ".v1")} {
			got, err := event.DecodeOrder(body, "", "", key)
			require.NoError(t, err)
			require.Equal(t, typ, got.Type)
			require.False(t, got.Partial)
		}
	}
	for key, kind := range map[string]error{
		"": event.ErrUnknownType, "order": event.ErrUnknownType, "order.shipped": event.ErrUnknownType, "order.paid.x": event.ErrUnknownType,
		"order.paid.v2": event.ErrUnknownVersion, "order.closed.v10": event.ErrUnknownVersion, "coupon.grant.v1": event.ErrUnknownType,
	} {
		_, err := event.DecodeOrder(body, "", "", key)
		require.ErrorIs(t, err, kind, key)
		require.ErrorContains(t, err, "routing key: must name the type of what is no CloudEvent")
	}
}

func TestDecodeOrderErrors(t *testing.T) {
	s := schema(t, event.TypeOrderRefunded)
	const good = `{"specversion":"1.0","id":"e","source":"/s","type":"order.refunded.v1","data":{"order_id":"o","user_id":"u","coupon_ids":["7",8],"full":true}}`
	swap := func(from, to string) string {
		require.Contains(t, good, from)
		return strings.Replace(good, from, to, 1)
	}
	_, err := event.DecodeOrder([]byte(good), event.ContentType, "", "")
	require.NoError(t, err)
	require.NoError(t, validate(s, []byte(good)))
	for _, tt := range []struct {
		body, want  string
		kind        error
		schemaTakes bool // what a schema cannot say
	}{
		{"", "body is empty", event.ErrMalformed, false},
		{"[]", "body: must be a JSON object, got []", event.ErrMalformed, false},
		{good + strings.Repeat(" ", event.MaxBody), "too large", event.ErrTooLarge, true},
		{swap("order.refunded.v1", "order.refunded.v2"), `type: must be order.paid.v1, order.closed.v1, order.payment_failed.v1, order.refunded.v1, got "order.refunded.v2"`, event.ErrUnknownVersion, false},
		{swap("order.refunded.v1", "order.shipped.v1"), `type: must be order.paid.v1`, event.ErrUnknownType, false},
		{swap(`"1.0"`, `"2.0"`), `specversion: must be 1.0`, event.ErrUnknownVersion, false},
		{swap(`"e"`, `"`+strings.Repeat("x", 121)+`"`), `id: must have at most 120 bytes, has 121`, event.ErrTooLarge, false},
		{swap(`"data"`, `"date"`), `data: is required`, event.ErrMalformed, false},
		{swap(`"o"`, `""`), `data.order_id: must not be empty`, event.ErrMalformed, false},
		{swap(`"o"`, `7`), `data.order_id: must be a string, got 7`, event.ErrMalformed, false},
		{swap(`"o"`, `"`+strings.Repeat("x", 129)+`"`), `data.order_id: must have at most 128 bytes, has 129`, event.ErrTooLarge, false},
		{swap(`"o"`, `"a\u0000"`), `data.order_id: must not contain control characters`, event.ErrMalformed, false},
		{swap(`"order_id":"o",`, ``), `data.order_id: is required`, event.ErrMalformed, false},
		{swap(`"o"`, `"o","order_id":"p"`), `data.order_id: occurs twice`, event.ErrMalformed, true},
		{swap(`"u"`, `7`), `data.user_id: must be a string, got 7`, event.ErrMalformed, false},
		{swap(`["7",8]`, `null`), `data.coupon_ids: is required, got null`, event.ErrMalformed, false},
		{swap(`["7",8]`, `"7"`), `data.coupon_ids: must be an array, got "7"`, event.ErrMalformed, false},
		{swap(`["7",8]`, `[]`), `data.coupon_ids: must have between 1 and 10 members, got []`, event.ErrMalformed, false},
		{swap(`["7",8]`, `[1,2,3,4,5,6,7,8,9,10,11]`), `data.coupon_ids: must have between 1 and 10 members`, event.ErrTooLarge, false},
		{swap(`["7",8]`, `["7",8,"7"]`), `data.coupon_ids[2]: occurs twice, got "7"`, event.ErrMalformed, false},
		{swap(`["7",8]`, `["7",7]`), `data.coupon_ids[1]: occurs twice, got 7`, event.ErrMalformed, true},
		{swap(`["7",8]`, `["7",null]`), `data.coupon_ids[1]: is required, got null`, event.ErrMalformed, false},
		{swap(`["7",8]`, `["07"]`), `data.coupon_ids[0]: must be a positive decimal integer without leading zeros`, event.ErrMalformed, false},
		{swap(`["7",8]`, `[8.5]`), `data.coupon_ids[0]: must be a positive decimal integer`, event.ErrMalformed, false},
		{swap(`["7",8]`, `[9007199254740993]`), `data.coupon_ids[0]: is not exact as a number above 2^53-1, send a string`, event.ErrMalformed, false},
		{swap(`["7",8]`, `["18446744073709551616"]`), `data.coupon_ids[0]: must be a positive decimal integer`, event.ErrMalformed, true},
		{swap(`true`, `1`), `data.full: must be true or false, got 1`, event.ErrMalformed, false},
		{swap(`true`, `"false"`), `data.full: must be true or false, got "false"`, event.ErrMalformed, false},
		{swap(`"full"`, `"reason":["x"],"full"`), `data.reason: must be a string`, event.ErrMalformed, false},
	} {
		_, err := event.DecodeOrder([]byte(tt.body), "", "", "")
		require.ErrorContains(t, err, tt.want, cutTo(tt.body))
		require.ErrorIs(t, err, tt.kind, cutTo(tt.body))
		require.Equal(t, tt.schemaTakes, validate(s, []byte(tt.body)) == nil, cutTo(tt.body))
	}
	_, err = event.DecodeOrder([]byte(`{"order_id":7,"coupon_ids":["x","y"],"user_id":7}`), plain, "m", event.KeyOrderPaid)
	for _, field := range []string{"order_id: ", "user_id: ", "coupon_ids[0]: ", "coupon_ids[1]: "} {
		require.ErrorContains(t, err, field, "everything that is wrong is told")
	}
}

// A reason is a person's words: whatever they are, they do not park a payment.
func TestReasonsOfOrders(t *testing.T) {
	for in, want := range map[string]string{
		`null`: "", `" a\nb\u0000 "`: "a b", `"\ud800x"`: "x", `"` + strings.Repeat("过", 200) + `"`: strings.Repeat("过", 85),
	} {
		got, err := event.DecodeOrder([]byte(`{"order_id":"o","coupon_ids":[1],"reason":`+in+`}`), "", "", event.KeyOrderPaid)
		require.NoError(t, err)
		require.Equal(t, want, got.Reason)
	}
}

func anyOrder(t *rapid.T) event.Order {
	e := event.Order{
		Type:      rapid.SampledFrom(event.OrderTypes()).Draw(t, "type"),
		EventID:   keys(1).Filter(func(s string) bool { return len(s) <= 120 }).Draw(t, "id"),
		OrderID:   keys(1).Draw(t, "order"),
		UserID:    keys(0).Draw(t, "user"),
		CouponIDs: rapid.SliceOfNDistinct(rapid.Uint64Min(1), 1, coupon.MaxOrderCoupons, rapid.ID[uint64]).Draw(t, "coupons"),
		Reason:    strings.TrimSpace(keys(0).Draw(t, "reason")),
		Trace:     rapid.SampledFrom([]string{"", trace}).Draw(t, "trace"),
	}
	e.Partial = e.Type == event.TypeOrderRefunded && rapid.Bool().Draw(t, "partial")
	return e
}

// What Order writes validates and is read back.
func TestOrderRoundTrip(t *testing.T) {
	c := codec(t)
	rapid.Check(t, func(t *rapid.T) {
		want := anyOrder(t)
		key, body, err := c.Order(want, granted)
		require.NoError(t, err)
		require.Equal(t, strings.TrimSuffix(want.Type, ".v1"), key)
		require.NoError(t, validate(schema(t, want.Type), body))
		got, err := event.DecodeOrder(body, event.ContentType, "ignored", "ignored")
		require.NoError(t, err)
		require.Equal(t, want, got)
		o := coupon.Order{Verb: coupon.VerbRedeem, OrderID: got.OrderID, UserID: got.UserID, CouponIDs: got.CouponIDs, Reason: got.Reason}
		require.NoError(t, o.Validate(), "what is read can be asked for")
	})
	_, _, err := c.Order(event.Order{Type: "order.paid"}, granted)
	require.ErrorContains(t, err, `type: must be one of order.paid.v1, `)
}
