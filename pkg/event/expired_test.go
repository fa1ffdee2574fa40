package event_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/event"
)

func TestDecodeExpiredErrors(t *testing.T) {
	good := string(sample(t, "expired"))
	s := schema(t, event.TypeExpired)
	swap := func(from, to string) string { return strings.Replace(good, from, to, 1) }
	for _, tt := range []struct {
		body, want string
		kind       error
	}{
		{swap("coupon.expired.v1", "coupon.expired.v2"), "type: must be coupon.expired.v1", event.ErrUnknownVersion},
		{swap("coupon.expired.v1", "coupon.issued.v1"), "type: must be coupon.expired.v1", event.ErrUnknownType},
		{swap(`"coupon_id":"4711"`, `"coupon_id":4711`), "data.coupon_id: must be a string of decimal digits, got 4711", event.ErrMalformed},
		{swap(`"user_id":"user-81"`, `"user_id":""`), "data.user_id: must not be empty", event.ErrMalformed},
		{swap(`"version":2`, `"version":0`), "data.version: must be an integer between 1 and 4294967295, got 0", event.ErrMalformed},
		{swap(`"version":2`, `"version":"2"`), "data.version: must be an integer", event.ErrMalformed},
		{swap(`"lateness_ms":187`, `"lateness_ms":1.5`), "data.lateness_ms: must be an integer", event.ErrMalformed},
		{swap(`"from":"unused"`, `"from":"voided"`), `data.from: must be unused, locked or used, got "voided"`, event.ErrMalformed},
		{swap(`"expires_at":"2026-11-01T00:00:00Z"`, `"expires_at":null`), "data.expires_at: is required, got null", event.ErrMalformed},
		{swap(`"value":1500`, `"value":-1`), "data.value: must be an integer", event.ErrMalformed},
		{swap(`"currency":"CNY"`, `"currency":"yuan"`), "data.currency: must have at most 3 bytes", event.ErrTooLarge},
	} {
		_, err := event.DecodeExpired([]byte(tt.body))
		require.ErrorContains(t, err, tt.want)
		require.ErrorIs(t, err, tt.kind)
		require.Error(t, validate(s, []byte(tt.body)), tt.body)
	}
	// Unknown fields are for newer readers.
	got, err := event.DecodeExpired([]byte(swap(`"version":2`, `"version":2,"reason":{"a":[1]}`)))
	require.NoError(t, err)
	want, err := event.DecodeExpired([]byte(good))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// What no table can hold is malformed: the database's driver would refuse it as if the database were away, and the
// reader would wait for ever.
func TestDecodeExpiredRefusesInstantsThatCannotBeStored(t *testing.T) {
	t.Parallel()
	good := string(sample(t, "expired"))
	for _, at := range []string{"9999-12-31T23:59:59-05:00", "0000-01-01T00:00:00+05:00", "0000-01-01T00:00:00Z", "9999-12-31T00:00:00Z"} {
		body := strings.Replace(good, `"expires_at":"2026-11-01T00:00:00Z"`, `"expires_at":"`+at+`"`, 1)
		_, err := event.DecodeExpired([]byte(body))
		require.ErrorIs(t, err, event.ErrMalformed, body)
		require.ErrorContains(t, err, "data.expires_at: must be from 1970 on", body)
	}
}
