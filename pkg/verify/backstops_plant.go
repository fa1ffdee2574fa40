package verify

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/lifecycle"
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
	kindsTable = `CREATE TEMPORARY TABLE verify_kind (first BIGINT UNSIGNED PRIMARY KEY, n BIGINT UNSIGNED, template BIGINT UNSIGNED, user VARBINARY(128),
		status TINYINT UNSIGNED, version INT UNSIGNED, ends DATETIME(3), apart INT UNSIGNED, spread BIGINT UNSIGNED, granted DATETIME(3))`
	fillKinds = `INSERT INTO verify_kind VALUES (?,?,?,?,?,?,?,?,?,?)`
	// What a grant, a redemption and an expiry leave. Each table is written in the order of its key, by one statement: into an empty one
	// MariaDB then loads in bulk.
	plantCoupons = `INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at,
		order_id, used_at, expired_at, expire_cause)
		SELECT x.id, x.template, 1, 'planted', IF(x.user = '', CONCAT('user-', x.id % 100000), x.user), x.status, x.version, x.granted, x.ends, x.ends, x.granted,
		IF(x.status = 3, CONCAT('order-', x.id), NULL), IF(x.status = 3, x.granted, NULL), IF(x.status = 4, x.ends, NULL), IF(x.status = 4, 'ladder', NULL)
		FROM (SELECT k.first + a.n + 100000 * b.n AS id, k.template, k.user, k.status, k.version, k.granted,
			k.ends + INTERVAL ((a.n + 100000 * b.n) % k.spread) * k.apart SECOND AS ends
			FROM verify_kind k STRAIGHT_JOIN verify_number b STRAIGHT_JOIN verify_number a
			WHERE b.n < 100 AND 100000 * b.n < k.n AND a.n + 100000 * b.n < k.n) x`
	plantHistory = `INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason,
		trigger_id, origin, trace, lock_until)
		SELECT c.id, v.n, v.n - 1, IF(v.n = 2 AND c.status = 4, 4, v.n), CASE WHEN v.n = 1 THEN 'grant' WHEN c.status = 4 THEN 'ladder' ELSE 'order' END,
		IF(v.n = 2 AND c.status = 4, c.expired_at, c.granted_at), c.expires_at, c.due_at, IF(v.n = 1, '', COALESCE(c.order_id, '')),
		IF(v.n = 2 AND c.status = 4, 'lapse', 'verify'), '', '', IF(v.n = 2 AND c.status = 4, 'ladder', ''), '',
		IF(v.n = 2 AND c.status = 3, c.used_at + INTERVAL 1800 SECOND, NULL)
		FROM coupon c FORCE INDEX (PRIMARY) STRAIGHT_JOIN verify_number v WHERE c.id >= ? AND c.id < ? AND v.n >= 1 AND v.n <= 3 AND v.n <= c.version`
	plantKeys = `INSERT INTO grant_key (issuer, grant_key, coupon_id, content_hash)
		SELECT 'verify', CONCAT('planted-', LPAD(id, 12, '0')), id, UNHEX(REPEAT('00', 32)) FROM coupon FORCE INDEX (PRIMARY) WHERE id >= ? AND id < ?`
	plantSeen = `INSERT INTO ledger_seen (coupon_id, version)
		SELECT c.id, v.n FROM coupon c FORCE INDEX (PRIMARY) STRAIGHT_JOIN verify_number v
		WHERE c.id >= ? AND c.id < ? AND v.n >= 1 AND v.n <= 3 AND v.n <= c.version`
	plantGranted = `INSERT INTO template_stats (template_id, day, granted, locked, used, granted_value, used_value)
		SELECT template_id, DATE(granted_at), COUNT(*), SUM(status = 3), SUM(status = 3), 500 * COUNT(*), 500 * SUM(status = 3)
		FROM coupon FORCE INDEX (PRIMARY) WHERE id >= ? AND id < ? GROUP BY 1, 2
		ON DUPLICATE KEY UPDATE granted = granted + VALUES(granted), locked = locked + VALUES(locked), used = used + VALUES(used),
		granted_value = granted_value + VALUES(granted_value), used_value = used_value + VALUES(used_value)`
	plantExpired = `INSERT INTO template_stats (template_id, day, expired, expired_value)
		SELECT template_id, DATE(expired_at), COUNT(*), 500 * COUNT(*)
		FROM coupon FORCE INDEX (PRIMARY) WHERE id >= ? AND id < ? AND status = 4 GROUP BY 1, 2
		ON DUPLICATE KEY UPDATE expired = expired + VALUES(expired), expired_value = expired_value + VALUES(expired_value)`
	plantStock = `UPDATE template_stock SET taken = taken + ? WHERE template_id = ?`
)

// plant puts the coupons there and gives the ids of the first and behind the last.
func (s *shop) plant(ctx context.Context, p planted) (first, end int, err error) {
	return s.plantAll(ctx, p)
}

// plantAll is plant for several kinds, one behind the other. All of them have grant keys, or none.
func (s *shop) plantAll(ctx context.Context, kinds ...planted) (first, end int, err error) {
	c, err := mysql.ParseDSN(s.DSN())
	if err != nil {
		return 0, 0, errors.New("the installation's address is malformed")
	}
	if first, err = countIn(ctx, s.DB(), "SELECT 1 + GREATEST((SELECT COALESCE(MAX(id), 0) FROM coupon), (SELECT COALESCE(MAX(id), 0) FROM coupon_archive))"); err != nil {
		return 0, 0, err
	}
	if end, err = s.plantCoupons(ctx, c.DBName, first, kinds); err != nil {
		return first, end, err
	}
	lanes := [][]string{{plantHistory}}
	if kinds[0].keys {
		lanes = append(lanes, []string{plantKeys, plantSeen, plantGranted, plantExpired})
	}
	var all errgroup.Group
	for _, steps := range lanes {
		all.Go(func() error {
			return s.planting(ctx, c.DBName, func(run func(string, ...any) error) error {
				for _, step := range steps {
					if err := run(step, first, end); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	return first, end, all.Wait()
}

func (s *shop) plantCoupons(ctx context.Context, database string, first int, kinds []planted) (end int, err error) {
	end = first
	err = s.planting(ctx, database, func(run func(string, ...any) error) error {
		for _, statement := range []string{numbersTable, fillNumbers, kindsTable} {
			if err := run(statement); err != nil {
				return err
			}
		}
		for _, p := range kinds {
			version := map[int]int{statusUnused: 1, statusExpired: 2, statusUsed: 3}[p.status]
			err := run(fillKinds, end, p.n, p.template, p.user, p.status, version, p.ends.UTC(), int(p.apart.Seconds()), max(1, p.spread), p.granted.UTC())
			if err == nil {
				err = run(plantStock, p.n, p.template)
			}
			if err != nil {
				return err
			}
			end += p.n
		}
		return run(plantCoupons)
	})
	return end, err
}

// planting runs statements in a session of its own: nobody reads its binary log, and rows that are copied need no locks.
func (s *shop) planting(ctx context.Context, database string, do func(run func(statement string, args ...any) error) error) error {
	return s.root(func(db *sql.DB) error {
		db.SetMaxOpenConns(1)
		run := func(statement string, args ...any) error {
			if _, err := db.ExecContext(ctx, statement, args...); err != nil {
				return fmt.Errorf("planting: %w", err)
			}
			return nil
		}
		for _, statement := range []string{
			"USE " + database, "SET SESSION sql_log_bin = 0", "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
			"SET SESSION unique_checks = 0", "SET SESSION foreign_key_checks = 0",
		} {
			if err := run(statement); err != nil {
				return err
			}
		}
		return do(run)
	})
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

// call calls the command as people do; more is added to its environment. answer waits until it has ended, and must be called.
func (w *checkout) call(ctx context.Context, s *shop, more []string, args ...string) (p *os.Process, answer func() (answered, error), err error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(w.cfg.Bin, lapsectl), args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = os.TempDir(), append(append(s.Env(), "USER=verify"), more...), &out, &errs
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, nil, fmt.Errorf("calling lapsectl %v: %w", args, err)
	}
	return cmd.Process, func() (answered, error) {
		defer cancel()
		err := cmd.Wait()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
			return answered{}, fmt.Errorf("calling lapsectl %v: %w", args, errors.Join(err, ctx.Err()))
		}
		return answered{code: cmd.ProcessState.ExitCode(), out: out.Bytes(), errors: errs.String()}, nil
	}, nil
}

// lapsectl calls the command and waits for its answer.
func (w *checkout) lapsectl(ctx context.Context, s *shop, more []string, args ...string) (answered, error) {
	_, answer, err := w.call(ctx, s, more, args...)
	if err != nil {
		return answered{}, err
	}
	return answer()
}

// ends of planted coupons, as the history tells of them.
type endings struct {
	expired, twice, early int
	lateMS                int // of the last one; 0 if none has expired
	by                    map[string]int
}

const (
	unendedQuery = `SELECT EXISTS (SELECT 1 FROM coupon FORCE INDEX (PRIMARY) WHERE id >= ? AND id < ? AND status <> 4)`
	endingsQuery = `SELECT COUNT(*) FROM coupon WHERE id >= ? AND id < ? AND status = 4`
	twiceQuery   = `SELECT COUNT(*) FROM (SELECT coupon_id FROM coupon_history WHERE coupon_id >= ? AND coupon_id < ? AND to_status = 4
		GROUP BY coupon_id HAVING COUNT(*) > 1) x`
	earlyQuery = `SELECT COUNT(*) FROM coupon_history WHERE coupon_id >= ? AND coupon_id < ? AND to_status = 4 AND at < expires_at`
	lateQuery  = `SELECT COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, expires_at, at)) DIV 1000, 0) FROM coupon_history
		WHERE coupon_id >= ? AND coupon_id < ? AND to_status = 4`
	byQuery = `SELECT COUNT(*) FROM coupon_history WHERE coupon_id >= ? AND coupon_id < ? AND to_status = 4 AND cause = ?`
)

func (s *shop) endings(ctx context.Context, first, end int) (e endings, err error) {
	e.by = map[string]int{}
	for query, into := range map[string]*int{endingsQuery: &e.expired, twiceQuery: &e.twice, earlyQuery: &e.early, lateQuery: &e.lateMS} {
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

// draining is how long n coupons are waited for at most. How fast a machine is, is no matter here: only that all of them come is.
func draining(n int) time.Duration { return 5*time.Minute + time.Duration(n/500)*time.Second }

// allEnded waits until all of them have expired, or the limit has passed; the checks say what is amiss. The look ends at the first
// that has not: to count a million every second would be a load of its own.
func (s *shop) allEnded(ctx context.Context, first, end int, limit time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := until(limited, func() (bool, error) {
		unended, err := countIn(limited, s.DB(), unendedQuery, first, end)
		if err == nil && unended > 0 {
			err = lifecycle.Sleep(limited, time.Second)
		}
		return unended == 0, err
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
