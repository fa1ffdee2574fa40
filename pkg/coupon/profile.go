package coupon

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Profile is what is known of a user (requirement R45): all of it may be missing.
type Profile struct {
	UserID     string
	Locale     string // BCP 47 tag as told; empty: not known
	Zone       string // IANA name; empty: not known
	Sealed     []byte // addresses; nil: none. See secret.Keyring
	Key        string // that sealed them
	LoginAt    time.Time
	BrowseAt   time.Time
	CartAt     time.Time
	OrderedAt  time.Time
	OptOuts    []OptOut // those in force
	ErasedAt   time.Time
	ActiveAt   time.Time // the latest of the activities; zero: none is known
	ProfileAt  time.Time // event time of the profile
	LastSeenAt time.Time // database's clock of the last event
}

// Location is the user's zone, or the fallback if it is not known or unknown here.
func (p *Profile) Location(fallback *time.Location) *time.Location {
	if p.Zone == "" {
		return fallback
	}
	if zone, err := time.LoadLocation(p.Zone); err == nil {
		return zone
	}
	return fallback
}

// Wants reports whether the user has not opted out of the channel for this kind.
func (p *Profile) Wants(c Channel, k NoticeKind) bool {
	for _, o := range p.OptOuts {
		if (o.Channel == c || o.Channel == AllChannels) && (o.Kind == k || o.Kind == AllKinds) {
			return false
		}
	}
	return true
}

// Of opt-outs from everything.
const (
	AllChannels Channel    = "*"
	AllKinds    NoticeKind = "*"
)

// OptOut is a user's decision on a channel and a kind; the last by its time holds.
type OptOut struct {
	Channel Channel
	Kind    NoticeKind
	Out     bool // false: wanted again
	At      time.Time
	Source  string // profile, receipt, operator
}

// Validate refuses what is no decision; each fault begins with the field's name, as events and the API call it.
func (o OptOut) Validate() error {
	var errs []error
	if o.Channel != AllChannels && !slices.Contains(Channels(), o.Channel) {
		errs = append(errs, errors.New("channel: must be inbox, popup, email, sms, push, log or *"))
	}
	if o.Kind != AllKinds && o.Kind != NoticeExpiring && o.Kind != NoticeExpired {
		errs = append(errs, errors.New("kind: must be expiring, expired or *"))
	}
	if o.At.IsZero() {
		errs = append(errs, errors.New("at: is required"))
	}
	if len(o.Source) > maxSource {
		errs = append(errs, fmt.Errorf("source: must have at most %d bytes, has %d", maxSource, len(o.Source)))
	}
	return errors.Join(errs...)
}

const maxSource = 16

// Addresses are where a user can be reached. They are stored sealed and never logged.
type Addresses struct {
	Email string `json:"email,omitempty"`
	Phone string `json:"phone,omitempty"`
	Push  string `json:"push,omitempty"` // a device's token
}

// ActivityKind is what a user was seen to do.
type ActivityKind string

// The activities.
const (
	ActivityLogin  ActivityKind = "login"
	ActivityBrowse ActivityKind = "browse"
	ActivityCart   ActivityKind = "cart"
	ActivityOrder  ActivityKind = "order"
)

// UserEvent is one of user.activity, user.profile and user.deleted, decoded. Exactly one of the three is set.
type UserEvent struct {
	UserID   string
	At       time.Time // event time: the last one wins
	Activity ActivityKind
	Profile  *ProfileChange
	Deleted  bool
}

// ProfileChange is a whole profile: what is not in it is not known any more.
type ProfileChange struct {
	Locale    string
	Zone      string
	Addresses Addresses
	Sealed    []byte // by the consumer, before it is stored
	Key       string
	OptOuts   []OptOut // nil: nothing is said of them; those that are not named stay
}

// Sealed are addresses as they are stored.
type Sealed struct {
	UserID    string
	Addresses []byte
	Key       string // that sealed them
}

// Erasure is what erasing a user removed beside the profile.
type Erasure struct {
	Windows int `json:"windows"` // of notices, with their items and notices
	Inbox   int `json:"inbox"`   // rows
}

// UserRecord is one row of what is stored of a user.
type UserRecord struct {
	Table string
	Names []string
	// Values are nil, int64, float64, string, time.Time, or json.RawMessage; []byte where it is neither text nor JSON.
	Values []any
}
