package profile_test

import (
	"bytes"
	"encoding/base64"
	"testing"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// keys is a ring of k1, k2, … of which the last is active.
func keys(n int) secret.KeyringConfig {
	c := secret.KeyringConfig{Keys: map[string]secret.String{}}
	for i := range n {
		c.Active = "k" + string(rune('1'+i))
		c.Keys[c.Active] = secret.New(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(i + 1)}, 32)))
	}
	return c
}
