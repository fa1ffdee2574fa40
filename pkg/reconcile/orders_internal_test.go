package reconcile

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// A line of an export is an order that can be held against coupons, or says which field is wrong.
func FuzzParseOrder(f *testing.F) {
	for _, seed := range []string{
		`{"order_id":"o","state":"paid","coupon_ids":["1","2"],"at":"2026-11-30T12:00:00Z"}`, `{"order_id":"o","state":"closed","coupon_ids":["1"],"at":"2026-11-30T12:00:00+08:00"}`,
		`{}`, `[]`, `null`, `{"order_id":"o"}{}`, `{"order_id":"","state":"Paid","coupon_ids":[],"at":null}`, `{"coupon_ids":["-1","0","x"]}`, `{"order_id":1}`, `{"at":"yesterday"}`, "\xff",
		`{"order_id":"` + strings.Repeat("o", 129) + `"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		o, err := parseOrder(line)
		if err != nil {
			for _, fault := range strings.Split(err.Error(), "\n") {
				field, _, _ := strings.Cut(fault, ":")
				require.True(t, slices.Contains([]string{"order_id", "state", "coupon_ids", "at"}, field) || strings.HasPrefix(fault, "must be an object"), fault)
			}
			return
		}
		require.True(t, o.OrderID != "" && len(o.OrderID) <= coupon.MaxText && !o.At.IsZero())
		require.True(t, len(o.ids) >= 1 && len(o.ids) <= coupon.MaxOrderCoupons)
		require.Len(t, o.ids, len(o.CouponIDs))
		for i, id := range o.ids {
			o.CouponIDs[i] = strconv.FormatUint(id, 10)
		}
		written, err := json.Marshal(o)
		require.NoError(t, err)
		again, err := parseOrder(written)
		require.NoError(t, err)
		require.True(t, o.At.Equal(again.At))
		again.At = o.At
		require.Equal(t, o, again)
	})
}
