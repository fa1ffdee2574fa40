package event

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The types of event of users, and their routing keys: the type without its version.
const (
	TypeUserActivity = "user.activity.v1"
	TypeUserProfile  = "user.profile.v1"
	TypeUserDeleted  = "user.deleted.v1"

	KeyUserActivity = "user.activity"
	KeyUserProfile  = "user.profile"
	KeyUserDeleted  = "user.deleted"
)

// UserTypes lists the types of event of users.
func UserTypes() []string { return []string{TypeUserActivity, TypeUserProfile, TypeUserDeleted} }

// The limits of what is told of a user, in bytes.
const (
	MaxEmail   = 254
	MaxPhone   = 32
	MaxPush    = 1024
	maxLocale  = 35
	maxZone    = 64
	maxOptOuts = 64
)

// User is an incoming event of a user.
type User struct {
	EventID string // as an Issuance's
	coupon.UserEvent
	// Unknown names what was left out because it is not known here, "locale" or "zone": a profile is not worth less for it.
	Unknown []string
}

var (
	localePattern = regexp.MustCompile(`^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$`)
	emailPattern  = regexp.MustCompile(`^[^\s@"\\<>(),:;\[\]]+@[^\s@"\\<>(),:;\[\]]+$`)
	phonePattern  = regexp.MustCompile(`^\+?[0-9][0-9 ().-]+[0-9]$`)
	pushPattern   = regexp.MustCompile(`^[!-~]+$`)
)

// DecodeUser reads an event of a user: a CloudEvent in structured JSON, or its data alone; then named, the routing key, gives
// the type, with its version or without. Unknown fields are ignored. Errors name fields and never hold what was in them.
func DecodeUser(body []byte, contentType, messageID, named string) (User, error) {
	u, err := decodeUser(body, contentType, messageID, named)
	if err != nil {
		return User{}, fmt.Errorf("decode an event of a user: %w", withoutValues(err))
	}
	return u, nil
}

func decodeUser(body []byte, contentType, messageID, named string) (User, error) {
	in, o, err := receive(body, contentType, messageID, UserTypes()...)
	if err != nil {
		return User{}, err
	}
	if in.typ == "" {
		if in.typ, err = typeOf(named, UserTypes()); err != nil {
			return User{}, err
		}
	}
	u := User{EventID: in.id, UserEvent: coupon.UserEvent{UserID: o.text("user_id", true, MaxID), At: o.past("at", true)}}
	switch in.typ {
	case TypeUserActivity:
		u.Activity = coupon.ActivityKind(o.text("kind", true, MaxID))
		if u.Activity != "" && !slices.Contains(activities(), u.Activity) {
			o.fail("kind", "must be login, browse, cart or order")
		}
	case TypeUserProfile:
		u.Profile = &coupon.ProfileChange{Addresses: o.addresses(), OptOuts: o.optOuts(u.At)}
		if u.Profile.Locale = strings.ReplaceAll(o.text("locale", false, MaxID), "_", "-"); !knownLocale(u.Profile.Locale) {
			u.Profile.Locale, u.Unknown = "", append(u.Unknown, "locale")
		}
		if u.Profile.Zone = o.text("zone", false, MaxID); !knownZone(u.Profile.Zone) {
			u.Profile.Zone, u.Unknown = "", append(u.Unknown, "zone")
		}
	case TypeUserDeleted:
		u.Deleted = true
	}
	if err := o.err(); err != nil {
		return User{}, err
	}
	return u, nil
}

func activities() []coupon.ActivityKind {
	return []coupon.ActivityKind{coupon.ActivityLogin, coupon.ActivityBrowse, coupon.ActivityCart, coupon.ActivityOrder}
}

func knownLocale(tag string) bool {
	return tag == "" || len(tag) <= maxLocale && localePattern.MatchString(tag)
}

func knownZone(name string) bool {
	if name == "" {
		return true
	}
	if name == "Local" || len(name) > maxZone {
		return false
	}
	_, err := time.LoadLocation(name)
	return err == nil
}

// addresses reads what may be missing, whole or in part. What is there must be such that it can be put into a header or a
// request as it is.
func (o *object) addresses() coupon.Addresses {
	raw, ok := o.get("addresses")
	if !ok {
		return coupon.Addresses{}
	}
	in, err := newObject(o.path+"addresses.", raw)
	if err != nil {
		o.errs = append(o.errs, err)
		return coupon.Addresses{}
	}
	read := func(field string, most int, pattern *regexp.Regexp, must string) string {
		s := in.text(field, false, most)
		if s != "" && !pattern.MatchString(s) {
			in.fail(field, must)
		}
		return s
	}
	a := coupon.Addresses{
		Email: read("email", MaxEmail, emailPattern, "must be an address such as name@example.com, without a display name"),
		Phone: read("phone", MaxPhone, phonePattern, "must be digits, with + before and blanks, dots, dashes or brackets between them"),
		Push:  read("push", MaxPush, pushPattern, "must be visible ASCII"),
	}
	o.errs = append(o.errs, in.errs...)
	return a
}

// optOuts reads decisions; nil if none is told. A no without an instant was said when the profile was told; a yes has one of its
// own, so that a profile that is sent again and again does not undo what was said elsewhere meanwhile.
func (o *object) optOuts(told time.Time) []coupon.OptOut {
	var out []coupon.OptOut
	for _, m := range o.members("optouts", false, maxOptOuts) {
		d := coupon.OptOut{
			Channel: coupon.Channel(m.text("channel", true, MaxID)), Kind: coupon.NoticeKind(m.text("kind", false, MaxID)),
			Out: m.boolean("out", false), At: m.past("at", false), Source: "profile",
		}
		if _, said := m.get("out"); !said {
			m.fail("out", "is required")
		}
		if d.Kind == "" {
			d.Kind = coupon.AllKinds
		}
		if _, told := m.get("at"); !told && !d.Out {
			m.fail("at", "is required of what is wanted again")
		}
		if d.At.IsZero() {
			d.At = told
		}
		if err := d.Validate(); err != nil && len(m.errs) == 0 && !told.IsZero() {
			field, must, _ := strings.Cut(err.Error(), ": ")
			m.fail(field, must)
		}
		o.errs = append(o.errs, m.errs...)
		out = append(out, d)
	}
	return out
}

// past reads an instant to the millisecond, within what the tables hold.
func (o *object) past(field string, required bool) time.Time {
	at, ok := o.instant(field, required)
	if !ok {
		return time.Time{}
	}
	o.within(field, at)
	return at.Truncate(time.Millisecond)
}

// withoutValues takes what was received out of the errors of fields: it may be an address. So may be a name of a field that we
// do not know.
func withoutValues(err error) error {
	field, ok := errors.AsType[*FieldError](err)
	if !ok {
		return err
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range joined.Unwrap() {
			errs = append(errs, withoutValues(e))
		}
		return errors.Join(errs...)
	}
	path := field.Field
	if name := path[strings.LastIndexByte(path, '.')+1:]; field.Reason == occursTwice && !slices.Contains(userFields(), name) {
		path = strings.TrimSuffix(path, name) + "(a name)"
	}
	return &FieldError{Field: path, Reason: field.Reason, Kind: field.Kind}
}

func userFields() []string {
	return []string{
		"specversion", "id", "source", "type", "time", "subject", "datacontenttype", "partitionkey", "traceparent", "data",
		"user_id", "at", "kind", "locale", "zone", "addresses", "email", "phone", "push", "optouts", "channel", "out",
	}
}

// User gives routing key and body of an event of a user, as tests and examples send it.
func (c *Codec) User(id string, u coupon.UserEvent) (key string, body []byte) {
	typ := TypeUserActivity
	switch {
	case u.Deleted:
		typ = TypeUserDeleted
	case u.Profile != nil:
		typ = TypeUserProfile
	}
	w := c.begin(envelope{typ: typ, id: id, subject: "user/" + u.UserID, at: u.At, user: u.UserID})
	w.field("user_id", u.UserID)
	if typ == TypeUserActivity {
		w.field("kind", string(u.Activity))
	}
	if p := u.Profile; p != nil {
		w.optional("locale", p.Locale)
		w.optional("zone", p.Zone)
		w.name("addresses")
		w.raw("{")
		w.optional("email", p.Addresses.Email)
		w.optional("phone", p.Addresses.Phone)
		w.optional("push", p.Addresses.Push)
		w.raw("}")
		if p.OptOuts != nil {
			w.optOuts(p.OptOuts)
		}
	}
	w.instant("at", u.At, milliseconds)
	key, _ = splitVersion(typ)
	return key, w.close()
}

func (w *writer) optOuts(outs []coupon.OptOut) {
	w.name("optouts")
	w.raw("[")
	for i, d := range outs {
		if i > 0 {
			w.raw(",")
		}
		w.raw("{")
		w.field("channel", string(d.Channel))
		w.field("kind", string(d.Kind))
		w.name("out")
		w.b = strconv.AppendBool(w.b, d.Out)
		w.instantOrNull("at", d.At)
		w.raw("}")
	}
	w.raw("]")
}
