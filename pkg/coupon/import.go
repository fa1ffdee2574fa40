package coupon

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"
)

// ImportRow is a coupon as another system has it.
type ImportRow struct {
	Key       string // the other system's id of it
	UserID    string
	Template  uint64 // ours
	Status    Status
	ValidFrom time.Time // zero: since it was granted
	ExpiresAt time.Time // the first instant at which it is over, a whole second, or Never
	GrantedAt time.Time // zero: when it is imported
	OrderID   string    // that has locked or used it
	LockedAt  time.Time // zero: when it is imported; of a locked one alone
	LockUntil time.Time // a whole second; zero: for LockFor from the import on
	LockFor   time.Duration
	UsedAt    time.Time // zero: when it is imported; of a used one alone
	ExpiredAt time.Time // zero: at its end; of an expired one alone
}

// Fault names the first field that can be imported into no template; empty if there is none.
func (r *ImportRow) Fault() string {
	text := func(field, value string, least int) string {
		if len(value) < least || len(value) > MaxText || !utf8.ValidString(value) {
			return fmt.Sprintf("%s: must have %d to %d bytes of UTF-8, got %d", field, least, MaxText, len(value))
		}
		return ""
	}
	held := 0
	if r.Status == Locked {
		held = 1
	}
	for _, fault := range []string{text("external_id", r.Key, 1), text("user_id", r.UserID, 1), text("order_id", r.OrderID, held)} {
		if fault != "" {
			return fault
		}
	}
	for _, at := range []struct {
		field string
		at    time.Time
	}{
		{"expires_at", r.ExpiresAt},
		{"valid_from", r.ValidFrom},
		{"granted_at", r.GrantedAt},
		{"locked_at", r.LockedAt},
		{"lock_until", r.LockUntil},
		{"used_at", r.UsedAt},
		{"expired_at", r.ExpiredAt},
	} {
		if !at.at.IsZero() && (at.at.Unix() <= 0 || at.at.After(Never)) {
			return fmt.Sprintf("%s: must be between 1970 and 9999, got %s", at.field, at.at.Format(time.RFC3339))
		}
	}
	switch {
	case r.Template == 0:
		return "template: none is named for it"
	case r.Status < Unused || r.Status > Voided:
		return "state: must be unused, locked, used, expired or voided"
	case r.ExpiresAt.IsZero():
		return "expires_at: must be an instant, or never"
	case r.Status == Expired && IsNever(r.ExpiresAt):
		return "expires_at: what has expired had an end"
	case (r.Status == Unused || r.Status == Locked) && !r.ValidFrom.Before(r.ExpiresAt):
		return "valid_from: must be before the end " + r.ExpiresAt.UTC().Format(time.RFC3339)
	}
	return ""
}

// Hash tells whether the other system's coupon is as it was when it was imported. Stored, so it never changes.
func (r *ImportRow) Hash() [sha256.Size]byte {
	h := sha256.New()
	ms := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixMilli()
	}
	_, _ = fmt.Fprintf(h, "lapse.import.1 %q %d %d %d %d %d %q %d %d %d %d\n", r.UserID, r.Template, r.Status, ms(r.ValidFrom), ms(r.ExpiresAt),
		ms(r.GrantedAt), r.OrderID, ms(r.LockedAt), ms(r.LockUntil), ms(r.UsedAt), ms(r.ExpiredAt))
	return [sha256.Size]byte(h.Sum(nil))
}

// ImportAsk says how coupons of another system are taken over.
type ImportAsk struct {
	Name    string // of the import: its coupons have the grant keys of the issuer that ImportIssuer gives
	Batch   string // of its coupons
	Observe bool   // they are observed until the cut-over
	Events  bool   // tell of those that are unused or locked as issued
	Notices bool   // tell of the reminders that verbs would tell of
	Actor   string
	Reason  string
}

// importName is what an import may be called.
var importName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// ImportIssuer is the issuer of the grant keys by which an import's coupons are known.
func ImportIssuer(name string) string { return "import:" + name }

// ValidImportName says what is wrong with the name of an import.
func ValidImportName(name string) error {
	if !importName.MatchString(name) {
		return fmt.Errorf("name: must be of a-z, 0-9 and hyphens, begin with a letter and have at most 31 characters, got %q", name)
	}
	return nil
}

// Validate reports every fault, each beginning with the field's name.
func (a *ImportAsk) Validate() error {
	errs := []error{ValidImportName(a.Name)}
	text := func(field, value string, least, most int) {
		if len(value) < least || len(value) > most || !utf8.ValidString(value) {
			errs = append(errs, fmt.Errorf("%s: must have %d to %d bytes of UTF-8, got %d", field, least, most, len(value)))
		}
	}
	text("batch", a.Batch, 0, MaxText)
	text("actor", a.Actor, 1, MaxText)
	text("reason", a.Reason, 1, MaxReason)
	if a.Observe && (a.Events || a.Notices) {
		errs = append(errs, errors.New("observe: nothing is told of what is observed, so neither events nor notices can be asked for"))
	}
	return errors.Join(errs...)
}

// What becomes of a row of an import.
const (
	ImportNew     = "new"
	ImportUpdated = "updated"      // only this import had touched the coupon, and the row has changed
	ImportSame    = "same"         // the row is as it was, or the coupon is as the row is
	ImportHere    = "changed_here" // the row has changed, and so has the coupon, by something else than this import
	ImportBusy    = "busy"         // somebody held the coupon
	ImportRefused = "refused"
)

// ImportOutcome is what became of a row.
type ImportOutcome struct {
	CouponID uint64 // zero: none, or not known yet
	What     string
	Detail   string // of changed here and refused: why
	Status   Status
	Terms    Terms
}

// Kind is under which name an outcome is counted: what became of it, and for coupons their state.
func (o *ImportOutcome) Kind() string {
	if o.What == ImportRefused {
		return o.What
	}
	return o.What + "." + o.Status.String()
}

// ImportProgress is how far an import has come.
type ImportProgress struct {
	Place  string       `json:"place"` // of the source: what it gave up to here is done
	Rows   int64        `json:"rows"`  // read so far, refused ones too
	Done   bool         `json:"done"`
	Counts BulkProgress `json:"counts"` // by ImportOutcome.Kind
}

// Add counts an outcome.
func (p *ImportProgress) Add(o *ImportOutcome) {
	if p.Counts == nil {
		p.Counts = BulkProgress{}
	}
	p.Counts.Add(o.Kind(), &o.Terms)
}

// Count is how many came to be that, whatever their state.
func (p *ImportProgress) Count(what string) int64 {
	n := p.Counts.Count(what)
	for s := Unused; s <= Voided; s++ {
		n += p.Counts.Count(what + "." + s.String())
	}
	return n
}

// Imported is a coupon that an import made, as it is now, with what was decided of its end while it is observed.
type Imported struct {
	Coupon
	Key     string
	Hash    [sha256.Size]byte // of the row as it was imported last
	Decided bool              // its end has been decided upon, at these instants:
	DueAt   time.Time
	At      time.Time
}

// ImportMoved is a coupon of an import that something else than the import has changed.
type ImportMoved struct {
	Key string
	Coupon
}

// ImportSource is an import by its name.
type ImportSource struct {
	Name    string
	Observe bool
	Created time.Time
	Updated time.Time
}
