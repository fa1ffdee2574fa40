package store

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// What reconciles reads ranges of ids, each in one statement: that is one view of the database, in which a coupon, its
// history, its counter and what it returned agree, however busy it is. Nothing is locked, and nothing stays open.
//
// BIT_XOR telescopes: each step enters what it led to and the one before leaves it, so that of a history whose steps join
// only its end is left. The factor keeps differences from cancelling each other out; (2^32 · 8 · factor) fits 64 bits.
//
// An imported coupon was granted long ago, by another system: when it came here stands in its history.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtReconFence = define("reconcile.fence", `SELECT UTC_TIMESTAMP(3), GREATEST(
		COALESCE((SELECT id FROM coupon c WHERE granted_at <= UTC_TIMESTAMP(3) - INTERVAL ? MICROSECOND AND NOT EXISTS (SELECT 1 FROM coupon_history h
			WHERE h.coupon_id = c.id AND h.version = 1 AND h.at > UTC_TIMESTAMP(3) - INTERVAL ? MICROSECOND) ORDER BY id DESC LIMIT 1), 0),
		COALESCE((SELECT id FROM coupon_archive c WHERE granted_at <= UTC_TIMESTAMP(3) - INTERVAL ? MICROSECOND AND NOT EXISTS (SELECT 1 FROM coupon_history_archive h
			WHERE h.coupon_id = c.id AND h.version = 1 AND h.at > UTC_TIMESTAMP(3) - INTERVAL ? MICROSECOND) ORDER BY id DESC LIMIT 1), 0)),
		GREATEST(COALESCE((SELECT MAX(id) FROM coupon), 0), COALESCE((SELECT MAX(id) FROM coupon_archive), 0), COALESCE((SELECT MAX(coupon_id) FROM grant_key), 0)),
		COALESCE((SELECT value FROM setting WHERE name = 'ledger.seed'), '')`)
	stmtReconNext = define("reconcile.next", `SELECT LEAST(
		COALESCE((SELECT id FROM coupon WHERE id > ? ORDER BY id LIMIT 1), ?),
		COALESCE((SELECT id FROM coupon_archive WHERE id > ? ORDER BY id LIMIT 1), ?),
		COALESCE((SELECT coupon_id FROM grant_key FORCE INDEX (grant_key_coupon) WHERE coupon_id > ? ORDER BY coupon_id LIMIT 1), ?))`)
	stmtReconTally = define("reconcile.tally", `SELECT template_id, revision, status, 0, COUNT(*) FROM coupon FORCE INDEX (PRIMARY)
		WHERE id > ? AND id <= ? GROUP BY template_id, revision, status
		UNION ALL SELECT template_id, revision, status, 1, COUNT(*) FROM coupon_archive FORCE INDEX (PRIMARY)
		WHERE id > ? AND id <= ? GROUP BY template_id, revision, status`)
	stmtReconTaken   = define("reconcile.taken", `SELECT template_id, revision, taken, reinstated FROM template_stock ORDER BY template_id`)
	stmtReconPending = define("reconcile.pending", `SELECT template_id, COUNT(*) FROM quota_return GROUP BY template_id`)

	stmtReconSuspects        = define("reconcile.suspects", suspects("coupon", "coupon_history"))
	stmtReconSuspectsArchive = define("reconcile.suspects_archived", suspects("coupon_archive", "coupon_history_archive"))
	// One statement, so that what moves between the two is counted once.
	stmtReconSteps = define("reconcile.steps", stepTallies("coupon", "coupon_history")+`
		UNION ALL `+stepTallies("coupon_archive", "coupon_history_archive"))

	stmtReconLost = define("reconcile.lost", `SELECT k.coupon_id FROM grant_key k FORCE INDEX (grant_key_coupon)
		LEFT JOIN coupon c ON c.id = k.coupon_id LEFT JOIN coupon_archive a ON c.id IS NULL AND a.id = k.coupon_id
		WHERE k.coupon_id > ? AND k.coupon_id <= ? AND c.id IS NULL AND a.id IS NULL ORDER BY k.coupon_id LIMIT ?`)
	stmtReconTwice = define("reconcile.twice", `SELECT a.id FROM coupon_archive a FORCE INDEX (PRIMARY) JOIN coupon c ON c.id = a.id
		WHERE a.id > ? AND a.id <= ? ORDER BY a.id LIMIT ?`)

	stmtReconStats = define("reconcile.stats", `SELECT template_id, day, granted, locked, released, used, refunded, expired, voided,
		granted_value, used_value, refunded_value, expired_value, voided_value, reinstated, reinstated_value FROM template_stats
		WHERE template_id >= ? AND (template_id > ? OR (template_id = ? AND day > ?)) ORDER BY template_id, day LIMIT ?`)

	// A coupon that gave its piece back does not count for its user, once that is folded. See coupon.UserCount.
	stmtReconUsers = define("reconcile.users", `SELECT q.template_id, q.user_id, q.taken, s.revision > 1,
		(SELECT COUNT(*) FROM coupon c FORCE INDEX (coupon_wallet) JOIN coupon_template t ON t.id = c.template_id AND t.revision = c.revision
			LEFT JOIN quota_return r ON r.coupon_id = c.id AND r.to_user = 1
			WHERE c.user_id = q.user_id AND c.template_id = q.template_id
			AND NOT (c.status IN (4,5) AND t.quota_back = 'total_and_user' AND r.coupon_id IS NULL)) +
		(SELECT COUNT(*) FROM coupon_archive c FORCE INDEX (archive_wallet) JOIN coupon_template t ON t.id = c.template_id AND t.revision = c.revision
			WHERE c.user_id = q.user_id AND c.template_id = q.template_id
			AND NOT (c.status IN (4,5) AND t.quota_back = 'total_and_user'))
		FROM (SELECT template_id, user_id, taken FROM user_quota
			WHERE template_id >= ? AND (template_id > ? OR (template_id = ? AND user_id > ?)) ORDER BY template_id, user_id LIMIT ?) q
		JOIN template_stock s ON s.template_id = q.template_id ORDER BY q.template_id, q.user_id`)

	stmtReconUnsent = define("reconcile.unsent", `SELECT lane, part, COUNT(*), MIN(created_at) FROM
		(SELECT lane, part, created_at FROM outbox ORDER BY id LIMIT 100000) o WHERE created_at <= ? GROUP BY lane, part ORDER BY lane, part`)
	stmtReconParked = define("reconcile.parked", `SELECT routing_key, COUNT(*), MIN(parked_at) FROM outbox_parked
		WHERE parked_at <= ? GROUP BY routing_key ORDER BY routing_key`)
	stmtReconNight   = define("reconcile.night", `INSERT INTO setting (name, value, updated_at) VALUES (?,'',UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE value = value`)
	stmtReconClaim   = define("reconcile.claim", `UPDATE setting SET value = ?, updated_at = UTC_TIMESTAMP(3) WHERE name = ? AND value <> ?`)
	stmtReconReturns = define("reconcile.returns", `SELECT template_id, COUNT(*), MIN(created_at) FROM quota_return
		WHERE created_at <= ? GROUP BY template_id ORDER BY template_id`)
)

const (
	chainFactor = "265443577"
	noID        = math.MaxInt64
)

// suspects finds the coupons of a range whose history has a gap, does not join, or does not end where the coupon is.
func suspects(table, past string) string {
	return `SELECT c.id FROM ` + table + ` c FORCE INDEX (PRIMARY) LEFT JOIN ` + past + ` h FORCE INDEX (PRIMARY) ON h.coupon_id = c.id
		WHERE c.id > ? AND c.id <= ? GROUP BY c.id
		HAVING COUNT(h.version) <> MAX(c.version) OR MAX(h.version) <> MAX(c.version)
		OR BIT_XOR(((h.version * 8 + 8 + h.to_status) * ` + chainFactor + `) ^ ((h.version * 8 + h.from_status) * ` + chainFactor + `))
			<> ((8 * ` + chainFactor + `) ^ ((MAX(c.version) * 8 + 8 + MAX(c.status)) * ` + chainFactor + `))
		OR MAX(h.version = c.version AND h.expires_at = c.expires_at AND (h.due_at = c.due_at OR c.observed = 1)) <> 1 ORDER BY c.id LIMIT ?`
}

// stepTallies counts the steps of a range by template, day and kind, those that the statistics have seen and those that
// they have not though they are older than an instant.
func stepTallies(table, past string) string {
	return `SELECT c.template_id, c.revision, DATE(h.at), h.from_status, h.to_status, COUNT(l.coupon_id), COUNT(IF(l.coupon_id IS NULL AND h.at <= ?, 1, NULL))
		FROM ` + table + ` c FORCE INDEX (PRIMARY) JOIN ` + past + ` h FORCE INDEX (PRIMARY) ON h.coupon_id = c.id
		LEFT JOIN ledger_seen l ON l.coupon_id = h.coupon_id AND l.version = h.version
		WHERE c.id > ? AND c.id <= ? GROUP BY c.template_id, c.revision, DATE(h.at), h.from_status, h.to_status`
}

// Fence reads where a reconciliation begins. settled is how long ago a coupon must have been granted for every coupon with
// a lower id to be committed: more than a transaction may live.
func (s *Store) Fence(ctx context.Context, settled time.Duration) (coupon.Fence, error) {
	var f coupon.Fence
	var seed string
	us := settled.Microseconds()
	err := s.queryRow(ctx, s.sql, stmtReconFence, []any{&f.Now, &f.Settled, &f.Last, &seed}, us, us, us, us)
	f.Seeded = seed == seedDone
	return f, err
}

// NextCoupon gives the lowest id above the one given of a coupon that is there, archived, or promised by a grant key; ok is
// false when there is none.
func (s *Store) NextCoupon(ctx context.Context, after uint64) (id uint64, ok bool, err error) {
	err = s.queryRow(ctx, s.sql, stmtReconNext, []any{&id}, after, noID, after, noID, after, noID)
	return id, err == nil && id < noID, err
}

// TallyRange counts the coupons with ids above low and up to high, in the table and in the archive, by state.
func (s *Store) TallyRange(ctx context.Context, low, high uint64) ([]coupon.Tally, error) {
	return s.tally(ctx, s.sql, low, high)
}

func (s *Store) tally(ctx context.Context, q querier, low, high uint64) ([]coupon.Tally, error) {
	var out []coupon.Tally
	err := s.query(ctx, q, stmtReconTally, func(r *sql.Rows) error {
		var t coupon.Tally
		if err := r.Scan(&t.Template, &t.Revision, &t.Status, &t.Archived, &t.Coupons); err != nil {
			return err
		}
		if _, beat := coupon.HeartbeatOf(t.Template); !beat {
			out = append(out, t)
		}
		return nil
	}, low, high, low, high)
	return out, err
}

// Books reads every template's counters, with the coupons above the id settled, in one short snapshot.
func (s *Store) Books(ctx context.Context, settled uint64) ([]coupon.Book, error) {
	var books []coupon.Book
	err := s.snapshot(ctx, func(ctx context.Context, q querier) error {
		at := make(map[uint64]int)
		err := s.query(ctx, q, stmtReconTaken, func(r *sql.Rows) error {
			var b coupon.Book
			err := r.Scan(&b.Template, &b.Revision, &b.Taken, &b.Reinstated)
			at[b.Template] = len(books)
			books = append(books, b)
			return err
		})
		if err != nil {
			return err
		}
		err = s.query(ctx, q, stmtReconPending, func(r *sql.Rows) error {
			var template uint64
			var n int64
			err := r.Scan(&template, &n)
			if i, ok := at[template]; ok {
				books[i].Pending = n
			}
			return err
		})
		if err != nil {
			return err
		}
		late, err := s.tally(ctx, q, settled, noID)
		for _, t := range late {
			if i, ok := at[t.Template]; ok {
				books[i].Late = append(books[i].Late, t)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	return books, nil
}

// Suspects gives up to limit coupons of a range, in the table and in the archive each, that do not agree with their history.
func (s *Store) Suspects(ctx context.Context, low, high uint64, limit int) ([]uint64, error) {
	live, err := s.idsOf(ctx, stmtReconSuspects, low, high, limit)
	if err != nil {
		return nil, err
	}
	archived, err := s.idsOf(ctx, stmtReconSuspectsArchive, low, high, limit)
	return append(live, archived...), err
}

// LostCoupons gives up to limit coupons of a range that a grant key was answered with and that are nowhere.
func (s *Store) LostCoupons(ctx context.Context, low, high uint64, limit int) ([]uint64, error) {
	return s.idsOf(ctx, stmtReconLost, low, high, limit)
}

// TwiceThere gives up to limit coupons of a range that are in the table and in the archive.
func (s *Store) TwiceThere(ctx context.Context, low, high uint64, limit int) ([]uint64, error) {
	return s.idsOf(ctx, stmtReconTwice, low, high, limit)
}

func (s *Store) idsOf(ctx context.Context, st Statement, low, high uint64, limit int) ([]uint64, error) {
	var ids []uint64
	err := s.query(ctx, s.sql, st, func(r *sql.Rows) error {
		var id uint64
		err := r.Scan(&id)
		ids = append(ids, id)
		return err
	}, low, high, limit)
	return ids, err
}

// StepTallies counts the steps of the coupons of a range, archived or not.
func (s *Store) StepTallies(ctx context.Context, low, high uint64, uncountedBefore time.Time) ([]coupon.StepTally, error) {
	var out []coupon.StepTally
	err := s.query(ctx, s.sql, stmtReconSteps, func(r *sql.Rows) error {
		var t coupon.StepTally
		if err := r.Scan(&t.Template, &t.Revision, &t.Day, &t.From, &t.To, &t.Counted, &t.Uncounted); err != nil {
			return err
		}
		if _, beat := coupon.HeartbeatOf(t.Template); !beat {
			out = append(out, t)
		}
		return nil
	}, uncountedBefore, low, high, uncountedBefore, low, high)
	return out, err
}

// TermsOf gives the terms of a template's revision.
func (s *Store) TermsOf(ctx context.Context, template uint64, revision uint32) (coupon.Terms, error) {
	return s.termsOf(ctx, s.sql, template, revision)
}

// Statistics gives up to limit rows of the statistics after a template's day.
func (s *Store) Statistics(ctx context.Context, template uint64, day time.Time, limit int) ([]coupon.TemplateDay, error) {
	var out []coupon.TemplateDay
	err := s.query(ctx, s.sql, stmtReconStats, func(r *sql.Rows) error {
		var d coupon.TemplateDay
		if err := r.Scan(&d.Template, &d.Day, &d.Granted, &d.Locked, &d.Released, &d.Used, &d.Refunded, &d.Expired, &d.Voided,
			&d.GrantedValue, &d.UsedValue, &d.RefundedValue, &d.ExpiredValue, &d.VoidedValue, &d.Reinstated, &d.ReinstatedValue); err != nil {
			return err
		}
		out = append(out, d)
		return nil
	}, template, template, template, day.UTC().Format(time.DateOnly), limit)
	return out, err
}

// UserCounts looks at up to limit counters of users after a template's user, gives those that differ from the user's
// coupons, and the last one looked at; seen is how many those were.
func (s *Store) UserCounts(ctx context.Context, template uint64, user string, limit int) (differ []coupon.UserCount, last coupon.UserCount, seen int, err error) {
	err = s.query(ctx, s.sql, stmtReconUsers, func(r *sql.Rows) error {
		var c coupon.UserCount
		var user []byte
		if err := r.Scan(&c.Template, &user, &c.Taken, &c.Revised, &c.Coupons); err != nil {
			return err
		}
		c.UserID = string(user)
		last, seen = c, seen+1
		if c.Taken != c.Coupons {
			differ = append(differ, c)
		}
		return nil
	}, template, template, template, []byte(user), limit)
	return differ, last, seen, err
}

// Backlogs gives what has waited since before an instant: in the outbox, set aside by the relay, and to be folded.
func (s *Store) Backlogs(ctx context.Context, before time.Time) ([]coupon.Backlog, error) {
	var out []coupon.Backlog
	err := s.query(ctx, s.sql, stmtReconUnsent, func(r *sql.Rows) error {
		b := coupon.Backlog{Kind: coupon.FindUnsent}
		var lane, part int
		err := r.Scan(&lane, &part, &b.Rows, &b.Oldest)
		b.Where = fmt.Sprintf("outbox lane %d part %d", lane, part)
		out = append(out, b)
		return err
	}, before)
	if err != nil {
		return nil, err
	}
	err = s.query(ctx, s.sql, stmtReconParked, func(r *sql.Rows) error {
		b := coupon.Backlog{Kind: coupon.FindParked}
		err := r.Scan(&b.Where, &b.Rows, &b.Oldest)
		out = append(out, b)
		return err
	}, before)
	if err != nil {
		return nil, err
	}
	err = s.query(ctx, s.sql, stmtReconReturns, func(r *sql.Rows) error {
		b := coupon.Backlog{Kind: coupon.FindReturn}
		var template uint64
		err := r.Scan(&template, &b.Rows, &b.Oldest)
		b.Where = fmt.Sprintf("template %d", template)
		out = append(out, b)
		return err
	}, before)
	return out, err
}

// ClaimNight reports whether the caller is the first to ask for a piece of work in a night, by the names of both.
func (s *Store) ClaimNight(ctx context.Context, work, night string) (bool, error) {
	name := "night." + work
	if _, err := s.exec(ctx, s.sql, stmtReconNight, name); err != nil {
		return false, err
	}
	n, err := s.exec(ctx, s.sql, stmtReconClaim, night, name, night)
	return n == 1, err
}
