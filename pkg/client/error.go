package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Code is a stable, machine-readable reason of a refusal.
type Code string

// The codes of coupons. Each says what the coupon's state is now; docs/checkout.md says what to do on each.
const (
	CodeNotFound      Code = "not_found"
	CodeLockedByOther Code = "locked_by_other_order"
	CodeLocked        Code = "locked" // an operator's act did not ask to break the lock
	CodeNotLocked     Code = "not_locked"
	CodeExpired       Code = "expired"
	CodeNotYetValid   Code = "not_yet_valid"
	CodeAlreadyUsed   Code = "already_used"
	CodeNotUsed       Code = "not_used"
	CodeUsedByOther   Code = "used_by_other_order"
	CodeVoided        Code = "voided"
	CodeOrderClosed   Code = "order_closed"
	CodeOrderRefunded Code = "order_refunded"
	CodeObserved      Code = "observed" // another system owns it still
)

// The codes of grants.
const (
	CodeTemplateNotFound Code = "template_not_found"
	CodeTemplateStopped  Code = "template_stopped"
	CodeQuotaExhausted   Code = "quota_exhausted"
	CodeUserLimit        Code = "user_limit"
	CodeKeyConflict      Code = "grant_key_conflict"
	CodeInvalid          Code = "invalid"
	CodeAlreadyEnded     Code = "already_ended"
)

// The codes of requests.
const (
	CodeBadRequest   Code = "bad_request"
	CodeConflict     Code = "conflict" // somebody else changed it first
	CodeUnauthorized Code = "unauthorized"
	CodeForbidden    Code = "forbidden"
	CodeRateLimited  Code = "rate_limited"
	CodeKeyReused    Code = "idempotency_key_reused"
	CodeInProgress   Code = "in_progress"
	CodeBusy         Code = "busy"
	CodeUnavailable  Code = "unavailable"
	CodeTooLarge     Code = "too_large"
	CodeTimeout      Code = "timeout"  // it may or may not have happened
	CodeInternal     Code = "internal" // a fault of Lapse's
)

// Error is an answer that is not a success.
type Error struct {
	Status     int           // of HTTP
	Code       Code          // empty if the answer was not Lapse's (a proxy's page)
	State      State         // of the coupon now, where one is concerned
	CouponID   string        // the first one that is refused
	Title      string        // of the status
	Detail     string        // for people
	Coupons    []Refusal     // of an order: what stands in the way, coupon by coupon
	Faults     []Fault       // of a request that cannot be read
	RequestID  string        // names the request in the server's log
	RetryAfter time.Duration // that the server asked for; 0: it did not
}

// Refusal says why one coupon of an order was refused. Code is empty where only another one stands in the way.
type Refusal struct {
	CouponID string `json:"coupon_id"`
	Code     Code   `json:"code"`
	State    State  `json:"state"`
	Detail   string `json:"detail"`
}

// Fault is one thing wrong with a request.
type Fault struct {
	Location string `json:"location"` // such as body.user_id
	Message  string `json:"message"`
	Value    string `json:"value"` // what was there, shortened
}

// Error gives status, code and detail, and the request's id to ask for.
func (e *Error) Error() string {
	text := fmt.Sprintf("lapse answered %d", e.Status)
	if e.Code != "" {
		text += " " + string(e.Code)
	}
	if e.State != "" {
		text += " (" + string(e.State) + ")"
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	if e.RequestID != "" {
		text += " [request " + e.RequestID + "]"
	}
	return text
}

// transportError is a request without an answer, or with half of one.
type transportError struct{ err error }

func (e *transportError) Error() string { return e.err.Error() }
func (e *transportError) Unwrap() error { return e.err }

// IsCode reports whether err is an answer with one of the codes.
func IsCode(err error, codes ...Code) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	for _, code := range codes {
		if e.Code == code {
			return true
		}
	}
	return false
}

// Uncertain reports whether the call may have taken effect although it failed: no answer came, or one of something in
// between. The same call again gives the answer, and does nothing twice.
func Uncertain(err error) bool {
	var broken *transportError
	if errors.As(err, &broken) {
		return true
	}
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Status >= http.StatusInternalServerError || e.Code == CodeInProgress || e.Code == CodeTimeout
}

// readError makes an Error of an answer's head and body.
func readError(res *http.Response, body []byte, now time.Time) *Error {
	e := &Error{Status: res.StatusCode, RequestID: res.Header.Get("X-Request-Id"), RetryAfter: retryAfter(res.Header.Get("Retry-After"), now)}
	var problem struct {
		Title    string    `json:"title"`
		Detail   string    `json:"detail"`
		Code     Code      `json:"code"`
		State    State     `json:"state"`
		CouponID string    `json:"coupon_id"`
		Coupons  []Refusal `json:"coupons"`
		Errors   []Fault   `json:"errors"`
	}
	if err := json.Unmarshal(body, &problem); err != nil {
		const excerpt = 200
		e.Title, e.Detail = http.StatusText(res.StatusCode), fmt.Sprintf("%.*q", excerpt, body)
		return e
	}
	e.Title, e.Detail, e.Code, e.State, e.CouponID = problem.Title, problem.Detail, problem.Code, problem.State, problem.CouponID
	e.Coupons, e.Faults = problem.Coupons, problem.Errors
	return e
}
