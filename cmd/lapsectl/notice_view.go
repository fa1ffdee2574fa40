package main

import (
	"fmt"
	"strconv"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// noticeJSON is a notice as list and show print it; docs/lapsectl.md documents it.
type noticeJSON struct {
	NoticeID  string  `json:"notice_id"`
	WindowID  string  `json:"window_id"`
	Channel   string  `json:"channel"`
	UserID    string  `json:"user_id"`
	Kind      string  `json:"kind"`
	Slot      *string `json:"slot"`
	Items     int     `json:"items"`
	State     string  `json:"state"`
	Reason    *string `json:"reason"`
	Next      *string `json:"next_channels"`
	Attempts  int     `json:"attempts"`
	TryAt     *string `json:"try_at"`    // null: settled
	NotAfter  *string `json:"not_after"` // null: no such instant
	CreatedAt string  `json:"created_at"`
	SettledAt *string `json:"settled_at"`
	Ref       *string `json:"ref"`
}

func noticeOf(n *coupon.NoticeRow) noticeJSON {
	return noticeJSON{
		NoticeID: n.ID(), WindowID: strconv.FormatUint(n.WindowID, 10), Channel: string(n.Channel), UserID: n.UserID, Kind: string(n.Kind), Slot: orNull(n.Slot),
		Items: n.Items, State: string(n.State), Reason: orNull(n.Reason), Next: orNull(n.Next), Attempts: n.Attempts, TryAt: end(n.TryAt),
		NotAfter: end(n.NotAfter), CreatedAt: instant(n.CreatedAt), SettledAt: end(n.SettledAt), Ref: orNull(n.Ref),
	}
}

func (n *noticeJSON) stateText() string {
	return noticeStateText(coupon.NoticeState(n.State), orEmpty(n.Reason), orEmpty(n.Next), n.TryAt)
}

func (n *noticeJSON) since() string {
	if n.SettledAt != nil {
		return *n.SettledAt
	}
	return n.CreatedAt
}

// noticeWindowJSON is what show --json prints.
type noticeWindowJSON struct {
	WindowID string             `json:"window_id"`
	Now      string             `json:"now"`
	UserID   string             `json:"user_id"`
	Kind     string             `json:"kind"`
	Offset   *string            `json:"offset"`
	Slot     *string            `json:"slot"`
	Late     bool               `json:"late"`
	Items    int                `json:"items"`
	OpenedAt string             `json:"opened_at"`
	LastAt   string             `json:"last_item_at"`
	DueAt    *string            `json:"due_at"` // null: closed
	NotifyAt *string            `json:"notify_at"`
	EndsAt   *string            `json:"ends_at"`
	ClosedAt *string            `json:"closed_at"`
	ClosedBy *string            `json:"closed_by"`
	Members  []noticeMemberJSON `json:"members"` // 1000 at most
	Notices  []noticeJSON       `json:"notices"`
}

type noticeMemberJSON struct {
	EventID  string  `json:"event_id"`
	CouponID string  `json:"coupon_id"`
	Version  uint32  `json:"version"`
	EndsAt   *string `json:"expires_at"`
	Value    int64   `json:"value"` // minor units
	Currency string  `json:"currency"`
	Dropped  *string `json:"dropped"` // null: it is told
	AddedAt  string  `json:"added_at"`
}

func noticeWindowOf(w *coupon.NoticeWindow) noticeWindowJSON {
	out := noticeWindowJSON{
		WindowID: strconv.FormatUint(w.ID, 10), Now: instant(w.Now), UserID: w.UserID, Kind: string(w.Kind), Offset: orNull(w.Offset), Slot: orNull(w.Slot),
		Late: w.Late, Items: w.Items, OpenedAt: instant(w.OpenedAt), LastAt: instant(w.LastAt), DueAt: end(w.DueAt), NotifyAt: end(w.NotifyAt),
		EndsAt: end(w.EndsAt), ClosedAt: end(w.ClosedAt), ClosedBy: orNull(w.ClosedBy), Members: []noticeMemberJSON{}, Notices: []noticeJSON{},
	}
	for _, m := range w.Members {
		out.Members = append(out.Members, noticeMemberJSON{
			EventID: m.EventID, CouponID: strconv.FormatUint(m.CouponID, 10), Version: m.Version, EndsAt: end(m.EndsAt), Value: m.Value, Currency: m.Currency,
			Dropped: orNull(m.Dropped), AddedAt: instant(m.AddedAt),
		})
	}
	for i := range w.Notices {
		out.Notices = append(out.Notices, noticeOf(&w.Notices[i]))
	}
	return out
}

func noticeWindowText(w *coupon.NoticeWindow) string {
	head := table{
		{"window", windowText(w.ID, w.Kind, w.Slot, w.Late)},
		{"now", instant(w.Now)},
		{"user", w.UserID},
		{"opened", fmt.Sprintf("%s, last event %s", instant(w.OpenedAt), instant(w.LastAt))},
	}
	add := func(name, text string) {
		if text != "" {
			head = append(head, []string{name, text})
		}
	}
	if w.ClosedAt.IsZero() {
		add("open", "looked at next "+endName(w.DueAt))
	} else {
		add("closed", fmt.Sprintf("%s by %s", instant(w.ClosedAt), w.ClosedBy))
	}
	add("notify", instant(w.NotifyAt))
	if !w.EndsAt.IsZero() {
		add("first end", endName(w.EndsAt))
	}
	members := table{{"EVENT", "COUPON", "ENDS", "VALUE", "TOLD", "ADDED"}}
	for _, m := range w.Members {
		told := "yes"
		switch {
		case m.Dropped != "":
			told = "no: " + m.Dropped
		case w.ClosedAt.IsZero():
			told = "not yet"
		}
		members = append(members, []string{
			m.EventID, strconv.FormatUint(m.CouponID, 10), endName(m.EndsAt), money(m.Value, m.Currency), told, instant(m.AddedAt),
		})
	}
	text := head.String() + fmt.Sprintf("\nevents    %d\n", w.Items) + indent(members)
	if w.Items > len(w.Members) {
		text += fmt.Sprintf("  … and %d more\n", w.Items-len(w.Members))
	}
	if len(w.Notices) == 0 {
		return text + "\nnotices   none\n"
	}
	notices := table{{"NOTICE", "COUPONS", "STATE", "ATTEMPTS", "NOT AFTER", "CREATED", "SETTLED", "PROVIDER'S ID"}}
	for i := range w.Notices {
		n := noticeOf(&w.Notices[i])
		notices = append(notices, []string{
			n.NoticeID, strconv.Itoa(n.Items), n.stateText(), strconv.Itoa(n.Attempts), dash(orEmpty(n.NotAfter)), n.CreatedAt, dash(orEmpty(n.SettledAt)), dash(orEmpty(n.Ref)),
		})
	}
	return text + "\nnotices\n" + indent(notices)
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
