package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The codes of problems, besides those of package coupon. They never change their meaning.
const (
	CodeBadRequest   coupon.Code = "bad_request"  // 400, 404 of a path, 405, 415: the request cannot be read
	CodeUnauthorized coupon.Code = "unauthorized" // 401
	CodeForbidden    coupon.Code = "forbidden"    // 403
	CodeConflict     coupon.Code = "conflict"     // 409: a template was revised by somebody else
	CodeInProgress   coupon.Code = "in_progress"  // 409: the same Idempotency-Key is being worked on
	CodeTooLarge     coupon.Code = "too_large"    // 413
	CodeKeyReused    coupon.Code = "idempotency_key_reused"
	CodeRateLimited  coupon.Code = "rate_limited" // 429
	CodeInternal     coupon.Code = "internal"     // 500: a fault of ours
	CodeBusy         coupon.Code = "busy"         // 503: too many at once, or rows held by others for too long
	CodeUnavailable  coupon.Code = "unavailable"  // 503: the database cannot be reached
	CodePaused       coupon.Code = "paused"       // 503: an operator has paused the issuance of it
	CodeTimeout      coupon.Code = "timeout"      // 504: what was asked may or may not have happened
)

// Problem is every answer that is not a success: RFC 9457 with a stable code.
type Problem struct {
	Type     string          `json:"type" doc:"urn:lapse:problem:<code>"`
	Title    string          `json:"title" doc:"the status in words"`
	Status   int             `json:"status"`
	Code     coupon.Code     `json:"code" doc:"for programs: never changes its meaning"`
	Detail   string          `json:"detail" doc:"for people: which field, which value, why"`
	State    string          `json:"state,omitempty" doc:"of the coupon that refused, as it is now"`
	CouponID string          `json:"coupon_id,omitempty" doc:"the first coupon that refused"`
	Coupons  []RefusedCoupon `json:"coupons,omitempty" doc:"what would have become of each coupon of the request; none was moved"`
	Errors   []Fault         `json:"errors,omitempty" doc:"every fault of the request that was found"`
	retry    int             // seconds, for Retry-After; 0: none
	headers  http.Header     // further ones
	cause    error           // for the log
}

// RefusedCoupon is one coupon of a request that was refused as a whole.
type RefusedCoupon struct {
	CouponID string      `json:"coupon_id"`
	Code     coupon.Code `json:"code,omitempty" doc:"empty: this one did not refuse"`
	State    string      `json:"state,omitempty"`
	Detail   string      `json:"detail,omitempty"`
}

// Fault is one thing wrong with a request.
type Fault struct {
	Location string `json:"location" doc:"body.grants[3].user_id, query.limit, header.X-Actor"`
	Message  string `json:"message"`
	Value    string `json:"value,omitempty" doc:"what was there, shortened"`
}

// Error is for the log.
func (p *Problem) Error() string {
	if p.cause != nil {
		return fmt.Sprintf("%s: %v", p.Code, p.cause)
	}
	return string(p.Code) + ": " + p.Detail
}

// Unwrap is what caused it.
func (p *Problem) Unwrap() error { return p.cause }

// GetStatus makes it a huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType makes it a huma.ContentTypeFilter.
func (*Problem) ContentType(string) string { return problemType }

const problemType = "application/problem+json"

// GetHeaders makes it a huma.HeadersError.
func (p *Problem) GetHeaders() http.Header {
	h := p.headers.Clone()
	if h == nil {
		h = http.Header{}
	}
	if p.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retry))
	}
	if p.Status == http.StatusUnauthorized && h.Get("WWW-Authenticate") == "" {
		h.Set("WWW-Authenticate", `Bearer realm="lapse"`)
	}
	return h
}

func problem(status int, code coupon.Code, detail string) *Problem {
	return &Problem{
		Type: "urn:lapse:problem:" + string(code), Title: http.StatusText(status), Status: status, Code: code, Detail: clip(detail),
	}
}

// badRequest names one field and what it held.
func badRequest(location, value, message string) *Problem {
	return badRequests([]Fault{{Location: location, Message: message, Value: clip(value)}})
}

// badRequests names several.
func badRequests(faults []Fault) *Problem {
	texts := make([]string, 0, 3)
	for i, f := range faults {
		if i == 3 {
			texts = append(texts, fmt.Sprintf("and %d more", len(faults)-3))
			break
		}
		text := f.Location + ": " + f.Message
		if f.Value != "" {
			text += fmt.Sprintf(", got %q", f.Value)
		}
		texts = append(texts, text)
	}
	p := problem(http.StatusBadRequest, CodeBadRequest, strings.Join(texts, "; "))
	p.Errors = faults
	return p
}

// fromJoined makes the faults that package coupon reports ("field: reason, got value", joined) a bad request.
func fromJoined(err error) *Problem {
	var faults []Fault
	for line := range strings.SplitSeq(err.Error(), "\n") {
		field, message, ok := strings.Cut(strings.Replace(line, coupon.ErrRule.Error()+": ", "rule.", 1), ": ")
		if !ok {
			field, message = "", line
		}
		faults = append(faults, Fault{Location: strings.TrimSuffix("body."+field, "."), Message: clip(message)})
	}
	return badRequests(faults)
}

// pausedAgain is when to ask again for what is paused, in seconds: people take their time.
const pausedAgain = 15

// after says when to try again.
func (p *Problem) after(seconds int) *Problem {
	p.retry = seconds
	return p
}

// because keeps what caused it for the log.
func (p *Problem) because(err error) *Problem {
	p.cause = err
	return p
}

// problemOf is the one place that decides what an error becomes.
func problemOf(ctx context.Context, err error) *Problem {
	var p *Problem
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return problem(http.StatusGatewayTimeout, CodeTimeout,
			"the request took too long; it may or may not have been done: send it again, with the same keys").after(1).because(err)
	case errors.Is(ctx.Err(), context.Canceled): // the client went away, or did not end before the server had to
		return problem(http.StatusServiceUnavailable, CodeUnavailable, "the request was given up; it may or may not have been done").after(1).because(err)
	case errors.Is(err, coupon.ErrNotFound):
		return problem(http.StatusNotFound, coupon.CodeNotFound, "there is nothing of that id or key").because(err)
	case errors.Is(err, coupon.ErrContention):
		return problem(http.StatusServiceUnavailable, CodeBusy, "others hold what the request needs; nothing was done").after(1).because(err)
	case errors.Is(err, coupon.ErrPaused):
		return problem(http.StatusServiceUnavailable, CodePaused,
			"an operator has paused the issuance of what is asked for: send it again later, with the same grant keys").after(pausedAgain).because(err)
	case errors.Is(err, coupon.ErrUnavailable):
		return problem(http.StatusServiceUnavailable, CodeUnavailable, "the database cannot be reached").after(2).because(err)
	case errors.Is(err, coupon.ErrConflict):
		return problem(http.StatusConflict, CodeConflict, "somebody else changed it first: read it again").because(err)
	case errors.Is(err, coupon.ErrIntegrity):
		return problem(http.StatusBadRequest, coupon.CodeInvalid, "the database cannot store what the request holds").because(err)
	default:
		return problem(http.StatusInternalServerError, CodeInternal, "a fault of ours; it is in the log under the request's id").because(err)
	}
}

// fromHuma turns what huma found wrong with a request into a problem.
func fromHuma(e *huma.ErrorModel) *Problem {
	switch {
	case e.Status == http.StatusRequestEntityTooLarge:
		return problem(e.Status, CodeTooLarge, e.Detail)
	case e.Status == http.StatusRequestTimeout:
		return problem(e.Status, CodeTimeout, "the body did not come in time")
	case e.Status >= http.StatusInternalServerError:
		return problem(e.Status, CodeInternal, "a fault of ours; it is in the log under the request's id").because(e)
	case e.Status == http.StatusUnsupportedMediaType:
		return problem(e.Status, CodeBadRequest, "the body must be application/json")
	}
	const most = 20
	faults := make([]Fault, 0, min(len(e.Errors), most))
	for _, d := range e.Errors {
		if d == nil || len(faults) == most {
			break
		}
		faults = append(faults, Fault{Location: clip(d.Location), Message: clip(d.Message), Value: shown(d.Value)})
	}
	if len(faults) == 0 {
		return problem(http.StatusBadRequest, CodeBadRequest, e.Detail)
	}
	return badRequests(faults)
}

func shown(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return clip(v)
	case map[string]any:
		return "an object"
	case []any:
		return fmt.Sprintf("an array of %d", len(v))
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return clip(fmt.Sprint(v))
	}
}

const maxShown = 200

// clip shortens what is repeated of a request, and makes it UTF-8.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxShown {
		return s
	}
	cut := maxShown
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
