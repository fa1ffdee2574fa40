package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

type explainCommand struct {
	ID   string `arg:"" help:"The coupon's id."`
	JSON bool   `name:"json" help:"Print JSON."`
}

// Help says what is shown.
func (c *explainCommand) Help() string {
	return "The row, what a reader sees at this moment, every step with its cause, what waits to be sent, and the notices it is in. " +
		"All of one instant of the database, in UTC. Exit code 1: there is no such coupon."
}

// Run shows a coupon.
func (c *explainCommand) Run(ctx context.Context, s *system) error {
	id, err := parseID("coupon", c.ID)
	if err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		e, err := db.Explain(ctx, id)
		switch {
		case errors.Is(err, coupon.ErrNotFound):
			return s.miss("there is no coupon %d", id)
		case err != nil:
			return err //nolint:wrapcheck // says what it does
		case c.JSON:
			return s.printJSON(explainedOf(e))
		default:
			return s.print(explainText(e))
		}
	})
}

// explainText is an explanation for people.
func explainText(e store.Explanation) string {
	head := table{
		{"coupon", strconv.FormatUint(e.ID, 10)},
		{"now", instant(e.Now)},
		{"state", stateText(e)},
		{"ends", endText(e)},
	}
	add := func(name, text string) {
		if text != "" {
			head = append(head, []string{name, text})
		}
	}
	if !e.DueAt.Equal(e.ExpiresAt) && !coupon.IsNever(e.ExpiresAt) {
		add("due", instant(e.DueAt))
	}
	add("trigger", triggerText(e))
	if e.ValidFrom.After(e.GrantedAt) {
		add("valid from", instant(e.ValidFrom))
	}
	add("user", e.UserID)
	add("template", strings.TrimSuffix(fmt.Sprintf("%d revision %d, %s: %s", e.Template.ID, e.Template.Revision, e.Template.Name, ruleText(e.Template.Rule)), ": "))
	add("value", fmt.Sprintf("%s, %s", money(e.Template.Terms.Value, e.Template.Terms.Currency), e.Template.Terms.Precision))
	add("granted", instant(e.GrantedAt))
	add("grant key", e.GrantKey)
	add("issuer", e.Issuer)
	add("batch", e.BatchID)
	if e.Status == coupon.Locked {
		add("locked", fmt.Sprintf("%s until %s", instant(e.LockedAt), instant(e.LockUntil)))
	}
	add("order", e.OrderID)
	add("used", instant(e.UsedAt))
	if !e.ExpiredAt.IsZero() {
		add("expired", fmt.Sprintf("%s by %s, %s", instant(e.ExpiredAt), e.Cause, lateText(e.ExpiredAt.Sub(e.DueAt))))
	}
	add("version", fmt.Sprint(e.Version))

	history := table{{"VERSION", "TIME", "STEP", "CAUSE", "TRIGGER", "BY", "REASON"}}
	for _, t := range e.History {
		from := "–"
		if t.From != 0 {
			from = t.From.String()
		}
		history = append(history, []string{
			fmt.Sprint(t.Version), instant(t.At), from + " → " + t.To.String(), string(t.Cause),
			dash(t.TriggerID), dash(t.Actor), dash(t.Reason),
		})
	}
	out := head.String() + "\nhistory\n" + indent(history)
	if len(e.History) == 0 {
		out = head.String() + "\nhistory   none\n"
	}
	return out + "\n" + outboxText(e) + "\n" + noticesText(e)
}

func outboxText(e store.Explanation) string {
	if len(e.Outbox) == 0 {
		return "outbox    empty: the broker has everything\n"
	}
	t := table{{"ID", "LANE", "KEY", "MESSAGE", "SINCE", "STATE"}}
	for _, w := range e.Outbox {
		state := "waiting"
		switch {
		case w.Parked:
			state = "parked: " + w.Reason
		case w.Refused > 0:
			state = fmt.Sprintf("waiting, refused %d times", w.Refused)
		}
		t = append(t, []string{fmt.Sprint(w.ID), laneName(w.Lane), w.Key, w.MsgID, instant(w.Since), state})
	}
	return "outbox\n" + indent(t)
}

func noticesText(e store.Explanation) string {
	if len(e.Notices) == 0 {
		return "notices   none\n"
	}
	t := table{{"EVENT", "WINDOW", "CHANNEL", "STATE", "COUNTS", "SINCE"}}
	for _, w := range e.Notices {
		window, event := fmt.Sprintf("%d %s", w.WindowID, w.Kind), w.EventID
		if w.Dropped != "" {
			event += " (not counted: " + w.Dropped + ")"
		}
		if len(w.Notices) == 0 {
			t = append(t, []string{event, window, "–", "gathering, looked at next " + instant(w.DueAt), fmt.Sprint(w.Items), instant(w.OpenedAt)})
		}
		for _, n := range w.Notices {
			state, since := n.State, n.SettledAt
			if n.Reason != "" {
				state += ": " + n.Reason
			}
			if since.IsZero() {
				since = w.ClosedAt
			}
			t = append(t, []string{event, window, string(n.Channel), state, fmt.Sprint(n.Items), instant(since)})
		}
	}
	return "notices\n" + indent(t)
}

func stateText(e store.Explanation) string {
	switch {
	case e.Seen != e.Status:
		return fmt.Sprintf("%s; the row still says %s", e.Seen, e.Status)
	case e.Status == coupon.Unused && e.ValidFrom.After(e.Now):
		return "unused, not valid yet"
	default:
		return e.Status.String()
	}
}

func endText(e store.Explanation) string {
	if coupon.IsNever(e.ExpiresAt) {
		return "never"
	}
	left := e.ExpiresAt.Sub(e.Now)
	if left > 0 {
		return fmt.Sprintf("%s, in %s", instant(e.ExpiresAt), span(left))
	}
	return fmt.Sprintf("%s, %s ago", instant(e.ExpiresAt), span(-left))
}

// triggerText says what will ring for the end.
func triggerText(e store.Explanation) string {
	if (e.Status != coupon.Unused && e.Status != coupon.Locked) || coupon.IsNever(e.ExpiresAt) {
		return ""
	}
	for _, w := range e.Outbox {
		switch {
		case w.Lane != store.LaneTrigger:
		case w.Parked:
			return "parked: the sweep will do it"
		default:
			return "in the outbox, on its way to the broker"
		}
	}
	if e.Beyond {
		return "beyond the horizon: the planner will publish it in time"
	}
	return "with the broker, or rung already"
}

func lateText(d time.Duration) string {
	if d < 0 {
		return fmt.Sprintf("%s before its due instant", -d)
	}
	return fmt.Sprintf("%s after its due instant", d)
}

const day = 24 * time.Hour

// span is a length of time that one can take in: two units.
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return d.Round(time.Millisecond).String()
	case d < day:
		return d.Round(time.Second).String()
	default:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	}
}

func laneName(lane int) string {
	if lane == store.LaneTrigger {
		return "trigger"
	}
	return "event"
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

func indent(t table) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(t.String(), "\n"), "\n", "\n  ") + "\n"
}
