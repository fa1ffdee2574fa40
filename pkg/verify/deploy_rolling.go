package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	rollPods   = 2 // of each worker
	rollRounds = 5
	rollBefore = 10 * time.Second // coupons end already when the first pod goes
	rollAfter  = 5 * time.Second
	rollLead   = 8 * time.Second // from a grant to its end
	rollUsers  = 500
	rollLate   = 2 * second
	rollSettle = 2 * time.Minute
	feedEvery  = 100 * time.Millisecond
)

// roll is a fleet of several pods of each worker, which are replaced.
type roll struct {
	*shop
	w       *deploy
	running map[string][]string // names of the pods of a worker, the oldest first
	stopped []string
	started int
}

func (r *roll) env(worker string) map[string]string {
	switch worker {
	case demo.Publisher:
		return r.apiEnv()
	case demo.Notifier:
		return map[string]string{"LAPSE__NOTICE__QUIET": "2s", "LAPSE__NOTICE__MAX_AGE": "10s"}
	default:
		return nil
	}
}

// start starts another pod and waits until it is ready.
func (r *roll) start(ctx context.Context, worker string) error {
	r.started++
	name := fmt.Sprintf("%s-%02d", worker, r.started)
	if err := r.Add(ctx, r.w.cfg.Bin, name, worker, r.env(worker)); err != nil {
		return err
	}
	r.running[worker] = append(r.running[worker], name)
	return nil
}

// round replaces every pod, as a Deployment does with maxSurge 1 and maxUnavailable 0: the new one is ready before an old one is told
// to stop.
func (r *roll) round(ctx context.Context) error {
	for _, worker := range []string{demo.Publisher, demo.Expirer, demo.Notifier} {
		for range rollPods {
			if err := r.start(ctx, worker); err != nil {
				return err
			}
			if err := r.stopOldest(ctx, worker); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *roll) stopOldest(ctx context.Context, worker string) error {
	old := r.running[worker][0]
	if err := r.Fleet().StopOne(ctx, old); err != nil {
		return err
	}
	r.running[worker] = r.running[worker][1:]
	r.stopped = append(r.stopped, old)
	return nil
}

// rolling replaces every pod of every worker, again and again, while coupons are granted and end.
func (w *deploy) rolling(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		r := &roll{shop: s, w: w, running: map[string][]string{demo.Publisher: {demo.Publisher}, demo.Expirer: {demo.Expirer}}}
		for _, worker := range []string{demo.Publisher, demo.Expirer, demo.Notifier} {
			for len(r.running[worker]) < rollPods {
				if err := r.start(ctx, worker); err != nil {
					return err
				}
			}
		}
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		f, err := s.feeding(ctx, template, w.size.coupons, false)
		if err != nil {
			return err
		}
		defer func() { _ = f.stop() }() // after the first time it has nothing to say
		if err := lifecycle.Sleep(ctx, rollBefore); err != nil {
			return err
		}
		began := s.Now()
		for i := range rollRounds {
			w.cfg.View.Step(fmt.Sprintf("round %d: new pod, old pod, of every worker", i+1))
			if err := r.round(ctx); err != nil {
				return err
			}
		}
		over := s.Now()
		if err := lifecycle.Sleep(ctx, rollAfter); err != nil {
			return err
		}
		if err := f.stop(); err != nil {
			return err
		}
		told(t, "rounds_took_s", int(over.Sub(began).Seconds()))
		return r.judge(ctx, f, began, over, 3*rollPods*rollRounds)
	})
}

// judge waits for every end and notice, and counts. So many pods must have been replaced between began and over.
func (r *roll) judge(ctx context.Context, f *feed, began, over time.Time, replaced int) error {
	r.w.cfg.View.Step(fmt.Sprintf("%d coupons were asked for; waiting for their ends and notices", f.asked))
	if err := r.settled(ctx, f.asked, f.last, rollSettle); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, rollSettle)
	defer cancel()
	err := until(limit, func() (bool, error) {
		c, err := r.Audit().Counts(limit)
		return c.Told >= f.asked, err
	})
	if err != nil && ctx.Err() != nil {
		return err
	}
	counts, err := r.Audit().Counts(ctx)
	if err != nil {
		return err
	}
	fates, err := r.fates(ctx)
	if err != nil {
		return err
	}
	ended := tallyOf(fates, func(c *fate) bool { return !c.ends.Before(began) && c.ends.Before(over) })
	faults, warnings, err := r.complaints()
	if err != nil {
		return err
	}
	t := r.t
	told(t, "coupons", f.asked)
	told(t, "asked_per_s", int(f.rate()))
	want(t, "pods_replaced", len(r.stopped), Equal, replaced)
	want(t, "lost", f.asked-ended.expired, Equal, 0)
	ended.wants(t)
	want(t, "not_told", f.asked-counts.Told, Equal, 0)
	want(t, "coupons_ended_during_it", len(ended.lateness), AtLeast, 1)
	want(t, "lateness_p99_ms", late(ended.lateness, 99), Below, rollLate)
	want(t, "error_lines_of_stopped_workers", faults, Equal, 0)
	told(t, "warnings_of_stopped_workers", warnings)
	return r.agreed(ctx, "", false)
}

// complaints counts what the pods that were stopped have logged as errors, and what is no log line at all, such as a panic.
func (r *roll) complaints() (faults, warnings int, err error) {
	for _, name := range r.stopped {
		body, err := os.ReadFile(r.Fleet().LogFile(name))
		if err != nil {
			return 0, 0, fmt.Errorf("reading a log: %w", err)
		}
		for line := range bytes.Lines(body) {
			var entry struct {
				Level string `json:"level"`
			}
			switch err := json.Unmarshal(line, &entry); {
			case err != nil || entry.Level == "error":
				faults++
				r.w.cfg.View.Step(name + ": " + string(bytes.TrimSpace(line)))
			case entry.Level == "warn":
				warnings++
			}
		}
	}
	return faults, warnings, nil
}

// feed asks for coupons, so many a second, over RabbitMQ, as an issuer does that knows of no pods.
type feed struct {
	s        *shop
	template uint64
	each     int  // grants of an event, ten events a second
	patient  bool // what the broker refuses or returns is sent again, too: its queues may be without a leader
	out      *broker.Publisher
	end      context.CancelFunc
	done     chan error

	asked int
	last  time.Time   // end of the last one
	ends  []time.Time // of each event's coupons
	began time.Time
	over  time.Time
}

func (s *shop) feeding(ctx context.Context, template string, perSecond int, patient bool) (*feed, error) {
	f := &feed{s: s, each: max(1, perSecond/int(time.Second/feedEvery)), patient: patient, done: make(chan error, 1), began: time.Now()}
	var err error
	if f.template, err = templateID(template); err != nil {
		return nil, err
	}
	client, err := s.Client()
	if err != nil {
		return nil, err
	}
	f.out = client.NewPublisher()
	asking, end := context.WithCancel(ctx)
	sending, hangUp := context.WithCancel(context.WithoutCancel(ctx)) // until the last event is confirmed
	f.end = end
	gone := make(chan error, 1)
	go func() { gone <- f.out.Run(sending) }()
	go func() {
		err := f.run(asking, ctx)
		hangUp()
		f.done <- errors.Join(err, <-gone)
	}()
	return f, nil
}

// run asks until asking ends; ctx ends what is being sent.
func (f *feed) run(asking, ctx context.Context) error {
	for n := 0; ; n++ {
		due := f.began.Add(time.Duration(n) * feedEvery)
		if lifecycle.Sleep(asking, time.Until(due)) != nil {
			f.over = time.Now()
			return nil
		}
		if err := f.ask(ctx, n); err != nil {
			return err
		}
	}
}

func (f *feed) ask(ctx context.Context, n int) error {
	ends := f.s.soon(rollLead)
	grants := make([]coupon.Grant, f.each)
	for i := range grants {
		k := n*f.each + i
		grants[i] = coupon.Grant{Key: fmt.Sprintf("roll-%07d", k), TemplateID: f.template, UserID: userOf(k % rollUsers), ExpiresAt: ends}
	}
	id := fmt.Sprintf("roll-%d", n)
	body, err := f.s.Codec().Grants(id, f.s.Now(), grants)
	if err != nil {
		return err
	}
	m := broker.Message{Exchange: f.s.Ladder().Issuance(), Key: event.KeyGrant, ID: id, Body: body, ContentType: event.ContentType, Mandatory: true}
	for {
		err := f.out.Publish(ctx, []broker.Message{m})[0]
		switch {
		case err == nil:
			f.asked, f.last, f.ends = f.asked+f.each, ends, append(f.ends, ends)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case f.patient && (errors.Is(err, broker.ErrNacked) || errors.Is(err, broker.ErrReturned)):
			if err := lifecycle.Sleep(ctx, feedEvery); err != nil {
				return err
			}
		case !errors.Is(err, broker.ErrUnknown) && !errors.Is(err, broker.ErrNotSent):
			return fmt.Errorf("asking for coupons: %w", err)
		}
		// Sent again under the same keys: granted once.
	}
}

// stop ends it; what was asked for until then is confirmed. It may be called again.
func (f *feed) stop() error {
	f.end()
	err := <-f.done
	f.done <- nil
	return err
}

func (f *feed) rate() float64 { return float64(f.asked) / f.over.Sub(f.began).Seconds() }
