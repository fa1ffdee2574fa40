package deploy

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	commonutil "helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files anew")

const chartDir = "configs/helm/lapse"

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(filepath.Join(root, chartDir))
	require.NoError(t, err)

	return c
}

func values(t *testing.T, file string) map[string]any {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", file+".yaml"))
	require.NoError(t, err)
	out := map[string]any{}
	require.NoError(t, yaml.Unmarshal(content, &out))

	return out
}

// render gives the documents of the chart's templates, by template.
func render(t *testing.T, v map[string]any) (map[string]string, error) {
	t.Helper()
	c := load(t)
	all, err := commonutil.ToRenderValues(c, v, common.ReleaseOptions{
		Name: "lapse", Namespace: "coupons", Revision: 1, IsInstall: true,
	}, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}

	return engine.Render(c, all)
}

// documents are those of all templates, in the templates' order.
func documents(t *testing.T, file string) []string {
	t.Helper()
	rendered, err := render(t, values(t, file))
	require.NoError(t, err)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		if strings.HasSuffix(name, ".txt") {
			require.Contains(t, rendered[name], "installation shop")

			continue
		}
		for _, doc := range regexp.MustCompile(`(?m)^---$`).Split(rendered[name], -1) {
			if len(lines(doc)) > 0 {
				out = append(out, strings.TrimSpace(doc)+"\n")
			}
		}
	}

	return out
}

// TestLint: helm lint --strict, with the values of every case.
func TestLint(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"defaults", "on", "off"} {
		result := lint.RunAll(filepath.Join(root, chartDir), values(t, file), "coupons")
		for _, m := range result.Messages {
			require.Less(t, m.Severity, support.WarningSev, "%s: %s: %v", file, m.Path, m.Err)
		}
	}
}

// TestGolden: what the chart renders is what was looked at. The rules are left out: TestRules.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"defaults", "on", "off"} {
		docs := slices.DeleteFunc(documents(t, file), func(doc string) bool { return strings.Contains(doc, "kind: PrometheusRule") })
		got, golden := strings.Join(docs, "---\n"), filepath.Join("testdata/golden", file+".yaml")
		if *update {
			require.NoError(t, os.WriteFile(golden, []byte(got), 0o600))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		require.Equal(t, string(want), got, "go test ./tools/deploy -update writes it anew")
	}
}

// TestPackaged: the archive that helm package makes has the rules themselves, not a link to them.
func TestPackaged(t *testing.T) {
	t.Parallel()
	archive, err := chartutil.Save(load(t), t.TempDir())
	require.NoError(t, err)
	f, err := os.Open(archive)
	require.NoError(t, err)
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	require.NoError(t, err)
	content := map[string]string{}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		body, err := io.ReadAll(r)
		require.NoError(t, err)
		content[h.Name] = string(body)
	}
	found, err := filepath.Glob(filepath.Join(root, "configs/prometheus/rules/*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, found)
	for _, rules := range found {
		name := filepath.Base(rules)
		require.Equal(t, read(t, "configs/prometheus/rules/"+name), content["lapse/rules/"+name], name)
	}
	require.Contains(t, content, "lapse/values.schema.json")
}

// TestValuesThatDoNotFit are refused, and the message names the field.
func TestValuesThatDoNotFit(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		`{replicas: 2}`:                                             `additional properties 'replicas' not allowed`,
		`{expirer: {replica: 2}}`:                                   `at '/expirer': additional properties 'replica' not allowed`,
		`{expirer: {replicas: many}}`:                               `at '/expirer/replicas': got string, want integer`,
		`{expirer: {replicas: -1}}`:                                 `at '/expirer/replicas': minimum: got -1, want 0`,
		`{installation: "My Shop"}`:                                 `at '/installation': 'My Shop' does not match pattern`,
		`{image: {pullPolicy: Sometimes}}`:                          `at '/image/pullPolicy': value must be one of`,
		`{image: {digest: "sha256:1"}}`:                             `at '/image/digest': 'sha256:1' does not match pattern`,
		`{publisher: {service: {port: 70000}}}`:                     `at '/publisher/service/port': maximum: got 70,000, want 65,535`,
		`{publisher: {terminationGracePeriodSeconds: 5}}`:           `at '/publisher/terminationGracePeriodSeconds': minimum: got 5, want 30`,
		`{publisher: {autoscaling: {enabled: true}}}`:               `at '/publisher': additional properties 'autoscaling' not allowed`,
		`{notifier: {autoscaling: {windows: [{}]}}}`:                `at '/notifier/autoscaling/windows/0': missing properties 'start', 'end', 'timezone', 'replicas'`,
		`{notifier: {autoscaling: {messages: 0}}}`:                  `at '/notifier/autoscaling/messages': minimum: got 0, want 1`,
		`{secrets: {files: {password: x}}}`:                         `at '/secrets/files': additional properties 'password' not allowed`,
		`{secrets: {variables: {TOKEN: x}}}`:                        `at '/secrets/variables': additional properties 'TOKEN' not allowed`,
		`{networkPolicy: {brokerPorts: [0]}}`:                       `at '/networkPolicy/brokerPorts/0': minimum: got 0, want 1`,
		`{serviceMonitor: {interval: 15}}`:                          `at '/serviceMonitor/interval': got number, want string`,
		`{installation: ""}`:                                        `installation: must be set`,
		`{config: {database: {address: ""}}}`:                       `config.database.address: must be set`,
		`{secrets: {existing: ""}}`:                                 `secrets.existing: must name a Secret, or secrets.data must have`,
		`{expirer: {autoscaling: {enabled: true, minReplicas: 9}}}`: `expirer.autoscaling.minReplicas: must be at most maxReplicas (6), got 9`,
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			var over map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(change), &over))
			_, err := render(t, loader.MergeMaps(values(t, "defaults"), over))
			require.ErrorContains(t, err, want)
		})
	}
}
