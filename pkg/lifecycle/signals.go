package lifecycle

import (
	"context"
	"os/signal"
	"syscall"
)

// Signals returns a context that ends with the first SIGINT or SIGTERM, which is then its cause. A second one kills the
// process as usual: whoever is impatient can have that. Call the function to let go of the signals.
func Signals(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	stop := context.AfterFunc(ctx, release)

	return ctx, func() {
		stop()
		release()
	}
}
