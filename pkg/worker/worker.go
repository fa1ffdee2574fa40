// Package worker is what the three workers have in common: read the configuration, serve the admin port, wait for the
// database, prepare the broker, then run the parts that a worker adds, and stop them in reverse.
//
// The order of stopping is the order of starting turned round, and is the same in every worker: consumers first, so
// that nothing new comes in; then the loops that work on rows; then the relay, which sends what they left; then the
// publishing connection; the database and the admin port last.
package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/outbox"
	"github.com/lapsehq/lapse/pkg/pulse"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Worker holds the common parts while a worker adds its own.
type Worker struct {
	App       *lifecycle.App
	Admin     *telemetry.Admin
	Log       *zap.Logger
	Registry  *prometheus.Registry
	Pod       string // names this process, and no other
	Store     *store.Store
	Codec     *event.Codec
	Ladder    *ladder.Ladder
	Broker    *broker.Client
	Publisher *broker.Publisher
	Route     *delay.Ladder
	Delay     delay.Mechanism // in force
	Promote   delay.Mechanism // for the planner: what is brought by its row without being handed over needs no promotion
	Pulse     *pulse.Recorder // what lapsectl status is told
	Traces    *telemetry.Traces

	database    atomic.Pointer[databaseState]
	sender      timed // the Publisher, timed
	relay       *outbox.Relay
	role        string
	common      config.Common
	needsBroker bool
	portsFile   string
	ports       map[string]int
}

const (
	adminWithin   = 5 * time.Second  // admin port: start, stop
	prepareWithin = 15 * time.Second // declare the topology and look at the broker's policies, before the first session
	openWithin    = 15 * time.Second // one attempt to open the database
	sendWithin    = 15 * time.Second // the relay's last batch and the last confirms
)

// Run is a worker's whole life; it gives the exit code. add registers the worker's own steps.
func Run[T config.Worker](ctx context.Context, build telemetry.Build, defaults T, common func(T) config.Common, p config.Process,
	add func(w *Worker, cfg T) error,
) int {
	ctx, release := lifecycle.Signals(ctx)
	defer release()
	cfg, flags, warnings, code, run := config.Start(ctx, build, defaults, p)
	if !run {
		return code
	}
	c := common(cfg)
	log, err := telemetry.NewLogger(c.Log, p.Stderr, zap.String("worker", build.Name))
	if err != nil {
		_, _ = fmt.Fprintln(p.Stderr, err)
		return config.ExitFailure
	}
	for _, w := range warnings {
		log.Warn(w)
	}
	w := &Worker{Log: log, Registry: telemetry.NewRegistry(build), Pod: podName(c.Broker.Name), role: build.Name, common: c}
	if err := w.run(ctx, build, flags, func() error { return add(w, cfg) }); err != nil {
		log.Error("stopped with an error", zap.Error(err))
		return config.ExitFailure
	}
	return config.ExitOK
}

// podName names this process in the database. Two processes of one host, or of one configured name, must not pass for
// each other, nor must a name be longer than the columns that hold it (64 bytes).
func podName(name string) string {
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		name = host
	}
	return name[:min(len(name), 48)] + "." + strings.ToLower(rand.Text()[:8])
}

func (w *Worker) run(ctx context.Context, build telemetry.Build, flags config.Flags, add func() error) (err error) {
	w.App = lifecycle.New(lifecycle.Options{Logger: w.Log, Propagate: w.common.Shutdown.Propagate})
	w.Admin = telemetry.NewAdmin(w.common.Admin, w.Registry, w.Log)
	w.Admin.AddCheck("worker", func(context.Context) error { return w.App.Ready() })
	w.Admin.AddCheck("database", w.checkDatabase)
	if err := bounded(ctx, adminWithin, w.Admin.Start); err != nil {
		return fmt.Errorf("admin port: %w", err)
	}
	defer func() { err = errors.Join(err, bounded(context.WithoutCancel(ctx), adminWithin, w.Admin.Stop)) }()
	w.portsFile, w.ports = flags.PortsFile, map[string]int{}
	if err := w.Listens("admin", w.Admin.Port()); err != nil {
		return err
	}
	w.Log.Info("starting", zap.String("build", build.String()), zap.Int("admin_port", w.Admin.Port()))
	if w.Codec, err = event.NewCodec(w.common.Installation); err != nil {
		return fmt.Errorf("installation: %w", err)
	}
	if err := w.openStore(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before the database came
		}
		return err
	}
	defer func() { err = errors.Join(err, w.Store.Close()) }()
	if err := w.openTraces(ctx, build); err != nil {
		return err
	}
	w.tell(build)
	if err := w.openBroker(ctx, build.Name); err != nil {
		return err
	}
	if err := add(); err != nil {
		return err
	}
	return w.App.Run(ctx) //nolint:wrapcheck // names its steps
}

// openStore waits for the database for as long as it takes: /readyz says so meanwhile. What waiting cannot mend (a
// schema that is behind, a server with the wrong settings) ends the worker.
func (w *Worker) openStore(ctx context.Context) error {
	repeats := telemetry.NewRepeats(w.Log, time.Minute, time.Now)
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 200*time.Millisecond, 5*time.Second
	opened, err := backoff.Retry(ctx, func() (*store.Store, error) {
		attempt, cancel := context.WithTimeout(ctx, openWithin+w.common.Database.MigrateLimit)
		defer cancel()
		// A failed attempt must not leave its collectors registered.
		reg := prometheus.NewRegistry()
		s, err := store.Open(attempt, w.common.Database, w.Codec, w.Log, reg)
		switch {
		case err == nil:
			return s, w.Registry.Register(reg)
		case errors.Is(err, coupon.ErrUnavailable), errors.Is(err, coupon.ErrContention):
			repeats.Failed("waiting for the database", err)
			w.database.Store(&databaseState{why: err})
			return nil, err //nolint:wrapcheck // store's
		default:
			return nil, backoff.Permanent(err)
		}
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	repeats.Recovered("the database answers")
	w.Store = opened
	w.database.Store(&databaseState{opened: opened})
	return nil
}

// databaseState is how far the database is: opened, or why not.
type databaseState struct {
	opened *store.Store
	why    error
}

func (w *Worker) checkDatabase(ctx context.Context) error {
	switch now := w.database.Load(); {
	case now == nil:
		return errors.New("not opened yet")
	case now.opened == nil:
		return now.why
	default:
		return now.opened.Ping(ctx) //nolint:wrapcheck // names the statement
	}
}

func (w *Worker) openBroker(ctx context.Context, role string) error {
	var err error
	if w.Ladder, err = ladder.New(w.common.Ladder); err != nil {
		return fmt.Errorf("ladder: %w", err)
	}
	w.Broker, err = broker.New(w.common.Broker, broker.Options{Role: role, Plan: w.Ladder.Plan(), Log: w.Log, Registerer: w.Registry})
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	pctx, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	switch err := w.Broker.Prepare(pctx); {
	case broker.Refused(err):
		return fmt.Errorf("broker: %w", err)
	case err != nil && ctx.Err() == nil:
		// Every session declares again; what the broker holds is not needed to start.
		w.Log.Warn("the broker could not be prepared yet", zap.Error(err))
	}
	w.Publisher = w.Broker.NewPublisher()
	w.sender = timed{w.Publisher, w.Pulse}
	w.Route = delay.NewLadder(w.Ladder, w.sender)
	w.App.Go("broker publisher", w.Publisher.Run, lifecycle.StopWithin(sendWithin))
	return w.chooseDelay()
}

// chooseDelay makes the mechanism in force; AddRelay lets it run.
func (w *Worker) chooseDelay() error {
	c := w.common.Delay
	var err error
	switch c.Mechanism {
	case config.MechanismZSet:
		w.Delay, err = delay.NewZSet(c.Redis, delay.ZSetDeps{
			Prefix: w.Ladder.Prefix(), Exchange: w.Ladder.Enter(), Publisher: w.sender, Clock: w.Store.Now, Log: w.Log, Registerer: w.Registry,
		})
		w.Promote = w.Delay
	case config.MechanismWheel:
		w.Delay, err = delay.NewWheel(c.Wheel, delay.WheelDeps{
			Exchange: w.Ladder.Enter(), Publisher: w.sender, Rows: w.Store, Clock: w.Store.Now,
			Parts: func() []int { return w.relay.Parts() }, Log: w.Log, Registerer: w.Registry,
		})
		w.Promote = delay.SweepOnly{}
	case config.MechanismSweep:
		w.Delay, w.Promote = delay.SweepOnly{}, delay.SweepOnly{}
	default:
		w.Delay, w.Promote = w.Route, w.Route
	}
	if err != nil {
		return fmt.Errorf("delay: %w", err)
	}
	return nil
}

// openTraces makes the spans' way out; of the parts it stops last, so that theirs are sent.
func (w *Worker) openTraces(ctx context.Context, build telemetry.Build) error {
	var err error
	if w.Traces, err = telemetry.NewTraces(ctx, w.common.Telemetry.Traces, build, w.Pod, w.Log); err != nil {
		return fmt.Errorf("telemetry: %w", err)
	}
	if w.Traces.On() {
		w.App.Go("traces", w.Traces.Run, lifecycle.StopWithin(w.Traces.StopsWithin()))
	}
	return nil
}

// tell tells of this process, from before its parts start until after they have stopped.
func (w *Worker) tell(build telemetry.Build) {
	w.Pulse = pulse.NewRecorder(nil, w.Registry)
	w.Store.WatchStages(w.Pulse)
	head := pulse.Report{Pod: w.Pod, Role: w.role, Version: build.Version, Started: time.Now()}
	w.App.Go("pulse", pulse.NewTeller(w.Pulse, w.Store, head, w.Log).Run)
}

// timed is a publisher whose times are told.
type timed struct {
	*broker.Publisher
	pulse *pulse.Recorder
}

// Publish publishes.
func (t timed) Publish(ctx context.Context, ms []broker.Message) []error {
	end := t.pulse.Begin(pulse.Publish)
	results := t.Publisher.Publish(ctx, ms)
	confirmed, answered := 0, 0
	for _, err := range results {
		switch {
		case err == nil:
			confirmed++
		case errors.Is(err, broker.ErrReturned), errors.Is(err, broker.ErrNacked), errors.Is(err, broker.ErrInvalid):
			answered++ // no, but in time
		}
	}
	end(0, len(ms) > 0 && confirmed+answered == 0 && ctx.Err() == nil)
	t.pulse.Count(pulse.CountPublished, confirmed)
	return results
}

// Listens writes a port that is listened on to the ports file, if there is to be one, beside those before it. Parts do so
// one after the other, as they start.
func (w *Worker) Listens(name string, port int) error {
	if w.portsFile == "" {
		return nil
	}
	w.ports[name] = port
	if err := telemetry.WritePorts(w.portsFile, w.ports); err != nil {
		return fmt.Errorf("ports file: %w", err)
	}
	return nil
}

// WatchClock adds the watch over the database's clock and gives its guard. Added before what expires, it has looked once
// when that starts. So it has read the brakes.
func (w *Worker) WatchClock(tolerance time.Duration) *clock.Guard {
	w.showBrakes() // they are read with the clock
	guard := clock.NewGuard(tolerance, time.Now)
	w.Store.GuardClock(guard.Begin)
	watch := clock.NewWatch(guard, w.Store, clock.Options{
		Pod: w.Pod, Role: w.role, Now: time.Now, Log: w.Log, Registerer: w.Registry,
	})
	w.App.Add("clock", watch.Start, nil)
	w.App.Go("clock watch", watch.Run)
	return guard
}

// AddRelay adds the outbox relay; what is added later is stopped before it.
func (w *Worker) AddRelay(c outbox.Config) error {
	relay, err := outbox.New(c, outbox.Deps{
		Owner: w.Pod, Store: w.Store, Delay: w.Delay, Exchange: w.Ladder.Events(),
		Events: broker.Bundling{Publisher: w.sender, Exchange: w.Ladder.Bundles(), Key: w.Ladder.BundleKey, Most: c.Bundle},
		Wake:   w.Store.OutboxWritten(), Log: w.Log, Registerer: w.Registry, Traces: w.Traces,
	})
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	w.relay = relay
	w.App.Go("delay "+w.common.Delay.Mechanism, w.Delay.Run, lifecycle.StopWithin(sendWithin))
	w.App.Go("outbox relay", relay.Run, lifecycle.StopWithin(sendWithin))
	return nil
}

// Paused reports whether an operator has paused the whole of it, as far as this process has heard; it asks nobody.
func (w *Worker) Paused(b coupon.Brake) bool { return w.Store.BrakesSeen().All(b) }

// showBrakes adds the metric of what is paused.
func (w *Worker) showBrakes() {
	for _, b := range coupon.Brakes() {
		w.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "lapse_paused", Help: "Pauses that are on: of everything, or of templates, batches or channels.",
			ConstLabels: prometheus.Labels{"what": string(b)},
		}, func() float64 { return float64(w.Store.BrakesSeen().Count(b)) }))
	}
}

// Consume adds a consumer.
func (w *Worker) Consume(o broker.ConsumerOptions) error {
	_, err := w.Consumer(o)
	return err
}

// Consumer adds a consumer and gives it, for those who must know whether it consumes.
func (w *Worker) Consumer(o broker.ConsumerOptions) (*broker.Consumer, error) {
	o.Publisher, o.ParkExchange = w.Publisher, w.Ladder.ParkExchange()
	if o.Ready == nil {
		o.Ready = w.Store.Ping
	}
	consumer, err := w.Broker.NewConsumer(o)
	if err != nil {
		return nil, fmt.Errorf("consumer of %s: %w", o.Queue, err)
	}
	if w.needsBroker {
		w.Admin.AddCheck("consumer "+o.Queue, func(context.Context) error { return consumer.Ready() })
	}
	w.App.Go("consumer "+o.Queue, consumer.Run, lifecycle.StopWithin(w.common.Broker.DrainTimeout+adminWithin))
	return consumer, nil
}

// EventConsumer adds a consumer of a queue that is fed by bundles of events. o.Config counts events, of which o.Handler sees one by one.
func (w *Worker) EventConsumer(o broker.ConsumerOptions) (*broker.Consumer, error) {
	events := broker.Unbundling{Most: o.Config.Batch, Park: w.Ladder.ParkExchange(), Again: w.Ladder.Replay()}
	o.Config, o.Handler = o.Config.Bundled(), events.Unbundle(o.Handler)
	return w.Consumer(o)
}

// Heard says nil while what waits in the delay mechanism can come due: through the broker, and wherever else it waits.
func (w *Worker) Heard() error {
	if err := w.Publisher.Ready(); err != nil {
		return err //nolint:wrapcheck // the broker's
	}
	return w.Delay.Ready() //nolint:wrapcheck // the mechanism's
}

// ReadyOnBroker makes /readyz depend on the broker and on the consumers added after it, too. The publisher does not: the
// outbox holds while the broker is away.
func (w *Worker) ReadyOnBroker() {
	w.needsBroker = true
	w.Admin.AddCheck("broker", func(context.Context) error { return w.Publisher.Healthy() })
}

func bounded(ctx context.Context, within time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return f(ctx)
}
