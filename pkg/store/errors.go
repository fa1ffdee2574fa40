package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/go-sql-driver/mysql"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Server error numbers, as in the MySQL reference manual, "Server Error Message Reference".
const (
	erDupEntry       = 1062
	erLockWait       = 1205
	erDeadlock       = 1213
	erReadOnly       = 1290
	erReadOnlyTx     = 1792
	erShutdown       = 1053
	erTooManyConns   = 1040
	erNormalShutdown = 1077
	erConnKilled     = 1927 // MariaDB: connection was killed
	erQueryTimeout   = 3024
	erAccessDenied   = 1045
	erCheckViolated  = 3819 // MySQL gives it the SQLSTATE HY000
	erUserConns      = 1203 // a user's connections are all taken …
	erUserLimit      = 1226 // … or another of its limits is reached
	erInterrupted    = 1317 // KILL QUERY
	erReadOnlyMode   = 1836
	erSessionKilled  = 3169
	erIdle           = 4031 // the server closed an idle connection
)

// classify wraps a driver's error once with the class that callers act on. Errors without a class pass unchanged.
func classify(err error) error {
	var my *mysql.MySQLError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return coupon.ErrNotFound
	case errors.As(err, &my):
		return classifyServer(my)
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, sql.ErrConnDone), errors.Is(err, sql.ErrTxDone), isNet(err):
		return fmt.Errorf("%w: %w", coupon.ErrUnavailable, err)
	default:
		return err
	}
}

func isNet(err error) bool {
	var op *net.OpError
	return errors.As(err, &op)
}

func classifyServer(my *mysql.MySQLError) error {
	switch my.Number {
	case erDeadlock, erLockWait:
		return fmt.Errorf("%w: %w", coupon.ErrContention, my)
	case erReadOnly, erReadOnlyTx, erReadOnlyMode, erShutdown, erTooManyConns, erUserConns, erUserLimit, erNormalShutdown,
		erConnKilled, erSessionKilled, erInterrupted, erIdle, erQueryTimeout, erAccessDenied:
		return fmt.Errorf("%w: %w", coupon.ErrUnavailable, my)
	case erDupEntry:
		return fmt.Errorf("%w: %w: %w", coupon.ErrIntegrity, coupon.ErrConflict, my)
	case erCheckViolated:
		return fmt.Errorf("%w: %w", coupon.ErrIntegrity, my)
	}
	if string(my.SQLState[:2]) == "08" { // connection exception, such as a cluster's node that is not ready
		return fmt.Errorf("%w: %w", coupon.ErrUnavailable, my)
	}
	// Class 22 (data exception), 23 (integrity constraint) and 45 (signalled by a trigger of the operator's) of SQLSTATE:
	// the row itself is refused.
	switch string(my.SQLState[:2]) {
	case "22", "23", "45":
		return fmt.Errorf("%w: %w", coupon.ErrIntegrity, my)
	}
	return my
}
