package main

import (
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

// scheduledJSON is what will ring next for a coupon: for the end of its lock, else for its own.
type scheduledJSON struct {
	Kind  string   `json:"kind"` // expire, unlock
	At    string   `json:"at"`
	State string   `json:"state"`       // one of the constants below
	IDs   []string `json:"trigger_ids"` // its id, or the two that it may have
}

// Where a trigger is.
const (
	triggerOutbox = "outbox"
	triggerParked = "parked"
	triggerBeyond = "beyond_horizon"
	triggerSent   = "sent"
)

func (t *scheduledJSON) text() string {
	switch t.State {
	case triggerOutbox:
		return "in the outbox, on its way to the broker"
	case triggerParked:
		return "parked: the sweep will do it"
	case triggerBeyond:
		return "beyond the horizon: the planner will publish it in time"
	default:
		return "with the broker, or rung already"
	}
}

// triggerOf gives nil for a coupon that waits for nothing.
func triggerOf(e store.Explanation) *scheduledJSON {
	kind, at := coupon.KindExpire, e.DueAt
	switch {
	case e.Archived || (e.Status != coupon.Unused && e.Status != coupon.Locked):
		return nil
	case e.Status == coupon.Locked:
		kind, at = coupon.KindUnlock, e.LockUntil
	case coupon.IsNever(e.DueAt): // it has no end, or is observed and its end has been decided upon
		return nil
	}
	t := &scheduledJSON{Kind: string(kind), At: instant(at), State: triggerSent}
	for _, w := range e.Outbox {
		if w.Lane == store.LaneTrigger && w.Key == string(kind) && w.DeliverAt.Equal(at) {
			t.State, t.IDs = triggerOutbox, []string{w.MsgID}
			if w.Parked {
				t.State = triggerParked
			}
			return t
		}
	}
	// The verb that left this state sent it with the version of its step, or the planner with that of the row.
	sent := e.Version
	for i := range e.History {
		// A lock whose coupon's end was moved keeps its trigger.
		if h := &e.History[i]; h.To == e.Status && (h.To == coupon.Unused || h.Previous.IsZero()) {
			sent = h.Version
		}
	}
	t.IDs = []string{coupon.TriggerID(coupon.SentByVerb, e.ID, sent)}
	if e.Beyond {
		t.State, t.IDs = triggerBeyond, nil
	}
	if kind == coupon.KindExpire {
		t.IDs = append(t.IDs, coupon.TriggerID(coupon.SentByPlanner, e.ID, e.Version))
	}
	return t
}
