package coupon

import (
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// ErrPaused: an operator has paused what was asked for. Nothing was done; it may be asked for again later.
var ErrPaused = errors.New("paused by an operator")

// Brake is a part of the work that an operator may pause.
type Brake string

// The brakes.
const (
	BrakeExpiry   Brake = "expiry"   // the core moves no coupon past its end; readers show it as ended all the same
	BrakeNotices  Brake = "notices"  // notices are gathered and kept, and none is sent
	BrakeIssuance Brake = "issuance" // grants wait
)

// Brakes lists them all.
func Brakes() []Brake { return []Brake{BrakeExpiry, BrakeNotices, BrakeIssuance} }

// PauseScope says of what a brake is on.
type PauseScope string

// The scopes. Expiry and issuance are paused whole, by template or by batch, notices whole or by channel: a notice is of
// several templates' coupons.
const (
	PauseAll      PauseScope = ""
	PauseTemplate PauseScope = "template"
	PauseBatch    PauseScope = "batch"
	PauseChannel  PauseScope = "channel"
)

// Pause is one brake that is on.
type Pause struct {
	Brake Brake
	Scope PauseScope
	ID    string    // of the template, in decimal digits; of the batch; of the channel
	Since time.Time // the database's clock
}

// Validate reports what is wrong with it.
func (p Pause) Validate() error {
	switch {
	case p.Brake != BrakeExpiry && p.Brake != BrakeNotices && p.Brake != BrakeIssuance:
		return fmt.Errorf("what: must be expiry, notices or issuance, got %q", p.Brake)
	case p.Scope == PauseAll && p.ID != "":
		return fmt.Errorf("id: must be empty without a scope, got %q", p.ID)
	case p.Scope == PauseAll:
		return nil
	case (p.Scope == PauseChannel) != (p.Brake == BrakeNotices):
		return fmt.Errorf("scope: notices are paused by channel, expiry and issuance by template or batch, got %s by %s", p.Brake, p.Scope)
	}
	switch p.Scope {
	case PauseTemplate:
		if id, err := strconv.ParseUint(p.ID, 10, 64); err != nil || id == 0 || strconv.FormatUint(id, 10) != p.ID {
			return fmt.Errorf("template: must be an id, a whole number from 1 on, got %q", p.ID)
		}
	case PauseBatch:
		if p.ID == "" || len(p.ID) > MaxText || !utf8.ValidString(p.ID) {
			return fmt.Errorf("batch: must have 1 to %d bytes of UTF-8, got %d", MaxText, len(p.ID))
		}
	case PauseChannel:
		for _, c := range Channels() {
			if string(c) == p.ID {
				return nil
			}
		}
		return fmt.Errorf("channel: must be one of %v, got %q", Channels(), p.ID)
	case PauseAll:
	default:
		return fmt.Errorf("scope: must be template, batch or channel, got %q", p.Scope)
	}
	return nil
}

// String names it for people.
func (p Pause) String() string {
	if p.Scope == PauseAll {
		return string(p.Brake)
	}
	return fmt.Sprintf("%s of %s %s", p.Brake, p.Scope, p.ID)
}

// Pauses are the brakes that are on. The zero value, and nil, is none. It is not changed once made.
type Pauses struct {
	list      []Pause
	all       map[Brake]bool
	templates map[Brake]map[uint64]bool
	others    map[Pause]bool // batches and channels, without Since
}

// NewPauses puts them together; those that are not valid are left out.
func NewPauses(list []Pause) *Pauses {
	ps := &Pauses{all: map[Brake]bool{}, templates: map[Brake]map[uint64]bool{}, others: map[Pause]bool{}}
	for _, p := range list {
		if p.Validate() != nil {
			continue
		}
		ps.list = append(ps.list, p)
		switch p.Scope {
		case PauseAll:
			ps.all[p.Brake] = true
		case PauseTemplate:
			id, _ := strconv.ParseUint(p.ID, 10, 64) // validated
			if ps.templates[p.Brake] == nil {
				ps.templates[p.Brake] = map[uint64]bool{}
			}
			ps.templates[p.Brake][id] = true
		case PauseBatch, PauseChannel:
			ps.others[Pause{Brake: p.Brake, Scope: p.Scope, ID: p.ID}] = true
		}
	}
	return ps
}

// List gives them, in the order in which they came.
func (ps *Pauses) List() []Pause {
	if ps == nil {
		return nil
	}
	return ps.list
}

// Count is how many of a brake are on.
func (ps *Pauses) Count(b Brake) int {
	n := 0
	for _, p := range ps.List() {
		if p.Brake == b {
			n++
		}
	}
	return n
}

// All reports whether the brake is on for everything.
func (ps *Pauses) All(b Brake) bool { return ps != nil && ps.all[b] }

// Coupon reports whether the brake is on for a coupon, or a grant, of the template and batch.
func (ps *Pauses) Coupon(b Brake, template uint64, batch string) bool {
	if ps == nil || len(ps.list) == 0 {
		return false
	}
	return ps.all[b] || ps.templates[b][template] || batch != "" && ps.others[Pause{Brake: b, Scope: PauseBatch, ID: batch}]
}

// Channel reports whether notices by the channel are paused.
func (ps *Pauses) Channel(c Channel) bool {
	return ps.All(BrakeNotices) || ps != nil && ps.others[Pause{Brake: BrakeNotices, Scope: PauseChannel, ID: string(c)}]
}

// Since is every pause of the brake, by what it is of, and when it began: two readings that give the same are of the same state.
func (ps *Pauses) Since(b Brake) map[Pause]time.Time {
	out := map[Pause]time.Time{}
	for _, p := range ps.List() {
		if p.Brake == b {
			out[Pause{Brake: p.Brake, Scope: p.Scope, ID: p.ID}] = p.Since
		}
	}
	return out
}
