package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	// A pass ends after so many batches, so that the other lane has its turn and a partition can be handed over.
	triggerBatches = 16
	eventBatches   = 8
	// maxHeld bounds the refused rows that are remembered. A lane that has more of them stands still until the first
	// may be tried again, which is at most holdMax.
	maxHeld = 50_000
)

// sweep is a walk over a lane of the owned partitions, from id zero to the end, in one or several passes.
type sweep struct {
	parts   []int                 // what it walks over
	cursors []coupon.OutboxCursor // where it is; empty: at the end
	skipped map[uint64]struct{}   // orders (see order) with a row left behind: their later rows must wait for the next sweep
	held    map[uint64]time.Time  // orders whose first row was refused, and when to try again; outlives the sweep
}

// prepare starts anew at the end of a walk, when the partitions are others, and when too many rows are remembered: the
// rest of the walk must not wait for rows that are tried again by the next one.
func (s *sweep) prepare(parts []int, now time.Time) {
	if len(s.cursors) > 0 && slices.Equal(s.parts, parts) && len(s.held) < maxHeld {
		return
	}
	s.parts = slices.Clone(parts)
	s.cursors = make([]coupon.OutboxCursor, len(parts))
	for i, p := range parts {
		s.cursors[i].Part = p
	}
	s.skipped = make(map[uint64]struct{})
	for k, until := range s.held {
		if !until.After(now) {
			delete(s.held, k)
		}
	}
}

// batch is what was read, with the clock that delays are computed from.
type batch struct {
	rows []coupon.Outgoing
	now  time.Time // the database's clock when it was read
	at   time.Time // ours right after
}

// pass reads, publishes and deletes up to limit batches of a lane, the three side by side. On return nothing is under
// way any more. rest: the walk is not at its end.
func (r *Relay) pass(ctx, work context.Context, lane int, parts []int, limit int) (sent int, rest bool, err error) {
	s := &r.sweeps[lane]
	s.prepare(parts, r.deps.Now())
	if len(s.held) >= maxHeld {
		return 0, false, nil
	}
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	batches, outcomes := make(chan batch), make(chan *outcome, 1)
	var readErr, settleErr error
	var side sync.WaitGroup
	side.Go(func() {
		defer close(batches)
		readErr = r.read(reading, lane, s, limit, batches)
	})
	side.Go(func() { settleErr = r.settle(work, lane, outcomes, stopReading) })
	for b := range batches {
		if reading.Err() != nil {
			continue // let the reader end
		}
		o := r.publish(work, lane, b)
		sent += o.sent
		if o.err != nil {
			err = fmt.Errorf("publish: %w", o.err)
			stopReading()
		}
		outcomes <- o
	}
	close(outcomes)
	side.Wait()
	if err = errors.Join(err, settleErr); err == nil && ctx.Err() == nil {
		err = readErr // else it was told to stop
	}
	if err != nil || ctx.Err() != nil {
		s.cursors = nil // what was left behind comes first
	}
	return sent, len(s.cursors) > 0, err
}

// read hands batches over until limit, the end of the walk, or an error.
func (r *Relay) read(ctx context.Context, lane int, s *sweep, limit int, to chan<- batch) error {
	for n := 0; n < limit && len(s.cursors) > 0; n++ {
		rows, now, rest, err := r.deps.Store.OutboxBatch(ctx, lane, s.cursors, r.cfg.Batch)
		if err != nil {
			return fmt.Errorf("read the outbox: %w", err)
		}
		s.cursors = rest
		if len(rows) == 0 {
			return nil
		}
		select {
		case to <- batch{rows: rows, now: now, at: r.deps.Now()}:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// settle writes down what became of the batches. After an error it calls stop; what could not be deleted will be
// published again.
func (r *Relay) settle(ctx context.Context, lane int, outcomes <-chan *outcome, stop func()) error {
	var errs error
	for o := range outcomes {
		if err := r.settleOne(ctx, lane, o); err != nil {
			errs = errors.Join(errs, err)
			stop()
		}
	}
	return errs
}

func (r *Relay) settleOne(ctx context.Context, lane int, o *outcome) error {
	if len(o.confirmed) > 0 {
		if err := r.deps.Store.DeleteOutbox(ctx, lane, o.confirmed); err != nil {
			return fmt.Errorf("delete what was confirmed: %w", err)
		}
	}
	if len(o.refused) == 0 {
		return nil
	}
	parked, err := r.deps.Store.RefuseOutbox(ctx, lane, o.refused)
	if err != nil {
		return fmt.Errorf("count refusals: %w", err)
	}
	if parked > 0 {
		r.metrics.parked.WithLabelValues(laneName(lane)).Add(float64(parked))
		r.log.Error("outbox rows parked: the broker refused them too often", zap.String("lane", laneName(lane)), zap.Int("rows", parked))
	}
	return nil
}
