package coupon

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// NoticeKind says what a notice tells of.
type NoticeKind string

// The kinds.
const (
	NoticeExpiring NoticeKind = "expiring" // of coupons that will end
	NoticeExpired  NoticeKind = "expired"  // of coupons that have ended
)

// Channel is a way to a user.
type Channel string

// The channels.
const (
	ChannelInbox Channel = "inbox" // a row that the app reads
	ChannelPopup Channel = "popup" // a row of the inbox that is handed out once, while the coupons live
	ChannelEmail Channel = "email"
	ChannelSMS   Channel = "sms"
	ChannelPush  Channel = "push"
	ChannelLog   Channel = "log" // counts in the log
)

// Channels lists all there are.
func Channels() []Channel {
	return []Channel{ChannelInbox, ChannelPopup, ChannelEmail, ChannelSMS, ChannelPush, ChannelLog}
}

// Provided reports whether a provider takes the channel's notices, and may tell later what became of them.
func (c Channel) Provided() bool { return c == ChannelEmail || c == ChannelSMS || c == ChannelPush }

// NoticeState is what became of a notice.
type NoticeState string

// The states. From sending (of a channel that must not send twice) a notice whose pod died goes to unknown.
const (
	NoticePending    NoticeState = "pending"
	NoticeSending    NoticeState = "sending"
	NoticeSent       NoticeState = "sent"
	NoticeDelivered  NoticeState = "delivered"
	NoticeFailed     NoticeState = "failed"
	NoticeSuppressed NoticeState = "suppressed"
	NoticeUnknown    NoticeState = "unknown"
)

// Why a notice was not sent, or an item not told. They are rows' reasons and metrics' labels.
const (
	ReasonEmpty    = "empty"    // no member stands any more
	ReasonChanged  = "changed"  // item: the coupon's state or end is another now
	ReasonAbsent   = "absent"   // item: there is no such coupon
	ReasonRepeated = "repeated" // item: told of this coupon at this offset within a day
	ReasonFull     = "full"     // item: its reminder's window had as many as one notice can tell of
	ReasonSkipped  = "skipped"  // reminder that was found later than a quarter of its offset
	ReasonStale    = "stale"    // expired: ended more than a day ago
	ReasonLate     = "late"     // its day's notice had gone out
	ReasonQuiet    = "quiet"    // no permitted hour is left
	ReasonCap      = "cap"
	ReasonOptOut   = "opt_out"
	ReasonInactive = "inactive"
	ReasonAddress  = "no_address"
	ReasonErased   = "erased"
	ReasonTooLate  = "too_late" // tries went on until it was of no use
	ReasonOff      = "off"      // the channel is not configured here
)

// HandsOn reports whether a notice that is suppressed for this reason in the last step leaves the user to the next channel of
// its chain: the reason is the channel's, and there is still something to tell.
func HandsOn(reason string) bool {
	switch reason {
	case ReasonCap, ReasonOptOut, ReasonInactive, ReasonQuiet, ReasonAddress:
		return true
	default:
		return false
	}
}

// NoticeItem is one event that a user is to be told of.
type NoticeItem struct {
	EventID    string // unique; a repeat is a no-op
	Kind       NoticeKind
	UserID     string
	CouponID   uint64
	TemplateID uint64
	Version    uint32 // of the coupon after the transition that the event tells of
	ExpiresAt  time.Time
	Value      int64 // integer minor units
	Currency   string

	// Of reminders alone.
	Offset   string    // its name
	Slot     string    // Offset.Slot in the user's zone
	NotifyAt time.Time // in the user's zone
	CloseAt  time.Time // when membership is fixed: the earliest instant at which a channel may have to send
	Late     bool      // Expiring.Late

	Dropped string // recorded for the books, never told: why
}

// WindowRules say when a window closes. Of reminders Quiet alone counts, and only for what is late.
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
	ClosedByTime  = "time" // a reminder's hour has come
	// ClosedByRemoval is of an erased user's window that is being removed and is too large to go at once.
	ClosedByRemoval = "removal"
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

// Amount is a sum in one currency.
type Amount struct {
	Minor    int64  `json:"minor"` // integer minor units
	Currency string `json:"currency"`
}

// Member is a coupon that a notice names.
type Member struct {
	CouponID   uint64
	TemplateID uint64
	ExpiresAt  time.Time
	Value      int64
	Currency   string
}

// Closed is a window whose membership is being fixed: what decides whom to tell of it, and how.
type Closed struct {
	WindowID uint64
	UserID   string
	Kind     NoticeKind
	Offset   string // of reminders
	Slot     string
	Late     bool
	Items    int       // members that stand; zero: nothing is left to tell
	Reason   string    // if Items is zero: why
	Totals   []Amount  // of those, by currency, in its order
	Of       []uint64  // the templates of those, in order, each once
	NotifyAt time.Time // reminders: the least of the members'
	EndsAt   time.Time // the least of the members' ends
	LastEnd  time.Time // the greatest
	Profile  Profile   // of the user; zero but for UserID if nothing is known
}

// PlannedNotice is what is decided of one channel. Suppressed ones are rows, too.
type PlannedNotice struct {
	Channel  Channel
	State    NoticeState // pending or suppressed
	Reason   string      // of a suppressed one
	SendAt   time.Time   // not before
	NotAfter time.Time   // of no use afterwards; Never if there is no such instant
	Next     []Channel   // tried in turn if this one fails for good, or turns out not to be permitted
}

// Decided is what becomes of a closed window.
type Decided struct {
	Notices []PlannedNotice
	AtRisk  *AtRisk // to be told as an event, in the same transaction
}

// AtRisk is a user who was about to buy and is about to lose coupons (requirement R35).
type AtRisk struct {
	UserID    string
	Day       string // local, of the end, as 2026-11-01
	EndsAt    time.Time
	Coupons   int
	Totals    []Amount
	BrowsedAt time.Time // zero: not known
	CartedAt  time.Time
	Offer     string // kind of offer that is suggested: grant, discount or banner
	At        time.Time
}

// ClosePlan says which windows to close and what becomes of them.
type ClosePlan struct {
	Kind   NoticeKind
	Rules  WindowRules
	Limit  int                                    // windows in one transaction at most
	Lease  time.Duration                          // how long the closing pod alone may deliver what may be sent at once; 0: whoever claims it
	Decide func(now time.Time, c *Closed) Decided // pure; called within the transaction, perhaps more than once
}

// Closing is what closing did.
type Closing struct {
	Now        time.Time      // the database's clock when it looked
	Next       time.Time      // the earliest instant to look again; zero when no window is open
	Windows    int            // closed
	More       bool           // others were due as well
	Pending    []Notice       // may be sent at once, under this pod's lease
	Suppressed map[string]int // by reason
	AtRisk     int
}

// Notice is what one channel tells a user of one closed window.
type Notice struct {
	WindowID uint64
	Channel  Channel
	UserID   string
	Kind     NoticeKind
	Slot     string
	Items    int // members that stood when the window closed
	Attempt  int // deliveries begun, this one included
	NotAfter time.Time
	Next     string // the rest of the fallback chain, with commas
}

// ID is the notice's id, the same on every try: what receivers tell repeats by.
func (n Notice) ID() string { return NoticeID(n.WindowID, n.Channel) }

// NoticeID is <window>-<channel>.
func NoticeID(window uint64, channel Channel) string {
	return strconv.FormatUint(window, 10) + "-" + string(channel)
}

// ParseNoticeID reads such an id.
func ParseNoticeID(id string) (window uint64, channel Channel, err error) {
	number, name, ok := strings.Cut(id, "-")
	window, perr := strconv.ParseUint(number, 10, 64)
	if !ok || perr != nil || window == 0 {
		return 0, "", fmt.Errorf("must be like 123-sms, got %q", id)
	}
	for _, c := range Channels() {
		if string(c) == name {
			return window, c, nil
		}
	}
	return 0, "", fmt.Errorf("must end in a channel, got %q", id)
}

// MembersShown is how many members a prepared notice names, those that end first.
const MembersShown = 10

// Prepared is a notice in the last step before it is sent: what stands now.
type Prepared struct {
	Notice
	Now        time.Time // the database's clock of the reading
	Suppressed string    // not to be sent any more, and recorded so: why
	Items      int       // members that stand
	Members    []Member
	Totals     []Amount
	EndsAt     time.Time // the least of the standing members'
	LastEnd    time.Time
	Profile    Profile
}

// Cap bounds the notices of a channel to one user; zero: no bound.
type Cap struct {
	Day  int // on one local day
	Week int // on seven local days, this one included
}

// NoticeResult is what became of a try.
type NoticeResult struct {
	WindowID uint64
	Attempt  int
	State    NoticeState // sent, failed, unknown; suppressed; pending: again at TryAt
	Reason   string      // short, without any address
	TryAt    time.Time
	Ref      string // the provider's id of it
}

// NoticeText is a notice in one language.
type NoticeText struct {
	Title string `json:"title"`
	Text  string `json:"text"`
}

// InboxEntry is a notice as it is put into an inbox.
type InboxEntry struct {
	Notice
	Texts      map[string]NoticeText // by BCP 47 tag
	ValidUntil time.Time             // of popups: the least of the members' ends; Never else
}

// InboxItem is a row of a user's inbox.
type InboxItem struct {
	ID         uint64
	NoticeID   string
	Kind       NoticeKind
	Items      int
	Popup      bool
	Texts      map[string]NoticeText // by BCP 47 tag
	CreatedAt  time.Time
	ValidUntil time.Time
	ReadAt     time.Time // zero: not yet
}
