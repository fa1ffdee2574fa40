package secret_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/secret"
)

// key is one of 32 equal bytes.
func key(b byte) secret.String {
	return secret.New(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32)))
}

func ring(t require.TestingT, active string, keys map[string]secret.String) *secret.Keyring {
	r, err := secret.NewKeyring(active, keys)
	require.NoError(t, err)
	return r
}

func TestKeyringRotates(t *testing.T) {
	before := ring(t, "k1", map[string]secret.String{"k1": key(1)})
	sealed, id, err := before.Seal("user-81", []byte("wang@example.com"))
	require.NoError(t, err)
	require.Equal(t, "k1", id)
	require.NotContains(t, string(sealed), "wang")
	again, _, err := before.Seal("user-81", []byte("wang@example.com"))
	require.NoError(t, err)
	require.NotEqual(t, sealed, again, "whoever sees both does not see that they are the same")

	during := ring(t, "k2", map[string]secret.String{"k1": key(1), "k2": key(2)})
	plain, err := during.Open("user-81", id, sealed)
	require.NoError(t, err)
	require.Equal(t, "wang@example.com", string(plain))
	sealed, id, err = during.Seal("user-81", plain)
	require.NoError(t, err)
	require.Equal(t, "k2", id)

	after := ring(t, "k2", map[string]secret.String{"k2": key(2)})
	plain, err = after.Open("user-81", id, sealed)
	require.NoError(t, err)
	require.Equal(t, "wang@example.com", string(plain))
	_, err = after.Open("user-81", "k1", sealed)
	require.ErrorIs(t, err, secret.ErrNoKey)
}

// Nothing opens but what was sealed, for whom it was sealed, by the key that sealed it.
func TestKeyringOpensOnlyItsOwn(t *testing.T) {
	r := ring(t, "k1", map[string]secret.String{"k1": key(1), "k2": key(2), "k3": key(1)})
	rapid.Check(t, func(t *rapid.T) {
		user, plain := rapid.String().Draw(t, "user"), []byte(rapid.String().Draw(t, "plain"))
		sealed, id, err := r.Seal(user, plain)
		require.NoError(t, err)
		got, err := r.Open(user, id, sealed)
		require.NoError(t, err)
		require.True(t, bytes.Equal(plain, got))
		_, err = r.Open(user+"x", id, sealed)
		require.ErrorIs(t, err, secret.ErrSealed)
		for _, other := range []string{"k2", "k3"} {
			_, err = r.Open(user, other, sealed)
			require.ErrorIs(t, err, secret.ErrSealed)
		}
		sealed[rapid.IntRange(0, len(sealed)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		_, err = r.Open(user, id, sealed)
		require.ErrorIs(t, err, secret.ErrSealed)
	})
}

func TestKeyringWithoutKeys(t *testing.T) {
	r := ring(t, "", nil)
	require.Empty(t, r.Active())
	_, _, err := r.Seal("u", []byte("x"))
	require.ErrorIs(t, err, secret.ErrNoKey)
	_, err = r.Open("u", "k1", []byte("x"))
	require.ErrorIs(t, err, secret.ErrNoKey)
}

func TestKeyringConfig(t *testing.T) {
	const short = "c2hvcnQ="
	for _, tt := range []struct {
		active string
		keys   map[string]secret.String
		want   string
	}{
		{"", map[string]secret.String{"k1": key(1)}, `active: must be the id of one of keys, got ""`},
		{"k2", map[string]secret.String{"k1": key(1)}, `active: must be the id of one of keys, got "k2"`},
		{"k2", nil, `active: must be the id of one of keys, got "k2"`},
		{"k1", map[string]secret.String{"k1": secret.New(short)}, `keys: k1 must be 32 bytes in base64`},
		{"k1", map[string]secret.String{"k1": secret.New("!")}, `keys: k1 must be 32 bytes in base64`},
		{"k1", map[string]secret.String{"k1": {}}, `keys: k1 must be 32 bytes in base64`},
		{"K", map[string]secret.String{"K": key(1)}, `keys: an id must have at most 32 of a-z`},
		{"a.b", map[string]secret.String{"a.b": key(1)}, `keys: an id must have`},
		{"a__b", map[string]secret.String{"a__b": key(1)}, `keys: an id must have`},
		{strings.Repeat("a", 33), map[string]secret.String{strings.Repeat("a", 33): key(1)}, `keys: an id must have`},
	} {
		err := secret.KeyringConfig{Active: tt.active, Keys: tt.keys}.Validate()
		require.ErrorContains(t, err, tt.want)
		require.NotContains(t, err.Error(), short)
	}
	require.NoError(t, secret.KeyringConfig{}.Validate())
	c := secret.KeyringConfig{Active: "k1", Keys: map[string]secret.String{"k1": key(1)}}
	require.NoError(t, c.Validate())
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		require.NotContains(t, fmt.Sprintf(verb, c), key(1).Reveal())
		shown := fmt.Sprintf(verb, ring(t, "k1", c.Keys))
		require.NotContains(t, shown, key(1).Reveal())
		require.NotContains(t, shown, "1 1 1 1")
	}
}

func FuzzKeyringOpen(f *testing.F) {
	r, err := secret.NewKeyring("k1", map[string]secret.String{"k1": key(1)})
	require.NoError(f, err)
	sealed, id, err := r.Seal("u", []byte("x"))
	require.NoError(f, err)
	f.Add("u", id, sealed)
	f.Add("", "", []byte(nil))
	f.Add("u", "k1", make([]byte, 28))
	f.Fuzz(func(t *testing.T, user, key string, sealed []byte) {
		plain, err := r.Open(user, key, sealed)
		if err != nil {
			require.Nil(t, plain)
			return
		}
		require.Equal(t, "k1", key)
		require.Len(t, sealed, len(plain)+12+16)
	})
}
