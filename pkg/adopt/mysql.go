package adopt

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/secret"
)

const (
	dialWithin = 10 * time.Second
	pageTries  = 5 // of a page, on new connections
)

// errNoKey: pages cannot go on.
var errNoKey = errors.New("the result has no column")

// Address is where another MySQL is, without the password.
type Address struct {
	config mysql.Config
}

// ParseAddress reads mysql://user:password@host:port/database, with ?tls=true or skip-verify, as the driver knows them. A password that is not in it is
// taken from beside.
func ParseAddress(text string, password secret.String) (Address, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "mysql" || u.Host == "" || u.User == nil || strings.Trim(u.Path, "/") == "" {
		return Address{}, errors.New("source: must be a file, or an address such as mysql://reader@db.example:3306/shop")
	}
	c := mysql.NewConfig()
	c.User = u.User.Username()
	c.Passwd = password.Reveal()
	if given, ok := u.User.Password(); ok {
		c.Passwd = given
	}
	c.Net, c.Addr, c.DBName = "tcp", u.Host, strings.Trim(u.Path, "/")
	if u.Port() == "" {
		c.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	for name := range u.Query() {
		if name != "tls" {
			return Address{}, fmt.Errorf("source: %s: is unknown; there is tls", name)
		}
		c.TLSConfig = u.Query().Get(name)
	}
	c.Timeout = dialWithin
	return Address{*c}, nil
}

// String is where it is, for people and for telling sources apart.
func (a Address) String() string { return "mysql://" + a.config.Addr + "/" + a.config.DBName }

// other is another MySQL, read a page at a time.
type other struct {
	pool *sql.DB
	conn *sql.Conn // nil: to be had anew
	q    *Query

	table  int    // in hand
	key    string // of the last row of it, with its kind: "n 7", "s abc"; empty: none yet
	page   []*Record
	last   bool // no page follows in the table
	column []*sql.ColumnType
}

// OpenMySQL reads by the mapping's query, from a place on; empty: from the beginning. Nothing is asked yet.
func OpenMySQL(a Address, q *Query, from string) (Source, error) {
	if q.Select == "" {
		return nil, errors.New("mapping: source: must say what is to be read of a database")
	}
	c := a.config
	c.ReadTimeout = q.Timeout + 5*time.Second // the server ends the statement first
	c.WriteTimeout = dialWithin
	c.InterpolateParams = true
	c.Params = map[string]string{"time_zone": "'+00:00'"}
	connector, err := mysql.NewConnector(&c)
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	o := &other{pool: sql.OpenDB(connector), q: q}
	if from != "" {
		table, key, ok := strings.Cut(from, "\t")
		n, err := strconv.Atoi(table)
		if !ok || err != nil || n < 0 || n >= max(1, len(q.Tables)) {
			return nil, errors.Join(fmt.Errorf("source: %q is no place of it", from), o.pool.Close())
		}
		o.table, o.key = n, key
	}
	return o, nil
}

// Close ends the session.
func (o *other) Close() error {
	o.drop()
	return o.pool.Close() //nolint:wrapcheck // there is nothing to say beside
}

func (o *other) drop() {
	if o.conn != nil {
		_ = o.conn.Close() // it is given up
		o.conn = nil
	}
}

// session gives a connection on which nothing can be written, and no statement runs for longer than it may.
func (o *other) session(ctx context.Context) (*sql.Conn, error) {
	if o.conn != nil {
		return o.conn, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*dialWithin)
	defer cancel()
	conn, err := o.pool.Conn(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // page wraps it
	}
	var version string
	err = conn.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
	limit := fmt.Sprintf("SET SESSION max_execution_time = %d", o.q.Timeout.Milliseconds())
	if strings.Contains(version, "MariaDB") {
		limit = fmt.Sprintf("SET SESSION max_statement_time = %.3f", o.q.Timeout.Seconds())
	}
	for _, statement := range []string{"SET SESSION TRANSACTION READ ONLY", limit} {
		if err == nil {
			_, err = conn.ExecContext(ctx, statement)
		}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	o.conn = conn
	return conn, nil
}

// statement is the query of a page of the table in hand; without a page it asks for all.
func (o *other) statement(page string) string {
	text := o.q.Select
	if len(o.q.Tables) > 0 {
		text = strings.ReplaceAll(text, "{table}", o.q.Tables[o.table])
	}
	return strings.Replace(text, "{page}", page, 1)
}

// Next gives the next row.
func (o *other) Next(ctx context.Context) (*Record, error) {
	for len(o.page) == 0 {
		if o.last {
			if o.table++; o.table >= len(o.q.Tables) {
				return nil, io.EOF
			}
			o.key, o.last = "", false
		}
		if err := o.read(ctx); err != nil {
			return nil, err
		}
	}
	rec := o.page[0]
	o.page = o.page[1:]
	return rec, nil
}

// read reads a page, again on a new connection if one is lost.
func (o *other) read(ctx context.Context) error {
	var err error
	for try := 1; try <= pageTries; try++ {
		if err = o.readOnce(ctx); err == nil {
			return nil
		}
		o.drop()
		var said *mysql.MySQLError
		if ctx.Err() != nil || errors.As(err, &said) || errors.Is(err, errNoKey) {
			break // the server has answered: it would say the same again
		}
		if lifecycle.Sleep(ctx, time.Duration(try)*time.Second) != nil {
			break
		}
	}
	return fmt.Errorf("source: read %s behind %q: %w", o.tableName(), o.key, err)
}

func (o *other) tableName() string {
	if len(o.q.Tables) == 0 {
		return "a page"
	}
	return o.q.Tables[o.table]
}

func (o *other) readOnce(ctx context.Context) (err error) {
	conn, err := o.session(ctx)
	if err != nil {
		return err
	}
	page, args := "1 = 1", []any{}
	if o.key != "" {
		key, err := keyArg(o.key)
		if err != nil {
			return err
		}
		page, args = o.q.Key+" > ?", append(args, key)
	}
	page += " ORDER BY " + o.q.Key + " LIMIT " + strconv.Itoa(o.q.Page)
	ctx, cancel := context.WithTimeout(ctx, o.q.Timeout+5*time.Second)
	defer cancel()
	rows, err := conn.QueryContext(ctx, o.statement(page), args...)
	if err != nil {
		return err //nolint:wrapcheck // read wraps it
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	if o.column, err = rows.ColumnTypes(); err != nil {
		return err //nolint:wrapcheck // read wraps it
	}
	var got []*Record
	key := o.key
	for rows.Next() {
		rec, err := o.record(rows)
		if err != nil {
			return err
		}
		_, key, _ = strings.Cut(rec.Place, "\t")
		got = append(got, rec)
	}
	if err := rows.Err(); err != nil {
		return err //nolint:wrapcheck // read wraps it
	}
	o.page, o.key, o.last = got, key, len(got) < o.q.Page
	return nil
}

// record reads a row: everything as text, and times of the kind TIMESTAMP, which are instants, as such.
func (o *other) record(rows *sql.Rows) (*Record, error) {
	raw := make([]sql.RawBytes, len(o.column))
	dest := make([]any, len(raw))
	for i := range raw {
		dest[i] = &raw[i]
	}
	if err := rows.Scan(dest...); err != nil {
		return nil, err //nolint:wrapcheck // read wraps it
	}
	rec := &Record{Values: make(map[string]string, len(raw))}
	name := o.q.KeyColumn()
	for i, column := range o.column {
		if raw[i] == nil {
			continue
		}
		text := string(raw[i])
		kind := column.DatabaseTypeName()
		switch {
		case kind == "TIMESTAMP" && !strings.HasPrefix(text, "0000"):
			text = strings.Replace(text, " ", "T", 1) + "Z"
		case kind == "BIT":
			n := uint64(0)
			for _, b := range raw[i] {
				n = n<<8 | uint64(b)
			}
			text = strconv.FormatUint(n, 10)
		}
		rec.Values[column.Name()] = text
		if column.Name() == name {
			rec.Where = name + " " + text
			if len(o.q.Tables) > 1 {
				rec.Where = o.tableName() + " " + rec.Where
			}
			mark := "s "
			if strings.HasSuffix(kind, "INT") {
				mark = "n "
			}
			rec.Place = strconv.Itoa(o.table) + "\t" + mark + text
		}
	}
	if rec.Place == "" {
		return nil, fmt.Errorf("%w %s, or it is NULL; pages go by it", errNoKey, name)
	}
	return rec, nil
}

// keyArg is the key as the statement takes it: a number as a number, since a text would be compared as a float.
func keyArg(key string) (any, error) {
	mark, text, _ := strings.Cut(key, " ")
	if mark != "n" {
		return text, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is no key", text)
	}
	return n, nil
}

// Total counts the rows, if that can be done within the time that a statement has.
func (o *other) Total(ctx context.Context) (int64, error) {
	conn, err := o.session(ctx)
	if err != nil {
		return 0, fmt.Errorf("source: %w", err)
	}
	in := o.table
	defer func() { o.table = in }()
	var sum int64
	for o.table = 0; o.table < max(1, len(o.q.Tables)); o.table++ {
		var n int64
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, o.q.Timeout+5*time.Second)
			defer cancel()
			return conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM ("+o.statement("1 = 1")+") counted").Scan(&n)
		}()
		var said *mysql.MySQLError
		if errors.As(err, &said) {
			o.drop()
			return 0, nil // too many to count, or a query that cannot be counted: the reading says which
		}
		if err != nil {
			o.drop()
			return 0, fmt.Errorf("source: count %s: %w", o.tableName(), err)
		}
		sum += n
	}
	return sum, nil
}
