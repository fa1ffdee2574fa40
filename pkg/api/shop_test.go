package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// shop is a real store behind a real server, with a token for each scope, of its name.
type shop struct {
	testing.TB
	db     testenv.Database
	store  *store.Store
	bell   *bell
	reg    *prometheus.Registry
	url    string
	client *http.Client
	keys   int
}

func newShop(t testing.TB, change ...func(*api.Config, *store.Config)) *shop {
	t.Helper()
	s := &shop{TB: t, db: testenv.NewDatabase(t), bell: &bell{}}
	c := api.DefaultConfig()
	c.Address = "127.0.0.1:0"
	for _, scope := range api.Scopes() {
		c.Tokens = append(c.Tokens, api.Token{Name: string(scope) + "-shop", Hash: api.HashToken(string(scope)), Scopes: []string{string(scope)}})
	}
	for _, f := range change {
		f(&c, &s.db.Config)
	}
	s.store = s.db.Store(t)
	w := newAside(t, s.bell, smallLadder(t, "t"))
	testenv.Run(t, w.Run)
	s.reg = w.reg
	a, err := api.New(c, api.Deps{
		Templates: s.store, Checkout: s.store, Coupons: s.store, Wallets: s.store, Aside: w.Aside, Grants: s.store, Stats: s.store, Keys: s.store,
		Notices: s.store, Receipts: s.store, Texts: noticeTexts(t), Signature: providers(),
	}, testenv.Log(t).WithOptions(zap.IncreaseLevel(zap.WarnLevel)), prometheus.NewRegistry())
	require.NoError(t, err)
	server := httptest.NewServer(a.Handler())
	s.url, s.client = server.URL, server.Client()
	s.client.Timeout = patience
	t.Cleanup(server.Close)
	return s
}

// template is of 5.00 off for everything, for an hour, unless changed.
func (s *shop) template(change ...func(*coupon.Template)) uint64 {
	s.Helper()
	t := coupon.Template{
		Name: "t", Rule: coupon.Rule{Kind: coupon.RuleAfter, After: "1h"}, Actor: "test", Reason: "r",
		Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact}.Defaults(),
	}
	for _, f := range change {
		f(&t)
	}
	id, err := s.store.CreateTemplate(s.Context(), t)
	require.NoError(s, err)
	return id
}

// grant gives a user coupons of a template.
func (s *shop) grant(template uint64, user string, n int, change ...func(*coupon.Grant)) []string {
	s.Helper()
	grants := make([]coupon.Grant, n)
	for i := range grants {
		s.keys++
		grants[i] = coupon.Grant{Key: "k" + strconv.Itoa(s.keys), TemplateID: template, UserID: user}
		for _, f := range change {
			f(&grants[i])
		}
	}
	out, err := s.store.Issue(s.Context(), grants)
	require.NoError(s, err)
	ids := make([]string, n)
	for i := range out {
		require.Empty(s, out[i].Refused, out[i].Detail)
		ids[i] = strconv.FormatUint(out[i].CouponID, 10)
	}
	return ids
}

// move sets the end of coupons, seconds from now, as time would, and of their locks if they have any.
func (s *shop) move(end int, lock int, ids ...string) {
	s.Helper()
	s.db.Exec(s, fmt.Sprintf(`UPDATE coupon SET due_at = DATE_FORMAT(UTC_TIMESTAMP(3) + INTERVAL %d SECOND, '%%Y-%%m-%%d %%H:%%i:%%s.000'), expires_at = due_at,
		lock_until = IF(lock_until IS NULL, NULL, DATE_FORMAT(UTC_TIMESTAMP(3) + INTERVAL %d SECOND, '%%Y-%%m-%%d %%H:%%i:%%s.000'))
		WHERE id IN (%s)`, end, lock, strings.Join(ids, ",")))
}

type object = map[string]any

// reply is an answer.
type reply struct {
	testing.TB
	status int
	header http.Header
	raw    []byte
	body   object
}

// ask sends a request with the scope's token. A body that is no string or bytes is sent as JSON. Path is sent as it is.
func (s *shop) ask(scope api.Scope, method, path string, body any) reply {
	s.Helper()
	var b []byte
	switch body := body.(type) {
	case nil:
	case string:
		b = []byte(body)
	case []byte:
		b = body
	default:
		var err error
		b, err = json.Marshal(body)
		require.NoError(s, err)
	}
	req, err := http.NewRequestWithContext(s.Context(), method, s.url+path, bytes.NewReader(b))
	require.NoError(s, err)
	req.Header.Set("Authorization", "Bearer "+string(scope))
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := s.client.Do(req)
	require.NoError(s, err)
	defer res.Body.Close()
	out := reply{TB: s, status: res.StatusCode, header: res.Header}
	out.raw, err = io.ReadAll(res.Body)
	require.NoError(s, err)
	out.decode()
	return out
}

func (r *reply) decode() {
	r.Helper()
	if strings.Contains(r.header.Get("Content-Type"), "json") {
		require.NoError(r, json.Unmarshal(r.raw, &r.body), "%s", r.raw)
	}
}

func (s *shop) get(scope api.Scope, path string) reply {
	s.Helper()
	return s.ask(scope, http.MethodGet, path, nil)
}

// verb asks for an order; user may be empty.
func (s *shop) verb(verb, order, user string, ids []string, more ...any) reply {
	s.Helper()
	body := object{"coupon_ids": ids}
	if user != "" {
		body["user_id"] = user
	}
	for i := 0; i+1 < len(more); i += 2 {
		body[more[i].(string)] = more[i+1]
	}
	return s.ask(api.ScopeOrder, http.MethodPost, "/v1/orders/"+url.PathEscape(order)+"/"+verb, body)
}

// ok must be a success.
func (r reply) ok() reply {
	r.Helper()
	require.Equal(r, http.StatusOK, r.status, "%s", r.raw)
	return r
}

// coupons of the answer.
func (r reply) coupons() []object {
	r.Helper()
	list, ok := r.body["coupons"].([]any)
	require.True(r, ok, "%s", r.raw)
	out := make([]object, len(list))
	for i := range list {
		out[i] = list[i].(object)
	}
	return out
}

// refused must be a problem of the status and code.
func (r reply) refused(status int, code string) reply {
	r.Helper()
	require.Equal(r, status, r.status, "%s", r.raw)
	require.Equal(r, "application/problem+json", r.header.Get("Content-Type"))
	require.Equal(r, code, r.body["code"], "%s", r.raw)
	require.Equal(r, "urn:lapse:problem:"+code, r.body["type"])
	require.InDelta(r, status, r.body["status"], 0)
	require.NotEmpty(r, r.body["detail"])
	return r
}

func (r reply) at(field string) time.Time { return timeOf(r.TB, r.body, field) }

func timeOf(t testing.TB, o object, field string) time.Time {
	t.Helper()
	text, ok := o[field].(string)
	require.True(t, ok, "%s of %v", field, o)
	at, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(text, "Z"), "UTC out: %s", text)
	return at
}

func field(os []object, name string) []any {
	out := make([]any, len(os))
	for i := range os {
		out[i] = os[i][name]
	}
	return out
}
