package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// What explains a coupon is read only, in one snapshot, so that its parts fit together. No row is locked.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtExplainCoupon = define("explain.coupon", `SELECT UTC_TIMESTAMP(3), c.template_id, c.revision, c.batch_id, c.user_id, c.status, c.version,
		c.valid_from, c.expires_at, c.due_at, c.granted_at, c.locked_at, c.lock_until, c.order_id, c.used_at, c.expired_at, c.expire_cause,
		t.name, t.rule, t.value, t.currency, t.prec_class
		FROM coupon c LEFT JOIN coupon_template t ON t.id = c.template_id AND t.revision = c.revision WHERE c.id = ?`)
	stmtExplainKey     = define("explain.key", `SELECT issuer, grant_key FROM grant_key WHERE coupon_id = ? ORDER BY issuer, grant_key LIMIT 1`)
	stmtExplainHistory = define("explain.history", `SELECT version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason,
		trigger_id, origin FROM coupon_history WHERE coupon_id = ? ORDER BY version LIMIT ?`)
	// The rows of one partition are few while the relay runs; coupon_id has no index there.
	stmtExplainOutbox = define("explain.outbox", `SELECT id, lane, msg_id, routing_key, deliver_at, refused, created_at FROM outbox
		WHERE lane IN (0,1) AND part = ? AND coupon_id = ? ORDER BY lane, id LIMIT ?`)
	stmtExplainParked = define("explain.parked", `SELECT id, lane, msg_id, routing_key, deliver_at, reason, parked_at FROM outbox_parked
		WHERE coupon_id = ? ORDER BY id LIMIT ?`)
	// Every event of a coupon has an id that begins with the coupon's and a colon; the semicolon comes after it.
	stmtExplainNotices = define("explain.notices", `SELECT i.event_id, i.dropped, i.added_at, w.id, w.kind, w.items, w.opened_at, w.due_at, w.closed_at,
		w.closed_by, n.channel, n.items, n.state, n.reason, n.attempts, n.settled_at
		FROM notice_item i JOIN notice_window w ON w.id = i.window_id LEFT JOIN notice n ON n.window_id = w.id
		WHERE i.event_id >= ? AND i.event_id < ? ORDER BY w.id, i.event_id, n.channel LIMIT ?`)
)

const explainRows = 1000 // of each kind, at most

// Explanation is everything that the database knows of a coupon, at one instant.
type Explanation struct {
	Now       time.Time // the database's clock
	ID        uint64
	Status    coupon.Status
	Seen      coupon.Status // as a reader must see it at Now: its end and its lock's count, whatever the row says yet
	Version   uint32
	UserID    string
	BatchID   string
	Issuer    string
	GrantKey  string
	Template  coupon.Template // of the coupon's revision: name, rule, terms
	ValidFrom time.Time
	ExpiresAt time.Time // coupon.Never: no end
	DueAt     time.Time
	GrantedAt time.Time
	LockedAt  time.Time // zero: never locked; likewise below
	LockUntil time.Time
	OrderID   string
	UsedAt    time.Time
	ExpiredAt time.Time
	Cause     coupon.Cause // of the expiry
	Beyond    bool         // its end is beyond the horizon: the planner will publish its trigger
	History   []coupon.Transition
	Outbox    []Waiting
	Notices   []Told
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

// Told is a digest of notices that one of the coupon's events is in.
type Told struct {
	EventID  string
	Dropped  string // why the notice does not count it; empty if it does
	AddedAt  time.Time
	WindowID uint64
	Kind     coupon.NoticeKind
	Items    int
	OpenedAt time.Time
	DueAt    time.Time // when it is looked at next
	ClosedAt time.Time // zero: open
	ClosedBy string
	Notices  []ToldBy // none while it is open
}

// ToldBy is one channel's notice.
type ToldBy struct {
	Channel   coupon.Channel
	Items     int
	State     string
	Reason    string
	Attempts  int
	SettledAt time.Time // zero: pending
}

// Explain reads a coupon and all that belongs to it; coupon.ErrNotFound when there is no such coupon.
func (s *Store) Explain(ctx context.Context, id uint64) (Explanation, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	e := Explanation{ID: id}
	tx, err := s.sql.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return e, fmt.Errorf("explain: begin: %w", classify(err))
	}
	for _, read := range []func(context.Context, querier, *Explanation) error{
		s.explainCoupon, s.explainHistory, s.explainOutbox, s.explainNotices,
	} {
		if err = read(ctx, tx, &e); err != nil {
			break
		}
	}
	// There is nothing to commit.
	if rerr := tx.Rollback(); rerr != nil && !errors.Is(rerr, sql.ErrTxDone) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return Explanation{}, fmt.Errorf("explain: %w", err)
	}
	return e, nil
}

func (s *Store) explainCoupon(ctx context.Context, q querier, e *Explanation) error {
	var (
		batch, user, order               []byte
		locked, lockUntil, used, expired sql.NullTime
		cause, name, rule, precision     sql.NullString
		currency                         sql.NullString
		value                            sql.NullInt64
		status                           uint8
	)
	t := &e.Template
	err := s.queryRow(ctx, q, stmtExplainCoupon, []any{
		&e.Now, &t.ID, &t.Revision, &batch, &user, &status, &e.Version,
		&e.ValidFrom, &e.ExpiresAt, &e.DueAt, &e.GrantedAt, &locked, &lockUntil, &order, &used, &expired, &cause,
		&name, &rule, &value, &currency, &precision,
	}, e.ID)
	if err != nil {
		return err
	}
	e.Status, e.BatchID, e.UserID, e.OrderID = coupon.Status(status), string(batch), string(user), string(order)
	e.LockedAt, e.LockUntil, e.UsedAt, e.ExpiredAt, e.Cause = locked.Time, lockUntil.Time, used.Time, expired.Time, coupon.Cause(cause.String)
	t.Name = name.String
	t.Terms = coupon.Terms{
		TemplateID: t.ID, Revision: t.Revision, Value: value.Int64, Currency: currency.String, Precision: coupon.Precision(precision.String),
	}
	if rule.Valid {
		if err := json.Unmarshal([]byte(rule.String), &t.Rule); err != nil {
			return fmt.Errorf("rule of template %d: %w", t.ID, err)
		}
	}
	e.Seen = seen(e)
	if e.Status == coupon.Unused && !coupon.IsNever(e.ExpiresAt) {
		r, err := s.reachAt(ctx, q, e.Now)
		if err != nil {
			return err
		}
		e.Beyond = !r.holds(e.DueAt)
	}
	var issuer, key []byte
	err = s.queryRow(ctx, q, stmtExplainKey, []any{&issuer, &key}, e.ID)
	if err != nil && !errors.Is(err, coupon.ErrNotFound) {
		return err
	}
	e.Issuer, e.GrantKey = string(issuer), string(key)
	return nil
}

// seen asks the one decision what a reader's own trigger would do now.
func seen(e *Explanation) coupon.Status {
	row := coupon.Row{ID: e.ID, Status: e.Status, Version: e.Version, ExpiresAt: e.ExpiresAt, DueAt: e.DueAt, LockUntil: e.LockUntil}
	lazy := coupon.Trigger{Kind: coupon.KindExpire, CouponID: e.ID, At: e.ExpiresAt, Origin: coupon.OriginLazy}
	switch coupon.Decide(&row, lazy, e.Now).Action {
	case coupon.Expire:
		return coupon.Expired
	case coupon.Unlock:
		return coupon.Unused
	case coupon.Drop, coupon.Reschedule:
		return e.Status
	default:
		return e.Status
	}
}

func (s *Store) explainHistory(ctx context.Context, q querier, e *Explanation) error {
	return s.query(ctx, q, stmtExplainHistory, func(r *sql.Rows) error {
		t := coupon.Transition{CouponID: e.ID, UserID: e.UserID, BatchID: e.BatchID, Terms: e.Template.Terms, ValidFrom: e.ValidFrom}
		var from, to uint8
		var cause, origin string
		var order []byte
		if err := r.Scan(&t.Version, &from, &to, &cause, &t.At, &t.ExpiresAt, &t.DueAt, &order, &t.Actor, &t.Reason, &t.TriggerID, &origin); err != nil {
			return err
		}
		t.From, t.To, t.Cause, t.Origin, t.OrderID = coupon.Status(from), coupon.Status(to), coupon.Cause(cause), coupon.Origin(origin), string(order)
		e.History = append(e.History, t)
		return nil
	}, e.ID, explainRows)
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
	prefix := strconv.FormatUint(e.ID, 10)
	return s.query(ctx, q, stmtExplainNotices, func(r *sql.Rows) error {
		var (
			t                      Told
			eventID                []byte
			kind                   string
			closed, settled        sql.NullTime
			channel, state, reason sql.NullString
			items, attempts        sql.NullInt64
		)
		if err := r.Scan(&eventID, &t.Dropped, &t.AddedAt, &t.WindowID, &kind, &t.Items, &t.OpenedAt, &t.DueAt, &closed,
			&t.ClosedBy, &channel, &items, &state, &reason, &attempts, &settled); err != nil {
			return err
		}
		t.EventID, t.Kind, t.ClosedAt = string(eventID), coupon.NoticeKind(kind), closed.Time
		if n := len(e.Notices); n == 0 || e.Notices[n-1].WindowID != t.WindowID || e.Notices[n-1].EventID != t.EventID {
			e.Notices = append(e.Notices, t)
		}
		if channel.Valid {
			last := &e.Notices[len(e.Notices)-1]
			last.Notices = append(last.Notices, ToldBy{
				Channel: coupon.Channel(channel.String), Items: int(items.Int64), State: state.String, Reason: reason.String,
				Attempts: int(attempts.Int64), SettledAt: settled.Time,
			})
		}
		return nil
	}, []byte(prefix+":"), []byte(prefix+";"), explainRows)
}
