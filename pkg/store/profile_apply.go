package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// A user's profile row is what every writer of anything that is known of the user locks first: it is made before it is read,
// so that two who learn of a new user at once take turns. Users are worked in order. What is known is folded in
// coupon.Known and written back whole.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtProfileOpen = define("profile.open", `INSERT INTO user_profile
		(user_id, locale, zone, addresses, address_key, seen_at) VALUES (?,'','','','',UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE user_id = user_id`)
	stmtProfileLock = define("profile.lock", `SELECT `+profileColumns+`, UTC_TIMESTAMP(3) FROM user_profile WHERE user_id IN (?) ORDER BY user_id FOR UPDATE`)
	stmtOptOutAll   = define("profile.decisions", `SELECT user_id, channel, kind, out_mark, source, decided_at FROM user_optout
		WHERE user_id IN (?) ORDER BY user_id, channel, kind`)
	stmtProfileWrite = define("profile.write", `INSERT INTO user_profile
		(user_id, locale, zone, addresses, address_key, profile_at, login_at, browse_at, cart_at, ordered_at, deleted_at, seen_at)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE locale = VALUES(locale), zone = VALUES(zone),
		addresses = VALUES(addresses), address_key = VALUES(address_key), profile_at = VALUES(profile_at), login_at = VALUES(login_at),
		browse_at = VALUES(browse_at), cart_at = VALUES(cart_at), ordered_at = VALUES(ordered_at), deleted_at = VALUES(deleted_at),
		seen_at = VALUES(seen_at)`)
	stmtOptOutWrite = define("profile.decide", `INSERT INTO user_optout (user_id, channel, kind, out_mark, source, decided_at)
		VALUES (?,?,?,?,?,?) ON DUPLICATE KEY UPDATE out_mark = VALUES(out_mark), source = VALUES(source), decided_at = VALUES(decided_at)`)
	stmtOptOutForget = define("profile.undecide", `DELETE FROM user_optout WHERE user_id = ? AND channel = ? AND kind = ?`)
)

// maxUserEvents bounds one transaction.
const maxUserEvents = inList

// ApplyUserEvents takes up what events tell of users. Addresses are stored as ProfileChange.Sealed, never otherwise. It may be
// called with the same events any number of times, in any order. What is stored of a deleted user beside the profile is
// removed as well, in further transactions.
func (s *Store) ApplyUserEvents(ctx context.Context, evs []coupon.UserEvent) error {
	var gone []string
	for part := range slices.Chunk(evs, maxUserEvents) {
		users := make([]string, len(part))
		for i := range part {
			users[i] = part[i].UserID
			if part[i].Deleted {
				gone = append(gone, part[i].UserID)
			}
		}
		if err := s.know(ctx, "apply user events", users, func(k *coupon.Known, now time.Time) {
			var told []*coupon.UserEvent
			for i := range part {
				if part[i].UserID == k.UserID {
					told = append(told, &part[i])
				}
			}
			k.ApplyAll(told, now)
		}, nil); err != nil {
			return err
		}
	}
	for _, user := range distinctUsers(gone) {
		if _, err := s.removeTraces(ctx, user); err != nil {
			return err
		}
	}
	return nil
}

// OptOut records a decision of a user on a channel and a kind; the last by its instant holds.
func (s *Store) OptOut(ctx context.Context, user string, o coupon.OptOut) error {
	if err := o.Validate(); err != nil {
		return fmt.Errorf("opt-out: %w", err)
	}
	return s.know(ctx, "opt-out", []string{user}, func(k *coupon.Known, now time.Time) { k.Decide(o, now) }, nil)
}

// know locks what is known of users, lets learn change it, and writes it back; and, in the same transaction, also.
func (s *Store) know(ctx context.Context, name string, users []string, learn func(k *coupon.Known, now time.Time), also func(ctx context.Context, tx *txn) error) error {
	users = distinctUsers(users)
	if len(users) == 0 {
		return nil
	}
	return s.tx(ctx, name, func(ctx context.Context, tx *txn) error {
		known, now, err := s.lockKnown(ctx, tx, users)
		if err != nil {
			return err
		}
		var rows, decided []any
		for i := range known {
			k := &known[i]
			before := maps.Clone(k.Decisions)
			learn(k, now)
			rows = append(rows, []byte(k.UserID), k.Locale, k.Zone, bytesOrEmpty(k.Sealed), k.Key, instantOrNull(k.ProfileAt), instantOrNull(k.LoginAt), instantOrNull(k.BrowseAt),
				instantOrNull(k.CartAt), instantOrNull(k.OrderedAt), instantOrNull(k.DeletedAt))
			for of, o := range k.Decisions {
				if before[of] != o {
					decided = append(decided, []byte(k.UserID), o.Channel, o.Kind, o.Out, o.Source, o.At)
				}
				delete(before, of)
			}
			for of := range before {
				if _, err := s.exec(ctx, tx, stmtOptOutForget, []byte(k.UserID), of.Channel, of.Kind); err != nil {
					return err
				}
			}
		}
		if err := s.insertAll(ctx, tx, stmtProfileWrite, rows, 11); err != nil {
			return err
		}
		if err := s.insertAll(ctx, tx, stmtOptOutWrite, decided, 6); err != nil {
			return err
		}
		if also == nil {
			return nil
		}
		return also(ctx, tx)
	})
}

// lockKnown makes and locks the rows of users, which are in order.
func (s *Store) lockKnown(ctx context.Context, tx *txn, users []string) (known []coupon.Known, now time.Time, err error) {
	args := userArgs(users)
	if err := s.insertAll(ctx, tx, stmtProfileOpen, args, 1); err != nil {
		return nil, now, err
	}
	at := make(map[string]int, len(users))
	err = s.query(ctx, tx, stmtProfileLock.in(len(args)), func(r *sql.Rows) error {
		k, err := scanKnown(r, &now)
		k.Decisions = make(map[coupon.OptOutOf]coupon.OptOut)
		at[k.UserID] = len(known)
		known = append(known, k)
		return err
	}, args...)
	if err != nil {
		return nil, now, err
	}
	if len(known) != len(users) {
		return nil, now, errors.New("rows of users are missing that were made just now")
	}
	err = s.query(ctx, tx, stmtOptOutAll.in(len(args)), func(r *sql.Rows) error {
		var user []byte
		var o coupon.OptOut
		if err := r.Scan(&user, &o.Channel, &o.Kind, &o.Out, &o.Source, &o.At); err != nil {
			return err
		}
		known[at[string(user)]].Decisions[coupon.OptOutOf{Channel: o.Channel, Kind: o.Kind}] = o
		return nil
	}, args...)
	return known, now, err
}

func bytesOrEmpty(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
