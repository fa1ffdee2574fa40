package rig_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/rig"
)

// A program of ours believes that it is another hour, and waits no longer for that.
func TestAProgramsClockCanBeAnother(t *testing.T) {
	t.Parallel()
	from, dir := t.TempDir(), t.TempDir()
	for name, body := range map[string]string{
		"go.mod": "module example.com/clock\n\ngo 1.26\n",
		"main.go": `package main

import (
	"fmt"
	"time"
)

func main() {
	began := time.Now()
	time.Sleep(10 * time.Millisecond)
	fmt.Println(began.Unix(), time.Since(began).Milliseconds())
}
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), []byte(body), 0o600))
	}
	require.NoError(t, rig.BuildShifted(t.Context(), from, dir, "."))
	for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
		p := rig.Program{Path: "/elsewhere/clock"}.Shift(dir, by)
		require.Equal(t, filepath.Join(dir, "clock"), p.Path)
		cmd := exec.CommandContext(t.Context(), p.Path)
		cmd.Env = p.Env
		before := time.Now()
		out, err := cmd.Output()
		require.NoError(t, err)
		said := strings.Fields(string(out))
		at, err := strconv.ParseInt(said[0], 10, 64)
		require.NoError(t, err)
		require.WithinDuration(t, before.Add(by), time.Unix(at, 0), time.Minute)
		took, err := strconv.Atoi(said[1])
		require.NoError(t, err)
		require.Less(t, took, 60_000)
	}
}
