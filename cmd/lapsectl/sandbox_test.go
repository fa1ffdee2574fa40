package main

import (
	"bytes"
	"crypto/rand"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestSandboxRefusesAnyOtherInstallation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		env  map[string]string
		says string
	}{
		{[]string{"--config", "/etc/lapse/publisher.yaml", "sandbox"}, nil, "never in the one that a file names"},
		{[]string{"sandbox"}, map[string]string{"LAPSE__INSTALLATION": "shop"}, `LAPSE__INSTALLATION is "shop"`},
		{[]string{"sandbox"}, map[string]string{"LAPSE__PREFIX": "lapse"}, `LAPSE__PREFIX is "lapse"`},
		{[]string{"sandbox"}, map[string]string{"STACK_DIR": t.TempDir()}, "not set: "},
	} {
		var stdout, stderr bytes.Buffer
		s := newSystem(c.args)
		s.stdout, s.stderr = &stdout, &stderr
		s.lookup = func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }
		require.Equal(t, exitError, run(t.Context(), s), "%v", c.args)
		require.Contains(t, stderr.String(), c.says)
		require.Empty(t, stdout.String(), "nothing was begun")
	}
}

// What the sandbox's publisher is told is what a publisher takes.
func TestSandboxTokensAreAConfiguration(t *testing.T) {
	t.Parallel()
	src := config.Sources{Environ: []string{
		"LAPSE__INSTALLATION=lapse-sandbox", "LAPSE__PREFIX=lapse-sandbox", "LAPSE__DATABASE__NAME=lapse_sandbox", "LAPSE__DATABASE__PASSWORD=x",
		"LAPSE__BROKER__URL=amqp://u:p@h/lapse", "LAPSE__API__SANDBOX=true", "LAPSE__API__TOKENS=" + sandboxTokens(),
	}}
	cfg, _, err := config.Load(config.DefaultPublisher(), src)
	require.NoError(t, err)
	require.Len(t, cfg.API.Tokens, 5)
	require.Equal(t, []string{"issue", "order", "read", "ops"}, cfg.API.Tokens[4].Scopes)
	require.True(t, cfg.API.Sandbox)
}

func TestSeedsAreOfTheTemplates(t *testing.T) {
	t.Parallel()
	all := seeds()
	require.Equal(t, seedLast, all[len(all)-1].key)
	templates, seen := seedTemplates(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)), map[string]bool{}
	for _, s := range all {
		require.Contains(t, templates, s.template)
		require.False(t, seen[s.key], s.key)
		seen[s.key] = true
	}
}

// testSandbox: the fleet comes up, seeds itself, and finds its data again; everything is gone at the end.
func testSandbox(t *testing.T, bin string) {
	t.Helper()
	testenv.Servers(t)
	name := "t" + strings.ToLower(rand.Text()[:7])
	args := []string{"sandbox", "--name=" + name, "--address=127.0.0.1:0", "--once"}
	first, code := program(t, bin, args...)
	require.Equal(t, exitOK, code, first)
	coupons := regexp.MustCompile(`(?m)^  coupon .*$`)
	there := coupons.FindAllString(first, -1)
	require.Len(t, there, len(seeds()))
	for _, state := range []string{"unused", "locked", "used", "expired", "voided"} {
		require.Contains(t, first, " "+state+" ")
	}
	require.Contains(t, first, "token "+sandboxToken)
	require.Regexp(t, `(?m)^  console   http://127\.0\.0\.1:\d+/console/ `, first)
	require.Contains(t, first, `/forward --json '{"what":"end","in_seconds":10}'`)

	again, code := program(t, bin, append(args, "--remove")...)
	require.Equal(t, exitOK, code, again)
	require.Equal(t, there, coupons.FindAllString(again, -1), "the data stayed")
}
