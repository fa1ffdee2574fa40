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

func TestGoldenAtRisk(t *testing.T) {
	c := codec(t)
	a := coupon.AtRisk{
		UserID: "user-81", Day: "2026-10-31", EndsAt: ends, Coupons: 3, Offer: coupon.OfferGrant, At: granted,
		Totals: []coupon.Amount{{Minor: 4500, Currency: "CNY"}, {Minor: 1000, Currency: "USD"}}, CartedAt: granted.Add(-time.Hour),
	}
	key, id, body := c.AtRisk(a)
	require.Equal(t, event.KeyAtRisk, key)
	require.Equal(t, "user-81:2026-10-31:at_risk", id)
	golden(t, "at-risk", body)
	checkEvent(t, body, event.TypeAtRisk, id, "user-81", "")
	got, err := event.DecodeAtRisk(body)
	require.NoError(t, err)
	require.Equal(t, event.AtRisk{EventID: id, Source: "/lapse/test", AtRisk: a}, got)
}

func TestAtRiskRoundTrip(t *testing.T) {
	c := codec(t)
	s := schema(t, event.TypeAtRisk)
	rapid.Check(t, func(t *rapid.T) {
		instant := func(name string) time.Time {
			return time.UnixMilli(rapid.Int64Range(0, 253_370_000_000_000).Draw(t, name)).UTC()
		}
		a := coupon.AtRisk{
			UserID: keys(1).Draw(t, "user"), EndsAt: instant("ends").Truncate(time.Second), Coupons: rapid.IntRange(1, 1<<31-1).Draw(t, "coupons"),
			Offer: rapid.SampledFrom(coupon.AtRiskOffers()).Draw(t, "offer"), At: instant("at"), BrowsedAt: instant("browsed"),
		}
		a.Day = a.EndsAt.Format(time.DateOnly)
		for i := range rapid.IntRange(0, 3).Draw(t, "totals") {
			a.Totals = append(a.Totals, coupon.Amount{Minor: rapid.Int64Min(0).Draw(t, "minor"), Currency: []string{"CNY", "EUR", "USD"}[i]})
		}
		_, id, body := c.AtRisk(a)
		require.LessOrEqual(t, len(id), 200, "what the outbox holds")
		require.NoError(t, validate(s, body))
		got, err := event.DecodeAtRisk(body)
		require.NoError(t, err)
		require.Equal(t, a, got.AtRisk)
	})
}

func TestDecodeAtRiskErrors(t *testing.T) {
	good := string(sample(t, "at-risk"))
	s := schema(t, event.TypeAtRisk)
	for from, to := range map[string]string{
		`"user_id":"user-81"`: `"user_id":""`, `"day":"2026-10-31"`: `"day":"31.10.2026"`, `"coupons":3`: `"coupons":0`,
		`"minor":4500`: `"minor":-1`, `"offer":"grant"`: `"offer":"car"`, `"currency":"USD"`: `"currency":7`,
		`"ends_at":"2026-11-01T00:00:00Z"`: `"ends_at":null`, `"totals":[`: `"totals":[7,`, `.v1"`: `.v2"`,
	} {
		require.Contains(t, good, from)
		body := []byte(strings.Replace(good, from, to, 1))
		_, err := event.DecodeAtRisk(body)
		require.Error(t, err, to)
		require.Error(t, validate(s, body), to)
	}
}
