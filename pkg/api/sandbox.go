package api

import (
	"context"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Sandbox brings forward what coupons wait for.
type Sandbox interface {
	Forward(ctx context.Context, f coupon.Forward) (coupon.Forwarded, error)
}

// ForwardAsk is what is to come soon.
type ForwardAsk struct {
	What      string `json:"what" enum:"end,lock,reminder" doc:"end: the coupon's; lock: of the order's lock; reminder: one before the end, and the end with it"`
	InSeconds int64  `json:"in_seconds" minimum:"1" maximum:"31622400" doc:"from now, by the database's clock; rounded up to a whole second"`
	Offset    string `json:"offset,omitempty" maxLength:"32" doc:"reminder: at which of the installation's offsets, such as -30m; absent: the next one"`
}

// Forwarded is a coupon of which something comes soon.
type Forwarded struct {
	Now time.Time `json:"now" doc:"the database's clock, which decided"`
	At  time.Time `json:"at" doc:"when what was brought forward comes"`
	ActedCoupon
}

type forwardIn struct {
	CouponID string `path:"coupon_id" doc:"the coupon's id"`
	Body     ForwardAsk
}

type forwardOut struct{ Body Forwarded }

func (a *API) addSandbox() {
	register(a, route{
		id: "forwardCoupon", method: http.MethodPost, path: "/v1/sandbox/coupons/{coupon_id}/forward", tag: tagSandbox,
		summary: "Bring a coupon's end, its lock's end or a reminder near",
		text: "Only in sandbox mode; else 403. The coupon's end, or its lock's, is moved as an operator moves an end, by the actor sandbox, and comes by the same way as " +
			"any other: the row decides, the event follows. A lock reaches no further than the late-pay window after the end.",
		scopes: []Scope{ScopeOps}, mutates: true, sandbox: true,
		codes: []coupon.Code{
			coupon.CodeNotFound, coupon.CodeInvalid, coupon.CodeExpired, coupon.CodeAlreadyUsed, coupon.CodeVoided, coupon.CodeNotLocked, coupon.CodeLocked,
		},
	}, a.forwardCoupon)
}

// notSandbox is the answer of every other installation.
func notSandbox() *Problem {
	return problem(http.StatusForbidden, CodeForbidden, "only in sandbox mode (api.sandbox), which this installation is not in")
}

func (a *API) forwardCoupon(ctx context.Context, in *forwardIn) (*forwardOut, error) {
	id, err := parseID("path.coupon_id", in.CouponID)
	if err != nil {
		return nil, err
	}
	who := callerFrom(ctx)
	f := coupon.Forward{
		CouponID: id, What: coupon.Ahead(in.Body.What), In: time.Duration(in.Body.InSeconds) * time.Second, Offset: in.Body.Offset,
		Actor: who.actor, Trace: who.trace,
	}
	if err := f.Validate(); err != nil {
		return nil, fromJoined(err)
	}
	out, err := a.deps.Sandbox.Forward(ctx, f)
	if err != nil {
		return nil, err //nolint:wrapcheck // problemOf tells what it means
	}
	if out.Refused != "" {
		return nil, a.refused(out.Now, []coupon.Acted{out.Acted}, &out.Acted)
	}
	return &forwardOut{Body: Forwarded{
		Now: out.Now.UTC(), At: out.At.UTC(), ActedCoupon: ActedCoupon{Coupon: a.couponOf(out.Now, &out.Coupon), Repeated: out.Repeated},
	}}, nil
}
