// Package pkg_test holds the tests of the house itself: what may import what, and that the tests exist which the documents name.
package pkg_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	module = "github.com/lapsehq/lapse/"
	amqp   = "github.com/rabbitmq/amqp091-go"
	gorm   = "gorm.io/"
)

// levels of the packages under pkg/: a package imports lower levels only. A package that is missing here has no place yet:
// give it one, in docs/architecture.md too.
func levels() map[string]int {
	return map[string]int{
		"coupon": 0, "client": 0, "ladder": 0, "telemetry": 0, "lifecycle": 0, "secret": 0, "quiet": 0, "pulse": 0, "certs": 0, "crash": 0,
		"event": 1, "broker": 1, "store": 1, "clock": 1, "operation": 1,
		"issuance": 2, "outbox": 2, "expiry": 2, "planner": 2, "notice": 2, "notice/inbox": 2, "notice/email": 2, "notice/gateway": 2, "notice/policy": 2, "notice/text": 2,
		"delay": 2, "api": 2, "order": 2, "ledger": 2, "archive": 2, "reconcile": 2, "rebuild": 2, "bulk": 2, "adopt": 2, "replay": 2, "heartbeat": 2, "profile": 2, "wakeup": 2, "yield": 2,
		"status": 3, "parked": 3,
		"console": 4,
		"config":  5,
		"worker":  6,
	}
}

// testOnly packages, and those below them, are for tests and lapsectl; they may use what they need.
func testOnly(name string) bool {
	top, _, _ := strings.Cut(name, "/")

	return slices.Contains([]string{"testenv", "rig", "audit", "verify", "lapsetest", "chaos", "compare"}, top)
}

type goPackage struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", module+"...")
	cmd.Dir = ".."
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	require.NoError(t, err, complaints.String())
	var list []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return list
		}
		require.NoError(t, err)
		list = append(list, p)
	}
}

// ours gives the path of a package of ours below pkg/, or what it is else ("cmd/publisher").
func ours(path string) (name string, underPkg, ok bool) {
	name, ok = strings.CutPrefix(path, module)
	name, underPkg = strings.CutPrefix(name, "pkg/")

	return name, underPkg, ok
}

func TestImportsGoDownwards(t *testing.T) {
	level := levels()
	seen := 0
	for _, p := range packages(t) {
		from, underPkg, ok := ours(p.ImportPath)
		if !ok || !underPkg || testOnly(from) {
			continue
		}
		require.Contains(t, level, from, "pkg/%s has no level", from)
		seen++
		for _, path := range p.Imports {
			to, toPkg, ok := ours(path)
			if !ok {
				continue
			}
			require.True(t, toPkg, "pkg/%s imports %s", from, to)
			require.False(t, testOnly(to), "pkg/%s imports %s, which is for tests", from, to)
			require.Contains(t, level, to, "pkg/%s has no level", to)
			within := strings.HasPrefix(from, to+"/") || strings.HasPrefix(to, from+"/")
			require.True(t, level[to] < level[from] || within, "pkg/%s (level %d) imports pkg/%s (level %d)", from, level[from], to, level[to])
			if level[from] == 2 {
				require.NotEqual(t, "store", to, "pkg/%s imports store: a step declares the methods it needs", from)
			}
		}
	}
	require.Positive(t, seen)
}

func TestPurePackagesImportTheStandardLibraryOnly(t *testing.T) {
	for _, p := range packages(t) {
		if name, _, _ := ours(p.ImportPath); name != "coupon" && name != "ladder" {
			continue
		}
		for _, path := range p.Imports {
			first, _, _ := strings.Cut(path, "/")
			require.NotContains(t, first, ".", "%s imports %s", p.ImportPath, path)
		}
	}
}

// TestOnlyImporters: one package speaks AMQP and one SQL, so that their rules are kept in one place. The audit has clients of its
// own and shares no code with what it audits.
func TestOnlyImporters(t *testing.T) {
	for _, p := range packages(t) {
		name, _, _ := ours(p.ImportPath)
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if path == amqp {
				require.Contains(t, []string{"broker", "audit", "examples/consume"}, name, "imports amqp091-go")
			}
			if strings.HasPrefix(path, gorm) {
				require.Equal(t, "store", name, "imports gorm")
			}
		}
		for _, path := range p.Imports {
			to, _, ok := ours(path)
			if name == "audit" {
				require.False(t, ok, "audit imports %s", to)
			}
			if ok && testOnly(to) {
				require.True(t, testOnly(name) || name == "cmd/lapsectl" || name == "scripts/plans", "%s imports %s, which is for tests and lapsectl", name, to)
			}
			if ok && (to == "config" || to == "worker") {
				require.True(t, name == "worker" || testOnly(name) || strings.HasPrefix(name, "cmd/"), "%s imports %s, which is for cmd", name, to)
			}
		}
	}
}

// testsOf gives the directories that hold each test, example or fuzz target.
func testsOf(t *testing.T) map[string][]string {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w+)\(`)
	tests := make(map[string][]string)
	for _, root := range []string{".", filepath.Join("..", "cmd")} {
		require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, m := range function.FindAllSubmatch(source, -1) {
				tests[string(m[1])] = append(tests[string(m[1])], filepath.ToSlash(filepath.Dir(filepath.Join("pkg", path))))
			}
			return err
		}))
	}
	return tests
}

// TestTheDocumentsNameTestsThatExist: `package: TestName`, where the package holds for the names behind it in the same line, too, and
// a name that ends in … stands for all that begin so.
func TestTheDocumentsNameTestsThatExist(t *testing.T) {
	tests := testsOf(t)
	documents, err := filepath.Glob(filepath.Join("..", "docs", "*.md"))
	require.NoError(t, err)
	named := regexp.MustCompile("`(?:([\\w/]+): )?((?:Test|Fuzz|Example)\\w+)(…?)`")
	seen := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			in := ""
			for _, m := range named.FindAllStringSubmatch(line, -1) {
				if m[1] != "" {
					in = "/" + m[1]
				}
				there := false
				for name, directories := range tests {
					if name == m[2] || m[3] != "" && strings.HasPrefix(name, m[2]) {
						there = there || slices.ContainsFunc(directories, func(d string) bool { return strings.HasSuffix("/"+d, in) })
					}
				}
				require.True(t, there, "%s names %s, which is not there: %s", document, m[0], line)
				seen++
			}
		}
	}
	require.Greater(t, seen, 100)
}
