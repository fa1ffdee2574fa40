package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	sweeps      = 3
	readBound   = 2.2
	badRows     = 500
	overdueBack = 10 * time.Minute
)

func grantUntil(end time.Time) func(int, *client.Grant) {
	return func(_ int, g *client.Grant) { g.ExpiresAt = &end }
}

func keyed(key string, end time.Time) func(int, *client.Grant) {
	return func(i int, g *client.Grant) { g.ExpiresAt, g.GrantKey = &end, key+"-"+strconv.Itoa(i) }
}

// Both kinds of server answer this one; the tables of status variables differ. Handler_read_retry and Handler_read_rnd_deleted are no rows.
const handlersQuery = `SHOW GLOBAL STATUS WHERE Variable_name IN
	('Handler_read_key', 'Handler_read_next', 'Handler_read_prev', 'Handler_read_first', 'Handler_read_last', 'Handler_read_rnd', 'Handler_read_rnd_next')`

// handlers is how many rows the server's engines have read in all.
func (w *backstops) handlers(ctx context.Context) (n int, err error) {
	err = w.cfg.asRoot(func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, handlersQuery)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // Err is what counts
		for rows.Next() {
			var name string
			var read int
			if err := rows.Scan(&name, &read); err != nil {
				return err
			}
			n += read
		}
		return rows.Err()
	})
	if err != nil {
		err = fmt.Errorf("reading the server's counters: %w", err)
	}
	return n, err
}

func (s *shop) late(ctx context.Context, template string, n int) (first, end int, err error) {
	return s.plant(ctx, planted{
		template: template, n: n, status: statusUnused, ends: s.Now().Add(-overdueBack).Truncate(time.Second), apart: time.Second, spread: 300,
		granted: s.Now().Add(-2 * time.Hour),
	})
}

// sweepShared lets three sweeps of an outside scheduler work at once, without any worker: what the server read is theirs.
func (w *backstops) sweepShared(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		template, _, err := w.large(ctx, s)
		if err != nil {
			return err
		}
		n := w.size.overdue
		first, end, err := s.late(ctx, template, n)
		if err != nil {
			return err
		}
		before, err := w.handlers(ctx)
		if err != nil {
			return err
		}
		var mu sync.Mutex
		settled, exits := 0, 0
		began := time.Now()
		all, sweeping := errgroup.WithContext(ctx)
		for range sweeps {
			all.Go(func() error {
				said, err := w.lapsectl(sweeping, s, []string{"LAPSE__EXPIRY__SWEEP__BUDGET=30m"}, "sweep", "--once", "--json")
				if err != nil {
					return err
				}
				var x struct {
					Settled int `json:"settled"`
				}
				if err := said.json(&x); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				settled, exits = settled+x.Settled, exits+said.code
				return nil
			})
		}
		if err := all.Wait(); err != nil {
			return err
		}
		took := time.Since(began)
		after, err := w.handlers(ctx)
		if err != nil {
			return err
		}
		want(t, "exits", exits, Equal, 0)
		want(t, "settled", settled, Equal, n)
		want(t, "rows_read_for_each_changed", float64(after-before)/float64(n), AtMost, readBound)
		told(t, "per_second", int(float64(n)/took.Seconds()))
		e, err := s.endings(ctx, first, end)
		if err != nil {
			return err
		}
		e.wants(t, n)
		want(t, "by_the_sweep", e.by["sweep"], Equal, n)
		return w.shelf.put(ctx, s)
	})
}

func (s *shop) startAgain(ctx context.Context, workers ...string) error {
	for _, worker := range workers {
		if err := s.Start(ctx, worker); err != nil {
			return err
		}
	}
	return s.dial()
}

// daytime is the environment of expirers outside of their quiet hours.
func daytime(worker string) map[string]string {
	if worker != demo.Expirer {
		return nil
	}
	return map[string]string{
		"LAPSE__EXPIRY__SWEEP__QUIET_WINDOWS": "never", "LAPSE__LOG__LEVEL": "warn",
	}
}

// sweepBadRows lets three expirers sweep, with rows at the head of the index that the database refuses to change, while orders
// lock and redeem.
func (w *backstops) sweepBadRows(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{env: daytime}, func(ctx context.Context, s *shop) (err error) {
		template, _, err := w.large(ctx, s)
		if err != nil {
			return err
		}
		if err := s.startAgain(ctx, demo.Publisher, demo.Expirer); err != nil {
			return err
		}
		if err := s.Fleet().StopOne(ctx, demo.Expirer); err != nil {
			return err
		}
		n := w.size.overdue
		bad, _, err := s.plant(ctx, planted{
			template: template, n: badRows, status: statusUnused, ends: s.Now().Add(-overdueBack - time.Minute).Truncate(time.Second), granted: s.Now().Add(-2 * time.Hour),
		})
		if err != nil {
			return err
		}
		first, end, err := s.late(ctx, template, n)
		if err != nil {
			return err
		}
		refuse := `CREATE TRIGGER verify_refuse BEFORE UPDATE ON coupon FOR EACH ROW
			BEGIN IF NEW.id >= ` + strconv.Itoa(bad) + ` AND NEW.id < ` + strconv.Itoa(bad+badRows) + ` THEN
			SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused by the verification'; END IF; END`
		if err := w.trigger(ctx, s, refuse); err != nil {
			return err
		}
		began := time.Now()
		expirers := []string{demo.Expirer, "expirer-2", "expirer-3"}
		for _, name := range expirers {
			if name == demo.Expirer {
				err = s.Start(ctx, name)
			} else {
				err = s.Add(ctx, w.cfg.Bin, name, demo.Expirer, daytime(demo.Expirer))
			}
			if err != nil {
				return err
			}
		}
		each := func(do func(string) error) func() error {
			return func() error {
				var errs []error
				for _, name := range expirers {
					errs = append(errs, do(name))
				}
				return errors.Join(errs...)
			}
		}
		swept := func() (int, error) {
			return countIn(ctx, s.DB(), `SELECT COUNT(*) FROM coupon WHERE id >= ? AND id < ? AND status = 4`, first, end)
		}
		b, err := s.beside(ctx, w, template, company{pause: each(s.Fleet().Pause), resume: each(s.Fleet().Resume), done: swept})
		if err != nil {
			return err
		}
		by, err := swept()
		if err != nil {
			return err
		}
		told(t, "per_second_beside", int(float64(by)/(time.Since(began)-b.paused).Seconds()))
		// The rest as in the quiet hours, by one more.
		said, err := w.lapsectl(ctx, s, []string{"LAPSE__EXPIRY__SWEEP__BUDGET=30m"}, "sweep", "--once", "--json")
		if err != nil {
			return err
		}
		want(t, "exit", said.code, Equal, 1) // for the rows that cannot be changed
		if err := s.allEnded(ctx, first, end, draining(n)); err != nil {
			return err
		}
		e, err := s.endings(ctx, first, end)
		if err != nil {
			return err
		}
		e.wants(t, n)
		left, err := countIn(ctx, s.DB(), `SELECT COUNT(*) FROM coupon WHERE id >= ? AND id < ? AND status = 1`, bad, bad+badRows)
		if err != nil {
			return err
		}
		want(t, "bad_rows_left_alone", left, Equal, badRows)
		b.wants(t)
		return w.shelf.put(ctx, s)
	})
}

// trigger makes a trigger in the installation's database, which only the server's administrator may. It goes with the database.
func (w *backstops) trigger(ctx context.Context, s *shop, statement string) error {
	c, err := mysql.ParseDSN(s.DSN())
	if err != nil {
		return errors.New("the installation's address is malformed")
	}
	err = w.cfg.asRoot(func(db *sql.DB) error {
		db.SetMaxOpenConns(1) // USE is the session's
		_, err := db.ExecContext(ctx, "USE "+c.DBName)
		if err == nil {
			_, err = db.ExecContext(ctx, statement)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("making rows that cannot be changed: %w", err)
	}
	return nil
}
