package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// shelf keeps the large table between the sections that need one: to plant millions of rows takes minutes, to rename their
// tables into another database nothing. Each section gets it as it was planted.
type shelf struct {
	database   string
	made       bool // the database may be there
	kept       bool // it holds the tables now
	first, end int
	kinds      []planted
}

// shelved are the tables that go with the coupons; each has the column by which what a section added is told from what was planted.
var shelved = []struct{ table, id string }{ //nolint:gochecknoglobals // a constant list
	{"coupon", "id"}, {"coupon_history", "coupon_id"}, {"grant_key", "coupon_id"}, {"ledger_seen", "coupon_id"},
}

// countedApart are coupons of a template of their own: its counters are not recounted from coupons that are damaged.
const countedApart = 1000

// large gives the shop a large table with all its books, and two templates: most of its rows were used, some expired, some end days
// later. Publisher and expirer are stopped.
func (w *backstops) large(ctx context.Context, s *shop) (template, counted string, err error) {
	if template, err = s.template(ctx, nil); err != nil {
		return "", "", err
	}
	if counted, err = s.template(ctx, nil); err != nil {
		return "", "", err
	}
	for _, worker := range []string{demo.Expirer, demo.Publisher} {
		if err := s.Fleet().StopOne(ctx, worker); err != nil {
			return "", "", err
		}
	}
	w.cfg.View.Step(fmt.Sprintf("a table of %d rows", w.size.rows))
	if w.shelf.kept {
		err = w.shelf.take(ctx, s)
	} else {
		w.shelf.kinds = w.kinds(s.Now(), template, counted)
		w.shelf.first, w.shelf.end, err = s.plantAll(ctx, w.shelf.kinds...)
	}
	if err != nil {
		return "", "", err
	}
	_, err = s.DB().ExecContext(ctx, "ANALYZE TABLE coupon, coupon_history")
	w.cfg.View.Step("the table is there")
	return template, counted, err
}

func (w *backstops) kinds(now time.Time, template, counted string) []planted {
	const day = 24 * time.Hour
	now = now.Truncate(time.Second)
	used, expired := w.size.rows/2, w.size.rows/5
	kinds := []planted{
		{template: template, n: used, status: statusUsed, ends: now.Add(-2 * day)},
		{template: template, n: expired, status: statusExpired, ends: now.Add(-2 * day)},
		{template: template, n: w.size.rows - used - expired - countedApart, status: statusUnused, ends: now.Add(2 * day)},
		{template: counted, n: countedApart, status: statusUnused, ends: now.Add(2 * day)},
	}
	for i := range kinds {
		k := &kinds[i]
		k.granted, k.apart, k.spread, k.keys = now.Add(-3*day), time.Second, 50_000, true
	}
	return kinds
}

// take moves the tables into the shop's database, and counts them into its statistics and stocks.
func (f *shelf) take(ctx context.Context, s *shop) error {
	c, err := mysql.ParseDSN(s.DSN())
	if err != nil {
		return errors.New("the installation's address is malformed")
	}
	return s.planting(ctx, c.DBName, func(run func(string, ...any) error) error {
		f.kept = false
		for _, t := range shelved {
			if err := run("DROP TABLE " + t.table); err != nil {
				return err
			}
			if err := run("RENAME TABLE " + f.database + "." + t.table + " TO " + c.DBName + "." + t.table); err != nil {
				return err
			}
		}
		for _, step := range []string{plantGranted, plantExpired} {
			if err := run(step, f.first, f.end); err != nil {
				return err
			}
		}
		for _, k := range f.kinds {
			if err := run(plantStock, k.n, k.template); err != nil {
				return err
			}
		}
		return nil
	})
}

// put moves them back, without what the section added; what was planted it must not have changed. The shop's workers are stopped.
func (f *shelf) put(ctx context.Context, s *shop) error {
	c, err := mysql.ParseDSN(s.DSN())
	if err != nil {
		return errors.New("the installation's address is malformed")
	}
	if err := s.Fleet().Stop(ctx); err != nil {
		return err
	}
	return s.planting(ctx, c.DBName, func(run func(string, ...any) error) error {
		f.made = true
		if err := run("CREATE DATABASE IF NOT EXISTS " + f.database); err != nil {
			return err
		}
		if err := run("DROP TRIGGER IF EXISTS verify_refuse"); err != nil {
			return err
		}
		for _, t := range shelved {
			if err := run("DELETE FROM "+t.table+" WHERE "+t.id+" >= ?", f.end); err != nil {
				return err
			}
			if err := run("RENAME TABLE " + c.DBName + "." + t.table + " TO " + f.database + "." + t.table); err != nil {
				return err
			}
		}
		f.kept = true
		return nil
	})
}

// drop removes it, whatever became of ctx.
func (f *shelf) drop(ctx context.Context, cfg Config) error {
	if !f.made {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return cfg.asRoot(func(db *sql.DB) error {
		if _, err := db.ExecContext(ctx, "DROP DATABASE IF EXISTS "+f.database); err != nil {
			return fmt.Errorf("clearing up: %w", err)
		}
		return nil
	})
}
