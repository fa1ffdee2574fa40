package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

const description = `Coupons that end on time.

Ids are strings. Money is integer minor units (500 is 5.00) with its currency. Instants are RFC 3339 with a zone on the
way in and UTC on the way out; null is never. States are as seen at the instant of the answer: a coupon whose end has
passed reads expired, whether or not a worker has settled it.`

// spec is the OpenAPI document in both of its forms.
type spec struct{ json, yaml []byte }

// newSpec renders the document. The error schema of huma's own is not ours.
func newSpec(o *huma.OpenAPI) (spec, error) {
	schemas := o.Components.Schemas.Map()
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
	openAnswers(o)
	j, err := json.Marshal(o)
	if err != nil {
		return spec{}, fmt.Errorf("render as JSON: %w", err)
	}
	y, err := o.YAML()
	if err != nil {
		return spec{}, fmt.Errorf("render as YAML: %w", err)
	}
	return spec{json: j, yaml: y}, nil
}

// openAnswers lets what is only ever answered have more fields one day: clients must not refuse them. What is asked stays
// closed, since an unknown field is refused.
func openAnswers(o *huma.OpenAPI) {
	schemas, asked := o.Components.Schemas.Map(), map[string]bool{}
	var walk func(s *huma.Schema)
	walk = func(s *huma.Schema) {
		if s == nil {
			return
		}
		if name, ok := strings.CutPrefix(s.Ref, schemaPrefix); ok && !asked[name] {
			asked[name] = true
			walk(schemas[name])
		}
		walk(s.Items)
		for _, p := range s.Properties {
			walk(p)
		}
	}
	for _, item := range o.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
			if op == nil || op.RequestBody == nil {
				continue
			}
			for _, media := range op.RequestBody.Content {
				walk(media.Schema)
			}
		}
	}
	for name, s := range schemas {
		if !asked[name] {
			s.AdditionalProperties = nil
		}
	}
}

// OpenAPI is the document that describes the API, in YAML: docs/openapi.yaml.
func (a *API) OpenAPI() []byte { return a.spec.yaml }

func (s spec) of(path string) (body []byte, contentType string, ok bool) {
	switch path {
	case "/openapi.json":
		return s.json, "application/openapi+json", true
	case "/openapi.yaml":
		return s.yaml, "application/openapi+yaml", true
	default:
		return nil, "", false
	}
}

// serveSpec needs no token: the document holds no secret.
func serveSpec(ans *answer, r *http.Request, body []byte, contentType string) *Problem {
	if r.Method != http.MethodGet {
		p := problem(http.StatusMethodNotAllowed, CodeBadRequest, "the path takes GET")
		p.headers = http.Header{"Allow": {http.MethodGet}}
		return p
	}
	ans.Header().Set("Content-Type", contentType)
	_, _ = ans.Write(body)
	return nil
}
