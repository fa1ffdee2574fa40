package api_test

import (
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/lapsehq/lapse/pkg/api"
)

// operation is one of the document's.
type operation struct {
	method, path string
	ID           string                `json:"operationId"`
	Summary      string                `json:"summary"`
	Text         string                `json:"description"`
	Tags         []string              `json:"tags"`
	Security     []map[string][]string `json:"security"`
	Responses    map[string]struct {
		Description string                     `json:"description"`
		Content     map[string]json.RawMessage `json:"content"`
	} `json:"responses"`
	Parameters []struct {
		Name string `json:"name"`
		In   string `json:"in"`
	} `json:"parameters"`
	Body json.RawMessage `json:"requestBody"`
}

// signed by a provider, instead of a token.
func (o operation) signed() bool { _, ok := o.Security[0]["signature"]; return ok }

// scopes as the description says them: what clients read must be what holds.
func (o operation) scopes(t testing.TB) []string {
	t.Helper()
	m := regexp.MustCompile(`Scope: ([a-z ]+)\.$`).FindStringSubmatch(o.Text)
	require.NotNil(t, m, "%s does not say its scopes: %q", o.ID, o.Text)
	return strings.Split(m[1], " or ")
}

// operations are those of the document that the API serves.
func operations(t testing.TB, a *api.API) []operation {
	t.Helper()
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "application/openapi+json", w.Header().Get("Content-Type"))
	var doc struct {
		OpenAPI string                          `json:"openapi"`
		Paths   map[string]map[string]operation `json:"paths"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &doc))
	require.True(t, strings.HasPrefix(doc.OpenAPI, "3.1."))
	var out []operation
	for path, methods := range doc.Paths {
		for method, o := range methods {
			o.method, o.path = strings.ToUpper(method), path
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b operation) int { return strings.Compare(a.ID, b.ID) })
	require.Greater(t, len(out), 20)
	return out
}

// offline is an API without a store: for what is decided before one is needed.
func offline(t testing.TB, change ...func(*api.Config, *api.Deps)) *api.API {
	t.Helper()
	c, d := siteConfig(), api.Deps{}
	for _, f := range change {
		f(&c, &d)
	}
	a, err := api.New(c, d, zap.NewNop(), prometheus.NewRegistry())
	require.NoError(t, err)
	return a
}

var update = flag.Bool("update", false, "write docs/openapi.yaml anew")

// TestOpenAPIIsCurrent: the document in docs is the one that is served.
func TestOpenAPIIsCurrent(t *testing.T) {
	t.Parallel()
	served := offline(t).OpenAPI()
	file := filepath.Join("..", "..", "docs", "openapi.yaml")
	if *update {
		require.NoError(t, os.WriteFile(file, served, 0o644))
	}
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(kept), string(served), "write it: go test ./pkg/api -run OpenAPIIsCurrent -update")

	w := httptest.NewRecorder()
	offline(t).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.yaml", nil))
	require.Equal(t, string(kept), w.Body.String())
}

// TestNullIsAnEndThatNeverComes: what is asked has null nowhere else, as codec.go takes it.
func TestNullIsAnEndThatNeverComes(t *testing.T) {
	t.Parallel()
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				More       any `yaml:"additionalProperties"` // false in what is asked, absent in what is only answered
				Properties map[string]struct {
					Type any `yaml:"type"`
				} `yaml:"properties"`
			} `yaml:"schemas"`
		} `yaml:"components"`
	}
	require.NoError(t, yaml.Unmarshal(offline(t).OpenAPI(), &doc))
	var names []string
	for _, schema := range doc.Components.Schemas {
		for name, p := range schema.Properties {
			if types, many := p.Type.([]any); many && schema.More == false && slices.Contains(types, any("null")) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	require.Equal(t, []string{"expires_at", "expires_at"}, names, "a grant's and an extension's")
}

func TestEveryOperationIsDocumented(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, o := range operations(t, offline(t)) {
		require.False(t, seen[o.ID], o.ID)
		seen[o.ID] = true
		require.NotEmpty(t, o.Summary, o.ID)
		require.Len(t, o.Tags, 1, o.ID)
		statuses := []string{"400", "401", "429", "500", "503", "504"}
		if o.signed() {
			require.Equal(t, []map[string][]string{{"signature": {}}}, o.Security, o.ID)
			require.NotContains(t, o.Text, "Scope: ", o.ID)
			require.NotContains(t, o.Responses, "403", o.ID)
		} else {
			require.Equal(t, []map[string][]string{{"token": {}}}, o.Security, o.ID)
			require.NotEmpty(t, o.scopes(t))
			statuses = append(statuses, "403")
		}
		ok := 0
		for status, r := range o.Responses {
			n, err := strconv.Atoi(status)
			require.NoError(t, err, "%s: %s", o.ID, status)
			if n < 300 {
				ok++
				continue
			}
			require.Contains(t, r.Description, "Codes: ", "%s: %s", o.ID, status)
			require.Contains(t, r.Content, "application/problem+json", "%s: %s", o.ID, status)
		}
		require.Equal(t, 1, ok, o.ID)
		for _, status := range statuses {
			require.Contains(t, o.Responses, status, o.ID)
		}
		takesKey := slices.ContainsFunc(o.Parameters, func(p struct {
			Name string `json:"name"`
			In   string `json:"in"`
		},
		) bool {
			return p.Name == "Idempotency-Key" && p.In == "header"
		})
		reads := o.method == http.MethodGet || strings.HasSuffix(o.path, "/best") || strings.HasSuffix(o.path, "/validate") || o.signed()
		require.Equal(t, !reads, takesKey, "%s %s", o.method, o.path)
	}
}

// TestEveryCodeIsExplained: the table in docs/api.md has every code of the document, with its statuses, and no other.
func TestEveryCodeIsExplained(t *testing.T) {
	t.Parallel()
	want := map[string][]string{}
	for _, o := range operations(t, offline(t)) {
		for status, r := range o.Responses {
			_, codes, ok := strings.Cut(r.Description, "Codes: ")
			if !ok {
				continue
			}
			for code := range strings.SplitSeq(strings.TrimSuffix(codes, "."), ", ") {
				if !slices.Contains(want[code], status) {
					want[code] = append(want[code], status)
				}
			}
		}
	}
	for _, statuses := range want {
		slices.Sort(statuses)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "api.md"))
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(page), "<!-- codes:begin -->")
	table, _, _ = strings.Cut(table, "<!-- codes:end -->")
	got := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([0-9, ]+) \\|").FindAllStringSubmatch(table, -1) {
		got[m[1]] = strings.Split(m[2], ", ")
	}
	require.Equal(t, want, got)
}
