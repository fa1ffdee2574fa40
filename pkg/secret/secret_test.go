package secret_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type holder struct {
	Password secret.String            `json:"password" yaml:"password"`
	Pointer  *secret.String           `json:"pointer"  yaml:"pointer"`
	List     []secret.String          `json:"list"     yaml:"list"`
	Map      map[string]secret.String `json:"map"      yaml:"map"      xml:"-"`
	hidden   secret.String
}

func hold(s secret.String) holder {
	return holder{Password: s, Pointer: &s, List: []secret.String{s}, Map: map[string]secret.String{"k": s}, hidden: s}
}

const plain = "tr0ub4dor&3"

// TestNothingShowsTheText prints and marshals a secret in every way that the project uses, on its own and inside others.
func TestNothingShowsTheText(t *testing.T) {
	s := secret.New(plain)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%10s", "%T"} {
		for _, value := range []any{s, &s, hold(s), []secret.String{s}, errors.Join(fmt.Errorf("cannot use %v", s))} {
			out := fmt.Sprintf(verb, value)
			require.NotContains(t, out, plain, verb)
			require.NotContains(t, out, fmt.Sprintf("%x", plain), verb)
		}
	}

	h := hold(s)
	asJSON, err := json.Marshal(h)
	require.NoError(t, err)
	asYAML, err := yaml.Marshal(h)
	require.NoError(t, err)
	asXML, err := xml.Marshal(h)
	require.NoError(t, err)
	for _, out := range [][]byte{asJSON, asYAML, asXML} {
		require.NotContains(t, string(out), plain)
		require.Contains(t, string(out), secret.Redacted)
	}
}

func TestZapShowsNothing(t *testing.T) {
	s := secret.New(plain)
	var out bytes.Buffer
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&out), zap.DebugLevel)
	zap.New(core).Info("connecting", zap.Any("any", s), zap.Stringer("stringer", s), zap.Reflect("reflect", hold(s)),
		zap.Any("pointer", &s), zap.Any("struct", hold(s)))
	zap.New(core).Sugar().Infow("connecting", "secret", s, "holder", hold(s))
	require.NotContains(t, out.String(), plain)
	require.Contains(t, out.String(), secret.Redacted)
}

func TestForms(t *testing.T) {
	s := secret.New(plain)
	require.Equal(t, plain, s.Reveal())
	require.Equal(t, "[redacted]", s.String())
	require.Equal(t, `"[redacted]"`, fmt.Sprintf("%q", s))
	require.Equal(t, `"[redacted]"`, fmt.Sprintf("%#v", s))
	require.False(t, s.Empty())
	require.Equal(t, s, secret.New(plain), "equal texts are equal secrets")

	var none secret.String
	require.True(t, none.Empty())
	require.Empty(t, none.Reveal())
	require.Empty(t, fmt.Sprint(none), "an unset secret is told from a set one")
	require.Equal(t, none, secret.New(""))
}

func TestUnmarshal(t *testing.T) {
	var h struct {
		Password secret.String `json:"password" yaml:"password"`
	}
	require.NoError(t, json.Unmarshal([]byte(`{"password":"p"}`), &h))
	require.Equal(t, "p", h.Password.Reveal())
	require.NoError(t, yaml.Unmarshal([]byte(`password: q`), &h))
	require.Equal(t, "q", h.Password.Reveal())

	require.ErrorIs(t, json.Unmarshal([]byte(`{"password":"[redacted]"}`), &h), secret.ErrRedacted)
	require.Equal(t, "q", h.Password.Reveal(), "a refused value changes nothing")
}

func TestTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Filter(func(s string) bool { return s != secret.Redacted }).Draw(t, "text")
		var s secret.String
		require.NoError(t, s.UnmarshalText([]byte(text)))
		require.Equal(t, text, s.Reveal())
		require.Equal(t, secret.New(text), s)
	})
}

// A password that is changed in its file is the new one at the next login.
func TestCurrent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("first\r\n\n"), 0o600))
	s, err := secret.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "first", s.Reveal())
	require.NoError(t, os.WriteFile(file, []byte("second\n"), 0o600))
	now, err := s.Current()
	require.NoError(t, err)
	require.Equal(t, "second", now.Reveal())
	require.Equal(t, "first", s.Reveal())
	require.NotContains(t, fmt.Sprintf("%v %+v %#v", s, now, hold(s)), "first")

	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = s.Current()
	require.ErrorContains(t, err, "is empty")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("x"), 64<<10+1), 0o600))
	_, err = s.Current()
	require.ErrorContains(t, err, "has more than 65536 bytes")
	require.NoError(t, os.Remove(file))
	kept, err := s.Current()
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, s, kept)

	same, err := secret.New("text").Current()
	require.NoError(t, err)
	require.Equal(t, secret.New("text"), same)
}
