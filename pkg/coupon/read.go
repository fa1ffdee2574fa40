package coupon

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// MaxPage is the most coupons that one page may ask for, or one reading by ids.
const MaxPage = 1000

// ErrPosition: a page's position is none that was given out for this query. The text begins with the field's name.
var ErrPosition = errors.New("page_token: must be the one that this query's page before gave, unchanged")

// WalletQuery asks for a page of a user's coupons. Those of one state as seen now: by earliest end first, expired ones by
// latest end first. Every state: unused, locked, used, expired, voided ones, one after the other. Archived coupons
// stand where they stood before.
type WalletQuery struct {
	UserID string
	State  Status // as seen; zero: every state
	Limit  int    // 1 to MaxPage
	After  string // Page.Next of the page before; empty: from the beginning
}

// Validate reports every fault, each beginning with the field's name.
func (q WalletQuery) Validate() error {
	return errors.Join(validUser(q.UserID), validState(q.State), validLimit(q.Limit))
}

// ListQuery asks for a page of coupons as an operator sees them, in the order of ids (with Batch or Template) or of
// ends. At least one of Template, Batch and State is set. Archived coupons are not listed.
type ListQuery struct {
	Template uint64
	Batch    string
	State    Status    // as stored; zero: every state
	EndsFrom time.Time // inclusive; zero: no bound
	EndsTo   time.Time // exclusive; zero: no bound
	Limit    int       // 1 to MaxPage: how many are looked at; those that the other conditions refuse are among them
	After    string
}

// Validate reports every fault, each beginning with the field's name.
func (q ListQuery) Validate() error {
	errs := []error{validState(q.State), validLimit(q.Limit)}
	if q.Template == 0 && q.Batch == "" && q.State == 0 {
		errs = append(errs, errors.New("template_id, batch_id, state: one of them must be given"))
	}
	if len(q.Batch) > MaxText {
		errs = append(errs, fmt.Errorf("batch_id: must have at most %d bytes, got %d", MaxText, len(q.Batch)))
	}
	for _, end := range []struct {
		field string
		at    time.Time
	}{{"ends_from", q.EndsFrom}, {"ends_to", q.EndsTo}} {
		if !end.at.IsZero() && (end.at.Unix() <= 0 || end.at.After(Never)) {
			errs = append(errs, fmt.Errorf("%s: must be between 1970 and 9999, got %s", end.field, end.at.Format(time.RFC3339)))
		}
	}
	if !q.EndsTo.IsZero() && q.EndsTo.Before(q.EndsFrom) {
		errs = append(errs, errors.New("ends_to: must not be before ends_from"))
	}
	return errors.Join(errs...)
}

// Admits reports whether the query asks for the coupon.
func (q ListQuery) Admits(c *Coupon) bool {
	return (q.Template == 0 || q.Template == c.Terms.TemplateID) &&
		(q.Batch == "" || q.Batch == c.BatchID) &&
		(q.State == 0 || q.State == c.Status) &&
		(q.EndsFrom.IsZero() || !c.ExpiresAt.Before(q.EndsFrom)) &&
		(q.EndsTo.IsZero() || c.ExpiresAt.Before(q.EndsTo))
}

func validUser(id string) error {
	if id == "" || len(id) > MaxText || !utf8.ValidString(id) {
		return fmt.Errorf("user_id: must have 1 to %d bytes of UTF-8, got %d", MaxText, len(id))
	}
	return nil
}

func validState(s Status) error {
	if s > Voided {
		return fmt.Errorf("state: must be unused, locked, used, expired or voided, got %d", s)
	}
	return nil
}

func validLimit(n int) error {
	if n < 1 || n > MaxPage {
		return fmt.Errorf("limit: must be between 1 and %d, got %d", MaxPage, n)
	}
	return nil
}

// Page is a part of a list. A page may hold fewer coupons than the limit, even none, and still have a next one: what a
// page costs is bounded by what it looks at.
type Page struct {
	Now     time.Time // the database's clock of the reading
	Coupons []Coupon
	Next    string // where the next page begins; empty: there is none
}

// Summary is a user's wallet in figures.
type Summary struct {
	Now     time.Time
	Usable  int        // seen as unused, and valid
	Ending  int        // of those, ending within the time asked for
	NextEnd time.Time  // the earliest end of those; zero: none ends
	Value   []MoneySum // of those that take an amount off, by currency, in the order of its code
	More    bool       // there are more than were counted
}

// MoneySum is an amount of one currency, in minor units.
type MoneySum struct {
	Amount   int64
	Currency string
}

// Idempotent is what is known of an Idempotency-Key.
type Idempotent struct {
	State  IdempotentState
	Status int    // of the answer, if Answered
	Answer []byte // likewise
}

// IdempotentState says how a request with a key is to be treated.
type IdempotentState uint8

// The states.
const (
	IdempotentFresh    IdempotentState = iota // ours: do it, then say FinishIdempotent
	IdempotentAnswered                        // done: give the same answer
	IdempotentBusy                            // somebody is at it
	IdempotentReused                          // the key came with another body
)

// Counted is one event as the statistics count it.
type Counted struct {
	CouponID   uint64
	Version    uint32
	TemplateID uint64
	From, To   Status
	Moved      bool // a lock that was renewed or an end that was moved: counts nothing
	At         time.Time
	Value      int64
}

// DayStats are the counts of a template on a UTC day. Values are minor units of the template's currency.
type DayStats struct {
	Day                                                               time.Time
	Granted, Locked, Released, Used, Refunded, Expired, Voided        int64
	GrantedValue, UsedValue, RefundedValue, ExpiredValue, VoidedValue int64
	Reinstated, ReinstatedValue                                       int64 // expired, and given back by an operator
}

// Count counts one event. A step that leaves the state as it was counts nothing: a lock was renewed, or an end moved.
func (d *DayStats) Count(e *Counted) {
	if e.Moved || e.From == e.To {
		return
	}
	if e.From == Used { // to unused, or past its end straight to expired
		d.Refunded++
		d.RefundedValue += e.Value
	}
	switch e.To {
	case Unused:
		switch e.From {
		case 0:
			d.Granted++
			d.GrantedValue += e.Value
		case Locked:
			d.Released++
		case Expired:
			d.Reinstated++
			d.ReinstatedValue += e.Value
		case Unused, Used, Voided:
		}
	case Locked:
		d.Locked++
	case Used:
		d.Used++
		d.UsedValue += e.Value
	case Expired:
		d.Expired++
		d.ExpiredValue += e.Value
	case Voided:
		d.Voided++
		d.VoidedValue += e.Value
	}
}

// Add adds another day's figures so many times; negative: takes them away.
func (d *DayStats) Add(o DayStats, times int64) {
	for _, f := range []struct {
		to *int64
		by int64
	}{
		{&d.Granted, o.Granted},
		{&d.Locked, o.Locked},
		{&d.Released, o.Released},
		{&d.Used, o.Used},
		{&d.Refunded, o.Refunded},
		{&d.Expired, o.Expired},
		{&d.Voided, o.Voided},
		{&d.GrantedValue, o.GrantedValue},
		{&d.UsedValue, o.UsedValue},
		{&d.RefundedValue, o.RefundedValue},
		{&d.ExpiredValue, o.ExpiredValue},
		{&d.VoidedValue, o.VoidedValue},
		{&d.Reinstated, o.Reinstated},
		{&d.ReinstatedValue, o.ReinstatedValue},
	} {
		*f.to += f.by * times
	}
}

// TemplateStates is how many coupons of a template are in which state, archived ones included.
type TemplateStates struct {
	TemplateID                                     uint64
	Name                                           string
	Value                                          int64 // of one coupon, minor units
	Currency                                       string
	Offer                                          Offer // without its conditions: kind, part and cap
	Stopped                                        bool  // it issues no more
	Granted, Unused, Locked, Used, Expired, Voided int64
}
