package event_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

// seeds are all samples, and what trips readers.
func seeds(f *testing.F) [][]byte {
	var all [][]byte
	for _, pattern := range []string{"testdata/*.json", "testdata/frozen/*.json"} {
		files, err := filepath.Glob(pattern)
		require.NoError(f, err)
		for _, file := range files {
			raw, err := os.ReadFile(file)
			require.NoError(f, err)
			all = append(all, raw)
		}
	}
	for _, s := range []string{"", "{}", "[]", "null", `{"":{}}`, `{"a":"\`, `{"grants":[{},[],1,null,"x"]}`, `{"grants":[{"grant_key":"\ud83d\ude00"}]}`, "\ufeff{}", `{"v":1,"v":1}`} {
		all = append(all, []byte(s))
	}
	return all
}

func FuzzDecodeTrigger(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	c := codec(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := event.DecodeTrigger(body)
		if err != nil {
			return
		}
		again, err := event.DecodeTrigger(c.Trigger(got))
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}

func FuzzDecodeIssuance(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed, "", "")
		f.Add(seed, event.ContentType, "m")
	}
	c := codec(f)
	f.Fuzz(func(t *testing.T, body []byte, contentType, messageID string) {
		in, err := event.DecodeIssuance(body, contentType, messageID)
		if err != nil {
			return
		}
		require.NotEmpty(t, in.EventID)
		require.NotZero(t, len(in.Grants)+len(in.Rejected))
		require.LessOrEqual(t, len(in.Grants)+len(in.Rejected), event.MaxGrants)
		for _, rejected := range in.Rejected {
			require.Error(t, rejected.Err)
			require.True(t, json.Valid(rejected.Raw))
		}
		for _, g := range in.Grants {
			for _, s := range []string{g.Key, g.UserID, g.BatchID, g.Issuer} {
				require.LessOrEqual(t, len(s), event.MaxID)
			}
			require.NotZero(t, g.TemplateID)
			require.True(t, g.ExpiresAt.IsZero() || g.ExpiresAt.Equal(coupon.CeilSecond(g.ExpiresAt)))
		}
		if len(in.Grants) == 0 {
			return
		}
		written, err := c.Grants(in.EventID, granted, in.Grants)
		require.NoError(t, err)
		again, err := event.DecodeIssuance(written, event.ContentType, "")
		require.NoError(t, err)
		require.Empty(t, again.Rejected)
		for i := range in.Grants {
			in.Grants[i].Trace = "" // of the envelope, which Grants writes anew
		}
		require.Equal(t, in.Grants, again.Grants)
	})
}

func FuzzDecodeExpired(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := event.DecodeExpired(body)
		if err != nil {
			return
		}
		require.True(t, json.Valid(body))
		require.NotEmpty(t, got.EventID)
		require.NotZero(t, got.CouponID)
		require.NotZero(t, got.Version)
		require.False(t, got.ExpiresAt.IsZero() && got.ExpiredAt.IsZero() && got.UserID == "")
	})
}

func FuzzDecodeExpiring(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	c := codec(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := event.DecodeExpiring(body)
		if err != nil {
			return
		}
		require.NotZero(t, got.CouponID)
		require.NotZero(t, got.Version)
		_, err = coupon.ParseOffset(got.Offset)
		require.NoError(t, err)
		// What is written of it is read as the same, to the second.
		got.NotifyAt = got.NotifyAt.Truncate(time.Second)
		if got.ExpiresAt = coupon.CeilSecond(got.ExpiresAt); coupon.IsNever(got.ExpiresAt) {
			return
		}
		_, id, written := c.Expiring(got.Expiring)
		again, err := event.DecodeExpiring(written)
		require.NoError(t, err)
		require.Equal(t, id, again.EventID)
		require.Equal(t, got.Expiring, again.Expiring)
	})
}

func FuzzDecodeOrder(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed, "", "", event.KeyOrderPaid)
		f.Add(seed, event.ContentType, "m", "")
	}
	f.Add([]byte(`{"order_id":"o","coupon_ids":[1,"2"]}`), plain, "m", event.TypeOrderRefunded)
	c := codec(f)
	f.Fuzz(func(t *testing.T, body []byte, contentType, messageID, key string) {
		got, err := event.DecodeOrder(body, contentType, messageID, key)
		if err != nil {
			return
		}
		require.NotEmpty(t, got.EventID)
		require.Contains(t, event.OrderTypes(), got.Type)
		o := coupon.Order{Verb: coupon.VerbRefund, OrderID: got.OrderID, UserID: got.UserID, CouponIDs: got.CouponIDs, Reason: got.Reason}
		require.NoError(t, o.Validate())
		_, written, err := c.Order(got, granted)
		require.NoError(t, err)
		again, err := event.DecodeOrder(written, event.ContentType, "", "")
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}

func FuzzDecodeUser(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed, "", "", event.KeyUserProfile)
		f.Add(seed, event.ContentType, "m", "")
	}
	c := codec(f)
	f.Fuzz(func(t *testing.T, body []byte, contentType, messageID, key string) {
		got, err := event.DecodeUser(body, contentType, messageID, key)
		if err != nil {
			return
		}
		require.NotEmpty(t, got.EventID)
		require.False(t, got.At.IsZero())
		_, written := c.User(got.EventID, got.UserEvent)
		again, err := event.DecodeUser(written, event.ContentType, "", "")
		require.NoError(t, err)
		got.Unknown = nil
		require.Equal(t, got, again)
	})
}

func FuzzDecodeAtRisk(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := event.DecodeAtRisk(body)
		if err != nil {
			return
		}
		require.NotEmpty(t, got.UserID)
		require.NotZero(t, got.Coupons)
		require.False(t, got.At.IsZero() || got.EndsAt.IsZero())
	})
}

func FuzzDecodeHeartbeat(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	c, t := codec(f), transition(toExpired)
	t.Terms.TemplateID = 0
	_, _, body, err := c.Transition(t)
	require.NoError(f, err)
	f.Add(body)
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := event.DecodeHeartbeat(body)
		if err != nil {
			require.ErrorContains(t, err, "decode "+event.TypeHeartbeat)
			require.Zero(t, got)
			return
		}
		require.True(t, got.Precision.Valid())
		require.True(t, got.Ended.Equal(coupon.CeilSecond(got.Ended)))
	})
}

func FuzzDecodeLife(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := event.DecodeLife(body)
		if err != nil {
			return
		}
		require.Contains(t, event.LifeTypes(), got.Type)
		require.NotZero(t, got.CouponID)
		require.NotZero(t, got.Version)
		require.NotZero(t, got.To)
	})
}

func BenchmarkTrigger(b *testing.B) {
	c := codec(b)
	b.ReportAllocs()
	for b.Loop() {
		_ = c.Trigger(trigger)
	}
}

func BenchmarkDecodeTrigger(b *testing.B) {
	body := codec(b).Trigger(trigger)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = event.DecodeTrigger(body)
	}
}

func BenchmarkExpired(b *testing.B) {
	c, t := codec(b), transition(toExpired)
	b.ReportAllocs()
	for b.Loop() {
		_, _, _, _ = c.Transition(t)
	}
}

func BenchmarkDecodeExpired(b *testing.B) {
	body := sample(b, "expired")
	b.ReportAllocs()
	for b.Loop() {
		_, _ = event.DecodeExpired(body)
	}
}

func BenchmarkDecodeIssuance(b *testing.B) {
	grants := make([]coupon.Grant, 1000)
	for i := range grants {
		grants[i] = coupon.Grant{Key: "autumn:user-81:1", TemplateID: 7, UserID: "user-81", BatchID: "autumn"}
	}
	body, err := codec(b).Grants("evt", granted, grants)
	require.NoError(b, err)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		_, _ = event.DecodeIssuance(body, event.ContentType, "")
	}
}
