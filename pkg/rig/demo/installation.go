package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig"
)

// InstallationConfig says what to install.
type InstallationConfig struct {
	Stack  rig.Stack
	Bin    string                                // directory of the workers
	Ladder func(*ladder.Config)                  // changes the ladder that is declared; Env must tell the workers the same
	Env    func(worker string) map[string]string // further variables of a worker's environment
	Hear   func(audit.Event)                     // told of every event, one at a time; may be nil
	// Workers are started by Install, each once; nil: publisher and expirer. Start starts what was named or added.
	Workers []string
	// Password is what the accounts of a worker in both servers have, of letters and digits; nil: by chance.
	Password  func(worker string) string
	Mechanism string // of delay; "": as it is by default
	// Deaf leaves the audit away, for what is measured: Audit gives nil, and Now is this process's clock.
	Deaf bool
	// Lay brings the empty database to the schema of another release, given the environment that all processes share; nil: this build's.
	// With it nothing else is prepared, as where that release was installed: its workers declare what they need and use the stack's own
	// accounts, and none is started. Listen begins the audit when they have declared.
	Lay func(ctx context.Context, env []string) error
}

// Installation is a database, a prefix and workers of its own on the stack, without coupons: for checks that bring theirs.
type Installation struct {
	place  *place
	ladder *ladder.Ladder
	codec  *event.Codec
	db     *sql.DB
	audit  *audit.Audit
	hear   func(audit.Event)
	fleet  *rig.Fleet
}

// unwatched is longer than any section: nobody asks this audit which rows were unusable too early, and the look for them
// goes over every finished coupon that is due later, four times a second.
const unwatched = 24 * time.Hour

// Install makes it and starts publisher and expirer. Whatever it returns, Remove must be called.
func Install(ctx context.Context, cfg InstallationConfig) (*Installation, error) {
	if err := cfg.Stack.Check(ctx); err != nil {
		return &Installation{}, err
	}
	p, err := newPlace(cfg.Stack, false)
	if err != nil {
		return &Installation{}, err
	}
	p.reshape, p.password, p.mechanism = cfg.Ladder, cfg.Password, cfg.Mechanism
	i := &Installation{place: p, fleet: p.fleet(), hear: cfg.Hear}
	ctx, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	err = errors.Join(os.MkdirAll(p.dir, 0o700), os.MkdirAll(filepath.Join(cfg.Stack.Dir, "run"), 0o700))
	if err != nil {
		return i, fmt.Errorf("making the installation's directory: %w", err)
	}
	if i.ladder, err = p.ladder(); err != nil {
		return i, err
	}
	if cfg.Lay != nil {
		return i, i.otherDatabase(ctx, cfg.Lay)
	}
	declared := make(chan error, 1)
	go func() { declared <- p.declare(ctx, i.ladder) }()
	err = i.database(ctx)
	if err := errors.Join(err, <-declared); err != nil {
		return i, err
	}
	if !cfg.Deaf {
		if err := i.Listen(ctx); err != nil {
			return i, err
		}
	}
	workers := cfg.Workers
	if workers == nil {
		workers = []string{Publisher, Expirer}
	}
	for _, name := range workers {
		vars := map[string]string{}
		if cfg.Env != nil {
			maps.Copy(vars, cfg.Env(name))
		}
		i.fleet.Add(p.program(cfg.Bin, name, vars))
	}
	ready, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	return i, i.fleet.Start(ready)
}

// Listen begins the audit, on the exchange that the workers publish their events to.
func (i *Installation) Listen(ctx context.Context) (err error) {
	i.audit, err = audit.Open(ctx, audit.Config{
		DSN: i.place.dsn(), AMQPURL: i.place.stack.AMQPURL.Reveal(), Addresses: i.place.stack.Addresses, Exchange: i.ladder.Events(),
		Queue: i.place.prefix + ".audit", Locks: true, Hear: i.hear, Watch: unwatched,
	})
	return err
}

func (i *Installation) emptyDatabase(ctx context.Context) (err error) {
	if err := i.place.createDatabase(ctx); err != nil {
		return err
	}
	i.db, err = i.place.open()
	return err
}

// otherDatabase is that of another release.
func (i *Installation) otherDatabase(ctx context.Context, lay func(context.Context, []string) error) (err error) {
	if err := i.emptyDatabase(ctx); err != nil {
		return err
	}
	if i.codec, err = event.NewCodec(i.place.prefix); err != nil {
		return err
	}
	return lay(ctx, i.Env())
}

func (i *Installation) database(ctx context.Context) error {
	if err := i.emptyDatabase(ctx); err != nil {
		return err
	}
	s, codec, err := i.place.openStore(ctx) // migrates
	if err != nil {
		return err
	}
	if err := i.place.makeAccounts(ctx, i.ladder); err != nil {
		return errors.Join(err, s.Close())
	}
	i.codec = codec
	return s.Close()
}

// DB takes plain statements, in UTC.
func (i *Installation) DB() *sql.DB { return i.db }

// DSN is the database's address in go-sql-driver's form.
func (i *Installation) DSN() string { return i.place.dsn() }

// Fleet is the workers.
func (i *Installation) Fleet() *rig.Fleet { return i.fleet }

// Ladder names what the installation has in the broker.
func (i *Installation) Ladder() *ladder.Ladder { return i.ladder }

// Codec writes events and triggers as the workers do.
func (i *Installation) Codec() *event.Codec { return i.codec }

// Now is the database's clock.
func (i *Installation) Now() time.Time {
	if i.audit == nil {
		return time.Now()
	}
	return i.audit.Now()
}

// Audit listens.
func (i *Installation) Audit() *audit.Audit { return i.audit }

// Publish sends messages over a connection of its own and waits for their confirms.
func (i *Installation) Publish(ctx context.Context, ms ...broker.Message) error {
	return i.place.publish(ctx, ms...)
}

// Publisher sends over a connection of its own, until stop, which waits for its end, whatever becomes of ctx.
func (i *Installation) Publisher(ctx context.Context) (p *broker.Publisher, stop func() error, err error) {
	return i.place.publisher(ctx)
}

// Template makes what coupons are granted from: as many as are wanted, of the exact class, ending when each says. name is also the actor's.
func (i *Installation) Template(ctx context.Context, name string) (uint64, error) {
	s, _, err := i.place.openStore(ctx)
	if err != nil {
		return 0, fmt.Errorf("opening the store for a template: %w", err)
	}
	id, err := newTemplate(ctx, s, name)
	return id, errors.Join(err, s.Close())
}

// Grants asks for coupons as an issuer does; it is to be published.
func (i *Installation) Grants(template uint64, asks []audit.Ask) (broker.Message, error) {
	return grantEvent(i.ladder, i.codec, template, i.Now(), asks)
}

// Answered waits until so many grants were answered, or none was for a minute.
func (i *Installation) Answered(ctx context.Context, want int) error {
	return answered(ctx, i.audit, want)
}

// Start starts a worker that is not running and waits until it is ready.
func (i *Installation) Start(ctx context.Context, worker string) error {
	ready, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	return i.fleet.StartOne(ready, worker)
}

// Env is the configuration that all processes share, as lines of an environment.
func (i *Installation) Env() []string { return i.place.program("", "lapsectl", nil).Env }

// Client speaks to the broker; it declares nothing.
func (i *Installation) Client() (*broker.Client, error) { return i.place.client() }

// Add starts a worker under another name, beside those that run: a second expirer, say.
func (i *Installation) Add(ctx context.Context, bin, name, worker string, more map[string]string) error {
	return i.AddAs(ctx, bin, name, worker, more, nil)
}

// AddAs is Add, with an environment that is changed by the caller; nil: as it is.
func (i *Installation) AddAs(ctx context.Context, bin, name, worker string, more map[string]string, change func(env []string) []string) error {
	i.put(bin, name, worker, more, change)
	return i.Start(ctx, name)
}

// Put tells how a worker of the name is started from now on, and starts nothing.
func (i *Installation) Put(bin, name, worker string, more map[string]string) {
	i.put(bin, name, worker, more, nil)
}

func (i *Installation) put(bin, name, worker string, more map[string]string, change func(env []string) []string) {
	p := i.place.program(bin, worker, more)
	p.Name = name
	if change != nil {
		p.Env = change(p.Env)
	}
	i.fleet.Add(p)
}

// Remove stops what runs and removes everything of the installation. With a name, the workers' logs are kept below .stack/log;
// it says where.
func (i *Installation) Remove(ctx context.Context, logs string) (kept string, err error) {
	if i.place == nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearLimit)
	defer cancel()
	errs := []error{i.fleet.Stop(ctx)}
	if i.audit != nil {
		errs = append(errs, i.audit.Close(ctx))
	}
	if i.db != nil {
		errs = append(errs, i.db.Close())
	}
	if logs != "" {
		var err error
		kept, err = i.place.saveLogs(logs)
		errs = append(errs, err)
	}
	errs = append(errs, i.place.remove(ctx))
	if err := errors.Join(errs...); err != nil {
		return kept, fmt.Errorf("clearing up: %w", err)
	}
	return kept, nil
}
