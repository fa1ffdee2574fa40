package store

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// VALUES(column) is deprecated in MySQL in favour of a row alias, which MariaDB does not know.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtIssueStart        = define("issue.start", `SELECT UTC_TIMESTAMP(3), @@SESSION.auto_increment_increment`)
	stmtIssueKeys         = define("issue.keys", `SELECT grant_key, coupon_id, content_hash FROM grant_key WHERE issuer = ? AND grant_key IN (?)`)
	stmtIssueFirst        = define("issue.first", `SELECT coupon_id, expires_at FROM coupon_history WHERE version = 1 AND coupon_id IN (?)`)
	stmtIssueFirstArchive = define("issue.first_archived", `SELECT coupon_id, expires_at FROM coupon_history_archive WHERE version = 1 AND coupon_id IN (?)`)
	stmtIssueLock         = define("issue.stock_lock", `SELECT template_id FROM template_stock WHERE template_id IN (?) ORDER BY template_id FOR UPDATE`)
	stmtIssueStock        = define("issue.stock", `SELECT t.id, t.revision, t.rule, `+termsColumns+`, s.quota, s.per_user, s.taken, s.stopped
		FROM template_stock s JOIN coupon_template t ON t.id = s.template_id AND t.revision = s.revision
		WHERE s.template_id IN (?)`)
	stmtIssueReserve = define("issue.reserve", `UPDATE template_stock SET taken = taken + ?
		WHERE template_id = ? AND revision = ? AND per_user = ? AND stopped = 0 AND (quota = 0 OR taken + ? <= quota)`)
	stmtIssueUserLock = define("issue.user_lock", `INSERT INTO user_quota (template_id, user_id, taken) VALUES (?,?,0) ON DUPLICATE KEY UPDATE taken = taken`)
	stmtIssueUsers    = define("issue.users", `SELECT user_id, taken FROM user_quota WHERE template_id = ? AND user_id IN (?)`)
	stmtIssueUserAdd  = define("issue.user_add", `INSERT INTO user_quota (template_id, user_id, taken) VALUES (?,?,?) ON DUPLICATE KEY UPDATE taken = taken + VALUES(taken)`)
	stmtIssueCoupon   = define("issue.coupon", `INSERT INTO coupon
		(template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at)
		VALUES (?,?,?,?,?,?,?,?,?,?)`)
	stmtIssueCount = define("issue.count", `SELECT COUNT(*) FROM coupon WHERE id BETWEEN ? AND ? AND granted_at = ? AND version = 1`)
	stmtIssueKey   = define("issue.key", `INSERT INTO grant_key (issuer, grant_key, coupon_id, content_hash) VALUES (?,?,?,?)`)
)

// readKeys finds the first answers of keys that are known.
func (s *Store) readKeys(ctx context.Context, tx querier, is *issue) error {
	is.known = make(map[grantKey]*granted, len(is.asks))
	keys := make([]grantKey, 0, len(is.asks))
	for i := range is.asks {
		if a := &is.asks[i]; a.fault == "" {
			keys = append(keys, a.key)
		}
	}
	byID := make(map[uint64]*granted)
	err := s.eachKey(ctx, tx, keys, func(k grantKey, couponID uint64, hash []byte) {
		g := &granted{couponID: couponID}
		copy(g.hash[:], hash)
		is.known[k], byID[couponID] = g, g
	})
	if err != nil {
		return err
	}
	return s.readFirst(ctx, tx, byID)
}

// recheckRefused looks up the keys of refused grants once more. What was read to refuse them was read after their
// keys, so it may be the effect of the same grant on another pod.
func (s *Store) recheckRefused(ctx context.Context, tx querier, is *issue) error {
	var keys []grantKey
	for _, i := range is.refused {
		if a := &is.asks[i]; a.fault == "" && is.known[a.key] == nil {
			keys = append(keys, a.key)
		}
	}
	found := false
	if err := s.eachKey(ctx, tx, keys, func(grantKey, uint64, []byte) { found = true }); err != nil {
		return err
	}
	if found {
		return fmt.Errorf("grant key of a refused grant inserted meanwhile: %w", coupon.ErrContention)
	}
	return nil
}

func (s *Store) eachKey(ctx context.Context, tx querier, keys []grantKey, found func(k grantKey, couponID uint64, hash []byte)) error {
	byIssuer := make(map[string][]any)
	for _, k := range keys {
		byIssuer[k.issuer] = append(byIssuer[k.issuer], []byte(k.key))
	}
	for issuer, keys := range byIssuer {
		for part := range slices.Chunk(keys, insertRows) {
			err := s.query(ctx, tx, stmtIssueKeys.in(len(part)), func(r *sql.Rows) error {
				var key, hash []byte
				var couponID uint64
				if err := r.Scan(&key, &couponID, &hash); err != nil {
					return err
				}
				found(grantKey{issuer, string(key)}, couponID, hash)
				return nil
			}, append([]any{[]byte(issuer)}, part...)...)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// readFirst reads the ends that were answered then: the coupon's own may have been moved since. What is not among the
// live is in the archive, or on its way between the two: then the live are looked at once more.
func (s *Store) readFirst(ctx context.Context, tx querier, byID map[uint64]*granted) error {
	ids := make([]any, 0, len(byID))
	for _, st := range []Statement{stmtIssueFirst, stmtIssueFirstArchive, stmtIssueFirst} {
		ids = ids[:0]
		for id, g := range byID {
			if g.expiresAt.IsZero() {
				ids = append(ids, id)
			}
		}
		for part := range slices.Chunk(ids, insertRows) {
			err := s.query(ctx, tx, st.in(len(part)), func(r *sql.Rows) error {
				var id uint64
				var end sql.NullTime
				if err := r.Scan(&id, &end); err != nil {
					return err
				}
				if g := byID[id]; g != nil {
					g.expiresAt = end.Time
				}
				return nil
			}, part...)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// readStock reads the templates of the grants whose key is new, and locks the users' counters of those that limit
// them. With lockStock the stock is locked before it is read.
func (s *Store) readStock(ctx context.Context, tx querier, is *issue) error {
	is.stock = make(map[uint64]*stock)
	is.users = make(map[userKey]*userQuota)
	var ids []any
	for i := range is.asks {
		a := &is.asks[i]
		if a.fault != "" || is.known[a.key] != nil {
			continue
		}
		if _, ok := is.stock[a.TemplateID]; !ok {
			is.stock[a.TemplateID] = nil
			ids = append(ids, a.TemplateID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	// The limit per user is needed to know whose counters to lock, and those come before the stock: see Issue.
	if err := s.readTemplates(ctx, tx, is, ids); err != nil {
		return err
	}
	if err := s.lockUsers(ctx, tx, is); err != nil {
		return err
	}
	if !is.lockStock {
		return nil
	}
	before := maps.Clone(is.stock)
	for part := range slices.Chunk(ids, insertRows) {
		if err := s.query(ctx, tx, stmtIssueLock.in(len(part)), func(r *sql.Rows) error {
			var id uint64
			return r.Scan(&id)
		}, part...); err != nil {
			return err
		}
	}
	if err := s.readTemplates(ctx, tx, is, ids); err != nil {
		return err
	}
	for id, st := range is.stock {
		if st != nil && st.CountsUsers() && (before[id] == nil || !before[id].CountsUsers()) {
			return fmt.Errorf("template %d: limit per user: %w: %w", id, errStockMoved, coupon.ErrContention)
		}
	}
	return nil
}

func (s *Store) readTemplates(ctx context.Context, tx querier, is *issue, ids []any) error {
	for part := range slices.Chunk(ids, insertRows) {
		err := s.query(ctx, tx, stmtIssueStock.in(len(part)), func(r *sql.Rows) error {
			st := &stock{}
			var rule string
			var terms scanTerms
			dest := append([]any{&st.ID, &st.Revision, &rule}, terms.dest()...)
			if err := r.Scan(append(dest, &st.Quota, &st.PerUser, &st.Taken, &st.Stopped)...); err != nil {
				return err
			}
			if err := json.Unmarshal([]byte(rule), &st.Rule); err != nil {
				return fmt.Errorf("rule of template %d: %w: %w", st.ID, coupon.ErrIntegrity, err) // others go on
			}
			var err error
			if st.Terms, err = terms.terms(st.ID, st.Revision); err != nil {
				return err
			}
			is.stock[st.ID] = st
			return nil
		}, part...)
		if err != nil {
			return err
		}
	}
	return nil
}

// lockUsers locks, and makes where missing, the counters of users that a template keeps, in order. A template whose
// quota is taken needs none: it refuses anyway.
func (s *Store) lockUsers(ctx context.Context, tx querier, is *issue) error {
	for i := range is.asks {
		a := &is.asks[i]
		st := is.stock[a.TemplateID]
		if a.fault == "" && is.known[a.key] == nil && st != nil && st.CountsUsers() && (is.lockStock || st.left() != 0) {
			is.users[userKey{a.TemplateID, a.UserID}] = &userQuota{}
		}
	}
	keys := sortedUsers(is.users)
	for part := range slices.Chunk(keys, insertRows) {
		args := make([]any, 0, 2*len(part))
		for _, k := range part {
			args = append(args, k.template, []byte(k.user))
		}
		if _, err := s.exec(ctx, tx, stmtIssueUserLock.rows(len(part)), args...); err != nil {
			return err
		}
	}
	for len(keys) > 0 {
		n := 1
		for n < min(len(keys), insertRows) && keys[n].template == keys[0].template {
			n++
		}
		template := keys[0].template
		args := make([]any, 0, n+1)
		args = append(args, template)
		for _, k := range keys[:n] {
			args = append(args, []byte(k.user))
		}
		if err := s.query(ctx, tx, stmtIssueUsers.in(n), func(r *sql.Rows) error {
			var user []byte
			var taken int64
			if err := r.Scan(&user, &taken); err != nil {
				return err
			}
			is.users[userKey{template, string(user)}].taken = taken
			return nil
		}, args...); err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

func sortedUsers(users map[userKey]*userQuota) []userKey {
	return slices.SortedFunc(maps.Keys(users), func(a, b userKey) int {
		return cmp.Or(cmp.Compare(a.template, b.template), cmp.Compare(a.user, b.user))
	})
}

// insertCoupons inserts the new coupons and gives them their ids. The server reserves the ids of an INSERT whose
// number of rows it knows beforehand ("simple insert") in one piece, in every innodb_autoinc_lock_mode, and
// reports the first; the step is auto_increment_increment, which a cluster may change. It is proved each time all the
// same: our rows, told by their grant instant, must fill the range, since a wrong id would give a user's coupon to
// another.
func (s *Store) insertCoupons(ctx context.Context, tx querier, is *issue) error {
	for part := range slices.Chunk(is.made, insertRows) {
		args := make([]any, 0, 10*len(part))
		for i := range part {
			t := &part[i]
			args = append(args, t.Terms.TemplateID, t.Terms.Revision, []byte(t.BatchID), []byte(t.UserID),
				uint8(coupon.Unused), t.Version, t.ValidFrom, t.ExpiresAt, t.DueAt, t.At)
		}
		first, err := s.insertID(ctx, tx, stmtIssueCoupon.rows(len(part)), args...)
		if err != nil {
			return err
		}
		for i := range part {
			part[i].CouponID = first + uint64(i)*is.step
		}
		if len(part) == 1 {
			continue
		}
		var n int
		if err := s.queryRow(ctx, tx, stmtIssueCount, []any{&n}, first, part[len(part)-1].CouponID, is.now); err != nil {
			return err
		}
		if n < len(part) {
			return fmt.Errorf("ids of an INSERT of %d rows from %d on by %d: %d found; the server does not number rows consecutively",
				len(part), first, is.step, n)
		}
	}
	return nil
}

// insertKeys takes the keys, in order, so that transactions with the same keys wait for one another and do not
// deadlock. A key that is taken by now makes the transaction run again, and find it.
func (s *Store) insertKeys(ctx context.Context, tx querier, is *issue) error {
	order := make([]int, len(is.made))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := &is.made[a], &is.made[b]
		return cmp.Or(cmp.Compare(x.Issuer, y.Issuer), cmp.Compare(x.GrantKey, y.GrantKey))
	})
	for part := range slices.Chunk(order, insertRows) {
		args := make([]any, 0, 4*len(part))
		for _, i := range part {
			t := &is.made[i]
			args = append(args, []byte(t.Issuer), []byte(t.GrantKey), t.CouponID, bytes.Clone(is.asks[is.makers[i]].hash[:]))
		}
		if _, err := s.exec(ctx, tx, stmtIssueKey.rows(len(part)), args...); errors.Is(err, coupon.ErrConflict) {
			return fmt.Errorf("grant key inserted meanwhile: %w", coupon.ErrContention)
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) addUserQuota(ctx context.Context, tx querier, is *issue) error {
	keys := slices.DeleteFunc(sortedUsers(is.users), func(k userKey) bool { return is.users[k].added == 0 })
	for part := range slices.Chunk(keys, insertRows) {
		args := make([]any, 0, 3*len(part))
		for _, k := range part {
			args = append(args, k.template, []byte(k.user), is.users[k].added)
		}
		if _, err := s.exec(ctx, tx, stmtIssueUserAdd.rows(len(part)), args...); err != nil {
			return err
		}
	}
	return nil
}

// reserveStock takes what the new coupons need, if the template still is as it was when that was decided.
func (s *Store) reserveStock(ctx context.Context, tx querier, is *issue) error {
	for _, id := range slices.Sorted(maps.Keys(is.stock)) {
		st := is.stock[id]
		if st == nil || st.added == 0 {
			continue
		}
		n, err := s.exec(ctx, tx, stmtIssueReserve, st.added, id, st.Revision, st.PerUser, st.added)
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("template %d: %w: %w", id, errStockMoved, coupon.ErrContention)
		}
	}
	return nil
}
