package coupon

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Grant asks for one coupon. Its key makes it idempotent: the same key of one issuer yields the same coupon, once.
type Grant struct {
	Issuer     string
	Key        string
	TemplateID uint64
	UserID     string
	BatchID    string
	ValidFrom  time.Time // zero: from the grant on
	ExpiresAt  time.Time // zero: by the template's rule; Never: no end
	EventID    string    // the incoming event, for the answer
	Trace      string    // W3C traceparent, may be empty
}

// Granted is the answer to a Grant. Exactly one of CouponID, Refused and Held is set.
type Granted struct {
	CouponID  uint64
	ExpiresAt time.Time
	Repeated  bool // the key was known, and the first answer is given again
	// Peak, if above 0, is how many coupons are due in the second that this one is due in: more than the fleet drains in a
	// second, so that it will be late by their number ÷ rate. Counted up to ten times that rate; a forecast.
	Peak    int64
	Held    bool // issuance is paused: it is kept, and answered by its event when that is over
	Refused Code
	Detail  string // for people: which field, which value
}

// Bounds of texts, in bytes.
const (
	MaxText   = 128 // ids of users, orders, batches, keys; actors
	MaxReason = 255
)

// Code is a stable machine-readable reason for a refusal.
type Code string

// The refusals of a grant.
const (
	CodeTemplateNotFound Code = "template_not_found"
	CodeTemplateStopped  Code = "template_stopped"
	CodeQuotaExhausted   Code = "quota_exhausted"
	CodeUserLimit        Code = "user_limit"
	CodeKeyConflict      Code = "grant_key_conflict"
	CodeInvalid          Code = "invalid"       // a field is out of range
	CodeAlreadyEnded     Code = "already_ended" // the end is not after the grant
)

// Errors that callers tell apart.
var (
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("conflict")
	// ErrUnavailable: the database cannot be reached, is read-only or shutting down. Wait and try again; nothing
	// was decided and no attempt counts.
	ErrUnavailable = errors.New("database unavailable")
	// ErrContention: deadlocks or lock waits persisted through the retries.
	ErrContention = errors.New("contention")
	// ErrIntegrity: the database refused a row for what it holds; trying again cannot help.
	ErrIntegrity = errors.New("integrity")
)

// Template is one immutable revision of a campaign's terms.
type Template struct {
	ID        uint64
	Revision  uint32
	Name      string
	Rule      Rule
	Terms     Terms
	Quota     int64 // 0: unlimited
	PerUser   int64 // 0: unlimited
	Taken     int64 // granted so far, as counted
	Stopped   bool  // issues no more
	CreatedAt time.Time
	Actor     string
	Reason    string
}

// Validate reports every fault of the terms that a person or a file gave, each beginning with the field's name.
func (t Template) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if t.Name == "" || len(t.Name) > 200 || !utf8.ValidString(t.Name) {
		bad("name: must have 1 to 200 bytes of UTF-8, got %q", t.Name)
	}
	if err := t.Rule.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := t.Terms.Defaults().Validate(); err != nil {
		errs = append(errs, err)
	}
	if t.Quota < 0 {
		bad("quota: must be 0 (unlimited) or more, got %d", t.Quota)
	}
	if t.PerUser < 0 {
		bad("per_user: must be 0 (unlimited) or more, got %d", t.PerUser)
	}
	if len(t.Actor) > MaxText {
		bad("actor: must have at most 128 bytes, got %d", len(t.Actor))
	}
	if len(t.Reason) > MaxReason {
		bad("reason: must have at most 255 bytes, got %d", len(t.Reason))
	}
	return errors.Join(errs...)
}

func currency(s string) bool {
	if len(s) != 3 {
		return false
	}
	for _, c := range []byte(s) {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	return true
}
