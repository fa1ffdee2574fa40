package rig_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/rig"
)

const patience = 30 * time.Second

// buildWorker compiles the stand-in.
func buildWorker(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "worker")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./testdata/worker").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

func newFleet(t *testing.T, modes map[string]string) *rig.Fleet {
	t.Helper()
	dir := t.TempDir()
	worker := buildWorker(t)
	fleet := rig.NewFleet(dir, filepath.Join(dir, "run-"))
	for _, name := range []string{"one", "two"} {
		fleet.Add(rig.Program{Name: name, Path: worker, Env: []string{"WORKER_NAME=" + name, "WORKER_MODE=" + modes[name]}})
	}
	t.Cleanup(func() { require.NoError(t, fleet.Stop(bounded(t))) })
	return fleet
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestFleetStartsKillsRestartsAndStops(t *testing.T) {
	t.Parallel()
	fleet := newFleet(t, nil)
	require.NoError(t, fleet.Start(bounded(t)))
	first, err := fleet.Ports("one")
	require.NoError(t, err)
	pids, err := os.ReadFile(fleet.PidFile("one"))
	require.NoError(t, err)
	require.Len(t, strings.Fields(string(pids)), 3)

	require.ErrorContains(t, fleet.StartOne(bounded(t), "one"), "runs already")
	require.NoError(t, fleet.Kill("one"))
	require.NoFileExists(t, fleet.PidFile("one"))
	require.ErrorContains(t, fleet.Kill("one"), "not running")
	require.NoError(t, fleet.StartOne(bounded(t), "one"))
	second, err := fleet.Ports("one")
	require.NoError(t, err)
	require.NotEqual(t, first, second)

	require.NoError(t, fleet.Stop(bounded(t)))
	require.Equal(t, "  hello from two\n  goodbye", fleet.Tail("two"))
	require.Equal(t, "  hello from one\n  hello from one\n  goodbye", fleet.Tail("one"), "a killed process says no goodbye")
	select {
	case err := <-fleet.Died():
		require.NoError(t, err, "every end was meant")
	default:
	}
}

func TestFleetTellsWhoDied(t *testing.T) {
	t.Parallel()
	fleet := newFleet(t, nil)
	require.NoError(t, fleet.Start(bounded(t)))
	ports, err := fleet.Ports("two")
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(bounded(t), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/die", ports["admin"]), nil)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if res, err := client.Do(req); err == nil {
		require.NoError(t, res.Body.Close())
	}
	select {
	case err := <-fleet.Died():
		require.ErrorContains(t, err, "two ended unexpectedly: exit status 4")
		require.ErrorContains(t, err, "hello from two")
	case <-bounded(t).Done():
		require.Fail(t, "nobody told")
	}
}

func TestFleetShowsWhyAProcessDoesNotStart(t *testing.T) {
	t.Parallel()
	fleet := newFleet(t, map[string]string{"two": "fail"})
	err := fleet.Start(bounded(t))
	require.ErrorContains(t, err, "two ended before it was ready")
	require.ErrorContains(t, err, "cannot start: so it is written")
}

func TestStopPidEndsNothingButTheNotedProcess(t *testing.T) {
	t.Parallel()
	fleet := newFleet(t, nil)
	require.NoError(t, fleet.StartOne(bounded(t), "one"))
	noted, err := os.ReadFile(fleet.PidFile("one"))
	require.NoError(t, err)
	fields := strings.Fields(string(noted))

	other := filepath.Join(t.TempDir(), "other.pid")
	stale := fmt.Sprintf("%s %s0 %s\n", fields[0], fields[1], fields[2]) // the same pid, started at another time
	require.NoError(t, os.WriteFile(other, []byte(stale), 0o600))
	found, err := rig.StopPid(bounded(t), other)
	require.NoError(t, err)
	require.False(t, found)
	require.NoFileExists(t, other)
	require.NoError(t, fleet.WaitReady(bounded(t), "one"), "it lives")

	copied := filepath.Join(t.TempDir(), "copy.pid")
	require.NoError(t, os.WriteFile(copied, noted, 0o600))
	found, err = rig.StopPid(bounded(t), copied)
	require.NoError(t, err)
	require.True(t, found)
	require.Contains(t, fleet.Tail("one"), "goodbye")

	found, err = rig.StopPid(bounded(t), copied)
	require.NoError(t, err)
	require.False(t, found, "no file, nothing to end")
}
