package verify

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// prefixes runs two installations beside each other. Both use the same grant keys and users, and their coupons have the same ids: what
// one heard of the other's would be doubled, or stray.
func (w *walk) prefixes(ctx context.Context, t *tally) error {
	view := oneAtATime(w.cfg.View)
	results := make([]demo.Result, 2)
	both, ctx := errgroup.WithContext(ctx)
	for i := range results {
		both.Go(func() (err error) {
			cfg := w.base(t, w.small, 12*time.Second)
			cfg.View = quiet{view}
			cfg.Logs += fmt.Sprintf("-%d", i+1)
			results[i], err = w.run(ctx, cfg)
			return err
		})
	}
	if err := both.Wait(); err != nil {
		return err
	}
	for i := range results {
		r, name := &results[i].Report, [...]string{"first_", "second_"}[i]
		walked(t, name, r, results[i].Failures)
		undisturbed(t, name, r)
		want(t, name+"events", r.Events, Equal, r.Coupons)
		want(t, name+"foreign", r.Details.Unasked+r.Details.StrayEvents+r.Details.DoubledEvents, Equal, 0)
	}
	return nil
}
