package text

import (
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// moment is a coupon's end as the words' templates may use it.
type moment struct {
	Days     int // from the reader's day to the last one on which the coupon is good: 0 today, 1 tomorrow, -1 yesterday
	Minutes  int // left, if it is to be said in minutes; else 0
	Year     int // of that last day
	Month    int
	Day      int
	Weekday  int // 1 Monday to 7 Sunday
	ThisYear bool
	Hour     int
	Minute   int
	Midnight bool // it ends with that day
}

// minutesBelow is how near an end is told in minutes.
const minutesBelow = 2 * time.Hour

// momentOf is the end as a reader sees it at now. minutes allows saying it in minutes.
func momentOf(now, ends time.Time, zone *time.Location, minutes bool) moment {
	// The clock shows to a reader whole minutes; an end within one is not written later than it is.
	last, local := coupon.LastDay(ends, zone), ends.In(zone)
	m := moment{
		Days: int(last.Sub(dateOf(now.In(zone))) / (24 * time.Hour)),
		Year: last.Year(), Month: int(last.Month()), Day: last.Day(), Weekday: (int(last.Weekday())+6)%7 + 1,
		ThisYear: last.Year() == now.In(zone).Year(), Hour: local.Hour(), Minute: local.Minute(), Midnight: !last.Equal(dateOf(local)),
	}
	if left := ends.Sub(now); minutes && left > 0 && left < minutesBelow {
		m.Minutes = max(1, int(left.Round(time.Minute)/time.Minute))
	}
	return m
}

// dateOf is the day that the clock shows, as a midnight of UTC.
func dateOf(t time.Time) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// clockText is 18:00, and 24:00 for an end that is a day's.
func (m moment) clockText() string {
	if m.Midnight {
		return "24:00"
	}
	return time.Date(0, 1, 1, m.Hour, m.Minute, 0, 0, time.UTC).Format("15:04")
}

func (m moment) date() string {
	return time.Date(m.Year, time.Month(m.Month), m.Day, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
}
