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

func expiring(change func(*coupon.Expiring)) coupon.Expiring {
	e := coupon.Expiring{
		CouponID: 4711, UserID: "user-81", TemplateID: 7, BatchID: "autumn", Version: 1, ExpiresAt: ends, Offset: "-3d",
		NotifyAt: ends.Add(-72 * time.Hour), Value: 1500, Currency: "CNY", Trace: trace,
	}
	if change != nil {
		change(&e)
	}
	return e
}

func TestGoldenExpiring(t *testing.T) {
	c := codec(t)
	for name, tt := range map[string]struct {
		e  coupon.Expiring
		id string
	}{
		"expiring": {expiring(nil), "4711:1793491200:expiring:-3d"},
		"expiring-clock": {expiring(func(e *coupon.Expiring) {
			e.Offset, e.NotifyAt, e.BatchID, e.Trace = "-1d@10:00", ends.Add(-38*time.Hour), "", ""
		}), "4711:1793491200:expiring:-1d@10:00"},
		"expiring-late": {expiring(func(e *coupon.Expiring) { e.Late, e.Version = true, 3 }), "4711:1793491200:expiring:-3d:3"},
	} {
		t.Run(name, func(t *testing.T) {
			key, id, body := c.Expiring(tt.e)
			require.Equal(t, event.KeyExpiring, key)
			require.Equal(t, tt.id, id)
			golden(t, name, body)
			checkEvent(t, body, event.TypeExpiring, id, tt.e.UserID, tt.e.Trace)
			got, err := event.DecodeExpiring(body)
			require.NoError(t, err)
			require.Equal(t, event.Expiring{EventID: id, Source: "/lapse/test", Expiring: tt.e}, got)
			_, err = event.DecodeLife(body)
			require.ErrorIs(t, err, event.ErrUnknownType)
		})
	}
}

func TestDecodeExpiringErrors(t *testing.T) {
	good := string(sample(t, "expiring"))
	s := schema(t, event.TypeExpiring)
	swap := func(from, to string) string {
		require.Contains(t, good, from)
		return strings.Replace(good, from, to, 1)
	}
	for _, tt := range []struct {
		body, want string
		kind       error
	}{
		{swap("coupon.expiring.v1", "coupon.expiring.v2"), "type: must be coupon.expiring.v1", event.ErrUnknownVersion},
		{swap("coupon.expiring.v1", "coupon.expired.v1"), "type: must be coupon.expiring.v1", event.ErrUnknownType},
		{swap(`"coupon_id":"4711"`, `"coupon_id":4711`), "data.coupon_id: must be a string of decimal digits", event.ErrMalformed},
		{swap(`"version":1`, `"version":0`), "data.version: must be an integer", event.ErrMalformed},
		{swap(`"offset":"-3d"`, `"offset":"3d"`), "data.offset: must be like", event.ErrMalformed},
		{swap(`"offset":"-3d"`, `"offset":"-000000000000003d"`), "data.offset: must have at most 16 bytes", event.ErrTooLarge},
		{swap(`"offset":"-3d"`, `"offset":null`), "data.offset: is required", event.ErrMalformed},
		{swap(`"notify_at":"2026-10-29T00:00:00Z"`, `"notify_at":"soon"`), "data.notify_at: must be an instant", event.ErrMalformed},
		{swap(`"notify_at":"2026-10-29T00:00:00Z"`, `"notify_at":"0001-01-01T00:00:00+01:00"`), "data.notify_at: must be from 1970 on", event.ErrMalformed},
		{swap(`"notify_at":"2026-10-29T00:00:00Z"`, `"notify_at":"2026-10-29T00:00:00Z","late":1`), "data.late: must be true or false", event.ErrMalformed},
		{swap(`"expires_at":"2026-11-01T00:00:00Z"`, `"expires_at":null`), "data.expires_at: is required", event.ErrMalformed},
		{swap(`"value":1500`, `"value":-1`), "data.value: must be an integer", event.ErrMalformed},
	} {
		_, err := event.DecodeExpiring([]byte(tt.body))
		require.ErrorContains(t, err, tt.want)
		require.ErrorIs(t, err, tt.kind)
		require.Error(t, validate(s, []byte(tt.body)), tt.body)
	}
	got, err := event.DecodeExpiring([]byte(swap(`"version":1`, `"version":1,"zone":{"a":[1]}`)))
	require.NoError(t, err)
	require.Equal(t, expiring(nil), got.Expiring)
}

// Whatever a reminder holds, its event validates, fits the outbox, and what is read is what was written.
func TestExpiringRoundTrip(t *testing.T) {
	c := codec(t)
	s := schema(t, event.TypeExpiring)
	rapid.Check(t, func(t *rapid.T) {
		offset := rapid.SampledFrom([]string{"-3d", "-1d", "-30m", "-90d", "-7200s", "-90d@23:59"}).Draw(t, "offset")
		o, err := coupon.ParseOffset(offset)
		require.NoError(t, err)
		end := time.Unix(rapid.Int64Range(9_000_000, 253_370_000_000).Draw(t, "end"), 0).UTC()
		e := coupon.Expiring{
			CouponID: rapid.Uint64Min(1).Draw(t, "coupon"), UserID: keys(1).Draw(t, "user"), TemplateID: rapid.Uint64Min(1).Draw(t, "template"),
			BatchID: keys(0).Draw(t, "batch"), Version: rapid.Uint32Min(1).Draw(t, "version"), ExpiresAt: end, Offset: offset,
			NotifyAt: o.NotifyAt(end, time.UTC), Late: rapid.Bool().Draw(t, "late"), Value: rapid.Int64Min(0).Draw(t, "value"),
			Currency: rapid.StringMatching(`[A-Z]{3}`).Draw(t, "currency"), Trace: rapid.SampledFrom([]string{"", trace}).Draw(t, "trace"),
		}
		key, id, body := c.Expiring(e)
		require.Equal(t, event.KeyExpiring, key)
		require.LessOrEqual(t, len(id), 200, "what the outbox holds")
		require.NoError(t, validate(s, body))
		got, err := event.DecodeExpiring(body)
		require.NoError(t, err)
		require.Equal(t, event.Expiring{EventID: id, Source: "/lapse/test", Expiring: e}, got)
	})
}
