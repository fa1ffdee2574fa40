package gateway_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/notice/gateway"
	"github.com/lapsehq/lapse/pkg/rig/receive"
	"github.com/lapsehq/lapse/pkg/secret"
)

// TestTheSignatureOfTheDocument: the worked example of docs/channels.md.
func TestTheSignatureOfTheDocument(t *testing.T) {
	h := http.Header{}
	gateway.Sign("2026-11", secret.New("example-key-0123456789"), h, []byte(`{"notice_id":"4711-sms"}`), time.Unix(1793520000, 0))
	require.Equal(t, http.Header{
		"Lapse-Key": {"2026-11"}, "Lapse-Timestamp": {"1793520000"},
		"Lapse-Signature": {"v1=a79fda7589f1ebe857bce721e80dfd1a701e03635f43145f69c09a15039a55ff"},
	}, h)
}

func keys() map[string]secret.String {
	return map[string]secret.String{"old": secret.New("old-key-0123456789"), "new": secret.New("new-key-0123456789"), "empty": {}}
}

func TestVerify(t *testing.T) {
	now, body := time.Unix(1793520000, 0), []byte(`{"a":1}`)
	signed := func(id, key string, at time.Time) http.Header {
		h := http.Header{}
		gateway.Sign(id, secret.New(key), h, body, at)
		return h
	}
	for _, id := range []string{"old", "new"} {
		for _, off := range []time.Duration{0, gateway.Window, -gateway.Window, time.Minute} {
			require.NoError(t, verify(keys(), signed(id, id+"-key-0123456789", now.Add(off)), body, now))
		}
		for _, off := range []time.Duration{gateway.Window + time.Second, -gateway.Window - time.Second, 1e6 * time.Hour} {
			require.ErrorIs(t, verify(keys(), signed(id, id+"-key-0123456789", now.Add(off)), body, now), gateway.ErrSignature)
		}
	}
	good := signed("new", "new-key-0123456789", now)
	at, err := gateway.Keys(keys()).Verify(good, body, now.Add(time.Second))
	require.NoError(t, err)
	require.True(t, at.Equal(now))
	require.Equal(t, "new", gateway.Keys(nil).Key(good))
	changed := func(name string, values ...string) http.Header {
		h := good.Clone()
		h[name] = values
		return h
	}
	right := good.Get(gateway.HeaderSignature)
	for name, h := range map[string]http.Header{
		"another key":       signed("new", "old-key-0123456789", now),
		"unknown key":       signed("none", "new-key-0123456789", now),
		"empty key":         signed("empty", "", now),
		"nothing":           {},
		"no key":            changed(gateway.HeaderKey),
		"two keys":          changed(gateway.HeaderKey, "new", "old"),
		"two stamps":        changed(gateway.HeaderTimestamp, "1793520000", "1"),
		"two signatures":    changed(gateway.HeaderSignature, right, right),
		"another stamp":     changed(gateway.HeaderTimestamp, "1793520001"),
		"empty signature":   changed(gateway.HeaderSignature, ""),
		"short signature":   changed(gateway.HeaderSignature, right[:20]),
		"another version":   changed(gateway.HeaderSignature, "v2="+right[3:]),
		"upper case":        changed(gateway.HeaderSignature, strings.ToUpper(right)),
		"no version":        changed(gateway.HeaderSignature, right[3:]),
		"the old one's too": changed(gateway.HeaderKey, "old"),
	} {
		require.ErrorIs(t, verify(keys(), h, body, now), gateway.ErrSignature, name)
	}
	require.ErrorIs(t, verify(keys(), good, []byte(`{"a":2}`), now), gateway.ErrSignature)
	require.ErrorIs(t, verify(nil, good, body, now), gateway.ErrSignature)
	// Signed, but not at a time.
	for _, stamp := range []string{"soon", "", "1e9", "9223372036854775808"} {
		mac := hmac.New(sha256.New, []byte("new-key-0123456789"))
		mac.Write([]byte(stamp + `.{"a":1}`))
		h := changed(gateway.HeaderTimestamp, stamp)
		h.Set(gateway.HeaderSignature, "v1="+hex.EncodeToString(mac.Sum(nil)))
		require.ErrorContains(t, verify(keys(), h, body, now), "Unix seconds")
		require.ErrorIs(t, verify(keys(), h, body, now), gateway.ErrSignature)
	}
}

// TestWhoeverHoldsTheKeySignsAlike: the receiver of the tests, which shares no code, and we accept each other's signatures, and
// neither accepts what was changed by one bit.
func TestWhoeverHoldsTheKeySignsAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
		now := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "now"), 0)
		text := rapid.StringN(16, 64, -1).Draw(t, "key")
		ours, theirs := http.Header{}, http.Header{}
		gateway.Sign("k", secret.New(text), ours, body, now)
		receive.Sign("k", text, theirs, body, now)
		require.Equal(t, ours, theirs)
		held := map[string]secret.String{"k": secret.New(text)}
		require.NoError(t, verify(held, theirs, body, now))
		require.True(t, receive.Signed(map[string]string{"k": text}, ours, body, now))

		if len(body) > 0 {
			bit := rapid.IntRange(0, 8*len(body)-1).Draw(t, "bit")
			body[bit/8] ^= 1 << (bit % 8)
		} else {
			ours.Set(gateway.HeaderTimestamp, strconv.FormatInt(now.Unix()+1, 10))
		}
		require.ErrorIs(t, verify(held, ours, body, now), gateway.ErrSignature)
		require.False(t, receive.Signed(map[string]string{"k": text}, ours, body, now))
	})
}

func verify(keys gateway.Keys, h http.Header, body []byte, now time.Time) error {
	_, err := keys.Verify(h, body, now)
	return err
}
