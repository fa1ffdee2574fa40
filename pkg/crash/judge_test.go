//go:build proof

package crash_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/chaos/model"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	rowsQuery = `SELECT c.id, c.user_id, c.status, c.version, c.expires_at, c.lock_until, COALESCE(c.order_id, ''), c.used_at IS NOT NULL,
		c.expired_at IS NOT NULL, COALESCE((SELECT GROUP_CONCAT(k.grant_key SEPARATOR '\n') FROM grant_key k WHERE k.coupon_id = c.id), '')
		FROM (SELECT id, user_id, status, version, expires_at, lock_until, order_id, used_at, expired_at FROM coupon
			UNION ALL SELECT id, user_id, status, version, expires_at, lock_until, order_id, used_at, expired_at FROM coupon_archive) c ORDER BY c.id`
	stepsQuery = `SELECT coupon_id, version, from_status, to_status, cause, order_id, at, expires_at, lock_until FROM coupon_history
		UNION ALL SELECT coupon_id, version, from_status, to_status, cause, order_id, at, expires_at, lock_until FROM coupon_history_archive
		ORDER BY coupon_id, version`
	namedQuery = `SELECT n.window_id, n.channel, n.state, i.coupon_id FROM notice n JOIN notice_item i ON i.window_id = n.window_id
		WHERE n.kind = 'expired' AND i.dropped = '' ORDER BY n.window_id, n.channel`
)

// waits are what must be gone when everything is settled.
var waits = map[string]string{ //nolint:gochecknoglobals // constant
	"messages in the outbox":           "SELECT COUNT(*) FROM outbox",
	"messages that the broker refused": "SELECT COUNT(*) FROM outbox_parked",
	"coupons that have ended":          "SELECT COUNT(*) FROM coupon WHERE status = 1 AND due_at <= UTC_TIMESTAMP(3)",
	"locks that have run out":          "SELECT COUNT(*) FROM coupon WHERE status = 2 AND lock_until <= UTC_TIMESTAMP(3)",
	"quota that was not given back":    "SELECT COUNT(*) FROM quota_return",
	"windows that are open":            "SELECT COUNT(*) FROM notice_window WHERE closed_at IS NULL AND kind = 'expired'",
	"notices that are to be sent":      "SELECT COUNT(*) FROM notice WHERE state IN ('pending', 'sending')",
	"steps that are not counted, or twice": `SELECT COALESCE(SUM(ABS(n)), 0) FROM (SELECT SUM(n) AS n FROM (
		SELECT 'granted' AS what, granted AS n FROM template_stats UNION ALL SELECT 'used', used FROM template_stats
		UNION ALL SELECT 'expired', expired FROM template_stats UNION ALL SELECT 'voided', voided FROM template_stats
		UNION ALL SELECT CASE WHEN from_status = 0 THEN 'granted' WHEN to_status = 3 THEN 'used' WHEN to_status = 4 THEN 'expired' ELSE 'voided' END, -1 FROM (
			SELECT from_status, to_status FROM coupon_history UNION ALL SELECT from_status, to_status FROM coupon_history_archive) h
			WHERE from_status = 0 OR to_status IN (3, 4, 5)) t GROUP BY what) s`,
}

// judge waits until everything is settled, and holds all that is there against all that was asked for.
func (w *world) judge() {
	if !w.i.Fleet().Running(demo.Expirer) {
		w.launch(demo.Expirer)
	}
	w.settle()
	f := w.facts()
	promises := make([]model.Promise, len(w.coupons))
	for i, c := range w.coupons {
		promises[i] = c.Promise
	}
	verdict := model.Judge(promises, f)
	for _, finding := range verdict.Findings {
		w.Errorf("%s", finding)
	}
	w.heardTwice()
	if len(w.ears.source) != 1 {
		w.Errorf("the events have several sources: %v", w.ears.source)
	}
	w.Logf("%d stops, %d coupons, %d steps, %d events heard again", len(w.deaths), len(f.Rows), verdict.Steps, verdict.Repeats)
}

// settle waits until nothing waits any more; what still does is told, and the judge says the rest.
func (w *world) settle() {
	var left []string
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	const between = 200 * time.Millisecond
	err := rig.Until(ctx, between, func() (bool, error) {
		left = nil
		for what, query := range waits {
			if n := w.count(query); n > 0 {
				left = append(left, fmt.Sprintf("%d %s", n, what))
			}
		}
		steps := w.count("SELECT (SELECT COUNT(*) FROM coupon_history) + (SELECT COUNT(*) FROM coupon_history_archive)")
		if heard := w.ears.steps(); heard < steps {
			left = append(left, fmt.Sprintf("%d steps of which %d were heard", steps, heard))
		}
		return len(left) == 0, nil
	})
	if err != nil {
		w.Errorf("still waiting: %s", strings.Join(left, "; "))
	}
}

// facts reads what an outsider can see, the rows all as of one instant.
func (w *world) facts() model.Facts {
	f := model.Facts{Bound: 10 * time.Second}
	f.Low, _ = w.i.Audit().Bounds()
	tx, err := w.i.DB().BeginTx(w.ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	require.NoError(w, err)
	defer tx.Rollback() //nolint:errcheck // it only reads
	at := make(map[uint64]int)
	each(w, tx, rowsQuery, func(rows *sql.Rows) error {
		var r model.Row
		var lock sql.NullTime
		var keys string
		err := rows.Scan(&r.ID, &r.User, &r.State, &r.Version, &r.Expires, &lock, &r.Order, &r.Used, &r.Ended, &keys)
		if keys != "" {
			r.Keys = strings.Split(keys, "\n")
		}
		r.Lock = lock.Time
		at[r.ID] = len(f.Rows)
		f.Rows = append(f.Rows, r)
		return err
	})
	if len(at) != len(f.Rows) {
		w.Errorf("%d coupons are both in their table and in the archive", len(f.Rows)-len(at))
	}
	each(w, tx, stepsQuery, func(rows *sql.Rows) error {
		var id uint64
		var s model.Step
		var lock sql.NullTime
		err := rows.Scan(&id, &s.Version, &s.From, &s.To, &s.Cause, &s.Order, &s.At, &s.Expires, &lock)
		s.Lock = lock.Time
		if k, there := at[id]; there {
			f.Rows[k].Steps = append(f.Rows[k].Steps, s)
		} else {
			f.Unsettled = append(f.Unsettled, fmt.Sprintf("history of coupon %d, which is not there", id))
		}
		return err
	})
	if w.post != nil {
		f.Notices = []model.Notice{}
		each(w, tx, namedQuery, func(rows *sql.Rows) error {
			var n model.Notice
			var coupon uint64
			err := rows.Scan(&n.Window, &n.Channel, &n.State, &coupon)
			n.Coupons = []uint64{coupon}
			f.Notices = append(f.Notices, n)
			return err
		})
		_, f.Arrived = w.post.sms.Counts()
	}
	_, f.High = w.i.Audit().Bounds()
	w.ears.tell(&f)
	return f
}

func each(w *world, tx *sql.Tx, query string, do func(*sql.Rows) error) {
	rows, err := tx.QueryContext(w.ctx, query)
	require.NoError(w, err)
	defer rows.Close() //nolint:errcheck // Err is what counts
	for rows.Next() {
		require.NoError(w, do(rows))
	}
	require.NoError(w, rows.Err())
}

// lag is how much later than who was to send it stopped an event may be heard first: its sender has to start again.
const lag = 10 * time.Second

// heardTwice: a relay that was stopped may have sent once more what it could not know to have been sent; nobody else sends anything twice.
func (w *world) heardTwice() {
	w.ears.mu.Lock()
	defer w.ears.mu.Unlock()
	for id, s := range w.ears.by {
		if s.What == "expiring" {
			continue // verbs and the planner may both tell of it
		}
		stops := 0
		for _, d := range w.deaths {
			relays := strings.HasPrefix(d.worker, demo.Publisher) || d.worker == demo.Expirer
			if relays && d.armed.Before(s.at[len(s.at)-1]) && s.at[0].Before(d.before.Add(lag)) {
				stops++
			}
		}
		if s.Times > 1+stops {
			w.Errorf("event %s (%s) was heard %d times, with %d stops in between", id, s.What, s.Times, stops)
		}
	}
}
