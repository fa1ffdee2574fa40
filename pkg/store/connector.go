package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/go-sql-driver/mysql"
)

// connector opens connections that obey the rules of design.md §8 and proves it before anyone may use them: what a
// server or proxy silently ignored would otherwise show as a coupon expired eight hours early. Password and certificates
// are read again for each connection.
type connector struct {
	cfg     Config
	primary *primary
}

// Driver is the one whose connections these are.
func (connector) Driver() driver.Driver { return &mysql.MySQLDriver{} }

// MySQL calls the variable transaction_isolation, MariaDB before 11.1 tx_isolation; the statement serves both.
const setIsolation = `SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED`

const readBack = `SELECT @@session.time_zone, @@session.sql_mode LIKE '%STRICT_%', @@global.read_only, @@global.innodb_read_only`

// Connect opens a connection, sets the session and reads it back.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	generation := c.primary.generation.Load()
	m, err := driverConfig(c.cfg)
	if err != nil {
		return nil, &connectError{err}
	}
	inner, err := mysql.NewConnector(m)
	if err != nil {
		return nil, fmt.Errorf("database config: %w", err)
	}
	opened, err := inner.Connect(ctx)
	if err != nil {
		return nil, &connectError{err}
	}
	conn, ok := opened.(driverConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("database driver: %T cannot do what is needed", opened), opened.Close())
	}
	readOnly, err := prepareSession(ctx, conn)
	if err == nil && readOnly && !c.cfg.Reader {
		err = &connectError{errReadOnly}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &generational{conn, c.primary, generation}, nil
}

func prepareSession(ctx context.Context, conn driverConn) (readOnly bool, err error) {
	if _, err := conn.ExecContext(ctx, setIsolation, nil); err != nil {
		return false, fmt.Errorf("set isolation level: %w", err)
	}
	rows, err := conn.QueryContext(ctx, readBack, nil)
	if err != nil {
		return false, fmt.Errorf("read session back: %w", err)
	}
	defer rows.Close() //nolint:errcheck // one row was asked for
	row := make([]driver.Value, 4)
	if err := rows.Next(row); err != nil && err != io.EOF { //nolint:errorlint // the driver's contract
		return false, fmt.Errorf("read session back: %w", err)
	}
	if zone := text(row[0]); zone != "+00:00" {
		return false, fmt.Errorf("database session: time_zone is %q after setting it to +00:00", zone)
	}
	if text(row[1]) != "1" {
		return false, fmt.Errorf("database session: sql_mode is not strict")
	}
	off := func(v driver.Value) bool { return text(v) == "0" || text(v) == "OFF" }
	return !off(row[2]) || !off(row[3]), nil
}

func text(v driver.Value) string {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(v)
}

func driverConfig(c Config) (*mysql.Config, error) {
	password, err := c.Password.Current()
	if err != nil {
		return nil, fmt.Errorf("password: %w", err)
	}
	m := mysql.NewConfig()
	m.Net, m.Addr = "tcp", c.Address
	m.User, m.Passwd = c.User, password.Reveal()
	if c.TLS.Enabled {
		host, _, err := net.SplitHostPort(c.Address)
		if err != nil {
			return nil, fmt.Errorf("address: %w", err)
		}
		if m.TLS, err = c.TLS.Client(host); err != nil {
			return nil, fmt.Errorf("tls.%w", err)
		}
	}
	m.DBName = c.Name
	m.Timeout, m.ReadTimeout, m.WriteTimeout = c.DialTimeout, c.ReadTimeout, c.WriteTimeout
	m.ClientFoundRows = true
	m.RejectReadOnly = false // it would hide the reason, and end one connection of many: see primary
	m.ParseTime = true
	m.InterpolateParams = true
	m.Logger = &mysql.NopLogger{} // its errors are returned as well, and standard error is for our own log
	m.MaxAllowedPacket = 0        // ask the server
	m.Collation = "utf8mb4_bin"
	m.Params = map[string]string{
		"time_zone":                "'+00:00'",
		"sql_mode":                 "'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'",
		"wait_timeout":             "15",
		"innodb_lock_wait_timeout": fmt.Sprint(max(1, int(c.LockWait.Seconds()))),
	}
	return m, nil
}
