package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rebuild"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
)

type topologyDrain struct {
	byFlags
	FromPrefix     string        `placeholder:"P" help:"The prefix of what is to be emptied; by default the same as here."`
	FromURL        string        `name:"from-url" placeholder:"URL" help:"The broker of what is to be emptied; by default the same as here, or LAPSECTL_FROM_URL."`
	FromManagement string        `placeholder:"URL" help:"Its management API; by default that of the configuration if the broker is the same, or LAPSECTL_FROM_MANAGEMENT."`
	Rate           string        `placeholder:"N/s" help:"At most so many messages a second."`
	Quiet          time.Duration `default:"15s" help:"How long nothing may be left before it counts as empty."`
	Within         time.Duration `help:"Stop after so long; 0: when it is empty."`
	JSON           bool          `name:"json" help:"Print JSON."`
}

// Help tells the procedure.
func (c *topologyDrain) Help() string {
	return `Moves everything that stands in another prefix or broker to the layout of the configuration, which the workers must run with already. Stop the workers of the old one first. Each message is published here and confirmed before it is removed there, so it can be broken off and started again at any time; a message twice is a no-op. See docs/topology.md.`
}

// movedJSON is what --json prints.
type movedJSON struct {
	Empty    bool             `json:"empty"`
	Left     int64            `json:"left"`
	Triggers int64            `json:"triggers"` // sent again for the instants of their rows
	Dropped  int64            `json:"dropped"`  // of coupons that need none
	Others   int64            `json:"others"`   // events, grants, parked ones: handed on as they were
	Parked   int64            `json:"parked"`   // no triggers, where only triggers are
	Queues   map[string]int64 `json:"queues"`   // moved from each
	TookMS   int64            `json:"took_ms"`
}

const (
	drainIdle     = 300 * time.Millisecond // a queue that gives nothing for so long is empty for now
	drainPoll     = time.Second
	drainPatience = time.Minute
	drainMax      = 100_000 // messages a second
)

// deedDrain is what operator_log calls it.
const deedDrain = "topology.drain"

// source is the configuration of what is to be emptied.
func (c *topologyDrain) source(s *system, cfg settings) (settings, error) {
	from := cfg
	env := func(flag *string, name string) {
		if v, ok := s.lookup(name); ok && *flag == "" {
			*flag = v
		}
	}
	env(&c.FromURL, "LAPSECTL_FROM_URL")
	env(&c.FromManagement, "LAPSECTL_FROM_MANAGEMENT")
	if c.FromPrefix != "" {
		from.Prefix, from.Ladder.Prefix = c.FromPrefix, c.FromPrefix
	}
	if c.FromURL != "" {
		from.Broker.URL, from.Broker.Addresses, from.Broker.Vhost = secret.New(c.FromURL), nil, ""
		from.Broker.ManagementURL = secret.String{}
	}
	if c.FromManagement != "" {
		from.Broker.ManagementURL = secret.New(c.FromManagement)
	}
	if target(from) == target(cfg) {
		return from, errors.New("what is to be emptied is the configuration's own: give --from-prefix or --from-url")
	}
	return from, nil
}

// drainer empties one layout into another.
type drainer struct {
	s      *system
	old    *broker.Client
	prefix string
	queues []string // of the configuration's shape
	mover  *rebuild.Mover
	to     *ladder.Ladder
	limit  *rate.Limiter
	batch  int
	moved  map[string]int64
	bar    *progress
}

// Run drains.
func (c *topologyDrain) Run(ctx context.Context, s *system) error {
	perSecond, err := parseRate(c.Rate, drainMax)
	if c.Quiet < 0 || c.Within < 0 {
		err = errors.Join(err, errors.New("--quiet, --within: must be 0s or more"))
	}
	if err := errors.Join(err, c.check(s)); err != nil {
		return err
	}
	cfg, err := s.settings(keyInstallation, keyBroker)
	if err != nil {
		return err
	}
	from, err := c.source(s, cfg)
	if err != nil {
		return err
	}
	old, oldLadder, err := s.broker(from, func(*ladder.Ladder) ladder.Plan { return ladder.Plan{} })
	if err != nil {
		return fmt.Errorf("from: %w", err)
	}
	client, l, err := s.broker(cfg, func(l *ladder.Ladder) ladder.Plan { return l.Plan() })
	if err != nil {
		return err
	}
	reach, cancel := context.WithTimeout(ctx, readyLimit)
	err = client.Prepare(reach)
	cancel()
	if err != nil {
		return fmt.Errorf("topology: %w", err)
	}
	if from.Broker.ManagementURL.Reveal() == "" {
		s.note("without the management API of the old broker only queues of the configuration's layout are found, and dead letters under way are not counted: run lapsectl rebuild afterwards")
	}
	return s.withStore(ctx, func(db *store.Store) error {
		return withPublisher(ctx, client, func(p *broker.Publisher) error {
			d := &drainer{
				s: s, old: old, prefix: from.Ladder.Prefix, queues: planned(oldLadder), to: l, batch: rebuild.MaxMeet,
				mover: rebuild.NewMover(db, delay.NewLadder(l, p), p, l), limit: rate.NewLimiter(rate.Inf, 0), moved: map[string]int64{},
			}
			if perSecond > 0 {
				d.batch = max(1, min(d.batch, int(perSecond)))
				d.limit = rate.NewLimiter(rate.Limit(perSecond), d.batch)
			}
			return c.run(ctx, s, db, d, target(from), target(cfg))
		})
	})
}

func (c *topologyDrain) run(ctx context.Context, s *system, db *store.Store, d *drainer, from, to string) error {
	began := time.Now()
	running, cancel := ctx, context.CancelFunc(func() {})
	if c.Within > 0 {
		running, cancel = context.WithTimeout(ctx, c.Within)
	}
	err := d.run(running, c.Quiet)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = nil // of --within: what is left says the rest
	}
	m := d.mover.Moved()
	x := movedJSON{
		Triggers: m.Triggers, Dropped: m.Dropped, Others: m.Others, Parked: m.Parked, Queues: d.moved, TookMS: time.Since(began).Milliseconds(),
	}
	counting, stop := context.WithTimeout(context.WithoutCancel(ctx), readyLimit)
	defer stop()
	left, leftErr := d.left(counting)
	for _, n := range left {
		x.Left += n
	}
	x.Empty = err == nil && leftErr == nil && x.Left == 0
	told := db.RecordDeed(counting, store.Deed{Actor: c.Actor, Reason: c.Reason, Action: deedDrain, Subject: from, Detail: map[string]any{
		"to": to, "triggers": m.Triggers, "dropped": m.Dropped, "others": m.Others, "parked": m.Parked, "left": x.Left, "empty": x.Empty,
	}})
	if err := errors.Join(err, leftErr, told); err != nil {
		return fmt.Errorf("%w; %s messages are moved, %s are left: the same command goes on", err, grouped(int(m.Triggers+m.Dropped+m.Others+m.Parked)), grouped(int(x.Left)))
	}
	if c.JSON {
		err = s.printJSON(x)
	} else {
		err = s.print(table{
			{"moved", fmt.Sprintf("%s triggers, %s others", grouped(int(x.Triggers)), grouped(int(x.Others)))},
			{"dropped", grouped(int(x.Dropped)) + " triggers that no coupon needs"},
			{"parked", grouped(int(x.Parked))},
			{"left", grouped(int(x.Left))},
		}.String())
	}
	if err == nil && !x.Empty {
		return s.miss("%s messages are left", grouped(int(x.Left)))
	}
	return err
}

// planned are the queues of a layout in the order in which messages move on: nothing that moves meanwhile is missed.
func planned(l *ladder.Ladder) []string {
	var names []string
	for _, q := range l.Plan().Queues {
		names = append(names, q.Name)
	}
	return names
}

// run goes round until nothing has been left for as long as quiet.
func (d *drainer) run(ctx context.Context, quiet time.Duration) error {
	left, err := d.left(ctx)
	if err != nil {
		return err
	}
	d.bar = newProgress(d.s, "messages", sum(left), 0)
	defer d.bar.close()
	empty, progress := time.Now(), time.Now()
	for {
		if left, err = d.left(ctx); err != nil {
			return err
		}
		if sum(left) > 0 {
			empty = time.Now()
		} else if time.Since(empty) >= quiet {
			return nil
		}
		n, err := d.round(ctx, left)
		if n > 0 {
			progress = time.Now()
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, broker.ErrReturned), err != nil && time.Since(progress) > drainPatience:
			return err
		case err != nil:
			d.s.note("%v; trying again", err)
		}
		if n == 0 {
			if err := lifecycle.Sleep(ctx, drainPoll); err != nil {
				return err
			}
		}
	}
}

func sum(left map[string]int64) (n int64) {
	for _, k := range left {
		n += k
	}
	return n
}

// left counts what each queue holds, dead letters under way included where the management API shows them.
func (d *drainer) left(ctx context.Context) (map[string]int64, error) {
	left := map[string]int64{}
	names := d.queues
	states, err := d.old.QueueStates(ctx, d.prefix)
	if err != nil && !errors.Is(err, broker.ErrNoManagement) {
		return nil, err //nolint:wrapcheck // says what it does
	}
	for _, q := range states {
		if !broker.Ours(q.Name, d.prefix) {
			continue
		}
		if q.Messages > 0 {
			left[q.Name] = q.Messages
		}
		if !slices.Contains(names, q.Name) {
			names = append(names[:len(names):len(names)], q.Name)
		}
	}
	depths, err := d.old.Depths(ctx, names)
	for name, n := range depths {
		if n > 0 {
			left[name] = max(left[name], int64(n))
		}
	}
	var gone *broker.MissingError
	if err != nil && !errors.As(err, &gone) {
		return nil, fmt.Errorf("count what is left: %w", err)
	}
	return left, nil
}

// round empties each queue that holds something, in the order of the plan.
func (d *drainer) round(ctx context.Context, left map[string]int64) (int, error) {
	names := slices.Clone(d.queues)
	for name := range left {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return stage(a, d.prefix) - stage(b, d.prefix) })
	total := 0
	var errs []error
	for _, name := range names {
		if left[name] == 0 {
			continue
		}
		n, err := d.old.Drain(ctx, name, d.batch, drainIdle, d.move(name))
		d.moved[name] += int64(n)
		total += n
		if ctx.Err() != nil {
			return total, context.Cause(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return total, errors.Join(errs...)
}

// stage orders queues as messages move through them.
func stage(name, prefix string) int {
	word, _, _ := strings.Cut(strings.TrimPrefix(name, prefix+"."), ".")
	switch word {
	case "wait":
		return 0
	case "unroutable":
		return 1
	case "due":
		return 2
	case "parked":
		return 4
	default:
		return 3
	}
}

// move is what becomes of a batch of the queue.
func (d *drainer) move(name string) func(context.Context, []broker.Delivery) error {
	return func(ctx context.Context, batch []broker.Delivery) error {
		if err := d.limit.WaitN(ctx, len(batch)); err != nil {
			return fmt.Errorf("wait for the rate: %w", err)
		}
		// What is in hand is finished also when ctx ends.
		ctx = context.WithoutCancel(ctx)
		var err error
		if stage(name, d.prefix) <= 2 { //nolint:mnd // the stages of triggers
			err = d.mover.Triggers(ctx, batch)
		} else {
			err = d.mover.Others(ctx, d.to.Prefix()+strings.TrimPrefix(name, d.prefix), batch)
		}
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		m := d.mover.Moved()
		d.bar.set(m.Triggers + m.Dropped + m.Others + m.Parked)
		return nil
	}
}
