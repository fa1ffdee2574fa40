package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/pulse"
)

// Names of the rows in which processes tell of themselves; the pod follows.
const (
	settingPod   = "pod."
	settingStage = "stage."
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtPulsePut = define("status.put", `INSERT INTO setting (name, value, updated_at)
		VALUES (?,?,UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE value = VALUES(value), updated_at = VALUES(updated_at)`)
	stmtPulseDrop = define("status.drop", `DELETE FROM setting WHERE name IN (?)`)
	stmtPulses    = define("status.pulses", `SELECT name, value, updated_at FROM setting
		WHERE name >= 'pod.' AND name < 'pod/' OR name >= 'stage.' AND name < 'stage/' ORDER BY name`)
	stmtLocks = define("status.locks", `SELECT
		(SELECT COUNT(*) FROM (SELECT id FROM coupon WHERE status = 2 LIMIT ?) l),
		(SELECT COUNT(*) FROM (SELECT id FROM coupon WHERE status = 2 AND lock_until <= UTC_TIMESTAMP(3) - INTERVAL ? SECOND LIMIT ?) o),
		(SELECT MIN(lock_until) FROM coupon WHERE status = 2 AND lock_until <= UTC_TIMESTAMP(3) - INTERVAL ? SECOND), UTC_TIMESTAMP(3)`)
	stmtParkedRows = define("status.parked", `SELECT COUNT(*) FROM (SELECT id FROM outbox_parked LIMIT ?) p`)
	stmtPlanLease  = define("status.plan", `SELECT owner, lease_until > UTC_TIMESTAMP(3), UTC_TIMESTAMP(3) FROM plan_slice WHERE plan = 'promote'`)
)

// WatchStages gives what the times of statements and commits are told to.
func (s *Store) WatchStages(r *pulse.Recorder) { s.pulse.Store(r) }

// ran notes one run of a statement: rows changed or read, and whether it failed.
func (s *Store) ran(ctx context.Context, st Statement, began time.Time, rows int64, err error) {
	s.metrics.observe(st, began, rows, err)
	s.primary.note(err)
	stage := pulse.Statement
	if strings.Contains(st.SQL, "FOR UPDATE") {
		stage = pulse.Lock
	}
	s.took(ctx, stage, began, err)
}

func (s *Store) took(ctx context.Context, stage pulse.Stage, began time.Time, err error) {
	took := time.Since(began)
	pulse.Spent(ctx, took)
	s.pulse.Load().Observe(stage, took, errors.Is(err, coupon.ErrUnavailable))
}

// PutPulse keeps what a process tells of itself. PrunePods clears it away when the process has been gone for a day.
func (s *Store) PutPulse(ctx context.Context, r pulse.Report) error {
	pod, stage, err := r.Rows()
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	_, err = s.exec(ctx, s.sql, stmtPulsePut.rows(2), settingPod+r.Pod, pod, settingStage+r.Pod, stage)
	return err
}

// DropPulse takes it away.
func (s *Store) DropPulse(ctx context.Context, pod string) error {
	_, err := s.exec(ctx, s.sql, stmtPulseDrop.in(2), settingPod+pod, settingStage+pod)
	return err
}

// Pulses gives what every process last told of itself, by pod, with those that fell silent within the last day.
func (s *Store) Pulses(ctx context.Context) ([]pulse.Report, error) {
	var out []pulse.Report
	at := map[string]int{}
	err := s.query(ctx, s.sql, stmtPulses, func(r *sql.Rows) error {
		var name, value string
		var seen time.Time
		if err := r.Scan(&name, &value, &seen); err != nil {
			return err
		}
		if pod, ok := strings.CutPrefix(name, settingPod); ok {
			report := pulse.Report{Pod: pod, Seen: seen}
			if report.ReadPod(value) { // a row of another release must stop nobody
				at[pod] = len(out)
				out = append(out, report)
			}
			return nil
		}
		if i, ok := at[strings.TrimPrefix(name, settingStage)]; ok { // pod. comes before stage.
			out[i].ReadStages(value)
		}
		return nil
	})
	return out, err
}

// Locks counts locked coupons, up to limit; run out are those whose lock ended more than grace ago, and oldest is how long
// ago the first of them did.
func (s *Store) Locks(ctx context.Context, grace time.Duration, limit int) (l coupon.LockCount, err error) {
	var oldest sql.NullTime
	var now time.Time
	seconds := int(grace.Seconds())
	err = s.queryRow(ctx, s.sql, stmtLocks, []any{&l.Locked, &l.RunOut, &oldest, &now}, limit, seconds, limit, seconds)
	if err == nil && oldest.Valid {
		l.Oldest = now.Sub(oldest.Time)
	}
	return l, err
}

// ParkedRows counts outbox rows that were set aside, up to limit.
func (s *Store) ParkedRows(ctx context.Context, limit int) (n int64, err error) {
	err = s.queryRow(ctx, s.sql, stmtParkedRows, []any{&n}, limit)
	return n, err
}

// Plan tells where the planner stands.
func (s *Store) Plan(ctx context.Context) (p coupon.PlanState, err error) {
	if err := s.queryRow(ctx, s.sql, stmtPlanLease, []any{&p.Owner, &p.Held, &p.Now}); err != nil {
		return p, err
	}
	set, err := s.planSettings(ctx, s.sql)
	if err != nil {
		return p, err
	}
	p.Horizon, p.Frontier = set.horizon, set.frontier
	if p.Reminders, err = s.remindStates(ctx, &set, p.Now); err != nil {
		return p, err
	}
	if p.Horizon == 0 && p.Frontier.IsZero() {
		return p, nil // nothing waits as a row
	}
	from := p.Frontier
	if from.Before(p.Now) {
		from = p.Now // what is past is the sweep's
	}
	next, now, err := s.NextDue(ctx, from)
	if err != nil {
		return p, fmt.Errorf("planner's lag: %w", err)
	}
	if p.Horizon == 0 && !coupon.IsNever(next) {
		p.Lag = now.Sub(set.since)
	} else if p.Horizon > 0 {
		p.Lag = max(0, now.Add(p.Horizon).Sub(next))
	}
	return p, nil
}

// remindStates tells where the planner stands at each offset.
func (s *Store) remindStates(ctx context.Context, set *planSettings, now time.Time) ([]coupon.RemindState, error) {
	if set.reminders == nil {
		return nil, nil
	}
	var out []coupon.RemindState
	for _, o := range set.reminders.Offsets {
		var place coupon.PlanPlace
		set.place(o.Plan(), &place)
		from := later(now, place.Frontier)
		if place.Frontier.IsZero() {
			from = now.Add(place.Fresh)
		}
		next, read, err := s.NextDue(ctx, from)
		if err != nil {
			return nil, fmt.Errorf("planner's lag at %s: %w", o.Name, err)
		}
		out = append(out, coupon.RemindState{Offset: o.Name, Frontier: place.Frontier, Lag: max(0, read.Add(place.Horizon).Sub(next))})
	}
	return out, nil
}
