package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// deploy is the verification of what runs the fleet in production: what watches it, and what is done to it.
type deploy struct {
	checkout
	size  deploySize
	alert string // to be provoked; empty: none
}

// deploySize is how much is going on while something is done to the fleet.
type deploySize struct {
	coupons  int // granted, and ending, a second while the fleet is restarted
	pairs    int // of lock and redeem a second while the broker is away
	away     time.Duration
	restored int // coupons of each kind while the database is put back
}

func deploySizeOf(scale string) (deploySize, error) {
	switch scale {
	case ScaleSmall:
		return deploySize{coupons: 200, pairs: 50, away: 20 * time.Second, restored: 500}, nil
	case ScaleFull:
		return deploySize{coupons: 2000, pairs: 300, away: 5 * time.Minute, restored: 10_000}, nil
	default:
		return deploySize{}, fmt.Errorf("scale: must be %s or %s, got %q", ScaleSmall, ScaleFull, scale)
	}
}

// sections in the order in which they run.
func (w *deploy) sections() []section {
	if w.alert != "" {
		return []section{{"alert", "the alert is provoked, and fires", w.provokeNamed}}
	}
	return []section{
		{"scrape", "a real Prometheus scrapes fleet and broker, and every query of rules and dashboard has data", w.scrape},
		{"silent", "coupons come and go, and no alert is pending", w.silent},
		{"rolling", "every worker is replaced, pod by pod, five times under load: nothing lost, early, doubled or late", w.rolling},
		{"upgrade", "the release before and this one side by side, there and back, with the schema: nothing lost, early, doubled, wrong or set aside", w.upgrade},
		{"broker-away", "lock + redeem go on without the broker, and what they said is heard when it is back", w.noBroker},
		{"restore", "the database is put back to an earlier instant under a full broker: nothing early, no event's identity used twice", w.restore},
		{"secrets", "no secret is shown by any log, metric, error, answer or -print-config", w.secrets},
		{"traces", "a trace that an issuer began goes on to the end of the coupon and to the notice", w.traces},
		{"alerts", "what can be provoked is, one after the other, and fires", w.provokeAll},
	}
}

// DeploySections names the sections, in order.
func DeploySections() []string {
	var names []string
	for _, s := range (&deploy{}).sections() {
		names = append(names, s.name)
	}
	return names
}

// noBroker takes the broker from everybody.
func (w *deploy) noBroker(ctx context.Context, t *tally) error {
	return w.brokerAwayFor(ctx, t, w.size.pairs, w.size.away)
}

// Deploy verifies what runs the fleet, at a scale of small or full. With an alert it provokes that one, and does nothing else. Its error and its result are as
// those of Walk.
func Deploy(ctx context.Context, cfg Config, scale, alert string) (Result, error) {
	size, err := deploySizeOf(scale)
	if err := errors.Join(err, cfg.validateOnly(DeploySections())); err != nil {
		return cfg.result("deploy"), err
	}
	if alert != "" && !slices.Contains(ProvokedAlerts(), alert) {
		return cfg.result("deploy"), fmt.Errorf("alert: must be of %s, got %q", strings.Join(ProvokedAlerts(), ", "), alert)
	}
	if alert != "" {
		cfg.Only = nil
	}
	w := &deploy{checkout: checkout{cfg: cfg}, size: size, alert: alert}
	return cfg.verify(ctx, "deploy", w.sections(), func(i int) { w.index = uint64(i) })
}
