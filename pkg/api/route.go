package api

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// route is one operation. What it does not say follows: the problems that any route can have are documented for all.
type route struct {
	id      string // operationId: lockCoupons
	method  string
	path    string // /v1/orders/{order_id}/lock
	summary string
	text    string // more, in Markdown
	tag     string // one of those below
	scopes  []Scope
	signed  bool          // by a provider's key, instead of a token with a scope
	mutates bool          // it changes something, so it takes an Idempotency-Key
	stream  bool          // its answer is sent as it comes, and may take longer than others
	large   bool          // its body may have all of Config.MaxBody, instead of smallBody
	sandbox bool          // it is refused but in sandbox mode
	ungated bool          // it does not wait for its turn in the bulkhead: the handler sees to that
	status  int           // of success; 0: 200
	codes   []coupon.Code // of the problems that it has besides the general ones; each with its status in statusOf
}

func (r *route) pattern() string { return r.method + " " + r.path }

// Tags of operations.
const (
	tagTemplates = "Templates"
	tagGrants    = "Grants"
	tagCheckout  = "Checkout"
	tagCoupons   = "Coupons"
	tagWallet    = "Wallet"
	tagNotices   = "Notices"
	tagProviders = "Providers"
	tagSandbox   = "Sandbox"
)

// statusOf a code in an answer.
func statusOf(code coupon.Code) int {
	switch code {
	case CodeBadRequest, coupon.CodeInvalid:
		return http.StatusBadRequest
	case CodeUnauthorized:
		return http.StatusUnauthorized
	case CodeForbidden:
		return http.StatusForbidden
	case coupon.CodeNotFound, coupon.CodeTemplateNotFound:
		return http.StatusNotFound
	case CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case CodeKeyReused:
		return http.StatusUnprocessableEntity
	case CodeRateLimited:
		return http.StatusTooManyRequests
	case CodeInternal:
		return http.StatusInternalServerError
	case CodeBusy, CodeUnavailable, CodePaused:
		return http.StatusServiceUnavailable
	case CodeTimeout:
		return http.StatusGatewayTimeout
	default:
		return http.StatusConflict
	}
}

// register adds an operation: huma reads and checks the input that I describes, documents it, and writes O. Whatever
// the handler returns as an error becomes a problem by problemOf.
func register[I, O any](a *API, r route, handle func(ctx context.Context, in *I) (*O, error)) {
	op := huma.Operation{
		OperationID: r.id, Method: r.method, Path: r.path, Summary: r.summary, Description: r.text, Tags: []string{r.tag},
		DefaultStatus: r.status,
		Security:      []map[string][]string{{"token": {}}},
		Responses:     a.responses(&r),
		// The body has been read, and is bounded, before huma sees it.
		MaxBodyBytes: -1, BodyReadTimeout: -1,
		RejectUnknownQueryParameters: true,
		Parameters:                   parameters(&r),
	}
	if r.signed {
		op.Security = []map[string][]string{{"signature": {}}}
		op.Description += "\n\nSigned, without a token."
	} else {
		op.Description = strings.TrimSpace(op.Description + "\n\nScope: " + join(r.scopes, " or ") + ".")
	}
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, in)
		if err != nil {
			p := problemOf(ctx, err)
			a.note(ctx, p)
			return nil, p
		}
		return out, nil
	})
	a.routes[r.pattern()] = &r
	a.metrics.route(r.path, r.method)
}

// parameters are the headers that any operation takes; they are read before huma sees the request.
func parameters(r *route) []*huma.Param {
	text := func(name, doc string, most int) *huma.Param {
		return &huma.Param{Name: name, In: "header", Description: doc, Schema: &huma.Schema{Type: huma.TypeString, MaxLength: &most}}
	}
	ps := []*huma.Param{text("X-Request-Id", "Names the request in the answer and in the logs; made if it is absent.", 64)}
	if r.signed {
		ps = append(ps, text("Lapse-Key", "Names the key that the request is signed by.", maxSecret), text("Lapse-Timestamp", "When it was signed, in Unix seconds.", maxSecret))
	}
	if r.mutates {
		ps = append(ps,
			text("Idempotency-Key", "1 to 128 visible ASCII characters. The same key gives the same answer for a day, and one effect.", maxKey),
			text("X-Actor", "Who acts on behalf of the token; kept in history behind the token's name.", coupon.MaxText))
	}
	return ps
}

// responses documents the problems by status, each with its codes.
func (a *API) responses(r *route) map[string]*huma.Response {
	codes := append([]coupon.Code{
		CodeBadRequest, CodeUnauthorized, CodeForbidden, CodeRateLimited, CodeInternal, CodeBusy, CodeUnavailable, CodeTimeout,
	}, r.codes...)
	if r.signed {
		codes = slices.DeleteFunc(codes, func(c coupon.Code) bool { return c == CodeForbidden })
	}
	by := map[int][]string{}
	if r.mutates {
		codes = append(codes, CodeKeyReused, CodeInProgress)
	}
	if r.method != http.MethodGet {
		codes = append(codes, CodeTooLarge)
		by[http.StatusRequestTimeout] = []string{string(CodeTimeout)}          // the body did not come
		by[http.StatusUnsupportedMediaType] = []string{string(CodeBadRequest)} // it is no JSON
	}
	for _, c := range codes {
		if s := statusOf(c); !slices.Contains(by[s], string(c)) {
			by[s] = append(by[s], string(c))
		}
	}
	out := map[string]*huma.Response{}
	for _, status := range slices.Sorted(maps.Keys(by)) {
		res := &huma.Response{
			Description: fmt.Sprintf("%s. Codes: %s.", http.StatusText(status), strings.Join(by[status], ", ")),
			Content:     map[string]*huma.MediaType{problemType: {Schema: &huma.Schema{Ref: schemaPrefix + "Problem"}}},
		}
		switch status {
		case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusConflict:
			res.Headers = map[string]*huma.Header{"Retry-After": {
				Description: "seconds; absent if trying again cannot help", Schema: &huma.Schema{Type: huma.TypeInteger},
			}}
		}
		out[strconv.Itoa(status)] = res
	}
	return out
}
