package store

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtProfileRead = define("profile.read", `SELECT user_id, locale, zone, addresses, address_key, profile_at, login_at, browse_at, cart_at,
		ordered_at, deleted_at, seen_at FROM user_profile WHERE user_id IN (?)`)
	stmtOptOutRead = define("profile.optouts", `SELECT user_id, channel, kind, source, decided_at FROM user_optout
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
	// In the order of the key, each once.
	distinct := make([]string, 0, len(out))
	for user := range out {
		distinct = append(distinct, user)
	}
	slices.Sort(distinct)
	for part := range slices.Chunk(distinct, inList) {
		args := make([]any, len(part))
		for i, user := range part {
			args[i] = []byte(user)
		}
		if err := s.query(ctx, q, stmtProfileRead.in(len(args)), func(r *sql.Rows) error {
			p, err := scanProfile(r)
			if err == nil {
				out[p.UserID] = p
			}
			return err
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

func scanProfile(r *sql.Rows) (coupon.Profile, error) {
	var (
		p                                            coupon.Profile
		user, sealed                                 []byte
		profile, login, browse, cart, order, deleted sql.NullTime
	)
	if err := r.Scan(&user, &p.Locale, &p.Zone, &sealed, &p.Key, &profile, &login, &browse, &cart, &order, &deleted, &p.LastSeenAt); err != nil {
		return p, err //nolint:wrapcheck // query wraps it
	}
	p.UserID = string(user)
	if len(sealed) > 0 {
		p.Sealed = sealed
	}
	p.ProfileAt, p.LoginAt, p.BrowseAt, p.CartAt, p.OrderedAt, p.ErasedAt = profile.Time, login.Time, browse.Time, cart.Time, order.Time, deleted.Time
	p.ActiveAt = slices.MaxFunc([]time.Time{p.LoginAt, p.BrowseAt, p.CartAt, p.OrderedAt}, time.Time.Compare)
	return p, nil
}
