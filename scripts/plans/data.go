package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// data says what was made: coupons of ids 1 to n, the first ten thousand of one user, a batch of up to a hundred thousand, nine
// of ten of one template; a tenth of as many in the archive, with the ids that follow.
type data struct {
	n    int
	now  time.Time // of the database, when it was made
	base string    // the same, as SQL
}

const (
	bigUser = 10_000 // coupons of it, and in the archive a tenth as many
	step    = 50_000 // rows of one INSERT
)

// Of ten coupons five wait for their end, one has ended and is not settled, one is used, two are expired and one is locked.
// Ends of those that wait lie up to 90 days ahead, of the others up to 90 days back.
const (
	makeStatus = `ELT(i.n % 10 + 1, 1,1,1,1,1, 1, 3, 4,4, 2)`
	makeEnd    = `TIMESTAMPADD(SECOND, IF(i.n % 10 IN (0,1,2,3,4,9), 1, -1) * (3600 + (i.n * 7919) % 7776000), @now)`
	makeUser   = `IF(i.n <= 10000, 'big', CONCAT('u', i.n DIV 10))`
	makeBatch  = `IF(i.n > 20000 AND i.n <= 120000, 'big', CONCAT('b', i.n DIV 500))`
	makeRow    = `i.n, IF(i.n % 10 = 3, 2 + i.n % 50, 1), 1, ` + makeBatch + `, ` + makeUser + `, ` + makeStatus + `, 2, '2026-01-01', ` + makeEnd + `, ` + makeEnd + `, '2026-01-01',
		IF(i.n % 10 = 9, @now, NULL), IF(i.n % 10 = 9, TIMESTAMPADD(SECOND, 600, @now), NULL), IF(i.n % 10 IN (6,9), CONCAT('o', i.n), NULL),
		NULL, NULL, IF(i.n % 10 = 6, @now, NULL), IF(i.n % 10 IN (7,8), @now, NULL), IF(i.n % 10 IN (7,8), 'ladder', NULL)`
)

func fill(ctx context.Context, db *sql.DB, n int) (data, error) {
	d := data{n: n}
	conn, err := db.Conn(ctx)
	if err != nil {
		return d, fmt.Errorf("connecting: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the pool is closed after it
	if err := conn.QueryRowContext(ctx, `SELECT UTC_TIMESTAMP(0)`).Scan(&d.now); err != nil {
		return d, fmt.Errorf("clock: %w", err)
	}
	d.base = d.now.Format("2006-01-02 15:04:05")
	numbers := make([]string, 2000)
	for i := range numbers {
		numbers[i] = fmt.Sprintf("(%d)", i)
	}
	before := []string{
		`SET SESSION unique_checks = 0`,
		`SET @now = '` + d.base + `'`,
		`CREATE TABLE plans_d (n INT NOT NULL PRIMARY KEY)`,
		`INSERT INTO plans_d VALUES ` + strings.Join(numbers, ","),
		`CREATE TABLE plans_n (n INT NOT NULL PRIMARY KEY)`,
		`INSERT INTO plans_n SELECT a.n * 1000 + b.n FROM plans_d a JOIN plans_d b WHERE b.n < 1000 AND a.n <= ` + fmt.Sprint(n*11/10/1000+1) + ` ORDER BY 1`,
		`INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason)
			SELECT n + 1, 1, CONCAT('t', n), '{"kind":"never"}', 500, 'CNY', 'exact', @now, 'plans', '' FROM plans_d WHERE n < 60`,
		`INSERT INTO template_stock SELECT n + 1, 1, 0, 10, 0, 0 FROM plans_d WHERE n < 60`,
		`INSERT INTO template_stats (template_id, day) SELECT a.n + 1, TIMESTAMPADD(DAY, -b.n, DATE(@now)) FROM plans_d a JOIN plans_d b WHERE a.n < 60 AND b.n < 800`,
		`INSERT INTO idempotency_key SELECT 'plans', CONCAT('k', n), REPEAT('h', 32), 200, '{}', @now, TIMESTAMPADD(SECOND, -n, @now) FROM plans_n WHERE n < 50000`,
		`INSERT INTO idempotency_key SELECT 'plans', CONCAT('w', n), REPEAT('h', 32), 0, '', @now, @now FROM plans_d`,
		`INSERT INTO ledger_seen SELECT n, 1 FROM plans_n WHERE n < 50000`,
		`INSERT INTO user_quota SELECT 1, CONCAT('u', n), 1 FROM plans_n WHERE n < 50000`,
		`INSERT INTO order_tombstone SELECT n, CONCAT('o', n), 1, 0, TIMESTAMPADD(SECOND, -n, @now) FROM plans_n WHERE n < 50000`,
		`INSERT INTO quota_return SELECT n, 1, 'u', 1, @now FROM plans_d`,
		// The user big has two notices of every other window, and ten thousand rows in the inbox, every fourth a popup; of each kind a
		// thousand are not read.
		`INSERT INTO notice_window (id, user_id, kind, remind_at, slot, open_mark, items, opened_at, last_item_at, due_at, closed_at, closed_by)
			SELECT n + 1, IF(n % 2, 'big', CONCAT('u', n)), IF(n % 4 < 2, 'expiring', 'expired'), '', CONCAT(n), NULL, 1, @now, @now, '9999-12-31', @now, 'time' FROM plans_n WHERE n < 20000`,
		`INSERT INTO notice_item (window_id, event_id, coupon_id, version, expires_at, value, currency, dropped, added_at)
			SELECT n + 1, CONCAT(n, ':1:expired'), n + 1, 1, @now, 500, 'CNY', '', @now FROM plans_n WHERE n < 20000`,
		`INSERT INTO notice (window_id, channel, user_id, kind, items, state, reason, attempts, try_at, created_at, settled_at)
			SELECT i.n + 1, ELT(c.n + 1, 'inbox', 'sms'), IF(i.n % 2, 'big', CONCAT('u', i.n)), IF(i.n % 4 < 2, 'expiring', 'expired'), 1,
			IF(i.n % 10, 'sent', 'failed'), '', 1, '9999-12-31', @now, @now FROM plans_n i JOIN plans_d c WHERE i.n < 20000 AND c.n < 2`,
		`INSERT INTO inbox (user_id, id, window_id, kind, display, items, texts, created_at, valid_until, read_at)
			SELECT 'big', n + 1, n + 1, 'expired', IF(n % 4 = 3, 'popup', ''), 1, '{}', @now, IF(n % 4 = 3, TIMESTAMPADD(DAY, 1, @now), '9999-12-31'), IF(n < 8000, @now, NULL)
			FROM plans_n WHERE n < 10000`,
		`INSERT INTO user_profile (user_id, locale, zone, addresses, address_key, seen_at) SELECT CONCAT('u', n), 'en', '', '', '', @now FROM plans_n WHERE n < 50000`,
		`INSERT INTO user_optout SELECT CONCAT('u', n), 'sms', '*', 1, 'receipt', @now FROM plans_n WHERE n < 50000`,
		`INSERT INTO operator_log SELECT n + 1, @now, 'plans', 'r', 'template.stop', '1', '{}' FROM plans_d`,
	}
	if err := execAll(ctx, conn, before); err != nil {
		return d, err
	}
	// Indexes are built faster than kept.
	drop, add, err := secondary(ctx, conn)
	if err != nil {
		return d, err
	}
	if err := execAll(ctx, conn, drop); err != nil {
		return d, err
	}
	for from := 0; from < n*11/10; from += step {
		i := fmt.Sprintf(`FROM plans_n i WHERE i.n > %d AND i.n <= %d ORDER BY i.n`, from, min(from+step, n*11/10))
		coupon, history, row := "coupon", "coupon_history", makeRow
		if from >= n {
			// What is archived has finished.
			coupon, history = "coupon_archive", "coupon_history_archive"
			row = strings.NewReplacer(makeStatus, `IF(i.n % 2, 3, 4)`, makeUser, fmt.Sprintf(`IF(i.n <= %d, 'big', CONCAT('u', i.n DIV 10))`, n+bigUser)).Replace(makeRow) + `, @now`
		}
		err := execAll(ctx, conn, []string{
			`INSERT INTO ` + coupon + ` SELECT ` + row + ` ` + i,
			`INSERT INTO ` + history + ` SELECT i.n, 1, 0, 1, 'grant', '2026-01-01', '2026-02-01', '2026-02-01', '', '', '', '', '', '', NULL, NULL ` + i,
			`INSERT INTO ` + history + ` SELECT i.n, 2, 1, 2, 'order', '2026-01-02', '2026-02-01', '2026-02-01', CONCAT('o', i.n), 'shop', '', '', '', '', NULL, NULL ` + strings.Replace(i, "ORDER", "AND i.n % 10 IN (6,9) ORDER", 1),
			`INSERT INTO grant_key SELECT 'plans', CONCAT('k', LPAD(i.n, 7, '0')), i.n, REPEAT('h', 32) ` + i,
		})
		if err != nil {
			return d, err
		}
	}
	return d, execAll(ctx, conn, append(add,
		`DROP TABLE plans_n`, `DROP TABLE plans_d`,
		`ANALYZE TABLE coupon, coupon_archive, coupon_history, coupon_history_archive, grant_key, idempotency_key, ledger_seen,
			user_quota, order_tombstone, template_stats, template_stock, coupon_template, operator_log, quota_return, notice, notice_window, notice_item, inbox, user_profile,
			user_optout`))
}

// secondary gives what drops the indexes of the big tables, and what makes them again.
func secondary(ctx context.Context, conn *sql.Conn) (drop, add []string, err error) {
	rows, err := conn.QueryContext(ctx, `SELECT table_name, index_name, GROUP_CONCAT(column_name ORDER BY seq_in_index)
		FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name IN ('coupon','coupon_archive','grant_key')
		AND index_name <> 'PRIMARY' AND non_unique = 1 GROUP BY table_name, index_name ORDER BY table_name, index_name`)
	if err != nil {
		return nil, nil, fmt.Errorf("indexes: %w", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	drops, adds := make(map[string]string), make(map[string]string)
	for rows.Next() {
		var table, index, columns string
		if err := rows.Scan(&table, &index, &columns); err != nil {
			return nil, nil, fmt.Errorf("indexes: %w", err)
		}
		drops[table] += ", DROP KEY " + index
		adds[table] += ", ADD KEY " + index + " (" + columns + ")"
	}
	for table := range drops {
		drop = append(drop, "ALTER TABLE "+table+strings.TrimPrefix(drops[table], ","))
		add = append(add, "ALTER TABLE "+table+strings.TrimPrefix(adds[table], ","))
	}
	if err := rows.Err(); err != nil {
		return nil, nil, fmt.Errorf("indexes: %w", err)
	}
	return drop, add, nil
}

func execAll(ctx context.Context, conn *sql.Conn, texts []string) error {
	for _, text := range texts {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("%.60s…: %w", strings.Join(strings.Fields(text), " "), err)
		}
	}
	return nil
}
