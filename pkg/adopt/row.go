package adopt

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Record is a row as the source has it.
type Record struct {
	Where  string            // line, or key: for whoever looks for it
	Place  string            // of the source behind this row
	Values map[string]string // by column; what is not there, and what is NULL, is empty
	Fault  string            // what is wrong with the row as such: there are no values
}

// Row gives what the record is here, or the reason why it cannot be anything; it reads no clock.
func (m *Mapping) Row(rec *Record) (coupon.ImportRow, error) {
	if rec.Fault != "" {
		return coupon.ImportRow{}, errors.New(rec.Fault)
	}
	value := func(field string) string {
		column, ok := m.Fields[field]
		if !ok {
			return ""
		}
		return strings.TrimSpace(rec.Values[column])
	}
	row := coupon.ImportRow{Key: value(FieldExternalID), UserID: value(FieldUser), LockFor: m.LockFor}
	if row.UserID != "" {
		row.UserID = m.UserPrefix + row.UserID
	}
	word := value(FieldState)
	status, ok := m.States[word]
	if !ok {
		return row, fmt.Errorf("state: the mapping says nothing of %q", clip(word))
	}
	row.Status = status
	if row.Template, ok = m.Templates[value(FieldTemplate)]; !ok {
		if row.Template, ok = m.Templates[AnyTemplate]; !ok {
			return row, fmt.Errorf("template: the mapping says nothing of %q", clip(value(FieldTemplate)))
		}
	}
	if err := m.times(&row, value); err != nil {
		return row, err
	}
	if status == coupon.Locked || status == coupon.Used {
		if row.OrderID = value(FieldOrder); row.OrderID == "0" {
			row.OrderID = "" // what is no order, where a column cannot be NULL
		}
	}
	if fault := row.Fault(); fault != "" {
		return row, errors.New(fault)
	}
	return row, nil
}

// times reads the instants that matter in the row's state.
func (m *Mapping) times(row *coupon.ImportRow, value func(string) string) error {
	var err error
	if row.ExpiresAt, err = m.end(value(FieldExpiresAt)); err != nil {
		return fmt.Errorf("expires_at: %w", err)
	}
	of := func(status coupon.Status) bool { return row.Status == status }
	for _, f := range []struct {
		field string
		into  *time.Time
		mine  bool
		whole bool
	}{
		{FieldValidFrom, &row.ValidFrom, true, false},
		{FieldGrantedAt, &row.GrantedAt, true, false},
		{FieldLockedAt, &row.LockedAt, of(coupon.Locked), false},
		{FieldLockUntil, &row.LockUntil, of(coupon.Locked), true},
		{FieldUsedAt, &row.UsedAt, of(coupon.Used), false},
		{FieldExpiredAt, &row.ExpiredAt, of(coupon.Expired), false},
	} {
		if !f.mine {
			continue
		}
		at, _, err := m.instant(value(f.field))
		if err != nil {
			return fmt.Errorf("%s: %w", f.field, err)
		}
		if f.whole && !at.IsZero() {
			at = coupon.CeilSecond(at)
		}
		*f.into = at
	}
	return nil
}

// end is the first instant at which the coupon is over.
func (m *Mapping) end(text string) (time.Time, error) {
	at, day, err := m.instant(text)
	switch {
	case err != nil:
		return at, err
	case at.IsZero() && m.EmptyEnd:
		return coupon.Never, nil
	case at.IsZero():
		return at, errors.New("is empty; empty_end: never means that there is none")
	case day: // the last day
		y, month, d := at.In(m.Zone).Date()
		return noLater(time.Date(y, month, d+1, 0, 0, 0, 0, m.Zone)), nil
	}
	hour, minute, second := at.In(m.Zone).Clock()
	last := m.LastSecond == LastSecondAlways || m.LastSecond == LastSecondMidnight && hour == 23 && minute == 59 && second == 59
	if last {
		return noLater(at.Truncate(time.Second).Add(time.Second)), nil
	}
	return noLater(coupon.CeilSecond(at)), nil
}

// noLater is Never for whatever lies behind it.
func noLater(at time.Time) time.Time {
	if at.After(coupon.Never) {
		return coupon.Never
	}
	return at.UTC()
}

// layouts are the forms of times without a zone.
//
//nolint:gochecknoglobals // a constant list
var layouts = [...]string{"2006-01-02 15:04:05.999999", "2006-01-02T15:04:05.999999", "2006/01/02 15:04:05", "2006-01-02 15:04", "2006/1/2 15:04"}

// instant reads a time; zero: there is none. day says that it is a date alone, whose beginning is given.
func (m *Mapping) instant(text string) (at time.Time, day bool, err error) {
	switch {
	case text == "", strings.EqualFold(text, "null"), strings.HasPrefix(text, "0000-00-00"):
		return at, false, nil
	case len(text) == 10 || len(text) == 13:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			if len(text) == 13 {
				return time.UnixMilli(n).UTC(), false, nil
			}
			return time.Unix(n, 0).UTC(), false, nil
		}
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999Z07:00"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), false, nil
		}
	}
	for _, layout := range layouts {
		if at, err := time.ParseInLocation(layout, text, m.Zone); err == nil {
			return at.UTC(), false, nil
		}
	}
	for _, layout := range []string{time.DateOnly, "2006/01/02"} {
		if at, err := time.ParseInLocation(layout, text, m.Zone); err == nil {
			return at.UTC(), true, nil
		}
	}
	return at, false, fmt.Errorf("must be a time such as 2026-10-31 23:59:59, got %q", clip(text))
}

func clip(text string) string {
	if r := []rune(text); len(r) > 40 {
		return string(r[:40]) + "…"
	}
	return text
}
