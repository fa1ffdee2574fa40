package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtRepairStock    = define("repair.stock", `UPDATE template_stock SET taken = taken + ? WHERE template_id = ? AND taken + ? >= 0`)
	stmtRepairUserLock = define("repair.user_lock", `SELECT taken FROM user_quota WHERE template_id = ? AND user_id = ? FOR UPDATE`)
	stmtRepairUser     = define("repair.user", `UPDATE user_quota SET taken = ? WHERE template_id = ? AND user_id = ?`)
)

// RepairStock moves a template's counter by so much; false: it would have gone below zero, and stays.
func (s *Store) RepairStock(ctx context.Context, template uint64, by int64) (bool, error) {
	n, err := s.exec(ctx, s.sql, stmtRepairStock, by, template, by)
	return n == 1, err
}

// RepairUserCount sets a user's counter to what the user's coupons say while it is held, and gives what it was and is.
func (s *Store) RepairUserCount(ctx context.Context, template uint64, user string) (was, is int64, err error) {
	err = s.tx(ctx, "repair user count", func(ctx context.Context, tx *txn) error {
		if err := s.queryRow(ctx, tx, stmtRepairUserLock, []any{&was}, template, []byte(user)); err != nil {
			return err
		}
		// The counter is ours: no grant of the user commits, and no return is folded, before this does.
		c, err := s.userCount(ctx, tx, template, user)
		if err != nil {
			return err
		}
		is = c.Coupons
		_, err = s.exec(ctx, tx, stmtRepairUser, is, template, []byte(user))
		return err
	})
	return was, is, err
}

// userCount reads one user's counter and coupons.
func (s *Store) userCount(ctx context.Context, q querier, template uint64, user string) (coupon.UserCount, error) {
	st := Statement{Name: stmtReconUsers.Name, SQL: strings.Replace(stmtReconUsers.SQL,
		`template_id >= ? AND (template_id > ? OR (template_id = ? AND user_id > ?)) ORDER BY template_id, user_id LIMIT ?`,
		`template_id = ? AND user_id = ?`, 1)}
	c := coupon.UserCount{UserID: user}
	var name []byte
	err := s.queryRow(ctx, q, st, []any{&c.Template, &name, &c.Taken, &c.Revised, &c.Coupons}, template, []byte(user))
	return c, err
}

// RepairStatistics adds so much to a template's day.
func (s *Store) RepairStatistics(ctx context.Context, d coupon.TemplateDay) error {
	sum := d.DayStats
	day := sum.Day.UTC().Format(time.DateOnly)
	sum.Day = time.Time{}
	err := s.tx(ctx, "repair statistics", func(ctx context.Context, tx *txn) error {
		return s.addStats(ctx, tx, map[statsKey]*coupon.DayStats{{d.Template, day}: &sum})
	})
	if err != nil {
		return fmt.Errorf("template %d, %s: %w", d.Template, day, err)
	}
	return nil
}
