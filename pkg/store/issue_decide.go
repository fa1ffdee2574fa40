package store

import (
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	maxIdent = 128 // bytes of keys, issuers, users and batches
	maxTrace = 64  // bytes of a traceparent; a longer one is dropped
	// ruleSlack is what a rule may exceed coupon.MaxLife by: the end of the day, in any zone.
	ruleSlack = 48 * time.Hour
)

// earliest is the first valid_from that is taken: an older one is a mistake (a zero of some other language).
var earliest = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant instant

// stock is a template's revision as it issues now, and what is left of it.
type stock struct {
	coupon.Template
	added int64

	resolved bool
	end      time.Time
	endErr   error
}

// end resolves the rule once for all grants of the transaction: they share one instant of grant.
func (s *stock) ruleEnd(now time.Time) (time.Time, error) {
	if !s.resolved {
		s.end, s.endErr = s.Rule.Resolve(now)
		s.resolved = true
	}
	return s.end, s.endErr
}

func newAsk(g coupon.Grant) ask {
	if len(g.Trace) > maxTrace || !utf8.ValidString(g.Trace) {
		g.Trace = ""
	}
	a := ask{Grant: g, key: grantKey{g.Issuer, g.Key}, fault: grantFault(g)}
	if a.fault == "" {
		a.hash = contentHash(g)
	}
	return a
}

// grantFault names the first field that no template could accept.
func grantFault(g coupon.Grant) string {
	for _, f := range []struct {
		name, value string
		least       int
	}{{"grant_key", g.Key, 1}, {"issuer", g.Issuer, 0}, {"user_id", g.UserID, 1}, {"batch_id", g.BatchID, 0}} {
		if len(f.value) < f.least || len(f.value) > maxIdent {
			return fmt.Sprintf("%s: must have %d to %d bytes, got %d", f.name, f.least, maxIdent, len(f.value))
		}
		if !utf8.ValidString(f.value) {
			return f.name + ": must be UTF-8"
		}
	}
	if g.TemplateID == 0 {
		return "template_id: must be above 0, got 0"
	}
	if !g.ValidFrom.IsZero() && (g.ValidFrom.Before(earliest) || coupon.IsNever(g.ValidFrom)) {
		return "valid_from: must lie between 1970 and 9999, got " + g.ValidFrom.Format(time.RFC3339Nano)
	}
	return ""
}

// decide answers every ask, in order, from what was read. It is pure.
func (is *issue) decide() {
	for i := range is.asks {
		a := &is.asks[i]
		if a.fault != "" {
			is.refuse(i, coupon.CodeInvalid, a.fault)
			continue
		}
		if first, ok := is.known[a.key]; ok {
			is.repeat(i, first)
			continue
		}
		if code, detail := is.grant(i); code != "" {
			is.refuse(i, code, detail)
		}
	}
}

func (is *issue) refuse(i int, code coupon.Code, detail string) {
	is.answers[i] = coupon.Granted{Refused: code, Detail: detail}
	is.refused = append(is.refused, i)
}

func (is *issue) repeat(i int, first *granted) {
	switch {
	case first.hash != is.asks[i].hash:
		is.refuse(i, coupon.CodeKeyConflict, "grant_key: known with other content")
	case first.made > 0:
		is.repeats = append(is.repeats, repeat{i, first.made - 1})
	default:
		is.answers[i] = coupon.Granted{CouponID: first.couponID, ExpiresAt: first.expiresAt, Repeated: true}
	}
}

// grant makes the coupon of asks[i], or says why not.
func (is *issue) grant(i int) (coupon.Code, string) {
	a := &is.asks[i]
	st := is.stock[a.TemplateID]
	if st == nil {
		return coupon.CodeTemplateNotFound, "template_id: unknown: " + strconv.FormatUint(a.TemplateID, 10)
	}
	if st.Stopped {
		return coupon.CodeTemplateStopped, fmt.Sprintf("template_id: %d issues no more", a.TemplateID)
	}
	from, until, code, detail := is.validity(a, st)
	if code != "" {
		return code, detail
	}
	if st.left() == 0 {
		return coupon.CodeQuotaExhausted, fmt.Sprintf("template_id: the quota of %d of template %d is taken", st.Quota, a.TemplateID)
	}
	if st.countsUsers() {
		u := is.users[userKey{a.TemplateID, a.UserID}]
		if st.PerUser > 0 && u.taken+u.added >= st.PerUser {
			return coupon.CodeUserLimit, fmt.Sprintf("user_id: has %d of template %d, at most %d", u.taken+u.added, a.TemplateID, st.PerUser)
		}
		u.added++
	}
	st.added++
	is.made = append(is.made, coupon.Transition{
		Version: 1, To: coupon.Unused, Cause: coupon.CauseGrant,
		UserID: a.UserID, BatchID: a.BatchID, GrantKey: a.Key, Issuer: a.Issuer, Terms: st.Terms,
		ValidFrom: from, ExpiresAt: until, DueAt: coupon.DueAt(until, st.Terms.Precision, a.Issuer, a.Key), At: is.now, Trace: a.Trace,
	})
	is.makers = append(is.makers, i)
	is.known[a.key] = &granted{hash: a.hash, made: len(is.made)}
	return "", ""
}

// countsUsers reports whether a counter is kept for each user: for a limit, and for what comes back to the user. A coupon
// that gives back what was never counted would let a later limit be exceeded.
func (s *stock) countsUsers() bool {
	return s.PerUser > 0 || s.Terms.QuotaBack == coupon.QuotaBackTotalAndUser
}

// left is how many more the quota allows; -1 for any number.
func (s *stock) left() int64 {
	if s.Quota == 0 {
		return -1
	}
	return max(0, s.Quota-s.Taken-s.added)
}

// validity resolves the two instants of a grant.
func (is *issue) validity(a *ask, st *stock) (from, until time.Time, code coupon.Code, detail string) {
	longest := coupon.CeilSecond(is.now.Add(coupon.MaxLife))
	if a.ExpiresAt.IsZero() {
		var err error
		if until, err = st.ruleEnd(is.now); err != nil {
			return from, until, coupon.CodeInvalid, err.Error()
		}
		longest = longest.Add(ruleSlack)
	} else {
		until = coupon.CeilSecond(a.ExpiresAt)
	}
	switch {
	case coupon.IsNever(until):
		until = coupon.Never
	case !until.After(is.now):
		return from, until, coupon.CodeAlreadyEnded, "expires_at: has passed: " + until.Format(time.RFC3339)
	case until.After(longest):
		return from, until, coupon.CodeInvalid, fmt.Sprintf("expires_at: must lie within %d days, got %s",
			int(coupon.MaxLife/(24*time.Hour)), until.Format(time.RFC3339))
	}
	from = is.now
	if !a.ValidFrom.IsZero() {
		from = ceilMillisecond(a.ValidFrom)
	}
	if !from.Before(until) {
		return from, until, coupon.CodeInvalid, fmt.Sprintf("valid_from: must be before the end %s, got %s",
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
