package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/rig"
)

// ownStack is a stack beside the checkout's: for what kills servers, or measures them.
type ownStack struct {
	name     string // of its directory in .stack
	portBase int
	options  []string // of scripts/stack up
	keep     bool     // when all went well, too
}

const ownClear = 3 * time.Minute

// onOwnStack makes a stack, lets something be done on it, and removes it; after a failure its data and logs are kept.
func (s *system) onOwnStack(ctx context.Context, own ownStack, view interface{ Step(text string) }, do func(rig.Stack) error) error {
	checkout, err := s.checkout()
	if err != nil {
		return err
	}
	view.Step(fmt.Sprintf("a stack of its own, on ports from %d", own.portBase))
	dir := filepath.Join(checkout, ".stack", own.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("a place for the stack: %w", err)
	}
	stack, down, err := rig.OwnStack(ctx, checkout, dir, own.portBase, own.options...)
	if err == nil {
		err = do(stack)
	}
	failed := err != nil && ctx.Err() == nil
	if ctx.Err() != nil {
		err = fmt.Errorf("ended by %w", context.Cause(ctx))
	}
	view.Step("clearing up")
	clearing, cancel := context.WithTimeout(context.WithoutCancel(ctx), ownClear)
	defer cancel()
	if derr := down(clearing, own.keep || failed); derr != nil {
		return errors.Join(err, derr)
	}
	if failed {
		view.Step("the stack's data and logs are kept in " + dir)
	}
	return err
}

// checkout is the directory whose scripts/stack there is.
func (s *system) checkout() (string, error) {
	for _, dir := range []string{filepath.Dir(s.bin()), s.dir} {
		if _, err := os.Stat(filepath.Join(dir, "scripts", "stack")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("no scripts/stack above lapsectl or here: run it from a checkout")
}

// stepView prints a line for each thing that is done.
type stepView struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
}

// Step is being done, or was.
func (v *stepView) Step(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, _ = fmt.Fprintf(v.out, "%7.1f s  %s\n", time.Since(v.start).Seconds(), text)
}
