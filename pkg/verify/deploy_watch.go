package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig/demo"
	"github.com/lapsehq/lapse/pkg/rig/watch"
)

const (
	metricsOffset = 692 // of RabbitMQ's metrics from the stack's first port, see docs/stack.md
	scrapeEvery   = time.Second
	seenWithin    = 90 * time.Second // until everything has been scraped, and rates are known
	silentFor     = 45 * time.Second
)

// watched is a fleet that a Prometheus watches.
type watched struct {
	*shop
	prometheus *watch.Prometheus
	checkout   string // directory
	template   string
	turn       int
}

// watching changes how a fleet is watched.
type watching struct {
	env     func(worker string) map[string]string
	hurry   time.Duration
	without string                                   // a job that is not scraped
	before  func(ctx context.Context, s *shop) error // Prometheus starts; may be nil
}

// watch opens a fleet of three workers and a Prometheus beside it.
func (w *deploy) watch(ctx context.Context, t *tally, o watching, do func(ctx context.Context, s *watched) error) error {
	open := opening{env: func(worker string) map[string]string {
		vars := map[string]string{}
		if worker == demo.Publisher {
			vars["LAPSE__HEARTBEAT__ENABLED"], vars["LAPSE__HEARTBEAT__INTERVAL"] = "true", "2s"
		}
		if o.env != nil {
			maps.Copy(vars, o.env(worker))
		}
		return vars
	}}
	return w.open(ctx, t, open, func(ctx context.Context, s *shop) (err error) {
		if err := s.Add(ctx, w.cfg.Bin, demo.Notifier, demo.Notifier, open.env(demo.Notifier)); err != nil {
			return err
		}
		dir, err := os.MkdirTemp("", "lapse-prometheus-")
		if err != nil {
			return fmt.Errorf("a directory for Prometheus: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		if o.before != nil {
			if err := o.before(ctx, s); err != nil {
				return err
			}
		}
		x := &watched{shop: s, checkout: filepath.Dir(w.cfg.Stack.Dir)}
		targets, err := x.targets(w.cfg.Stack.PortBase)
		if err != nil {
			return err
		}
		delete(targets, o.without)
		x.prometheus, err = watch.Start(ctx, watch.Options{
			Configs: filepath.Join(x.checkout, "configs", "prometheus"), Dir: dir, Targets: targets, Prefix: s.Ladder().Prefix(),
			Interval: scrapeEvery, Hurry: o.hurry,
		})
		defer func() { err = errors.Join(err, x.prometheus.Stop()) }()
		if err != nil {
			return err
		}
		if x.template, err = s.template(ctx, nil); err != nil {
			return err
		}
		return do(ctx, x)
	})
}

func (x *watched) targets(base int) (map[string][]string, error) {
	rabbit := []string{loopback(base + metricsOffset)}
	targets := map[string][]string{"rabbitmq": rabbit, "rabbitmq-queues": rabbit}
	for _, worker := range []string{demo.Publisher, demo.Expirer, demo.Notifier} {
		ports, err := x.Fleet().Ports(worker)
		if err != nil {
			return nil, err
		}
		targets[worker] = []string{loopback(ports["admin"])}
	}
	return targets, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// live lets coupons come and go for a moment: granted, locked, redeemed, expired.
func (x *watched) live(ctx context.Context) error {
	x.turn++
	at := x.soon(3 * time.Second)
	ids, err := x.grant(ctx, x.template, 10, func(i int, g *client.Grant) {
		g.GrantKey, g.ExpiresAt = fmt.Sprintf("live-%d-%d", x.turn, i), &at
	})
	if err != nil {
		return err
	}
	order := client.Order{UserID: userOf(0), CouponIDs: ids[:1]}
	if _, err := x.api.Lock(ctx, fmt.Sprintf("live-%d", x.turn), order); err != nil {
		return err
	}
	if _, err := x.api.Redeem(ctx, fmt.Sprintf("live-%d", x.turn), order); err != nil {
		return err
	}
	return lifecycle.Sleep(ctx, time.Second)
}

// liveUntil lets coupons come and go until the condition holds, at most for so long; it holds not: no error.
func (x *watched) liveUntil(ctx context.Context, within time.Duration, ask func() (bool, error)) (bool, error) {
	for deadline := time.Now().Add(within); ; {
		if err := x.live(ctx); err != nil {
			return false, err
		}
		ok, err := ask()
		if ok || err != nil || time.Now().After(deadline) {
			return ok, err
		}
	}
}

// without gives the queries that no data answers.
func (x *watched) without(ctx context.Context, exprs []string) ([]string, error) {
	var empty []string
	for _, expr := range exprs {
		found, err := x.prometheus.Query(ctx, expr)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			empty = append(empty, expr)
		}
	}
	return empty, nil
}

// questions are what rules and dashboard ask: of the rules each series without its threshold.
func (x *watched) questions() (rules, dashboard []string, err error) {
	all, err := watch.ReadRules(filepath.Join(x.checkout, "configs", "prometheus", "rules", "lapse.yaml"))
	if err != nil {
		return nil, nil, err
	}
	for _, r := range all {
		rules = append(rules, watch.Selectors(r.Expr)...)
	}
	slices.Sort(rules)
	queries, err := watch.ReadDashboard(filepath.Join(x.checkout, "configs", "grafana", "dashboards", "lapse.json"))
	for _, q := range queries {
		dashboard = append(dashboard, q.Expr)
	}
	return slices.Compact(rules), dashboard, err
}

// documented holds docs/metrics.md against what the three workers expose. What it should say is kept beside the logs when it does not.
func (x *watched) documented(ctx context.Context) (bool, error) {
	exposed := make(map[string][]watch.Metric)
	for _, worker := range []string{demo.Publisher, demo.Expirer, demo.Notifier} {
		ports, err := x.Fleet().Ports(worker)
		if err != nil {
			return false, err
		}
		if exposed[worker], err = watch.Scrape(ctx, loopback(ports["admin"])); err != nil {
			return false, err
		}
	}
	says := watch.Document(watch.Merge(exposed))
	doc, err := os.ReadFile(filepath.Join(x.checkout, "docs", "metrics.md"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("metrics document: %w", err)
	}
	if says == string(doc) {
		return true, nil
	}
	to := filepath.Join(x.checkout, ".stack", "log", "metrics.md")
	if err := os.WriteFile(to, []byte(says), 0o600); err != nil {
		return false, fmt.Errorf("metrics document: %w", err)
	}
	return false, nil
}

// scrape asks everything that rules and dashboard ask.
func (w *deploy) scrape(ctx context.Context, t *tally) error {
	return w.watch(ctx, t, watching{}, func(ctx context.Context, x *watched) error {
		rules, dashboard, err := x.questions()
		if err != nil {
			return err
		}
		w.cfg.View.Step(fmt.Sprintf("%d series of the rules and %d queries of the dashboard are asked", len(rules), len(dashboard)))
		var emptyRules, emptyPanels, faults []string
		_, err = x.liveUntil(ctx, seenWithin, func() (bool, error) {
			var errs [3]error
			emptyRules, errs[0] = x.without(ctx, rules)
			emptyPanels, errs[1] = x.without(ctx, dashboard)
			faults, errs[2] = x.prometheus.Faults(ctx)
			return len(emptyRules)+len(emptyPanels)+len(faults) == 0, errors.Join(errs[:]...)
		})
		if err != nil {
			return err
		}
		for _, amiss := range slices.Concat(faults, emptyRules, emptyPanels) {
			w.cfg.View.Step("amiss: " + amiss)
		}
		same, err := x.documented(ctx)
		if err != nil {
			return err
		}
		if !same {
			w.cfg.View.Step("docs/metrics.md is not what the workers expose; see .stack/log/metrics.md")
		}
		want(t, "rule_series", len(rules), AtLeast, 1)
		want(t, "dashboard_queries", len(dashboard), AtLeast, 1)
		want(t, "faults", len(faults), Equal, 0)
		want(t, "rule_series_without_data", len(emptyRules), Equal, 0)
		want(t, "dashboard_queries_without_data", len(emptyPanels), Equal, 0)
		want(t, "metrics_documented", boolean(same), Equal, 1)
		return nil
	})
}

// silent lets a healthy fleet work, and looks that no alert is even pending.
func (w *deploy) silent(ctx context.Context, t *tally) error {
	return w.watch(ctx, t, watching{}, func(ctx context.Context, x *watched) error {
		quiet, err := x.liveUntil(ctx, seenWithin, func() (bool, error) {
			faults, err := x.prometheus.Faults(ctx)
			if err != nil || len(faults) > 0 {
				return false, err
			}
			raised, err := x.raised(ctx)
			return len(raised) == 0, err
		})
		if err != nil {
			return err
		}
		w.cfg.View.Step("all of it is scraped; from now on nothing may be raised")
		ever := make(map[string]bool)
		_, err = x.liveUntil(ctx, silentFor, func() (bool, error) {
			raised, err := x.raised(ctx)
			for _, name := range raised {
				ever[name] = true
			}
			return false, err
		})
		if err != nil {
			return err
		}
		if names := slices.Sorted(maps.Keys(ever)); len(names) > 0 {
			w.cfg.View.Step("raised: " + strings.Join(names, ", "))
		}
		waiting, err := x.prometheus.Query(ctx, `sum(rabbitmq_detailed_queue_messages{queue=~"[^.]+[.]wait[.].+"}) >= 0`)
		if err != nil {
			return err
		}
		want(t, "quiet_at_first", boolean(quiet), Equal, 1)
		want(t, "raised", len(ever), Equal, 0)
		want(t, "waiting_queues_seen", len(waiting), Equal, 1)
		return nil
	})
}

// raised names the alerts that are pending or firing.
func (x *watched) raised(ctx context.Context) ([]string, error) {
	alerts, err := x.prometheus.Alerts(ctx)
	var names []string
	for _, a := range alerts {
		names = append(names, a.Labels["alertname"])
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// fires waits until the alert fires.
func (x *watched) fires(ctx context.Context, name string, within time.Duration) (bool, error) {
	limit, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := until(limit, func() (bool, error) {
		alerts, err := x.prometheus.Alerts(ctx)
		return slices.ContainsFunc(alerts, func(a watch.Alert) bool { return a.Labels["alertname"] == name && a.State == "firing" }), err
	})
	if limit.Err() != nil && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}
