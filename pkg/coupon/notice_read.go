package coupon

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// NoticeStates lists all there are.
func NoticeStates() []NoticeState {
	return []NoticeState{NoticePending, NoticeSending, NoticeSent, NoticeDelivered, NoticeFailed, NoticeSuppressed, NoticeUnknown}
}

// NoticeKinds lists all there are.
func NoticeKinds() []NoticeKind { return []NoticeKind{NoticeExpiring, NoticeExpired} }

// Resendable reports whether an operator may have a notice of the state sent again: it is settled, and was not sent as far
// as anybody knows.
func (s NoticeState) Resendable() bool {
	return s == NoticeFailed || s == NoticeSuppressed || s == NoticeUnknown
}

// NoticeQuery asks for a page of notices as an operator sees them, newest windows first. Without a user or states it is of
// all there are.
type NoticeQuery struct {
	User    string
	States  []NoticeState // any of these; none: every state
	Kind    NoticeKind    // empty: every kind
	Channel Channel       // empty: every channel
	Reason  string        // empty: whatever the reason
	Since   time.Time     // recorded at this instant or later; zero: no bound
	Limit   int           // 1 to MaxPage: how many are looked at; those that the other conditions refuse are among them
	After   string        // NoticePage.Next of the page before; empty: from the newest on
}

// Validate reports every fault, each beginning with the field's name.
func (q NoticeQuery) Validate() error {
	errs := []error{validLimit(q.Limit)}
	if q.User != "" {
		errs = append(errs, validUser(q.User))
	}
	for _, s := range q.States {
		if !slices.Contains(NoticeStates(), s) {
			errs = append(errs, fmt.Errorf("state: must be one of %v, got %q", NoticeStates(), s))
		}
	}
	if q.Kind != "" && !slices.Contains(NoticeKinds(), q.Kind) {
		errs = append(errs, fmt.Errorf("kind: must be one of %v, got %q", NoticeKinds(), q.Kind))
	}
	if q.Channel != "" && !slices.Contains(Channels(), q.Channel) {
		errs = append(errs, fmt.Errorf("channel: must be one of %v, got %q", Channels(), q.Channel))
	}
	return errors.Join(errs...)
}

// Admits reports whether the query asks for the notice.
func (q NoticeQuery) Admits(n *NoticeRow) bool {
	return (q.User == "" || q.User == n.UserID) &&
		(len(q.States) == 0 || slices.Contains(q.States, n.State)) &&
		(q.Kind == "" || q.Kind == n.Kind) &&
		(q.Channel == "" || q.Channel == n.Channel) &&
		(q.Reason == "" || q.Reason == n.Reason) &&
		(q.Since.IsZero() || !n.CreatedAt.Before(q.Since))
}

// NoticeRow is a notice as it is recorded.
type NoticeRow struct {
	WindowID  uint64
	Channel   Channel
	UserID    string
	Kind      NoticeKind
	Slot      string // of reminders
	Items     int
	State     NoticeState
	Reason    string    // why it failed or was not sent; never an address
	Next      string    // the rest of the fallback chain, with commas
	Attempts  int       // deliveries begun
	TryAt     time.Time // when any pod may (next) deliver it; Never once it is settled
	NotAfter  time.Time // of no use afterwards; Never: no such instant
	CreatedAt time.Time
	SettledAt time.Time // zero: not yet
	Ref       string    // the provider's id of it
}

// ID is the notice's id, by which receivers know it.
func (n *NoticeRow) ID() string { return NoticeID(n.WindowID, n.Channel) }

// NoticePage is a part of a list. It may hold fewer notices than the limit, even none, and still have a next one.
type NoticePage struct {
	Now     time.Time // the database's clock of the reading
	Notices []NoticeRow
	Next    string // where the next page begins; empty: there is none
}

// Receipt is what a provider says of a notice that it took.
type Receipt struct {
	WindowID  uint64
	Channel   Channel
	Delivered bool      // else it failed for good
	Reason    string    // of a failure: a short code, without any address
	At        time.Time // when it was delivered; zero: not known
}

// NoticeMember is an event that a window holds.
type NoticeMember struct {
	EventID  string
	CouponID uint64
	Version  uint32
	EndsAt   time.Time
	Value    int64
	Currency string
	Dropped  string // why no notice counts it; empty: it is told
	AddedAt  time.Time
}

// NoticeWindow is a digest with all that belongs to it.
type NoticeWindow struct {
	Now      time.Time // the database's clock of the reading
	ID       uint64
	UserID   string
	Kind     NoticeKind
	Offset   string // of reminders
	Slot     string
	Late     bool // its slot's first window had closed
	Items    int  // events that it took in
	OpenedAt time.Time
	LastAt   time.Time // of its last item
	DueAt    time.Time // when it is looked at next; Never once it is closed
	NotifyAt time.Time // reminders: the least of the members'
	EndsAt   time.Time // the least of the members' ends; zero: not known
	ClosedAt time.Time // zero: open
	ClosedBy string
	Members  []NoticeMember // the earliest ends first, MaxPage at most
	Notices  []NoticeRow    // none while it is open
}
