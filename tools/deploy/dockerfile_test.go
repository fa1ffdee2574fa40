package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// noRegistry knows an empty image of every name, and which were asked for.
type noRegistry struct{ asked []string }

// ResolveImageConfig resolves.
func (r *noRegistry) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	r.asked = append(r.asked, ref)
	config, err := json.Marshal(ocispecs.Image{
		Platform: ocispecs.Platform{OS: "linux", Architecture: "amd64"},
		Config:   ocispecs.ImageConfig{Env: []string{"PATH=/usr/local/go/bin:/usr/bin:/bin"}},
	})

	return ref, digest.FromBytes(config), config, err
}

func source(t *testing.T) *llb.SourceMap {
	t.Helper()
	m := llb.NewSourceMap(nil, "Dockerfile", "", []byte(read(t, "Dockerfile")))
	m.Definition = &llb.Definition{}

	return m
}

// convert is what BuildKit's frontend makes of the Dockerfile.
func convert(t *testing.T, target string, args map[string]string) (*dockerfile2llb.Result, *noRegistry) {
	t.Helper()
	registry := &noRegistry{}
	opt := dockerfile2llb.ConvertOpt{
		MetaResolver: registry, TargetPlatform: &ocispecs.Platform{OS: "linux", Architecture: "arm64"},
		SourceMap: source(t),
	}
	opt.Target, opt.BuildArgs = target, args
	opt.BuildPlatforms = []ocispecs.Platform{{OS: "linux", Architecture: "amd64"}}
	result, err := dockerfile2llb.Dockerfile2LLB(t.Context(), []byte(read(t, "Dockerfile")), opt)
	require.NoError(t, err)

	return result, registry
}

// TestDockerfileIsWithoutWarnings: docker build --check, of every stage.
func TestDockerfileIsWithoutWarnings(t *testing.T) {
	t.Parallel()
	opt := dockerfile2llb.ConvertOpt{
		MetaResolver: &noRegistry{}, TargetPlatform: &ocispecs.Platform{OS: "linux", Architecture: "amd64"},
		SourceMap: source(t),
	}
	results, err := dockerfile2llb.DockerfileLint(t.Context(), []byte(read(t, "Dockerfile")), opt)
	require.NoError(t, err)
	require.Nil(t, results.Error)
	for _, w := range results.Warnings {
		t.Errorf("%s: %s", w.RuleName, w.Detail)
	}
}

// TestImages: whoever runs an image runs it as nobody, stops it by SIGTERM, and can ask whether it lives.
func TestImages(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"", "lapse", "publisher", "expirer", "notifier"} {
		t.Run("target "+target, func(t *testing.T) {
			t.Parallel()
			result, registry := convert(t, target, map[string]string{
				"REGISTRY": "mirror.example:5000/docker", "VERSION": "v1.2.3", "REVISION": "abc", "CREATED": "2026-01-02T03:04:05Z",
			})
			config := result.Image.Config
			require.Equal(t, "65532:65532", config.User)
			require.Equal(t, "SIGTERM", config.StopSignal)
			require.Equal(t, []string{"PATH=/usr/local/bin"}, config.Env)
			require.Equal(t, "arm64", result.Image.Architecture)
			for name, want := range map[string]string{
				"version": "v1.2.3", "revision": "abc", "created": "2026-01-02T03:04:05Z",
				"licenses": "Apache-2.0", "title": "lapse", "source": "https://github.com/lapsehq/lapse",
			} {
				require.Equal(t, want, config.Labels["org.opencontainers.image."+name], name)
			}
			require.NotEmpty(t, registry.asked)
			for _, ref := range registry.asked {
				require.True(t, strings.HasPrefix(ref, "mirror.example:5000/docker/"), "%s does not come from the registry that was given", ref)
			}
			ports, isWorker := workers[target]
			if !isWorker {
				require.Nil(t, config.Healthcheck)
				require.Empty(t, config.Entrypoint)

				return
			}
			require.Equal(t, []string{target}, config.Entrypoint)
			require.Equal(t, []string{"CMD", target, "-healthcheck"}, config.Healthcheck.Test)
			require.Len(t, config.ExposedPorts, len(ports))
			for _, port := range ports {
				require.Contains(t, config.ExposedPorts, fmt.Sprintf("%d/tcp", port))
			}
		})
	}
}

// TestImageIsBuiltOfWhatIsHere: every COPY finds its source, past .dockerignore, and the build is the one that TestBinariesNeedNothing makes.
func TestImageIsBuiltOfWhatIsHere(t *testing.T) {
	t.Parallel()
	parsed, err := parser.Parse(strings.NewReader(read(t, "Dockerfile")))
	require.NoError(t, err)
	require.Empty(t, parsed.Warnings)
	stages, _, err := instructions.Parse(parsed.AST, nil)
	require.NoError(t, err)
	ignore, err := ignored(t)
	require.NoError(t, err)

	var copied []string
	var build string
	static := false
	for _, stage := range stages {
		for _, c := range stage.Commands {
			switch c := c.(type) {
			case *instructions.CopyCommand:
				if c.From == "" {
					copied = append(copied, c.SourcePaths...)
				}
			case *instructions.RunCommand:
				if text := strings.Join(c.CmdLine, " "); strings.Contains(text, "go build") {
					build = text
				}
			case *instructions.EnvCommand:
				for _, v := range c.Env {
					static = static || v.Key == "CGO_ENABLED" && v.Value == "0"
				}
			}
		}
	}
	require.ElementsMatch(t, []string{"go.mod", "go.sum", "cmd", "pkg"}, copied)
	require.True(t, static)
	require.Regexp(t, `go build -trimpath -ldflags "-s -w -X main.version=\$VERSION" -o /out/ ./cmd/\.\.\.`, build)
	for _, path := range copied {
		_, err := os.Stat(filepath.Join(root, path))
		require.NoError(t, err)
	}

	// Whatever the binaries are built of gets past .dockerignore; tests and what is private do not.
	for _, path := range slices.Concat(copied, embedded(t)) {
		hidden, err := ignore.MatchesOrParentMatches(path)
		require.NoError(t, err)
		require.False(t, hidden, "%s is kept from the image by .dockerignore", path)
	}
	for _, path := range []string{".git/config", ".stack/stack.env", "configs/compose/trial.env", "pkg/store/store_test.go", "bin/publisher"} {
		hidden, err := ignore.MatchesOrParentMatches(path)
		require.NoError(t, err)
		require.True(t, hidden, "%s gets into the build", path)
	}
}

func ignored(t *testing.T) (*patternmatcher.PatternMatcher, error) {
	t.Helper()
	patterns, err := ignorefile.ReadAll(strings.NewReader(read(t, ".dockerignore")))
	require.NoError(t, err)

	return patternmatcher.New(patterns)
}

// embedded are the files that the product's packages embed.
func embedded(t *testing.T) []string {
	t.Helper()
	var out []string
	directive := regexp.MustCompile(`(?m)^//go:embed (.+)$`)
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "pkg"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range directive.FindAllStringSubmatch(string(content), -1) {
			for _, pattern := range strings.Fields(m[1]) {
				found, err := filepath.Glob(filepath.Join(filepath.Dir(path), pattern))
				if err != nil {
					return err
				}
				for _, f := range found {
					rel, err := filepath.Rel(root, f)
					if err != nil {
						return err
					}
					out = append(out, rel)
				}
			}
		}

		return nil
	}))
	require.NotEmpty(t, out)

	return out
}
