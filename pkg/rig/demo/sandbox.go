package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/lapsehq/lapse/pkg/rig"
)

// The sandbox's own names: an installation beside any other, in which integrators try things.
const (
	SandboxPrefix   = "lapse-sandbox"
	SandboxDatabase = "lapse_sandbox"

	sandboxEnv  = "sandbox.env"
	sandboxPort = 80 // from the stack's first

	maxSandboxName = 8 // or the names of its accounts would be too long for the database
)

// sandboxMark is the table that says of a database that it is a sandbox's, and may be thrown away.
const sandboxMark = "sandbox_mark"

// SandboxConfig says what runs.
type SandboxConfig struct {
	Stack   rig.Stack
	Bin     string                                // directory of the workers
	Address string                                // of the API; empty: on this host alone, at the stack's first port + 80
	Fresh   bool                                  // begin with an empty database, whatever there was
	Env     func(worker string) map[string]string // further variables of a worker's environment
	Step    func(text string)                     // told of what is done; may be nil
	// Name of a sandbox beside the usual one, of letters and digits, for tests: it is in prefix and database.
	Name string
}

// Sandbox is the fleet of publisher, expirer and notifier with a database and a prefix of their own, in sandbox mode. Its data
// outlives it.
type Sandbox struct {
	place *place
	fleet *rig.Fleet
	lock  *os.File
	made  bool
	url   string
	page  string // of the console
}

// OpenSandbox makes the database and the queues, or takes those of an earlier run, and starts the fleet. Whatever it returns,
// Close must be called. It touches no server but this checkout's stack, and no database of its name that no sandbox made.
func OpenSandbox(ctx context.Context, cfg SandboxConfig) (*Sandbox, error) {
	if err := cfg.Stack.Check(ctx); err != nil {
		return &Sandbox{}, err
	}
	p, err := sandboxPlace(cfg)
	if err != nil {
		return &Sandbox{}, err
	}
	s := &Sandbox{place: p, fleet: p.fleet()}
	step := cfg.Step
	if step == nil {
		step = func(string) {}
	}
	if err := errors.Join(os.MkdirAll(p.dir, 0o700), os.MkdirAll(filepath.Join(cfg.Stack.Dir, "run"), 0o700)); err != nil {
		return s, fmt.Errorf("making the sandbox's directory: %w", err)
	}
	if s.lock, err = lockSandbox(cfg.Stack, p.prefix); err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	if err := s.endEarlier(ctx); err != nil {
		return s, err
	}
	step("database " + p.database + ", queues of prefix " + p.prefix)
	if err := s.prepare(ctx, cfg.Fresh); err != nil {
		return s, err
	}
	step("publisher, expirer, notifier")
	address := cfg.Address
	if address == "" {
		address = fmt.Sprintf("127.0.0.1:%d", cfg.Stack.PortBase+sandboxPort)
	}
	for _, name := range workers() {
		vars := map[string]string{}
		if name == Publisher {
			vars["LAPSE__API__ADDRESS"], vars["LAPSE__API__SANDBOX"] = address, "true"
		}
		if cfg.Env != nil {
			maps.Copy(vars, cfg.Env(name))
		}
		s.fleet.Add(p.program(cfg.Bin, name, vars))
	}
	ready, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	if err := s.fleet.Start(ready); err != nil {
		return s, err
	}
	ports, err := s.fleet.Ports(Publisher)
	if err != nil {
		return s, err
	}
	s.url = fmt.Sprintf("http://127.0.0.1:%d", ports["api"])
	s.page = fmt.Sprintf("http://127.0.0.1:%d/console/", ports["admin"])
	return s, p.keepAs(sandboxEnvFile(p.prefix), "Where the sandbox is: read it by eval, then lapsectl works with it.")
}

func sandboxPlace(cfg SandboxConfig) (*place, error) {
	if strings.Trim(cfg.Name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" || len(cfg.Name) > maxSandboxName {
		return nil, fmt.Errorf("name: must have at most %d small letters and digits, got %q", maxSandboxName, cfg.Name)
	}
	p, err := newPlace(cfg.Stack, true)
	if err != nil {
		return nil, err
	}
	p.prefix, p.database = SandboxPrefix, SandboxDatabase
	if cfg.Name != "" {
		p.prefix += "-" + cfg.Name
		p.database += "_" + cfg.Name
	}
	p.dir = filepath.Join(cfg.Stack.Dir, p.prefix)
	return p, nil
}

func sandboxEnvFile(prefix string) string {
	return strings.Replace(prefix, SandboxPrefix, strings.TrimSuffix(sandboxEnv, ".env"), 1) + ".env"
}

func lockFile(stack rig.Stack, prefix string) string {
	return filepath.Join(stack.Dir, "run", prefix+".lock")
}

// lockSandbox keeps a second one out.
func lockSandbox(stack rig.Stack, prefix string) (*os.File, error) {
	lock, err := os.OpenFile(lockFile(stack, prefix), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking out other sandboxes: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(errors.New("another sandbox of this checkout is running: end it first"), lock.Close())
	}
	return lock, nil
}

// endEarlier ends workers of a run that was killed before it could.
func (s *Sandbox) endEarlier(ctx context.Context) error {
	var errs []error
	for _, name := range slices.Backward(workers()) {
		_, err := rig.StopPid(ctx, s.fleet.PidFile(name))
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ending the workers of an earlier sandbox: %w", err)
	}
	return nil
}

// prepare makes what is missing, or makes everything anew.
func (s *Sandbox) prepare(ctx context.Context, fresh bool) error {
	there, err := s.ours(ctx)
	if err != nil {
		return err
	}
	l, err := s.place.ladder()
	if err != nil {
		return err
	}
	if there && fresh {
		if err := errors.Join(s.place.deleteTopology(ctx), s.place.dropDatabase(ctx), s.place.forgetDelay(ctx)); err != nil {
			return fmt.Errorf("clearing the sandbox: %w", err)
		}
		there = false
	}
	if !there {
		s.made = true
		if err := s.place.admin(ctx, "CREATE DATABASE IF NOT EXISTS "+s.place.database+" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"); err != nil {
			return err
		}
	}
	if err := s.place.admin(ctx, "CREATE TABLE IF NOT EXISTS "+s.place.database+"."+sandboxMark+" (id INT PRIMARY KEY)"); err != nil {
		return err
	}
	opened, _, err := s.place.openStore(ctx) // migrates
	if err != nil {
		return err
	}
	if err := errors.Join(opened.Close(), s.place.declare(ctx, l), s.place.dropAccounts(ctx)); err != nil {
		return err
	}
	return s.place.makeAccounts(ctx, l)
}

// ours reports whether the database is there, and refuses one that no sandbox made.
func (s *Sandbox) ours(ctx context.Context) (there bool, err error) {
	db, err := s.place.openServer()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var named, tables, mark int
	err = db.QueryRowContext(ctx, `SELECT (SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?),
		COUNT(*), COALESCE(SUM(table_name = ?), 0) FROM information_schema.tables WHERE table_schema = ?`,
		s.place.database, sandboxMark, s.place.database).Scan(&named, &tables, &mark)
	switch {
	case err != nil:
		return false, fmt.Errorf("looking at database %s: %w", s.place.database, err)
	case tables > 0 && mark == 0:
		return false, fmt.Errorf("database %s is there, and no sandbox made it (it has no table %s): it is not touched", s.place.database, sandboxMark)
	default:
		return named > 0 && tables > 0, nil
	}
}

// Made reports whether the database was made by this run, and is empty.
func (s *Sandbox) Made() bool { return s.made }

// Prefix of its queues, and its installation's name.
func (s *Sandbox) Prefix() string { return s.place.prefix }

// URL is the API's address.
func (s *Sandbox) URL() string { return s.url }

// Console is the page for people, on the publisher's admin port: another after each start.
func (s *Sandbox) Console() string { return s.page }

// Database is its address in go-sql-driver's form.
func (s *Sandbox) Database() string { return s.place.dsn() }

// Management is where a person looks at the queues.
func (s *Sandbox) Management() Kept {
	var k Kept
	k.Management, k.User, k.Password = s.place.management()
	return k
}

// EnvFile is what a shell reads for lapsectl to work with the sandbox.
func (s *Sandbox) EnvFile() string {
	return filepath.Join(s.place.stack.Dir, sandboxEnvFile(s.place.prefix))
}

// Logs is the directory of the workers' logs.
func (s *Sandbox) Logs() string { return s.place.dir }

// Fleet is the workers.
func (s *Sandbox) Fleet() *rig.Fleet { return s.fleet }

// Wait returns when ctx ends, nil, or with the error of a worker that died by itself.
func (s *Sandbox) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.fleet.Died():
		return err
	}
}

// Close stops the workers; the data stay.
func (s *Sandbox) Close(ctx context.Context) error {
	if s.place == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearLimit)
	defer cancel()
	errs := []error{s.fleet.Stop(ctx), s.place.dropAccounts(ctx)}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Remove takes everything of a closed sandbox away.
func (s *Sandbox) Remove(ctx context.Context) error {
	if s.place == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearLimit)
	defer cancel()
	there, err := s.ours(ctx)
	if err != nil || !there {
		return err
	}
	return errors.Join(s.place.remove(ctx), os.RemoveAll(s.EnvFile()), os.RemoveAll(lockFile(s.place.stack, s.place.prefix)))
}

// openServer connects to no database in particular.
func (p *place) openServer() (*sql.DB, error) {
	root := *p
	root.database = ""
	return root.open()
}
