package notice

import (
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Limits are what each channel may do.
type Limits struct {
	Inbox Limit `koanf:"inbox"`
	Popup Limit `koanf:"popup"`
	Email Limit `koanf:"email"`
	SMS   Limit `koanf:"sms"`
	Push  Limit `koanf:"push"`
	Log   Limit `koanf:"log"`
}

// Limit is what one channel may do. Rate and concurrency are those of one process.
type Limit struct {
	Rate        float64       `koanf:"rate"`        // notices a second; 0: no bound. Default email 20, sms and push 50, others 0
	Concurrency int           `koanf:"concurrency"` // sends at a time; default email 4, sms and push 16, others 1
	Deadline    time.Duration `koanf:"deadline"`    // of one send, connecting and answer included; default email 20s, others 10s
	Backoff     time.Duration `koanf:"backoff"`     // after the first try of a notice; doubles with each, give or take a half; default 5s
	BackoffMax  time.Duration `koanf:"backoff_max"` // default 10m
	// Tries is how often a notice is taken up before the next channel of its chain is asked, also if its provider only put it off,
	// was down, or its hour was not a permitted one any more. Without a next channel tries go on until it is of no use. Default 8.
	Tries int `koanf:"tries"`
	// Trip is how many failures in a row take the provider for down: then nothing is sent for OpenFor, then one notice as a trial.
	// Default 5.
	Trip    int           `koanf:"trip"`
	OpenFor time.Duration `koanf:"open_for"` // default 15s
}

// DefaultLimits gives the documented defaults.
func DefaultLimits() Limits {
	near := Limit{
		Concurrency: 1, Deadline: 10 * time.Second, Backoff: 5 * time.Second, BackoffMax: 10 * time.Minute,
		Tries: 8, Trip: 5, OpenFor: 15 * time.Second,
	}
	far := func(rate float64, concurrency int) Limit {
		l := near
		l.Rate, l.Concurrency = rate, concurrency
		return l
	}
	letters := far(20, 4)
	letters.Deadline = 20 * time.Second // a letter that was cut off may have gone, and is sent again
	return Limits{Inbox: near, Popup: near, Log: near, Email: letters, SMS: far(50, 16), Push: far(50, 16)}
}

// Of gives the channel's.
func (l Limits) Of(c coupon.Channel) Limit {
	switch c {
	case coupon.ChannelInbox:
		return l.Inbox
	case coupon.ChannelPopup:
		return l.Popup
	case coupon.ChannelEmail:
		return l.Email
	case coupon.ChannelSMS:
		return l.SMS
	case coupon.ChannelPush:
		return l.Push
	default:
		return l.Log
	}
}

// Validate reports every fault, each beginning with the path of its field.
func (l Limits) Validate() error {
	var errs []error
	for _, c := range coupon.Channels() {
		errs = append(errs, under(string(c), l.Of(c).Validate())...)
	}
	return errors.Join(errs...)
}

const (
	rateMost    = 100_000
	workersMost = 256
)

// Validate reports every fault.
func (l Limit) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	number := func(field string, v, low, high int) {
		if v < low || v > high {
			bad("%s: must be between %d and %d, got %d", field, low, high, v)
		}
	}
	span := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			bad("%s: must be between %s and %s, got %s", field, low, high, v)
		}
	}
	if l.Rate != 0 && !(l.Rate >= 0.01 && l.Rate <= rateMost) { // NaN is neither
		bad("rate: must be 0 or between 0.01 and %d, got %g", rateMost, l.Rate)
	}
	number("concurrency", l.Concurrency, 1, workersMost)
	span("deadline", l.Deadline, 100*time.Millisecond, 5*time.Minute)
	span("backoff", l.Backoff, 10*time.Millisecond, time.Hour)
	span("backoff_max", l.BackoffMax, l.Backoff, 24*time.Hour)
	number("tries", l.Tries, 1, 1000)
	number("trip", l.Trip, 1, 1000)
	span("open_for", l.OpenFor, 10*time.Millisecond, time.Hour)
	return errors.Join(errs...)
}

// under puts a section's name before the field's name that each of its errors begins with.
func under(section string, err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{fmt.Errorf("%s.%w", section, err)}
	}
	var errs []error
	for _, e := range joined.Unwrap() {
		errs = append(errs, under(section, e)...)
	}
	return errs
}
