package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// WritePid notes a process as scripts/stack does: "pid start-time boot-id". It counts as the same process only while
// all three agree, so a reused pid is never signalled.
func WritePid(path string, pid int) error {
	started, err := startTime(pid)
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	line := fmt.Sprintf("%d %s %s\n", pid, started, boot)
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		return fmt.Errorf("noting a process: %w", err)
	}
	return nil
}

// StopPid ends the process that the file notes, if it still is that process: SIGTERM, then after a grace SIGKILL. The
// file is removed. It reports whether there was one.
func StopPid(ctx context.Context, path string) (bool, error) {
	pid, alive, err := readPid(path)
	if err != nil || pid == 0 {
		return false, err
	}
	if !alive {
		return false, os.Remove(path)
	}
	sig := syscall.SIGTERM
	deadline := time.Now().Add(stopGrace)
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for signalled := false; alive; {
		if !signalled {
			if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				return true, fmt.Errorf("ending process %d: %w", pid, err)
			}
			signalled = true
		}
		select {
		case <-ctx.Done():
			return true, fmt.Errorf("ending process %d: %w", pid, context.Cause(ctx))
		case now := <-tick.C:
			if sig == syscall.SIGTERM && now.After(deadline) {
				sig, signalled = syscall.SIGKILL, false
			}
		}
		if _, alive, err = readPid(path); err != nil {
			return true, err
		}
	}
	return true, os.Remove(path)
}

// readPid gives the noted pid, 0 if there is no file, and whether it is still that process.
func readPid(path string) (pid int, alive bool, err error) {
	body, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("reading a pid file: %w", err)
	}
	fields := strings.Fields(string(body))
	if len(fields) != 3 {
		return 0, false, fmt.Errorf("reading a pid file: %s does not hold pid, start time and boot id", path)
	}
	if pid, err = strconv.Atoi(fields[0]); err != nil || pid < 2 {
		return 0, false, fmt.Errorf("reading a pid file: %s: no pid in %q", path, fields[0])
	}
	boot, err := bootID()
	if err != nil {
		return 0, false, err
	}
	started, err := startTime(pid)
	return pid, err == nil && started == fields[1] && boot == fields[2], nil
}

// startTime of a process, in ticks since boot; an error if it is gone or only waits to be reaped.
func startTime(pid int) (string, error) {
	body, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", fmt.Errorf("process %d: %w", pid, err)
	}
	text := string(body)
	// Fields after the command's name begin with the third; the start time is the 22nd.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return fields[19], nil
}

func bootID() (string, error) {
	body, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("identifying this boot: %w", err)
	}
	return strings.TrimSpace(string(body)), nil
}
