package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// OwnStack lays out a stack beside that of a checkout, in dir and on ports of its own, and starts it: for what stops and kills
// servers that others use. Its data, passwords and fence are its own. down stops it, and removes it with everything in dir
// unless it is to be kept; it must be called whatever is returned. options are those of scripts/stack up.
func OwnStack(ctx context.Context, checkout, dir string, portBase int, options ...string) (s Stack, down func(ctx context.Context, keep bool) error, err error) {
	env := append(onPorts(portBase), "CI=true")
	down = func(ctx context.Context, keep bool) error {
		if _, err := os.Stat(filepath.Join(dir, ".stack")); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if keep {
			return script(ctx, dir, env, "down")
		}
		if err := script(ctx, dir, env, "down", "--purge"); err != nil {
			return err
		}
		return os.RemoveAll(dir)
	}
	for _, part := range []string{"scripts", "configs"} {
		to := filepath.Join(dir, part)
		if err := os.RemoveAll(to); err != nil {
			return Stack{}, down, fmt.Errorf("laying out a stack of its own: %w", err)
		}
		if err := os.CopyFS(to, os.DirFS(filepath.Join(checkout, part))); err != nil {
			return Stack{}, down, fmt.Errorf("laying out a stack of its own: %w", err)
		}
	}
	compose, err := os.ReadFile(filepath.Join(checkout, "docker-compose.yml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "docker-compose.yml"), compose, 0o600)
	}
	if err != nil {
		return Stack{}, down, fmt.Errorf("laying out a stack of its own: %w", err)
	}
	if err := script(ctx, dir, env, append([]string{"up"}, options...)...); err != nil {
		return Stack{}, down, err
	}
	s, err = readStack(ctx, dir, env)
	return s, down, err
}

// onPorts is this process's environment as scripts/stack takes it for the stack on these ports, whatever stack it was set for.
func onPorts(base int) []string {
	return append(bare(os.Environ()), "STACK_PORT_BASE="+strconv.Itoa(base))
}

// bare is an environment without what describes another stack or installation.
func bare(environ []string) []string {
	var env []string
	for _, v := range environ {
		if !strings.HasPrefix(v, "LAPSE_") && !strings.HasPrefix(v, "STACK_") && !strings.HasPrefix(v, "TEST_") {
			env = append(env, v)
		}
	}
	return env
}
