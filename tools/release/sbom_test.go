package release

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/stretchr/testify/require"
)

// TestTheBillNamesEveryModule: of a binary that is built as a release is, by the command of the configuration: the main module, and exactly
// what the linker has taken in.
func TestTheBillNamesEveryModule(t *testing.T) {
	t.Parallel()
	file, err := built()
	require.NoError(t, err)
	document := filepath.Join(t.TempDir(), "lapsectl.cdx.json")
	sbom := project(t).SBOMs[0]
	require.Equal(t, "binary", sbom.Artifacts)
	require.Equal(t, "../.tools/cyclonedx-gomod", sbom.Cmd)
	args := []string{"-C", "tools/release", "tool", "cyclonedx-gomod"}
	for _, arg := range sbom.Args {
		args = append(args, rendered(t, strings.NewReplacer("$document", document, "$artifact", file).Replace(arg)))
	}
	run(t, nil, "go", args...)

	text, err := os.ReadFile(document)
	require.NoError(t, err)
	var bill cdx.BOM
	require.NoError(t, json.Unmarshal(text, &bill))
	require.Equal(t, "CycloneDX", bill.BOMFormat)
	require.Equal(t, "github.com/lapsehq/lapse", bill.Metadata.Component.Name)
	require.Equal(t, "v9.9.9", bill.Metadata.Component.Version)
	info, err := buildinfo.ReadFile(file)
	require.NoError(t, err)
	want := []string{"std"}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		want = append(want, m.Path+" "+m.Version)
	}
	require.Greater(t, len(want), 20)
	var have []string
	for _, c := range *bill.Components {
		if c.Name == "std" {
			c.Version = ""
		}
		have = append(have, strings.TrimSpace(c.Name+" "+c.Version))
	}
	slices.Sort(want)
	slices.Sort(have)
	require.Equal(t, want, have)
	require.True(t, slices.ContainsFunc(have, func(m string) bool { return strings.HasPrefix(m, "github.com/rabbitmq/amqp091-go v1.") }))
	require.NotEmpty(t, *bill.Dependencies)
}

// TestMakeWritesTheSameBill: `make sbom` and a release ask for it in one way, for every binary.
func TestMakeWritesTheSameBill(t *testing.T) {
	t.Parallel()
	recipe := run(t, nil, "make", "--dry-run", "sbom")
	for _, name := range binaries {
		require.Contains(t, recipe, name)
	}
	sbom := project(t).SBOMs[0]
	until := slices.Index(sbom.Args, "-version")
	require.Contains(t, recipe, ".tools/cyclonedx-gomod "+strings.Join(sbom.Args[:until], " ")+" ")
	require.Contains(t, recipe, ".cdx.json")
}
