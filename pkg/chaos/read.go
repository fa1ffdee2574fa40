package chaos

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/chaos/model"
)

const (
	rowsQuery = `SELECT c.id, c.user_id, c.status, c.version, c.expires_at, c.lock_until, COALESCE(c.order_id, ''), c.used_at IS NOT NULL,
		c.expired_at IS NOT NULL, COALESCE((SELECT GROUP_CONCAT(k.grant_key ORDER BY k.grant_key SEPARATOR '\n') FROM grant_key k WHERE k.coupon_id = c.id), '')
		FROM coupon c ORDER BY c.id`
	stepsQuery = `SELECT coupon_id, version, from_status, to_status, cause, order_id, at, expires_at, lock_until FROM coupon_history ORDER BY coupon_id, version`
	namedQuery = `SELECT n.window_id, n.channel, n.state, i.coupon_id FROM notice n JOIN notice_item i ON i.window_id = n.window_id
		WHERE n.kind = 'expired' AND i.dropped = '' ORDER BY n.window_id, n.channel`
	lateQuery = `SELECT COUNT(*), COALESCE(SUM(cause = 'sweep'), 0), COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, expires_at, at)), 0) DIV 1000
		FROM coupon_history WHERE from_status = 1 AND to_status = 4`
)

// waitsFor are the things that must have gone when everything has settled, in words, and how many there are.
func waitsFor() map[string]string {
	return map[string]string{
		"messages in the outbox":              "SELECT COUNT(*) FROM outbox",
		"messages that the broker refused":    "SELECT COUNT(*) FROM outbox_parked",
		"windows of notices that are open":    "SELECT COUNT(*) FROM notice_window WHERE closed_at IS NULL AND kind = 'expired'",
		"notices that are to be sent":         "SELECT COUNT(*) FROM notice WHERE state IN ('pending', 'sending') AND kind = 'expired'",
		"coupons that have ended":             "SELECT COUNT(*) FROM coupon WHERE status = 1 AND due_at <= UTC_TIMESTAMP(3)",
		"locks that have run out":             "SELECT COUNT(*) FROM coupon WHERE status = 2 AND lock_until <= UTC_TIMESTAMP(3)",
		"expired coupons that nobody told of": "SELECT COUNT(*) FROM coupon c WHERE c.status = 4 AND c.used_at IS NULL AND NOT EXISTS (SELECT 1 FROM notice_item i WHERE i.coupon_id = c.id) AND NOT EXISTS (SELECT 1 FROM coupon_history h WHERE h.coupon_id = c.id AND h.from_status = 3)",
	}
}

// settling is how long what ends while the rows are read may still wait.
const settling = 10 * time.Second

// settle waits until nothing waits any more, every step was heard of, and the last end of the run has passed; or the bound is over: the
// judge then says what is amiss. It fails only with ctx.
func (s *site) settle(ctx context.Context, l *load, over time.Duration) error {
	last := l.start.Add(over + 25*time.Second) // ends are moved by up to 15 s, and locks outlive them
	low, _ := l.bounds()
	err := until(ctx, max(0, last.Sub(low))+settleBound, func(ctx context.Context) (bool, error) {
		if low, _ := l.bounds(); low.Before(last) {
			return false, nil
		}
		for _, query := range waitsFor() {
			n, err := s.count(ctx, query)
			if err != nil || n > 0 {
				return false, err
			}
		}
		steps, err := s.count(ctx, "SELECT COUNT(*) FROM coupon_history")
		return err == nil && s.ears.len() >= steps, err
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (s *site) count(ctx context.Context, query string) (n int, err error) {
	if err := s.db.QueryRowContext(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting: %w", err)
	}
	return n, nil
}

// facts reads what an outsider can see, the rows all as of one instant.
func (s *site) facts(ctx context.Context, r *Result) (model.Facts, error) {
	f := model.Facts{Bound: settling, Notices: []model.Notice{}}
	f.Low, f.High = s.installation.Audit().Bounds()
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return f, fmt.Errorf("reading rows: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it only reads
	if _, err := tx.ExecContext(ctx, "SET SESSION group_concat_max_len = 65536"); err != nil {
		return f, fmt.Errorf("reading rows: %w", err)
	}
	if err := readRows(ctx, tx, &f); err != nil {
		return f, err
	}
	_, f.High = s.installation.Audit().Bounds()
	if err := readNotices(ctx, tx, &f); err != nil {
		return f, err
	}
	r.Notices = len(f.Notices)
	if err := tx.QueryRowContext(ctx, lateQuery).Scan(&r.Transitions, &r.SweepRescued, &r.LatenessMaxMS); err != nil {
		return f, fmt.Errorf("reading lateness: %w", err)
	}
	for what, query := range waitsFor() {
		var n int
		if err := tx.QueryRowContext(ctx, query).Scan(&n); err != nil {
			return f, fmt.Errorf("reading what waits: %w", err)
		}
		if n > 0 && !strings.HasPrefix(what, "coupons") && !strings.HasPrefix(what, "locks") && !strings.HasPrefix(what, "expired") {
			f.Unsettled = append(f.Unsettled, fmt.Sprintf("%d %s", n, what))
		}
	}
	recorded := make(map[string]bool) // of reminders, too
	err = each(ctx, tx, "SELECT CONCAT(window_id, '-', channel) FROM notice", func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		recorded[id] = true
		return err
	})
	if err != nil {
		return f, err
	}
	s.arrivals(&f, r, recorded)
	s.ears.tell(&f)
	return f, s.parked(ctx, &f, r)
}

func readRows(ctx context.Context, tx *sql.Tx, f *model.Facts) error {
	err := each(ctx, tx, rowsQuery, func(rows *sql.Rows) error {
		var r model.Row
		var lock sql.NullTime
		var keys string
		if err := rows.Scan(&r.ID, &r.User, &r.State, &r.Version, &r.Expires, &lock, &r.Order, &r.Used, &r.Ended, &keys); err != nil {
			return err
		}
		if keys != "" {
			r.Keys = strings.Split(keys, "\n")
		}
		r.Lock = lock.Time
		f.Rows = append(f.Rows, r)
		return nil
	})
	if err != nil {
		return err
	}
	i := 0
	return each(ctx, tx, stepsQuery, func(rows *sql.Rows) error {
		var id uint64
		var s model.Step
		var lock sql.NullTime
		if err := rows.Scan(&id, &s.Version, &s.From, &s.To, &s.Cause, &s.Order, &s.At, &s.Expires, &lock); err != nil {
			return err
		}
		s.Lock = lock.Time
		for i < len(f.Rows) && f.Rows[i].ID < id {
			i++
		}
		if i == len(f.Rows) || f.Rows[i].ID != id {
			f.Unsettled = append(f.Unsettled, fmt.Sprintf("history of coupon %d, which is not there", id))
			return nil
		}
		f.Rows[i].Steps = append(f.Rows[i].Steps, s)
		return nil
	})
}

func readNotices(ctx context.Context, tx *sql.Tx, f *model.Facts) error {
	return each(ctx, tx, namedQuery, func(rows *sql.Rows) error {
		var n model.Notice
		var coupon uint64
		if err := rows.Scan(&n.Window, &n.Channel, &n.State, &coupon); err != nil {
			return err
		}
		if k := len(f.Notices) - 1; k >= 0 && f.Notices[k].Window == n.Window && f.Notices[k].Channel == n.Channel {
			f.Notices[k].Coupons = append(f.Notices[k].Coupons, coupon)
			return nil
		}
		n.Coupons = []uint64{coupon}
		f.Notices = append(f.Notices, n)
		return nil
	})
}

func each(ctx context.Context, tx *sql.Tx, query string, do func(*sql.Rows) error) error {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return fmt.Errorf("reading rows: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	for rows.Next() {
		if err := do(rows); err != nil {
			return fmt.Errorf("reading rows: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("reading rows: %w", err)
	}
	return nil
}

// arrivals tells what came to the providers: an SMS never twice; letters may.
func (s *site) arrivals(f *model.Facts, r *Result, recorded map[string]bool) {
	_, took := s.sms.Counts()
	f.Arrived = took
	for _, n := range s.mail.Counts() {
		r.LettersAgain += n - 1
	}
	for _, n := range f.Notices {
		id := strconv.FormatUint(n.Window, 10) + "-" + n.Channel
		if n.Channel == "sms" && (n.State == "sent" || n.State == "delivered") && took[id] == 0 {
			f.Unsettled = append(f.Unsettled, "message "+id+" is recorded as sent, and did not come")
		}
	}
	for id := range took {
		if !recorded[id] {
			f.Unsettled = append(f.Unsettled, "message "+id+" came, and is not recorded")
		}
	}
}

// parked takes what was set aside: nothing may be there but the run's own poison.
func (s *site) parked(ctx context.Context, f *model.Facts, r *Result) error {
	client, err := s.installation.Client()
	if err != nil {
		return err
	}
	r.PoisonSent = int(s.poisoned.Load())
	for _, queue := range []string{s.ladder().Parked(), s.ladder().Unroutable()} {
		const most = 100_000
		_, err := client.Take(ctx, queue, most, func(d broker.Delivery) error {
			if strings.HasPrefix(d.MessageID, poisonMark) {
				r.PoisonParked++
				return nil
			}
			reason, _ := d.Headers[broker.HeaderReason].(string)
			f.Unsettled = append(f.Unsettled, fmt.Sprintf("parked: %s from %v: %s", d.MessageID, d.Headers[broker.HeaderOrigin], reason))
			return nil
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("reading what was parked: %w", err)
		}
	}
	return nil
}
