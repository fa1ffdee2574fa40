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
	return "The row, archived or not, what a reader sees at this moment, the terms it was granted under, every step with the trigger that caused " +
		"it, what will ring next, what waits to be sent or folded, and the notices it is in. All of one instant of the database, in UTC. Exit code 1: there is no such coupon."
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
	if t := triggerOf(e); t != nil {
		add("trigger", t.text())
		add("rings", fmt.Sprintf("%s at %s, %s", t.Kind, t.At, strings.Join(t.IDs, " or ")))
	}
	if e.ValidFrom.After(e.GrantedAt) {
		add("valid from", instant(e.ValidFrom))
	}
	add("user", e.UserID)
	add("template", templateText(e.Template))
	add("value", fmt.Sprintf("%s, %s", money(e.Terms.Value, e.Terms.Currency), e.Terms.Precision))
	add("offer", offerText(e.Terms))
	add("late pay", lateTermsText(e.Terms.LatePay, e.Terms.LateWindow))
	add("quota", quotaText(e.Terms.QuotaBack))
	add("granted", instant(e.GrantedAt))
	add("grant key", e.GrantKey)
	add("issuer", e.Issuer)
	add("batch", e.BatchID)
	if e.Status == coupon.Locked {
		add("locked", fmt.Sprintf("%s until %s, %s, %s", instant(e.LockedAt), instant(e.LockUntil), away(e.LockUntil.Sub(e.Now)),
			lateTermsText(e.LatePay, e.LateWindow)))
	}
	add("order", e.OrderID)
	add("used", instant(e.UsedAt))
	if !e.ExpiredAt.IsZero() {
		add("expired", fmt.Sprintf("%s by %s, %s", instant(e.ExpiredAt), e.Cause, expiredText(e)))
	}
	add("archived", instant(e.ArchivedAt))
	if e.Observed {
		add("observed", "another system owns it: nothing moves it here, and what is decided of its end is only noted")
	}
	if e.Return != nil {
		add("returns", returnText(*e.Return))
	}
	add("version", fmt.Sprint(e.Version))
	return head.String() + "\n" + historyText(e) + "\n" + ordersText(e) + outboxText(e) + "\n" + noticesText(e)
}

// historyText is every step, with what else it moved.
func historyText(e store.Explanation) string {
	if len(e.History) == 0 {
		return "history   none\n"
	}
	t := table{{"VERSION", "TIME", "STEP", "CAUSE", "TRIGGER", "ORDER", "WITH", "BY", "REASON"}}
	for i := range e.History {
		h := &e.History[i]
		from := "–"
		if h.From != 0 {
			from = h.From.String()
		}
		trigger := dash(h.TriggerID)
		if h.Origin != "" && h.Origin != coupon.OriginLadder {
			trigger = strings.TrimPrefix(trigger+" ", "– ") + "(" + string(h.Origin) + ")"
		}
		t = append(t, []string{
			fmt.Sprint(h.Version), instant(h.At), from + " → " + h.To.String(), string(h.Cause),
			trigger, dash(h.OrderID), dash(withText(h)), dash(h.Actor), dash(h.Reason),
		})
	}
	return "history\n" + indent(t)
}

// withText says what a step did to the lock and the end.
func withText(h *coupon.Transition) string {
	var parts []string
	switch {
	case h.LockUntil.IsZero():
	case h.To == coupon.Locked:
		parts = append(parts, "lock until "+instant(h.LockUntil))
	case h.At.Before(h.LockUntil):
		parts = append(parts, "lock given up, was until "+instant(h.LockUntil))
	default:
		parts = append(parts, "lock ended "+instant(h.LockUntil))
	}
	if !h.Previous.IsZero() {
		parts = append(parts, "end moved from "+endName(h.Previous)+" to "+endName(h.ExpiresAt))
	}
	return strings.Join(parts, ", ")
}

// ordersText names the orders that are over; empty when there are none.
func ordersText(e store.Explanation) string {
	if len(e.Tombstones) == 0 {
		return ""
	}
	t := table{{"ORDER", "STATE", "SINCE"}}
	for _, o := range e.Tombstones {
		var states []string
		if o.Closed {
			states = append(states, "closed")
		}
		if o.Refunded {
			states = append(states, "refunded")
		}
		t = append(t, []string{o.OrderID, strings.Join(states, ", "), instant(o.Since)})
	}
	return "orders that are over\n" + indent(t) + "\n"
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
	return instant(e.ExpiresAt) + ", " + away(e.ExpiresAt.Sub(e.Now))
}

func templateText(t coupon.Template) string {
	text := fmt.Sprintf("%d revision %d", t.ID, t.Revision)
	if t.Name != "" {
		text += ", " + t.Name + ": " + ruleText(t.Rule)
	}
	if t.Stopped {
		text += ", issues no more"
	}
	return text
}

func lateTermsText(policy coupon.LatePay, window time.Duration) string {
	if policy == coupon.Strict {
		return "strict: from its end on no payment counts"
	}
	return fmt.Sprintf("%s: a lock may reach %s past the end", policy, window)
}

func quotaText(back coupon.QuotaBack) string {
	switch back {
	case coupon.QuotaBackTotal:
		return "comes back to the total if it expires or is voided"
	case coupon.QuotaBackTotalAndUser:
		return "comes back to the total and the user if it expires or is voided"
	case coupon.QuotaBackNone:
		return "does not come back"
	default:
		return string(back)
	}
}

func returnText(r store.QuotaReturn) string {
	to := "its template's quota"
	if r.ToUser {
		to += " and its user's"
	}
	return fmt.Sprintf("to %s since %s, not counted yet", to, instant(r.Since))
}

// expiredText says how late the expiry was against what it was owed by.
func expiredText(e store.Explanation) string {
	for i := range e.History {
		if h := &e.History[i]; h.To == coupon.Expired && h.At.Equal(e.ExpiredAt) {
			if h.From == coupon.Unused {
				return lateText(h.Lateness())
			}
			return fmt.Sprintf("%s after it was owed", h.Lateness())
		}
	}
	return lateText(e.ExpiredAt.Sub(e.DueAt))
}

func lateText(d time.Duration) string {
	if d < 0 {
		return fmt.Sprintf("%s before its due instant", -d)
	}
	return fmt.Sprintf("%s after its due instant", d)
}

func endName(at time.Time) string {
	if coupon.IsNever(at) {
		return "never"
	}
	return instant(at)
}

// away is how far from now an instant lies.
func away(d time.Duration) string {
	if d > 0 {
		return "in " + span(d)
	}
	return span(-d) + " ago"
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
