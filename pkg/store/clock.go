package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	settingClock    = "clock." // and the pod
	settingAccepted = "accepted_clock"

	// DeedClockAccept is the action of an acceptance in the operators' log.
	DeedClockAccept = "clock.accept"
)

//nolint:gochecknoglobals // statements are constants
var (
	// Every process asks this every second, so the brakes come with it.
	stmtClockRead = define("clock.read", `SELECT '' AS name, '' AS value, UTC_TIMESTAMP(3) AS updated_at
		UNION ALL SELECT name, value, updated_at FROM setting WHERE name = 'accepted_clock' OR name >= 'pause.' AND name < 'pause/'`)
	// A process that has been silent for as long may be gone.
	stmtClockReports = define("clock.reports", `SELECT name, value, updated_at FROM setting
		WHERE name >= 'clock.' AND name < 'clock/' AND updated_at > UTC_TIMESTAMP(3) - INTERVAL 15 SECOND ORDER BY name`)
)

// clockRow is a report as it is stored: milliseconds, and since 1970 for instants.
type clockRow struct {
	Role     string `json:"role"`
	Offset   int64  `json:"offset"`
	Jump     int64  `json:"jump"`
	Anchored int64  `json:"anchored,omitempty"`
	Tripped  bool   `json:"tripped,omitempty"`
	Since    int64  `json:"since,omitempty"`
	Accepted int64  `json:"accepted,omitempty"`
}

func toMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// ReadClock gives the database's clock and the instant of the last acceptance, zero if there was none. What it reads of the
// brakes on the way is kept for Brakes.
func (s *Store) ReadClock(ctx context.Context) (now, accepted time.Time, err error) {
	var pauses []coupon.Pause
	began := time.Now()
	err = s.query(ctx, s.sql, stmtClockRead, func(r *sql.Rows) error {
		var name, value string
		var at time.Time
		if err := r.Scan(&name, &value, &at); err != nil {
			return err
		}
		switch name {
		case "":
			now = at
		case settingAccepted:
			if ms, err := strconv.ParseInt(value, 10, 64); err == nil { // a row that holds no instant counts as none
				accepted = fromMillis(ms)
			}
		default:
			if p, ok := parsePause(name, value, at); ok {
				pauses = append(pauses, p)
			}
		}
		return nil
	})
	if err != nil {
		return now, accepted, err
	}
	s.brakes.take(coupon.NewPauses(pauses), began)
	return now, accepted, nil
}

// ReportClock keeps what a process sees of the clocks. PrunePods clears it away when the process is gone.
func (s *Store) ReportClock(ctx context.Context, r coupon.ClockReport) error {
	value, err := json.Marshal(clockRow{
		Role: r.Role, Offset: r.Offset.Milliseconds(), Jump: r.Jump.Milliseconds(), Anchored: toMillis(r.Anchored),
		Tripped: r.Tripped, Since: toMillis(r.Since), Accepted: toMillis(r.Accepted),
	})
	if err != nil {
		return fmt.Errorf("clock report: %w", err)
	}
	_, err = s.exec(ctx, s.sql, stmtMarkPut, settingClock+r.Pod, string(value))
	return err
}

// ClockReports gives what the processes said in the last fifteen seconds.
func (s *Store) ClockReports(ctx context.Context) ([]coupon.ClockReport, error) {
	var out []coupon.ClockReport
	err := s.query(ctx, s.sql, stmtClockReports, func(r *sql.Rows) error {
		var name, value string
		var at time.Time
		if err := r.Scan(&name, &value, &at); err != nil {
			return err
		}
		var row clockRow
		if json.Unmarshal([]byte(value), &row) != nil {
			return nil // of another release; it must stop nobody
		}
		out = append(out, coupon.ClockReport{
			Pod: strings.TrimPrefix(name, settingClock), Role: row.Role, At: at, Tripped: row.Tripped,
			Offset: time.Duration(row.Offset) * time.Millisecond, Jump: time.Duration(row.Jump) * time.Millisecond,
			Anchored: fromMillis(row.Anchored), Since: fromMillis(row.Since), Accepted: fromMillis(row.Accepted),
		})
		return nil
	})
	return out, err
}

// AcceptClock says that the database's clock is right as it reads now: every process that has stopped for it goes on. It
// gives the instant, and keeps who said so and why; detail is kept beside it.
func (s *Store) AcceptClock(ctx context.Context, actor, reason string, detail any) (at time.Time, err error) {
	err = s.tx(ctx, "accept clock", func(ctx context.Context, tx *txn) error {
		if err := s.queryRow(ctx, tx, stmtNow, []any{&at}); err != nil {
			return err
		}
		if err := s.putSetting(ctx, tx, settingAccepted, at.UnixMilli()); err != nil {
			return err
		}
		return s.recordDeed(ctx, tx, Deed{Actor: actor, Reason: reason, Action: DeedClockAccept, Detail: detail})
	})
	return at, err
}
