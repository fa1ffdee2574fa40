package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	shiftVariable = "CLOCK_SHIFT" // seconds by which such a program's clock is ahead, or behind if below 0
	shiftLimit    = 8 * time.Minute
	nowBegins     = "\tsec, nsec, mono := runtimeNow()\n"
	shiftSource   = `package time

import "syscall"

// shift is by how many seconds this process's clock is ahead of the machine's.
var shift = func() (n int64) {
	text, _ := syscall.Getenv("` + shiftVariable + `")
	sign := int64(1)
	for i, c := range []byte(text) {
		switch {
		case c == '-' && i == 0:
			sign = -1
		case c >= '0' && c <= '9':
			n = 10*n + int64(c-'0')
		default:
			return 0
		}
	}
	return sign * n
}()
`
)

// BuildShifted builds programs of a checkout, named by their packages (./cmd/publisher), into dir, such that the clock of each can be
// another one than the machine's: see Shift. Programs in Go read the clock without the C library, so nothing can be put in between
// while they run; these are the same sources, linked with a time.Now that adds what CLOCK_SHIFT says. Monotonic time stays as it is.
func BuildShifted(ctx context.Context, checkout, dir string, packages ...string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, shiftLimit)
	defer cancel()
	overlay, err := os.MkdirTemp("", "lapse-shifted-")
	if err != nil {
		return fmt.Errorf("building with another clock: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(overlay)) }()
	file, err := shiftOverlay(ctx, checkout, overlay)
	if err != nil {
		return fmt.Errorf("building with another clock: %w", err)
	}
	args := append([]string{"build", "-trimpath", "-overlay", file, "-o", dir + string(filepath.Separator)}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = checkout
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building with another clock: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// shiftOverlay writes what replaces files of the standard library, and gives the list of it.
func shiftOverlay(ctx context.Context, checkout, dir string) (list string, err error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOROOT")
	cmd.Dir = checkout
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("asking for GOROOT: %w", withStderr(err))
	}
	std := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	source, err := os.ReadFile(filepath.Join(std, "time.go"))
	if err != nil {
		return "", err
	}
	before, after, found := strings.Cut(string(source), nowBegins)
	if !found {
		return "", errors.New("this Go's time.Now is another one than is known here")
	}
	list = filepath.Join(dir, "overlay.json")
	now, shift := filepath.Join(dir, "time.go"), filepath.Join(dir, "shift.go")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(std, "time.go"): now, filepath.Join(std, "shift.go"): shift}})
	if err != nil {
		return "", err
	}
	for file, body := range map[string]string{now: before + nowBegins + "\tsec += shift\n" + after, shift: shiftSource, list: string(text)} {
		if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
			return "", err
		}
	}
	return list, nil
}

// Shift is a program of BuildShifted's in dir whose clock is ahead by so much, in whole seconds.
func (p Program) Shift(dir string, by time.Duration) Program {
	p.Path = filepath.Join(dir, filepath.Base(p.Path))
	p.Env = append(append([]string{}, p.Env...), shiftVariable+"="+strconv.FormatInt(int64(by/time.Second), 10))
	return p
}
