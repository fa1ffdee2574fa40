package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func summarise(t *testing.T, lines ...string) (int, string) {
	t.Helper()
	var out strings.Builder
	code := run(strings.NewReader(strings.Join(lines, "\n")), &out)

	return code, out.String()
}

func TestAllPassed(t *testing.T) {
	code, out := summarise(t,
		`{"Action":"run","Package":"m/p","Test":"TestA"}`,
		`{"Action":"output","Package":"m/p","Test":"TestA","Output":"noise\n"}`,
		`{"Action":"pass","Package":"m/p","Test":"TestA/sub","Elapsed":0.1}`,
		`{"Action":"pass","Package":"m/p","Test":"TestA","Elapsed":0.1}`,
		`{"Action":"pass","Package":"m/p","Elapsed":0.2}`,
		`{"Action":"skip","Package":"m/without","Elapsed":0}`)
	require.Zero(t, code)
	require.NotContains(t, out, "noise")
	require.True(t, strings.HasSuffix(out, "\n2 passed, 0 failed, 0 skipped\n2 passed, 0 skipped\n"), out)
}

func TestFailureIsShownWhole(t *testing.T) {
	code, out := summarise(t,
		`{"Action":"output","Package":"m/p","Test":"TestA","Output":"why\n"}`,
		`{"Action":"fail","Package":"m/p","Test":"TestA"}`,
		`{"Action":"pass","Package":"m/p","Test":"TestB"}`,
		`{"Action":"fail","Package":"m/p"}`)
	require.Equal(t, 1, code)
	require.Contains(t, out, "--- FAIL m/p TestA\n    why\n")
	require.True(t, strings.HasSuffix(out, "\n1 passed, 1 failed, 0 skipped\n"), out)
}

func TestSkipFails(t *testing.T) {
	code, out := summarise(t, `{"Action":"skip","Package":"m/p","Test":"TestA"}`, `{"Action":"pass","Package":"m/p"}`)
	require.Equal(t, 1, code)
	require.True(t, strings.HasSuffix(out, "\n0 passed, 0 failed, 1 skipped\n"), out)
}

func TestBrokenBuildFails(t *testing.T) {
	code, out := summarise(t,
		`{"ImportPath":"m/p","Action":"build-output","Output":"p.go:1: oops\n"}`,
		`{"ImportPath":"m/p","Action":"build-fail"}`,
		`{"Action":"fail","Package":"m/p","FailedBuild":"m/p"}`)
	require.Equal(t, 1, code)
	require.Contains(t, out, "p.go:1: oops")
	require.Contains(t, out, "0 passed, 1 failed, 0 skipped")
}

func TestPanicOutsideATestIsShown(t *testing.T) {
	code, out := summarise(t,
		`{"Action":"output","Package":"m/p","Test":"TestA","Output":"panic: x\n"}`,
		`{"Action":"output","Package":"m/p","Output":"FAIL m/p\n"}`,
		`{"Action":"fail","Package":"m/p"}`)
	require.Equal(t, 1, code)
	require.Contains(t, out, "panic: x")
}

func TestNothingRan(t *testing.T) {
	code, out := summarise(t)
	require.Equal(t, 1, code)
	require.Contains(t, out, "no test ran")
}
