package rig_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/rig"
)

// repository is a small one, with a history like ours.
type repository struct {
	*testing.T
	dir string
}

func (r repository) git(args ...string) string {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), "git", append([]string{"-C", r.dir, "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	require.NoError(r, err, "git %v: %s", args, out)
	return string(out[:max(0, len(out)-1)])
}

// commit adds a file and gives the commit.
func (r repository) commit(name, text string) string {
	r.Helper()
	file := filepath.Join(r.dir, name)
	require.NoError(r, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(r, os.WriteFile(file, []byte(text), 0o600))
	r.git("add", "-A")
	r.git("commit", "-q", "-m", name)
	return r.git("rev-parse", "HEAD")
}

func newRepository(t *testing.T) repository {
	t.Helper()
	r := repository{t, t.TempDir()}
	r.git("init", "-q")
	r.commit("go.mod", "module example.com/m\n\ngo 1.26.0\n")
	r.commit("cmd/lapsectl/main.go", "package main\n\nfunc main() { println(1) }\n")
	r.commit("pkg/store/migrations/00001_a.sql", "-- a\n")
	return r
}

func TestBuildRelease(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	before := r.commit("cmd/publisher/main.go", "package main\n\nfunc main() {}\n")
	r.commit("pkg/store/migrations/00002_b.sql", "-- b\n")
	head := r.commit("README.md", "two\n")
	dir := filepath.Join(t.TempDir(), "releases")

	got, err := rig.BuildRelease(t.Context(), r.dir, dir, "")
	require.NoError(t, err)
	require.Equal(t, rig.Release{Ref: before, Commit: before, Schema: 1, Bin: filepath.Join(dir, before[:12])}, got, "the last commit before the newest migration")
	out, err := exec.CommandContext(t.Context(), filepath.Join(got.Bin, "lapsectl")).CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "1\n", string(out))
	require.FileExists(t, filepath.Join(got.Bin, "publisher"))
	built, err := os.Stat(got.Bin)
	require.NoError(t, err)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "the checkout is gone")
	require.NotContains(t, r.git("worktree", "list"), dir)

	_, err = rig.BuildRelease(t.Context(), r.dir, dir, before)
	require.NoError(t, err)
	again, err := os.Stat(got.Bin)
	require.NoError(t, err)
	require.Equal(t, built.ModTime(), again.ModTime(), "what is there is not built again")

	r.git("tag", "v0.1.0", before)
	r.git("tag", "nightly", head+"^")
	r.git("tag", "v0.2.0", head)
	got, err = rig.BuildRelease(t.Context(), r.dir, dir, "")
	require.NoError(t, err)
	require.Equal(t, "v0.1.0", got.Ref, "the tag of HEAD itself is none before it")
	r.commit("README.md", "three\n")
	got, err = rig.BuildRelease(t.Context(), r.dir, dir, "")
	require.NoError(t, err)
	require.Equal(t, "v0.2.0", got.Ref)
	require.EqualValues(t, 2, got.Schema)

	_, err = rig.BuildRelease(t.Context(), r.dir, dir, "--help")
	require.ErrorIs(t, err, rig.ErrHistory)
	require.ErrorContains(t, err, `there is no commit "--help"`)
}

// A program that does not build leaves nothing, and what a run that was broken off has left does not stand in the way.
func TestBuildReleaseClearsUp(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	bad := r.commit("cmd/publisher/main.go", "package main\n\nfunc main() { rain }\n")
	dir := t.TempDir()
	for range 2 {
		_, err := rig.BuildRelease(t.Context(), r.dir, dir, bad)
		require.ErrorContains(t, err, "undefined: rain")
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
		r.git("worktree", "add", "-q", "--detach", filepath.Join(dir, bad[:12]+"-source"), bad)
	}
}

func TestBuildReleaseNeedsHistory(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	r.commit("README.md", "one\n")

	_, err := rig.BuildRelease(t.Context(), r.dir, t.TempDir(), "")
	require.ErrorIs(t, err, rig.ErrHistory)
	require.ErrorContains(t, err, "has no migrations in pkg/store/migrations", "the commit before the only one")

	shallow := filepath.Join(t.TempDir(), "shallow")
	r.git("clone", "-q", "--depth=1", "file://"+r.dir, shallow)
	_, err = rig.BuildRelease(t.Context(), shallow, t.TempDir(), "")
	require.ErrorIs(t, err, rig.ErrHistory)
	require.ErrorContains(t, err, "neither a tag of a version nor a commit from before 00001_a.sql; this checkout is shallow: git fetch --unshallow --tags")
	_, err = rig.BuildRelease(t.Context(), shallow, t.TempDir(), "v0.1.0")
	require.ErrorContains(t, err, `there is no commit "v0.1.0" in it; this checkout is shallow`)

	_, err = rig.BuildRelease(t.Context(), t.TempDir(), t.TempDir(), "")
	require.ErrorIs(t, err, rig.ErrHistory)
	require.ErrorContains(t, err, "is no checkout of its own (an unpacked archive has none: git clone it)")
	inside := filepath.Join(r.dir, "unpacked")
	require.NoError(t, os.Mkdir(inside, 0o755))
	_, err = rig.BuildRelease(t.Context(), inside, t.TempDir(), "")
	require.ErrorContains(t, err, "another checkout is around it")
}
