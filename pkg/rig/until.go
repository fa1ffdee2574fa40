package rig

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// Until asks again and again, with a pause between, until the answer is yes, or an error, or ctx ends.
func Until(ctx context.Context, every time.Duration, ok func() (bool, error)) error {
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		if err := lifecycle.Sleep(ctx, every); err != nil {
			return err
		}
	}
}
