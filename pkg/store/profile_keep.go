package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtProfileOld  = define("profile.old", `SELECT user_id FROM user_profile FORCE INDEX (user_profile_seen) WHERE seen_at < ? ORDER BY seen_at LIMIT ?`)
	stmtProfileHold = define("profile.hold", `SELECT user_id, deleted_at IS NOT NULL FROM user_profile FORCE INDEX (PRIMARY)
		WHERE seen_at < ? AND user_id IN (?) ORDER BY user_id FOR UPDATE SKIP LOCKED`)
	stmtProfileOwners  = define("profile.owners", `SELECT DISTINCT user_id FROM coupon FORCE INDEX (coupon_wallet) WHERE user_id IN (?)`)
	stmtProfileKeep    = define("profile.keep", `UPDATE user_profile SET seen_at = UTC_TIMESTAMP(3) WHERE user_id IN (?)`)
	stmtProfileDrop    = define("profile.drop", `DELETE FROM user_profile WHERE user_id IN (?)`)
	stmtProfileDropOut = define("profile.drop_decisions", `DELETE FROM user_optout WHERE user_id IN (?)`)

	stmtSealKeys = define("profile.keys", `SELECT DISTINCT address_key FROM user_profile FORCE INDEX (user_profile_key)`)
	stmtSealPage = define("profile.sealed", `SELECT user_id, addresses FROM user_profile FORCE INDEX (user_profile_key)
		WHERE address_key = ? AND user_id > ? ORDER BY user_id LIMIT ?`)
	stmtReseal = define("profile.reseal", `UPDATE user_profile SET addresses = ?, address_key = ? WHERE user_id = ? AND address_key = ? AND addresses = ?`)
)

// PruneProfiles removes up to limit (at most 900) profiles that nothing was heard of since before then. Decisions stay: no is no.
// That a user was deleted stays as long as coupons of theirs are there, which somebody could tell them of; then it goes, with
// their decisions. more says that others may be as old.
func (s *Store) PruneProfiles(ctx context.Context, before time.Time, limit int) (pruned int, more bool, err error) {
	limit = min(max(limit, 1), maxIDs)
	var old []any
	err = s.query(ctx, s.sql, stmtProfileOld, func(r *sql.Rows) error {
		var user []byte
		err := r.Scan(&user)
		old = append(old, user)
		return err
	}, before, limit)
	if err != nil || len(old) == 0 {
		return 0, false, err
	}
	err = s.tx(ctx, "prune profiles", func(ctx context.Context, tx *txn) error {
		pruned = 0
		var drop, deleted []any
		err := s.query(ctx, tx, stmtProfileHold.in(len(old)), func(r *sql.Rows) error {
			var user []byte
			var gone bool
			if err := r.Scan(&user, &gone); err != nil {
				return err
			}
			if gone {
				deleted = append(deleted, user)
			} else {
				drop = append(drop, user)
			}
			return nil
		}, append([]any{before}, old...)...)
		if err != nil {
			return err
		}
		gone, err := s.pruneDeleted(ctx, tx, deleted)
		if err != nil {
			return err
		}
		if drop = append(drop, gone...); len(drop) > 0 {
			_, err = s.exec(ctx, tx, stmtProfileDrop.in(len(drop)), drop...)
		}
		pruned = len(drop)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	return pruned, len(old) == limit, nil
}

// pruneDeleted gives those of the deleted users who have no coupon any more, without their decisions. The others are looked at
// again when the retention has passed once more.
func (s *Store) pruneDeleted(ctx context.Context, tx *txn, users []any) (gone []any, err error) {
	if len(users) == 0 {
		return nil, nil
	}
	owner := make(map[string]bool)
	err = s.query(ctx, tx, stmtProfileOwners.in(len(users)), func(r *sql.Rows) error {
		var user []byte
		err := r.Scan(&user)
		owner[string(user)] = true
		return err
	}, users...)
	if err != nil {
		return nil, err
	}
	var keep []any
	for _, u := range users {
		if user, ok := u.([]byte); ok && owner[string(user)] {
			keep = append(keep, u)
		} else {
			gone = append(gone, u)
		}
	}
	if len(keep) > 0 {
		if _, err := s.exec(ctx, tx, stmtProfileKeep.in(len(keep)), keep...); err != nil {
			return nil, err
		}
	}
	if len(gone) > 0 {
		_, err = s.exec(ctx, tx, stmtProfileDropOut.in(len(gone)), gone...)
	}
	return gone, err
}

// AddressKeys gives the ids of the keys that addresses are sealed with.
func (s *Store) AddressKeys(ctx context.Context) ([]string, error) {
	var out []string
	err := s.query(ctx, s.sql, stmtSealKeys, func(r *sql.Rows) error {
		var key string
		err := r.Scan(&key)
		if key != "" {
			out = append(out, key)
		}
		return err
	})
	return out, err
}

// SealedWith gives up to limit addresses that the key sealed, of the users after that one.
func (s *Store) SealedWith(ctx context.Context, key, after string, limit int) ([]coupon.Sealed, error) {
	var out []coupon.Sealed
	err := s.query(ctx, s.sql, stmtSealPage, func(r *sql.Rows) error {
		var user []byte
		sealed := coupon.Sealed{Key: key}
		err := r.Scan(&user, &sealed.Addresses)
		sealed.UserID = string(user)
		out = append(out, sealed)
		return err
	}, key, []byte(after), limit)
	return out, err
}

// Reseal puts each of to in the place of that of from, unless the user has told other addresses meanwhile. It gives how many it
// put.
func (s *Store) Reseal(ctx context.Context, from, to []coupon.Sealed) (resealed int, err error) {
	err = s.tx(ctx, "reseal addresses", func(ctx context.Context, tx *txn) error {
		resealed = 0
		for i := range from {
			n, err := s.exec(ctx, tx, stmtReseal, to[i].Addresses, to[i].Key, []byte(from[i].UserID), from[i].Key, from[i].Addresses)
			if err != nil {
				return err
			}
			resealed += int(n)
		}
		return nil
	})
	return resealed, err
}
