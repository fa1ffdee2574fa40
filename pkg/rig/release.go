package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	gitLimit       = time.Minute
	buildLimit     = 15 * time.Minute // of all programs of a release, and what they need from the network
	migrationsPath = "pkg/store/migrations"
)

// ErrHistory says that a release before this one cannot be had, and how it could.
var ErrHistory = errors.New("this needs the history of git")

// Release is the programs of another commit.
type Release struct {
	Ref    string // as it was asked for, or found
	Commit string
	Schema int64  // the newest migration that it knows
	Bin    string // directory of its programs
}

// BuildRelease builds the programs of a commit of the checkout into dir, unless they are there. ref is anything that git understands; empty
// means the release before what is checked out: the newest tag of a version before HEAD or, if nothing is tagged, the last commit before the
// newest migration, so that there is a step between the two schemas. The commit is checked out below dir meanwhile.
func BuildRelease(ctx context.Context, checkout, dir, ref string) (Release, error) {
	g := history{checkout}
	if err := g.there(ctx); err != nil {
		return Release{}, err
	}
	var err error
	if ref == "" {
		if ref, err = g.before(ctx); err != nil {
			return Release{}, err
		}
	}
	r := Release{Ref: ref}
	if r.Commit, err = g.ask(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}"); err != nil {
		return r, fmt.Errorf("%w: there is no commit %q in it%s", ErrHistory, ref, g.hint(ctx))
	}
	if r.Schema, err = g.schema(ctx, r.Commit); err != nil {
		return r, err
	}
	r.Bin = filepath.Join(dir, r.Commit[:12])
	if _, err := os.Stat(filepath.Join(r.Bin, "lapsectl")); err == nil {
		return r, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return r, fmt.Errorf("building %s: %w", ref, err)
	}
	return r, g.build(ctx, r)
}

// history is that of a checkout.
type history struct{ checkout string }

// ask gives what git says, without the end of the line.
func (g history) ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", g.checkout}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), withStderr(err))
	}
	return strings.TrimSpace(string(out)), nil
}

// there tells a checkout from an unpacked archive, which may lie in a checkout of something else.
func (g history) there(ctx context.Context) error {
	top, err := g.ask(ctx, "rev-parse", "--show-toplevel")
	if err == nil {
		var here, there os.FileInfo
		here, err = os.Stat(g.checkout)
		if err == nil {
			there, err = os.Stat(top)
		}
		if err == nil && !os.SameFile(here, there) {
			err = errors.New("another checkout is around it")
		}
	}
	if err != nil {
		return fmt.Errorf("%w, and %s is no checkout of its own (an unpacked archive has none: git clone it): %w", ErrHistory, g.checkout, err)
	}
	return nil
}

// hint is what a shallow checkout lacks.
func (g history) hint(ctx context.Context) string {
	if shallow, err := g.ask(ctx, "rev-parse", "--is-shallow-repository"); err == nil && shallow == "true" {
		return "; this checkout is shallow: git fetch --unshallow --tags"
	}
	return ""
}

// before finds the release before HEAD.
func (g history) before(ctx context.Context) (string, error) {
	if tag, err := g.ask(ctx, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"); err == nil {
		return tag, nil
	}
	newest, err := g.newest(ctx, "HEAD")
	if err != nil {
		return "", err
	}
	came, err := g.ask(ctx, "log", "--diff-filter=A", "--format=%H", "-1", "HEAD", "--", newest)
	if err == nil && came != "" {
		if came, err = g.ask(ctx, "rev-parse", "--verify", "--quiet", came+"^"); err == nil {
			return came, nil
		}
	}
	return "", fmt.Errorf("%w: there is neither a tag of a version nor a commit from before %s%s", ErrHistory, path.Base(newest), g.hint(ctx))
}

// newest is the newest migration of a commit: they are numbered with leading zeros.
func (g history) newest(ctx context.Context, commit string) (string, error) {
	files, err := g.ask(ctx, "ls-tree", "--name-only", "--full-tree", commit, migrationsPath+"/")
	if err != nil {
		return "", fmt.Errorf("the migrations of %s: %w", commit, err)
	}
	newest := ""
	for name := range strings.Lines(files) {
		if name = strings.TrimSpace(name); strings.HasSuffix(name, ".sql") {
			newest = max(newest, name)
		}
	}
	if newest == "" {
		return "", fmt.Errorf("%w: %s has no migrations in %s", ErrHistory, commit, migrationsPath)
	}
	return newest, nil
}

func (g history) schema(ctx context.Context, commit string) (int64, error) {
	newest, err := g.newest(ctx, commit)
	if err != nil {
		return 0, err
	}
	number, _, _ := strings.Cut(path.Base(newest), "_")
	version, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the migrations of %s: %w", commit, err)
	}
	return version, nil
}

// build checks the commit out beside the programs-to-be, builds them, and removes the checkout. They appear all at once.
func (g history) build(ctx context.Context, r Release) (err error) {
	tree, out := r.Bin+"-source", r.Bin+"-new"
	remove := func(ctx context.Context) error {
		_, rerr := g.ask(ctx, "worktree", "remove", "--force", tree)
		return errors.Join(rerr, os.RemoveAll(out))
	}
	if _, serr := os.Stat(tree); serr == nil {
		if err := remove(ctx); err != nil { // one that was broken off
			return fmt.Errorf("building %s: %w", r.Ref, err)
		}
	}
	if _, err := g.ask(ctx, "worktree", "add", "--force", "--detach", tree, r.Commit); err != nil {
		return fmt.Errorf("building %s: %w", r.Ref, err)
	}
	defer func() { err = errors.Join(err, remove(context.WithoutCancel(ctx))) }()
	limited, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	cmd := exec.CommandContext(limited, "go", "build", "-trimpath", "-o", out+string(filepath.Separator), "./cmd/...")
	var said bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = tree, bare(os.Environ()), &said, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = askLimit
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s: %w: %s", r.Ref, err, strings.TrimSpace(said.String()))
	}
	if err := os.Rename(out, r.Bin); err != nil {
		return fmt.Errorf("building %s: %w", r.Ref, err)
	}
	return nil
}
