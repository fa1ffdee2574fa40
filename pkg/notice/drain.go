package notice

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// lingering gives a context for what is begun before ctx ends: it lives on for drain after that. release ends it at once and
// waits for what watches it.
func lingering(ctx context.Context, drain time.Duration) (work context.Context, release func()) {
	work, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-work.Done():
			return
		case <-ctx.Done():
		}
		_ = lifecycle.Sleep(work, drain)
		giveUp()
	}()
	return work, func() {
		giveUp()
		<-watched
	}
}
