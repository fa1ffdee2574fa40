package coupon

import (
	"errors"
	"time"
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

// Granted is the answer to a Grant. Exactly one of CouponID and Refused is set.
type Granted struct {
	CouponID  uint64
	ExpiresAt time.Time
	Repeated  bool // the key was known, and the first answer is given again
	Refused   Code
	Detail    string // for people: which field, which value
}

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
