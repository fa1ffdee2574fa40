package event

import (
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Issuance is an incoming coupon.grant event.
type Issuance struct {
	// EventID is the CloudEvent's id, else the message's, else a hash of the
	// body: the same for every delivery of it.
	EventID string
	// Trace is the traceparent, empty if there is none that is valid.
	Trace string
	// Grants are the members that could be read, with EventID and Trace.
	Grants []coupon.Grant
	// Rejected are the members that could not.
	Rejected []Rejected
}

// Rejected is a member of an issuance that cannot be read. Its Raw bytes,
// mended, are an issuance by themselves.
type Rejected struct {
	Index int
	Raw   []byte // the member's JSON
	Err   error  // names every bad field
}

// DecodeIssuance reads a coupon.grant event: a CloudEvent in structured JSON or
// its data alone, of one grant or {"grants":[…]}. Unknown fields are ignored.
// The error is for the whole body; members that are wrong are in Rejected.
func DecodeIssuance(body []byte, contentType, messageID string) (Issuance, error) {
	in, err := decodeIssuance(body, contentType, messageID)
	if err != nil {
		return Issuance{}, fmt.Errorf("decode %s: %w", TypeGrant, err)
	}
	return in, nil
}

func decodeIssuance(body []byte, contentType, messageID string) (Issuance, error) {
	in, o, err := receive(body, contentType, messageID, TypeGrant)
	if err != nil {
		return Issuance{}, err
	}
	out := Issuance{EventID: in.id, Trace: in.trace}
	raw, batch := o.fields["grants"]
	if !batch {
		out.add(0, o)
		return out, nil
	}
	if raw[0] != '[' {
		o.fail("grants", "must be an array")
		return Issuance{}, o.err()
	}
	members, ok := elements(raw, MaxGrants)
	if !ok || len(members) == 0 {
		e := &FieldError{Field: o.path + "grants", Reason: fmt.Sprintf("must have between 1 and %d members", MaxGrants), Kind: ErrMalformed}
		if !ok {
			e.Kind = ErrTooLarge
		}
		return Issuance{}, e
	}
	out.Grants = make([]coupon.Grant, 0, len(members))
	for i, member := range members {
		g, err := newObject(fmt.Sprintf("%sgrants[%d].", o.path, i), member)
		if err != nil {
			out.Rejected = append(out.Rejected, Rejected{Index: i, Raw: member, Err: err})
			continue
		}
		out.add(i, g)
	}
	return out, nil
}

func (in *Issuance) add(index int, o *object) {
	grant := coupon.Grant{
		Issuer:     o.text("issuer", false, MaxID),
		Key:        o.text("grant_key", true, MaxID),
		TemplateID: o.id("template_id", true),
		UserID:     o.text("user_id", true, MaxID),
		BatchID:    o.text("batch_id", false, MaxID),
		EventID:    in.EventID,
		Trace:      in.Trace,
	}
	if at, ok := o.instant("valid_from", false); ok {
		grant.ValidFrom = ceilMillisecond(at)
		o.within("valid_from", at)
	}
	// Absent: the template's rule. Null: never.
	if raw, there := o.fields["expires_at"]; there && raw[0] == 'n' {
		grant.ExpiresAt = coupon.Never
	} else if at, ok := o.instant("expires_at", false); ok {
		grant.ExpiresAt = coupon.CeilSecond(at)
		o.within("expires_at", grant.ExpiresAt)
	}
	if err := o.err(); err != nil {
		in.Rejected = append(in.Rejected, Rejected{Index: index, Raw: o.raw, Err: err})
		return
	}
	in.Grants = append(in.Grants, grant)
}

// within keeps instants to what the table holds and what is not its "never".
func (o *object) within(field string, at time.Time) {
	if at.Year() < 1970 || coupon.IsNever(at) {
		o.fail(field, "must be from 1970 on and before 9999-12-31 (never is null)")
	}
}

func ceilMillisecond(at time.Time) time.Time {
	if f := at.Truncate(time.Millisecond); !f.Equal(at) {
		return f.Add(time.Millisecond)
	}
	return at
}
