package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	second      = 1000 // milliseconds
	zoneOfStack = 8 * 60
	zoneWest    = -5 * 60
)

// walked adds what holds of every run: nothing lost, early or doubled, everybody told of everything once.
func walked(t *tally, prefix string, r *audit.Report, failures []string) {
	want(t, prefix+"expired", r.Expired, Equal, r.Coupons)
	want(t, prefix+"not_expired", r.NotExpired, Equal, 0)
	want(t, prefix+"early", r.Early, Equal, 0)
	want(t, prefix+"duplicate_transitions", r.DuplicateTransitions, Equal, 0)
	want(t, prefix+"missing_events", r.MissingEvents, Equal, 0)
	want(t, prefix+"coupons_in_notices", r.CouponsInNotices, Equal, r.Expired)
	want(t, prefix+"coupons_in_two_notices", r.Details.InTwoNotices, Equal, 0)
	want(t, prefix+"users_with_notice", r.UsersWithNotice, Equal, r.Users)
	want(t, prefix+"audit_failures", len(failures), Equal, 0)
}

// undisturbed adds what holds where nothing was killed.
func undisturbed(t *tally, prefix string, r *audit.Report) {
	want(t, prefix+"notices", r.Notices, Equal, r.Users)
	want(t, prefix+"duplicate_event_ids", r.DuplicateEventIDs, Equal, 0)
	want(t, prefix+"sweep_recovered", r.SweepRecovered, Equal, 0)
	want(t, prefix+"transition_p99_ms", r.TransitionLateness.P99, Below, second)
}

func (w *walk) demo(ctx context.Context, t *tally) error {
	minutes, err := w.zoneOfDatabase(ctx)
	if err != nil {
		return err
	}
	cfg := w.base(t, w.cfg.Coupons, 30*time.Second)
	cfg.Waiting = demo.DefaultWaiting
	r, err := w.run(ctx, cfg)
	if err != nil {
		return err
	}
	want(t, "database_minutes_east", minutes, Equal, zoneOfStack)
	want(t, "coupons", r.Report.Coupons, Equal, w.cfg.Coupons)
	walked(t, "", &r.Report, r.Failures)
	undisturbed(t, "", &r.Report)
	want(t, "waiting", r.Report.Waiting, Equal, demo.DefaultWaiting)
	return nil
}

func (w *walk) kill(what string) func(context.Context, *tally) error {
	return func(ctx context.Context, t *tally) error {
		cfg := w.base(t, w.small, 12*time.Second)
		cfg.Kill = what
		r, err := w.run(ctx, cfg)
		if err != nil {
			return err
		}
		walked(t, "", &r.Report, r.Failures)
		if what == demo.Broker {
			want(t, "latest_ms", r.Report.TransitionLateness.Max, AtMost, 30*second)
			told(t, "notices", r.Report.Notices)
		} else {
			want(t, "notices", r.Report.Notices, Equal, r.Report.Users)
		}
		told(t, "duplicate_event_ids", r.Report.DuplicateEventIDs)
		told(t, "sweep_recovered", r.Report.SweepRecovered)
		return nil
	}
}

// zones moves the whole database server to another zone for a while; only connections made meanwhile see it.
func (w *walk) zones(ctx context.Context, t *tally) (err error) {
	back, err := w.moveDatabase(ctx, "-05:00")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, back()) }()
	minutes, err := w.zoneOfDatabase(ctx)
	if err != nil {
		return err
	}
	zones := map[string]string{demo.Publisher: "Asia/Kathmandu", demo.Expirer: "America/St_Johns", demo.Notifier: "Pacific/Apia"}
	cfg := w.base(t, w.small, 15*time.Second)
	cfg.Env = func(worker string) map[string]string { return map[string]string{"TZ": zones[worker]} }
	r, err := w.run(ctx, cfg)
	if err != nil {
		return err
	}
	want(t, "database_minutes_east", minutes, Equal, zoneWest)
	walked(t, "", &r.Report, r.Failures)
	undisturbed(t, "", &r.Report)
	return nil
}

const rootLimit = 15 * time.Second

// asRoot gives a connection of the database's administrator.
func (c Config) asRoot(do func(*sql.DB) error) error {
	address, err := mysql.ParseDSN(c.Stack.RootDSN.Reveal())
	if err != nil {
		return errors.New("STACK_MYSQL_ROOT_DSN is malformed")
	}
	connector, err := mysql.NewConnector(address)
	if err != nil {
		return fmt.Errorf("database address: %w", err)
	}
	db := sql.OpenDB(connector)
	return errors.Join(do(db), db.Close())
}

// moveDatabase sets the server's zone; back sets it as it was, whatever became of ctx.
func (w *walk) moveDatabase(ctx context.Context, zone string) (back func() error, err error) {
	var was string
	set := func(ctx context.Context, db *sql.DB, zone string) error {
		if _, err := db.ExecContext(ctx, "SET GLOBAL time_zone = ?", zone); err != nil {
			return fmt.Errorf("setting the database server's time zone: %w", err)
		}
		return nil
	}
	ask, cancel := context.WithTimeout(ctx, rootLimit)
	defer cancel()
	err = w.cfg.asRoot(func(db *sql.DB) error {
		if err := db.QueryRowContext(ask, "SELECT @@GLOBAL.time_zone").Scan(&was); err != nil {
			return fmt.Errorf("asking for the database server's time zone: %w", err)
		}
		return set(ask, db, zone)
	})
	back = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rootLimit)
		defer cancel()
		return w.cfg.asRoot(func(db *sql.DB) error { return set(ctx, db, was) })
	}
	if err != nil && was != "" { // it may have been set all the same
		err = errors.Join(err, back())
	}
	return back, err
}

// zoneOfDatabase is how far a new session's clock is from UTC, in minutes to the east.
func (w *walk) zoneOfDatabase(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, rootLimit)
	defer cancel()
	var minutes int
	err := w.cfg.asRoot(func(db *sql.DB) error {
		return db.QueryRowContext(ctx, "SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), NOW())").Scan(&minutes)
	})
	if err != nil {
		err = fmt.Errorf("asking the database for its time: %w", err)
	}
	return minutes, err
}
