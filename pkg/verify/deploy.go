package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// deploy is the verification of what runs the fleet in production: what watches it, and what is done to it.
type deploy struct {
	checkout
	alert string // to be provoked; empty: none
}

// sections in the order in which they run.
func (w *deploy) sections() []section {
	if w.alert != "" {
		return []section{{"alert", "the alert is provoked, and fires", w.provokeNamed}}
	}
	return []section{
		{"scrape", "a real Prometheus scrapes fleet and broker, and every query of rules and dashboard has data", w.scrape},
		{"silent", "coupons come and go, and no alert is pending", w.silent},
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

// Deploy verifies what runs the fleet. With an alert it provokes that one, and does nothing else. Its error and its result are as
// those of Walk.
func Deploy(ctx context.Context, cfg Config, alert string) (Result, error) {
	if err := cfg.validateOnly(DeploySections()); err != nil {
		return cfg.result("deploy"), err
	}
	if alert != "" && !slices.Contains(ProvokedAlerts(), alert) {
		return cfg.result("deploy"), fmt.Errorf("alert: must be of %s, got %q", strings.Join(ProvokedAlerts(), ", "), alert)
	}
	if alert != "" {
		cfg.Only = nil
	}
	w := &deploy{checkout: checkout{cfg: cfg}, alert: alert}
	return cfg.verify(ctx, "deploy", w.sections(), func(i int) { w.index = uint64(i) })
}
