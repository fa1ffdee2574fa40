package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Wallets reads what a user has.
type Wallets interface {
	Wallet(ctx context.Context, q coupon.WalletQuery) (coupon.Page, error)
	WalletSummary(ctx context.Context, user string, within time.Duration) (coupon.Summary, error)
	Usable(ctx context.Context, user string, limit int) (cs []coupon.Coupon, more bool, now time.Time, err error)
}

const (
	soonEnding     = 24 * time.Hour
	bestCandidates = 500 // by their ends; who has more of them at once has the choice among these
	bestShown      = 100 // of the others
)

// Summary is a user's wallet in figures.
type Summary struct {
	Now     time.Time  `json:"now" doc:"the database's clock"`
	Usable  int        `json:"usable" doc:"coupons that can be used now"`
	Ending  int        `json:"ending_within_24h" doc:"of those"`
	NextEnd *time.Time `json:"next_end" doc:"the earliest end of those; null: none ends"`
	Value   []Money    `json:"value" nullable:"false" doc:"of those that take an amount off, by currency"`
	More    bool       `json:"more" doc:"there are more coupons than were counted"`
}

// Money is an amount.
type Money struct {
	Amount   int64  `json:"amount" doc:"minor units"`
	Currency string `json:"currency" doc:"ISO 4217"`
}

// Choice is the best coupon for a cart, and what the others would do.
type Choice struct {
	Now    time.Time `json:"now" doc:"the database's clock"`
	Best   *Offered  `json:"best,omitempty" doc:"absent: no coupon takes anything off"`
	Others []Offered `json:"others" nullable:"false" doc:"usable ones first, by what they take off; 100 at most"`
	More   bool      `json:"more" doc:"the user has more coupons than are shown or were looked at, which are the 500 that end first"`
}

// Offered is what one coupon would do for a cart.
type Offered struct {
	Coupon    Coupon      `json:"coupon"`
	Usable    bool        `json:"usable"`
	Discount  int64       `json:"discount" doc:"minor units"`
	AppliesTo int64       `json:"applies_to" doc:"minor units of the cart that it applies to"`
	Reason    coupon.Code `json:"reason" doc:"why it is not the best: less_off and nothing_off of usable ones; empty for the best"`
}

type walletIn struct {
	UserID    string `path:"user_id" doc:"the shop's id of the user, percent-encoded"`
	State     string `query:"state" enum:"unused,locked,used,expired,voided" doc:"as it is now; absent: all, one state after the other"`
	Limit     int    `query:"limit" minimum:"1" doc:"coupons of a page"`
	PageToken string `query:"page_token" doc:"next_page_token of the page before"`
}

type userIn struct {
	UserID string `path:"user_id" doc:"the shop's id of the user, percent-encoded"`
}

type bestIn struct {
	UserID string `path:"user_id" doc:"the shop's id of the user, percent-encoded"`
	Body   struct {
		Amount   int64      `json:"amount" minimum:"0" doc:"of the cart, minor units"`
		Currency string     `json:"currency" doc:"ISO 4217"`
		Scopes   []string   `json:"scopes,omitempty" maxItems:"256" nullable:"false" doc:"what is in the cart: categories, shops"`
		Items    []CartItem `json:"items,omitempty" maxItems:"256" nullable:"false" doc:"how much of the amount each part is, instead of scopes: then a coupon with scopes counts those that it applies to alone"`
	}
}

type summaryOut struct{ Body Summary }

type bestOut struct{ Body Choice }

func (a *API) addWallet() {
	register(a, route{
		id: "listWallet", method: http.MethodGet, path: "/v1/users/{user_id}/coupons", tag: tagWallet, summary: "List a user's coupons",
		text:   "Those of one state by earliest end, expired ones by latest end. A user that nobody granted anything has none.",
		scopes: []Scope{ScopeRead},
	}, a.listWallet)
	register(a, route{
		id: "getSummary", method: http.MethodGet, path: "/v1/users/{user_id}/coupons/summary", tag: tagWallet, summary: "Get a user's wallet in figures",
		scopes: []Scope{ScopeRead},
	}, a.getSummary)
	register(a, route{
		id: "bestCoupon", method: http.MethodPost, path: "/v1/users/{user_id}/coupons/best", tag: tagWallet, summary: "Choose the best coupon for a cart",
		text: "That which takes off most; of equals the one that ends first, then that of the lowest id. An amount is taken off up to the cart's; a percentage is rounded " +
			"down to a minor unit and capped. A coupon with scopes needs one of them in the cart. With items, discount and minimum count the items that have one of the coupon's " +
			"scopes; else the whole amount. Coupons that an order holds are not looked at, whichever it is: ask validateCoupon of one, with its order_id. " +
			"Changes nothing and reserves nothing.",
		scopes: []Scope{ScopeRead}, codes: []coupon.Code{CodeTooLarge},
	}, a.bestCoupon)
}

func (a *API) listWallet(ctx context.Context, in *walletIn) (*couponsOut, error) {
	if err := texts(text("path.user_id", in.UserID, true)); err != nil {
		return nil, err
	}
	q := coupon.WalletQuery{UserID: in.UserID, After: in.PageToken}
	var err error
	if q.Limit, err = a.limit(in.Limit); err != nil {
		return nil, err
	}
	if q.State, err = parseState("query.state", in.State); err != nil {
		return nil, err
	}
	page, err := a.deps.Wallets.Wallet(ctx, q)
	if err != nil {
		return nil, ofPage(err, in.PageToken)
	}
	return &couponsOut{Body: a.pageOf(page)}, nil
}

func (a *API) getSummary(ctx context.Context, in *userIn) (*summaryOut, error) {
	if err := texts(text("path.user_id", in.UserID, true)); err != nil {
		return nil, err
	}
	s, err := a.deps.Wallets.WalletSummary(ctx, in.UserID, soonEnding)
	if err != nil {
		return nil, ofRead(err)
	}
	out := Summary{Now: s.Now.UTC(), Usable: s.Usable, Ending: s.Ending, NextEnd: instant(s.NextEnd), More: s.More, Value: make([]Money, len(s.Value))}
	for i, m := range s.Value {
		out.Value[i] = Money{Amount: m.Amount, Currency: m.Currency}
	}
	return &summaryOut{Body: out}, nil
}

func (a *API) bestCoupon(ctx context.Context, in *bestIn) (*bestOut, error) {
	if err := texts(text("path.user_id", in.UserID, true)); err != nil {
		return nil, err
	}
	b := &in.Body
	cart := coupon.Cart{Amount: b.Amount, Currency: b.Currency, Scopes: b.Scopes, Items: itemsOf(b.Items)}
	if err := cart.Validate(); err != nil {
		return nil, fromJoined(err)
	}
	cs, more, now, err := a.deps.Wallets.Usable(ctx, in.UserID, bestCandidates)
	if err != nil {
		return nil, ofRead(err)
	}
	quotes, best := coupon.Best(cart, cs, now)
	out := Choice{Now: now.UTC(), Others: make([]Offered, 0, min(len(cs), bestShown)), More: more}
	order := make([]int, len(cs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(quotes[j].Off, quotes[i].Off), cmp.Compare(rank(quotes[j]), rank(quotes[i])))
	})
	for _, i := range order {
		if i != best && len(out.Others) == bestShown {
			out.More = true
			continue
		}
		q := quotes[i]
		offered := Offered{Coupon: a.couponOf(now, &cs[i]), Usable: q.Usable, Discount: q.Off, AppliesTo: q.Base, Reason: q.Reason}
		if i == best {
			out.Best = &offered
		} else {
			out.Others = append(out.Others, offered)
		}
	}
	return &bestOut{Body: out}, nil
}

func rank(q coupon.Quote) int {
	if q.Usable {
		return 1
	}
	return 0
}
