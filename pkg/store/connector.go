package store

import (
	"context"
	"database/sql/driver"
	"fmt"
	"io"

	"github.com/go-sql-driver/mysql"
)

// connector opens connections that obey the rules of design.md §8 and proves it before anyone may use them: what a
// server or proxy silently ignored would otherwise show as a coupon expired eight hours early.
type connector struct {
	driver.Connector
}

// MySQL calls the variable transaction_isolation, MariaDB before 11.1 tx_isolation; the statement serves both.
const setIsolation = `SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED`

const readBack = `SELECT @@session.time_zone, @@session.sql_mode LIKE '%STRICT_%', TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), UTC_TIMESTAMP(3)) BETWEEN -1 AND 1`

// Connect opens a connection, sets the session and reads it back.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // classified by the caller
	}
	if err := prepareSession(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func prepareSession(ctx context.Context, conn driver.Conn) error {
	ex, ok := conn.(driver.ExecerContext)
	qu, ok2 := conn.(driver.QueryerContext)
	if !ok || !ok2 {
		return fmt.Errorf("database driver: %T cannot execute directly", conn)
	}
	if _, err := ex.ExecContext(ctx, setIsolation, nil); err != nil {
		return fmt.Errorf("set isolation level: %w", err)
	}
	rows, err := qu.QueryContext(ctx, readBack, nil)
	if err != nil {
		return fmt.Errorf("read session back: %w", err)
	}
	defer rows.Close() //nolint:errcheck // one row was asked for
	row := make([]driver.Value, 3)
	if err := rows.Next(row); err != nil && err != io.EOF { //nolint:errorlint // the driver's contract
		return fmt.Errorf("read session back: %w", err)
	}
	if zone := text(row[0]); zone != "+00:00" {
		return fmt.Errorf("database session: time_zone is %q after setting it to +00:00", zone)
	}
	if text(row[1]) != "1" {
		return fmt.Errorf("database session: sql_mode is not strict")
	}
	return nil
}

func text(v driver.Value) string {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(v)
}

func driverConfig(c Config) *mysql.Config {
	m := mysql.NewConfig()
	m.Net, m.Addr = "tcp", c.Address
	m.User, m.Passwd = c.User, c.Password.Reveal()
	m.DBName = c.Name
	m.Timeout, m.ReadTimeout, m.WriteTimeout = c.DialTimeout, c.ReadTimeout, c.WriteTimeout
	m.ClientFoundRows = true
	m.RejectReadOnly = true
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
	return m
}
