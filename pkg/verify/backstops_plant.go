package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// planted describes coupons that are put into the table by plain SQL, since millions are to be there within minutes. Their
// triggers are not sent.
type planted struct {
	template string
	n        int
	status   int           // unused, used or expired
	ends     time.Time     // of the first
	apart    time.Duration // between their ends, going round after spread of them
	spread   int
	granted  time.Time // and everything that happened to them
	user     string    // empty: a hundred thousand
	keys     bool      // with their grant keys, and counted, as a grant leaves them
}

const (
	numberRows   = 100_000
	numbersTable = `CREATE TABLE IF NOT EXISTS verify_number (n INT UNSIGNED PRIMARY KEY)`
	digits       = `(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
		UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)`
	fillNumbers = `INSERT IGNORE INTO verify_number SELECT a.d + 10*b.d + 100*c.d + 1000*d.d + 10000*e.d
		FROM ` + digits + ` a, ` + digits + ` b, ` + digits + ` c, ` + digits + ` d, ` + digits + ` e`
	// What a grant, a redemption and an expiry leave.
	plantCoupons = `INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at,
		order_id, used_at, expired_at, expire_cause)
		SELECT x.id, ?, 1, 'planted', IF(? = '', CONCAT('user-', x.id % 100000), ?), ?, ?, ?, x.ends, x.ends, ?,
		IF(? = 3, CONCAT('order-', x.id), NULL), IF(? = 3, ?, NULL), IF(? = 4, x.ends, NULL), IF(? = 4, 'ladder', NULL)
		FROM (SELECT ? + n AS id, ? + INTERVAL (n % ?) * ? SECOND AS ends FROM verify_number WHERE n < ?) x`
	plantFirst = `INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason,
		trigger_id, origin, trace)
		SELECT id, 1, 0, 1, 'grant', granted_at, expires_at, due_at, '', 'verify', '', '', '', '' FROM coupon WHERE id >= ? AND id < ?`
	plantExpired = `INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason,
		trigger_id, origin, trace)
		SELECT id, 2, 1, 4, 'ladder', expired_at, expires_at, due_at, '', 'lapse', '', '', 'ladder', '' FROM coupon WHERE id >= ? AND id < ?`
	plantLocked = `INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason,
		trigger_id, origin, trace, lock_until)
		SELECT id, 2, 1, 2, 'order', used_at, expires_at, due_at, order_id, 'verify', '', '', '', '', used_at + INTERVAL 1800 SECOND FROM coupon WHERE id >= ? AND id < ?`
	plantUsed = `INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason,
		trigger_id, origin, trace)
		SELECT id, 3, 2, 3, 'order', used_at, expires_at, due_at, order_id, 'verify', '', '', '', '' FROM coupon WHERE id >= ? AND id < ?`
	plantKeys = `INSERT INTO grant_key (issuer, grant_key, coupon_id, content_hash)
		SELECT 'verify', CONCAT('planted-', id), id, UNHEX(REPEAT('00', 32)) FROM coupon WHERE id >= ? AND id < ?`
	plantSeen  = `INSERT INTO ledger_seen (coupon_id, version) SELECT coupon_id, version FROM coupon_history WHERE coupon_id >= ? AND coupon_id < ?`
	plantStats = `INSERT INTO template_stats (template_id, day, granted, locked, used, expired, granted_value, used_value, expired_value)
		SELECT c.template_id, DATE(h.at), SUM(h.version = 1), SUM(h.to_status = 2), SUM(h.to_status = 3), SUM(h.to_status = 4),
		500 * SUM(h.version = 1), 500 * SUM(h.to_status = 3), 500 * SUM(h.to_status = 4)
		FROM coupon_history h JOIN coupon c ON c.id = h.coupon_id WHERE h.coupon_id >= ? AND h.coupon_id < ? GROUP BY 1, 2
		ON DUPLICATE KEY UPDATE granted = granted + VALUES(granted), locked = locked + VALUES(locked), used = used + VALUES(used),
		expired = expired + VALUES(expired), granted_value = granted_value + VALUES(granted_value), used_value = used_value + VALUES(used_value),
		expired_value = expired_value + VALUES(expired_value)`
	plantStock = `UPDATE template_stock SET taken = taken + ? WHERE template_id = ?`
)

// plant puts the coupons there and gives the ids of the first and behind the last.
func (s *shop) plant(ctx context.Context, p planted) (first, end int, err error) {
	if p.spread < 1 {
		p.spread = 1
	}
	for _, statement := range []string{numbersTable, fillNumbers} {
		if _, err := s.DB().ExecContext(ctx, statement); err != nil {
			return 0, 0, fmt.Errorf("planting: %w", err)
		}
	}
	if first, err = countIn(ctx, s.DB(), "SELECT 1 + GREATEST((SELECT COALESCE(MAX(id), 0) FROM coupon), (SELECT COALESCE(MAX(id), 0) FROM coupon_archive))"); err != nil {
		return 0, 0, err
	}
	version := map[int]int{statusUnused: 1, statusExpired: 2, statusUsed: 3}[p.status]
	for at := first; at < first+p.n; at += numberRows {
		n := min(numberRows, first+p.n-at)
		ends := p.ends.Add(time.Duration((at-first)%p.spread) * p.apart)
		if err := s.plantPart(ctx, p, at, n, version, ends); err != nil {
			return 0, 0, err
		}
	}
	_, err = s.DB().ExecContext(ctx, plantStock, p.n, p.template)
	return first, first + p.n, err
}

func (s *shop) plantPart(ctx context.Context, p planted, at, n, version int, ends time.Time) error {
	run := func(statement string, args ...any) error {
		if _, err := s.DB().ExecContext(ctx, statement, args...); err != nil {
			return fmt.Errorf("planting: %w", err)
		}
		return nil
	}
	err := run(plantCoupons, p.template, p.user, p.user, p.status, version, p.granted, p.granted, p.status, p.status, p.granted, p.status, p.status,
		at, ends, p.spread, int(p.apart.Seconds()), n)
	steps := []string{plantFirst}
	switch p.status {
	case statusUsed:
		steps = append(steps, plantLocked, plantUsed)
	case statusExpired:
		steps = append(steps, plantExpired)
	}
	if p.keys {
		steps = append(steps, plantKeys, plantSeen, plantStats)
	}
	for _, step := range steps {
		if err != nil {
			return err
		}
		err = run(step, at, at+n)
	}
	return err
}

// answered is what lapsectl answered.
type answered struct {
	code   int
	out    []byte
	errors string
}

// json reads its answer.
func (a answered) json(into any) error {
	if err := json.Unmarshal(a.out, into); err != nil {
		return fmt.Errorf("lapsectl's answer: %w: %s%s", err, a.out, a.errors)
	}
	return nil
}

const commandLimit = 30 * time.Minute

// lapsectl calls the command as people do. more is added to its environment.
func (w *backstops) lapsectl(ctx context.Context, s *shop, more []string, args ...string) (answered, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(w.cfg.Bin, lapsectl), args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = os.TempDir(), append(append(s.Env(), "USER=verify"), more...), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		return answered{}, fmt.Errorf("calling lapsectl %v: %w", args, errors.Join(err, ctx.Err()))
	}
	return answered{code: cmd.ProcessState.ExitCode(), out: out.Bytes(), errors: errs.String()}, nil
}

// ends of planted coupons, as the history tells of them.
type endings struct {
	expired, twice, early int
	by                    map[string]int
}

const (
	endingsQuery = `SELECT COUNT(*) FROM coupon WHERE id >= ? AND id < ? AND status = 4`
	twiceQuery   = `SELECT COUNT(*) FROM (SELECT coupon_id FROM coupon_history WHERE coupon_id >= ? AND coupon_id < ? AND to_status = 4
		GROUP BY coupon_id HAVING COUNT(*) > 1) x`
	earlyQuery = `SELECT COUNT(*) FROM coupon_history WHERE coupon_id >= ? AND coupon_id < ? AND to_status = 4 AND at < expires_at`
	byQuery    = `SELECT COUNT(*) FROM coupon_history WHERE coupon_id >= ? AND coupon_id < ? AND to_status = 4 AND cause = ?`
)

func (s *shop) endings(ctx context.Context, first, end int) (e endings, err error) {
	e.by = map[string]int{}
	for query, into := range map[string]*int{endingsQuery: &e.expired, twiceQuery: &e.twice, earlyQuery: &e.early} {
		if *into, err = countIn(ctx, s.DB(), query, first, end); err != nil {
			return e, err
		}
	}
	for _, cause := range []string{"ladder", "sweep", "lazy"} {
		if e.by[cause], err = countIn(ctx, s.DB(), byQuery, first, end, cause); err != nil {
			return e, err
		}
	}
	return e, nil
}

// allEnded waits until as many of them have expired, or the limit has passed; the checks say what is amiss.
func (s *shop) allEnded(ctx context.Context, first, end, n int, limit time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := until(limited, func() (bool, error) {
		have, err := countIn(limited, s.DB(), endingsQuery, first, end)
		if err == nil {
			err = pause(limited, time.Second)
		}
		return have >= n, err
	})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

// wants adds what holds of all of them.
func (e endings) wants(t *tally, n int) {
	want(t, "expired", e.expired, Equal, n)
	want(t, "twice", e.twice, Equal, 0)
	want(t, "early", e.early, Equal, 0)
}
