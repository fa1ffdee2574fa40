package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// What explains a coupon is read only, in one snapshot, so that its parts fit together. No row is locked.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtExplainTemplate = define("explain.template", `SELECT t.name, t.rule, s.stopped FROM coupon_template t
		JOIN template_stock s ON s.template_id = t.id WHERE t.id = ? AND t.revision = ?`)
	stmtExplainArchived = define("explain.archived", `SELECT archived_at FROM coupon_archive WHERE id = ?`)
	stmtExplainTombs    = define("explain.tombstones", `SELECT order_id, closed, refunded, created_at FROM order_tombstone
		WHERE coupon_id = ? ORDER BY created_at, order_id LIMIT ?`)
	stmtExplainReturn = define("explain.quota_return", `SELECT to_user, created_at FROM quota_return WHERE coupon_id = ?`)
	// The rows of one partition are few while the relay runs; coupon_id has no index there.
	stmtExplainOutbox = define("explain.outbox", `SELECT id, lane, msg_id, routing_key, deliver_at, refused, created_at FROM outbox
		WHERE lane IN (0,1) AND part = ? AND coupon_id = ? ORDER BY lane, id LIMIT ?`)
	stmtExplainParked = define("explain.parked", `SELECT id, lane, msg_id, routing_key, deliver_at, reason, parked_at FROM outbox_parked
		WHERE coupon_id = ? ORDER BY id LIMIT ?`)
)

const explainRows = 1000 // of each kind, at most

// Explanation is everything that the database knows of a coupon, at one instant.
type Explanation struct {
	coupon.Coupon
	Now        time.Time     // the database's clock
	Seen       coupon.Status // as a reader must see it at Now: its end and its lock's count, whatever the row says yet
	Issuer     string
	GrantKey   string
	Template   coupon.Template // of the coupon's revision: name, rule, terms; and whether it issues now
	ArchivedAt time.Time       // zero: it is not archived
	Beyond     bool            // its end is beyond the horizon: the planner will publish its trigger
	History    []coupon.Transition
	Tombstones []Tombstone
	Return     *QuotaReturn // what it gave back of its quota and the counters do not hold yet
	Outbox     []Waiting
	Notices    []Told
}

// Tombstone says that an order that once asked for the coupon is over.
type Tombstone struct {
	OrderID  string
	Closed   bool
	Refunded bool
	Since    time.Time
}

// QuotaReturn is a piece of quota on its way back.
type QuotaReturn struct {
	ToUser bool // to the user's count, too
	Since  time.Time
}

// Waiting is a message that the broker does not have yet.
type Waiting struct {
	ID        uint64
	Lane      int
	MsgID     string
	Key       string
	DeliverAt time.Time // zero of an event
	Refused   int       // times
	Parked    bool      // set aside: nobody will send it
	Reason    string    // of parking
	Since     time.Time
}

// Explain reads a coupon, archived or not, and all that belongs to it; coupon.ErrNotFound when there is no such coupon.
// Of each kind of thing it reads a thousand at most.
func (s *Store) Explain(ctx context.Context, id uint64) (Explanation, error) {
	var e Explanation
	err := s.snapshot(ctx, func(ctx context.Context, q querier) error {
		e.ID = id
		for _, read := range []func(context.Context, querier, *Explanation) error{
			s.explainCoupon, s.explainTemplate, s.explainHistory, s.explainOrders, s.explainOutbox, s.explainNotices,
		} {
			if err := read(ctx, q, &e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Explanation{}, fmt.Errorf("explain: %w", err)
	}
	return e, nil
}

func (s *Store) explainCoupon(ctx context.Context, q querier, e *Explanation) error {
	cs, now, err := s.couponsIn(ctx, q, []uint64{e.ID})
	switch {
	case err != nil:
		return err
	case len(cs) == 0:
		return coupon.ErrNotFound
	}
	e.Coupon, e.Now, e.Seen = cs[0], now, cs[0].Seen(now)
	if e.Archived {
		return s.queryRow(ctx, q, stmtExplainArchived, []any{&e.ArchivedAt}, e.ID)
	}
	if e.Status == coupon.Unused && !coupon.IsNever(e.ExpiresAt) {
		r, err := s.reachAt(ctx, q, e.Now)
		if err != nil {
			return err
		}
		e.Beyond = !r.holds(e.DueAt)
	}
	return nil
}

func (s *Store) explainTemplate(ctx context.Context, q querier, e *Explanation) error {
	t := &e.Template
	t.ID, t.Revision, t.Terms = e.Terms.TemplateID, e.Terms.Revision, e.Terms
	var rule string
	err := s.queryRow(ctx, q, stmtExplainTemplate, []any{&t.Name, &rule, &t.Stopped}, t.ID, t.Revision)
	if errors.Is(err, coupon.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(rule), &t.Rule); err != nil {
		return fmt.Errorf("rule of template %d: %w", t.ID, err)
	}
	return nil
}

func (s *Store) explainHistory(ctx context.Context, q querier, e *Explanation) error {
	var err error
	if e.History, err = s.steps(ctx, q, &e.Coupon); err != nil {
		return err
	}
	e.Issuer, e.GrantKey, err = s.keyOf(ctx, q, e.ID)
	return err
}

// explainOrders reads what verbs left behind for others.
func (s *Store) explainOrders(ctx context.Context, q querier, e *Explanation) error {
	err := s.query(ctx, q, stmtExplainTombs, func(r *sql.Rows) error {
		var t Tombstone
		var order []byte
		if err := r.Scan(&order, &t.Closed, &t.Refunded, &t.Since); err != nil {
			return err
		}
		t.OrderID = string(order)
		e.Tombstones = append(e.Tombstones, t)
		return nil
	}, e.ID, explainRows)
	if err != nil {
		return err
	}
	var back QuotaReturn
	err = s.queryRow(ctx, q, stmtExplainReturn, []any{&back.ToUser, &back.Since}, e.ID)
	switch {
	case err == nil:
		e.Return = &back
	case !errors.Is(err, coupon.ErrNotFound):
		return err
	}
	return nil
}

func (s *Store) explainOutbox(ctx context.Context, q querier, e *Explanation) error {
	err := s.query(ctx, q, stmtExplainOutbox, func(r *sql.Rows) error {
		var w Waiting
		var msgID []byte
		var at sql.NullTime
		if err := r.Scan(&w.ID, &w.Lane, &msgID, &w.Key, &at, &w.Refused, &w.Since); err != nil {
			return err
		}
		w.MsgID, w.DeliverAt = string(msgID), at.Time
		e.Outbox = append(e.Outbox, w)
		return nil
	}, coupon.Partition(e.ID), e.ID, explainRows)
	if err != nil {
		return err
	}
	return s.query(ctx, q, stmtExplainParked, func(r *sql.Rows) error {
		w := Waiting{Parked: true}
		var msgID []byte
		var at sql.NullTime
		if err := r.Scan(&w.ID, &w.Lane, &msgID, &w.Key, &at, &w.Reason, &w.Since); err != nil {
			return err
		}
		w.MsgID, w.DeliverAt = string(msgID), at.Time
		e.Outbox = append(e.Outbox, w)
		return nil
	}, e.ID, explainRows)
}

func (s *Store) explainNotices(ctx context.Context, q querier, e *Explanation) error {
	var err error
	e.Notices, err = s.toldOf(ctx, q, e.ID)
	return err
}
