package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// Of several publishers one grants, once in the interval; what has ended goes with the next, and nothing is left behind.
func TestHeartbeatsComeAndGo(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	a, b := db.Store(t), db.Store(t)
	ctx := t.Context()
	granted, err := a.Beat(ctx, time.Hour)
	require.NoError(t, err)
	require.False(t, granted, "nothing is prepared")
	require.NoError(t, a.PrepareBeats(ctx))
	require.NoError(t, b.PrepareBeats(ctx))
	for i, s := range []interface {
		Beat(ctx context.Context, every time.Duration) (bool, error)
	}{a, b, a} {
		granted, err := s.Beat(ctx, time.Hour)
		require.NoError(t, err)
		require.Equal(t, i == 0, granted)
	}
	count := func(query string) (n int) {
		require.NoError(t, db.SQL.QueryRowContext(ctx, query).Scan(&n))
		return n
	}
	require.Equal(t, 3, count(`SELECT COUNT(*) FROM coupon WHERE user_id = 'lapse.heartbeat' AND status = 1`))
	require.Equal(t, 3, count(`SELECT COUNT(*) FROM outbox WHERE lane = 0`), "a trigger each")
	require.Zero(t, count(`SELECT COUNT(*) FROM outbox WHERE lane = 1`), "nobody is told of a grant")
	require.Zero(t, count(`SELECT COUNT(*) FROM grant_key`))
	require.Zero(t, count(`SELECT COUNT(*) FROM template_stock`), "no list of templates shows them")

	expireBeats(t, db, a)
	require.Equal(t, 3, count(`SELECT COUNT(*) FROM outbox WHERE lane = 1 AND routing_key = 'heartbeat.expired'`))
	granted, err = b.Beat(ctx, 0)
	require.NoError(t, err)
	require.True(t, granted)
	require.Equal(t, 3, count(`SELECT COUNT(*) FROM coupon`), "those that ended are gone")
	require.Equal(t, 3, count(`SELECT COUNT(*) FROM coupon_history`))
	for range 40 {
		_, err := a.Beat(ctx, 0)
		require.NoError(t, err)
	}
	require.LessOrEqual(t, count(`SELECT COUNT(*) FROM coupon`), 102, "no more while nobody expires them")

	tallies, err := a.TallyRange(ctx, 0, 1<<40)
	require.NoError(t, err)
	require.Empty(t, tallies, "they are nobody's books")
	steps, err := a.StepTallies(ctx, 0, 1<<40, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Empty(t, steps)
}

func expireBeats(t *testing.T, db testenv.Database, s interface {
	ExpireBatch(ctx context.Context, ts []coupon.Trigger, allow func(time.Time) error) (time.Time, []coupon.Settlement, error)
},
) {
	t.Helper()
	_, err := db.SQL.ExecContext(t.Context(), `UPDATE coupon SET expires_at = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND, due_at = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND`)
	require.NoError(t, err)
	rows, err := db.SQL.QueryContext(t.Context(), `SELECT id, expires_at FROM coupon`)
	require.NoError(t, err)
	defer rows.Close()
	var ts []coupon.Trigger
	for rows.Next() {
		tr := coupon.Trigger{Kind: coupon.KindExpire, Origin: coupon.OriginLadder, ID: "t"}
		require.NoError(t, rows.Scan(&tr.CouponID, &tr.At))
		ts = append(ts, tr)
	}
	require.NoError(t, rows.Err())
	_, settled, err := s.ExpireBatch(t.Context(), ts, func(time.Time) error { return nil })
	require.NoError(t, err)
	for _, one := range settled {
		require.Equal(t, coupon.Expire, one.Decision.Action)
	}
	// The event says which class has come through.
	bodies, err := db.SQL.QueryContext(t.Context(), `SELECT body FROM outbox WHERE lane = 1`)
	require.NoError(t, err)
	defer bodies.Close()
	classes := map[coupon.Precision]bool{}
	for bodies.Next() {
		var body []byte
		require.NoError(t, bodies.Scan(&body))
		h, err := event.DecodeHeartbeat(body)
		require.NoError(t, err)
		require.False(t, h.Ended.IsZero())
		classes[h.Precision] = true
	}
	require.NoError(t, bodies.Err())
	require.Len(t, classes, 3)
}

func TestHeartbeatAges(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	ctx := t.Context()
	ages, err := s.BeatAges(ctx)
	require.NoError(t, err)
	require.Empty(t, ages)
	require.NoError(t, s.PrepareBeats(ctx))
	now, err := s.Now(ctx)
	require.NoError(t, err)
	require.NoError(t, s.BeatDone(ctx, coupon.Standard, now.Add(time.Hour)))
	_, err = db.SQL.ExecContext(ctx, `UPDATE setting SET value = value - 60000 WHERE name = 'heartbeat.exact'`)
	require.NoError(t, err)
	require.NoError(t, s.BeatDone(ctx, coupon.Exact, now.Add(-2*time.Minute)), "an older one")
	ages, err = s.BeatAges(ctx)
	require.NoError(t, err)
	require.Len(t, ages, 3)
	require.Zero(t, ages[coupon.Standard])
	require.GreaterOrEqual(t, ages[coupon.Exact], time.Minute)
	require.Less(t, ages[coupon.Exact], 100*time.Second)
	require.NoError(t, s.NoBeats(ctx))
	ages, err = s.BeatAges(ctx)
	require.NoError(t, err)
	require.Empty(t, ages)
	granted, err := s.Beat(ctx, 0)
	require.NoError(t, err)
	require.False(t, granted, "a pod that is still on its way out grants none")
}
