package event_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

// checkLife reads a transition's event as any consumer of a coupon's life does.
func checkLife(t require.TestingT, tr coupon.Transition, body []byte) {
	got, err := event.DecodeLife(body)
	require.NoError(t, err)
	order := tr.OrderID
	if got.Type == event.TypeExtended {
		order = "" // the event does not tell of the lock, which stays
	}
	require.Equal(t, event.Life{
		EventID: got.EventID, Source: "/lapse/test", Trace: tr.Trace, Type: got.Type, CouponID: tr.CouponID, Version: tr.Version,
		UserID: tr.UserID, TemplateID: tr.Terms.TemplateID, BatchID: tr.BatchID, From: tr.From, To: tr.To, At: tr.At,
		ExpiresAt: tr.ExpiresAt, OrderID: order, Cause: tr.Cause, Value: tr.Terms.Value, Currency: tr.Terms.Currency,
	}, got)
	require.Equal(t, tr.From == tr.To && !tr.Previous.IsZero(), got.Moved())
	require.Equal(t, tr.From == tr.To && tr.Previous.IsZero(), got.Renewed())
}

func TestDecodeLifeErrors(t *testing.T) {
	good := string(sample(t, "used"))
	swap := func(from, to string) string {
		require.Contains(t, good, from)
		return strings.Replace(good, from, to, 1)
	}
	for _, tt := range []struct {
		body, want string
		kind       error
	}{
		{swap("coupon.used.v1", "coupon.used.v2"), `type: must be coupon.issued.v1, coupon.locked.v1, `, event.ErrUnknownVersion},
		{swap("coupon.used.v1", "coupon.refused.v1"), "type: must be", event.ErrUnknownType},
		{string(sample(t, "redeem-refused")), "type: must be", event.ErrUnknownType},
		{swap(`"from":"locked"`, `"from":"used"`), `data.from: must be unused or locked, got "used"`, event.ErrMalformed},
		{swap(`"from":"locked"`, `"x":1`), "data.from: is required", event.ErrMalformed},
		{swap(`"order_id":"order-9"`, `"order_id":null`), "data.order_id: is required", event.ErrMalformed},
		{swap(`"used_at"`, `"used"`), "data.used_at: is required", event.ErrMalformed},
		{swap(`"expires_at"`, `"expires"`), "data.expires_at: is required", event.ErrMalformed},
		{swap(`"cause":"order"`, `"cause":7`), "data.cause: must be a string", event.ErrMalformed},
		{swap(`"value":1500`, `"value":1.5`), "data.value: must be an integer", event.ErrMalformed},
	} {
		_, err := event.DecodeLife([]byte(tt.body))
		require.ErrorContains(t, err, tt.want)
		require.ErrorIs(t, err, tt.kind)
		if !errors.Is(tt.kind, event.ErrUnknownType) {
			require.Error(t, validate(schema(t, event.TypeUsed), []byte(tt.body)), tt.body)
		}
	}
}

// Events of the first release validate against today's schemas and are read by today's readers, for ever.
func TestFrozenEvents(t *testing.T) {
	files, err := filepath.Glob("testdata/frozen/*-1.json")
	require.NoError(t, err)
	require.Len(t, files, 6)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), "-1.json")
		body := sample(t, "frozen/"+name+"-1")
		typ := "coupon." + strings.Split(name, "-")[0] + ".v1"
		require.NoError(t, validate(schema(t, typ), body), name)
		if name == "refused" {
			continue
		}
		l, err := event.DecodeLife(body)
		require.NoError(t, err, name)
		require.Equal(t, typ, l.Type)
		require.EqualValues(t, 4711, l.CouponID)
		if typ == event.TypeExpired {
			e, err := event.DecodeExpired(body)
			require.NoError(t, err)
			require.Empty(t, e.OrderID)
			require.Equal(t, l.At, e.ExpiredAt)
		}
	}
}

func TestGoldenRedeemRefused(t *testing.T) {
	c := codec(t)
	r := coupon.RedeemRefused{
		CouponID: 4711, OrderID: "order-9", UserID: "user-81", TemplateID: 7, Code: coupon.CodeLockedByOther, State: coupon.Locked,
		Value: 1500, Currency: "CNY", At: granted, Trace: trace,
	}
	key, id, body, err := c.RedeemRefused(r)
	require.NoError(t, err)
	require.Equal(t, event.KeyRedeemRefused, key)
	require.Equal(t, "4711:order-9:redeem_refused", id)
	golden(t, "redeem-refused", body)
	checkEvent(t, body, event.TypeRedeemRefused, id, "user-81", trace)

	// Of a coupon that does not exist, for an order that names no user, with the longest ids.
	none := coupon.RedeemRefused{CouponID: 1<<64 - 1, OrderID: strings.Repeat("o", event.MaxID), Code: coupon.CodeNotFound, At: granted}
	_, id, body, err = c.RedeemRefused(none)
	require.NoError(t, err)
	require.LessOrEqual(t, len(id), 200, "what the outbox holds")
	require.NoError(t, validate(schema(t, event.TypeRedeemRefused), body))
	require.NotContains(t, string(body), "partitionkey")
	require.Nil(t, data(t, body)["state"])

	_, _, _, err = c.RedeemRefused(coupon.RedeemRefused{CouponID: 1})
	require.ErrorContains(t, err, "was not refused")
}
