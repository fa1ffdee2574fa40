package coupon

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"
)

// BulkAsk is one change to many coupons. Those that it is about must meet every condition that is given.
type BulkAsk struct {
	Verb     Verb // extend, void, reinstate
	Template uint64
	Batch    string
	User     string
	IDs      []uint64  // distinct; nil: not by a list
	EndsFrom time.Time // their end is from here on; zero: no bound
	EndsTo   time.Time // and before this; zero: no bound

	EndsAt     time.Time     // extend, reinstate: the new end …
	By         time.Duration // … or by how much it moves, from the end that the coupon has
	BreakLocks bool          // void: also under live locks
	Actor      string
	Reason     string
}

// MaxBulkIDs is how many coupons a list may name.
const MaxBulkIDs = 1_000_000

// Validate reports every fault, each beginning with the flag's name.
func (a BulkAsk) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	text := func(field, value string, least, most int) {
		if len(value) < least || len(value) > most || !utf8.ValidString(value) {
			bad("%s: must have %d to %d bytes of UTF-8, got %d", field, least, most, len(value))
		}
	}
	text("batch", a.Batch, 0, MaxText)
	text("user", a.User, 0, MaxText)
	text("actor", a.Actor, 1, MaxText)
	text("reason", a.Reason, 1, MaxReason)
	if a.Template == 0 && a.Batch == "" && a.User == "" && a.IDs == nil && (a.EndsFrom.IsZero() || a.EndsTo.IsZero()) {
		bad("template, batch, user, file, ended-between: one of them must say which coupons")
	}
	if len(a.IDs) > MaxBulkIDs {
		bad("file: must name at most %d coupons, got %d", MaxBulkIDs, len(a.IDs))
	}
	if !a.EndsTo.IsZero() && !a.EndsFrom.Before(a.EndsTo) {
		bad("ended-between: the first instant must be before the second, got %s and %s", a.EndsFrom.Format(time.RFC3339), a.EndsTo.Format(time.RFC3339))
	}
	switch a.Verb {
	case VerbExtend, VerbReinstate:
		if a.EndsAt.IsZero() == (a.By == 0) {
			bad("to, by: one of them must say what the new end is")
		}
		if !a.EndsAt.IsZero() && (a.EndsAt.Nanosecond() != 0 || a.EndsAt.After(Never)) {
			bad("to: must be a whole second, got %s", a.EndsAt.Format(time.RFC3339Nano))
		}
		if a.By%time.Second != 0 || a.By > MaxLife || a.By < -MaxLife || a.Verb == VerbReinstate && a.By < 0 {
			bad("by: must be whole seconds, at most %d days, got %s", int(MaxLife/(24*time.Hour)), a.By)
		}
	case VerbVoid:
	case VerbLock, VerbRenew, VerbRedeem, VerbRelease, VerbRefund:
		bad("verb: must be extend, void or reinstate, got %q", a.Verb)
	default:
		bad("verb: must be extend, void or reinstate, got %q", a.Verb)
	}
	return errors.Join(errs...)
}

// Admits reports whether the coupon is one of those that are meant.
func (a BulkAsk) Admits(c *Coupon) bool {
	switch {
	case a.Template != 0 && c.Terms.TemplateID != a.Template, a.Batch != "" && c.BatchID != a.Batch, a.User != "" && c.UserID != a.User:
		return false
	case !a.EndsFrom.IsZero() && c.ExpiresAt.Before(a.EndsFrom), !a.EndsTo.IsZero() && !c.ExpiresAt.Before(a.EndsTo):
		return false
	}
	if a.IDs == nil {
		return true
	}
	_, found := slices.BinarySearch(a.IDs, c.ID)
	return found
}

// Of is what is asked of one coupon.
func (a BulkAsk) Of(row *Row) Ask {
	ask := Ask{Verb: a.Verb, EndsAt: a.EndsAt, BreakLock: a.BreakLocks}
	if a.By != 0 {
		ask.EndsAt = row.ExpiresAt // no end stays none
		if !IsNever(row.ExpiresAt) {
			ask.EndsAt = row.ExpiresAt.Add(a.By)
		}
	}
	return ask
}

// Hash tells two asks apart, whoever asks and why.
func (a BulkAsk) Hash() [sha256.Size]byte {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%q %d %q %q %d %d %d %d %t %t\n", a.Verb, a.Template, a.Batch, a.User, a.EndsFrom.UnixMilli(), a.EndsTo.UnixMilli(),
		a.EndsAt.UnixMilli(), a.By, a.BreakLocks, a.IDs == nil)
	for _, id := range a.IDs {
		_ = binary.Write(h, binary.BigEndian, id) // a hash takes everything
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// BulkPlace is where a look over the coupons stands. The zero value is the beginning.
type BulkPlace struct {
	Part int
	Cursor
	Done bool
}

// BulkTally is how many coupons, and what they are worth, by currency.
type BulkTally struct {
	Coupons int64            `json:"coupons"`
	Value   map[string]int64 `json:"value"`
}

// Add adds one coupon.
func (t *BulkTally) Add(terms *Terms) {
	if t.Value == nil {
		t.Value = map[string]int64{}
	}
	t.Coupons++
	if terms.Currency != "" { // else there is no such coupon
		t.Value[terms.Currency] += terms.Value
	}
}

// What becomes of a coupon beside the codes of refusals.
const (
	BulkChange = "change" // it is changed, or would be
	BulkRepeat = "repeat" // it is as it is asked to be
	BulkBusy   = "busy"   // somebody held it for too long
)

// BulkProgress is what became of the coupons so far, by BulkChange, BulkRepeat, or the code of the refusal.
type BulkProgress map[string]*BulkTally

// Add counts a coupon.
func (p BulkProgress) Add(what string, terms *Terms) {
	if p[what] == nil {
		p[what] = &BulkTally{}
	}
	p[what].Add(terms)
}

// Clone is a copy of its own.
func (p BulkProgress) Clone() BulkProgress {
	out := make(BulkProgress, len(p))
	for what, t := range p {
		c := BulkTally{Coupons: t.Coupons, Value: make(map[string]int64, len(t.Value))}
		for currency, n := range t.Value {
			c.Value[currency] = n
		}
		out[what] = &c
	}
	return out
}

// Less takes so many of one kind away, as far as there are any.
func (p BulkProgress) Less(what string, by *BulkTally) {
	t := p[what]
	if t == nil {
		return
	}
	t.Coupons = max(0, t.Coupons-by.Coupons)
	for currency, n := range by.Value {
		t.Value[currency] = max(0, t.Value[currency]-n)
	}
	if t.Coupons == 0 {
		delete(p, what)
	}
}

// Count is how many of one kind.
func (p BulkProgress) Count(what string) int64 {
	if t := p[what]; t != nil {
		return t.Coupons
	}
	return 0
}

// BulkOutcome is what became of one coupon of a batch.
type BulkOutcome struct {
	ID    uint64
	What  string // BulkChange, BulkRepeat, BulkBusy, or the code of the refusal; empty: the operation had changed it before
	Terms Terms
}
