package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

var (
	called = regexp.MustCompile("(?m)`(lapsectl [^`]+)`|^(lapsectl .+?)(?: +#.*)?$")
	word   = regexp.MustCompile(`"[^"]*"|\S+`)
)

// Whoever is woken at night types what the runbook says: each of its commands is one.
func TestTheRunbooksCommandsAreCommands(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/runbook/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range pages {
		body, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, found := range called.FindAllStringSubmatch(string(body), -1) {
			command := found[1] + found[2]
			var args []string
			for _, arg := range word.FindAllString(strings.TrimPrefix(command, "lapsectl "), -1) {
				args = append(args, strings.Trim(arg, `"`))
			}
			parser, err := kong.New(&cli{}, kong.Name("lapsectl"), kong.NoDefaultHelp())
			require.NoError(t, err)
			_, err = parser.Parse(args)
			require.NoError(t, err, "%s: %s", filepath.Base(page), command)
		}
	}
}
