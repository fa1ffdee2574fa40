package outbox

import (
	"context"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
)

// A refused row is tried again after holdMin, twice that, and so on up to holdMax: about six minutes for the twenty
// refusals after which it is parked, so that a queue that is full or being made for a while costs nothing.
const (
	holdMin = 100 * time.Millisecond
	holdMax = 30 * time.Second
)

// outcome is what became of a batch.
type outcome struct {
	confirmed              map[int][]uint64
	refused                map[int][]coupon.OutboxRefusal
	sent, refusals, failed int
	err                    error // one of those that were no answer to a message itself
}

// order is what a row keeps its place within: events within their coupon, anything else within nothing but itself.
// The two kinds of keys cannot meet in one lane's maps but for rows of no coupon, whose keys have the top bit set.
func order(row *coupon.Outgoing) uint64 {
	if row.Lane == coupon.LaneEvent && row.CouponID != 0 {
		return row.CouponID
	}
	return row.ID | 1<<63
}

// publish sends a batch in waves, each with at most one row of an order, so that no row is sent before the confirm of
// the one it follows.
func (r *Relay) publish(ctx context.Context, lane int, b batch) *outcome {
	o := &outcome{confirmed: make(map[int][]uint64)}
	s := &r.sweeps[lane]
	left := b.rows
	for len(left) > 0 && o.err == nil {
		var wave []coupon.Outgoing
		wave, left = r.split(s, left)
		spans := r.begin(lane, wave)
		crash.Before(crash.Publish, laneName(lane))
		results := r.send(ctx, lane, b, wave)
		crash.After(crash.Publish, laneName(lane))
		endSpans(spans, results)
		for i, err := range results {
			r.judge(s, o, &wave[i], err)
		}
	}
	r.metrics.count(lane, o)
	return o
}

// split takes the first row of each order out of rows; rows of orders that must wait are dropped from both.
func (r *Relay) split(s *sweep, rows []coupon.Outgoing) (wave, later []coupon.Outgoing) {
	now := r.deps.Now()
	wave = make([]coupon.Outgoing, 0, len(rows))
	taken := make(map[uint64]struct{}, len(rows))
	for i := range rows {
		k := order(&rows[i])
		if _, ok := s.skipped[k]; ok {
			continue
		}
		if until, ok := s.held[k]; ok && until.After(now) {
			s.skipped[k] = struct{}{}
			continue
		}
		if _, ok := taken[k]; ok {
			later = append(later, rows[i])
			continue
		}
		taken[k] = struct{}{}
		wave = append(wave, rows[i])
	}
	return wave, later
}

func (r *Relay) send(ctx context.Context, lane int, b batch, wave []coupon.Outgoing) []error {
	if len(wave) == 0 {
		return nil
	}
	if lane == coupon.LaneTrigger {
		ts := make([]coupon.Timed, len(wave))
		for i := range wave {
			ts[i] = timed(&wave[i])
		}
		return r.deps.Delay.Deliver(ctx, b.now.Add(r.deps.Now().Sub(b.at)), ts)
	}
	ms := make([]broker.Message, len(wave))
	for i := range wave {
		row := &wave[i]
		ms[i] = broker.Event(r.deps.Exchange, row.Key, row.MsgID, row.Trace, row.Body)
	}
	return r.deps.Events.Publish(ctx, ms)
}

func timed(row *coupon.Outgoing) coupon.Timed {
	return coupon.Timed{
		ID: row.MsgID, Body: row.Body, Kind: coupon.Kind(row.Key), Class: row.Class, CouponID: row.CouponID,
		At: row.DeliverAt, Trace: row.Trace,
	}
}

// judge notes what became of one row.
func (r *Relay) judge(s *sweep, o *outcome, row *coupon.Outgoing, err error) {
	k := order(row)
	switch {
	case err == nil:
		o.sent++
		o.confirmed[row.Part] = append(o.confirmed[row.Part], row.ID)
		delete(s.held, k)
	case broker.Rejected(err):
		o.refusals++
		if o.refused == nil {
			o.refused = make(map[int][]coupon.OutboxRefusal)
		}
		o.refused[row.Part] = append(o.refused[row.Part], coupon.OutboxRefusal{ID: row.ID, Reason: err.Error()})
		s.held[k] = r.deps.Now().Add(holdFor(row.Refused))
		s.skipped[k] = struct{}{}
		r.log.Debug("outbox row refused", zap.Uint64("row", row.ID), zap.Int("refused", row.Refused+1), zap.Error(err))
	default:
		o.failed++
		o.err = err
		s.skipped[k] = struct{}{}
	}
}

// holdFor is the wait before the next attempt, with a jitter of a quarter.
func holdFor(refused int) time.Duration {
	d := holdMax
	if refused < 9 {
		d = min(holdMin<<refused, holdMax)
	}
	return d - time.Duration(rand.Int64N(int64(d/4)))
}
