package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The look for finished coupons takes no lock and goes over (status, due_at, id); what it finds is locked by id and judged
// again. When a coupon was voided stands in its history alone.
//
// IN lists are of the primary key, and say so: a server may read a small table from its beginning, and wait there for
// rows that nobody asked for. So does the DELETE, which is why it names its table twice.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtArchivePage = define("archive.page", `SELECT id, due_at, version, COALESCE(IF(status = 3, used_at, expired_at), granted_at) <= ?
		FROM coupon FORCE INDEX (coupon_due)
		WHERE status = ? AND due_at >= ? AND due_at <= ? AND (due_at > ? OR (due_at = ? AND id > ?)) ORDER BY due_at, id LIMIT ?`)
	stmtArchivePageVoided = define("archive.page_voided", `SELECT c.id, c.due_at, c.version, COALESCE(h.at, c.granted_at) <= ?
		FROM (SELECT id, due_at, version, granted_at FROM coupon FORCE INDEX (coupon_due)
			WHERE status = ? AND due_at >= ? AND due_at <= ? AND (due_at > ? OR (due_at = ? AND id > ?)) ORDER BY due_at, id LIMIT ?) c
		LEFT JOIN coupon_history h ON h.coupon_id = c.id AND h.version = c.version ORDER BY c.due_at, c.id`)
	stmtArchiveClaim = define("archive.claim", `SELECT id, version FROM coupon FORCE INDEX (PRIMARY)
		WHERE id IN (?) AND status IN (3,4,5) ORDER BY id FOR UPDATE SKIP LOCKED`)

	// What a coupon must not leave behind. The outbox has no index for it: the caller keeps to times at which it is short.
	stmtArchiveOutbox = define("archive.outbox", `SELECT DISTINCT coupon_id FROM outbox WHERE lane IN (0,1) AND coupon_id BETWEEN ? AND ? AND coupon_id IN (?)`)
	stmtArchiveParked = define("archive.parked", `SELECT DISTINCT coupon_id FROM outbox_parked WHERE coupon_id BETWEEN ? AND ? AND coupon_id IN (?)`)
	stmtArchiveReturn = define("archive.return", `SELECT coupon_id FROM quota_return WHERE coupon_id IN (?)`)
	// Every event of a coupon has an id that begins with the coupon's and a colon; the semicolon comes after it.
	stmtArchiveNotice = define("archive.notice", `SELECT i.coupon_id FROM notice_item i JOIN notice_window w ON w.id = i.window_id
		LEFT JOIN notice n ON n.window_id = w.id AND n.state IN ('pending','sending')
		WHERE (w.closed_at IS NULL OR n.window_id IS NOT NULL) AND (i.event_id >= ? AND i.event_id < ?)`)

	stmtArchivePut = define("archive.put", `INSERT INTO coupon_archive (`+rowColumns+`, archived_at)
		SELECT `+rowColumns+`, UTC_TIMESTAMP(3) FROM coupon FORCE INDEX (PRIMARY) WHERE id IN (?)`)
	stmtArchivePutHistory = define("archive.put_history", `INSERT INTO coupon_history_archive (`+pastColumns+`)
		SELECT `+pastColumns+` FROM coupon_history FORCE INDEX (PRIMARY) WHERE coupon_id IN (?)`)
	stmtArchiveTake        = define("archive.take", `DELETE c FROM coupon c FORCE INDEX (PRIMARY) WHERE c.id IN (?)`)
	stmtArchiveTakeHistory = define("archive.take_history", `DELETE h FROM coupon_history h FORCE INDEX (PRIMARY) WHERE h.coupon_id IN (?)`)

	stmtArchiveBusy  = define("archive.busy", `SELECT COUNT(*) FROM (SELECT id FROM outbox LIMIT ?) o`)
	stmtArchivePlace = define("archive.place", `SELECT value FROM setting WHERE name = ?`)
	stmtArchiveOld   = define("archive.oldest", `SELECT MIN(due_at) FROM (SELECT due_at, COALESCE(IF(status = 3, used_at, expired_at), granted_at) AS since
		FROM coupon FORCE INDEX (coupon_due) WHERE status = ? AND due_at <= ? ORDER BY due_at, id LIMIT 1000) o WHERE since <= ?`)
)

// spreadMost is how far a coupon's due instant lies behind its end at most: an expired one ended before it expired.
const spreadMost = 10 * time.Minute

// archiveSetting is where a walk over one state stands.
func archiveSetting(of coupon.Status) string { return "archive." + of.String() }

// FinishedPage looks at up to limit coupons in a final state after the cursor, in the order of their due instants, and
// gives those whose last change is not younger than before. Nothing is locked.
func (s *Store) FinishedPage(ctx context.Context, of coupon.Status, before time.Time, from coupon.Cursor, limit int) (coupon.ArchivePage, error) {
	at, most := from.At, coupon.Never
	if at.IsZero() {
		at = epoch
	}
	st := stmtArchivePage
	switch of {
	case coupon.Expired:
		most = before.Add(spreadMost)
	case coupon.Voided:
		st = stmtArchivePageVoided
	case coupon.Used:
	case coupon.Unused, coupon.Locked:
		return coupon.ArchivePage{}, fmt.Errorf("archive: %s is not a final state", of)
	}
	page := coupon.ArchivePage{Next: from}
	seen := 0
	err := s.query(ctx, s.sql, st, func(r *sql.Rows) error {
		var f coupon.Finished
		var old bool
		if err := r.Scan(&f.ID, &page.Next.At, &f.Version, &old); err != nil {
			return err
		}
		page.Next.ID = f.ID
		seen++
		if old {
			page.Old = append(page.Old, f)
		}
		return nil
	}, before, uint8(of), at, most, at, at, from.ID, limit)
	page.More = seen == limit
	return page, err
}

// ArchiveBatch moves up to 900 coupons with their history into the archive, in one transaction. It locks those that
// nobody holds, and leaves those that have changed since they were seen and those of which something is still in the
// outbox, parked, to be given back to a quota, or to be told to a user. At every instant a coupon is in exactly one of the
// two places. Several pods share the work: no coupon is moved twice, and nobody waits.
//
// It reads the whole outbox once: see OutboxLonger.
func (s *Store) ArchiveBatch(ctx context.Context, batch []coupon.Finished) (coupon.Archived, error) {
	if len(batch) > maxIDs {
		return coupon.Archived{}, fmt.Errorf("archive: %w: %d coupons, at most %d", ErrBatch, len(batch), maxIDs)
	}
	var res coupon.Archived
	if len(batch) == 0 {
		return res, nil
	}
	err := s.tx(ctx, "archive", func(ctx context.Context, tx *txn) error {
		res = coupon.Archived{Left: len(batch)}
		ids, err := s.archiveClaim(ctx, tx, batch)
		if err != nil || len(ids) == 0 {
			return err
		}
		res.Left -= len(ids)
		free, err := s.archiveFree(ctx, tx, ids)
		if err != nil {
			return err
		}
		res.Waiting = len(ids) - len(free)
		if len(free) == 0 {
			return nil
		}
		res.Moved = len(free)
		res.Steps, err = s.archiveMove(ctx, tx, free)
		return err
	})
	if err != nil {
		return coupon.Archived{}, err
	}
	return res, nil
}

// archiveClaim locks those that are as they were seen.
func (s *Store) archiveClaim(ctx context.Context, tx *txn, batch []coupon.Finished) ([]any, error) {
	seen := make(map[uint64]uint32, len(batch))
	args := make([]any, len(batch))
	for i, f := range batch {
		seen[f.ID], args[i] = f.Version, f.ID
	}
	var ids []any
	err := s.query(ctx, tx, stmtArchiveClaim.in(len(args)), func(r *sql.Rows) error {
		var f coupon.Finished
		if err := r.Scan(&f.ID, &f.Version); err != nil {
			return err
		}
		if seen[f.ID] == f.Version {
			ids = append(ids, f.ID)
		}
		return nil
	}, args...)
	return ids, err
}

// archiveFree gives those of ids (ascending) of which nothing waits anywhere. Whoever writes such a row holds the
// coupon's, which is ours now.
func (s *Store) archiveFree(ctx context.Context, tx querier, ids []any) ([]any, error) {
	waiting := make(map[uint64]bool)
	note := func(r *sql.Rows) error {
		var id uint64
		err := r.Scan(&id)
		waiting[id] = true
		return err
	}
	ranged := append([]any{ids[0], ids[len(ids)-1]}, ids...)
	for _, q := range []struct {
		st   Statement
		args []any
	}{
		{stmtArchiveOutbox.in(len(ids)), ranged},
		{stmtArchiveParked.in(len(ids)), ranged},
		{stmtArchiveReturn.in(len(ids)), ids},
	} {
		if err := s.query(ctx, tx, q.st, note, q.args...); err != nil {
			return nil, err
		}
	}
	st, args := noticesOf(ids)
	if err := s.query(ctx, tx, st, note, args...); err != nil {
		return nil, err
	}
	free := make([]any, 0, len(ids))
	for _, id := range ids {
		if n, ok := id.(uint64); ok && !waiting[n] {
			free = append(free, id)
		}
	}
	return free, nil
}

// noticesOf repeats the range of a coupon's events for each of them.
func noticesOf(ids []any) (Statement, []any) {
	const one = "(i.event_id >= ? AND i.event_id < ?)"
	st := stmtArchiveNotice
	st.SQL = strings.Replace(st.SQL, one, "("+one+strings.Repeat(" OR "+one, len(ids)-1)+")", 1)
	args := make([]any, 0, 2*len(ids))
	for _, id := range ids {
		key := fmt.Append(nil, id)
		args = append(args, append(key, ':'), append(key[:len(key):len(key)], ';'))
	}
	return st, args
}

// archiveMove moves rows that are held. Every statement must take as many as were decided.
func (s *Store) archiveMove(ctx context.Context, tx *txn, ids []any) (steps int, err error) {
	var n [4]int64
	for i, st := range []Statement{stmtArchivePut, stmtArchivePutHistory, stmtArchiveTakeHistory, stmtArchiveTake} {
		if n[i], err = s.exec(ctx, tx, st.in(len(ids)), ids...); err != nil {
			return 0, err
		}
	}
	if n[0] != int64(len(ids)) || n[3] != n[0] || n[1] != n[2] {
		return 0, fmt.Errorf("%w: of %d coupons %d were put and %d taken, of their history %d and %d", coupon.ErrContention, len(ids), n[0], n[3], n[1], n[2])
	}
	return int(n[1]), nil
}

// OutboxLonger reports whether more than n rows wait for the broker. It reads no more than that.
func (s *Store) OutboxLonger(ctx context.Context, n int) (bool, error) {
	var rows int
	err := s.queryRow(ctx, s.sql, stmtArchiveBusy, []any{&rows}, n+1)
	return rows > n, err
}

// ArchivePlace gives where the walk over a state stands; the zero cursor is its beginning.
func (s *Store) ArchivePlace(ctx context.Context, of coupon.Status) (coupon.Cursor, error) {
	var value string
	err := s.queryRow(ctx, s.sql, stmtArchivePlace, []any{&value}, archiveSetting(of))
	if errors.Is(err, coupon.ErrNotFound) {
		return coupon.Cursor{}, nil
	}
	var ms int64
	var c coupon.Cursor
	// What is no place is the beginning: the walk only costs longer.
	if _, scanErr := fmt.Sscanf(value, "%d %d", &ms, &c.ID); err != nil || scanErr != nil {
		return coupon.Cursor{}, err
	}
	c.At = time.UnixMilli(ms).UTC()
	return c, nil
}

// PutArchivePlace keeps where the walk over a state stands. Pods that walk it at once overwrite each other: what the
// one has passed, it has passed for all.
func (s *Store) PutArchivePlace(ctx context.Context, of coupon.Status, at coupon.Cursor) error {
	name := archiveSetting(of)
	if at == (coupon.Cursor{}) {
		_, err := s.exec(ctx, s.sql, stmtSettingDrop, name)
		return err
	}
	_, err := s.exec(ctx, s.sql, stmtSettingPut, name, strconv.FormatInt(at.At.UnixMilli(), 10)+" "+strconv.FormatUint(at.ID, 10))
	return err
}

// ArchiveLag is for how long the oldest finished coupon has been old enough for the archive, by its due instant; 0 when
// there is none. Of each state it looks at the first thousand only.
func (s *Store) ArchiveLag(ctx context.Context, after time.Duration) (time.Duration, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return 0, err
	}
	before, lag := now.Add(-after), time.Duration(0)
	for _, of := range coupon.FinalStatuses() {
		var oldest sql.NullTime
		if err := s.queryRow(ctx, s.sql, stmtArchiveOld, []any{&oldest}, uint8(of), before, before); err != nil {
			return 0, err
		}
		if oldest.Valid {
			lag = max(lag, before.Sub(oldest.Time))
		}
	}
	return lag, nil
}
