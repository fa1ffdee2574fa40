package lapsetest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Coupon reads one.
func (m *memory) Coupon(_ context.Context, id uint64) (coupon.Coupon, time.Time, error) {
	leave, err := m.enter()
	if err != nil {
		return coupon.Coupon{}, time.Time{}, err
	}
	defer leave()
	c := m.coupons[id]
	if c == nil {
		return coupon.Coupon{}, m.now, fmt.Errorf("coupon %d: %w", id, coupon.ErrNotFound)
	}
	return *c, m.now, nil
}

// CouponByGrantKey reads the coupon that an issuer's key yielded.
func (m *memory) CouponByGrantKey(_ context.Context, issuer, key string) (coupon.Coupon, time.Time, error) {
	leave, err := m.enter()
	if err != nil {
		return coupon.Coupon{}, time.Time{}, err
	}
	defer leave()
	g := m.granted[grantKey{issuer, key}]
	if g == nil {
		return coupon.Coupon{}, m.now, fmt.Errorf("coupon by grant key: %w", coupon.ErrNotFound)
	}
	return *m.coupons[g.couponID], m.now, nil
}

const maxSteps = 1000 // of a timeline: the latest

// Timeline reads the steps of a coupon's life.
func (m *memory) Timeline(_ context.Context, id uint64) ([]coupon.Transition, error) {
	leave, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	steps := m.history[id]
	if len(steps) == 0 {
		return nil, fmt.Errorf("timeline of coupon %d: %w", id, coupon.ErrNotFound)
	}
	return slices.Clone(steps[max(0, len(steps)-maxSteps):]), nil
}

// byEnd is the order of wallets.
func byEnd(a, b *coupon.Coupon) int { return a.ExpiresAt.Compare(b.ExpiresAt) }

// seen gives a user's coupons of one state as seen now, in a wallet's order.
func (m *memory) seen(user string, state coupon.Status) []*coupon.Coupon {
	cs := m.sorted(func(c *coupon.Coupon) bool { return c.UserID == user && c.Seen(m.now) == state }, byEnd)
	if state == coupon.Expired { // latest end first
		slices.Reverse(cs)
	}
	return cs
}

// Wallet gives a page of a user's coupons.
func (m *memory) Wallet(_ context.Context, q coupon.WalletQuery) (coupon.Page, error) {
	if err := q.Validate(); err != nil {
		return coupon.Page{}, err //nolint:wrapcheck // names the field
	}
	leave, err := m.enter()
	if err != nil {
		return coupon.Page{}, err
	}
	defer leave()
	states := []coupon.Status{coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided}
	if q.State != 0 {
		states = []coupon.Status{q.State}
	}
	query := fmt.Sprintf("wallet %d %s", q.State, q.UserID)
	after, err := parsePlace(q.After, query)
	if err != nil {
		return coupon.Page{}, err
	}
	page := coupon.Page{Now: m.now}
	var last place
	for _, state := range states {
		for _, c := range m.seen(q.UserID, state) {
			at := place{section: state, at: c.ExpiresAt.UnixMilli(), id: c.ID}
			switch {
			case q.After != "" && !after.before(at):
			case len(page.Coupons) == q.Limit:
				page.Next = last.token(query)
				return page, nil
			default:
				page.Coupons, last = append(page.Coupons, *c), at
			}
		}
	}
	return page, nil
}

// WalletSummary counts what a user can use now.
func (m *memory) WalletSummary(_ context.Context, user string, within time.Duration) (coupon.Summary, error) {
	leave, err := m.enter()
	if err != nil {
		return coupon.Summary{}, err
	}
	defer leave()
	sum, value := coupon.Summary{Now: m.now}, map[string]int64{}
	for i, c := range m.seen(user, coupon.Unused) {
		if i == coupon.MaxPage {
			sum.More = true
			break
		}
		if c.ValidFrom.After(m.now) {
			continue
		}
		sum.Usable++
		if c.Terms.Offer.Kind == coupon.OfferAmount {
			value[c.Terms.Currency] += c.Terms.Value
		}
		if coupon.IsNever(c.ExpiresAt) {
			continue
		}
		if !c.ExpiresAt.After(m.now.Add(within)) {
			sum.Ending++
		}
		if sum.NextEnd.IsZero() {
			sum.NextEnd = c.ExpiresAt
		}
	}
	for _, currency := range slices.Sorted(maps.Keys(value)) {
		sum.Value = append(sum.Value, coupon.MoneySum{Amount: value[currency], Currency: currency})
	}
	return sum, nil
}

// Usable gives what the best one is chosen from.
func (m *memory) Usable(_ context.Context, user string, limit int) (cs []coupon.Coupon, more bool, now time.Time, err error) {
	if err := (coupon.WalletQuery{UserID: user, Limit: limit}).Validate(); err != nil {
		return nil, false, time.Time{}, err //nolint:wrapcheck // names the field
	}
	leave, err := m.enter()
	if err != nil {
		return nil, false, time.Time{}, err
	}
	defer leave()
	for _, c := range m.seen(user, coupon.Unused) {
		if len(cs) == limit {
			return cs, true, m.now, nil
		}
		cs = append(cs, *c)
	}
	return cs, false, m.now, nil
}

// List gives a page of coupons for an operator: of the batch, else of the template, by id; else of the stored state, by when
// they are due.
func (m *memory) List(_ context.Context, q coupon.ListQuery) (coupon.Page, error) {
	if err := q.Validate(); err != nil {
		return coupon.Page{}, err //nolint:wrapcheck // names the field
	}
	leave, err := m.enter()
	if err != nil {
		return coupon.Page{}, err
	}
	defer leave()
	query := fmt.Sprintf("list %d %d %s %s %s", q.Template, q.State, q.EndsFrom, q.EndsTo, q.Batch)
	after, err := parsePlace(q.After, query)
	if err != nil {
		return coupon.Page{}, err
	}
	byState := q.Batch == "" && q.Template == 0
	order := func(*coupon.Coupon, *coupon.Coupon) int { return 0 } // by id
	if byState {
		order = func(a, b *coupon.Coupon) int { return a.DueAt.Compare(b.DueAt) }
	}
	page := coupon.Page{Now: m.now}
	var last place
	looked := 0
	for _, c := range m.sorted(func(c *coupon.Coupon) bool { return listed(&q, c) }, order) {
		at := place{id: c.ID}
		if byState {
			at.at = c.DueAt.UnixMilli()
		}
		if q.After != "" && !after.before(at) {
			continue
		}
		if looked == q.Limit {
			page.Next = last.token(query)
			break
		}
		looked, last = looked+1, at
		if q.Admits(c) {
			page.Coupons = append(page.Coupons, *c)
		}
	}
	return page, nil
}

// listed reports whether the index that the list reads holds the coupon.
func listed(q *coupon.ListQuery, c *coupon.Coupon) bool {
	switch {
	case q.Batch != "":
		return c.BatchID == q.Batch
	case q.Template != 0:
		return c.Terms.TemplateID == q.Template
	default:
		return c.Status == q.State
	}
}

// place is where a page ended.
type place struct {
	section coupon.Status // of a wallet
	at      int64         // milliseconds
	id      uint64
}

// before reports whether o comes behind p. Expired coupons stand with the latest end first.
func (p place) before(o place) bool {
	if p.section != o.section {
		return p.section < o.section
	}
	order := cmp.Or(cmp.Compare(p.at, o.at), cmp.Compare(p.id, o.id))
	if p.section == coupon.Expired {
		return order > 0
	}
	return order < 0
}

const sealBytes = 8

// token writes the place as readers carry it, sealed with the query that it belongs to.
func (p place) token(query string) string {
	b := append([]byte{}, byte(p.section))
	b = binary.BigEndian.AppendUint64(b, uint64(p.at))
	b = binary.BigEndian.AppendUint64(b, p.id)
	return base64.RawURLEncoding.EncodeToString(append(seal(query, b), b...))
}

func seal(query string, body []byte) []byte {
	sum := sha256.Sum256(append([]byte(query+" "), body...))
	return sum[:sealBytes]
}

// parsePlace reads a token of the same query; an empty one is the beginning.
func parsePlace(token, query string) (place, error) {
	if token == "" {
		return place{}, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != sealBytes+17 || len(token) != base64.RawURLEncoding.EncodedLen(len(b)) || !bytes.Equal(b[:sealBytes], seal(query, b[sealBytes:])) {
		return place{}, coupon.ErrPosition
	}
	b = b[sealBytes:]
	return place{section: coupon.Status(b[0]), at: int64(binary.BigEndian.Uint64(b[1:])), id: binary.BigEndian.Uint64(b[9:])}, nil
}
