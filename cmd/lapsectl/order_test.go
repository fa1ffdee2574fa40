package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestOrderSend(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	t.Cleanup(func() { require.NoError(t, c.client.Delete(c.ctx(), part(c.ladder, c.ladder.Orders()))) })
	require.Equal(t, "sent order.paid of order o-1, coupons 7, 8, 18446744073709551615: event e1\n",
		c.ok("order", "send", "paid", "--order=o-1", "--coupon=7", "--coupon=8,18446744073709551615", "--user=u", "--id=e1"))
	require.Contains(t, c.ok("order", "send", "order.refunded.v1", "--order=o-1", "--coupon=7", "--partial", "--reason=broken", "--id=e2"), "event e2")
	require.Contains(t, c.ok("order", "send", "order.payment_failed", "--order=o-2", "--coupon=9"), "event lapsectl-")
	for _, want := range []event.Order{
		{Type: event.TypeOrderPaid, EventID: "e1", OrderID: "o-1", UserID: "u", CouponIDs: []uint64{7, 8, 1<<64 - 1}},
		{Type: event.TypeOrderRefunded, EventID: "e2", OrderID: "o-1", CouponIDs: []uint64{7}, Partial: true, Reason: "broken"},
		{Type: event.TypeOrderPaymentFailed, OrderID: "o-2", CouponIDs: []uint64{9}},
	} {
		var d broker.Delivery
		testenv.Wait(t, "the event", func() bool {
			var ok bool
			var err error
			d, ok, err = c.client.Get(c.ctx(), c.ladder.Orders())
			require.NoError(t, err)
			return ok
		})
		require.Equal(t, strings.TrimSuffix(want.Type, ".v1"), d.Key)
		got, err := event.DecodeOrder(d.Body, d.ContentType, d.MessageID, "")
		require.NoError(t, err)
		if want.EventID == "" {
			want.EventID = got.EventID
		}
		require.Equal(t, want.EventID, d.MessageID)
		require.Equal(t, want, got)
	}
}

func TestOrderSendRefusesWhatItCannotMean(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for args, want := range map[string]string{
		"shipped --order=o --coupon=1":                             `TYPE: must be paid, closed, payment_failed or refunded, got "shipped"`,
		"paid --coupon=1":                                          "missing flags: --order=ID",
		"paid --order=o":                                           "missing flags: --coupon=ID",
		"paid --order= --coupon=1":                                 "--order: must not be empty",
		"paid --order=o --coupon=07":                               `--coupon: must be an id, a whole number from 1 on, got "07"`,
		"paid --order=o --coupon=7,7":                              "--coupon: 7 is given twice",
		"paid --order=o --coupon=1,2,3,4,5,6,7,8,9,10,11":          "--coupon: must be given at most 10 times, got 11",
		"paid --order=o --coupon=1 --partial":                      "--partial goes with refunded",
		"paid --order=" + strings.Repeat("x", 129) + " --coupon=1": "--order: must have at most 128 bytes, has 129",
		"paid --order=o --coupon=1 --user=\x7f":                    "--user: must not contain control characters",
	} {
		r := lapsectl(t.Context(), nil, dir, append([]string{"order", "send"}, strings.Fields(args)...)...)
		require.Equal(t, exitError, r.code, args)
		require.Contains(t, r.stderr, want, args)
	}
}
