package event

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// ContentType is the AMQP content type of every event in and out.
const ContentType = "application/cloudevents+json"

// The types of events. A type ends in its major version.
const (
	TypeGrant    = "coupon.grant.v1"
	TypeIssued   = "coupon.issued.v1"
	TypeRefused  = "coupon.refused.v1"
	TypeLocked   = "coupon.locked.v1"
	TypeReleased = "coupon.released.v1"
	TypeUsed     = "coupon.used.v1"
	TypeRefunded = "coupon.refunded.v1"
	TypeExtended = "coupon.extended.v1"
	TypeVoided   = "coupon.voided.v1"
	TypeExpired  = "coupon.expired.v1"

	TypeReinstated = "coupon.reinstated.v1"

	TypeRedeemRefused = "coupon.redeem_refused.v1"
)

// The routing keys of events: the type without its version. Those of a coupon's
// life come from Transition.
const (
	KeyGrant         = "coupon.grant"
	KeyRefused       = "coupon.refused"
	KeyRedeemRefused = "coupon.redeem_refused"
)

const maxDetail = 512 // bytes of a refusal's detail

var installationPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// CheckInstallation says what is wrong with an installation id, the last part
// of every event's source. It is required: consumers dedupe by source and id,
// so two installations must not share one.
func CheckInstallation(id string) error {
	if !installationPattern.MatchString(id) {
		return fmt.Errorf("must match [a-z0-9][a-z0-9._-]{0,62}, got %q", id)
	}
	return nil
}

// Codec writes the events and triggers of one installation. It is immutable
// and safe for concurrent use.
type Codec struct {
	source string
}

// NewCodec returns the codec of an installation.
func NewCodec(installation string) (*Codec, error) {
	if err := CheckInstallation(installation); err != nil {
		return nil, fmt.Errorf("installation: %w", err)
	}
	return &Codec{source: "/lapse/" + installation}, nil
}

// Source is the source attribute of the installation's events.
func (c *Codec) Source() string { return c.source }

// Transition gives routing key, id and body of the event that tells of a
// transition. It fails for a transition that the contract has no event for:
// nothing may change a coupon unheard.
//
// The key is empty for a step that nobody is told of: those of a heartbeat, but for its last.
func (c *Codec) Transition(t coupon.Transition) (key, id string, body []byte, err error) {
	if _, beat := coupon.HeartbeatOf(t.Terms.TemplateID); beat {
		key, id, body = c.heartbeat(&t)
		return key, id, body, nil
	}
	s, ok := stepOf(&t)
	switch {
	case !ok:
		return "", "", nil, fmt.Errorf("event of version %d: none is defined for %s to %s", t.Version, t.From, t.To)
	case s.ends && coupon.IsNever(t.ExpiresAt):
		return "", "", nil, fmt.Errorf("event of version %d: a coupon without an end cannot expire", t.Version)
	case s.from == nil:
		id, body = c.issued(&t)
	default:
		id, body = c.moved(&t, s)
	}
	return s.key(), id, body, nil
}

func (c *Codec) issued(t *coupon.Transition) (string, []byte) {
	w, id := c.ofCoupon(t, TypeIssued)
	w.field("grant_key", t.GrantKey)
	w.field("issuer", t.Issuer)
	w.number("revision", int64(t.Terms.Revision))
	w.instant("valid_from", t.ValidFrom, milliseconds)
	w.expiresAt(t.ExpiresAt)
	w.instant("granted_at", t.At, milliseconds)
	return id, w.money(t.Terms).close()
}

// ofCoupon starts an event of a coupon with the data that all of them have. Its
// id ends in the second word of its type.
func (c *Codec) ofCoupon(t *coupon.Transition, typ string) (*writer, string) {
	couponID := strconv.FormatUint(t.CouponID, 10)
	name, _ := splitVersion(typ)
	id := couponID + ":" + strconv.FormatUint(uint64(t.Version), 10) + ":" + strings.TrimPrefix(name, "coupon.")
	w := c.begin(envelope{typ: typ, id: id, subject: "coupon/" + couponID, at: t.At, user: t.UserID, trace: t.Trace})
	w.field("coupon_id", couponID)
	w.field("user_id", t.UserID)
	w.field("template_id", strconv.FormatUint(t.Terms.TemplateID, 10))
	w.optional("batch_id", t.BatchID)
	w.number("version", int64(t.Version))
	return w, id
}

// Refused gives routing key, id and body of the answer to a grant that was
// refused at the instant at. The id is that of the incoming event and the
// grant, so that a repeated delivery is answered by the same event, and a
// later attempt by another.
func (c *Codec) Refused(g coupon.Grant, r coupon.Granted, at time.Time) (key, id string, body []byte, err error) {
	if r.Refused == "" {
		return "", "", nil, fmt.Errorf("event of grant key %q: it was not refused", g.Key)
	}
	sum := sha256.Sum256([]byte(g.Issuer + "\x00" + g.Key)) // neither may hold a NUL
	id = hex.EncodeToString(sum[:]) + ":" + g.EventID + ":refused"
	w := c.begin(envelope{typ: TypeRefused, id: id, subject: "grant/" + g.Key, at: at, user: g.UserID, trace: g.Trace})
	w.field("grant_key", g.Key)
	w.field("issuer", g.Issuer)
	w.field("event_id", g.EventID)
	w.field("template_id", strconv.FormatUint(g.TemplateID, 10))
	w.field("user_id", g.UserID)
	w.optional("batch_id", g.BatchID)
	w.field("code", string(r.Refused))
	w.field("detail", cut(r.Detail, maxDetail))
	w.instant("refused_at", at, milliseconds)
	return KeyRefused, id, w.close(), nil
}

// Grants writes a coupon.grant event for up to MaxGrants grants, as the command
// line and tests send it. Of each grant it takes what the contract has.
func (c *Codec) Grants(id string, at time.Time, grants []coupon.Grant) ([]byte, error) {
	if len(grants) < 1 || len(grants) > MaxGrants {
		return nil, fmt.Errorf("grants: must be between 1 and %d, got %d", MaxGrants, len(grants))
	}
	w := c.begin(envelope{typ: TypeGrant, id: id, at: at})
	w.raw(`"grants":[`)
	for i := range grants {
		g := &grants[i]
		if i > 0 {
			w.raw(`,`)
		}
		w.raw(`{`)
		w.field("grant_key", g.Key)
		w.field("template_id", strconv.FormatUint(g.TemplateID, 10))
		w.field("user_id", g.UserID)
		if g.BatchID != "" {
			w.field("batch_id", g.BatchID)
		}
		if g.Issuer != "" {
			w.field("issuer", g.Issuer)
		}
		if !g.ValidFrom.IsZero() {
			w.instant("valid_from", g.ValidFrom, milliseconds)
		}
		if !g.ExpiresAt.IsZero() {
			w.expiresAt(g.ExpiresAt)
		}
		w.raw(`}`)
	}
	w.raw(`]`)
	body := w.close()
	if len(body) > MaxBody {
		return nil, fmt.Errorf("grants: %d of them make %d bytes, at most %d", len(grants), len(body), MaxBody)
	}
	return body, nil
}
