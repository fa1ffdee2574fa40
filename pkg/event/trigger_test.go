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

var trigger = coupon.Trigger{
	Kind: coupon.KindExpire, CouponID: 4711, At: ends,
	ID: coupon.TriggerID(coupon.SentByVerb, 4711, 1), Origin: coupon.OriginLadder,
}

func TestGoldenTrigger(t *testing.T) {
	golden(t, "trigger", codec(t).Trigger(trigger))
}

// The samples of the first release are never written anew: messages wait on
// the ladder for a year.
func TestFormatOneIsReadForEver(t *testing.T) {
	for name, want := range map[string]coupon.Trigger{
		"frozen/trigger-1-expire": trigger,
		"frozen/trigger-1-unlock": {
			Kind: coupon.KindUnlock, CouponID: 18446744073709551615, At: ends.Add(-time.Hour),
			ID: "p18446744073709551615.4294967295", Origin: coupon.OriginRebuild, Attempt: 4,
		},
	} {
		got, err := event.DecodeTrigger(sample(t, name))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestTriggerRoundTrip(t *testing.T) {
	c, s := codec(t), schema(t, "trigger.1")
	rapid.Check(t, func(t *rapid.T) {
		want := coupon.Trigger{
			Kind:     rapid.SampledFrom([]coupon.Kind{coupon.KindExpire, coupon.KindUnlock}).Draw(t, "kind"),
			CouponID: rapid.Uint64Min(1).Draw(t, "id"),
			At:       time.Unix(rapid.Int64Range(0, 253_402_300_799).Draw(t, "at"), 0).UTC(),
			ID:       rapid.StringMatching(`[ -!#-\[\]-~]{1,64}`).Draw(t, "trigger"),
			Origin:   rapid.SampledFrom([]coupon.Origin{coupon.OriginLadder, coupon.OriginLazy, coupon.OriginRebuild}).Draw(t, "origin"),
			Attempt:  rapid.IntRange(0, 999).Draw(t, "attempt"),
		}
		body := c.Trigger(want)
		require.Less(t, len(body), 200)
		require.NoError(t, validate(s, body))
		got, err := event.DecodeTrigger(body)
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
	odd := trigger
	odd.At = odd.At.Add(10 * time.Millisecond)
	got, err := event.DecodeTrigger(c.Trigger(odd))
	require.NoError(t, err)
	require.Equal(t, odd, got)
}

func TestDecodeTriggerErrors(t *testing.T) {
	good := string(codec(t).Trigger(trigger))
	s := schema(t, "trigger.1")
	for _, tt := range []struct {
		body, want string
		kind       error
	}{
		{"", "the body is empty", event.ErrMalformed},
		{"{", "byte 1: unexpected end", event.ErrMalformed},
		{"7", "body: must be a JSON object, got 7", event.ErrMalformed},
		{good + "{}", "invalid character", event.ErrMalformed},
		{strings.Replace(good, "4711", "\xff", 1), "not UTF-8", event.ErrMalformed},
		{strings.Repeat(" ", 4096) + good, "too large", event.ErrTooLarge},
		{strings.Replace(good, `"v":1`, `"v":2`, 1), "v: must be 1, got 2", event.ErrUnknownVersion},
		{strings.Replace(good, `"v":1,`, ``, 1), "v: is required", event.ErrMalformed},
		{strings.Replace(good, `"v":1`, `"v":1,"x":[2]`, 1), "x: is not a field of a trigger, got [2]", event.ErrMalformed},
		{strings.Replace(good, `"v":1`, `"v":1,"v":1`, 1), "v: occurs twice", event.ErrMalformed},
		{strings.Replace(good, `expire`, `remind`, 1), `kind: must be expire or unlock, got "remind"`, event.ErrMalformed},
		{strings.Replace(good, `"4711"`, `4711`, 1), "coupon_id: must be a string of decimal digits, got 4711", event.ErrMalformed},
		{strings.Replace(good, `"4711"`, `"04711"`, 1), `coupon_id: must be a positive decimal integer`, event.ErrMalformed},
		{strings.Replace(good, `"4711"`, `""`, 1), `coupon_id: must be a positive decimal integer`, event.ErrMalformed},
		{strings.Replace(good, `"4711"`, `null`, 1), `coupon_id: is required, got null`, event.ErrMalformed},
		{strings.Replace(good, `:00Z`, `:00`, 1), `at: must be an instant in RFC 3339 with a zone`, event.ErrMalformed},
		{strings.Replace(good, `"ladder"`, `"sweep"`, 1), `origin: must be ladder, lazy or rebuild, got "sweep"`, event.ErrMalformed},
		{strings.Replace(good, `:0}`, `:-1}`, 1), `attempt: must be an integer between 0 and 999, got -1`, event.ErrMalformed},
		{strings.Replace(good, `:0}`, `:0.5}`, 1), `attempt: must be an integer`, event.ErrMalformed},
		{strings.Replace(good, `"v4711.1"`, `"`+strings.Repeat("x", 65)+`"`, 1), `id: must have at most 64 bytes, has 65`, event.ErrTooLarge},
		{strings.Replace(good, `"v4711.1"`, `"a\u0000"`, 1), `id: must not contain control characters`, event.ErrMalformed},
	} {
		_, err := event.DecodeTrigger([]byte(tt.body))
		require.ErrorContains(t, err, tt.want, tt.body)
		require.ErrorIs(t, err, tt.kind)
		if strings.HasPrefix(tt.body, "{") && !strings.Contains(tt.want, "occurs twice") && !strings.Contains(tt.want, "control") {
			require.Error(t, validate(s, []byte(tt.body)), tt.body)
		}
	}
}
