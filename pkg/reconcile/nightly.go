package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/quiet"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Nights is what tells pods which of them reconciles tonight.
type Nights interface {
	Now(ctx context.Context) (time.Time, error)
	ClaimNight(ctx context.Context, work, night string) (bool, error)
}

// Nightly reconciles in quiet hours: one pod, once in each night, slowly, and it changes nothing.
type Nightly struct {
	config Config
	books  Books
	nights Nights
	log    *zap.Logger
	found  *prometheus.GaugeVec
	done   prometheus.Gauge
}

// NewNightly makes it.
func NewNightly(c Config, books Books, nights Nights, log *zap.Logger, reg prometheus.Registerer) (*Nightly, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("reconcile config: %w", err)
	}
	n := &Nightly{
		config: c, books: books, nights: nights, log: log,
		found: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lapse_reconcile_findings", Help: "What the last reconciliation of this pod found; 0 once another pod has reconciled.",
		}, []string{"kind"}),
		done: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lapse_reconcile_completed_timestamp_seconds", Help: "When this pod last completed a reconciliation, by the database's clock.",
		}),
	}
	reg.MustRegister(n.found, n.done)
	n.show(nil)
	return n, nil
}

// show sets the gauges, all of them.
func (n *Nightly) show(kinds []Kind) {
	for _, k := range coupon.FindingKinds() {
		n.found.WithLabelValues(string(k)).Set(0)
	}
	for _, k := range kinds {
		n.found.WithLabelValues(string(k.Kind)).Set(float64(k.Count))
	}
}

// Run reconciles until ctx ends.
func (n *Nightly) Run(ctx context.Context) error {
	window, err := quiet.Parse(n.config.Window)
	if err != nil {
		return fmt.Errorf("reconcile: window: %w", err)
	}
	var done time.Time // the end of the window that was decided about
	tell := telemetry.NewRepeats(n.log, time.Hour, time.Now).Tell("reconciliation stopped early", "reconciliation goes on")
	look := func(ctx context.Context) error { return n.look(ctx, window, &done) }
	return lifecycle.Every(ctx, n.config.Interval, look, tell) //nolint:wrapcheck // nil
}

// look reconciles if the hours are quiet and no pod has begun in them.
func (n *Nightly) look(ctx context.Context, window quiet.Window, done *time.Time) error {
	now, err := n.nights.Now(ctx)
	if err != nil {
		return fmt.Errorf("reconcile: %w", err)
	}
	ends, open := window.Open(now)
	if !open || ends.Equal(*done) {
		return nil
	}
	mine, err := n.nights.ClaimNight(ctx, "reconcile", ends.UTC().Format(time.RFC3339))
	if err != nil {
		return fmt.Errorf("reconcile: %w", err)
	}
	*done = ends
	if !mine {
		n.show(nil) // what this pod once found is old
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, ends.Sub(now), errOver)
	defer cancel()
	rep, err := Reconcile(ctx, n.config, n.books, Ask{Slow: true})
	if err != nil {
		return err
	}
	n.show(rep.Kinds)
	n.done.Set(float64(rep.Began.Unix()))
	fields := []zap.Field{zap.Int64("coupons", rep.Coupons), zap.Int("templates", len(rep.Templates))}
	for _, k := range rep.Kinds {
		fields = append(fields, zap.Int64(string(k.Kind), k.Count))
	}
	if len(rep.Kinds) > 0 {
		n.log.Error("the books disagree; see lapsectl reconcile", fields...)
	} else {
		n.log.Info("reconciled, nothing found", fields...)
	}
	return nil
}

// errOver is why a reconciliation ends with its window.
var errOver = fmt.Errorf("the quiet hours are over: %w", context.DeadlineExceeded)
