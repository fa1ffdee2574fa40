package store

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const profileColumns = `user_id, locale, zone, addresses, address_key, profile_at, login_at, browse_at, cart_at, ordered_at, deleted_at, seen_at`

//nolint:gochecknoglobals // statements are constants
var (
	stmtProfileRead = define("profile.read", `SELECT `+profileColumns+` FROM user_profile WHERE user_id IN (?)`)
	stmtOptOutRead  = define("profile.optouts", `SELECT user_id, channel, kind, source, decided_at FROM user_optout
		WHERE user_id IN (?) AND out_mark = 1 ORDER BY user_id, channel, kind`)
)

// Profiles reads what is known of users, with the opt-outs in force. Every user asked for is in the answer: one of whom
// nothing is known has a user id and nothing else.
func (s *Store) Profiles(ctx context.Context, users []string) (map[string]coupon.Profile, error) {
	return s.profilesIn(ctx, s.sql, users)
}

// profilesIn is Profiles within a transaction. It takes no locks.
func (s *Store) profilesIn(ctx context.Context, q querier, users []string) (map[string]coupon.Profile, error) {
	out := make(map[string]coupon.Profile, len(users))
	for _, user := range users {
		out[user] = coupon.Profile{UserID: user}
	}
	for part := range slices.Chunk(distinctUsers(users), inList) {
		args := userArgs(part)
		if err := s.query(ctx, q, stmtProfileRead.in(len(args)), func(r *sql.Rows) error {
			k, err := scanKnown(r)
			if err != nil {
				return err
			}
			p := k.Profile
			if k.Erased() {
				p.ErasedAt = k.DeletedAt
			}
			p.ActiveAt = slices.MaxFunc([]time.Time{p.LoginAt, p.BrowseAt, p.CartAt, p.OrderedAt}, time.Time.Compare)
			out[p.UserID] = p
			return nil
		}, args...); err != nil {
			return nil, err
		}
		if err := s.query(ctx, q, stmtOptOutRead.in(len(args)), func(r *sql.Rows) error {
			var user []byte
			o := coupon.OptOut{Out: true}
			if err := r.Scan(&user, &o.Channel, &o.Kind, &o.Source, &o.At); err != nil {
				return err
			}
			p := out[string(user)]
			p.OptOuts = append(p.OptOuts, o)
			out[string(user)] = p
			return nil
		}, args...); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// distinctUsers gives each once, in the order of the key.
func distinctUsers(users []string) []string {
	out := slices.Clone(users)
	slices.Sort(out)
	return slices.Compact(out)
}

func userArgs(users []string) []any {
	args := make([]any, len(users))
	for i, user := range users {
		args[i] = []byte(user)
	}
	return args
}

// scanKnown reads a row of profileColumns; more takes what follows them.
func scanKnown(r *sql.Rows, more ...any) (coupon.Known, error) {
	var (
		k                                            coupon.Known
		user, sealed                                 []byte
		profile, login, browse, cart, order, deleted sql.NullTime
	)
	dest := []any{&user, &k.Locale, &k.Zone, &sealed, &k.Key, &profile, &login, &browse, &cart, &order, &deleted, &k.LastSeenAt}
	if err := r.Scan(append(dest, more...)...); err != nil {
		return k, err //nolint:wrapcheck // query wraps it
	}
	k.UserID = string(user)
	if len(sealed) > 0 {
		k.Sealed = sealed
	}
	k.ProfileAt, k.LoginAt, k.BrowseAt, k.CartAt, k.OrderedAt, k.DeletedAt = profile.Time, login.Time, browse.Time, cart.Time, order.Time, deleted.Time
	return k, nil
}
