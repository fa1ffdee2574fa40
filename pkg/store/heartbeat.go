package store

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/text/currency"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Rows of setting that heartbeats have: when the last ones were granted, and for each precision the end of the latest that came
// all the way.
const (
	settingBeat = "heartbeat"     // with a dot and the precision: what has come through
	beatLife    = 3 * time.Second // rounded up to a whole second
	beatsAlive  = 100             // while so many have not ended, no more are granted: nobody expires them
	beatsPruned = 200             // of one transaction
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtBeatRows = define("heartbeat.rows", `INSERT IGNORE INTO setting (name, value, updated_at)
		VALUES (?,?,UTC_TIMESTAMP(3))`)
	stmtBeatClaim = define("heartbeat.claim", `UPDATE setting SET value = '', updated_at = UTC_TIMESTAMP(3)
		WHERE name = 'heartbeat' AND (value = 'first' OR updated_at <= UTC_TIMESTAMP(3) - INTERVAL ? MICROSECOND)`)
	stmtBeatAlive = define("heartbeat.alive", `SELECT COUNT(*) FROM
		(SELECT id FROM coupon WHERE user_id = 'lapse.heartbeat' AND status IN (1,2) LIMIT ?) a`)
	stmtBeatEnded = define("heartbeat.ended", `SELECT id FROM coupon WHERE user_id = 'lapse.heartbeat' AND status IN (3,4,5)
		AND template_id >= ? LIMIT ? FOR UPDATE SKIP LOCKED`)
	stmtBeatPrune  = define("heartbeat.prune", `DELETE FROM coupon WHERE id IN (?)`)
	stmtBeatForget = define("heartbeat.forget", `DELETE FROM coupon_history WHERE coupon_id IN (?)`)
	stmtBeatDone   = define("beat.done", `UPDATE setting SET value = ?, updated_at = UTC_TIMESTAMP(3) WHERE name = ? AND value < ?`)
	stmtBeatRead   = define("beat.read", `SELECT name, value, UTC_TIMESTAMP(3) FROM setting WHERE name > 'heartbeat.' AND name < 'heartbeat/'`)
	stmtBeatNone   = define("heartbeat.none", `DELETE FROM setting WHERE name = 'heartbeat' OR name > 'heartbeat.' AND name < 'heartbeat/'`)
	stmtBeatRevise = define("heartbeat.template", `INSERT IGNORE INTO coupon_template
		(id, revision, name, rule, value, currency, prec_class, late_pay_policy, late_pay_window, quota_back, offer, basis_points, cap, min_spend, scopes,
		reminders, created_at, actor, reason) VALUES (?,1,?,?,`+strings.TrimSuffix(strings.Repeat("?,", 12), ",")+`,UTC_TIMESTAMP(3),'lapse','heartbeat')`)
)

// PrepareBeats makes what heartbeats need, unless it is there: their templates, which no list shows, and their rows. The age of
// each class counts from now on.
func (s *Store) PrepareBeats(ctx context.Context) error {
	now, err := s.Now(ctx)
	if err != nil {
		return err
	}
	rule := coupon.Rule{Kind: coupon.RuleAfter, After: beatLife.String()}.String()
	for _, p := range coupon.Precisions() {
		// A heartbeat is worth nothing, in no currency.
		terms := coupon.Terms{
			TemplateID: coupon.HeartbeatTemplate(p), Revision: 1, Currency: currency.XXX.String(), Precision: p, Reminders: coupon.PickNone,
		}.Defaults()
		args, err := termsArgs(terms)
		if err != nil {
			return err
		}
		args = append([]any{terms.TemplateID, "heartbeat " + string(p), rule}, args...)
		if _, err := s.exec(ctx, s.sql, stmtBeatRevise, args...); err != nil {
			return err
		}
		if _, err := s.exec(ctx, s.sql, stmtBeatRows, beatOf(p), strconv.FormatInt(now.UnixMilli(), 10)); err != nil {
			return err
		}
	}
	_, err = s.exec(ctx, s.sql, stmtBeatRows, settingBeat, "first")
	return err
}

func beatOf(p coupon.Precision) string { return settingBeat + "." + string(p) }

// NoBeats forgets how old they are: who has none must not be told that they are missing.
func (s *Store) NoBeats(ctx context.Context) error {
	_, err := s.exec(ctx, s.sql, stmtBeatNone)
	return err
}

// Beat grants a heartbeat of each precision if the last ones were granted so long ago, by whichever pod, and removes those that
// have ended, so that there are never many. granted is false when it was not time yet.
func (s *Store) Beat(ctx context.Context, every time.Duration) (granted bool, err error) {
	err = s.tx(ctx, "heartbeat", func(ctx context.Context, tx *txn) error {
		n, err := s.exec(ctx, tx, stmtBeatClaim, every.Microseconds())
		if granted = n == 1; err != nil || !granted {
			return err
		}
		if err := s.pruneBeats(ctx, tx); err != nil {
			return err
		}
		var alive int
		if err := s.queryRow(ctx, tx, stmtBeatAlive, []any{&alive}, beatsAlive); err != nil {
			return err
		}
		if alive >= beatsAlive {
			return nil
		}
		return s.grantBeats(ctx, tx)
	})
	return granted && err == nil, err
}

func (s *Store) pruneBeats(ctx context.Context, tx *txn) error {
	var ids []any
	err := s.query(ctx, tx, stmtBeatEnded, func(r *sql.Rows) error {
		var id uint64
		err := r.Scan(&id)
		ids = append(ids, id)
		return err
	}, coupon.HeartbeatTemplate(coupon.Exact), beatsPruned)
	if err != nil || len(ids) == 0 {
		return err
	}
	if _, err := s.exec(ctx, tx, stmtBeatForget.in(len(ids)), ids...); err != nil {
		return err
	}
	_, err = s.exec(ctx, tx, stmtBeatPrune.in(len(ids)), ids...)
	return err
}

func (s *Store) grantBeats(ctx context.Context, tx *txn) error {
	var now time.Time
	if err := s.queryRow(ctx, tx, stmtNow, []any{&now}); err != nil {
		return err
	}
	ends := coupon.CeilSecond(now.Add(beatLife))
	ts := make([]coupon.Transition, 0, len(coupon.Precisions()))
	for _, p := range coupon.Precisions() {
		terms, err := s.termsOf(ctx, tx, coupon.HeartbeatTemplate(p), 1)
		if err != nil {
			return err
		}
		// Another key, another place in the spread: what is seen is all of it.
		due := coupon.DueAt(ends, p, coupon.HeartbeatUser, strconv.FormatInt(now.UnixMilli(), 10))
		id, err := s.insertID(ctx, tx, stmtIssueCoupon, terms.TemplateID, terms.Revision, []byte(""), []byte(coupon.HeartbeatUser),
			uint8(coupon.Unused), 1, now, ends, due, now)
		if err != nil {
			return err
		}
		ts = append(ts, coupon.Transition{
			CouponID: id, Version: 1, To: coupon.Unused, Cause: coupon.CauseGrant, UserID: coupon.HeartbeatUser, Terms: terms,
			ValidFrom: now, ExpiresAt: ends, DueAt: due, At: now,
		})
	}
	return s.record(ctx, tx, now, ts)
}

// BeatDone notes that the heartbeat of a class that ended then has come all the way; an older one changes nothing.
func (s *Store) BeatDone(ctx context.Context, p coupon.Precision, ended time.Time) error {
	ms := strconv.FormatInt(ended.UnixMilli(), 10)
	_, err := s.exec(ctx, s.sql, stmtBeatDone, ms, beatOf(p), ms)
	return err
}

// BeatAges tells for each class how long ago the latest heartbeat ended that came all the way. None: there are no heartbeats.
func (s *Store) BeatAges(ctx context.Context) (map[coupon.Precision]time.Duration, error) {
	ages := make(map[coupon.Precision]time.Duration)
	err := s.query(ctx, s.sql, stmtBeatRead, func(r *sql.Rows) error {
		var name, value string
		var now time.Time
		if err := r.Scan(&name, &value, &now); err != nil {
			return err
		}
		p := coupon.Precision(strings.TrimPrefix(name, settingBeat+"."))
		ms, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return fmt.Errorf("setting %s: want milliseconds, got %q", name, value)
		}
		if p.Valid() {
			ages[p] = max(0, now.Sub(time.UnixMilli(ms)))
		}
		return nil
	})
	return ages, err
}
