package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtEraseUntil = define("erase.until", `SELECT `+profileColumns+`, UTC_TIMESTAMP(3) FROM user_profile WHERE user_id IN (?)`)
	stmtEraseFind  = define("erase.windows", `SELECT id, items FROM notice_window FORCE INDEX (notice_window_open) WHERE user_id = ? AND opened_at <= ? LIMIT ?`)
	stmtEraseInbox = define("erase.inbox", `DELETE FROM inbox WHERE user_id = ? AND created_at <= ? LIMIT ?`)
	stmtEraseCount = define("erase.counts", `DELETE FROM notice_count WHERE user_id = ?`)
)

const (
	eraseWindows = 100  // in one transaction, as far as their items allow
	eraseInbox   = 1000 // rows in one transaction
	// ActionErase is the deed of an erased user in the operator's log.
	ActionErase = "user.erase"
)

// EraseUser removes what is known of a user and what they were told, as user.deleted does, now. What is left is the user's id: in
// the fact of the deletion, in coupons and their history, quotas, and the operator's log, which gets the deed. It may be
// repeated: a second time removes what has come since.
func (s *Store) EraseUser(ctx context.Context, user, actor, reason string) (coupon.Erasure, error) {
	deleted := coupon.UserEvent{UserID: user, Deleted: true}
	err := s.know(ctx, "erase user", []string{user}, func(k *coupon.Known, now time.Time) {
		deleted.At = now
		k.Apply(&deleted, now)
	}, func(ctx context.Context, tx *txn) error {
		return s.recordDeed(ctx, tx, Deed{Actor: actor, Reason: reason, Action: ActionErase, Subject: user})
	})
	if err != nil {
		return coupon.Erasure{}, err
	}
	return s.removeTraces(ctx, user)
}

// removeTraces removes what a deleted user was told: of one who is none again what was told before the deletion, else
// everything. It goes in steps; one that fails is made up for by the next call.
func (s *Store) removeTraces(ctx context.Context, user string) (e coupon.Erasure, err error) {
	until, err := s.eraseUntil(ctx, user)
	if err != nil || until.IsZero() {
		return e, err
	}
	for {
		found, removed, err := s.eraseWindows(ctx, user, until)
		if err != nil {
			return e, fmt.Errorf("erase notices: %w", err)
		}
		if e.Windows += removed; found == 0 {
			break
		}
	}
	// What was about to be delivered may have come in meanwhile. It cannot any more: its notice is gone.
	if until, err = s.eraseUntil(ctx, user); err != nil {
		return e, err
	}
	for {
		n, err := s.exec(ctx, s.sql, stmtEraseInbox, []byte(user), until, eraseInbox)
		if err != nil {
			return e, fmt.Errorf("erase inbox: %w", err)
		}
		if e.Inbox += int(n); n < eraseInbox {
			break
		}
	}
	_, err = s.exec(ctx, s.sql, stmtEraseCount, []byte(user))
	return e, err
}

// eraseUntil is up to when what a user was told is to be removed; zero: nothing is.
func (s *Store) eraseUntil(ctx context.Context, user string) (until time.Time, err error) {
	err = s.query(ctx, s.sql, stmtEraseUntil, func(r *sql.Rows) error {
		var now time.Time
		k, err := scanKnown(r, &now)
		until = k.DeletedAt
		if k.Erased() {
			until = now
		}
		return err
	}, []byte(user))
	return until, err
}

// eraseWindows removes some of the user's windows. found is how many there were.
func (s *Store) eraseWindows(ctx context.Context, user string, until time.Time) (found, removed int, err error) {
	var r removal
	err = s.query(ctx, s.sql, stmtEraseFind, func(row *sql.Rows) error {
		var id uint64
		var items int
		err := row.Scan(&id, &items)
		found++
		r.add(id, items)
		return err
	}, []byte(user), until, eraseWindows)
	if err == nil {
		removed, err = s.remove(ctx, "erase windows", r, stmtRemoveLock)
	}
	return found, removed, err
}
