package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/verify"
)

// TestRealPrograms builds all programs and calls the real lapsectl, as people do. Nothing here says anything of lateness, since tests
// share the machine.
func TestRealPrograms(t *testing.T) {
	t.Parallel()
	bin := t.TempDir() + "/"
	out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", bin, "../...").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name, test := range map[string]func(t *testing.T, bin string){
		"demo": testDemo, "sabotage": testSabotage, "verify": testVerify, "flags of verify": testVerifyFlags, "sandbox": testSandbox,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, bin)
		})
	}
}

// program calls the real lapsectl and gives what it printed and its exit code.
func program(t *testing.T, bin string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "lapsectl"), args...)
	// It clears up before it ends.
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(os.Interrupt) }, time.Minute
	out, err := cmd.CombinedOutput()
	if err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError), "%s", out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func readJSON(t *testing.T, file string, into any) {
	t.Helper()
	body, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(body, into))
}

func testDemo(t *testing.T, bin string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "demo.json")
	out, code := program(t, bin, "demo", "--coupons=300", "--over=10s", "--json="+file)
	require.Equal(t, exitOK, code, out)
	var r struct {
		audit.Report
		Passed   bool     `json:"passed"`
		Failures []string `json:"failures"`
	}
	readJSON(t, file, &r)
	require.True(t, r.Passed)
	require.Empty(t, r.Failures)
	require.Equal(t, [...]int{300, 300, 0, 0, 0, 0}, [...]int{r.Coupons, r.Expired, r.Early, r.NotExpired, r.DuplicateTransitions, r.MissingEvents})
	require.Equal(t, [...]int{90, 90, 300, 300}, [...]int{r.Notices, r.UsersWithNotice, r.CouponsInNotices, r.Waiting})
}

// A damaged coupon is found.
func testSabotage(t *testing.T, bin string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "demo.json")
	out, code := program(t, bin, "demo", "--coupons=60", "--over=10s", "--sabotage=early", "--json="+file)
	require.Equal(t, exitMiss, code, out)
	var r audit.Report
	readJSON(t, file, &r)
	require.Equal(t, 1, r.Early, out)
}

// One section of the verification that does not look at the clock.
func testVerify(t *testing.T, bin string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "verify.json")
	out, code := program(t, bin, "verify", "walk", "--only=bad-input", "--json="+file)
	require.Equal(t, exitOK, code, out)
	var r verify.Result
	readJSON(t, file, &r)
	require.True(t, r.Passed)
	require.Equal(t, "walk", r.Verify)
	require.NotEmpty(t, r.Commit)
	require.NotEmpty(t, r.Servers.Database)
	require.Greater(t, len(r.Checks), 10)
	require.Contains(t, out, "PASS: ")
}

func testVerifyFlags(t *testing.T, bin string) {
	t.Helper()
	out, code := program(t, bin, "verify", "walk", "--only=demo,rain", "--coupons=1")
	require.Equal(t, exitError, code)
	require.Contains(t, out, "coupons: must be between 100 and 100000, got 1")
	require.Contains(t, out, `got "rain"`)
}
