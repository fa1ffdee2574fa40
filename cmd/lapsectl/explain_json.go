package main

import (
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

// explainedJSON is what explain --json prints; docs/lapsectl.md documents it. Ids are strings, instants RFC 3339 in
// UTC, what is not there is null.
type explainedJSON struct {
	CouponID  string        `json:"coupon_id"`
	Now       string        `json:"now"`
	Status    string        `json:"status"` // of the row
	SeenAs    string        `json:"seen_as"`
	Version   uint32        `json:"version"`
	UserID    string        `json:"user_id"`
	BatchID   *string       `json:"batch_id"`
	Issuer    string        `json:"issuer"`
	GrantKey  *string       `json:"grant_key"`
	Template  templateBrief `json:"template"`
	ValidFrom *string       `json:"valid_from"`
	ExpiresAt *string       `json:"expires_at"` // null: never
	DueAt     *string       `json:"due_at"`
	GrantedAt *string       `json:"granted_at"`
	LockedAt  *string       `json:"locked_at"`
	LockUntil *string       `json:"lock_until"`
	OrderID   *string       `json:"order_id"`
	UsedAt    *string       `json:"used_at"`
	ExpiredAt *string       `json:"expired_at"`
	Cause     *string       `json:"expire_cause"`
	// Of the lock while there is one, else of the template.
	LatePay    string         `json:"late_pay_policy"`
	LateWindow string         `json:"late_pay_window"`
	ArchivedAt *string        `json:"archived_at"` // null: not archived
	Observed   bool           `json:"observed"`    // another system owns it
	Beyond     bool           `json:"beyond_horizon"`
	Trigger    *scheduledJSON `json:"trigger"` // null: nothing will ring
	Return     *returnJSON    `json:"quota_return"`
	History    []stepJSON     `json:"history"`
	Tombstones []tombJSON     `json:"tombstones"`
	Outbox     []outboxJSON   `json:"outbox"`
	Notices    []toldJSON     `json:"notices"`
}

type templateBrief struct {
	ID        string      `json:"id"`
	Revision  uint32      `json:"revision"`
	Name      string      `json:"name"`
	Value     int64       `json:"value"` // minor units
	Currency  string      `json:"currency"`
	Rule      coupon.Rule `json:"rule"`
	Precision string      `json:"precision"`
	Stopped   bool        `json:"stopped"`
	Terms     termsJSON   `json:"terms"`
}

// returnJSON is quota on its way back.
type returnJSON struct {
	ToUser bool   `json:"to_user"`
	Since  string `json:"since"`
}

type tombJSON struct {
	OrderID  string `json:"order_id"`
	Closed   bool   `json:"closed"`
	Refunded bool   `json:"refunded"`
	Since    string `json:"since"`
}

type stepJSON struct {
	Version   uint32  `json:"version"`
	At        string  `json:"at"`
	From      *string `json:"from"` // null: the grant
	To        string  `json:"to"`
	Cause     string  `json:"cause"`
	TriggerID *string `json:"trigger_id"`
	Origin    *string `json:"origin"`
	OrderID   *string `json:"order_id"`
	Actor     *string `json:"actor"`
	Reason    *string `json:"reason"`
	ExpiresAt *string `json:"expires_at"`
	LockUntil *string `json:"lock_until"`
	Previous  *string `json:"previous_expires_at"` // null: its end was not moved, or was never
	Moved     bool    `json:"moved"`               // its end was moved
}

type outboxJSON struct {
	ID        string  `json:"id"`
	Lane      string  `json:"lane"` // trigger, event
	Key       string  `json:"key"`
	MessageID string  `json:"message_id"`
	DeliverAt *string `json:"deliver_at"`
	Since     string  `json:"since"`
	Refused   int     `json:"refused"`
	Parked    bool    `json:"parked"`
	Reason    *string `json:"reason"`
}

func explainedOf(e store.Explanation) explainedJSON {
	t := e.Template
	out := explainedJSON{
		CouponID: strconv.FormatUint(e.ID, 10), Now: instant(e.Now), Status: e.Status.String(), SeenAs: e.Seen.String(), Version: e.Version,
		UserID: e.UserID, BatchID: orNull(e.BatchID), Issuer: e.Issuer, GrantKey: orNull(e.GrantKey),
		Template: templateBrief{
			ID: strconv.FormatUint(t.ID, 10), Revision: t.Revision, Name: t.Name, Value: t.Terms.Value, Currency: t.Terms.Currency,
			Rule: t.Rule, Precision: string(t.Terms.Precision), Stopped: t.Stopped, Terms: termsOf(t.Terms),
		},
		ValidFrom: end(e.ValidFrom), ExpiresAt: end(e.ExpiresAt), DueAt: end(e.DueAt), GrantedAt: end(e.GrantedAt),
		LockedAt: end(e.LockedAt), LockUntil: end(e.LockUntil), OrderID: orNull(e.OrderID), UsedAt: end(e.UsedAt),
		ExpiredAt: end(e.ExpiredAt), Cause: orNull(string(e.Cause)), Beyond: e.Beyond, Observed: e.Observed,
		LatePay: string(e.LatePay), LateWindow: e.LateWindow.String(), ArchivedAt: end(e.ArchivedAt), Trigger: triggerOf(e),
		History: []stepJSON{}, Tombstones: []tombJSON{}, Outbox: []outboxJSON{}, Notices: []toldJSON{},
	}
	if e.Return != nil {
		out.Return = &returnJSON{e.Return.ToUser, instant(e.Return.Since)}
	}
	for _, o := range e.Tombstones {
		out.Tombstones = append(out.Tombstones, tombJSON{o.OrderID, o.Closed, o.Refunded, instant(o.Since)})
	}
	for _, h := range e.History {
		step := stepJSON{
			Version: h.Version, At: instant(h.At), To: h.To.String(), Cause: string(h.Cause), TriggerID: orNull(h.TriggerID),
			Origin: orNull(string(h.Origin)), OrderID: orNull(h.OrderID), Actor: orNull(h.Actor), Reason: orNull(h.Reason), ExpiresAt: end(h.ExpiresAt),
			LockUntil: end(h.LockUntil), Previous: end(h.Previous), Moved: !h.Previous.IsZero(),
		}
		if h.From != 0 {
			step.From = orNull(h.From.String())
		}
		out.History = append(out.History, step)
	}
	for _, w := range e.Outbox {
		out.Outbox = append(out.Outbox, outboxJSON{
			ID: strconv.FormatUint(w.ID, 10), Lane: laneName(w.Lane), Key: w.Key, MessageID: w.MsgID, DeliverAt: end(w.DeliverAt),
			Since: instant(w.Since), Refused: w.Refused, Parked: w.Parked, Reason: orNull(w.Reason),
		})
	}
	for i := range e.Notices {
		out.Notices = append(out.Notices, toldOf(&e.Notices[i]))
	}
	return out
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// end is null for what has not happened, and for what never will.
func end(t time.Time) *string {
	if coupon.IsNever(t) {
		return nil
	}
	return orNull(instant(t))
}
