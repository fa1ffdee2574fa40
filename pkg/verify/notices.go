package verify

import (
	"context"
	"errors"
	"fmt"
)

// reach are how many there are to be told.
type reach struct {
	users   int // of whom each has five coupons
	ended   int // coupons of a round beside a bad provider
	backlog int // events that are collected at a stretch
}

func reachOf(scale string) (reach, error) {
	switch scale {
	case ScaleSmall:
		return reach{users: 2000, ended: 1500, backlog: 60_000}, nil
	case ScaleFull:
		return reach{users: 20_000, ended: 6000, backlog: 300_000}, nil
	default:
		return reach{}, fmt.Errorf("scale: must be %s or %s, got %q", ScaleSmall, ScaleFull, scale)
	}
}

// notices is the verification of what reaches the user.
type notices struct {
	checkout
	reach reach
}

// sections in the order in which they run.
func (w *notices) sections() []section {
	return []section{
		{"fleet", "five coupons each of many users, three notifiers, one of them killed: everybody is told once, by every channel", w.fleetOfThree},
		{"digest", "what ends on one local day is one notice: at UTC+14, on the day when clocks change, a thousand of one user", w.digest},
		{"late", "short lives, releases, refunds and moved ends: the reminder comes, once", w.lateOnes},
		{"users", "profiles, opt-outs, receipts that fail, who is about to leave; no address is found where none may be", w.usersKnown},
		{"faults", "a provider that hangs, fails, throttles, talks rubbish or hangs up: nobody else is slower for it", w.badProviders},
		{"collect", "a backlog of events, and a notifier that has the machine to itself", w.collect},
	}
}

// NoticesSections names the sections, in order.
func NoticesSections() []string {
	var names []string
	for _, s := range (&notices{}).sections() {
		names = append(names, s.name)
	}
	return names
}

// Notices verifies reminders and the notifier. Its error and its result are as those of Walk.
func Notices(ctx context.Context, cfg Config, scale string) (Result, error) {
	r, err := reachOf(scale)
	if err := errors.Join(err, cfg.validateOnly(NoticesSections())); err != nil {
		return cfg.result("notices"), err
	}
	w := &notices{checkout: checkout{cfg: cfg}, reach: r}
	return cfg.verify(ctx, "notices", w.sections(), func(i int) { w.index = uint64(i) })
}
