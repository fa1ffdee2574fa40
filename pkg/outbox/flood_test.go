package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
)

// The broker refuses more rows than are remembered, in the middle of a walk. Once it takes them, all are relayed.
func TestAFloodOfRefusalsDoesNotStopTheLaneForEver(t *testing.T) {
	t.Parallel()
	const rows = 66_000
	closed := true
	onFakes(t, func(b *bench) {
		there := make([]coupon.Outgoing, rows)
		for i := range there {
			there[i] = coupon.Outgoing{
				Lane: coupon.LaneTrigger, Part: i % coupon.Partitions, CouponID: uint64(i), MsgID: fmt.Sprint(i), Key: "expire", Class: 'x',
			}
		}
		b.store.insert(there...)
		b.mq.answer = func(string, int) error {
			if closed {
				return broker.ErrReturned
			}
			return nil
		}
	}, func(b *bench) {
		in(time.Second)
		b.mq.mu.Lock()
		closed = false
		b.mq.mu.Unlock()
		in(time.Minute)
		require.Zero(t, b.store.left())
		require.Empty(t, b.store.aside())
	})
}
