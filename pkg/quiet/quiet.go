// Package quiet reads quiet hours: the part of the day, in a place's own time, in which work that can wait may be done.
//
// "02:00-05:30 Asia/Shanghai" is every day from two o'clock until half past five; "22:00-04:00 UTC" goes over midnight;
// "always" and "never" are what they say. Invariants: Parse accepts what String gives, and a window that is open ends
// after the instant asked about. On the day when clocks change, the window is as long as the clock on the wall says.
package quiet

import (
	"fmt"
	"strings"
	"time"
)

// Window is a part of every day. The zero value is never.
type Window struct {
	always   bool
	from, to time.Duration // since midnight; equal: never
	zone     *time.Location
}

// The windows without hours.
const (
	Always = "always"
	Never  = "never"
)

// Parse reads "HH:MM-HH:MM ZONE", always or never. The zone is a name of the IANA database; it must be given.
func Parse(text string) (Window, error) {
	switch text {
	case Always:
		return Window{always: true}, nil
	case Never:
		return Window{}, nil
	}
	bad := func(why string) (Window, error) {
		return Window{}, fmt.Errorf("must be HH:MM-HH:MM ZONE, such as 02:00-05:00 Asia/Shanghai, or %s, or %s; %s in %q", Always, Never, why, text)
	}
	hours, zone, ok := strings.Cut(text, " ")
	if !ok || zone == "" || zone == "Local" {
		return bad("no zone")
	}
	from, to, ok := strings.Cut(hours, "-")
	if !ok {
		return bad("no two times")
	}
	w := Window{}
	for _, x := range []struct {
		text string
		into *time.Duration
	}{{from, &w.from}, {to, &w.to}} {
		at, err := time.Parse("15:04", x.text)
		if err != nil || len(x.text) != len("15:04") {
			return bad("no time")
		}
		*x.into = time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute
	}
	if w.from == w.to {
		return bad("an empty window")
	}
	var err error
	if w.zone, err = time.LoadLocation(zone); err != nil {
		return bad("an unknown zone")
	}
	return w, nil
}

// String gives what Parse reads.
func (w Window) String() string {
	switch {
	case w.always:
		return Always
	case w.zone == nil:
		return Never
	default:
		clock := func(d time.Duration) string { return time.Time{}.Add(d).Format("15:04") }
		return clock(w.from) + "-" + clock(w.to) + " " + w.zone.String()
	}
}

// Open reports whether now lies in the window, and when the window ends that it lies in. A window that is always open is
// taken day by day, in UTC.
func (w Window) Open(now time.Time) (ends time.Time, open bool) {
	switch {
	case w.always:
		return now.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour), true
	case w.zone == nil:
		return time.Time{}, false
	}
	local := now.In(w.zone)
	for _, day := range []int{-1, 0} { // one that began yesterday may still be open
		begins, ends := w.at(local, day, w.from), w.at(local, day, w.to)
		if w.to < w.from {
			ends = w.at(local, day+1, w.to)
		}
		if !now.Before(begins) && now.Before(ends) {
			return ends, true
		}
	}
	return time.Time{}, false
}

func (w Window) at(local time.Time, days int, since time.Duration) time.Time {
	y, m, d := local.Date()
	return time.Date(y, m, d+days, int(since.Hours()), int(since.Minutes())%60, 0, 0, w.zone)
}
