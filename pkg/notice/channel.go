package notice

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Message is one notice, rendered, ready to leave.
type Message struct {
	ID        string // coupon.NoticeID: the same on every try
	Window    uint64
	Kind      coupon.NoticeKind
	Offset    string // of reminders
	UserID    string
	Locale    string                       // of Text
	Zone      string                       // IANA name
	Recipient string                       // address for this channel; empty: the gateway resolves the user id. Never logged
	Text      coupon.NoticeText            // in Locale; not of inbox and popup
	HTML      string                       // of e-mail
	Texts     map[string]coupon.NoticeText // all locales; of inbox and popup
	Params    map[string]string            // count, day, amount, ends_at, … for provider templates
	Items     int                          // coupons it tells of
	Members   []coupon.Member              // the first of them, at most coupon.MembersShown
	EndsAt    time.Time                    // the least of the coupons' ends
	NotAfter  time.Time                    // of no use afterwards; coupon.Never if there is no such instant
}

// Outcome is what became of a try.
type Outcome int

// The outcomes.
const (
	// Sent: the provider has taken it.
	Sent Outcome = iota
	// Retry: it did not go out, and may at another time.
	Retry
	// Throttled: it did not go out, and nothing of this channel will until Result.Until.
	Throttled
	// Permanent: it will never go out.
	Permanent
	// Unknown: it may have gone out.
	Unknown
)

// Result is what became of a message.
type Result struct {
	Outcome Outcome
	Until   time.Time // of Throttled; zero: for as long as the channel is configured to back off
	Reason  string    // short code such as http_500; no address, no text, no user
	Ref     string    // the provider's id of it
	// MessageOnly: of Retry. The provider works, and puts off this message alone, as for a full mailbox: not a failure of the channel.
	MessageOnly bool
	Recorded    bool // the channel has recorded the message as sent itself (Outcome Sent), or found it settled before
}

// Channel is a way to users. Safe for concurrent use.
type Channel interface {
	Name() coupon.Channel
	Batch() int // messages at a time; 1 for email and gateways, which are called concurrently instead
	// AtMostOnce: a message that may have gone out is never sent again.
	AtMostOnce() bool
	// Deliver sends the messages and gives one result for each; it never blocks beyond ctx.
	Deliver(ctx context.Context, ms []Message) []Result
}
