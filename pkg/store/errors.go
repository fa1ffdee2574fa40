package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/go-sql-driver/mysql"

	"github.com/lapsehq/lapse/pkg/certs"
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
	erDatabaseDenied = 1044
	erNoDatabase     = 1049
	erTableDenied    = 1142
	erColumnDenied   = 1143
	erPrivilege      = 1227
	erRoutineDenied  = 1370
	erInsecure       = 3159 // require_secure_transport
	erAuthPlugin     = 1698 // MariaDB: access denied, without a word on the password
)

// connectError is why there is no connection. It passes when whoever runs database or configuration has mended it.
type connectError struct{ err error }

func (e *connectError) Error() string { return e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

func isReadOnly(number uint16) bool {
	return number == erReadOnly || number == erReadOnlyTx || number == erReadOnlyMode
}

// classify wraps a driver's error once with the class that callers act on, and says in words what an operator can mend. Errors
// without a class pass unchanged.
func classify(err error) error {
	var (
		my      *mysql.MySQLError
		connect *connectError
	)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return coupon.ErrNotFound
	case errors.As(err, &my):
		return classifyServer(my)
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &connect), errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, sql.ErrConnDone), errors.Is(err, sql.ErrTxDone), isNet(err):
		if said := explain(err); said != "" {
			return fmt.Errorf("%w: %s: %w", coupon.ErrUnavailable, said, err)
		}
		return fmt.Errorf("%w: %w", coupon.ErrUnavailable, err)
	default:
		return err
	}
}

func isNet(err error) bool {
	var op *net.OpError
	return errors.As(err, &op)
}

// explain says in words why there is no connection; empty if the error says it itself.
func explain(err error) string {
	var name *net.DNSError
	if said := certs.Explain(err); said != "" {
		return "no trusted connection to the database: " + said
	}
	switch {
	case errors.Is(err, mysql.ErrNoTLS):
		return "the database offers no TLS, and database.tls asks for it"
	case errors.As(err, &name):
		return "the host of database.address cannot be found"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens at database.address"
	default:
		return ""
	}
}

// explainServer says in words what the server refuses; empty if its error says it itself.
func explainServer(number uint16) string {
	switch number {
	case erAccessDenied, erAuthPlugin:
		return "the database refuses database.user, its password or, if it must show one, its certificate"
	case erDatabaseDenied, erNoDatabase:
		return "there is no database of the name database.name, or database.user has no grant on it"
	case erTableDenied, erColumnDenied, erPrivilege, erRoutineDenied:
		return "database.user lacks a grant"
	case erReadOnly, erReadOnlyTx, erReadOnlyMode:
		return errReadOnly.Error()
	case erInsecure:
		return "the database wants TLS (database.tls)"
	case erTooManyConns, erUserConns, erUserLimit:
		return "the database takes no more connections"
	default:
		return ""
	}
}

func classifyServer(my *mysql.MySQLError) error {
	switch my.Number {
	case erDeadlock, erLockWait:
		return fmt.Errorf("%w: %w", coupon.ErrContention, my)
	case erReadOnly, erReadOnlyTx, erReadOnlyMode, erShutdown, erTooManyConns, erUserConns, erUserLimit, erNormalShutdown,
		erConnKilled, erSessionKilled, erInterrupted, erIdle, erQueryTimeout, erAccessDenied,
		erDatabaseDenied, erNoDatabase, erTableDenied, erColumnDenied, erPrivilege, erRoutineDenied, erInsecure, erAuthPlugin:
		if said := explainServer(my.Number); said != "" {
			return fmt.Errorf("%w: %s: %w", coupon.ErrUnavailable, said, my)
		}
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
