package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The script is run by a real bash, which is asked what a person would be offered.
func TestCompletionByBash(t *testing.T) {
	t.Parallel()
	script := lapsectl(t.Context(), nil, t.TempDir(), "completion", "bash")
	require.Equal(t, exitOK, script.code, script.stderr)
	ask := func(words ...string) []string {
		t.Helper()
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = quotedWord(w)
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-c", script.stdout+`
COMP_WORDS=(lapsectl `+strings.Join(quoted, " ")+`); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _lapsectl; printf '%s\n' "${COMPREPLY[@]}"`)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.Fields(string(out))
	}
	require.Subset(t, ask(""), []string{"status", "sweep", "template", "verify", "--config"})
	require.Equal(t, []string{"status"}, ask("statu"))
	require.Equal(t, []string{"create"}, ask("template", "cr"))
	require.Contains(t, ask("-c", "x.yaml", "template", "create", "--"), "--end-of-day")
	require.NotContains(t, ask("status", "--"), "--end-of-day")
	require.Equal(t, []string{"minute", "hour", "day"}, ask("forecast", "--by", ""))
	require.Equal(t, []string{"hour"}, ask("forecast", "--by", "=", "h"))
	require.Equal(t, []string{"bash", "zsh", "fish"}, ask("completion", "")[:3])
	require.Empty(t, ask("explain", "--config", ""), "a file: bash's own")
}

func TestCompletionOfTheOthers(t *testing.T) {
	t.Parallel()
	for shell, want := range map[string][]string{
		"zsh":  {"#compdef lapsectl", "' template create'", "'status:Show in one screen", "compadd minute hour day"},
		"fish": {`-n '__lapsectl_at " template"' -f -a 'create'`, "-l by -x -a 'minute hour day'", "-l json"},
	} {
		r := lapsectl(t.Context(), nil, t.TempDir(), "completion", shell)
		require.Equal(t, exitOK, r.code, r.stderr)
		for _, text := range want {
			require.Contains(t, r.stdout, text)
		}
		if path, err := exec.LookPath(shell); err == nil { // where there is one, it must take the script
			cmd := exec.CommandContext(t.Context(), path, "-n", "/dev/stdin")
			cmd.Stdin = strings.NewReader(r.stdout)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
	require.Equal(t, exitError, lapsectl(t.Context(), nil, t.TempDir(), "completion", "tcsh").code)
}
