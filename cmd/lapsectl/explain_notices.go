package main

import (
	"fmt"
	"strconv"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

// toldJSON is an event of the coupon in a digest of notices.
type toldJSON struct {
	EventID  string          `json:"event_id"`
	Dropped  *string         `json:"dropped"` // why the notice does not count it
	WindowID string          `json:"window_id"`
	Kind     string          `json:"kind"`
	Offset   *string         `json:"offset"` // of reminders
	Slot     *string         `json:"slot"`
	Late     bool            `json:"late"`
	Items    int             `json:"items"`
	OpenedAt string          `json:"opened_at"`
	DueAt    *string         `json:"due_at"` // null: closed
	ClosedAt *string         `json:"closed_at"`
	ClosedBy *string         `json:"closed_by"`
	Channels []toldByChannel `json:"channels"`
}

type toldByChannel struct {
	NoticeID  string  `json:"notice_id"`
	Channel   string  `json:"channel"`
	Items     int     `json:"items"`
	State     string  `json:"state"`
	Reason    *string `json:"reason"`
	Next      *string `json:"next_channels"` // if it fails for good
	Attempts  int     `json:"attempts"`
	TryAt     *string `json:"try_at"` // null: settled
	SettledAt *string `json:"settled_at"`
	Ref       *string `json:"ref"`
}

func toldOf(w *store.Told) toldJSON {
	out := toldJSON{
		EventID: w.EventID, Dropped: orNull(w.Dropped), WindowID: strconv.FormatUint(w.WindowID, 10), Kind: string(w.Kind), Offset: orNull(w.Offset),
		Slot: orNull(w.Slot), Late: w.Late, Items: w.Items, OpenedAt: instant(w.OpenedAt), DueAt: end(w.DueAt), ClosedAt: end(w.ClosedAt),
		ClosedBy: orNull(w.ClosedBy), Channels: []toldByChannel{},
	}
	for _, n := range w.Notices {
		out.Channels = append(out.Channels, toldByChannel{
			NoticeID: coupon.NoticeID(w.WindowID, n.Channel), Channel: string(n.Channel), Items: n.Items, State: string(n.State), Reason: orNull(n.Reason),
			Next: orNull(n.Next), Attempts: n.Attempts, TryAt: end(n.TryAt), SettledAt: end(n.SettledAt), Ref: orNull(n.Ref),
		})
	}
	return out
}

// noticesText says which digests the coupon's events are in, whether each is told of it, and by which channels.
func noticesText(e store.Explanation) string {
	if len(e.Notices) == 0 {
		return "notices   none\n"
	}
	t := table{{"EVENT", "TOLD", "WINDOW", "CHANNEL", "STATE", "COUNTS", "SINCE"}}
	for i := range e.Notices {
		w := &e.Notices[i]
		window, told := windowText(w.WindowID, w.Kind, w.Slot, w.Late), "yes"
		switch {
		case w.Dropped != "":
			told = "no: " + w.Dropped
		case w.ClosedAt.IsZero():
			told = "not yet"
		}
		if len(w.Notices) == 0 {
			state, since := "gathering, looked at next "+instant(w.DueAt), w.OpenedAt
			if !w.ClosedAt.IsZero() {
				state, since = "closed, nothing recorded", w.ClosedAt
			}
			t = append(t, []string{w.EventID, told, window, "–", state, fmt.Sprint(w.Items), instant(since)})
		}
		for _, n := range w.Notices {
			since := n.SettledAt
			if since.IsZero() {
				since = w.ClosedAt
			}
			t = append(t, []string{
				w.EventID, told, window, string(n.Channel), noticeStateText(n.State, n.Reason, n.Next, end(n.TryAt)), fmt.Sprint(n.Items), instant(since),
			})
		}
	}
	return "notices\n" + indent(t)
}

// windowText names a window: 123 expiring -1d/2026-11-02.
func windowText(id uint64, kind coupon.NoticeKind, slot string, late bool) string {
	text := strconv.FormatUint(id, 10) + " " + string(kind)
	if slot != "" {
		text += " " + slot
	}
	if late {
		text += " late"
	}
	return text
}

// noticeStateText says how a notice stands, and what comes next of one that is not settled.
func noticeStateText(state coupon.NoticeState, reason, next string, tryAt *string) string {
	text := string(state)
	if reason != "" {
		text += ": " + reason
	}
	if state != coupon.NoticePending && state != coupon.NoticeSending {
		return text
	}
	if tryAt != nil {
		text += ", from " + *tryAt
	}
	if next != "" {
		text += ", else " + next
	}
	return text
}
