package coupon

import (
	"time"
)

// NoticeKind says what a notice tells of.
type NoticeKind string

// NoticeExpired tells of coupons that have ended.
const NoticeExpired NoticeKind = "expired"

// Channel is a way to a user.
type Channel string

// The channels.
const (
	ChannelInbox Channel = "inbox" // a row that the app reads
	ChannelLog   Channel = "log"   // counts in the log
)

// NoticeItem is one event that a user is to be told of.
type NoticeItem struct {
	EventID   string // unique; a repeat is a no-op
	UserID    string
	CouponID  uint64
	Version   uint32 // of the coupon after the transition that the event tells of
	ExpiresAt time.Time
	Value     int64 // integer minor units
	Currency  string
}

// WindowRules say when a window closes.
type WindowRules struct {
	Quiet     time.Duration // since its last item
	MaxAge    time.Duration // since its first
	MaxItems  int           // closes it at once, whatever NotBefore says
	NotBefore time.Time     // no window closes by quiet or age before; zero: no such instant
}

// What closed a window.
const (
	ClosedByQuiet = "quiet"
	ClosedByAge   = "age"
	ClosedBySize  = "size"
)

// ClosesAt is when a window that is not full closes unless another item joins, and by which rule.
func (r WindowRules) ClosesAt(opened, last time.Time) (time.Time, string) {
	at, by := last.Add(r.Quiet), ClosedByQuiet
	if age := opened.Add(r.MaxAge); age.Before(at) {
		at, by = age, ClosedByAge
	}
	if at.Before(r.NotBefore) {
		at = r.NotBefore
	}
	return at, by
}

// Notice is what one channel tells a user of one closed window.
type Notice struct {
	WindowID uint64
	Channel  Channel
	UserID   string
	Kind     NoticeKind
	Items    int // members that still stood when the window closed
	Attempt  int // deliveries begun before this one
}

// NoticeText is a notice in one language.
type NoticeText struct {
	Title string `json:"title"`
	Text  string `json:"text"`
}

// NoticeMessage is a notice with its text in every language, by BCP 47 tag.
type NoticeMessage struct {
	Notice
	Texts map[string]NoticeText
}

// ClosePlan says which windows to close and what becomes of them.
type ClosePlan struct {
	Kind     NoticeKind
	Rules    WindowRules
	Channels []Channel     // each gets a notice
	Lease    time.Duration // how long the closing pod alone may deliver them
	Limit    int           // windows in one transaction at most
}

// Closing is what closing did.
type Closing struct {
	Now        time.Time // the database's clock when it looked
	Next       time.Time // the earliest instant to look again; zero when no window is open
	Windows    int       // closed
	More       bool      // others were due as well
	Pending    []Notice  // to be delivered, under this pod's lease
	Suppressed []Notice  // recorded, not to be sent: no member stands any more
}

// InboxItem is a row of a user's inbox.
type InboxItem struct {
	ID        uint64
	Kind      NoticeKind
	Items     int
	Texts     map[string]NoticeText // by BCP 47 tag
	CreatedAt time.Time
	ReadAt    time.Time // zero: not yet
}
