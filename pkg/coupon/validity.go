package coupon

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// RuleKind names how a template's end is found.
type RuleKind string

// The kinds of rule.
const (
	RuleNever     RuleKind = "never"      // no end
	RuleFixed     RuleKind = "fixed"      // an instant
	RuleAfter     RuleKind = "after"      // a duration after the grant
	RuleEndOfDay  RuleKind = "end_of_day" // the end of a date in a zone
	RuleDaysAfter RuleKind = "days_after" // the end of the Nth local date after the grant
)

// MaxLife is the longest a coupon may live, from the grant: ten years and the days of its leap years.
const MaxLife = 3653 * 24 * time.Hour

// Rule is a template's validity rule. It is resolved once, at issuance (requirement R9), and kept for display.
type Rule struct {
	Kind  RuleKind `json:"kind"`
	At    string   `json:"at,omitempty"`    // fixed: RFC 3339 with a zone
	After string   `json:"after,omitempty"` // after: a Go duration such as "168h" or "45s"
	Date  string   `json:"date,omitempty"`  // end_of_day: 2006-01-02
	Days  int      `json:"days,omitempty"`  // days_after: 0 is the day of the grant
	Zone  string   `json:"zone,omitempty"`  // end_of_day, days_after: a tz database name
}

// ErrRule wraps every complaint about a rule.
var ErrRule = errors.New("validity rule")

// String renders the rule as JSON, as it is stored and shown.
func (r Rule) String() string {
	b, err := json.Marshal(r)
	if err != nil {
		return string(r.Kind)
	}
	return string(b)
}

// Validate reports every fault of the rule, naming field and value.
func (r Rule) Validate() error {
	_, err := r.Resolve(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	return err
}

// Resolve gives the instant at which a coupon granted at the instant granted ends: whole seconds, UTC, or Never.
func (r Rule) Resolve(granted time.Time) (time.Time, error) {
	switch r.Kind {
	case RuleNever:
		return Never, nil
	case RuleFixed:
		at, err := time.Parse(time.RFC3339Nano, r.At)
		if err != nil {
			return time.Time{}, fmt.Errorf("%w: at: want RFC 3339 with a zone, got %q", ErrRule, r.At)
		}
		return CeilSecond(at), nil
	case RuleAfter:
		d, err := time.ParseDuration(r.After)
		if err != nil || d <= 0 || d > MaxLife {
			return time.Time{}, fmt.Errorf("%w: after: want a duration above 0 and at most %s, got %q", ErrRule, MaxLife, r.After)
		}
		return CeilSecond(granted.Add(d)), nil
	case RuleEndOfDay:
		day, err := time.Parse(time.DateOnly, r.Date)
		if err != nil {
			return time.Time{}, fmt.Errorf("%w: date: want YYYY-MM-DD, got %q", ErrRule, r.Date)
		}
		loc, err := r.location()
		if err != nil {
			return time.Time{}, err
		}
		return EndOfDay(day.Year(), day.Month(), day.Day(), loc), nil
	case RuleDaysAfter:
		if r.Days < 0 || r.Days > int(MaxLife/(24*time.Hour)) {
			return time.Time{}, fmt.Errorf("%w: days: want 0 to %d, got %d", ErrRule, int(MaxLife/(24*time.Hour)), r.Days)
		}
		loc, err := r.location()
		if err != nil {
			return time.Time{}, err
		}
		y, m, d := granted.In(loc).Date()
		day := time.Date(y, m, d+r.Days, 0, 0, 0, 0, time.UTC)
		return EndOfDay(day.Year(), day.Month(), day.Day(), loc), nil
	default:
		return time.Time{}, fmt.Errorf("%w: kind: want never, fixed, after, end_of_day or days_after, got %q", ErrRule, r.Kind)
	}
}

func (r Rule) location() (*time.Location, error) {
	if r.Zone == "" || r.Zone == "Local" {
		return nil, fmt.Errorf("%w: zone: want a tz database name such as Asia/Shanghai, got %q", ErrRule, r.Zone)
	}
	loc, err := time.LoadLocation(r.Zone)
	if err != nil {
		return nil, fmt.Errorf("%w: zone: not in the tz database: %q", ErrRule, r.Zone)
	}
	return loc, nil
}

// EndOfDay is the first instant from which the local date in loc is later than the given date for good. A repeated
// midnight gives the later one, a midnight in a gap the first instant after it, a skipped day the start of the
// next day that exists.
//
// Within a stretch of constant offset the local date is at most D exactly before midnight(D+1) − offset, so the
// answer is the latest such bound over the stretches around it.
func EndOfDay(year int, month time.Month, day int, loc *time.Location) time.Time {
	midnight := time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC)
	var end time.Time
	// Offsets lie within ±26 h of UTC, in history too.
	for at, last := midnight.Add(-26*time.Hour), midnight.Add(26*time.Hour); ; {
		_, offset := at.In(loc).Zone()
		_, until := at.In(loc).ZoneBounds()
		bound := midnight.Add(-time.Duration(offset) * time.Second)
		if !until.IsZero() && until.Before(bound) {
			bound = until
		}
		if bound.After(at) {
			end = bound
		}
		if until.IsZero() || until.After(last) {
			return CeilSecond(end.UTC())
		}
		at = until
	}
}
