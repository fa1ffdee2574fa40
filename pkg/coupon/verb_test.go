package coupon_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	own, other = "own order", "another order"
	window     = 30 * time.Minute
)

// met is a row and an ask that meet, with the names of what is special about them.
type met struct {
	row   coupon.Row
	ask   coupon.Ask
	names [15]string
}

func (m met) String() string { return fmt.Sprintf("%q", m.names) }

// everyMeeting is the whole table: every state, verb and circumstance, those that cannot come about among them.
func everyMeeting(yield func(met) bool) {
	statuses := []coupon.Status{coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided, 0, 99}
	for _, status := range statuses {
		for _, verb := range append(coupon.Verbs(), "take") {
			for end, expires := range ends {
				for lock, until := range locks {
					if status != coupon.Locked && lock != "live" {
						continue
					}
					for _, holder := range []string{own, other} {
						for facts := range 1 << 10 {
							if !yield(meeting(status, verb, end, expires, lock, until, holder, facts)) {
								return
							}
						}
					}
				}
			}
		}
	}
}

func meeting(status coupon.Status, verb coupon.Verb, end string, expires time.Time, lock string, until time.Time, holder string, facts int) met {
	m := met{names: [15]string{status.String(), string(verb), end, lock, holder}}
	m.row = coupon.Row{
		ID: 7, Status: status, Version: 5, ValidFrom: now.Add(-time.Hour), ExpiresAt: expires, DueAt: expires.Add(spread),
		LatePay: coupon.HonourLock, LateWindow: window,
	}
	if status == coupon.Locked || status == coupon.Used {
		m.row.OrderID = holder
	}
	if status == coupon.Locked {
		m.row.LockUntil = until
	}
	m.ask = coupon.Ask{Verb: verb, OrderID: own, LockFor: 10 * time.Minute, EndsAt: now.Add(2 * time.Hour).Truncate(time.Second)}
	fact := func(bit int, name string, set func()) {
		if facts>>bit&1 == 1 {
			set()
			m.names[5+bit] = name
		}
	}
	fact(0, "not yet valid", func() { m.row.ValidFrom = now.Add(time.Millisecond) })
	fact(1, "strict", func() { m.row.LatePay = coupon.Strict })
	fact(2, "done before", func() { m.ask.Done = true })
	fact(3, "lock is over", func() { m.ask.Over = true })
	fact(4, "order closed", func() { m.ask.Closed = true })
	fact(5, "order refunded", func() { m.ask.Refunded = true })
	fact(6, "tombstone", func() { m.ask.Tombstone = true })
	fact(7, "partial", func() { m.ask.Partial = true })
	fact(8, "break lock", func() { m.ask.BreakLock = true })
	fact(9, "to a passed end", func() { m.ask.EndsAt = now.Truncate(time.Second) })
	return m
}

// steps of requirement R2 that a verb may take; the renewed lock and the moved end stay where they are.
var lawful = map[[2]coupon.Status]coupon.Cause{
	{coupon.Unused, coupon.Locked}:  coupon.CauseOrder,
	{coupon.Unused, coupon.Used}:    coupon.CauseOrder,
	{coupon.Unused, coupon.Voided}:  coupon.CauseAdmin,
	{coupon.Unused, coupon.Unused}:  coupon.CauseAdmin, // its end moved
	{coupon.Locked, coupon.Locked}:  "",                // renewed, or its end moved
	{coupon.Locked, coupon.Used}:    coupon.CauseOrder,
	{coupon.Locked, coupon.Unused}:  "", // released, or run out
	{coupon.Locked, coupon.Expired}: coupon.CauseLock,
	{coupon.Locked, coupon.Voided}:  coupon.CauseAdmin,
	{coupon.Used, coupon.Unused}:    coupon.CauseRefund,
	{coupon.Used, coupon.Expired}:   coupon.CauseRefund,

	{coupon.Expired, coupon.Unused}: coupon.CauseAdmin, // reinstated
	{coupon.Unused, coupon.Expired}: coupon.CauseAdmin, // in passing, before that
}

func TestApplyIsTotalAndLawful(t *testing.T) {
	t.Parallel()
	n := 0
	for m := range everyMeeting {
		n++
		if fault := unlawful(m, coupon.Apply(m.row, m.ask, now)); fault != "" {
			require.Fail(t, fault, "%s", m)
		}
	}
	t.Logf("%d meetings", n)
}

// unlawful says what is wrong with a verdict, whatever the table holds.
func unlawful(m met, v coupon.Verdict) string {
	partial := m.ask.Verb == coupon.VerbRefund && m.ask.Partial
	kinds := 0
	for _, is := range []bool{len(v.Steps) > 0, v.Repeat, v.Refused != "", partial} {
		if is {
			kinds++
		}
	}
	if kinds != 1 {
		return fmt.Sprintf("%d answers: %+v", kinds, v)
	}
	runOut := m.row.Status == coupon.Locked && !m.row.LockUntil.After(now)
	ended := !m.row.ExpiresAt.After(now)
	status, holder := m.row.Status, m.row.OrderID
	if len(v.Steps) > 2 {
		return "more than two steps"
	}
	for i, s := range v.Steps {
		cause, ok := lawful[[2]coupon.Status{s.From, s.To}]
		switch {
		case s.From != status:
			return "steps do not chain"
		case !ok:
			return fmt.Sprintf("%s to %s is no step", s.From, s.To)
		case cause != "" && cause != s.Cause:
			return fmt.Sprintf("%s to %s by %s", s.From, s.To, s.Cause)
		case s.Cause == coupon.CauseAdmin && m.ask.Verb.OfOrder(), s.Cause == coupon.CauseOrder && !m.ask.Verb.OfOrder():
			return "cause " + string(s.Cause)
		case s.From == coupon.Locked && s.Cause == coupon.CauseLock && s.To == coupon.Unused && (!runOut || ended):
			return "a lock settled that has not run out, or past the end"
		case len(v.Steps) == 2 && i == 0 && s.Cause != coupon.CauseLock && s.To != coupon.Expired:
			return "the first of two steps settles the lock, or the end"
		case (s.From == coupon.Expired || s.To == coupon.Expired && s.Cause == coupon.CauseAdmin) && m.ask.Verb != coupon.VerbReinstate:
			return "only an operator gives back what has ended"
		case s.From == coupon.Expired && (!s.ExpiresAt.After(now) || !s.ExpiresAt.After(m.row.ExpiresAt)):
			return "given back without a later end"
		case s.From == coupon.Expired:
			return ""
		case (s.From == coupon.Locked || s.From == coupon.Used) && s.OrderID != holder:
			return "a step belongs to the order that held or used it"
		case m.ask.Verb.OfOrder() && s.OrderID != own && (!runOut || s.Cause != coupon.CauseLock):
			return "moves a coupon of another order"
		case ended && (s.To == coupon.Unused || s.From == coupon.Unused && m.ask.Verb.OfOrder()):
			return "usable past its end"
		case !ended && s.To == coupon.Expired:
			return "expired before its end"
		case s.To == coupon.Locked && m.ask.Verb.OfOrder() && s.LockUntil.After(m.row.ExpiresAt.Add(window)) && !coupon.IsNever(m.row.ExpiresAt):
			return "the lock reaches beyond the window"
		case s.To == coupon.Locked && m.ask.Verb.OfOrder() && !s.LockUntil.After(now):
			return "a dead lock"
		case m.ask.Verb == coupon.VerbRenew && s.LockUntil.Before(m.row.LockUntil):
			return "a renewal takes time away"
		case s.From != coupon.Locked && s.To != coupon.Locked && !s.LockUntil.IsZero():
			return "a lock's end without a lock"
		case m.ask.Verb != coupon.VerbExtend && !s.ExpiresAt.Equal(m.row.ExpiresAt):
			return "the end moved"
		}
		status = s.To
		if s.To == coupon.Unused {
			holder = ""
		}
	}
	return ""
}

// The same with instants anywhere, and each verb once more on what it has made: it is a repeat.
func TestApplyAnywhere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		instant := func(name string) time.Time {
			return now.Truncate(time.Second).Add(time.Duration(rapid.Int64Range(-7200, 7200).Draw(r, name)) * time.Second)
		}
		m := meeting(coupon.Status(rapid.IntRange(1, 5).Draw(r, "status")), rapid.SampledFrom(coupon.Verbs()).Draw(r, "verb"),
			"", instant("end"), "", instant("lock"), rapid.SampledFrom([]string{own, other}).Draw(r, "holder"), rapid.IntRange(0, 1<<9-1).Draw(r, "facts"))
		if last := m.row.ExpiresAt.Add(window); m.row.LockUntil.After(last) {
			m.row.LockUntil = last
		}
		m.ask.LockFor = time.Duration(rapid.Int64Range(int64(time.Second), int64(coupon.MaxLock)).Draw(r, "for"))
		v := coupon.Apply(m.row, m.ask, now)
		require.Empty(r, unlawful(m, v), "%s", m)
		if len(v.Steps) == 0 {
			return
		}
		for _, s := range v.Steps {
			m.row.Status, m.row.ExpiresAt, m.row.Version = s.To, s.ExpiresAt, m.row.Version+1
			m.row.OrderID, m.row.LockUntil = "", time.Time{}
			if s.To == coupon.Locked || s.To == coupon.Used {
				m.row.OrderID = s.OrderID
			}
			if s.To == coupon.Locked {
				m.row.LockUntil = s.LockUntil
			}
		}
		if m.ask.AsksPast(&m.row) {
			for _, s := range v.Steps {
				if s.OrderID == own {
					m.ask.Remember(s.From, s.To, s.Cause)
				}
			}
		}
		again := coupon.Apply(m.row, m.ask, now)
		require.True(r, again.Repeat, "%s then %+v", m, again)
	})
}

func TestRememberTellsWhatTheOrderDid(t *testing.T) {
	t.Parallel()
	type step struct {
		from, to coupon.Status
		cause    coupon.Cause
	}
	lock := step{coupon.Unused, coupon.Locked, coupon.CauseOrder}
	redeem := step{coupon.Locked, coupon.Used, coupon.CauseOrder}
	release := step{coupon.Locked, coupon.Unused, coupon.CauseOrder}
	late := step{coupon.Locked, coupon.Expired, coupon.CauseLock}
	ranOut := step{coupon.Locked, coupon.Unused, coupon.CauseLock}
	refund := step{coupon.Used, coupon.Unused, coupon.CauseRefund}
	broken := step{coupon.Locked, coupon.Voided, coupon.CauseAdmin}
	for _, c := range []struct {
		verb       coupon.Verb
		past       []step
		done, over bool
	}{
		{coupon.VerbRedeem, nil, false, false},
		{coupon.VerbRedeem, []step{lock, release}, false, false},
		{coupon.VerbRedeem, []step{lock, redeem, refund}, true, false},
		{coupon.VerbRedeem, []step{lock, redeem, refund, lock, ranOut}, true, false},
		{coupon.VerbRelease, nil, false, false},
		{coupon.VerbRelease, []step{lock, release}, true, true},
		{coupon.VerbRelease, []step{lock, ranOut}, false, true},
		{coupon.VerbRelease, []step{lock, late}, false, true},
		{coupon.VerbRelease, []step{lock, release, lock, ranOut}, false, true},
		{coupon.VerbRelease, []step{lock, release, lock, redeem}, false, false},
		{coupon.VerbRelease, []step{lock, broken}, false, false},
		{coupon.VerbRefund, []step{lock, redeem}, false, false},
		{coupon.VerbRefund, []step{lock, redeem, refund}, true, false},
		{coupon.VerbRefund, []step{lock, redeem, refund, lock}, true, false},
		{coupon.VerbRefund, []step{lock, release}, false, true},
		{coupon.VerbRefund, []step{lock, redeem, refund, lock, ranOut}, true, true},
		{coupon.VerbLock, []step{lock, release}, false, false},
		{coupon.VerbVoid, []step{lock, broken}, false, false},
	} {
		a := coupon.Ask{Verb: c.verb, OrderID: own}
		for _, s := range c.past {
			a.Remember(s.from, s.to, s.cause)
		}
		require.Equal(t, [2]bool{c.done, c.over}, [2]bool{a.Done, a.Over}, "%+v", c)
	}
}

// To the millisecond: usable until the end, and no longer.
func TestApplyAtTheEnd(t *testing.T) {
	t.Parallel()
	end := now.Truncate(time.Second)
	row := coupon.Row{Status: coupon.Unused, Version: 1, ExpiresAt: end, LatePay: coupon.HonourLock}
	for verb, to := range map[coupon.Verb]coupon.Status{coupon.VerbLock: coupon.Locked, coupon.VerbRedeem: coupon.Used} {
		a := coupon.Ask{Verb: verb, OrderID: own, LockFor: time.Hour}
		v := coupon.Apply(row, a, end.Add(-time.Millisecond))
		require.Len(t, v.Steps, 1)
		require.Equal(t, to, v.Steps[0].To)
		if verb == coupon.VerbLock {
			require.Equal(t, end, v.Steps[0].LockUntil, "without a window it ends with the coupon")
		}
		require.Equal(t, coupon.CodeExpired, coupon.Apply(row, a, end).Refused)
	}
	row.ValidFrom, row.ExpiresAt = now, coupon.Never
	a := coupon.Ask{Verb: coupon.VerbLock, OrderID: own, LockFor: 1500 * time.Millisecond}
	require.Equal(t, coupon.CodeNotYetValid, coupon.Apply(row, a, now.Add(-time.Millisecond)).Refused)
	v := coupon.Apply(row, a, now)
	require.Equal(t, coupon.CeilSecond(now.Add(1500*time.Millisecond)), v.Steps[0].LockUntil)
}

func TestOrderValidate(t *testing.T) {
	t.Parallel()
	good := coupon.Order{Verb: coupon.VerbLock, OrderID: "o", CouponIDs: []uint64{1}, LockFor: time.Minute}
	require.NoError(t, good.Validate())
	for want, spoil := range map[string]func(*coupon.Order){
		"verb: ":                       func(o *coupon.Order) { o.Verb = "take" },
		"order_id: must have 1 to 128": func(o *coupon.Order) { o.OrderID = "" },
		"order_id: ":                   func(o *coupon.Order) { o.OrderID = "\xff" },
		"user_id: ":                    func(o *coupon.Order) { o.UserID = strings.Repeat("u", 129) },
		"coupon_ids: must have 1 to":   func(o *coupon.Order) { o.CouponIDs = nil },
		"coupon_ids: must have 1 to 10 members, got 11": func(o *coupon.Order) {
			o.CouponIDs = []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
		},
		"coupon_ids: must be distinct": func(o *coupon.Order) { o.CouponIDs = []uint64{1, 1} },
		"coupon_ids: must be distinct and above 0": func(o *coupon.Order) {
			o.CouponIDs = []uint64{0}
		},
		"lock_for: ":   func(o *coupon.Order) { o.LockFor = time.Millisecond },
		"lock_for: m":  func(o *coupon.Order) { o.LockFor = coupon.MaxLock + 1 },
		"expires_at: ": func(o *coupon.Order) { o.Verb, o.EndsAt = coupon.VerbExtend, now },
		"actor, reason: must be given": func(o *coupon.Order) {
			o.Verb = coupon.VerbVoid
		},
		"reason: ": func(o *coupon.Order) { o.Reason = strings.Repeat("r", 256) },
	} {
		o := good
		spoil(&o)
		require.ErrorContains(t, o.Validate(), want)
	}
}
