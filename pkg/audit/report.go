package audit

import (
	"fmt"
	"slices"
	"time"
)

// Lateness of a set of transitions or events, in milliseconds after the asked end on the database's clock.
type Lateness struct {
	P50 int64 `json:"p50"`
	P95 int64 `json:"p95"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

// Report is what the audit found. The JSON names are stable; docs/demo.md says what each means.
type Report struct {
	Coupons              int      `json:"coupons"`               // asked for and to end in the run
	Expired              int      `json:"expired"`               // of those, rows that are expired
	Early                int      `json:"early"`                 // of all, unusable or heard of as expired before the asked end
	NotExpired           int      `json:"not_expired"`           // of those that were to end, missing or in any other state
	Transitions          int      `json:"transitions"`           // history rows to expired
	DuplicateTransitions int      `json:"duplicate_transitions"` // coupons with more than one of them
	Events               int      `json:"events"`                // coupon.expired events, each id once
	DuplicateEventIDs    int      `json:"duplicate_event_ids"`   // ids heard more than once
	MissingEvents        int      `json:"missing_events"`        // expired coupons that no event told of
	Notices              int      `json:"notices"`
	CouponsInNotices     int      `json:"coupons_in_notices"` // different coupons that a notice names
	UsersWithNotice      int      `json:"users_with_notice"`
	TransitionLateness   Lateness `json:"transition_lateness_ms"`
	EventLateness        Lateness `json:"event_lateness_ms"` // until the audit's own consumer heard of it
	ThroughputPerS       float64  `json:"throughput_per_s"`  // transitions by the seconds from the first to the last
	SweepRecovered       int      `json:"sweep_recovered"`   // transitions whose cause is the sweep
	Waiting              int      `json:"waiting"`           // asked to outlive the run, and still unused

	Users       int           `json:"-"` // different users of Coupons
	Example     string        `json:"-"` // the text of a notice, in both languages
	ExampleID   uint64        `json:"-"` // a coupon of it
	NextWaiting time.Duration `json:"-"` // until the next of Waiting ends
	Details     Details       `json:"-"`
}

// Details are findings without a field of their own: each one is a failure.
type Details struct {
	Refused       map[string]int // codes of refused grants
	Ungranted     int            // asked for and to end, but no such coupon
	Unasked       int            // coupons that nobody asked for
	WrongEnds     int            // rows or events with another end than asked
	WrongUsers    int            // rows, events or notices with another user than asked
	Inconsistent  int            // coupons whose history does not lead to their row
	DoubledEvents int            // coupons that events with different ids call expired
	StrayEvents   int            // expired events of coupons that are not expired, or not there
	Strange       []string       // events that break the contract (the first few)
	StrangeEvents int
	InTwoNotices  int // coupons that two notices name
	WrongNotices  int // notices whose count is wrong, that lack a language, or that name a coupon which is not expired
	Unsent        int // notices that a channel has still to send
	WaitingAsked  int // asked to be waiting still when the audit read the rows
	Faults        []error
}

// Rules say what a run is allowed.
type Rules struct {
	Repeats    bool          // events may be heard twice under one id (something was killed)
	Sweep      bool          // the sweep may have recovered coupons (something was killed, or the ladder is off)
	Refusals   bool          // grants may have been refused (bad ones were sent)
	Unasked    bool          // coupons may have been granted that the audit was not told of
	Faults     bool          // the audit's own connections may have failed (the broker was killed)
	MaxLate    time.Duration // no transition may be later; 0: any
	NoNotices  bool          // there is no notifier
	OnePerUser bool          // every user has exactly one notice
}

// Failures says everything that is amiss, in words; none means that the run passed.
func (r *Report) Failures(rules Rules) []string {
	var out []string
	zero := func(n int, what string) {
		if n != 0 {
			out = append(out, fmt.Sprintf("%d %s", n, what))
		}
	}
	d := &r.Details
	if len(d.Refused) > 0 && !rules.Refusals {
		out = append(out, "grants refused: "+counted(d.Refused))
	}
	zero(d.Ungranted, "coupons asked for but not there")
	if !rules.Unasked {
		zero(d.Unasked, "coupons that nobody asked for")
	}
	zero(r.Early, "coupons early: unusable, or heard of as expired, before the end asked for")
	zero(r.NotExpired, "coupons lost: not expired although their end has passed")
	zero(r.DuplicateTransitions, "coupons expired more than once")
	if want := r.Expired; r.Transitions != want && r.DuplicateTransitions == 0 {
		out = append(out, fmt.Sprintf("%d transitions to expired in the history of %d expired coupons", r.Transitions, want))
	}
	zero(d.Inconsistent, "coupons whose history does not lead to their row")
	zero(d.WrongEnds, "rows or events with another end than asked for")
	zero(d.WrongUsers, "rows, events or notices with another user than asked for")
	zero(r.MissingEvents, "expired coupons that no event told of")
	zero(d.DoubledEvents, "coupons called expired by events with different ids")
	zero(d.StrayEvents, "expired events of coupons that are not expired")
	if !rules.Repeats {
		zero(r.DuplicateEventIDs, "event ids heard more than once")
	}
	if d.StrangeEvents > 0 {
		out = append(out, fmt.Sprintf("%d events that break the contract, e.g. %s", d.StrangeEvents, d.Strange[0]))
	}
	if !rules.Sweep {
		zero(r.SweepRecovered, "coupons that only the sweep found")
	}
	if r.Waiting != d.WaitingAsked {
		out = append(out, fmt.Sprintf("%d coupons waiting, %d should be", r.Waiting, d.WaitingAsked))
	}
	if rules.MaxLate > 0 && r.TransitionLateness.Max > rules.MaxLate.Milliseconds() {
		out = append(out, fmt.Sprintf("a coupon expired %d ms after its end, at most %d are allowed", r.TransitionLateness.Max, rules.MaxLate.Milliseconds()))
	}
	out = append(out, r.noticeFailures(rules)...)
	if !rules.Faults {
		for _, err := range d.Faults {
			out = append(out, "the audit itself was disturbed: "+err.Error())
		}
	}
	return out
}

func (r *Report) noticeFailures(rules Rules) []string {
	if rules.NoNotices {
		return nil
	}
	var out []string
	for _, f := range []struct {
		n    int
		what string
	}{
		{r.Details.InTwoNotices, "coupons named by two notices"},
		{r.Details.WrongNotices, "notices that miscount, lack a language or name a coupon that is not expired"},
		{r.Details.Unsent, "notices still to be sent by a channel"},
	} {
		if f.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", f.n, f.what))
		}
	}
	if r.CouponsInNotices != r.Expired {
		out = append(out, fmt.Sprintf("%d coupons named by notices, %d are expired", r.CouponsInNotices, r.Expired))
	}
	if r.UsersWithNotice != r.Users {
		out = append(out, fmt.Sprintf("%d users have a notice, %d should", r.UsersWithNotice, r.Users))
	}
	if rules.OnePerUser && r.Notices != r.Users {
		out = append(out, fmt.Sprintf("%d notices to %d users, each should have one", r.Notices, r.Users))
	}
	return out
}

func lateness(late []time.Duration) Lateness {
	if len(late) == 0 {
		return Lateness{}
	}
	slices.Sort(late)
	at := func(percent int) int64 { return late[rank(len(late), percent)].Milliseconds() }
	return Lateness{P50: at(50), P95: at(95), P99: at(99), Max: at(100)}
}

// rank is the index of a percentile among n sorted values, by the nearest-rank rule.
func rank(n, percent int) int { return max(0, (n*percent+99)/100-1) }
