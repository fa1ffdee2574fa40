package outbox_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/outbox"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// watch adds up the time that a relay spends in each of its stages, and tells when all is deleted.
type watch struct {
	*store.Store
	p                     *broker.Publisher
	reading, sending, del atomic.Int64
	left                  atomic.Int64
	done                  chan struct{}
}

func (w *watch) Ready() error { return w.p.Ready() }

func (w *watch) OutboxBatch(ctx context.Context, lane int, from []coupon.OutboxCursor, limit int) (
	[]coupon.Outgoing, time.Time, []coupon.OutboxCursor, error,
) {
	defer w.add(&w.reading, time.Now())
	return w.Store.OutboxBatch(ctx, lane, from, limit)
}

func (w *watch) DeleteOutbox(ctx context.Context, lane int, confirmed map[int][]uint64) error {
	defer w.add(&w.del, time.Now())
	if err := w.Store.DeleteOutbox(ctx, lane, confirmed); err != nil {
		return err
	}
	n := 0
	for _, ids := range confirmed {
		n += len(ids)
	}
	if w.left.Add(int64(-n)) == 0 {
		close(w.done)
	}
	return nil
}

func (w *watch) Publish(ctx context.Context, ms []broker.Message) []error {
	defer w.add(&w.sending, time.Now())
	return w.p.Publish(ctx, ms)
}

func (w *watch) add(to *atomic.Int64, since time.Time) { to.Add(int64(time.Since(since))) }

// One relay on the real servers and an outbox full of distinct coupons. ms/k are the milliseconds for a thousand rows
// of each stage; the stages overlap.
func BenchmarkRelay(b *testing.B) {
	const rows = 40_000
	for _, lane := range []int{coupon.LaneTrigger, coupon.LaneEvent} {
		b.Run([]string{"trigger", "event"}[lane], func(b *testing.B) {
			w := newWorld(b)
			s := &watch{Store: w.db.Store(b), p: w.NewPublisher(w)}
			outgoing := make([]coupon.Outgoing, rows)
			for i := range outgoing {
				outgoing[i] = event(uint64(i), 1)
				if lane == coupon.LaneTrigger {
					outgoing[i] = trigger(uint64(i))
					outgoing[i].DeliverAt = time.Now().Add(4 * time.Minute)
				}
				outgoing[i].Body = make([]byte, []int{150, 500}[lane])
			}
			var took time.Duration
			for b.Loop() {
				b.StopTimer()
				insertSQL(b, w.db, outgoing...)
				s.left.Store(rows)
				s.done = make(chan struct{})
				b.StartTimer()
				began := time.Now()
				stop := testenv.Run(w, w.relay(outbox.DefaultConfig(), s, s, nil).Run)
				select {
				case <-s.done:
				case <-time.After(patience):
					require.Fail(b, "rows are left")
				}
				took += time.Since(began)
				stop()
			}
			perK := func(name string, d *atomic.Int64) {
				b.ReportMetric(float64(d.Load())/1e6/(float64(b.N)*rows/1000), name+"-ms/k")
			}
			perK("read", &s.reading)
			perK("publish", &s.sending)
			perK("delete", &s.del)
			b.ReportMetric(float64(b.N)*rows/took.Seconds(), "rows/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
