package conform

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

type object map[string]any

// with adds fields: a name, a value, and so on. A value of nil stands for null, absent for none at all.
func (o object) with(more ...any) object {
	for i := 0; i+1 < len(more); i += 2 {
		name, _ := more[i].(string)
		if _, gone := more[i+1].(absent); gone {
			delete(o, name)
		} else {
			o[name] = more[i+1]
		}
	}
	return o
}

type absent struct{}

// reply is an answer.
type reply struct {
	testing.TB
	status int
	header http.Header
	raw    []byte
	body   any
}

// ask sends a request with the token of a scope, none if that is empty; headers are names and values, and win. A body that is
// a string is sent as it is.
func (s *site) ask(scope api.Scope, method, path string, body any, headers ...string) reply {
	s.Helper()
	var b []byte
	switch body := body.(type) {
	case nil:
	case string:
		b = []byte(body)
	default:
		var err error
		b, err = json.Marshal(body)
		require.NoError(s, err)
	}
	req, err := http.NewRequestWithContext(s.Context(), method, s.URL+path, bytes.NewReader(b))
	require.NoError(s, err)
	if scope != "" {
		req.Header.Set("Authorization", "Bearer "+s.Token(scope))
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := s.client.Do(req)
	require.NoError(s, err)
	defer res.Body.Close() //nolint:errcheck // read only
	out := reply{TB: s.TB, status: res.StatusCode, header: res.Header}
	out.raw, err = io.ReadAll(res.Body)
	require.NoError(s, err)
	if strings.Contains(res.Header.Get("Content-Type"), "json") {
		dec := json.NewDecoder(bytes.NewReader(out.raw))
		dec.UseNumber()
		require.NoError(s, dec.Decode(&out.body), "%s", out.raw)
	}
	return out
}

func (s *site) get(scope api.Scope, path string) reply {
	s.Helper()
	return s.ask(scope, http.MethodGet, path, nil)
}

func (s *site) post(scope api.Scope, path string, body any, headers ...string) reply {
	s.Helper()
	return s.ask(scope, http.MethodPost, path, body, headers...)
}

func (r reply) is(status int) reply {
	r.Helper()
	require.Equal(r, status, r.status, "%s", r.raw)
	return r
}

func (r reply) ok() reply {
	r.Helper()
	return r.is(http.StatusOK)
}

// refused must be a problem with the status and code; the detail names what is given.
func (r reply) refused(status int, code string, names ...string) reply {
	r.Helper()
	r.is(status)
	require.Equal(r, "application/problem+json", r.header.Get("Content-Type"))
	require.Equal(r, code, r.text("code"), "%s", r.raw)
	require.Equal(r, "urn:lapse:problem:"+code, r.text("type"))
	require.Equal(r, http.StatusText(status), r.text("title"))
	require.Equal(r, status, r.number("status"))
	for _, name := range names {
		require.Contains(r, r.text("detail"), name, "%s", r.raw)
	}
	return r
}

// get goes down by field names and indices.
func (r reply) get(path ...any) any {
	r.Helper()
	v := r.body
	for _, step := range path {
		switch step := step.(type) {
		case string:
			fields, ok := v.(map[string]any)
			require.True(r, ok, "%v in %s", path, r.raw)
			v = fields[step]
		case int:
			list, ok := v.([]any)
			require.True(r, ok && step < len(list), "%v in %s", path, r.raw)
			v = list[step]
		}
	}
	return v
}

// text is empty for what is not there.
func (r reply) text(path ...any) string {
	r.Helper()
	v := r.get(path...)
	if v == nil {
		return ""
	}
	text, ok := v.(string)
	require.True(r, ok, "%v in %s", path, r.raw)
	return text
}

// number is 0 for what is not there.
func (r reply) number(path ...any) int {
	r.Helper()
	v := r.get(path...)
	if v == nil {
		return 0
	}
	number, ok := v.(json.Number)
	require.True(r, ok, "%v in %s", path, r.raw)
	n, err := number.Int64()
	require.NoError(r, err, "%v in %s", path, r.raw)
	return int(n)
}

// instant is zero for null; others are UTC.
func (r reply) instant(path ...any) time.Time {
	r.Helper()
	text := r.text(path...)
	if text == "" {
		return time.Time{}
	}
	require.True(r, strings.HasSuffix(text, "Z"), "%v in %s: UTC", path, r.raw)
	at, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(r, err, "%v in %s", path, r.raw)
	return at
}

func (r reply) list(path ...any) []any {
	r.Helper()
	list, ok := r.get(path...).([]any)
	require.True(r, ok, "%v in %s", path, r.raw)
	return list
}

// texts are a field of each member of a list.
func (r reply) texts(field string, path ...any) []string {
	r.Helper()
	n := len(r.list(path...))
	out := make([]string, n)
	for i := range out {
		out[i] = r.text(append(append([]any{}, path...), i, field)...)
	}
	return out
}

func rfc(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }
