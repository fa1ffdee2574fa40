package lifecycle

import (
	"context"
	"time"
)

// Every does something at once and then again, each time so long after it has ended, until ctx ends; then it gives nil,
// so it can be a loop of an App. tell hears what came of each time, nil for success, but not of one that the end of ctx
// cut short.
func Every(ctx context.Context, interval time.Duration, do func(ctx context.Context) error, tell func(error)) error {
	for ctx.Err() == nil {
		err := do(ctx)
		if ctx.Err() != nil {
			break
		}
		tell(err)
		if Sleep(ctx, interval) != nil {
			break
		}
	}
	return nil
}

// Sleep waits for d, or until ctx ends, and then says why it ended.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
