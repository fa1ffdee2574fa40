package coupon

import (
	"fmt"
	"time"
	"unicode/utf8"
)

const (
	// ruleSlack is what a rule may exceed MaxLife by: the end of the day, in any zone.
	ruleSlack = 48 * time.Hour
	// earliestUnix is the first valid_from that is taken: an older one is a mistake (a zero of some other language).
	earliestUnix = 0
)

// Fault names the first field of a grant that no template could accept; empty if there is none.
func (g Grant) Fault() string {
	for _, f := range []struct {
		name, value string
		least       int
	}{{"grant_key", g.Key, 1}, {"issuer", g.Issuer, 0}, {"user_id", g.UserID, 1}, {"batch_id", g.BatchID, 0}} {
		if len(f.value) < f.least || len(f.value) > MaxText {
			return fmt.Sprintf("%s: must have %d to %d bytes, got %d", f.name, f.least, MaxText, len(f.value))
		}
		if !utf8.ValidString(f.value) {
			return f.name + ": must be UTF-8"
		}
	}
	if g.TemplateID == 0 {
		return "template_id: must be above 0, got 0"
	}
	if !g.ValidFrom.IsZero() && (g.ValidFrom.Unix() < earliestUnix || IsNever(g.ValidFrom)) {
		return "valid_from: must lie between 1970 and 9999, got " + g.ValidFrom.Format(time.RFC3339Nano)
	}
	return ""
}

// Validity gives the two instants of a coupon that is granted at the instant now, or says why it cannot be. rule gives the end
// by the template's rule; it is asked if the grant names none.
func (g Grant) Validity(now time.Time, rule func(granted time.Time) (time.Time, error)) (from, until time.Time, code Code, detail string) {
	longest := CeilSecond(now.Add(MaxLife))
	if g.ExpiresAt.IsZero() {
		var err error
		if until, err = rule(now); err != nil {
			return from, until, CodeInvalid, err.Error()
		}
		longest = longest.Add(ruleSlack)
	} else {
		until = CeilSecond(g.ExpiresAt)
	}
	switch {
	case IsNever(until):
		until = Never
	case !until.After(now):
		return from, until, CodeAlreadyEnded, "expires_at: has passed: " + until.Format(time.RFC3339)
	case until.After(longest):
		return from, until, CodeInvalid, fmt.Sprintf("expires_at: must lie within %d days, got %s",
			int(MaxLife/(24*time.Hour)), until.Format(time.RFC3339))
	}
	from = now
	if !g.ValidFrom.IsZero() {
		from = ceilMillisecond(g.ValidFrom)
	}
	if !from.Before(until) {
		return from, until, CodeInvalid, fmt.Sprintf("valid_from: must be before the end %s, got %s",
			until.Format(time.RFC3339), from.Format(time.RFC3339Nano))
	}
	return from, until, "", ""
}

// ceilMillisecond rounds up to what the table holds: a coupon is never valid before what was asked for.
func ceilMillisecond(t time.Time) time.Time {
	if f := t.Truncate(time.Millisecond); !f.Equal(t) {
		t = f.Add(time.Millisecond)
	}
	return t.UTC()
}

// CountsUsers reports whether a counter is kept of what each user has of the template: for a limit, and for what comes back to
// the user. A coupon that gives back what was never counted would let a later limit be exceeded.
func (t *Template) CountsUsers() bool {
	return t.PerUser > 0 || t.Terms.QuotaBack == QuotaBackTotalAndUser
}

// Issued is the transition that grants a coupon of the template; its id is not known yet. The instants are those of Validity.
func (t *Template) Issued(g *Grant, from, until, now time.Time) Transition {
	return Transition{
		Version: 1, To: Unused, Cause: CauseGrant,
		UserID: g.UserID, BatchID: g.BatchID, GrantKey: g.Key, Issuer: g.Issuer, Terms: t.Terms,
		ValidFrom: from, ExpiresAt: until, DueAt: DueAt(until, t.Terms.Precision, g.Issuer, g.Key), At: now, Trace: g.Trace,
	}
}

// The refusals of a grant by what the template says, as people read them.

// NoTemplate is the detail of CodeTemplateNotFound.
func (g Grant) NoTemplate() string { return fmt.Sprintf("template_id: unknown: %d", g.TemplateID) }

// Refuses says why the template issues no coupon now to a user who has so many of it, although the grant is sound; empty if it
// does.
func (t *Template) Refuses(taken, userTaken int64) (Code, string) {
	switch {
	case t.Quota > 0 && taken >= t.Quota:
		return CodeQuotaExhausted, fmt.Sprintf("template_id: the quota of %d of template %d is taken", t.Quota, t.ID)
	case t.PerUser > 0 && userTaken >= t.PerUser:
		return CodeUserLimit, fmt.Sprintf("user_id: has %d of template %d, at most %d", userTaken, t.ID, t.PerUser)
	default:
		return "", ""
	}
}

// Idle is the detail of CodeTemplateStopped.
func (t *Template) Idle() string { return fmt.Sprintf("template_id: %d issues no more", t.ID) }
