package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// shape is a table as another shop has it. In its statements {first} is the first end as the shop writes it, a time of Shanghai's, and
// {spread} over how many seconds the ends go on.
type shape struct {
	name    string
	mapping string // in configs/import
	tables  int    // how many there are
	make    string // a table; {table} is its number in all of them, {half} half of that
	fill    string // fills it with {rows}, from the row {from} on
	after   []string
	// the source's rows as they must be here, one a row: key, status, end (UTC), order, owner
	truth string
}

// Of ten rows five end soon, one ends with a day of the next century, two are used, one has expired and one is what the shape has beside.
// Ten rows after the other end a second later.
const (
	soonEnds = `'{first}' + INTERVAL (x.n DIV 10) % {spread} SECOND`
	endsOf   = `CASE WHEN x.n % 10 < 5 THEN ` + soonEnds + ` WHEN x.n % 10 = 5 THEN '2035-10-31 23:59:59' ELSE '2026-01-31 23:59:59' END`
	numbered = `(SELECT {from} + a.n + 100000 * b.n AS n FROM verify_number b STRAIGHT_JOIN verify_number a
		WHERE b.n < 100 AND 100000 * b.n < {rows} AND a.n + 100000 * b.n < {rows}) x`
	endHere = `INTERVAL 8 HOUR + INTERVAL IF(TIME(%[1]s) = '23:59:59', 1, 0) SECOND`
)

func utc(column string) string { return column + " - " + fmt.Sprintf(endHere, column) }

var yudao = shape{ //nolint:gochecknoglobals // a constant
	name: "yudao", mapping: "yudao.yaml", tables: 1,
	make: `CREATE TABLE promotion_coupon (id BIGINT NOT NULL AUTO_INCREMENT, template_id BIGINT NOT NULL, name VARCHAR(50) NOT NULL, status TINYINT NOT NULL,
		user_id BIGINT NOT NULL, take_type TINYINT NOT NULL, use_price INT NOT NULL, valid_start_time DATETIME NOT NULL, valid_end_time DATETIME NOT NULL,
		discount_price INT NULL, use_order_id BIGINT NULL, use_time DATETIME NULL, create_time DATETIME NOT NULL, update_time DATETIME NOT NULL,
		deleted BIT(1) NOT NULL DEFAULT b'0', tenant_id BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (id)) ENGINE=InnoDB`,
	fill: `INSERT INTO promotion_coupon (template_id, name, status, user_id, take_type, use_price, valid_start_time, valid_end_time, discount_price,
		use_order_id, use_time, create_time, update_time)
		SELECT 1 + x.n % 3, '满减', CASE x.n % 10 WHEN 6 THEN 2 WHEN 7 THEN 2 WHEN 8 THEN 3 WHEN 9 THEN 4 ELSE 1 END, 1000 + x.n % 50000, 1, 0,
		'2025-01-01 00:00:00', ` + endsOf + `, 500, IF(x.n % 10 IN (6, 7), 900000 + x.n, NULL), IF(x.n % 10 IN (6, 7), '2026-01-15 12:00:00', NULL),
		'2025-01-01 00:00:00', '2026-02-01 00:10:00' FROM ` + numbered,
	truth: `SELECT CAST(id AS CHAR) k, ELT(status, 1, 3, 4, 5) status, ` + utc("valid_end_time") + ` ends,
		IF(status = 2, CAST(use_order_id AS CHAR), '') ord, CAST(user_id AS CHAR) owner FROM promotion_coupon`,
}

var litemall = shape{ //nolint:gochecknoglobals // a constant
	name: "litemall", mapping: "litemall.yaml", tables: 1,
	make: `CREATE TABLE litemall_coupon_user (id INT NOT NULL AUTO_INCREMENT, user_id INT NOT NULL, coupon_id INT NOT NULL, status SMALLINT DEFAULT 0,
		used_time DATETIME NULL, start_time DATETIME NULL, end_time DATETIME NULL, order_id INT NULL, add_time DATETIME NULL, update_time DATETIME NULL,
		deleted TINYINT(1) DEFAULT 0, PRIMARY KEY (id)) ENGINE=InnoDB`,
	fill: `INSERT INTO litemall_coupon_user (user_id, coupon_id, status, used_time, start_time, end_time, order_id, add_time, update_time)
		SELECT 1000 + x.n % 50000, 1 + x.n % 3, CASE x.n % 10 WHEN 6 THEN 1 WHEN 7 THEN 1 WHEN 8 THEN 2 WHEN 9 THEN 3 ELSE 0 END,
		IF(x.n % 10 IN (6, 7), '2026-01-15 12:00:00', NULL), '2025-01-01 00:00:00', ` + endsOf + `,
		IF(x.n % 10 IN (6, 7), 900000 + x.n, NULL), '2025-01-01 00:00:00', '2026-02-01 00:10:00' FROM ` + numbered,
	truth: `SELECT CAST(id AS CHAR) k, ELT(status + 1, 1, 3, 4, 5) status, ` + utc("end_time") + ` ends,
		IF(status = 1, CAST(order_id AS CHAR), '') ord, CAST(user_id AS CHAR) owner FROM litemall_coupon_user`,
}

var onecoupon = shape{ //nolint:gochecknoglobals // a constant
	name: "onecoupon", mapping: "onecoupon.yaml", tables: 16,
	make: `CREATE TABLE t_user_coupon_{table} (id BIGINT NOT NULL AUTO_INCREMENT, user_id BIGINT NULL, coupon_template_id BIGINT NULL, receive_time DATETIME NULL,
		receive_count INT NULL, valid_start_time DATETIME NULL, valid_end_time DATETIME NULL, use_time DATETIME NULL, source TINYINT(1) NULL, status TINYINT(1) NULL,
		create_time DATETIME NULL, update_time DATETIME NULL, del_flag TINYINT(1) NULL, PRIMARY KEY (id)) ENGINE=InnoDB`,
	fill: `INSERT INTO t_user_coupon_{table} (id, user_id, coupon_template_id, receive_time, receive_count, valid_start_time, valid_end_time, use_time, source,
		status, create_time, update_time, del_flag)
		SELECT 1810967816300000000 + x.n, 1000 + x.n % 50000, 1810966706881941507 + x.n % 3, '2025-01-01 00:00:00', 1, '2025-01-01 00:00:00', ` + endsOf + `,
		IF(x.n % 10 IN (6, 7), '2026-01-15 12:00:00', NULL), 0, CASE x.n % 10 WHEN 5 THEN 1 WHEN 6 THEN 2 WHEN 7 THEN 2 WHEN 8 THEN 3 WHEN 9 THEN 4 ELSE 0 END,
		'2025-01-01 00:00:00', '2026-02-01 00:10:00', 0 FROM ` + numbered,
	after: []string{`INSERT INTO t_coupon_settlement_{half} (order_id, user_id, coupon_id, status) SELECT 900000 + id % 1000000, user_id, id, IF(status = 1, 0, 2)
		FROM t_user_coupon_{table} WHERE status IN (1, 2)`},
	truth: `SELECT CAST(id AS CHAR) k, ELT(status + 1, 1, 2, 3, 4, 5) status, ` + utc("valid_end_time") + ` ends,
		IF(status IN (1, 2), CAST(900000 + id % 1000000 AS CHAR), '') ord, CAST(user_id AS CHAR) owner FROM t_user_coupon_{table}`,
}

// foreign is another shop's database on the same server.
type foreign struct {
	name string
	shape
	rows int
}

// foreign makes a shape's tables with n rows, of which half end from the instant on, so many a second.
func (w *adoption) foreign(ctx context.Context, of shape, n int, first time.Time, pace int) (*foreign, error) {
	f := &foreign{name: fmt.Sprintf("lapse_verify_theirs_%d", os.Getpid()), shape: of, rows: n / of.tables * of.tables}
	each := f.rows / of.tables
	spread := max(1, f.rows/2/pace)
	zone := time.FixedZone("shanghai", 8*3600)
	fixed := strings.NewReplacer("{first}", first.In(zone).Format(time.DateTime), "{spread}", fmt.Sprint(spread), "{rows}", fmt.Sprint(each))
	return f, w.cfg.asRoot(func(db *sql.DB) error {
		db.SetMaxOpenConns(1)
		run := func(statements ...string) error {
			for _, statement := range statements {
				if _, err := db.ExecContext(ctx, statement); err != nil {
					return fmt.Errorf("another shop's tables: %w", err)
				}
			}
			return nil
		}
		if err := run("DROP DATABASE IF EXISTS "+f.name, "CREATE DATABASE "+f.name+" DEFAULT CHARACTER SET utf8mb4", "USE "+f.name, "SET SESSION sql_log_bin = 0",
			numbersTable, fillNumbers); err != nil {
			return err
		}
		if of.name == onecoupon.name {
			for i := range 8 {
				if err := run(fmt.Sprintf(`CREATE TABLE t_coupon_settlement_%d (id BIGINT NOT NULL AUTO_INCREMENT, order_id BIGINT NULL, user_id BIGINT NULL,
					coupon_id BIGINT NULL, status INT NULL, create_time DATETIME NULL, update_time DATETIME NULL, PRIMARY KEY (id), KEY idx_user_id (user_id)) ENGINE=InnoDB`, i)); err != nil {
					return err
				}
			}
		}
		for i := range of.tables {
			at := strings.NewReplacer("{table}", fmt.Sprint(i), "{half}", fmt.Sprint(i/2), "{from}", fmt.Sprint(i*each))
			if err := run(at.Replace(of.make), at.Replace(fixed.Replace(of.fill))); err != nil {
				return err
			}
			for _, statement := range of.after {
				if err := run(at.Replace(statement)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// drop takes the tables away.
func (f *foreign) drop(cfg Config) error {
	return cfg.asRoot(func(db *sql.DB) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also when the section has ended
		defer cancel()
		_, err := db.ExecContext(ctx, "DROP DATABASE IF EXISTS "+f.name)
		return err
	})
}

// arguments are what lapsectl import takes, and its environment.
func (f *foreign) arguments(cfg Config, template string) (args, env []string, err error) {
	c, err := mysql.ParseDSN(cfg.Stack.DSN.Reveal())
	if err != nil {
		return nil, nil, errors.New("TEST_MYSQL_DSN is malformed")
	}
	u := url.URL{Scheme: "mysql", User: url.User(c.User), Host: c.Addr, Path: "/" + f.name}
	mapping := filepath.Join(filepath.Dir(cfg.Stack.Dir), "configs", "import", f.mapping)
	return []string{u.String(), "--mapping=" + mapping, "--template=*=" + template, "--rate=0"}, []string{"LAPSE_IMPORT_PASSWORD=" + c.Passwd}, nil
}

// differ counts the rows that are not here as they are there: by plain SQL over both databases.
func (f *foreign) differ(ctx context.Context, cfg Config, database string) (wrong int, err error) {
	err = cfg.asRoot(func(db *sql.DB) error {
		db.SetMaxOpenConns(1)
		if _, err := db.ExecContext(ctx, "USE "+f.name); err != nil {
			return fmt.Errorf("comparing: %w", err)
		}
		for i := range f.tables {
			n, err := countIn(ctx, db, `SELECT COUNT(*) FROM (`+strings.ReplaceAll(f.truth, "{table}", fmt.Sprint(i))+`) t
				LEFT JOIN `+database+`.grant_key g ON g.issuer = 'import:`+f.shape.name+`' AND g.grant_key = CAST(t.k AS BINARY)
				LEFT JOIN `+database+`.coupon c ON c.id = g.coupon_id
				WHERE c.id IS NULL OR c.status <> t.status OR c.expires_at <> t.ends OR COALESCE(c.order_id, '') <> CAST(t.ord AS BINARY)
				OR c.user_id <> CAST(t.owner AS BINARY)`)
			if err != nil {
				return err
			}
			wrong += n
		}
		return nil
	})
	return wrong, err
}
