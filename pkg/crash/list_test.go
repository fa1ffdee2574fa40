package crash_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
)

var update = flag.Bool("update", false, "write docs/crash-points.md")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const storeDir = "../store"

// Every transaction, and every statement outside of one that changes anything, is on the list or excused.
func TestTheListIsWhole(t *testing.T) {
	t.Parallel()
	listed := make(map[string]bool)
	for _, p := range crash.Points() {
		require.False(t, listed[p.String()], "%s is on the list twice", p)
		require.NotEmpty(t, p.Does, "%s", p)
		listed[p.String()] = true
	}
	found := commits(t)
	require.Greater(t, len(found), 50, "the search found too little to be right")
	var amiss []string
	for what, where := range found {
		if _, excused := crash.Excused()[what]; listed[what] == excused {
			amiss = append(amiss, what+" ("+where+")")
		}
	}
	require.Empty(t, amiss, "must be on the list of crash points, or excused, and not both")
	for what := range crash.Excused() {
		require.Contains(t, found, what, "excused, but not there")
	}
	for what := range listed {
		if strings.HasPrefix(what, string(crash.Commit)) || strings.HasPrefix(what, string(crash.Write)) {
			require.Contains(t, found, what, "on the list, but not there")
		}
	}
}

// commits finds the names of transactions and of statements run outside of one in the sources of the store.
func commits(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(storeDir, "*.go"))
	require.NoError(t, err)
	set := token.NewFileSet()
	names := make(map[string]string) // variable → name of the statement
	found := make(map[string]string)
	var parsed []*ast.File
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, 0)
		require.NoError(t, err)
		parsed = append(parsed, f)
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == 1 {
				if call, ok := spec.Values[0].(*ast.CallExpr); ok && len(call.Args) == 2 && called(call) == "define" {
					names[spec.Names[0].Name] = text(call.Args[0])
				}
			}
			return true
		})
	}
	for _, f := range parsed {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			at := set.Position(call.Pos()).String()
			switch called(call) {
			case "tx", "know", "remove": // a transaction, and those who pass its name on
				if name := text(call.Args[1]); name != "" {
					found["commit "+name] = at
				} else if strings.Contains(source(t, set, call.Args[1]), "Verb") {
					for _, v := range coupon.Verbs() {
						found["commit "+string(v)] = at
					}
				}
			case "exec":
				if source(t, set, call.Args[1]) == "s.sql" {
					st := source(t, set, call.Args[2])
					st, _, _ = strings.Cut(st, ".")
					require.NotEmpty(t, names[st], "%s: %s", at, st)
					found["write "+names[st]] = at
				}
			default:
			}
			return true
		})
	}
	return found
}

func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	default:
		return ""
	}
}

func text(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		s, _ := strconv.Unquote(lit.Value)
		return s
	}
	return ""
}

func source(t *testing.T, set *token.FileSet, e ast.Expr) string {
	t.Helper()
	from, to := set.Position(e.Pos()), set.Position(e.End())
	body, err := os.ReadFile(from.Filename)
	require.NoError(t, err)
	return string(body[from.Offset:to.Offset])
}

const document = "../../docs/crash-points.md"

// The document is written from the list. What it says is what TestEveryPoint proves.
func TestTheDocument(t *testing.T) {
	t.Parallel()
	want := render()
	if *update {
		require.NoError(t, os.WriteFile(document, want, 0o600))
		return
	}
	got, err := os.ReadFile(document)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "go test ./pkg/crash -run TheDocument -update")
}

func render() []byte {
	var b bytes.Buffer
	points := crash.Points()
	fmt.Fprintf(&b, `# Crash points

Where something becomes durable or leaves a process, a process can die. These are all such points of the walk, and what is done again
after a stop exactly before and exactly behind each. The file is written from the list in the code (`+"`go test ./pkg/crash -run TheDocument -update`"+`),
and `+"`go test ./pkg/crash`"+` holds it against the code: a transaction, or a statement outside of one, that is neither here nor excused below
fails it. Workers that are built with the tag `+"`crashpoints`"+` kill themselves with SIGKILL exactly before or exactly behind a point that is asked for.

`+"`make proof`"+` does so with each of the %d points, on both sides: %d stops of real processes on real servers, five installations side by side, in about
two minutes on two cores. It starts the worker again, looks for what the columns say, and in the end sets rows, history and events of each
installation against what was asked for: every coupon reaches the state it must, none before its end, every step is in history once and has one event
by id. What is *heard* twice under one id, so that consumers must know it again, is in the last column; what the process had under way beside the
point (a batch of the relay, which expirers have as well; a message of another channel) may be heard twice as well. An SMS never comes twice. One
stop alone, on a running stack: `+"`go test -tags proof ./pkg/crash -run 'TestEveryPoint/ends/commit_sweep_before'`"+`. `+"`lapsectl chaos`"+` kills at random besides.

| point | process | what it makes durable | stopped before: done again | stopped behind: done again | heard twice |
|---|---|---|---|---|---|
`, len(points), 2*len(points))
	for _, p := range points {
		heard := ""
		for _, side := range []string{"before", "after"} {
			if what := p.Twice[side]; what != "" {
				heard += what + ", stopped " + map[string]string{"before": "before", "after": "behind"}[side]
			}
		}
		fmt.Fprintf(&b, "| %s `%s` | %s | %s | %s | %s | %s |\n", p.Kind, p.Name, p.Where, p.Does, or(p.Before), or(p.After), or(heard))
	}
	b.WriteString("\n## Excused\n\nOther commits, at which a stop is of no account:\n\n| commit | why |\n|---|---|\n")
	excused := crash.Excused()
	for _, what := range slices.Sorted(maps.Keys(excused)) {
		kind, name, _ := strings.Cut(what, " ")
		fmt.Fprintf(&b, "| %s `%s` | %s |\n", kind, name, excused[what])
	}
	return b.Bytes()
}

func or(s string) string {
	if s == "" {
		return "–"
	}
	return s
}
