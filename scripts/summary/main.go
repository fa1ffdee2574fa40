// Command summary reads `go test -json` from its standard input and says in few lines what ran, on what, and how it went:
// packages as they end, the whole output of what failed, and last of all "N passed, 0 skipped". It fails when anything failed or
// was skipped, or when nothing ran.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() { os.Exit(run(os.Stdin, os.Stdout)) }

// event is one line of go test -json (go doc test2json).
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

type tally struct{ passed, failed, skipped int }

type summary struct {
	out     io.Writer
	total   tally
	byPkg   map[string]*tally
	outputs map[string][]string // of the tests under way, by package and test; of packages and builds, too
	broken  []string            // packages that failed
	slow    []event
}

const slowest = 5

func run(in io.Reader, out io.Writer) int {
	printEnvironment(out)
	s := &summary{out: out, byPkg: map[string]*tally{}, outputs: map[string][]string{}}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 1<<20), 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Action == "" {
			s.print("%s\n", lines.Text()) // not of test2json: a tool's own words

			continue
		}
		s.take(e)
	}
	if err := lines.Err(); err != nil {
		s.print("reading the test output: %v\n", err)

		return 1
	}

	return s.close()
}

func (s *summary) print(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format, args...) }

func (s *summary) take(e event) {
	name := cmp.Or(e.Package, e.ImportPath) + " " + e.Test
	switch {
	case e.Action == "output" || e.Action == "build-output":
		s.outputs[name] = append(s.outputs[name], e.Output)

		return
	case e.Test != "":
		s.takeTest(e, name)
	case e.Action == "build-fail":
		s.flush(name)
	case e.Action == "pass" || e.Action == "fail":
		s.takePackage(e, name)
	}
}

func (s *summary) takeTest(e event, name string) {
	t := s.pkg(e.Package)
	switch e.Action {
	case "pass":
		t.passed++
		s.slow = append(s.slow, e)
	case "fail":
		t.failed++
		s.print("--- FAIL %s\n", name)
		s.flush(name)
	case "skip":
		t.skipped++
		s.print("--- SKIP %s\n", name)
		s.flush(name)
	default:
		return
	}
	delete(s.outputs, name)
}

func (s *summary) takePackage(e event, name string) {
	t := s.pkg(e.Package)
	if e.Action == "fail" {
		s.broken = append(s.broken, e.Package)
		s.print("FAIL %s\n", e.Package)
		// A test that never ended (a panic, the time limit) has its output still here.
		for _, left := range s.left(e.Package) {
			s.flush(left)
		}
	} else {
		s.print("ok   %-52s %4d tests %7.1fs\n", e.Package, t.passed, e.Elapsed)
	}
	delete(s.outputs, name)
}

func (s *summary) left(pkg string) []string {
	var names []string
	for name := range s.outputs {
		if strings.HasPrefix(name, pkg+" ") {
			names = append(names, name)
		}
	}
	slices.Sort(names)

	return names
}

func (s *summary) flush(name string) {
	for _, line := range s.outputs[name] {
		s.print("    %s", line)
	}
	delete(s.outputs, name)
}

func (s *summary) pkg(name string) *tally {
	if s.byPkg[name] == nil {
		s.byPkg[name] = &tally{}
	}

	return s.byPkg[name]
}

func (s *summary) close() int {
	for _, t := range s.byPkg {
		s.total.passed += t.passed
		s.total.failed += t.failed
		s.total.skipped += t.skipped
	}
	slices.SortStableFunc(s.slow, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for _, e := range s.slow[:min(slowest, len(s.slow))] {
		s.print("slow %-70s %7.1fs\n", e.Package[strings.LastIndexByte(e.Package, '/')+1:]+" "+e.Test, e.Elapsed)
	}
	for _, pkg := range s.broken {
		s.print("failed: %s\n", pkg)
		if s.byPkg[pkg].failed == 0 {
			s.total.failed++ // it did not build, or ended outside of a test
		}
	}
	printEnvironment(s.out)
	s.print("%d passed, %d failed, %d skipped\n", s.total.passed, s.total.failed, s.total.skipped)
	if s.total.failed > 0 || s.total.skipped > 0 {
		return 1
	}
	if s.total.passed == 0 {
		s.print("no test ran\n")

		return 1
	}
	s.print("%d passed, %d skipped\n", s.total.passed, s.total.skipped)

	return 0
}
