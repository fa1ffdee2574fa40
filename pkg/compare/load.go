package compare

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/compare/report"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	leadFirst = 6 * time.Second        // from the first grant to the first end, before anything is known of the machine,
	leadGrant = 5 * time.Millisecond   // and for each coupon,
	leadLeast = 3 * time.Second        // or once it is known: this, and twice what granting takes
	leadSpare = 700 * time.Millisecond // of it is left, or it was too short
	silence   = 100 * time.Second      // without any event, before what is missing is given up: longer than the sweep's grace
	settling  = time.Second            // for what comes after the last event: statistics, acknowledgements
	beforeDue = 300 * time.Millisecond // the waiting is over
	waitLeast = time.Second            // or it is too short to be measured
)

// sow grants n coupons that end at one instant, or in each second of a span, and waits until they are where they wait. A machine that needs
// longer than the lead gets more time, once. before is called before the first grant, each time.
func (s *site) sow(ctx context.Context, n int, lead, span time.Duration, before func() error) (h *hearing, took time.Duration, err error) {
	for again := false; ; again = true {
		from := s.Now().Add(lead + time.Second - 1).Truncate(time.Second)
		seconds := max(1, int(span/time.Second))
		h = s.ear.expect(from, from.Add(time.Duration(seconds-1)*time.Second), n)
		if err := before(); err != nil {
			return nil, 0, err
		}
		took, err = s.grant(ctx, s.asks(n, func(i int) time.Time { return from.Add(time.Duration(i*seconds/n) * time.Second) }))
		if err != nil {
			return nil, 0, err
		}
		if s.Now().Add(leadSpare).Before(from) {
			return h, took, nil
		}
		if again {
			return nil, 0, fmt.Errorf("granting %d coupons took %s, too long for any plan: fewer of them", n, took.Round(time.Millisecond))
		}
		s.cfg.View.Step("granting took longer than planned: again, with more time")
		if err := s.listen(ctx, h); err != nil {
			return nil, 0, err
		}
		lead = leadLeast + 3*took
	}
}

// listen until all of them were heard of, or nothing was for long. What is missing is the audit's matter.
func (s *site) listen(ctx context.Context, h *hearing) error {
	last, since := -1, time.Now()
	return s.until(ctx, func() (bool, error) {
		n, _ := h.heard()
		if n >= h.want {
			return true, nil
		}
		if n > last || s.Now().Before(h.to) {
			last, since = n, time.Now()
		}
		return time.Since(since) > silence, nil
	})
}

// weigh what became of it.
func (s *site) weigh(ctx context.Context, h *hearing, p *report.Part) error {
	late, swept, err := s.transitions(ctx, h.from, h.to)
	if err != nil {
		return err
	}
	n, last := h.heard()
	*p = report.Part{Coupons: h.want, Late: report.LatenessOf(late), Swept: swept, CurveMS: report.Curve(h.lateness())}
	if took := last.Sub(h.from).Seconds(); n > 0 && took > 0 {
		p.TookS, p.PerS = report.Round(took, 3), report.Round(float64(n)/took, 1)
	}
	return nil
}

func nothing() error { return nil }

// steady is coupons that end second by second. It also tells how many a second this machine grants.
func (s *site) steady(ctx context.Context, p *report.Part) (pace float64, err error) {
	n := s.cfg.steady()
	h, took, err := s.sow(ctx, n, leadFirst+time.Duration(n)*leadGrant, steadyFor, nothing)
	if err != nil {
		return 0, err
	}
	if err := s.listen(ctx, h); err != nil {
		return 0, err
	}
	return float64(n) / took.Seconds(), s.weigh(ctx, h, p)
}

// lead for a spike where so many a second are granted.
func (s *site) lead(pace float64) time.Duration {
	return leadLeast + time.Duration(2*float64(s.cfg.Coupons)/pace*float64(time.Second))
}

// spike is coupons that end in one instant, and what it costs from their grants on.
func (s *site) spike(ctx context.Context, pace float64, run *report.Run) error {
	m, err := s.meter(run.Mechanism)
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	var watch errgroup.Group
	watch.Go(func() error { return m.watch(watching) })
	defer func() { stop(); _ = watch.Wait() }() // below, unless something went wrong before

	var begun, waiting, waited, done reading
	h, took, err := s.sow(ctx, s.cfg.Coupons, s.lead(pace), 0, func() (err error) {
		m.forget()
		begun, err = m.read()
		return err
	})
	if err != nil {
		return err
	}
	run.AcceptPerS = report.Round(float64(s.cfg.Coupons)/took.Seconds(), 1)
	if waiting, err = m.read(); err != nil {
		return err
	}
	if err := lifecycle.Sleep(ctx, h.from.Sub(s.Now())-beforeDue); err != nil {
		return err
	}
	if waited, err = m.read(); err != nil {
		return err
	}
	if err := s.listen(ctx, h); err != nil {
		return err
	}
	if err := s.quiet(ctx); err != nil {
		return err
	}
	if done, err = m.read(); err != nil {
		return err
	}
	stop()
	if err := watch.Wait(); err != nil {
		return err
	}
	run.Costs = m.costs(s.cfg.Coupons, begun, waiting, waited, done)
	return s.weigh(ctx, h, &run.Spike)
}

// quiet waits until what follows from the last event is done, too.
func (s *site) quiet(ctx context.Context) error {
	if err := s.relayed(ctx); err != nil {
		return err
	}
	return lifecycle.Sleep(ctx, settling)
}

// kill is a spike in whose midst publisher and expirer get a SIGKILL, and are started again at once.
func (s *site) kill(ctx context.Context, pace float64, k *report.Kill) error {
	h, _, err := s.sow(ctx, s.cfg.Coupons, s.lead(pace), 0, nothing)
	if err != nil {
		return err
	}
	if err := s.halfway(ctx, h); err != nil {
		return err
	}
	var kills errgroup.Group
	for _, w := range workers() {
		kills.Go(func() error { return s.Fleet().Kill(w) })
	}
	if err := kills.Wait(); err != nil {
		return err
	}
	killed := s.Now()
	n, _ := h.heard()
	for _, w := range workers() {
		if err := s.Fleet().Launch(ctx, w); err != nil {
			return err
		}
	}
	if err := s.listen(ctx, h); err != nil {
		return err
	}
	for _, w := range workers() {
		if err := s.Fleet().WaitReady(ctx, w); err != nil {
			return err
		}
	}
	if err := s.quiet(ctx); err != nil {
		return err
	}
	if err := s.weigh(ctx, h, &k.Part); err != nil {
		return err
	}
	_, last := h.heard()
	k.AtS, k.Left = report.Round(killed.Sub(h.from).Seconds(), 3), h.want-n
	k.RecoveryS = report.Round(max(0, last.Sub(killed).Seconds()), 3)
	return nil
}

// halfway is when half of them were heard of.
func (s *site) halfway(ctx context.Context, h *hearing) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.from.Sub(s.Now())+silence, errors.New("half of a spike was not heard of in time"))
	defer cancel()
	select {
	case <-h.half:
		return nil
	case err := <-s.Fleet().Died():
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
