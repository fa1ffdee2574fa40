package store_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// legal are the steps that requirement R2 allows, the renewed lock and the moved end among them.
var legal = map[[2]coupon.Status]bool{
	{0, coupon.Unused}:              true,
	{coupon.Unused, coupon.Locked}:  true,
	{coupon.Locked, coupon.Used}:    true,
	{coupon.Unused, coupon.Used}:    true,
	{coupon.Locked, coupon.Unused}:  true,
	{coupon.Locked, coupon.Expired}: true,
	{coupon.Unused, coupon.Expired}: true,
	{coupon.Unused, coupon.Voided}:  true,
	{coupon.Locked, coupon.Voided}:  true,
	{coupon.Used, coupon.Unused}:    true,
	{coupon.Used, coupon.Expired}:   true,
	{coupon.Locked, coupon.Locked}:  true,
	{coupon.Unused, coupon.Unused}:  true,
	{coupon.Expired, coupon.Unused}: true,
}

type replayed struct {
	status      coupon.Status
	version     uint32
	ends, due   time.Time
	order       string
	lock        time.Time
	used, ended time.Time
	cause       coupon.Cause
}

// requireReplays checks with plain SQL that every coupon's history tells its row: versions without a gap, each step legal
// and beginning where the one before ended, causes as they must be, and exactly one event for each step after the grant,
// which the tests plant without one.
func requireReplays(t testing.TB, d testenv.Database) {
	t.Helper()
	rows, err := d.SQL.QueryContext(t.Context(), `SELECT h.coupon_id, h.version, h.from_status, h.to_status, h.cause, h.at, h.expires_at, h.due_at,
		h.order_id, h.lock_until, h.previous, (SELECT COUNT(*) FROM outbox o WHERE o.lane = 1 AND o.part = MOD(h.coupon_id, 16) AND o.coupon_id = h.coupon_id
			AND o.msg_id LIKE CONCAT(h.coupon_id, ':', h.version, ':%'))
		FROM coupon_history h ORDER BY h.coupon_id, h.version`)
	require.NoError(t, err)
	defer rows.Close()
	all := make(map[uint64]*replayed)
	steps := 0
	for rows.Next() {
		var id uint64
		var version uint32
		var from, to coupon.Status
		var cause coupon.Cause
		var at, ends, due time.Time
		var order []byte
		var lock, previous sql.NullTime
		var events int
		require.NoError(t, rows.Scan(&id, &version, &from, &to, &cause, &at, &ends, &due, &order, &lock, &previous, &events))
		r := all[id]
		if r == nil {
			r = &replayed{ends: ends, due: due}
			all[id] = r
		}
		about := []any{"coupon %d version %d: %s to %s by %s", id, version, from, to, cause}
		require.Equal(t, r.version+1, version, about...)
		require.Equal(t, r.status, from, about...)
		require.True(t, legal[[2]coupon.Status{from, to}], about...)
		if version > 1 {
			require.Equal(t, 1, events, about...)
			steps++
		}
		if previous.Valid {
			require.Equal(t, r.ends, previous.Time, about...)
			require.Equal(t, from, to, about...)
		} else {
			require.Equal(t, r.ends, ends, about...)
		}
		if from == coupon.Locked {
			require.Equal(t, r.order, string(order), "a step belongs to the order of the lock: %v", about)
		}
		if from == coupon.Used {
			require.Equal(t, r.order, string(order), "a refund is the order's: %v", about)
		}
		switch {
		case to == coupon.Expired && from == coupon.Locked:
			require.Equal(t, coupon.CauseLock, cause, about...)
		case from == coupon.Used:
			require.Equal(t, coupon.CauseRefund, cause, about...)
		}
		if to == coupon.Expired {
			require.False(t, at.Before(ends), "early: %v", about)
		}
		if from == coupon.Unused && (to == coupon.Locked || to == coupon.Used) {
			require.True(t, at.Before(ends), "late: %v", about)
		}
		*r = replayed{status: to, version: version, ends: ends, due: due}
		switch to {
		case coupon.Locked:
			r.order, r.lock = string(order), lock.Time
		case coupon.Used:
			r.order, r.used = string(order), at
		case coupon.Expired:
			r.ended, r.cause = at, cause
		case coupon.Unused, coupon.Voided:
		}
	}
	require.NoError(t, rows.Err())
	require.EqualValues(t, steps, d.Int(t, `SELECT COUNT(DISTINCT msg_id) FROM outbox WHERE lane = 1 AND msg_id REGEXP '^[0-9]+:[0-9]+:' AND msg_id NOT LIKE '%:1:%'
		AND coupon_id IN (SELECT id FROM coupon)`))
	requireRows(t, d, all)
}

func requireRows(t testing.TB, d testenv.Database, all map[uint64]*replayed) {
	t.Helper()
	rows, err := d.SQL.QueryContext(t.Context(), `SELECT id, status, version, expires_at, due_at, COALESCE(order_id,''), lock_until, used_at, expired_at,
		COALESCE(expire_cause,''), locked_at IS NOT NULL, late_pay_policy IS NOT NULL AND late_pay_window IS NOT NULL FROM coupon`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var id uint64
		var r replayed
		var lock, used, ended sql.NullTime
		var lockedAt, late bool
		require.NoError(t, rows.Scan(&id, &r.status, &r.version, &r.ends, &r.due, &r.order, &lock, &used, &ended, &r.cause, &lockedAt, &late))
		r.lock, r.used, r.ended = lock.Time, used.Time, ended.Time
		require.Contains(t, all, id)
		require.Equal(t, *all[id], r, "coupon %d", id)
		if r.version > 1 {
			require.Equal(t, r.status == coupon.Locked, lockedAt && late, "coupon %d", id)
		}
	}
	require.NoError(t, rows.Err())
}
