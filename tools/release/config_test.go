package release

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/goreleaser/fileglob"
	"github.com/goreleaser/goreleaser/v2/pkg/config"
	"github.com/stretchr/testify/require"
)

// TestUnknownKeysAreRefused: else the other tests would show nothing.
func TestUnknownKeysAreRefused(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, configFile))
	require.NoError(t, err)
	_, err = config.LoadReader(bytes.NewReader(text))
	require.NoError(t, err)
	for _, typo := range [][2]string{{"goarch:", "goarchs:"}, {"wrap_in_directory", "wrap_in_dir"}, {"algorithm: sha256", "algorithms: sha256"}} {
		bad := bytes.Replace(text, []byte(typo[0]), []byte(typo[1]), 1)
		require.NotEqual(t, text, bad)
		_, err = config.LoadReader(bytes.NewReader(bad))
		require.ErrorContains(t, err, strings.TrimSuffix(strings.Fields(typo[1])[0], ":"))
	}
}

// TestEveryCommandIsBuilt, static, for both architectures, and says its version.
func TestEveryCommandIsBuilt(t *testing.T) {
	t.Parallel()
	p := project(t)
	require.Equal(t, 2, p.Version)
	commands, err := filepath.Glob(filepath.Join(root, "cmd", "*", "main.go"))
	require.NoError(t, err)
	require.Len(t, commands, len(binaries))
	var ids []string
	for _, b := range p.Builds {
		ids = append(ids, b.ID)
		require.Equal(t, b.ID, b.Binary)
		require.Equal(t, "./cmd/"+b.ID, b.Main)
		require.Equal(t, []string{"linux"}, b.Goos)
		require.Equal(t, []string{"amd64", "arm64"}, b.Goarch)
		require.Contains(t, b.Env, "CGO_ENABLED=0")
		require.Contains(t, b.Flags, "-trimpath")
		main, err := os.ReadFile(filepath.Join(root, b.Main, "main.go"))
		require.NoError(t, err)
		require.Regexp(t, regexp.MustCompile(`(?m)^var version = "`), string(main))
		require.Equal(t, "-s -w -X main.version=v9.9.9", rendered(t, strings.Join(b.Ldflags, " ")))
	}
	slices.Sort(ids)
	require.Equal(t, binaries, ids)
	for _, arch := range p.Builds[0].Goarch {
		out := run(t, []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch}, "go", "list", "-deps", "-f", `{{with .Error}}{{.}}{{end}}`, "./cmd/...")
		require.Empty(t, strings.TrimSpace(out), arch)
	}
}

// TestArchivesHoldWhatTheyName: each pattern has files, by GoReleaser's own matcher, and all of them are under version control.
func TestArchivesHoldWhatTheyName(t *testing.T) {
	t.Parallel()
	p := project(t)
	require.Len(t, p.Archives, 1)
	tracked := strings.Split(strings.TrimSpace(run(t, nil, "git", "ls-files")), "\n")
	for _, f := range p.Archives[0].Files {
		found, err := fileglob.Glob(f.Source, fileglob.WithFs(os.DirFS(root)), fileglob.MatchDirectoryIncludesContents)
		require.NoError(t, err, f.Source)
		require.NotEmpty(t, found, f.Source)
		for _, name := range found {
			require.Contains(t, tracked, name, "%s would take along what is not ours", f.Source)
		}
	}
	for _, name := range []string{"configs/publisher.yaml", "configs/helm/lapse/Chart.yaml", "docs/upgrade.md", "docs/runbook/README.md"} {
		found := slices.ContainsFunc(p.Archives[0].Files, func(f config.File) bool {
			all, err := fileglob.Glob(f.Source, fileglob.WithFs(os.DirFS(root)), fileglob.MatchDirectoryIncludesContents)

			return err == nil && slices.Contains(all, name)
		})
		require.True(t, found, name)
	}
}

// TestTemplatesAreWhole: they name nothing that is not there when they are filled in.
func TestTemplatesAreWhole(t *testing.T) {
	t.Parallel()
	p := project(t)
	require.Equal(t, "lapse_9.9.9_linux_amd64", rendered(t, p.Archives[0].NameTemplate))
	require.Equal(t, "lapse_9.9.9_checksums.txt", rendered(t, p.Checksum.NameTemplate))
	require.Equal(t, "lapse_9.9.9_source", rendered(t, p.Source.NameTemplate))
	require.Equal(t, "lapse_9.9.9/", rendered(t, p.Source.PrefixTemplate))
	require.Equal(t, "lapsectl_9.9.9_linux_amd64.cdx.json", rendered(t, p.SBOMs[0].Documents[0]))
	require.Equal(t, "9.9.10-snapshot-abc1234", rendered(t, p.Snapshot.VersionTemplate))
	require.Equal(t, "2026-01-01T00:00:00Z", rendered(t, p.Archives[0].BuildsInfo.MTime))
	for _, b := range p.Builds {
		require.Equal(t, "1767225600", rendered(t, b.ModTimestamp))
	}
}

// TestTargetsOfTheHooksAreThere: what is made before a release is made by this Makefile.
func TestTargetsOfTheHooksAreThere(t *testing.T) {
	t.Parallel()
	for _, hook := range project(t).Before.Hooks {
		if target, ok := strings.CutPrefix(hook, "make "); ok {
			run(t, nil, "make", "--dry-run", target)
		}
	}
}

func rendered(t *testing.T, text string) string {
	t.Helper()
	functions := template.FuncMap{"incpatch": func(string) string { return "9.9.10" }}
	parsed, err := template.New("").Funcs(functions).Option("missingkey=error").Parse(text)
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, parsed.Execute(&out, values))

	return out.String()
}
