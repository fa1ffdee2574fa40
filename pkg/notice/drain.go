package notice

import (
	"context"
	"time"
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
		sleep(work, drain)
		giveUp()
	}()
	return work, func() {
		giveUp()
		<-watched
	}
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
