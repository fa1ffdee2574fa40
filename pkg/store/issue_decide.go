package store

import (
	"time"
	"unicode/utf8"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const maxTrace = 64 // bytes of a traceparent; a longer one is dropped

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
	a := ask{Grant: g, key: grantKey{g.Issuer, g.Key}, fault: g.Fault()}
	if a.fault == "" {
		a.hash = contentHash(g)
	}
	return a
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
		return coupon.CodeTemplateNotFound, a.NoTemplate()
	}
	if st.Stopped {
		return coupon.CodeTemplateStopped, st.Idle()
	}
	from, until, code, detail := a.Validity(is.now, st.ruleEnd)
	if code != "" {
		return code, detail
	}
	var has int64
	var u *userQuota
	if st.CountsUsers() {
		u = is.users[userKey{a.TemplateID, a.UserID}] // nil if there was nothing left to count for
	}
	if u != nil {
		has = u.taken + u.added
	}
	if code, detail := st.Refuses(st.Taken+st.added, has); code != "" {
		return code, detail
	}
	if u != nil {
		u.added++
	}
	st.added++
	is.made = append(is.made, st.Issued(&a.Grant, from, until, is.now))
	is.makers = append(is.makers, i)
	is.known[a.key] = &granted{hash: a.hash, made: len(is.made)}
	return "", ""
}

// left is how many more the quota allows; -1 for any number.
func (s *stock) left() int64 {
	if s.Quota == 0 {
		return -1
	}
	return max(0, s.Quota-s.Taken-s.added)
}
