package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const couponsEach = 5 // of one user, in a backlog of events

func (b *bench) notifies() []subject {
	return []subject{{name: "lapse", what: "one notifier, the other workers stopped", run: b.notify}}
}

// notify lets events wait and starts a notifier.
func (b *bench) notify(ctx context.Context) (metrics, error) {
	s, err := b.fresh(ctx, "notify")
	if err != nil {
		return nil, err
	}
	n := b.cfg.Size
	for from := 0; from < n; from += ringBatch {
		ms := make([]broker.Message, 0, ringBatch)
		for i := from; i < min(from+ringBatch, n); i++ {
			m, err := s.ended(i)
			if err != nil {
				return nil, err
			}
			ms = append(ms, m)
		}
		bundles, _ := broker.Bundles(s.Ladder().Bundles(), s.Ladder().BundleKey, broker.BundleEvents, ms)
		if err := errors.Join(s.publisher.Publish(ctx, bundles)...); err != nil {
			return nil, fmt.Errorf("sending events: %w", err)
		}
	}
	if err := s.Start(ctx, demo.Notifier); err != nil {
		return nil, err
	}
	c, err := s.Client()
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(n/1000)*time.Second)
	defer cancel()
	queue := s.Ladder().Notice()
	err = rig.Until(limited, 100*time.Millisecond, func() (bool, error) { // the count of a growing table would take part in what is measured
		waiting, err := c.Depths(limited, []string{queue})
		return err == nil && waiting[queue] == 0, errors.Join(err, s.Fleet().Ended())
	})
	if err == nil {
		err = rig.Until(limited, 100*time.Millisecond, func() (bool, error) {
			items, err := s.count(limited, "SELECT COUNT(*) FROM notice_item")
			return items >= n, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("waiting for the backlog: %w", err)
	}
	ms, err := s.count(ctx, "SELECT TIMESTAMPDIFF(MICROSECOND, MIN(added_at), MAX(added_at)) DIV 1000 FROM notice_item")
	if err != nil {
		return nil, err
	}
	doubled, err := s.count(ctx, "SELECT COUNT(*) - COUNT(DISTINCT event_id) FROM notice_item")
	if err != nil {
		return nil, err
	}
	took := time.Duration(max(1, ms)) * time.Millisecond
	m := metrics{"coupons": float64(n), "took_s": took.Seconds(), "per_s": float64(n) / took.Seconds(), "doubled": float64(doubled), "lost": 0}
	m["rss_notifier_mib"], err = s.peak(demo.Notifier)
	return m, err
}

// ended is the event of a coupon that has just expired.
func (s *site) ended(i int) (broker.Message, error) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	end := now.Truncate(time.Second)
	key, id, body, err := s.Codec().Transition(coupon.Transition{
		CouponID: uint64(1_000_000 + i), Version: 2, From: coupon.Unused, To: coupon.Expired, Cause: coupon.CauseLadder,
		UserID: "user-" + strconv.Itoa(i/couponsEach), ExpiresAt: end, DueAt: end, At: now,
		Terms: coupon.Terms{TemplateID: s.template, Revision: 1, Value: 1000, Currency: "CNY", Precision: coupon.Exact},
	})
	if err != nil {
		return broker.Message{}, fmt.Errorf("an event: %w", err)
	}
	return broker.Event(s.Ladder().Events(), key, id, "", body), nil
}

const (
	idleSettles = 10 * time.Second
	idleMost    = 30 * time.Second
)

func (b *bench) idles() []subject {
	return []subject{{name: "lapse", what: "the whole fleet; statements of the whole server (others' too, if there are any), and as the workers count theirs", run: b.idle}}
}

// idle watches the fleet do nothing.
func (b *bench) idle(ctx context.Context) (metrics, error) {
	s, err := b.fresh(ctx, "lapse", allWorkers()...)
	if err != nil {
		return nil, err
	}
	span := min(idleMost, b.cfg.Steady)
	if err := lifecycle.Sleep(ctx, min(idleSettles, span)); err != nil {
		return nil, err
	}
	before, start, err := s.busyness(ctx)
	if err != nil {
		return nil, err
	}
	if err := lifecycle.Sleep(ctx, span); err != nil {
		return nil, err
	}
	after, end, err := s.busyness(ctx)
	if err != nil {
		return nil, err
	}
	took := end.Sub(start).Seconds()
	m := metrics{
		"cpu_percent":            (after.cpu - before.cpu) / took * 100,
		"statements_per_s":       max(0, after.server-before.server-1) / took, // without our own
		"named_statements_per_s": (after.named - before.named) / took,
	}
	for _, worker := range allWorkers() {
		if m["rss_"+worker+"_mib"], err = s.peak(worker); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// busyness is what the fleet and the database have done until now.
type busyness struct {
	cpu    float64 // seconds of all workers
	named  float64 // statements, as the workers count them
	server float64 // statements of the whole server
}

func (s *site) busyness(ctx context.Context) (d busyness, at time.Time, err error) {
	for _, worker := range allWorkers() {
		u, err := s.Fleet().Usage(worker)
		if err != nil {
			return d, at, err
		}
		d.cpu += u.CPU.Seconds()
		n, err := s.statements(ctx, worker)
		if err != nil {
			return d, at, err
		}
		d.named += n
	}
	var name string
	err = s.db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &d.server)
	if err != nil {
		err = fmt.Errorf("reading the server's counters: %w", err)
	}
	return d, time.Now(), err
}

// statements that a worker counts.
func (s *site) statements(ctx context.Context, worker string) (sum float64, err error) {
	ports, err := s.Fleet().Ports(worker)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(ports["admin"])+"/metrics", nil)
	if err != nil {
		return 0, fmt.Errorf("reading metrics: %w", err)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, fmt.Errorf("reading metrics: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "lapse_statement_seconds_count"); ok {
			_, value, _ := strings.Cut(rest, " ")
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				return 0, fmt.Errorf("reading metrics: %w", err)
			}
			sum += v
		}
	}
	return sum, lines.Err()
}
