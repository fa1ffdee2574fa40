package notice

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// passOn gives what is due to the next channels of the chains while this one is shut: one batch of it, nothing of which is
// sent. What has nowhere else to go is put off. After a batch that had nothing to pass on it rests for a while.
func (d *dispatcher) passOn(work context.Context, reason string) error {
	if d.Now().Before(d.resting) {
		return nil
	}
	d.resting = d.Now().Add(d.limit.OpenFor)
	ns, unknown, _, err := d.Store.ClaimNotices(work, d.name, d.config.Lease, d.config.Batch)
	if err != nil {
		return fmt.Errorf("claim notices: %w", err)
	}
	d.lost(unknown)
	if len(ns) == 0 {
		return nil
	}
	// Nothing is begun, and no cap is drawn on: caps are the next channel's own.
	ps, err := d.Store.PrepareNotices(work, d.name, ns, coupon.Cap{}, false, d.day)
	if err != nil {
		d.untouched(ns)
		return fmt.Errorf("prepare notices: %w", err)
	}
	var put []coupon.NoticeResult
	for _, p := range d.standing(ps) {
		if p.Next != "" && p.Now.Before(p.NotAfter) {
			put = append(put, d.failed(&p.Notice, reason))
			d.resting = time.Time{}
		} else {
			put = append(put, d.later(p.Now, &p.Notice, p.Now.Add(max(d.limit.OpenFor, d.limit.Backoff)), reason))
		}
	}
	if len(put) > 0 {
		d.rests <- rest{results: put}
	}
	return nil
}

// lost counts what a pod that is gone had begun.
func (d *dispatcher) lost(unknown map[coupon.NoticeKind]int) {
	for kind, n := range unknown {
		d.Metrics.count(d.name, kind, resultUnknown, n)
	}
}
