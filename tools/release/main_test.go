package release

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
	"github.com/stretchr/testify/require"
)

// root of the repository, seen from here.
const root = "../.."

const configFile = ".goreleaser.yaml"

// workers and lapsectl: what a release is made of.
var binaries = []string{"expirer", "lapsectl", "notifier", "publisher"}

// project is the configuration as GoReleaser loads it: what it does not know is an error.
func project(t *testing.T) config.Project {
	t.Helper()
	p, err := config.Load(filepath.Join(root, configFile))
	require.NoError(t, err)

	return p
}

// values are what the templates of the configuration may use.
var values = map[string]any{
	"ProjectName": "lapse", "Version": "9.9.9", "Os": "linux", "Arch": "amd64", "Binary": "lapsectl",
	"CommitTimestamp": "1767225600", "CommitDate": "2026-01-01T00:00:00Z", "ShortCommit": "abc1234",
}

// dir is what the tests build into.
var dir string

// built is one of the binaries, built as the configuration says.
var built = sync.OnceValues(func() (string, error) {
	p, err := config.Load(filepath.Join(root, configFile))
	if err != nil {
		return "", err
	}
	b := p.Builds[len(p.Builds)-1]
	file := filepath.Join(dir, b.Binary)
	args := append([]string{"build", "-o", file}, b.Flags...)
	args = append(args, "-ldflags", strings.ReplaceAll(strings.Join(b.Ldflags, " "), "{{ .Version }}", "9.9.9"), b.Main)
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), b.Env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", &failed{string(out), err}
	}

	return file, nil
})

type failed struct {
	said string
	err  error
}

func (f *failed) Error() string { return f.err.Error() + "\n" + f.said }
func (f *failed) Unwrap() error { return f.err }

func TestMain(m *testing.M) {
	var err error
	if dir, err = os.MkdirTemp("", "lapse-release"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// run runs a command in the repository and gives what it prints.
func run(t *testing.T, environ []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), environ...)
	out, err := cmd.Output()
	require.NoError(t, err, "%s %s", name, strings.Join(args, " "))

	return string(out)
}
