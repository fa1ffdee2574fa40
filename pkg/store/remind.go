package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtRemindRead = define("remind.read", `SELECT value FROM setting WHERE name = 'reminders'`)
	stmtRemindLock = define("remind.lock", `SELECT value FROM setting WHERE name = 'reminders' FOR UPDATE`)
	// Whoever walks one of these plans is told so by the epoch before anything of it is taken away.
	stmtRemindStop      = define("remind.stop", `UPDATE plan_slice SET epoch = epoch + 1, lease_until = '1970-01-02' WHERE plan >= 'remind-' AND plan < 'remind.'`)
	stmtRemindHeld      = define("remind.held", `SELECT from_status, to_status, at FROM coupon_history WHERE coupon_id = ? AND version < ? ORDER BY version`)
	stmtRemindFrontiers = define("remind.frontiers", `SELECT name FROM setting WHERE name >= 'frontier.' AND name < 'frontier/'`)
)

// remindersRow is the value of the setting.
type remindersRow struct {
	Zone    string           `json:"zone"`
	Offsets []remindersOfRow `json:"offsets"`
}

type remindersOfRow struct {
	At   string `json:"at"`
	Lead int64  `json:"lead_ms"`
}

func writeReminders(r coupon.Reminders) (string, error) {
	row := remindersRow{Zone: r.Zone.String()}
	for _, o := range r.Offsets {
		row.Offsets = append(row.Offsets, remindersOfRow{o.Name, r.Leads[o.Name].Milliseconds()})
	}
	value, err := json.Marshal(row)
	if err != nil {
		return "", fmt.Errorf("reminders: %w", err)
	}
	return string(value), nil
}

func readReminders(value string) (*coupon.Reminders, error) {
	var row remindersRow
	if err := json.Unmarshal([]byte(value), &row); err != nil {
		return nil, fmt.Errorf("setting reminders: %w", err)
	}
	zone, err := time.LoadLocation(row.Zone)
	if err != nil {
		return nil, fmt.Errorf("setting reminders: %w", err)
	}
	r := &coupon.Reminders{Zone: zone, Leads: make(map[string]time.Duration, len(row.Offsets))}
	for _, of := range row.Offsets {
		o, err := coupon.ParseOffset(of.At)
		if err != nil {
			return nil, fmt.Errorf("setting reminders: %w", err)
		}
		r.Offsets = append(r.Offsets, o)
		r.Leads[o.Name] = time.Duration(of.Lead) * time.Millisecond
	}
	return r, nil
}

// remindCache keeps the setting as it was last read: to take it apart for every transaction would load the zone each time.
type remindCache struct {
	mu    sync.Mutex
	value string
	known *coupon.Reminders
}

// read takes the setting apart. What cannot be read (a newer release wrote it) is said once and reminds of nothing: no
// grant and no expiry may stand still for a reminder.
func (c *remindCache) read(value string, log *zap.Logger) *coupon.Reminders {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.value == value {
		return c.known
	}
	r, err := readReminders(value)
	if err != nil {
		log.Error("nobody is reminded by this process", zap.Error(err))
	}
	c.value, c.known = value, r
	return r
}

// SetReminders stores when the fleet reminds, for all verbs and the planner. What equals the stored value keeps its age.
// Plans are taken from whoever walks them, and an offset that is no longer there is forgotten: if it comes again, it begins
// anew. No offsets: nobody is reminded.
func (s *Store) SetReminders(ctx context.Context, r coupon.Reminders) error {
	value := ""
	if len(r.Offsets) > 0 {
		var err error
		if value, err = writeReminders(r); err != nil {
			return err
		}
	}
	return s.tx(ctx, "set reminders", func(ctx context.Context, tx *txn) error {
		var stored string
		if err := s.queryRow(ctx, tx, stmtRemindLock, []any{&stored}); err != nil && !errors.Is(err, coupon.ErrNotFound) {
			return err
		}
		if stored == value {
			return nil
		}
		if _, err := s.exec(ctx, tx, stmtRemindStop); err != nil {
			return err
		}
		if err := s.dropFrontiers(ctx, tx, r); err != nil {
			return err
		}
		if value == "" {
			_, err := s.exec(ctx, tx, stmtSettingDrop, settingReminders)
			return err
		}
		_, err := s.exec(ctx, tx, stmtSettingPut, settingReminders, value)
		return err
	})
}

// dropFrontiers forgets how far the plans of offsets came that are not in the list.
func (s *Store) dropFrontiers(ctx context.Context, tx *txn, r coupon.Reminders) error {
	keep := make(map[string]bool, len(r.Offsets))
	for _, o := range r.Offsets {
		keep[frontierOf(o.Plan())] = true
	}
	var gone []string
	err := s.query(ctx, tx, stmtRemindFrontiers, func(r *sql.Rows) error {
		var name string
		err := r.Scan(&name)
		if !keep[name] {
			gone = append(gone, name)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, name := range gone {
		if _, err := s.exec(ctx, tx, stmtSettingDrop, name); err != nil {
			return err
		}
	}
	return nil
}

// Reminders gives when the fleet reminds, as stored.
func (s *Store) Reminders(ctx context.Context) (coupon.Reminders, error) {
	var value string
	switch err := s.queryRow(ctx, s.sql, stmtRemindRead, []any{&value}); {
	case errors.Is(err, coupon.ErrNotFound):
		return coupon.Reminders{}, nil
	case err != nil:
		return coupon.Reminders{}, err
	}
	r, err := readReminders(value)
	if err != nil {
		return coupon.Reminders{}, err
	}
	return *r, nil
}

// remindAhead is what a transaction at one instant needs to know to tell of reminders.
type remindAhead struct {
	*coupon.Reminders
	until []time.Time // by offset: what is due before this instant is the verbs' to tell of
}

// remindAhead is nil if nobody is reminded.
func (p *planSettings) remindAhead(now time.Time) *remindAhead {
	if p.reminders == nil {
		return nil
	}
	r := &remindAhead{Reminders: p.reminders, until: make([]time.Time, len(p.reminders.Offsets))}
	for i, o := range r.Offsets {
		r.until[i] = later(now.Add(r.Ahead(o)), p.frontiers[o.Plan()]).Add(p.guard)
	}
	return r
}

// reminderRows adds what is to be told of a coupon that these steps of one transaction leave unused: the reminders whose
// instants are ahead and that the planner may not come upon any more, and, if an order gives it back, the latest one whose
// instant passed while the order held it.
func (s *Store) reminderRows(ctx context.Context, tx *txn, r *remindAhead, now time.Time, steps []coupon.Transition, rows []outboxRow) ([]outboxRow, error) {
	if r == nil {
		return rows, nil
	}
	t := &steps[len(steps)-1]
	tell := func(offset string, at time.Time, late bool) {
		key, id, body := s.codec.Expiring(coupon.Expiring{
			CouponID: t.CouponID, UserID: t.UserID, TemplateID: t.Terms.TemplateID, BatchID: t.BatchID, Version: t.Version,
			ExpiresAt: t.ExpiresAt, Offset: offset, NotifyAt: at, Late: late, Value: t.Terms.Value, Currency: t.Terms.Currency, Trace: t.Trace,
		})
		rows = append(rows, outboxRow{
			lane: LaneEvent, part: coupon.Partition(t.CouponID), couponID: t.CouponID, msgID: id, key: key, class: ' ', body: body, trace: t.Trace,
		})
		if tx.remind == nil {
			tx.remind = make(map[string]int, len(r.Offsets))
		}
		tx.remind[offset]++
	}
	missed, missedAt := "", time.Time{} // the latest whose instant has passed
	for i, o := range r.Offsets {
		if !t.Terms.Reminders.Has(o.Name) {
			continue
		}
		at := o.NotifyAt(t.ExpiresAt, r.Zone)
		switch {
		case now.Before(at):
			if t.DueAt.Before(r.until[i]) {
				tell(o.Name, at, false)
			}
		case at.After(missedAt):
			missed, missedAt = o.Name, at
		}
	}
	if missed == "" || t.ExpiresAt.Sub(now) < coupon.LateLeast {
		return rows, nil
	}
	while, err := s.heldThen(ctx, tx, steps, missedAt)
	if err != nil {
		return nil, err
	}
	if while {
		tell(missed, missedAt, true)
	}
	return rows, nil
}

// heldThen reports whether the order that these steps take the coupon from held it at the instant; not if the end is moved
// with it. What was redeemed out of a lock is held since the lock began: the row does not know when, so history is asked, but
// only of a refund that this decides about.
func (s *Store) heldThen(ctx context.Context, tx *txn, steps []coupon.Transition, at time.Time) (bool, error) {
	var back *coupon.Transition
	for i := range steps {
		switch t := &steps[i]; {
		case !t.Previous.IsZero():
			return false, nil
		case t.To == coupon.Unused && (t.From == coupon.Locked || t.From == coupon.Used):
			back = t
		}
	}
	if back == nil {
		return false, nil
	}
	if !at.Before(back.Since) || back.From == coupon.Locked {
		return !at.Before(back.Since), nil
	}
	var since time.Time
	err := s.query(ctx, tx, stmtRemindHeld, func(r *sql.Rows) error {
		var from, to coupon.Status
		var then time.Time
		err := r.Scan(&from, &to, &then)
		if from != to && (from != coupon.Locked || to != coupon.Used) {
			since = then
		}
		return err
	}, back.CouponID, back.Version)
	return !since.IsZero() && !at.Before(since), err
}
