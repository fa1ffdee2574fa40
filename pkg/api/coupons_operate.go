package api

import (
	"context"
	"net/http"

	"github.com/lapsehq/lapse/pkg/coupon"
)

type extendIn struct {
	CouponID string `path:"coupon_id" doc:"the coupon's id"`
	Body     struct {
		ExpiresAt Instant `json:"expires_at" doc:"the new end, later or earlier than the old one, after now; a fraction of a second is rounded up; null: never"`
		Reason    string  `json:"reason" minLength:"1" doc:"kept in the coupon's history"`
	}
}

type voidIn struct {
	CouponID string `path:"coupon_id" doc:"the coupon's id"`
	Body     struct {
		Reason    string `json:"reason" minLength:"1" doc:"kept in the coupon's history"`
		BreakLock bool   `json:"break_lock,omitempty" doc:"also if an order holds it; that order cannot be paid with it any more"`
	}
}

type operatedOut struct{ Body ActedCoupon }

func (a *API) addOperate() {
	codes := []coupon.Code{coupon.CodeNotFound, coupon.CodeInvalid, coupon.CodeExpired, coupon.CodeAlreadyUsed, coupon.CodeVoided, coupon.CodeObserved}
	register(a, route{
		id: "extendCoupon", method: http.MethodPost, path: "/v1/coupons/{coupon_id}/extend", tag: tagCoupons, summary: "Move a coupon's end",
		text:   "Either way, as long as the coupon is not over. What was scheduled for the old end does nothing.",
		scopes: []Scope{ScopeOps}, mutates: true, codes: codes,
	}, a.extendCoupon)
	register(a, route{
		id: "voidCoupon", method: http.MethodPost, path: "/v1/coupons/{coupon_id}/void", tag: tagCoupons, summary: "Withdraw a coupon",
		text:   "For good. One that an order holds is left alone unless break_lock says otherwise.",
		scopes: []Scope{ScopeOps}, mutates: true, codes: append(codes, coupon.CodeLocked),
	}, a.voidCoupon)
}

func (a *API) extendCoupon(ctx context.Context, in *extendIn) (*operatedOut, error) {
	return a.operate(ctx, in.CouponID, coupon.Order{
		Verb: coupon.VerbExtend, EndsAt: coupon.CeilSecond(in.Body.ExpiresAt.At), Reason: in.Body.Reason,
	})
}

func (a *API) voidCoupon(ctx context.Context, in *voidIn) (*operatedOut, error) {
	return a.operate(ctx, in.CouponID, coupon.Order{Verb: coupon.VerbVoid, BreakLock: in.Body.BreakLock, Reason: in.Body.Reason})
}

func (a *API) operate(ctx context.Context, couponID string, o coupon.Order) (*operatedOut, error) {
	id, err := parseID("path.coupon_id", couponID)
	if err != nil {
		return nil, err
	}
	if !printable(o.Reason) {
		return nil, badRequest("body.reason", o.Reason, "must not contain control characters or noncharacters")
	}
	o.CouponIDs = []uint64{id}
	acted, err := a.act(ctx, o)
	if err != nil {
		return nil, err
	}
	return &operatedOut{Body: acted.Coupons[0]}, nil
}
