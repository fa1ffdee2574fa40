package policy

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Never switches a channel's quiet hours off.
const Never = "never"

const (
	wholeDay  = 24 * time.Hour
	freeLeast = time.Hour // of a day that quiet hours leave
)

// Hours are a part of every day by the clock on the wall: from inclusive, to exclusive, over midnight if to is the smaller. The zero
// value is none.
type Hours struct{ from, to time.Duration }

// ParseHours reads HH:MM-HH:MM or never. An hour at least must be left of the day.
func ParseHours(text string) (Hours, error) {
	if text == Never {
		return Hours{}, nil
	}
	bad := func(why string) (Hours, error) {
		return Hours{}, fmt.Errorf("must be HH:MM-HH:MM, such as 21:00-08:00, or %s: %s in %q", Never, why, text)
	}
	first, second, ok := strings.Cut(text, "-")
	if !ok {
		return bad("no two times")
	}
	from, errFrom := parseClock(first)
	to, errTo := parseClock(second)
	h := Hours{from: from, to: to}
	switch {
	case errFrom != nil || errTo != nil:
		return bad("no time of day")
	case from == to:
		return bad("no span")
	case h.free() < freeLeast:
		return bad("less than an hour left of the day")
	}
	return h, nil
}

func parseClock(text string) (time.Duration, error) {
	at, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		return 0, errors.New("no time of day")
	}
	return time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute, nil
}

// String gives what ParseHours reads.
func (h Hours) String() string {
	if h.none() {
		return Never
	}
	clock := func(d time.Duration) string { return time.Time{}.Add(d).Format("15:04") }
	return clock(h.from) + "-" + clock(h.to)
}

func (h Hours) none() bool { return h.from == h.to }

func (h Hours) free() time.Duration { return wholeDay - between(h.from, h.to) }

// between is how long it takes from one time of day to the next other.
func between(from, to time.Duration) time.Duration { return (to - from + wholeDay) % wholeDay }

func clockOf(t time.Time) time.Duration {
	hour, minute, second := t.Clock()
	return time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second +
		time.Duration(t.Nanosecond())
}

// Quiet reports whether the instant lies in the hours, in the zone.
func (h Hours) Quiet(t time.Time, zone *time.Location) bool {
	return !h.none() && between(h.from, clockOf(t.In(zone))) < between(h.from, h.to)
}

// changes bounds how many changes of the clocks are looked across: no zone has as many within the days concerned.
const changes = 32

// next is the first instant from t on that is not quiet.
func (h Hours) next(t time.Time, zone *time.Location) time.Time {
	t = t.In(zone)
	for range changes {
		if !h.Quiet(t, zone) {
			break
		}
		ends := t.Add(between(clockOf(t), h.to))
		if _, changed := t.ZoneBounds(); !changed.IsZero() && !changed.After(ends) {
			t = changed // the clock on the wall is another from here on
			continue
		}
		t = ends
	}
	return t.UTC()
}

// before is margin before the quiet hours begin in which t lies; the beginning of the permitted time before them if that is shorter.
func (h Hours) before(t time.Time, margin time.Duration, zone *time.Location) time.Time {
	return h.next(h.begins(t, zone).Add(-margin), zone)
}

// begins is the first instant of the quiet stretch in which t lies.
func (h Hours) begins(t time.Time, zone *time.Location) time.Time {
	t = t.In(zone)
	for range changes {
		begins := t.Add(-between(h.from, clockOf(t)))
		changed, _ := t.ZoneBounds()
		if changed.IsZero() || changed.Before(begins) {
			return begins
		}
		if before := changed.Add(-1); h.Quiet(before, zone) {
			t = before.In(zone)
			continue
		}
		return changed
	}
	return t
}
