package broker

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever is in a bundle, each of its lines is handed on once, as it is; parked or taken apart, nothing of it is left out.
func FuzzUnbundle(f *testing.F) {
	f.Add([]byte("{\"id\":\"a\",\"type\":\"coupon.expired.v1\"}\n{\"id\":\"b\"}"), 0)
	f.Add([]byte("{\n\n{\"id\":1}\n\xff"), aloneFrom)
	f.Add([]byte(nil), 1)
	f.Fuzz(func(t *testing.T, body []byte, count int) {
		lines := strings.Split(string(body), "\n")
		var seen, sent []string
		u := Unbundling{Most: 3, Park: "x.park", Again: "x.replay"}
		out, err := u.Unbundle(func(_ context.Context, batch []Delivery) ([]Outcome, error) {
			out := make([]Outcome, len(batch))
			for i := range batch {
				seen, out[i] = append(seen, string(batch[i].Body)), Park("bad")
			}
			return out, nil
		})(t.Context(), []Delivery{{Queue: "x.notice", ContentType: contentTypeBundle, Body: body, DeliveryCount: count}})
		require.NoError(t, err)
		require.Len(t, out, 1)
		require.Equal(t, kindForward, out[0].kind)
		for _, m := range out[0].messages {
			sent = append(sent, string(m.Body))
		}
		require.Equal(t, lines, sent)
		if count < aloneFrom {
			require.Equal(t, lines, seen)
		} else {
			require.Empty(t, seen)
		}
	})
}
