package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/outbox"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

var (
	_ outbox.Store      = (*store.Store)(nil)
	_ outbox.StatsStore = (*store.Store)(nil)
)

// insertSQL writes rows as a verb's transaction would.
func insertSQL(t testing.TB, d testenv.Database, rows ...coupon.Outgoing) {
	t.Helper()
	for len(rows) > 0 {
		n := min(len(rows), 1000)
		args := make([]any, 0, n*7)
		for _, r := range rows[:n] {
			var at any
			if !r.DeliverAt.IsZero() {
				at = r.DeliverAt.UTC()
			}
			body := r.Body
			if body == nil {
				body = []byte("{}")
			}
			args = append(args, r.Lane, r.Part, r.CouponID, r.MsgID, r.Key, string(rune(max(r.Class, ' '))), at, body)
		}
		_, err := d.SQL.ExecContext(context.WithoutCancel(t.Context()), `INSERT INTO outbox
			(lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, refused, created_at)
			VALUES (?,?,?,?,?,?,?,?,'',0,UTC_TIMESTAMP(3))`+strings.Repeat(`,(?,?,?,?,?,?,?,?,'',0,UTC_TIMESTAMP(3))`, n-1), args...)
		require.NoError(t, err)
		rows = rows[n:]
	}
}

// The fake that the loops are tested on behaves as the real store does.
func TestStoreConformance(t *testing.T) {
	t.Parallel()
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		f := newFakeStore(time.Now)
		conform(t, f, f.insert)
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		d := testenv.NewDatabase(t)
		conform(t, d.Store(t), func(rows ...coupon.Outgoing) { insertSQL(t, d, rows...) })
	})
}

func conform(t *testing.T, s outbox.Store, insert func(...coupon.Outgoing)) {
	t.Helper()
	ctx := t.Context()
	const lease = time.Minute
	read := func(limit int, from ...coupon.OutboxCursor) (ids []string, rows []coupon.Outgoing, rest []coupon.OutboxCursor) {
		rows, now, rest, err := s.OutboxBatch(ctx, coupon.LaneEvent, from, limit)
		require.NoError(t, err)
		require.Equal(t, len(rows) == 0, now.IsZero())
		for _, r := range rows {
			ids = append(ids, r.MsgID)
			require.Equal(t, coupon.LaneEvent, r.Lane)
			require.Equal(t, coupon.Partition(r.CouponID), r.Part)
		}
		return ids, rows, rest
	}
	all := make([]coupon.OutboxCursor, coupon.Partitions)
	for p := range all {
		all[p].Part = p
	}

	// Reading.
	ids, _, rest := read(100, all...)
	require.Empty(t, ids)
	require.Empty(t, rest)
	insert(event(3, 1), event(1, 1), event(19, 1), event(3, 2), trigger(1))
	ids, rows, rest := read(100, all...)
	require.Equal(t, []string{"1:1", "3:1", "19:1", "3:2"}, ids)
	require.Empty(t, rest)
	ids, _, rest = read(4, all[1], all[3])
	require.Equal(t, []string{"1:1", "3:1", "19:1"}, ids)
	require.Equal(t, []coupon.OutboxCursor{{Part: 3, After: rows[2].ID, Upto: rows[3].ID}}, rest)
	ids, _, rest = read(2, rest...)
	require.Equal(t, []string{"3:2"}, ids)
	require.Empty(t, rest)

	// Deleting, by id and lane.
	require.NoError(t, s.DeleteOutbox(ctx, coupon.LaneTrigger, map[int][]uint64{1: {rows[0].ID}}))
	require.NoError(t, s.DeleteOutbox(ctx, coupon.LaneEvent, map[int][]uint64{1: {rows[0].ID}, 3: {rows[2].ID, 1 << 40}}))
	ids, _, _ = read(100, all...)
	require.Equal(t, []string{"3:1", "3:2"}, ids)

	// Refusing.
	require.Equal(t, store.RefusalLimit, refusalLimit)
	for n := range refusalLimit {
		_, now, _ := read(100, all...)
		require.Equal(t, n, now[0].Refused)
		parked, err := s.RefuseOutbox(ctx, coupon.LaneEvent, map[int][]coupon.OutboxRefusal{3: {{ID: rows[1].ID, Reason: "no"}}})
		require.NoError(t, err)
		require.Equal(t, n == refusalLimit-1, parked == 1)
	}
	ids, _, _ = read(100, all...)
	require.Equal(t, []string{"3:2"}, ids)

	// Leases.
	claim := func(owner string) coupon.OutboxClaim {
		c, err := s.ClaimParts(ctx, owner, lease)
		require.NoError(t, err)
		return c
	}
	require.Len(t, claim("a").Parts, 16)
	require.Equal(t, coupon.OutboxClaim{Live: 2}, claim("b"))
	c := claim("a")
	require.Equal(t, []int{8, 9, 10, 11, 12, 13, 14, 15}, c.Surplus)
	require.NoError(t, s.ReleaseParts(ctx, "b", c.Surplus))
	require.Empty(t, claim("b").Parts, "only the owner can give up")
	require.NoError(t, s.ReleaseParts(ctx, "a", c.Surplus))
	require.Equal(t, coupon.OutboxClaim{Parts: c.Surplus, Live: 2}, claim("b"))
	require.NoError(t, s.LeaveParts(ctx, "b"))
	require.Len(t, claim("a").Parts, 16)
}
