package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// leave writes one event row for each coupon, as a verb would; message ids are <coupon>:<n of the coupon>.
func leave(t testing.TB, q execer, lane int, ids ...string) {
	t.Helper()
	var rows []string
	for _, id := range ids {
		var c uint64
		_, err := fmt.Sscanf(id, "%d:", &c)
		require.NoError(t, err)
		at := "NULL"
		if lane == coupon.LaneTrigger {
			at = "UTC_TIMESTAMP(3)"
		}
		rows = append(rows, fmt.Sprintf("(%d,%d,%d,'%s','coupon.expired','x',%s,'{}','',0,UTC_TIMESTAMP(3))", lane, coupon.Partition(c), c, id, at))
	}
	for chunk := range slices.Chunk(rows, 1000) {
		_, err := q.ExecContext(t.Context(), `INSERT INTO outbox (lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, refused, created_at) VALUES `+
			strings.Join(chunk, ","))
		require.NoError(t, err)
	}
}

func start(parts ...int) []coupon.OutboxCursor {
	cs := make([]coupon.OutboxCursor, len(parts))
	for i, p := range parts {
		cs[i].Part = p
	}
	return cs
}

func messages(rows []coupon.Outgoing) []string {
	var ids []string
	for _, r := range rows {
		ids = append(ids, r.MsgID)
	}
	return ids
}

func byPart(rows []coupon.Outgoing) map[int][]uint64 {
	m := make(map[int][]uint64)
	for _, r := range rows {
		m[r.Part] = append(m[r.Part], r.ID)
	}
	return m
}

func TestOutboxBatchOrderAndCursors(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	leave(t, d.SQL, coupon.LaneEvent, "3:1", "1:1", "19:1", "3:2", "2:1", "3:3")
	leave(t, d.SQL, coupon.LaneTrigger, "1:9")
	ctx := t.Context()

	rows, now, rest, err := s.OutboxBatch(ctx, coupon.LaneEvent, start(1, 2, 3), 100)
	require.NoError(t, err)
	require.Equal(t, []string{"1:1", "2:1", "3:1", "19:1", "3:2", "3:3"}, messages(rows))
	require.Empty(t, rest)
	database, err := s.Now(ctx)
	require.NoError(t, err)
	require.WithinDuration(t, database, now, 5*time.Second)

	rows, _, rest, err = s.OutboxBatch(ctx, coupon.LaneEvent, start(1, 2, 3), 6)
	require.NoError(t, err)
	require.Equal(t, []string{"1:1", "2:1", "3:1", "19:1"}, messages(rows), "an equal part from each")
	require.Equal(t, []coupon.OutboxCursor{{Part: 3, After: rows[3].ID, Upto: rows[3].ID + 3}}, rest)
	rows, _, rest, err = s.OutboxBatch(ctx, coupon.LaneEvent, rest, 6)
	require.NoError(t, err)
	require.Equal(t, []string{"3:2", "3:3"}, messages(rows), "the rest has the whole limit")
	require.Empty(t, rest)

	rows, _, _, err = s.OutboxBatch(ctx, coupon.LaneTrigger, start(1), 6)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.WithinDuration(t, database, rows[0].DeliverAt, 5*time.Second)
	require.Equal(t, byte('x'), rows[0].Class)
}

// A transaction that took its ids early and commits late: higher ids are published and deleted meanwhile, without
// waiting for it, and its rows are still found.
func TestOutboxLateCommit(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ctx := t.Context()
	late, err := d.SQL.BeginTx(ctx, nil)
	require.NoError(t, err)
	leave(t, late, coupon.LaneEvent, "16:1", "32:1")
	leave(t, d.SQL, coupon.LaneEvent, "48:1", "64:1", "80:1")

	rows, _, _, err := s.OutboxBatch(ctx, coupon.LaneEvent, start(0), 100)
	require.NoError(t, err)
	require.Equal(t, []string{"48:1", "64:1", "80:1"}, messages(rows))
	quick, cancel := context.WithTimeout(ctx, time.Duration(d.Config.LockWait)/2)
	defer cancel()
	require.NoError(t, s.DeleteOutbox(quick, coupon.LaneEvent, byPart(rows)), "must not wait for rows of open transactions")
	require.NoError(t, late.Commit())

	rows, _, _, err = s.OutboxBatch(ctx, coupon.LaneEvent, start(0), 100)
	require.NoError(t, err)
	require.Equal(t, []string{"16:1", "32:1"}, messages(rows))
}

// A walk by cursors has passed the id of an open transaction. It commits, and then the coupon's next event does: the
// walk must not come upon the later one without the earlier.
func TestOutboxWalkNeverOvertakesALateCommit(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ctx := t.Context()
	late, err := d.SQL.BeginTx(ctx, nil)
	require.NoError(t, err)
	leave(t, late, coupon.LaneEvent, "16:1")
	leave(t, d.SQL, coupon.LaneEvent, "32:1", "48:1", "64:1")

	rows, _, rest, err := s.OutboxBatch(ctx, coupon.LaneEvent, start(0), 2)
	require.NoError(t, err)
	require.Equal(t, []string{"32:1", "48:1"}, messages(rows))
	require.NoError(t, late.Commit())
	leave(t, d.SQL, coupon.LaneEvent, "16:2")
	rows, _, rest, err = s.OutboxBatch(ctx, coupon.LaneEvent, rest, 2)
	require.NoError(t, err)
	require.Equal(t, []string{"64:1"}, messages(rows), "the walk ends where the outbox ended when it began")
	require.Empty(t, rest)
	rows, _, _, err = s.OutboxBatch(ctx, coupon.LaneEvent, start(0), 100)
	require.NoError(t, err)
	require.Equal(t, []string{"16:1", "32:1", "48:1", "64:1", "16:2"}, messages(rows))
}

func TestOutboxParkedAfterRefusals(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ctx := t.Context()
	leave(t, d.SQL, coupon.LaneEvent, "16:1", "16:2", "32:1")
	rows, _, _, err := s.OutboxBatch(ctx, coupon.LaneEvent, start(0), 100)
	require.NoError(t, err)
	refusal := map[int][]coupon.OutboxRefusal{0: {{ID: rows[0].ID, Reason: strings.Repeat("ü", 300)}}}
	for n := 1; n < store.RefusalLimit; n++ {
		parked, err := s.RefuseOutbox(ctx, coupon.LaneEvent, refusal)
		require.NoError(t, err)
		require.Zero(t, parked)
	}
	rows, _, _, err = s.OutboxBatch(ctx, coupon.LaneEvent, start(0), 1)
	require.NoError(t, err)
	require.Equal(t, store.RefusalLimit-1, rows[0].Refused)

	parked, err := s.RefuseOutbox(ctx, coupon.LaneEvent, refusal)
	require.NoError(t, err)
	require.Equal(t, 1, parked)
	parked, err = s.RefuseOutbox(ctx, coupon.LaneEvent, refusal) // by a relay that read it before
	require.NoError(t, err)
	require.Zero(t, parked)
	rows, _, _, err = s.OutboxBatch(ctx, coupon.LaneEvent, start(0), 100)
	require.NoError(t, err)
	require.Equal(t, []string{"16:2", "32:1"}, messages(rows), "the partition goes on")
	require.Equal(t, int64(1), d.Int(t, `SELECT COUNT(*) FROM outbox_parked WHERE msg_id = '16:1' AND reason LIKE 'üü%' AND body = '{}' AND lane = 1`))
}

func TestOutboxStats(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ctx := t.Context()
	l, err := s.OutboxStats(ctx, coupon.LaneEvent, 100)
	require.NoError(t, err)
	require.Equal(t, coupon.OutboxLane{}, l)
	leave(t, d.SQL, coupon.LaneEvent, "1:1", "2:1", "3:1")
	d.Exec(t, `UPDATE outbox SET created_at = UTC_TIMESTAMP(3) - INTERVAL 90 SECOND WHERE msg_id = '2:1'`)
	l, err = s.OutboxStats(ctx, coupon.LaneEvent, 100)
	require.NoError(t, err)
	require.Equal(t, 3, l.Rows)
	require.InDelta(t, 90, l.Oldest.Seconds(), 20)
	l, err = s.OutboxStats(ctx, coupon.LaneEvent, 2)
	require.NoError(t, err)
	require.Equal(t, 2, l.Rows, "counted up to the limit")
}

// Reading and deleting touch their own partition's rows only, whatever lies around them.
func TestOutboxPlans(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	d.Store(t)
	ids := make([]string, 0, 20_000)
	for i := range 20_000 {
		ids = append(ids, fmt.Sprintf("%d:1", i))
	}
	leave(t, d.SQL, coupon.LaneEvent, ids...)
	conn, err := d.SQL.Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	batch := statement(t, "outbox.batch")
	require.LessOrEqual(t, rowsRead(t, conn, batch+" UNION ALL "+batch, 1, 5, 1, 5, 0, 1<<60, 60, 1, 9, 1, 9, 10_000, 1<<60, 60), 250)
	del := strings.Replace(statement(t, "outbox.delete"), "IN (?)", "IN (?,?,?)", 1)
	require.LessOrEqual(t, rowsRead(t, conn, del, 1, 5, 6, 22, 38), 20)
	require.LessOrEqual(t, rowsRead(t, conn, statement(t, "outbox.delete"), 1, 5, 6), 5)
	require.LessOrEqual(t, rowsRead(t, conn, statement(t, "outbox.rows"), 1, 100), 320)
	require.LessOrEqual(t, rowsRead(t, conn, statement(t, "outbox.oldest"), 1, 7), 10)
}
