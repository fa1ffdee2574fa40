package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync/atomic"

	"github.com/go-sql-driver/mysql"
)

// errReadOnly: what answers at the address is no primary, or no longer.
var errReadOnly = errors.New("the server is read-only")

// primary is the server that may be written to, as far as it is known. When it says that it is read-only, since another was
// made the primary, all connections to it are of no more use: those that only read would go on to see what is out of date.
type primary struct {
	generation atomic.Int64 // of connections; of an older one none is used again
}

// note looks at a statement's error.
func (p *primary) note(err error) {
	var my *mysql.MySQLError
	if errors.As(err, &my) && isReadOnly(my.Number) {
		p.generation.Add(1)
	}
}

// driverConn is everything that the driver's connections can do, and database/sql makes use of.
type driverConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

// generational is a connection that is not used again once the primary has changed.
type generational struct {
	driverConn

	primary    *primary
	generation int64
}

func (g *generational) old() bool { return g.generation != g.primary.generation.Load() }

// IsValid is asked when the connection is put back.
func (g *generational) IsValid() bool { return !g.old() && g.driverConn.IsValid() }

// ResetSession is asked when the connection is taken.
func (g *generational) ResetSession(ctx context.Context) error {
	if g.old() {
		return driver.ErrBadConn
	}
	return g.driverConn.ResetSession(ctx) //nolint:wrapcheck // the driver's contract
}
