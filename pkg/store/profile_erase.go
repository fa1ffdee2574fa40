package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Whoever removes windows locks them by their primary key, as those who collect, close and prune do.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtEraseUntil = define("erase.until", `SELECT `+profileColumns+`, UTC_TIMESTAMP(3) FROM user_profile WHERE user_id IN (?)`)
	stmtEraseFind  = define("erase.windows", `SELECT id FROM notice_window FORCE INDEX (notice_window_open) WHERE user_id = ? AND opened_at <= ? LIMIT ?`)
	stmtEraseLock  = define("erase.lock", `SELECT id FROM notice_window FORCE INDEX (PRIMARY) WHERE id IN (?) ORDER BY id FOR UPDATE`)
	stmtEraseInbox = define("erase.inbox", `DELETE FROM inbox WHERE user_id = ? AND created_at <= ? LIMIT ?`)
	stmtEraseCount = define("erase.counts", `DELETE FROM notice_count WHERE user_id = ?`)
)

const (
	eraseWindows = 20   // in one transaction: each may have thousands of items
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
	var until time.Time
	err = s.query(ctx, s.sql, stmtEraseUntil, func(r *sql.Rows) error {
		var now time.Time
		k, err := scanKnown(r, &now)
		until = k.DeletedAt
		if k.Erased() {
			until = now
		}
		return err
	}, []byte(user))
	if err != nil || until.IsZero() {
		return e, err
	}
	for {
		n, err := s.eraseWindows(ctx, user, until)
		if err != nil {
			return e, fmt.Errorf("erase notices: %w", err)
		}
		if e.Windows += n; n < eraseWindows {
			break
		}
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

func (s *Store) eraseWindows(ctx context.Context, user string, until time.Time) (n int, err error) {
	err = s.tx(ctx, "erase windows", func(ctx context.Context, tx *txn) error {
		var ids, held []any
		into := func(out *[]any) func(r *sql.Rows) error {
			return func(r *sql.Rows) error {
				var id uint64
				err := r.Scan(&id)
				*out = append(*out, id)
				return err
			}
		}
		if err := s.query(ctx, tx, stmtEraseFind, into(&ids), []byte(user), until, eraseWindows); err != nil {
			return err
		}
		if n = len(ids); n == 0 {
			return nil
		}
		if err := s.query(ctx, tx, stmtEraseLock.in(len(ids)), into(&held), ids...); err != nil || len(held) == 0 {
			return err
		}
		for _, st := range []Statement{stmtOldItems, stmtOldNotices, stmtOldWindow} {
			if _, err := s.exec(ctx, tx, st.in(len(held)), held...); err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}
