package conform

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

// Twins asks the same of two targets, one random request after the other, and holds their answers against each other: status, code,
// states, versions, who repeats, what is listed in which order. Ids are told apart by when they first appeared, and of instants only
// whether there is one, since their clocks differ. A difference is shown with the requests that led to it.
func Twins(t *testing.T, one, other Target, seed uint64, requests int) {
	t.Helper()
	client := &http.Client{Timeout: 30 * time.Second}
	t.Cleanup(client.CloseIdleConnections)
	pair := [2]*twin{}
	for i, target := range []Target{one, other} {
		s := &site{TB: t, Target: target, client: client}
		pair[i] = &twin{site: s, begun: s.now().Truncate(time.Second), labels: map[string]string{}}
	}
	r := rand.New(rand.NewPCG(seed, 0))
	var asked []string
	for range requests {
		q := draw(r, len(pair[0].coupons))
		asked = append(asked, q.String())
		var got [2]any
		for i, w := range pair {
			got[i] = w.ask(q)
		}
		if len(asked) > 12 {
			asked = asked[1:]
		}
		require.Equal(t, got[0], got[1], "seed %d, after\n%s", seed, strings.Join(asked, "\n"))
	}
}

// request is one for both of them: ids stand as the places of coupons and templates.
type request struct {
	kind     string
	key      int
	user     string
	order    string
	template int
	coupons  []int
	flag     bool
	hours    int
}

func (q request) String() string {
	return fmt.Sprintf("%s key %d, user %s, order %s, template %d, coupons %v, %t, %d h", q.kind, q.key, q.user, q.order, q.template, q.coupons, q.flag, q.hours)
}

func draw(r *rand.Rand, coupons int) request {
	kinds := []string{
		"grant", "grant", "grant", "lock", "lock", "lock", "renew", "redeem", "redeem", "redeem", "release", "release", "refund", "refund",
		"extend", "void", "validate", "coupon", "timeline", "wallet", "summary", "best", "list", "template",
	}
	q := request{
		kind: kinds[r.IntN(len(kinds))], key: r.IntN(40), user: fmt.Sprintf("user-%d", r.IntN(3)), order: fmt.Sprintf("order-%d", r.IntN(4)),
		template: r.IntN(3), flag: r.IntN(3) == 0, hours: r.IntN(5),
	}
	if coupons == 0 {
		q.kind = "grant"
	}
	q.coupons = r.Perm(coupons)[:min(coupons, 1+r.IntN(3)*r.IntN(2))]
	return q
}

// twin is one of the two.
type twin struct {
	*site
	begun     time.Time
	templates []string
	coupons   []string          // ids, in the order of their grants
	labels    map[string]string // of ids
}

// terms of the templates: of each policy one.
func (w *twin) need() {
	if len(w.templates) > 0 {
		return
	}
	for _, more := range [][]any{
		nil,
		{"late_pay_policy", "strict", "per_user", 4, "quota", 9, "quota_back", "total_and_user"},
		{"offer", object{"kind": "percent", "basis_points": 2500, "cap": 400, "min_spend": 100}},
	} {
		id := w.template(more...)
		w.labels[id] = fmt.Sprintf("template %d", len(w.templates))
		w.templates = append(w.templates, id)
	}
}

// ask asks, and gives what is the same for both.
func (w *twin) ask(q request) any {
	w.Helper()
	w.need()
	var ids []string
	for _, i := range q.coupons {
		ids = append(ids, w.coupons[i])
	}
	r := w.send(q, ids)
	w.Settle(w.TB)
	if q.kind == "grant" && r.text("results", 0, "result") == "granted" {
		id := r.text("results", 0, "coupon_id")
		w.labels["c"+id] = fmt.Sprintf("coupon %d", len(w.coupons))
		w.coupons = append(w.coupons, id)
	}
	return object{"status": r.status, "body": w.plain("", r.body)}
}

// send sends the request.
func (w *twin) send(q request, ids []string) reply {
	w.Helper()
	order := func(more ...any) reply {
		return w.verb(q.kind, "twins-"+q.order, ids, append(more, "user_id", "twins-"+q.user)...)
	}
	post := func(scope api.Scope, path string, body object) reply { return w.post(scope, path, body) }
	user := "/v1/users/twins-" + q.user + "/coupons"
	// At no instant at which a template's rule ends a coupon.
	end := rfc(w.begun.Add(time.Duration(q.hours)*time.Hour + 90*time.Minute))
	switch q.kind {
	case "grant":
		g := object{"grant_key": fmt.Sprintf("twins-%d", q.key), "template_id": w.templates[q.template], "user_id": "twins-" + q.user}
		if q.flag {
			g["expires_at"] = end
		}
		return post(api.ScopeIssue, "/v1/grants", object{"grants": []object{g}})
	case "lock":
		if q.flag {
			return order("lock_for", "168h")
		}
		return order()
	case "renew":
		if q.flag {
			return order("lock_for", "1s")
		}
		return order("lock_for", "168h")
	case "refund":
		return order("partial", q.flag)
	case "redeem", "release":
		return order()
	case "extend":
		return post(api.ScopeOps, "/v1/coupons/"+ids[0]+"/extend", object{"expires_at": end, "reason": "r"})
	case "void":
		return post(api.ScopeOps, "/v1/coupons/"+ids[0]+"/void", object{"reason": "r", "break_lock": q.flag})
	case "validate":
		return post(api.ScopeRead, "/v1/coupons/"+ids[0]+"/validate", object{"user_id": "twins-" + q.user, "order_id": "twins-" + q.order, "amount": 100 * q.key, "currency": "CNY"})
	case "coupon":
		return w.get(api.ScopeRead, "/v1/coupons/"+ids[0])
	case "timeline":
		return w.get(api.ScopeRead, "/v1/coupons/"+ids[0]+"/timeline")
	case "wallet":
		return w.get(api.ScopeRead, user)
	case "summary":
		return w.get(api.ScopeRead, user+"/summary")
	case "best":
		return post(api.ScopeRead, user+"/best", object{"amount": 100 * q.key, "currency": "CNY"})
	case "list":
		return w.get(api.ScopeOps, "/v1/coupons?template_id="+w.templates[q.template])
	default:
		return w.get(api.ScopeOps, "/v1/templates/"+w.templates[q.template])
	}
}

// plain leaves of an answer what must be the same.
func (w *twin) plain(field string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, value := range v {
			if name != "detail" && name != "message" { // they name instants and ids
				out[name] = w.plain(name, value)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = w.plain(field, v[i])
		}
		return out
	case string:
		switch {
		case field == "coupon_id" && v != "":
			return w.labels["c"+v]
		case field == "template_id":
			return w.labels[v]
		case field == "trigger_id" || field == "note" || field == "actor":
			return v != ""
		}
		if _, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return "an instant"
		}
		return v
	default:
		return v
	}
}
