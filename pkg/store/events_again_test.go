package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// replayAll walks a replay to its end.
func replayAll(t testing.TB, s *store.Store, a coupon.ReplayAsk, limit int) []coupon.Replayed {
	t.Helper()
	require.NoError(t, a.Validate())
	var all []coupon.Replayed
	for p := (coupon.ReplayPlace{}); !p.Done; {
		out, next, err := s.ReplayPage(t.Context(), &a, p, limit)
		require.NoError(t, err)
		all, p = append(all, out...), next
	}
	return all
}

// Every event of a coupon's life is told again as it was told first, archived or not.
func TestReplayTellsTheSame(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	a := create(t, s, nil)
	b := create(t, s, func(x *coupon.Template) { x.Terms.Precision = coupon.Relaxed })
	for i := range 8 {
		g := grant(a, fmt.Sprintf(`u"%d`, i), fmt.Sprint(i))
		if i%2 == 1 {
			g.TemplateID, g.Trace, g.BatchID = b, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", ""
		}
		issueOne(t, s, g)
	}
	id := func(n int) uint64 { return uint64(d.Int(t, `SELECT id FROM coupon ORDER BY id LIMIT ?,1`, n)) }
	c := make([]uint64, 8)
	for i := range c {
		c[i] = id(i)
	}
	done(t, s, ask(coupon.VerbLock, "o1", c[0]))
	longer := ask(coupon.VerbRenew, "o1", c[0])
	longer.LockFor = time.Hour
	done(t, s, longer)
	done(t, s, ask(coupon.VerbRelease, "o1", c[0]))
	done(t, s, ask(coupon.VerbRedeem, "o2", c[1]))
	done(t, s, ask(coupon.VerbRefund, "o2", c[1]))
	done(t, s, extend(c[2], time.Now().Add(9*24*time.Hour).Truncate(time.Second)))
	done(t, s, ask(coupon.VerbVoid, "", c[2]))
	end := func(ids ...uint64) {
		for _, id := range ids { // as if granted long ago: row and history alike, the event of the grant is not compared
			d.Exec(t, `UPDATE coupon SET expires_at = DATE_FORMAT(UTC_TIMESTAMP() - INTERVAL 60 SECOND, '%Y-%m-%d %H:%i:%s'), due_at = expires_at WHERE id = ?`, id)
		}
	}
	done(t, s, ask(coupon.VerbLock, "o4", c[4]))
	end(c[3], c[4])
	d.Exec(t, `UPDATE coupon SET lock_until = DATE_FORMAT(UTC_TIMESTAMP() - INTERVAL 5 SECOND, '%Y-%m-%d %H:%i:%s') WHERE id = ?`, c[4])
	_, _, err := s.ExpireBatch(t.Context(), []coupon.Trigger{{Kind: coupon.KindExpire, CouponID: c[3]}, {Kind: coupon.KindExpire, CouponID: c[4]}}, always)
	require.NoError(t, err)
	back := ask(coupon.VerbReinstate, "", c[3])
	back.EndsAt = time.Now().Add(24 * time.Hour).Truncate(time.Second)
	done(t, s, back)

	type told struct{ key, body string }
	was := map[string]told{}
	rows, err := d.SQL.QueryContext(t.Context(), `SELECT msg_id, routing_key, body FROM outbox WHERE lane = 1`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var id, key, body string
		require.NoError(t, rows.Scan(&id, &key, &body))
		was[id] = told{key, body}
	}
	require.NoError(t, rows.Err())
	d.Exec(t, `DELETE FROM outbox`)
	moved, err := s.ArchiveBatch(t.Context(), []coupon.Finished{{ID: c[2], Version: 3}, {ID: c[4], Version: 3}})
	require.NoError(t, err)
	require.Equal(t, 2, moved.Moved)

	always := coupon.ReplayAsk{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)}
	for _, limit := range []int{1, 3, 1000} {
		again := map[string]told{}
		for _, e := range replayAll(t, s, always, limit) {
			again[e.ID] = told{e.Key, string(e.Body)}
		}
		require.Equal(t, was, again, "%d a page", limit)
	}
	for _, limit := range []int{1, 3, 1000} {
		one := always
		one.Template = b
		require.Len(t, replayAll(t, s, one, limit), 4+2+2, "of one template")
		one.Keys = []string{"coupon.used", "coupon.refunded"}
		require.Len(t, replayAll(t, s, one, limit), 2)
	}
	none := always
	none.To = none.From.Add(time.Second)
	require.Empty(t, replayAll(t, s, none, 100))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM outbox`), "the outbox is not written")
}
