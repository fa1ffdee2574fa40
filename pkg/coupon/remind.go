package coupon

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxOffsets is how many offsets an installation may remind at.
const MaxOffsets = 8

// Offset is an instant before a coupon's end at which its user is reminded (requirement R27): so long before it, or at a
// time of day so many days before the day of the end.
type Offset struct {
	Name   string        // as configured, such as -3d, -30m or -1d@10:00; part of event ids, so it never changes its meaning
	Before time.Duration // of a plain one
	Days   int           // of one with a time of day: before the day of the end
	Clock  time.Duration // of one with a time of day: since midnight
	Local  bool          // it has a time of day
}

var offsetPattern = regexp.MustCompile(`^-([1-9][0-9]{0,3})([smhd])(?:@([01][0-9]|2[0-3]):([0-5][0-9]))?$`)

// ParseOffset reads -<number><s|m|h|d>, at most 90 days, or -<number>d@<hh:mm>.
func ParseOffset(text string) (Offset, error) {
	m := offsetPattern.FindStringSubmatch(text)
	if m == nil {
		return Offset{}, fmt.Errorf("must be like -3d, -30m or -1d@10:00, got %q", text)
	}
	n, _ := strconv.Atoi(m[1])
	unit := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[m[2]]
	o := Offset{Name: text, Before: time.Duration(n) * unit}
	if o.Before > 90*24*time.Hour {
		return Offset{}, fmt.Errorf("must be at most -90d, got %q", text)
	}
	if m[3] == "" {
		return o, nil
	}
	if m[2] != "d" {
		return Offset{}, fmt.Errorf("a time of day goes with whole days, as in -1d@10:00, got %q", text)
	}
	hours, _ := strconv.Atoi(m[3])
	minutes, _ := strconv.Atoi(m[4])
	o.Before, o.Days, o.Local = 0, n, true
	o.Clock = time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute
	return o, nil
}

// ParseOffsets reads a list, and refuses one that names an instant twice or is longer than MaxOffsets.
func ParseOffsets(texts []string) ([]Offset, error) {
	if len(texts) > MaxOffsets {
		return nil, fmt.Errorf("must name at most %d, got %d", MaxOffsets, len(texts))
	}
	out := make([]Offset, 0, len(texts))
	for _, text := range texts {
		o, err := ParseOffset(text)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(p Offset) bool { return p.Before == o.Before && p.Days == o.Days && p.Clock == o.Clock }) {
			return nil, fmt.Errorf("names the same instant twice, got %q", text)
		}
		out = append(out, o)
	}
	return out, nil
}

// IsDay tells an offset of a day or more: what ends on one local day is told together.
func (o Offset) IsDay() bool { return o.Local || o.Before >= 24*time.Hour }

// Reach is the longest time from the reminder to the end, whatever the zone.
func (o Offset) Reach() time.Duration {
	if o.Local {
		return time.Duration(o.Days+1)*24*time.Hour - o.Clock + 3*time.Hour // clocks change by two hours at most; and a margin
	}
	return o.Before
}

// NotifyAt is when the user of a coupon that ends then is to be reminded; zone is the user's. A time of day that the
// clocks jump over is the instant of the jump.
func (o Offset) NotifyAt(ends time.Time, zone *time.Location) time.Time {
	if !o.Local {
		return ends.Add(-o.Before).UTC()
	}
	day := LastDay(ends, zone)
	date := time.Date(day.Year(), day.Month(), day.Day()-o.Days, 0, 0, 0, 0, time.UTC)
	return localInstant(date, o.Clock, zone).UTC()
}

// localInstant is that time of day on the date; the instant of the jump where the clocks jump over it, and the first of two.
func localInstant(date time.Time, clock time.Duration, zone *time.Location) time.Time {
	// time.Date takes the offset in force before or after a change; a wall clock that differs from what was asked was jumped over.
	t := time.Date(date.Year(), date.Month(), date.Day(), 0, 0, int(clock/time.Second), 0, zone)
	switch _, offset := t.Zone(); t.Add(time.Duration(offset) * time.Second).UTC().Compare(date.Add(clock)) {
	case 1:
		if jump, _ := t.ZoneBounds(); !jump.IsZero() {
			return jump
		}
	case -1:
		if _, jump := t.ZoneBounds(); !jump.IsZero() {
			return jump
		}
	}
	for _, earlier := range []time.Duration{2 * time.Hour, time.Hour, 30 * time.Minute} {
		if e := t.Add(-earlier); sameWall(e, t) {
			return e
		}
	}
	return t
}

func sameWall(a, b time.Time) bool {
	return a.Day() == b.Day() && a.Hour() == b.Hour() && a.Minute() == b.Minute()
}

// LastDay is the local day on which a coupon that ends then was last good: an end at midnight belongs to the day before. The
// clock of the result is zero and its zone UTC.
func LastDay(ends time.Time, zone *time.Location) time.Time {
	y, m, d := ends.Add(-time.Second).In(zone).Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// Slot names the window that a reminder of the offset belongs to: what ends on one local day, below a day what ends within one
// span of the offset.
func (o Offset) Slot(ends time.Time, zone *time.Location) string {
	if o.IsDay() {
		return o.Name + "/" + LastDay(ends, zone).Format(time.DateOnly)
	}
	return o.Name + "/" + ends.UTC().Truncate(o.Before).Format(time.RFC3339)
}

// Picks are the offsets at which a template's coupons are reminded: empty for all of the fleet's, PickNone for none, else
// names with commas; names that the fleet does not have are passed over.
type Picks string

// PickNone is the template without reminders.
const PickNone Picks = "none"

// Has reports whether the offset is picked.
func (p Picks) Has(name string) bool {
	return p == "" || p != PickNone && slices.Contains(strings.Split(string(p), ","), name)
}

// Validate refuses what is no list of offsets.
func (p Picks) Validate() error {
	if p == "" || p == PickNone {
		return nil
	}
	if len(p) > maxPicks {
		return fmt.Errorf("must have at most %d bytes, got %d", maxPicks, len(p))
	}
	_, err := ParseOffsets(strings.Split(string(p), ","))
	return err
}

const maxPicks = 255 // bytes, as the table holds them

// RemindPage is a page of a plan of reminders.
type RemindPage struct {
	Now      time.Time  // the database's clock of the reading
	Next     Cursor     // behind the last row that was read
	Rows     int        // that were read; fewer than asked for: the slice is at its end
	Expiring []Expiring // to be told of
	Skipped  []Expiring // not told of any more: their instants passed too long ago
}

// Skipped are reminders at an offset that are not told of: their instants had passed too long ago when the planner came to them.
type Skipped struct {
	Offset   string
	N        int
	From, To time.Time // of their instants
}

// Add counts n more, whose instants are from the one to the other.
func (s *Skipped) Add(n int, from, to time.Time) {
	s.N += n
	if s.From.IsZero() || from.Before(s.From) {
		s.From = from
	}
	if to.After(s.To) {
		s.To = to
	}
}

// Reminders is what the fleet reminds at: one list for all verbs and pods, stored where they read it.
type Reminders struct {
	Offsets []Offset
	Zone    *time.Location           // in which verbs and planner reckon times of day; the notifier goes by the user's
	Leads   map[string]time.Duration // by offset name: how far ahead of it its slices are walked
}

// Tolerance is how late after its instant a reminder is still told of: a quarter of the offset.
func (o Offset) Tolerance() time.Duration { return o.Reach() / 4 }

// Ahead is how far before a coupon's due instant its reminder is told of.
func (r Reminders) Ahead(o Offset) time.Duration { return o.Reach() + r.Leads[o.Name] }

// Plan names the planner's plan of an offset.
func (o Offset) Plan() string { return "remind" + o.Name }

// Expiring is a reminder that is due at NotifyAt, as its event says it.
type Expiring struct {
	CouponID   uint64
	UserID     string
	TemplateID uint64
	BatchID    string
	Version    uint32
	ExpiresAt  time.Time
	Offset     string
	NotifyAt   time.Time
	// Late: the instant had passed when the coupon came back from an order that had held it then. Its event's id differs, since the
	// first may have been told or dropped.
	Late     bool
	Value    int64
	Currency string
	Trace    string
}

// ExpiringID is the id of a reminder's event, which is all that makes it happen once.
func ExpiringID(couponID uint64, ends time.Time, offset string) string {
	return fmt.Sprintf("%d:%d:expiring:%s", couponID, ends.Unix(), offset)
}

// LateLeast is how much of its life a coupon must have left to be reminded of late.
const LateLeast = 30 * time.Minute
