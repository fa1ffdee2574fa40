package api

import (
	"context"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Deps is what the API needs of the store. All of it must be given.
type Deps struct {
	Templates Templates
	Checkout  Checkout
	Coupons   Coupons
	Wallets   Wallets
	Aside     *Aside // may be nil: then readers ring for nothing
	Grants    Grants
	Stats     Stats
	Keys      Keys
	Notices   Notices
	Texts     Texts
	Receipts  Receipts
	Signature Signature // may be nil if there are no providers
	Sandbox   Sandbox   // may be nil but in sandbox mode
	Traces    *telemetry.Traces
}

// Signature checks what providers sign.
type Signature interface {
	// Key names the key that a request says it is signed by, before anything is checked.
	Key(h http.Header) string
	// Verify checks the signature over the body, and gives its instant. Errors show nothing of what was sent.
	Verify(h http.Header, body []byte, now time.Time) (signed time.Time, err error)
}

// Templates keeps what coupons are made from.
type Templates interface {
	CreateTemplate(ctx context.Context, t coupon.Template) (uint64, error)
	CreateTemplateOnce(ctx context.Context, t coupon.Template, caller, key string) (uint64, error)
	ReviseTemplate(ctx context.Context, t coupon.Template) (uint32, error)
	ReviseTemplateOnce(ctx context.Context, t coupon.Template, caller, key string) (uint32, error)
	Template(ctx context.Context, id uint64) (coupon.Template, error)
	Templates(ctx context.Context, from uint64, limit int) ([]coupon.Template, error)
	StopTemplate(ctx context.Context, id uint64, stopped bool, actor, reason string) error
}

// Grants issues coupons, and finds them by their grants' keys.
type Grants interface {
	Issue(ctx context.Context, grants []coupon.Grant) ([]coupon.Granted, error)
	CouponByGrantKey(ctx context.Context, issuer, key string) (coupon.Coupon, time.Time, error)
}

// Stats counts what became of a template's coupons, by UTC day.
type Stats interface {
	TemplateStats(ctx context.Context, id uint64, from, to time.Time) ([]coupon.DayStats, error)
}

// Keys remembers the answers to Idempotency-Keys.
type Keys interface {
	BeginIdempotent(ctx context.Context, caller, key string, body [32]byte, lease time.Duration) (coupon.Idempotent, error)
	FinishIdempotent(ctx context.Context, caller, key string, status int, answer []byte) error
	AbandonIdempotent(ctx context.Context, caller, key string) error
	PruneIdempotent(ctx context.Context, age time.Duration, limit int) (int, error)
}

const maxGrants = 1000 // of one request, and of one transaction
