package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// root of the repository, seen from here.
const root = "../.."

// workers, and the ports their images and pods open: of the admin server, then of the API.
var workers = map[string][]int{"publisher": {9101, 8080}, "expirer": {9102}, "notifier": {9103}}

// graceSeconds is longer than all parts of any worker may take to stop, one after the other: cmd/*: TestItStopsWithinItsGrace.
const graceSeconds = 300

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := binaries(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// binaries builds the four as the image does and gives their directory.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lapse-deploy")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=v9.9.9-check", "-o", dir+"/", "./cmd/...")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("building: %w\n%s", err, out)
	}

	return dir, nil
})

func binary(t *testing.T, name string) string {
	t.Helper()
	dir, err := binaries()
	require.NoError(t, err)

	return filepath.Join(dir, name)
}

// settingsOf is what a worker makes of its arguments and variables; it must accept them without a warning.
func settingsOf(t *testing.T, worker string, environ []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t, worker), append(args, "-print-config")...)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append([]string{}, environ...), &stdout, &stderr
	require.NoError(t, cmd.Run(), "%s refuses its settings:\n%s", worker, stderr.String())
	require.Empty(t, stderr.String(), "%s warns of its settings", worker)

	return stdout.String()
}

// migrates says whether lapsectl takes the settings: with them it goes as far as the database, which is not there.
func migrates(t *testing.T, environ []string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t, "lapsectl"), append([]string{"migrate", "status"}, args...)...)
	cmd.Dir, cmd.Env = t.TempDir(), append(append([]string{}, environ...), "LAPSE__DATABASE__ADDRESS=127.0.0.1:1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "127.0.0.1:1: connect: connection refused", "lapsectl refuses its settings")
	require.NotContains(t, string(out), "warning")
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)

	return string(content)
}

func lines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}

	return out
}
