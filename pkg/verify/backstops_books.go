package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	reconcileBound = 2 * time.Minute
	archiveBound   = 5000 // coupons a second
)

// books is what lapsectl reconcile says.
type books struct {
	Coupons  int `json:"coupons"`
	TookMS   int `json:"took_ms"`
	Findings []struct {
		Kind     string `json:"kind"`
		Count    int    `json:"count"`
		Repaired int    `json:"repaired"`
	} `json:"findings"`
}

func (b books) total() (n int) {
	for _, f := range b.Findings {
		n += f.Count
	}
	return n
}

// reconcile holds the books of a large table against each other, as they are and then with damage of ten kinds.
func (w *backstops) reconcile(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		// Nobody may mend what is damaged before it is found.
		template, counted, err := w.large(ctx, s)
		if err != nil {
			return err
		}
		if _, err := s.DB().ExecContext(ctx, "INSERT INTO setting (name, value, updated_at) VALUES ('ledger.seed', 'done', UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE value = 'done'"); err != nil {
			return err
		}
		healthy, code, err := w.books(ctx, s, "reconcile", "--json")
		if err != nil {
			return err
		}
		want(t, "healthy_exit", code, Equal, 0)
		want(t, "healthy_findings", healthy.total(), Equal, 0)
		want(t, "coupons", healthy.Coupons, Equal, w.size.rows)
		want(t, "took_ms", healthy.TookMS, AtMost, int(reconcileBound.Milliseconds()))
		return w.damage(ctx, s, template, counted)
	})
}

func (w *backstops) books(ctx context.Context, s *shop, args ...string) (b books, code int, err error) {
	said, err := w.lapsectl(ctx, s, nil, args...)
	if err != nil {
		return b, 0, err
	}
	for _, line := range strings.Split(strings.TrimSpace(said.errors), "\n") {
		if line != "" {
			w.cfg.View.Step(line)
		}
	}
	return b, said.code, said.json(&b)
}

// harms are ten kinds of damage: each kind with what does it to one row, which is taken from the coupons by offset.
var harms = []struct { //nolint:gochecknoglobals // a constant list
	kind       string
	repairable bool
	does       []string // ? is the coupon
	status     int
	apart      bool // in a template of its own: counters are not recounted from damaged coupons
}{
	{"overdue", true, []string{
		`UPDATE coupon SET expires_at = expires_at - INTERVAL 30 DAY, due_at = due_at - INTERVAL 30 DAY WHERE id = ?`,
		`UPDATE coupon_history SET expires_at = expires_at - INTERVAL 30 DAY, due_at = due_at - INTERVAL 30 DAY WHERE coupon_id = ?`,
	}, statusUnused, false},
	{"stuck_lock", true, []string{
		`UPDATE coupon SET status = 2, version = 2, order_id = 'o', locked_at = granted_at, lock_until = granted_at + INTERVAL 1 HOUR WHERE id = ?`,
		`INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace, lock_until)
		SELECT id, 2, 1, 2, 'order', granted_at, expires_at, due_at, 'o', 'v', '', '', '', '', lock_until FROM coupon WHERE id = ?`,
		`INSERT INTO ledger_seen (coupon_id, version) VALUES (?, 2)`,
		`UPDATE template_stats SET locked = locked + 1 WHERE (template_id, day) IN (SELECT template_id, DATE(granted_at) FROM coupon WHERE id = ?)`,
	}, statusUnused, false},
	{"quota", true, []string{`UPDATE template_stock SET taken = taken + 7 WHERE template_id = (SELECT template_id FROM coupon WHERE id = ?)`}, statusUnused, true},
	{"statistics", true, []string{`UPDATE template_stats SET used = used + 3 WHERE (template_id, day) IN (SELECT template_id, DATE(granted_at) FROM coupon WHERE id = ?)`}, statusUnused, true},
	{"history", false, []string{`DELETE FROM coupon_history WHERE coupon_id = ? AND version = 2`}, statusUsed, false},
	{"state", false, []string{`UPDATE coupon SET status = 4 WHERE id = ?`}, statusUsed, false},
	{"lost", false, []string{`INSERT INTO grant_key (issuer, grant_key, coupon_id, content_hash) SELECT 'verify', 'lost', 1 + MAX(id), UNHEX(REPEAT('00', 32)) FROM coupon WHERE id >= ?`}, statusUnused, false},
	{"unsent", false, []string{`INSERT INTO outbox (lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, refused, created_at)
		SELECT 1, id % 16, id, 'verify', 'coupon.issued', 'x', NULL, '{}', '', 0, UTC_TIMESTAMP(3) - INTERVAL 1 DAY FROM coupon WHERE id = ?`}, statusUnused, false},
	{"parked", false, []string{`INSERT INTO outbox_parked (id, lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, reason, parked_at)
		SELECT id, 1, id % 16, id, 'verify', 'coupon.issued', 'x', NULL, '{}', '', 'verify', UTC_TIMESTAMP(3) - INTERVAL 1 DAY FROM coupon WHERE id = ?`}, statusUnused, false},
	{"order_paid", false, nil, statusUnused, false},
}

// damage does one of each, and looks for all of them.
func (w *backstops) damage(ctx context.Context, s *shop, template, counted string) error {
	dir, err := os.MkdirTemp("", "lapse-verify-")
	if err != nil {
		return fmt.Errorf("a directory for an export: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // below the system's own
	orders := filepath.Join(dir, "orders.jsonl")
	w.cfg.View.Step(fmt.Sprintf("%d kinds of damage", len(harms)))
	for i, harm := range harms {
		of := template
		if harm.apart {
			of = counted
		}
		id, err := countIn(ctx, s.DB(), "SELECT id FROM coupon WHERE template_id = ? AND status = ? AND version < 4 ORDER BY id LIMIT 1 OFFSET ?", of, harm.status, 10+i)
		if err != nil {
			return err
		}
		for _, statement := range harm.does {
			if _, err := s.DB().ExecContext(ctx, statement, id); err != nil {
				return fmt.Errorf("damage %s: %w", harm.kind, err)
			}
		}
		if harm.kind == "order_paid" {
			line := fmt.Sprintf(`{"order_id":"unused","state":"paid","coupon_ids":["%d"],"at":%q}`+"\n", id, s.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
			if err := os.WriteFile(orders, []byte(line), 0o600); err != nil {
				return fmt.Errorf("an export: %w", err)
			}
		}
	}
	found, code, err := w.books(ctx, s, "reconcile", "--json", "--orders="+orders)
	if err != nil {
		return err
	}
	want(s.t, "damaged_exit", code, Equal, 1)
	counts := map[string]int{}
	for _, f := range found.Findings {
		counts[f.Kind] = f.Count
	}
	others := found.total()
	for _, harm := range harms {
		want(s.t, "found_"+harm.kind, counts[harm.kind], AtLeast, 1)
		others -= counts[harm.kind]
	}
	told(s.t, "found_besides", others)
	mended, code, err := w.books(ctx, s, "reconcile", "--json", "--orders="+orders, "--repair", "--reason=verify")
	if err != nil {
		return err
	}
	want(s.t, "listed_exit", code, Equal, 1)
	repaired := map[string]int{}
	for _, f := range mended.Findings {
		repaired[f.Kind] = f.Repaired
	}
	for _, harm := range harms {
		if harm.repairable {
			want(s.t, "repaired_"+harm.kind, repaired[harm.kind], AtLeast, 1)
		} else {
			want(s.t, "left_"+harm.kind, repaired[harm.kind], Equal, 0)
		}
	}
	again, _, err := w.books(ctx, s, "reconcile", "--json", "--orders="+orders)
	if err != nil {
		return err
	}
	still, mendable := 0, 0
	for _, harm := range harms {
		if harm.repairable {
			mendable += counts[harm.kind] - repaired[harm.kind]
		}
	}
	for _, f := range again.Findings {
		for _, harm := range harms {
			if harm.repairable && f.Kind == harm.kind {
				still += f.Count
			}
		}
	}
	// A damaged history makes a wrong statistic, too, which is not mended from it.
	want(s.t, "repairable_left", still, Equal, mendable)
	return nil
}

// archive moves what finished long ago, first alone, without its brake, and then, as it is, while orders lock and redeem.
func (w *backstops) archive(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		first, last, err := s.finished(ctx, template, w.size.archived)
		if err != nil {
			return err
		}
		perSecond, err := w.archived(ctx, s, "alone_", first, last, []string{"LAPSE__ARCHIVE__MAX_RATE=0"}, nil)
		if err != nil {
			return err
		}
		want(t, "alone_per_second", perSecond, AtLeast, archiveBound)
		next, end, err := s.finished(ctx, template, w.size.archived)
		if err != nil {
			return err
		}
		var b beside
		perSecond, err = w.archived(ctx, s, "beside_", next, end, nil, func(p *os.Process) (time.Duration, error) {
			b, err = s.beside(ctx, w, template, company{
				pause:  func() error { return p.Signal(syscall.SIGSTOP) },
				resume: func() error { return p.Signal(syscall.SIGCONT) },
				done: func() (int, error) {
					left, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE id >= ? AND id < ?", next, end)
					return end - next - left, err
				},
			})
			return b.paused, err
		})
		if err != nil {
			return err
		}
		told(t, "beside_per_second", int(perSecond))
		there, err := countIn(ctx, s.DB(), `SELECT COUNT(*) FROM coupon_archive a WHERE id >= ? AND id < ?
			AND version = (SELECT COUNT(*) FROM coupon_history_archive h WHERE h.coupon_id = a.id)`, first, end)
		if err != nil {
			return err
		}
		want(t, "archived_with_their_history", there, Equal, 2*w.size.archived)
		b.wants(t)
		return nil
	})
}

// finished plants what finished long ago.
func (s *shop) finished(ctx context.Context, template string, n int) (first, end int, err error) {
	old := s.Now().Add(-400 * 24 * time.Hour)
	return s.plant(ctx, planted{
		template: template, n: n, status: statusUsed, ends: old.Add(30 * 24 * time.Hour).Truncate(time.Second), apart: time.Second, spread: 10_000,
		granted: old, keys: true,
	})
}

// archived archives them, while something else is done that may make it stand still, and gives how many a second.
func (w *backstops) archived(
	ctx context.Context, s *shop, prefix string, first, end int, more []string, meanwhile func(*os.Process) (stood time.Duration, err error),
) (perSecond float64, err error) {
	p, answer, err := w.call(ctx, s, more, "archive", "--once", "--json")
	if err != nil {
		return 0, err
	}
	var stood time.Duration
	var failed error
	if meanwhile != nil {
		stood, failed = meanwhile(p)
	}
	a, err := answer()
	if err := errors.Join(failed, err); err != nil {
		return 0, err
	}
	var x struct {
		Moved  int `json:"moved"`
		TookMS int `json:"took_ms"`
	}
	if err := a.json(&x); err != nil {
		return 0, err
	}
	want(s.t, prefix+"exit", a.code, Equal, 0)
	want(s.t, prefix+"moved", x.Moved, Equal, end-first)
	left, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE id >= ? AND id < ?", first, end)
	want(s.t, prefix+"left_behind", left, Equal, 0)
	return float64(x.Moved) * 1000 / float64(max(1, x.TookMS-int(stood.Milliseconds()))), err
}

// aheadBy makes new sessions of the installation's database read another clock, and cuts those that are; back undoes it, whatever
// became of ctx.
func (w *backstops) aheadBy(ctx context.Context, s *shop, by time.Duration) (back func() error, err error) {
	c, err := mysql.ParseDSN(s.DSN())
	if err != nil {
		return nil, errors.New("the installation's address is malformed")
	}
	was := ""
	cut := func(ctx context.Context, db *sql.DB) error {
		ids, err := sessionsOf(ctx, db, c.DBName)
		if err != nil {
			return err
		}
		for _, id := range ids {
			_, _ = db.ExecContext(ctx, fmt.Sprintf("KILL %d", id)) // it may be gone already
		}
		return nil
	}
	set := func(value string) error {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), rootLimit)
		defer cancel()
		return w.cfg.asRoot(func(db *sql.DB) error {
			if _, err := db.ExecContext(limited, "SET GLOBAL init_connect = ?", value); err != nil {
				return fmt.Errorf("setting the clock of new sessions: %w", err)
			}
			return cut(limited, db)
		})
	}
	err = w.cfg.asRoot(func(db *sql.DB) error { return db.QueryRowContext(ctx, "SELECT @@GLOBAL.init_connect").Scan(&was) })
	if err != nil {
		return nil, fmt.Errorf("asking for what new sessions begin with: %w", err)
	}
	w.cfg.View.Step(fmt.Sprintf("the database's clock reads %s ahead, for new sessions of this installation", by))
	ahead := fmt.Sprintf("SET timestamp = IF(DATABASE() = '%s', UNIX_TIMESTAMP() + %d, 0)", c.DBName, int(by.Seconds()))
	back = func() error { return set(was) }
	if err := set(ahead); err != nil {
		return nil, errors.Join(err, back()) // it may have been set all the same
	}
	return back, nil
}

// sessionsOf gives the connections that work in a database.
func sessionsOf(ctx context.Context, db *sql.DB, name string) (ids []int, err error) {
	rows, err := db.QueryContext(ctx, "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = ?", name)
	if err != nil {
		return nil, fmt.Errorf("looking for sessions: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("looking for sessions: %w", err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("looking for sessions: %w", err)
	}
	return ids, nil
}
