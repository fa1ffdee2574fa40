package broker

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// header is a value of one of the kinds that AMQP knows.
func header(kind uint8, text string, number int64) any {
	kinds := []any{
		nil, true, text, []byte(text), number, int32(number), int16(number), int8(number), uint8(number), uint16(number), uint32(number),
		float64(number), time.Unix(number%1e9, 0),
		amqp.Table{"queue": text, "reason": number},
		[]any{amqp.Table{"queue": text, "reason": text}},
		[]any{text, number},
		[]any{},
		amqp.Decimal{Value: int32(number)},
	}
	return kinds[int(kind)%len(kinds)]
}

// Headers come from the broker and from whoever publishes: whatever they hold, a delivery is read, and what is sent again has none of what
// its earlier life left.
func FuzzHeaders(f *testing.F) {
	for kind := range uint8(18) {
		f.Add(kind, kind, kind, "a-queue", int64(3), "x-custom")
		f.Add(kind, uint8(2), uint8(4), strings.Repeat("q", 300), int64(-1), "x-first-death-queue")
	}
	f.Fuzz(func(t *testing.T, deaths, parked, counted uint8, text string, number int64, name string) {
		headers := amqp.Table{
			"x-death": header(deaths, text, number), HeaderOrigin: header(parked, text, number), HeaderReason: header(parked+1, text, number),
			HeaderAttempt: header(counted, text, number), "x-delivery-count": header(counted+1, text, number), HeaderTrace: header(deaths+1, text, number),
			"CC": header(parked, text, number), name: header(counted, text, number),
		}
		d := newDelivery("q", &amqp.Delivery{Headers: headers, MessageId: "m", Body: []byte(text), RoutingKey: text}, time.Unix(0, 0))
		require.True(t, d.Attempt >= 0 && d.DeliveryCount >= 0)
		require.LessOrEqual(t, len(d.Trace()), maxTrace)
		origin, reason := d.Aside()
		if want, ok := headers[HeaderOrigin].(string); ok && want != "" {
			require.Equal(t, want, origin)
			if why, ok := headers[HeaderReason].(string); ok {
				require.Equal(t, why, reason)
			}
		}

		m := d.Again("x", d.Key)
		require.Equal(t, d.Attempt, m.Attempt)
		revived := d.Revived("x", d.Key)
		require.Zero(t, revived.Attempt)
		for _, m := range []*Message{&m, &revived} {
			p, err := m.publishing()
			if err != nil {
				require.ErrorIs(t, err, ErrInvalid)
				continue
			}
			require.LessOrEqual(t, len(m.Key), maxShortString)
			require.NoError(t, p.Headers.Validate())
			for k := range p.Headers {
				require.True(t, !leftover(k) || k == HeaderAttempt && m.Attempt > 0, k)
			}
			again := newDelivery("q", &amqp.Delivery{Headers: p.Headers}, time.Unix(0, 0))
			require.Equal(t, m.Attempt, again.Attempt)
			require.Zero(t, again.DeliveryCount)
		}
		_, kept := revived.Headers[HeaderOrigin]
		require.False(t, kept)
	})
}
