package verify

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/ladder"
)

func graced(grace time.Duration) func(worker string) map[string]string {
	return func(worker string) map[string]string {
		if worker != "expirer" {
			return nil
		}
		return map[string]string{
			"LAPSE__EXPIRY__SWEEP__GRACE": grace.String(), "LAPSE__EXPIRY__SWEEP__INTERVAL": "1s",
			"LAPSE__EXPIRY__SWEEP__OUTAGE_GRACE": min(grace, 10*time.Second).String(),
		}
	}
}

const (
	rebuildGrace = 15 * time.Second
	apartAtMost  = 60 // seconds over which ends are spread
)

// rebuild loses the broker's queues with every trigger in them. Nobody mends that until what came due meanwhile, one in ten, has
// been swept.
func (w *backstops) rebuild(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{env: graced(rebuildGrace)}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		n := w.size.pending
		// A sweep and a rebuild do some thousands a second.
		lost := n / 10
		lead := rebuildGrace + 30*time.Second + time.Duration((lost+n)/2000)*time.Second
		w.cfg.View.Step(fmt.Sprintf("%d coupons wait; every queue is deleted", n))
		firstLost, endLost, err := s.plant(ctx, planted{template: template, n: lost, status: statusUnused, ends: s.soon(2 * time.Second), granted: s.Now().Add(-time.Hour)})
		if err != nil {
			return err
		}
		_, end, err := s.plant(ctx, planted{
			template: template, n: n - lost, status: statusUnused, ends: s.soon(lead), apart: time.Second, spread: apartAtMost, granted: s.Now().Add(-time.Hour),
		})
		if err != nil {
			return err
		}
		client, err := s.Client()
		if err != nil {
			return err
		}
		if err := client.Delete(ctx, ladder.Plan{Queues: s.Ladder().Plan().Queues}); err != nil {
			return err
		}
		if err := s.allEnded(ctx, firstLost, endLost, lead); err != nil {
			return err
		}
		meanwhile, err := s.endings(ctx, firstLost, end)
		if err != nil {
			return err
		}
		want(t, "swept_meanwhile", meanwhile.by["sweep"], Equal, lost)
		said, err := w.lapsectl(ctx, s, nil, "rebuild", "--reason=verify", "--json")
		if err != nil {
			return err
		}
		var x struct {
			Finished bool `json:"finished"`
			Expires  int  `json:"expires"`
			TookMS   int  `json:"took_ms"`
		}
		want(t, "exit", said.code, Equal, 0)
		if err := said.json(&x); err != nil {
			return err
		}
		told(t, "took_ms", x.TookMS)
		want(t, "published_of_waiting", x.Expires, Equal, n-lost)
		if err := s.allEnded(ctx, firstLost, end, lead+apartAtMost*time.Second+rebuildGrace+draining(n)); err != nil {
			return err
		}
		e, err := s.endings(ctx, firstLost, end)
		if err != nil {
			return err
		}
		e.wants(t, n)
		want(t, "by_the_ladder", e.by["ladder"], Equal, n-lost)
		again, err := w.lapsectl(ctx, s, nil, "topology", "verify", "--json")
		if err != nil {
			return err
		}
		want(t, "topology_exit", again.code, Equal, 0)
		return nil
	})
}

// bucket deletes the queue that holds the triggers of coupons on their way.
func (w *backstops) bucket(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{env: graced(rebuildGrace)}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		n := w.size.bucket
		end := s.soon(55 * time.Second)
		ids, err := s.grant(ctx, template, n, grantUntil(end))
		if err != nil {
			return err
		}
		if err := drained(ctx, s.DB()); err != nil {
			return err
		}
		client, err := s.Client()
		if err != nil {
			return err
		}
		deleted, err := fullest(ctx, s)
		if err != nil {
			return err
		}
		if err := client.Delete(ctx, ladder.Plan{Queues: []ladder.Queue{{Name: deleted}}}); err != nil {
			return err
		}
		w.cfg.View.Step("deleted " + deleted)
		found, err := w.lapsectl(ctx, s, nil, "topology", "verify", "--json")
		if err != nil {
			return err
		}
		want(t, "found", found.code, Equal, 1)
		want(t, "named", strings.Count(string(found.out), strconv.Quote(deleted)), AtLeast, 1)
		mended, err := w.lapsectl(ctx, s, nil, "topology", "apply")
		if err != nil {
			return err
		}
		want(t, "mended", mended.code, Equal, 0)
		clean, err := w.lapsectl(ctx, s, nil, "topology", "verify", "--json")
		if err != nil {
			return err
		}
		want(t, "clean_afterwards", clean.code, Equal, 0)
		first, last := atoi(ids[0]), atoi(ids[len(ids)-1])+1
		if err := s.allEnded(ctx, first, last, time.Until(end)+rebuildGrace+time.Minute); err != nil {
			return err
		}
		e, err := s.endings(ctx, first, last)
		if err != nil {
			return err
		}
		e.wants(t, n)
		want(t, "by_the_sweep", e.by["sweep"], AtLeast, 1)
		return nil
	})
}

// fullest is the wait queue that holds most.
func fullest(ctx context.Context, s *shop) (string, error) {
	client, err := s.Client()
	if err != nil {
		return "", err
	}
	var names []string
	for _, q := range s.Ladder().Plan().Queues {
		if q.Role == ladder.RoleWait {
			names = append(names, q.Name)
		}
	}
	depths, err := client.Depths(ctx, names)
	if err != nil {
		return "", err
	}
	best := names[0]
	for _, name := range names {
		if depths[name] > depths[best] {
			best = name
		}
	}
	if depths[best] == 0 {
		return "", fmt.Errorf("no queue of %d holds a trigger", len(names))
	}
	return best, nil
}

// spike lets many coupons end in one instant.
func (w *backstops) spike(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		n := w.size.spike
		lead := 30*time.Second + time.Duration(n/2000)*time.Second
		ends := s.soon(lead)
		first, end, err := s.plant(ctx, planted{template: template, n: n, status: statusUnused, ends: ends, granted: s.Now().Add(-time.Hour)})
		if err != nil {
			return err
		}
		said, err := w.lapsectl(ctx, s, nil, "rebuild", "--reason=verify", "--json")
		if err != nil {
			return err
		}
		want(t, "published", said.code, Equal, 0)
		want(t, "published_before_the_end_ms", ends.Sub(s.Now()).Milliseconds(), AtLeast, 0)
		if err := s.allEnded(ctx, first, end, lead+draining(n)); err != nil {
			return err
		}
		e, err := s.endings(ctx, first, end)
		if err != nil {
			return err
		}
		e.wants(t, n)
		want(t, "taken_by_the_sweep", e.by["sweep"], Equal, 0)
		told(t, "drained_in_ms", e.lateMS)
		return nil
	})
}

func atoi(id string) int {
	n, err := strconv.Atoi(id)
	if err != nil {
		return 0
	}
	return n
}
