package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

var (
	inline = regexp.MustCompile("`(?:bin/)?(lapsectl [^`]+)`")
	line   = regexp.MustCompile(`(?m)^(?:bin/)?(lapsectl .+?)(?: +#.*)?$`)
	sketch = regexp.MustCompile(`…|\[|\S\|\S`) // of what a command may be, or said in full before it
	word   = regexp.MustCompile(`(?:"[^"]*"|'[^']*'|[^\s"'])+`)
)

// Whoever is woken at night types what the runbook says, and a new user what the documents say: each of their commands is one. Inline,
// documents may name a part of a command, or several at once; the runbook does not.
func TestTheDocumentsCommandsAreCommands(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/runbook/*.md"} {
		pages, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, pages)
		for _, page := range pages {
			body, err := os.ReadFile(page)
			require.NoError(t, err)
			found := line.FindAllStringSubmatch(string(body), -1)
			if strings.Contains(pattern, "runbook") {
				found = slices.Concat(found, inline.FindAllStringSubmatch(string(body), -1))
			}
			for _, f := range found {
				if sketch.MatchString(f[1]) {
					continue
				}
				seen++
				parsed(t, filepath.Base(page), f[1])
			}
		}
	}
	require.Greater(t, seen, 100)
}

func parsed(t *testing.T, page, command string) {
	t.Helper()
	command, _, _ = strings.Cut(command, " && ")
	command, _, _ = strings.Cut(command, " | ")
	command, _, _ = strings.Cut(command, " >")
	var args []string
	for _, arg := range word.FindAllString(strings.TrimPrefix(command, "lapsectl "), -1) {
		args = append(args, strings.NewReplacer(`"`, "", `'`, "").Replace(arg))
	}
	parser, err := kong.New(&cli{}, kong.Name("lapsectl"), kong.NoDefaultHelp(), kong.Bind(&system{}))
	require.NoError(t, err)
	_, err = parser.Parse(args)
	require.NoError(t, err, "%s: %s", page, command)
}
