package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/ladder"
)

type topologyCommand struct {
	Plan   topologyPlan   `cmd:"" help:"Show what should be on the broker."`
	Verify topologyVerify `cmd:"" help:"Compare it with what is. Exit code 1 if they differ."`
	Apply  topologyApply  `cmd:"" help:"Declare what is missing. Nothing is changed or deleted."`
	Drain  topologyDrain  `cmd:"" help:"Move what stands in another layout or broker to this one."`
}

type topologyPlan struct {
	JSON        bool `name:"json" xor:"form" help:"Print JSON."`
	Definitions bool `xor:"form" help:"Print RabbitMQ definitions, for POST /api/definitions/VHOST or rabbitmqctl import_definitions."`
	Diff        bool `help:"Show only what is missing on the broker. Exit code 1 if something is."`
}

// planJSON is a plan as --json prints it.
type planJSON struct {
	Prefix    string         `json:"prefix"`
	Vhost     string         `json:"vhost"`
	Exchanges []exchangeJSON `json:"exchanges"`
	Queues    []queueJSON    `json:"queues"`
	Bindings  []bindingJSON  `json:"bindings"`
}

type exchangeJSON struct {
	Name      string         `json:"name"`
	Type      string         `json:"type"`
	Arguments map[string]any `json:"arguments"`
}

type queueJSON struct {
	Name      string         `json:"name"`
	Role      string         `json:"role"`
	TTLMS     *int64         `json:"ttl_ms"` // null: none
	Arguments map[string]any `json:"arguments"`
}

type bindingJSON struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	To          string `json:"to"` // queue or exchange
	Key         string `json:"key"`
}

// Run shows the plan.
func (c *topologyPlan) Run(ctx context.Context, s *system) error {
	t, err := s.topology(c.Diff)
	if err != nil {
		return err
	}
	plan := t.plan
	if c.Diff {
		var unseen []string
		if plan, unseen, err = t.missing(ctx); err != nil {
			return err
		}
		for _, what := range unseen {
			s.note("not looked at: %s", what)
		}
	}
	n := len(plan.Exchanges) + len(plan.Queues) + len(plan.Bindings)
	switch {
	case c.Definitions:
		err = s.printJSON(plan.Definitions(t.client.Vhost()))
	case c.JSON:
		err = s.printJSON(planOf(plan, t.prefix, t.client.Vhost()))
	case c.Diff && n == 0:
		err = s.print("nothing is missing\n")
	default:
		err = s.print(planText(plan))
	}
	if err == nil && c.Diff && n > 0 {
		return s.miss("%d exchanges, %d queues and %d bindings are missing (lapsectl topology apply)", len(plan.Exchanges), len(plan.Queues), len(plan.Bindings))
	}
	return err
}

// topology is the plan of the configuration, and a client that declares nothing by itself.
type topology struct {
	prefix string
	plan   ladder.Plan
	client *broker.Client
}

// topology needs no broker unless reach says so; the plan is known without.
func (s *system) topology(reach bool) (topology, error) {
	needs := []string{}
	if reach {
		needs = append(needs, keyBroker)
	}
	cfg, err := s.settings(append(needs, keyInstallation)...)
	if err != nil {
		return topology{}, err
	}
	if cfg.Broker.URL.Reveal() == "" {
		cfg.Broker.URL = noBroker()
	}
	client, l, err := s.broker(cfg, func(*ladder.Ladder) ladder.Plan { return ladder.Plan{} })
	if err != nil {
		return topology{}, err
	}
	return topology{prefix: l.Prefix(), plan: l.Plan(), client: client}, nil
}

// missing is the part of the plan that is not there.
func (t topology) missing(ctx context.Context) (ladder.Plan, []string, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectLimit)
	defer cancel()
	in, err := t.client.Inspect(ctx, t.plan, t.prefix)
	if err != nil {
		return ladder.Plan{}, nil, fmt.Errorf("inspect: %w", err)
	}
	gone := map[string]bool{}
	for _, f := range in.Findings {
		if f.Absent {
			gone[f.Object+" "+f.Name] = true
		}
	}
	return ladder.Plan{
		Exchanges: slices.DeleteFunc(slices.Clone(t.plan.Exchanges), func(e ladder.Exchange) bool { return !gone["exchange "+e.Name] }),
		Queues:    slices.DeleteFunc(slices.Clone(t.plan.Queues), func(q ladder.Queue) bool { return !gone["queue "+q.Name] }),
		Bindings:  slices.DeleteFunc(slices.Clone(t.plan.Bindings), func(b ladder.Binding) bool { return !gone["binding "+broker.Describe(b)] }),
	}, in.Unseen, nil
}

const inspectLimit = 2 * time.Minute

func planOf(p ladder.Plan, prefix, vhost string) planJSON {
	x := planJSON{Prefix: prefix, Vhost: vhost, Exchanges: []exchangeJSON{}, Queues: []queueJSON{}, Bindings: []bindingJSON{}}
	some := func(args map[string]any) map[string]any {
		if args == nil {
			return map[string]any{}
		}
		return args
	}
	for _, e := range p.Exchanges {
		x.Exchanges = append(x.Exchanges, exchangeJSON{e.Name, e.Type, some(e.Args)})
	}
	for _, q := range p.Queues {
		out := queueJSON{Name: q.Name, Role: string(q.Role), Arguments: some(q.Args)}
		if q.TTL > 0 {
			ms := q.TTL.Milliseconds()
			out.TTLMS = &ms
		}
		x.Queues = append(x.Queues, out)
	}
	for _, b := range p.Bindings {
		to := "queue"
		if b.ToExchange {
			to = "exchange"
		}
		x.Bindings = append(x.Bindings, bindingJSON{b.Source, b.Destination, to, b.Key})
	}
	return x
}

func planText(p ladder.Plan) string {
	var b strings.Builder
	section := func(t table) {
		if len(t) > 1 {
			if b.Len() > 0 {
				b.WriteString("\n")
			}
			b.WriteString(t.String())
		}
	}
	exchanges := table{{"EXCHANGE", "TYPE", "ALTERNATE"}}
	for _, e := range p.Exchanges {
		exchanges = append(exchanges, []string{e.Name, e.Type, argument(e.Args, "alternate-exchange")})
	}
	section(exchanges)
	queues := table{{"QUEUE", "ROLE", "TTL", "DEAD LETTERS TO", "DEAD-LETTERING", "OVERFLOW"}}
	for _, q := range p.Queues {
		ttl := ""
		if q.TTL > 0 {
			ttl = q.TTL.String()
		}
		queues = append(queues, []string{
			q.Name, string(q.Role), ttl, argument(q.Args, "x-dead-letter-exchange"), argument(q.Args, "x-dead-letter-strategy"), argument(q.Args, "x-overflow"),
		})
	}
	section(queues)
	bindings := table{{"FROM", "TO", "KEY"}}
	for _, x := range p.Bindings {
		bindings = append(bindings, []string{x.Source, x.Destination, x.Key})
	}
	section(bindings)
	return b.String()
}

func argument(args map[string]any, name string) string {
	if v, ok := args[name]; ok {
		return fmt.Sprint(v)
	}
	return ""
}

type topologyApply struct {
	JSON bool `name:"json" help:"Print what was declared, as JSON."`
}

// Run declares what is missing.
func (c *topologyApply) Run(ctx context.Context, s *system) error {
	t, err := s.topology(true)
	if err != nil {
		return err
	}
	gone, unseen, err := t.missing(ctx)
	if err != nil {
		return err
	}
	declare, cancel := context.WithTimeout(ctx, inspectLimit)
	defer cancel()
	if len(unseen) > 0 {
		// Bindings cannot be seen over AMQP; to declare them again does no harm.
		gone.Bindings = t.plan.Bindings
	}
	if err := t.client.Declare(declare, gone); err != nil {
		return fmt.Errorf("declare: %w", err)
	}
	if c.JSON {
		err = s.printJSON(planOf(gone, t.prefix, t.client.Vhost()))
	} else {
		err = s.print(applied(gone))
	}
	if err != nil {
		return err
	}
	// What is there with other arguments is nobody's to change.
	in, err := t.client.Inspect(declare, t.plan, t.prefix)
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	if n := len(in.Findings); n > 0 {
		return s.miss("%d findings remain that declaring does not mend (lapsectl topology verify)", n)
	}
	return nil
}

func applied(p ladder.Plan) string {
	rows := table{}
	for _, e := range p.Exchanges {
		rows = append(rows, []string{"declared", "exchange", e.Name})
	}
	for _, q := range p.Queues {
		rows = append(rows, []string{"declared", "queue", q.Name})
	}
	for _, b := range p.Bindings {
		rows = append(rows, []string{"declared", "binding", broker.Describe(b)})
	}
	if len(rows) == 0 {
		return "nothing was missing\n"
	}
	return rows.String()
}
