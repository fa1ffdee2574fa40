package broker_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lapsehq/lapse/pkg/broker"
)

// BenchmarkPublish publishes triggers of 180 bytes into a due queue, confirmed, in
// calls of 1 000 messages from several goroutines at once.
func BenchmarkPublish(b *testing.B) {
	for _, callers := range []int{1, 4, 8} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			e := newEnv(b)
			p := e.publisher(e.client(e.cfg))
			body := make([]byte, 180)
			const batch = 1000
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for {
						n := min(batch, left.Add(-batch)+batch)
						if n <= 0 {
							return
						}
						msgs := make([]broker.Message, n)
						for i := range msgs {
							msgs[i] = e.due("bench")
							msgs[i].Body = body
						}
						for _, err := range p.Publish(b.Context(), msgs) {
							if err != nil {
								b.Error(err)
								return
							}
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}
