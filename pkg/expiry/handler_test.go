package expiry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/expiry"
)

var start = time.Date(2026, 10, 31, 16, 0, 0, 0, time.UTC)

// table is a database of rows in memory that answers by coupon.Decide, refuses bad rows as a constraint would, and can
// be away.
type table struct {
	now   time.Time
	rows  map[uint64]*coupon.Row
	bad   map[uint64]bool
	busy  map[uint64]bool
	err   error
	calls int

	paused map[uint64]bool
}

func (tb *table) ExpireBatch(_ context.Context, ts []coupon.Trigger, allow func(time.Time) error) (time.Time, []coupon.Settlement, error) {
	tb.calls++
	if tb.err != nil {
		return time.Time{}, nil, tb.err
	}
	if err := allow(tb.now); err != nil {
		return time.Time{}, nil, err
	}
	for _, t := range ts {
		if tb.bad[t.CouponID] {
			return time.Time{}, nil, fmt.Errorf("insert: %w", coupon.ErrIntegrity)
		}
	}
	out := make([]coupon.Settlement, len(ts))
	for i, t := range ts {
		row := tb.rows[t.CouponID]
		if tb.busy[t.CouponID] {
			out[i].Busy = true
			continue
		}
		out[i] = coupon.Settlement{Decision: coupon.Decide(row, t, tb.now), Class: 'x', Terms: coupon.Terms{Precision: coupon.Exact}}
		if tb.paused[t.CouponID] && out[i].Decision.Action == coupon.Expire {
			out[i].Decision = coupon.Decision{Action: coupon.Drop, Reason: coupon.DropPaused}
		}
		if row != nil {
			out[i].Ends, out[i].DueAt = row.ExpiresAt, row.DueAt
			if out[i].Decision.Action == coupon.Expire {
				row.Status = coupon.Expired
			}
		}
	}
	return tb.now, out, nil
}

// route records what was sent on.
type route struct {
	sent  []coupon.Timed
	waits []time.Duration // of those sent to wait
}

func (r *route) After(wait time.Duration, t coupon.Timed) broker.Message {
	r.sent, r.waits = append(r.sent, t), append(r.waits, wait)
	return broker.Message{Exchange: "enter", Key: wait.String(), ID: t.ID, Body: t.Body}
}

func (r *route) Message(now time.Time, t coupon.Timed) broker.Message {
	r.sent = append(r.sent, t)
	return broker.Message{Exchange: "enter", Key: t.At.Sub(now).String(), ID: t.ID, Body: t.Body}
}

func codec(t testing.TB) *event.Codec {
	t.Helper()
	c, err := event.NewCodec("test")
	require.NoError(t, err)
	return c
}

func unused(id uint64, ends time.Time) *coupon.Row {
	return &coupon.Row{ID: id, Status: coupon.Unused, Version: 1, ExpiresAt: ends, DueAt: ends}
}

func rig(t testing.TB, tb *table) (*expiry.Handler, *route, *event.Codec) {
	t.Helper()
	c, r := codec(t), &route{}
	core := expiry.NewCore(tb, clock.NewGuard(2*time.Second, func() time.Time { return start }), prometheus.NewRegistry())
	return expiry.NewHandler(core, r, c, rate.NewLimiter(rate.Inf, 0), zap.NewNop()), r, c
}

func delivery(c *event.Codec, tr coupon.Trigger) broker.Delivery {
	return broker.Delivery{Body: c.Trigger(tr), Key: "00.00.00.00.01.expire.r.07", Headers: map[string]any{"traceparent": "00-a-b-01"}}
}

func deliveries(c *event.Codec, ts ...coupon.Trigger) []broker.Delivery {
	out := make([]broker.Delivery, len(ts))
	for i, t := range ts {
		out[i] = delivery(c, t)
	}
	return out
}

func ring(id uint64, at time.Time) coupon.Trigger {
	return coupon.Trigger{Kind: coupon.KindExpire, CouponID: id, At: at, ID: coupon.TriggerID('v', id, 1), Origin: coupon.OriginLadder}
}

func TestHandlerOutcomes(t *testing.T) {
	t.Parallel()
	now := start
	ended, moment, later := now.Add(-time.Second), now.Add(300*time.Millisecond), now.Add(time.Hour)
	tb := &table{
		now: now, bad: map[uint64]bool{7: true}, busy: map[uint64]bool{5: true},
		rows: map[uint64]*coupon.Row{1: unused(1, ended), 2: unused(2, moment), 3: unused(3, later), 5: unused(5, ended), 7: unused(7, ended), 8: unused(8, ended)},
	}
	h, r, c := rig(t, tb)
	batch := []broker.Delivery{
		delivery(c, ring(1, ended)),                // expires
		delivery(c, ring(2, moment)),               // a moment early: held
		delivery(c, ring(3, later)),                // an hour early: rescheduled
		delivery(c, ring(4, ended)),                // absent: dropped
		delivery(c, ring(5, ended)),                // busy: again in a second
		{Body: []byte("{")},                        // no trigger: parked
		delivery(c, ring(7, ended)),                // cannot be changed: parked, alone
		delivery(c, ring(8, ended)),                // expires all the same
		delivery(c, ring(3, later.Add(time.Hour))), // scheduled for another instant: dropped
	}
	out, err := h.Handle(t.Context(), batch)
	require.NoError(t, err)
	require.Equal(t, broker.Ack(), out[0])
	require.Equal(t, broker.Hold(300*time.Millisecond), out[1])
	require.Equal(t, broker.Ack(), out[3])
	require.NotEqual(t, broker.Ack(), out[5])
	require.NotEqual(t, broker.Ack(), out[6])
	require.Equal(t, broker.Ack(), out[7])
	require.Equal(t, broker.Ack(), out[8])
	require.Equal(t, coupon.Expired, tb.rows[1].Status)
	require.Equal(t, coupon.Expired, tb.rows[8].Status)
	require.Equal(t, coupon.Unused, tb.rows[7].Status)

	require.Len(t, r.sent, 2)
	require.EqualValues(t, 3, r.sent[0].CouponID)
	require.Equal(t, later, r.sent[0].At)
	require.EqualValues(t, 5, r.sent[1].CouponID)
	require.Equal(t, []time.Duration{time.Second}, r.waits)
	require.Equal(t, byte('r'), r.sent[1].Class, "the class of a row that could not be read comes from the key")
	again, err := event.DecodeTrigger(r.sent[1].Body)
	require.NoError(t, err)
	require.Zero(t, again.Attempt, "busy counts no attempt")
}

func TestHandlerRetriesWithGrowingDelayThenParks(t *testing.T) {
	t.Parallel()
	tb := &table{now: start, err: fmt.Errorf("x: %w", coupon.ErrContention)}
	h, r, c := rig(t, tb)
	tr := ring(1, start)
	for range 5 {
		out, err := h.Handle(t.Context(), []broker.Delivery{delivery(c, tr)})
		require.NoError(t, err)
		require.Len(t, out, 1)
		last := r.sent[len(r.sent)-1]
		tr, err = event.DecodeTrigger(last.Body)
		require.NoError(t, err)
	}
	require.Equal(t, []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}, r.waits)
	require.Equal(t, 5, tr.Attempt)
	_, err := h.Handle(t.Context(), []broker.Delivery{delivery(c, tr)})
	require.NoError(t, err)
	require.Len(t, r.sent, 5, "the sixth failure parks")
}

func TestHandlerPausesWhileNothingCanBeDone(t *testing.T) {
	t.Parallel()
	tb := &table{now: start, err: fmt.Errorf("x: %w", coupon.ErrUnavailable)}
	h, r, c := rig(t, tb)
	_, err := h.Handle(t.Context(), []broker.Delivery{delivery(c, ring(1, start))})
	require.ErrorIs(t, err, coupon.ErrUnavailable)
	tb.err = nil
	_, err = h.Handle(t.Context(), []broker.Delivery{delivery(c, ring(1, start))})
	require.NoError(t, err)
	tb.now = start.Add(time.Minute) // the database's clock steps
	_, err = h.Handle(t.Context(), []broker.Delivery{delivery(c, ring(1, start))})
	require.ErrorIs(t, err, clock.ErrAhead)
	require.Empty(t, r.sent, "no attempt was counted")
}

func TestCoreBisectsToTheBadMember(t *testing.T) {
	t.Parallel()
	tb := &table{now: start, rows: map[uint64]*coupon.Row{}, bad: map[uint64]bool{250: true}}
	var ts []coupon.Trigger
	for id := uint64(1); id <= 500; id++ {
		tb.rows[id] = unused(id, start)
		ts = append(ts, ring(id, start))
	}
	core := expiry.NewCore(tb, clock.NewGuard(time.Second, func() time.Time { return start }), prometheus.NewRegistry())
	out, err := core.Settle(t.Context(), ts)
	require.NoError(t, err)
	require.Len(t, out, 500)
	for i, r := range out {
		require.Equal(t, i == 249, errors.Is(r.Err, coupon.ErrIntegrity))
	}
	require.LessOrEqual(t, tb.calls, 20, "halving, not one by one")
}

// What the ladder lets come a moment early waits here, and the database is not asked before it is time.
func TestHandlerHoldsTheEarlyWithoutAskingTheDatabase(t *testing.T) {
	t.Parallel()
	at := start.Add(time.Second)
	tb := &table{now: start.Add(800 * time.Millisecond), rows: map[uint64]*coupon.Row{1: unused(1, at), 2: unused(2, start)}}
	h, _, c := rig(t, tb)
	out, err := h.Handle(t.Context(), deliveries(c, ring(2, start)))
	require.NoError(t, err)
	require.Equal(t, []broker.Outcome{broker.Ack()}, out, "the guard knows the clock from here on")
	out, err = h.Handle(t.Context(), deliveries(c, ring(1, at)))
	require.NoError(t, err)
	require.Equal(t, []broker.Outcome{broker.Hold(200 * time.Millisecond)}, out)
	require.Equal(t, 1, tb.calls)
	require.Equal(t, coupon.Unused, tb.rows[1].Status)
}
