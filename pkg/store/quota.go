package store

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// MaxFolded is the most returns that one call of FoldQuota takes.
const MaxFolded = 1000

//nolint:gochecknoglobals // statements are constants
var (
	stmtQuotaClaim = define("quota.claim", `SELECT coupon_id, template_id, user_id, to_user FROM quota_return
		ORDER BY coupon_id LIMIT ? FOR UPDATE SKIP LOCKED`)
	stmtQuotaUsers = define("quota.users", `SELECT user_id, taken FROM user_quota WHERE template_id = ? AND user_id IN (?)
		ORDER BY user_id FOR UPDATE`)
	// Of rows that are there, and locked: an INSERT only so that one statement can set many.
	stmtQuotaUserSet = define("quota.user_set", `INSERT INTO user_quota (template_id, user_id, taken) VALUES (?,?,?) ON DUPLICATE KEY UPDATE taken = VALUES(taken)`)
	stmtQuotaDone    = define("quota.done", `DELETE FROM quota_return WHERE coupon_id IN (?)`)
	stmtQuotaBack    = define("quota.back", `UPDATE template_stock SET taken = taken - ? WHERE template_id = ? AND taken >= ?`)
	stmtQuotaStock   = define("quota.stock", `SELECT taken FROM template_stock WHERE template_id = ? FOR UPDATE`)
	stmtQuotaFloor   = define("quota.floor", `UPDATE template_stock SET taken = ? WHERE template_id = ?`)
)

// FoldQuota gives back to their templates what up to limit expired and voided coupons have returned, and to their users
// where the template says so: each once, since the notes go in the same transaction. more says that there may be others.
// Several pods share the work without waiting for one another's notes.
//
// Locks are taken in the order of Issue: user_quota before template_stock, each by key, and the stock, which all pods
// want, as late as possible. No counter goes below zero; what would have gone is counted. A user whom the template did
// not limit has no counter, and gets none.
func (s *Store) FoldQuota(ctx context.Context, limit int) (folded int, more bool, err error) {
	limit = min(max(limit, 1), MaxFolded)
	floored := 0
	err = s.tx(ctx, "fold quota", func(ctx context.Context, tx *txn) error {
		folded, floored = 0, 0
		templates := make(map[uint64]int64)
		users := make(map[uint64]map[string]int64)
		var ids []any
		err := s.query(ctx, tx, stmtQuotaClaim, func(r *sql.Rows) error {
			var id, template uint64
			var user []byte
			var toUser bool
			if err := r.Scan(&id, &template, &user, &toUser); err != nil {
				return err
			}
			ids = append(ids, id)
			templates[template]++
			if toUser {
				if users[template] == nil {
					users[template] = make(map[string]int64)
				}
				users[template][string(user)]++
			}
			return nil
		}, limit)
		if err != nil || len(ids) == 0 {
			return err
		}
		for _, template := range slices.Sorted(maps.Keys(users)) {
			n, err := s.foldUsers(ctx, tx, template, users[template])
			if err != nil {
				return err
			}
			floored += n
		}
		for part := range slices.Chunk(ids, insertRows) {
			if _, err := s.exec(ctx, tx, stmtQuotaDone.in(len(part)), part...); err != nil {
				return err
			}
		}
		for _, template := range slices.Sorted(maps.Keys(templates)) {
			n, err := s.foldStock(ctx, tx, template, templates[template])
			if err != nil {
				return err
			}
			floored += n
		}
		folded = len(ids)
		return nil
	})
	if err != nil {
		return 0, false, err
	}
	s.metrics.quotaFloored.Add(float64(floored))
	return folded, folded == limit, nil
}

// foldUsers lowers the counters that there are; floored is by how much they would have gone below zero.
func (s *Store) foldUsers(ctx context.Context, tx querier, template uint64, back map[string]int64) (floored int, err error) {
	for part := range slices.Chunk(slices.Sorted(maps.Keys(back)), insertRows) {
		args := make([]any, 0, len(part)+1)
		args = append(args, template)
		for _, user := range part {
			args = append(args, []byte(user))
		}
		var set []any
		n := 0
		err := s.query(ctx, tx, stmtQuotaUsers.in(len(part)), func(r *sql.Rows) error {
			var user []byte
			var taken int64
			if err := r.Scan(&user, &taken); err != nil {
				return err
			}
			left := taken - back[string(user)]
			if left < 0 {
				floored -= int(left)
				left = 0
			}
			set = append(set, template, user, left)
			n++
			return nil
		}, args...)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			continue
		}
		if _, err := s.exec(ctx, tx, stmtQuotaUserSet.rows(n), set...); err != nil {
			return 0, err
		}
	}
	return floored, nil
}

// foldStock lowers a template's counter; floored is by how much it would have gone below zero.
func (s *Store) foldStock(ctx context.Context, tx querier, template uint64, back int64) (floored int, err error) {
	n, err := s.exec(ctx, tx, stmtQuotaBack, back, template, back)
	if err != nil || n == 1 {
		return 0, err
	}
	var taken int64
	if err := s.queryRow(ctx, tx, stmtQuotaStock, []any{&taken}, template); err != nil {
		if errors.Is(err, coupon.ErrNotFound) { // nothing to give back to
			return int(back), nil
		}
		return 0, err
	}
	left := max(taken-back, 0)
	_, err = s.exec(ctx, tx, stmtQuotaFloor, left, template)
	return int(back - (taken - left)), err
}
