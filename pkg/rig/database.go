package rig

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	databaseWithin = time.Minute // to lay out and start a database server, and to end it
	databasePoll   = 50 * time.Millisecond
)

// Database is a small database server of the caller's own, for what would disturb everybody on the stack's: MariaDB from Debian's
// packages, as scripts/stack runs it, on loopback, without passwords, in a directory that is the caller's to remove.
type Database struct {
	Address string // host:port
	root    *sql.DB
	cmd     *exec.Cmd
	ended   chan error
}

// StartDatabase lays out a server in dir and starts it. id tells servers that replicate from each other apart. Stop it.
func StartDatabase(ctx context.Context, dir string, id int) (d *Database, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseWithin)
	defer cancel()
	who, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("own database server: %w", err)
	}
	data := filepath.Join(dir, "data")
	out, err := exec.CommandContext(ctx, serverBinary("mariadb-install-db"), "--no-defaults", "--force", "--datadir="+data, "--skip-test-db",
		"--auth-root-authentication-method=normal", "--skip-name-resolve", "--user="+who.Username, "--innodb-log-file-size=8M").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("laying out an own database server (package mariadb-server-core): %w: %s", err, out)
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, fmt.Errorf("own database server: %w", err)
	}
	start := filepath.Join(dir, "start.sql")
	err = os.WriteFile(start, []byte("SET sql_log_bin = 0;\nCREATE USER IF NOT EXISTS root@'127.0.0.1';\n"+
		"GRANT ALL PRIVILEGES ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"), 0o600)
	if err != nil {
		return nil, fmt.Errorf("own database server: %w", err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, fmt.Errorf("own database server: %w", err)
	}
	defer log.Close() //nolint:errcheck // the child has its own
	d = &Database{Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), ended: make(chan error, 1)}
	d.cmd = exec.CommandContext(context.WithoutCancel(ctx), serverBinary("mariadbd"), "--no-defaults", "--datadir="+data,
		"--bind-address=127.0.0.1", "--port="+strconv.Itoa(port), "--socket="+filepath.Join(dir, "s"), "--pid-file="+filepath.Join(dir, "pid"), "--init-file="+start,
		"--user="+who.Username, "--server-id="+strconv.Itoa(id), "--log-bin=binlog", "--binlog-format=ROW", "--gtid-strict-mode=ON",
		"--innodb-buffer-pool-size=64M", "--innodb-log-file-size=8M", "--default-time-zone=+08:00", "--skip-name-resolve", "--skip-slave-start",
		"--character-set-server=utf8mb4", "--sync-binlog=1", "--max-connections=200")
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting an own database server (package mariadb-server-core): %w", err)
	}
	go func() { d.ended <- d.cmd.Wait() }()
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User, c.MultiStatements, c.ParseTime, c.Logger = "tcp", d.Address, "root", true, true, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	d.root = sql.OpenDB(connector)
	if err := d.answers(ctx); err != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, errors.Join(fmt.Errorf("own database server: %w: %s", err, text), d.Stop())
	}
	return d, nil
}

func (d *Database) answers(ctx context.Context) error {
	tick := time.NewTicker(databasePoll)
	defer tick.Stop()
	for {
		err := d.root.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("does not answer: %w", errors.Join(err, ctx.Err()))
		case ended := <-d.ended:
			d.ended <- ended
			return fmt.Errorf("ended at once: %w", errors.Join(ended, err))
		case <-tick.C:
		}
	}
}

// Root takes statements as the server's root, several at a time.
func (d *Database) Root() *sql.DB { return d.root }

// Follow makes the server a read-only replica of another.
func (d *Database) Follow(ctx context.Context, other *Database) error {
	host, port, err := net.SplitHostPort(other.Address)
	if err != nil {
		return fmt.Errorf("replica: %w", err)
	}
	_, err = d.root.ExecContext(ctx, fmt.Sprintf("SET GLOBAL read_only = 1; CHANGE MASTER TO MASTER_HOST = '%s', MASTER_PORT = %s, "+
		"MASTER_USER = 'root', MASTER_PASSWORD = '', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1; START SLAVE", host, port))
	if err != nil {
		return fmt.Errorf("replica: %w", err)
	}
	return nil
}

// Promote waits until the replica has all that the other, which takes no more writes, has, and makes it take writes.
func (d *Database) Promote(ctx context.Context, other *Database) error {
	var position string
	if err := other.root.QueryRowContext(ctx, "SELECT @@gtid_binlog_pos").Scan(&position); err != nil {
		return fmt.Errorf("promoting: %w", err)
	}
	var late int
	if err := d.root.QueryRowContext(ctx, "SELECT MASTER_GTID_WAIT(?, 30)", position).Scan(&late); err != nil {
		return fmt.Errorf("promoting: %w", err)
	}
	if late != 0 {
		return errors.New("promoting: the replica did not catch up within 30 s")
	}
	if _, err := d.root.ExecContext(ctx, "STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0"); err != nil {
		return fmt.Errorf("promoting: %w", err)
	}
	return nil
}

// Stop ends the server. Legal more than once.
func (d *Database) Stop() error {
	var errs []error
	if d.root != nil {
		errs = append(errs, d.root.Close())
		d.root = nil
	}
	if d.cmd == nil {
		return errors.Join(errs...)
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-d.ended: //nolint:errcheck // it was told to end, however it puts that
	case <-time.After(databaseWithin):
		errs = append(errs, errors.New("own database server: killed, since it did not end"), d.cmd.Process.Kill())
		<-d.ended //nolint:errcheck // killed
	}
	d.cmd = nil
	return errors.Join(errs...)
}

// serverBinary finds what ordinary users have not in their path.
func serverBinary(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return filepath.Join("/usr/sbin", name)
}

func freePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err := errors.Join(err, l.Close()); err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}
