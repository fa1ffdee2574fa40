package main

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

// What is printed is what the publisher takes, whatever the name looks like to YAML.
func TestTokenEntryIsTakenAsItIsPrinted(t *testing.T) {
	t.Parallel()
	c := &scene{T: t, dir: t.TempDir()}
	for _, name := range []string{"checkout", "123", "null", "true", "1.5", "a.b-c_d"} {
		printed := c.ok("token", name, "--scope=order,read", `--issuer=a "b": #c`)
		token, entry, ok := strings.Cut(printed, "\n\n")
		require.True(t, ok)
		s := &system{config: c.file("publisher.yaml", "installation: i\n"+entry), stderr: &strings.Builder{}}
		cfg, err := s.settings(keyInstallation)
		require.NoError(t, err, name)
		require.Equal(t, []api.Token{{
			Name: name, Hash: api.HashToken(token), Scopes: []string{"order", "read"}, Issuer: `a "b": #c`,
		}}, cfg.API.Tokens)
	}
	for want, args := range map[string][]string{
		"scopes: must be some of": {"x", "--scope=write"}, "name: must be 1 to 40 of": {"a b", "--scope=ops"}, "missing flags: --scope": {"x"},
	} {
		r := lapsectl(context.Background(), nil, c.dir, append([]string{"token"}, args...)...)
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stderr, want)
	}
}
