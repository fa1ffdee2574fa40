package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// site is a database and a prefix of its own, with workers or without: where one subject, or several, are measured.
type site struct {
	*demo.Installation
	stack     rig.Stack
	db        *sql.DB // in UTC, with room for many
	publisher *broker.Publisher
	stop      func() error
	template  uint64
	rest      func() error // what else is to be closed; may be nil
}

// siteConfig says what a site is like.
type siteConfig struct {
	workers []string // none: []string{}
	env     func(worker string) map[string]string
	horizon time.Duration // 0: unlimited
}

func openSite(ctx context.Context, cfg Config, sc siteConfig) (*site, error) {
	s := &site{stack: cfg.Stack}
	var err error
	s.Installation, err = demo.Install(ctx, demo.InstallationConfig{
		Stack: cfg.Stack, Bin: cfg.Bin, Workers: sc.workers, Deaf: true, Env: sc.env, Ladder: horizonOf(sc.horizon),
	})
	if err != nil {
		return s, err
	}
	if s.db, err = openDB(s.DSN(), 32); err != nil {
		return s, err
	}
	if s.template, err = s.Template(ctx, "bench"); err != nil {
		return s, err
	}
	if s.publisher, s.stop, err = s.Publisher(ctx); err != nil {
		return s, err
	}
	return s, nil
}

// close removes everything of the site; with a name, its workers' logs are kept.
func (s *site) close(ctx context.Context, logs string) (kept string, err error) {
	var errs []error
	if s.rest != nil {
		errs = append(errs, s.rest())
	}
	if s.stop != nil {
		errs = append(errs, s.stop())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.Installation != nil {
		var err error
		kept, err = s.Remove(ctx, logs)
		errs = append(errs, err)
	}
	return kept, errors.Join(errs...)
}

// openDB opens a pool that sends each statement in one round trip and reads UTC.
func openDB(dsn string, conns int) (*sql.DB, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("the database's address is malformed")
	}
	c.ParseTime, c.Loc, c.InterpolateParams = true, time.UTC, true
	if c.Params == nil {
		c.Params = make(map[string]string)
	}
	c.Params["time_zone"] = "'+00:00'"
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("database address: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// work starts workers anew, so that their peaks of memory are of what comes.
func (s *site) work(ctx context.Context, workers ...string) error {
	if err := s.Fleet().Stop(ctx); err != nil {
		return err
	}
	var all errgroup.Group
	for _, worker := range workers {
		all.Go(func() error { return s.Start(ctx, worker) })
	}
	return all.Wait()
}

func horizonOf(h time.Duration) func(*ladder.Config) {
	if h == 0 {
		return nil
	}
	return func(c *ladder.Config) { c.Horizon = h }
}

// cleared are the tables that a run fills.
func cleared() []string {
	return []string{
		"coupon", "coupon_history", "grant_key", "outbox", "ledger_seen", "template_stats", "quota_return", "idempotency_key", "user_quota",
		"notice_window", "notice_item", "notice", "inbox", "order_tombstone",
	}
}

// clear stops the workers and empties tables and queues.
func (s *site) clear(ctx context.Context) error {
	if err := s.Fleet().Stop(ctx); err != nil {
		return err
	}
	for _, table := range cleared() {
		if _, err := s.db.ExecContext(ctx, "TRUNCATE TABLE "+table); err != nil {
			return fmt.Errorf("emptying %s: %w", table, err)
		}
	}
	_, err := s.purge(ctx)
	return err
}

// purge empties every queue of the site and says how many messages waited in the ladder.
func (s *site) purge(ctx context.Context) (waited int, err error) {
	conn, err := amqp.Dial(s.stack.AMQPURL.Reveal())
	if err != nil {
		return 0, fmt.Errorf("emptying queues: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err != nil {
		return 0, fmt.Errorf("emptying queues: %w", err)
	}
	for _, q := range s.Ladder().Plan().Queues {
		if ctx.Err() != nil {
			return waited, context.Cause(ctx)
		}
		n, err := ch.QueuePurge(q.Name, false)
		if err != nil {
			return waited, fmt.Errorf("emptying %s: %w", q.Name, err)
		}
		if q.Role == ladder.RoleWait {
			waited += n
		}
	}
	return waited, nil
}

// now is the database's clock.
func (s *site) now(ctx context.Context) (time.Time, error) {
	var at time.Time
	if err := s.db.QueryRowContext(ctx, "SELECT UTC_TIMESTAMP(3)").Scan(&at); err != nil {
		return at, fmt.Errorf("reading the database's clock: %w", err)
	}
	return at, nil
}

// ahead is how far the database's clock is ahead of this process's. Both are of one machine, usually.
func (s *site) ahead(ctx context.Context) (time.Duration, error) {
	sent := time.Now()
	at, err := s.now(ctx)
	return at.Add(time.Millisecond / 2).Sub(sent.Add(time.Since(sent) / 2)), err
}

// root does something with a connection of the database's administrator: what is planted stays out of the binary log.
func (s *site) root(ctx context.Context, do func(*sql.Conn) error) (err error) {
	db, err := openDB(s.stack.RootDSN.Reveal(), 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connecting as the administrator: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return do(conn)
}

func (s *site) database() string {
	c, err := mysql.ParseDSN(s.DSN())
	if err != nil {
		return ""
	}
	return c.DBName
}

// peak is the most memory that a worker has held since it was started, in MiB.
func (s *site) peak(worker string) (float64, error) {
	u, err := s.Fleet().Usage(worker)
	return float64(u.Peak) / (1 << 20), err
}

func (s *site) count(ctx context.Context, query string, args ...any) (int, error) {
	var n sql.NullInt64
	if err := s.db.QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting: %w", err)
	}
	return int(n.Int64), nil
}
