package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lapsehq/lapse/pkg/ladder"
)

// FindingKind is what is wrong with a piece of the topology.
type FindingKind string

// The kinds of findings.
const (
	FindMissing    FindingKind = "missing"      // an exchange, queue or binding is not there
	FindArguments  FindingKind = "arguments"    // it is there with other arguments, or of another type
	FindAtMostOnce FindingKind = "at_most_once" // dead-lettering may lose: not a quorum queue, or strategy or overflow are not in force
	FindDeadLetter FindingKind = "dead_letter"  // it dead-letters to another place, or under another key
	FindCatchAll   FindingKind = "catch_all"    // unroutable dead letters are not caught, and would stop their queue
	FindPolicy     FindingKind = "policy"       // a policy drops, parks or releases messages early
	FindExtra      FindingKind = "extra"        // a queue or binding of our name that is not of the plan
	FindMembers    FindingKind = "members"      // fewer members than nodes allow, or some are offline
	FindLeader     FindingKind = "leader"       // nobody leads the queue: it takes and gives nothing
	FindConsumer   FindingKind = "consumer"     // somebody consumes from a wait queue: triggers come early
	FindStuck      FindingKind = "stuck"        // dead letters do not move on
	FindHeadAge    FindingKind = "head_age"     // the first message is older than the queue's TTL
	FindUnreadable FindingKind = "unreadable"   // the broker refuses to say
)

// Finding is one difference between what should be and what is.
type Finding struct {
	Kind   FindingKind
	Object string // exchange, queue or binding
	Name   string
	Detail string // what should be and what is
	Absent bool   // it is not there at all: declaring it mends that
}

// QueueState is what the management API tells of a queue. Counts are up to five seconds old.
type QueueState struct {
	Name      string
	Type      string
	Args      map[string]any
	Policy    map[string]any // in force, operator policy included
	PolicyOf  string         // its names
	Messages  int64          // all that it holds
	Ready     int64
	Unacked   int64
	Consumers int64
	Members   []string
	Online    []string
	Leader    string
	Head      time.Time // timestamp of the first message; zero: not readable
}

// Held is how many messages are neither ready nor with a consumer: dead letters that the next queue has not confirmed.
func (q QueueState) Held() int64 { return max(0, q.Messages-q.Ready-q.Unacked) }

// Inspection is what Inspect found.
type Inspection struct {
	Findings []Finding
	Queues   []QueueState // of our prefix, by name; none without the management API
	Unseen   []string     // what could not be looked at, and why
}

// ErrNoManagement: the management API's URL is not configured.
var ErrNoManagement = errors.New("management_url is not configured")

// Inspect compares the plan with the broker and changes nothing: by passive declares, and, if its URL is configured, by
// the management API. prefix is what the installation's names begin with.
func (c *Client) Inspect(ctx context.Context, plan ladder.Plan, prefix string) (Inspection, error) {
	in := Inspection{}
	missing, err := c.passive(ctx, plan, &in)
	if err != nil {
		return in, err
	}
	if c.cfg.ManagementURL.Reveal() == "" {
		in.Unseen = append(in.Unseen, "bindings, policies, members and dead letters: "+ErrNoManagement.Error())
		return in, c.arguments(ctx, plan, missing, &in)
	}
	views, err := c.views(ctx, prefix)
	if err != nil {
		return in, err
	}
	in.Queues = views.queues
	nodes, err := c.runningNodes(ctx)
	if err != nil {
		in.Unseen = append(in.Unseen, fmt.Sprintf("whether each queue has a member on each node: %v", err))
	}
	in.exchanges(plan, views, missing)
	in.queues(plan, views, missing, nodes)
	in.bindings(plan, views, prefix)
	switch err := c.CheckPolicies(ctx, plan).(type) { //nolint:errorlint // a join of findings, or one failure
	case nil:
	case interface{ Unwrap() []error }:
		for _, err := range flat(err.Unwrap()) {
			var p *PolicyError
			if errors.As(err, &p) {
				in.add(FindPolicy, "queue", p.Queue, "%s sets %s to %s", p.Policy, p.Key, p.Value)
			} else {
				in.add(FindUnreadable, "policy", "", "%v", err)
			}
		}
	default:
		return in, err
	}
	in.catchAll(plan)
	return in, nil
}

// flat undoes joins of joins.
func flat(errs []error) []error {
	var out []error
	for _, err := range errs {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			out = append(out, flat(joined.Unwrap())...)
		} else {
			out = append(out, err)
		}
	}
	return out
}

func (in *Inspection) absent(object, name string) {
	in.Findings = append(in.Findings, Finding{Kind: FindMissing, Object: object, Name: name, Detail: "should be there", Absent: true})
}

func (in *Inspection) add(kind FindingKind, object, name, detail string, args ...any) {
	in.Findings = append(in.Findings, Finding{Kind: kind, Object: object, Name: name, Detail: fmt.Sprintf(detail, args...)})
}

// passive asks over AMQP whether everything is there, and can be reached; it gives what is not, as "queue name".
func (c *Client) passive(ctx context.Context, plan ladder.Plan, in *Inspection) (map[string]bool, error) {
	errs := make([]error, len(plan.Exchanges)+len(plan.Queues))
	err := c.with(ctx, "inspect", func(s *session) error {
		err := c.onChannels(ctx, s, declareChannels, len(plan.Exchanges), func(ch *amqp.Channel, i int) error {
			e := plan.Exchanges[i]
			if err := ch.ExchangeDeclarePassive(e.Name, e.Type, true, false, false, false, nil); err != nil {
				errs[i] = explain("exchange", e.Name, err)
			}
			return nil
		})
		return errors.Join(err, c.onChannels(ctx, s, declareChannels, len(plan.Queues), func(ch *amqp.Channel, i int) error {
			if _, err := ch.QueueDeclarePassive(plan.Queues[i].Name, true, false, false, false, nil); err != nil {
				errs[len(plan.Exchanges)+i] = explain("queue", plan.Queues[i].Name, err)
			}
			return nil
		}))
	})
	if err != nil {
		return nil, err
	}
	missing := map[string]bool{}
	for i, err := range errs {
		object, name := "exchange", ""
		if i < len(plan.Exchanges) {
			name = plan.Exchanges[i].Name
		} else {
			object, name = "queue", plan.Queues[i-len(plan.Exchanges)].Name
		}
		var gone *MissingError
		switch {
		case errors.As(err, &gone):
			missing[object+" "+name] = true
			in.absent(object, name)
		case err != nil:
			in.add(FindUnreadable, object, name, "%v", err)
		}
	}
	return missing, nil
}

// arguments compares them over AMQP, where the broker tells of the first one that differs.
func (c *Client) arguments(ctx context.Context, plan ladder.Plan, missing map[string]bool, in *Inspection) error {
	there := ladder.Plan{
		Exchanges: slices.DeleteFunc(slices.Clone(plan.Exchanges), func(e ladder.Exchange) bool { return missing["exchange "+e.Name] }),
		Queues:    slices.DeleteFunc(slices.Clone(plan.Queues), func(q ladder.Queue) bool { return missing["queue "+q.Name] }),
	}
	err := c.Verify(ctx, there)
	if err == nil {
		return nil
	}
	for _, err := range flat([]error{err}) {
		var m *MismatchError
		if !errors.As(err, &m) {
			return err
		}
		kind := FindArguments
		switch {
		case m.Argument == "alternate-exchange":
			kind = FindCatchAll
		case atMostOnce(m.Argument):
			kind = FindAtMostOnce
		case strings.HasPrefix(m.Argument, "x-dead-letter-"):
			kind = FindDeadLetter
		}
		in.add(kind, m.Kind, m.Name, "%s", m.Error())
	}
	return nil
}

func (in *Inspection) exchanges(plan ladder.Plan, v views, missing map[string]bool) {
	for _, e := range plan.Exchanges {
		have, ok := v.exchanges[e.Name]
		if !ok || missing["exchange "+e.Name] {
			continue
		}
		if have.Type != e.Type {
			in.add(FindArguments, "exchange", e.Name, "type: want %s, have %s", e.Type, have.Type)
		}
		if !have.Durable {
			in.add(FindArguments, "exchange", e.Name, "durable: want true, have false")
		}
		for _, d := range differences(e.Args, have.Arguments) {
			kind := FindArguments
			if d.name == "alternate-exchange" {
				kind = FindCatchAll
				// An argument wins over a policy, but a policy serves where there is none.
				if _, set := have.Arguments[d.name]; !set && same(e.Args[d.name], have.Policy[d.name]) {
					continue
				}
			}
			in.add(kind, "exchange", e.Name, "%s", d)
		}
	}
}

func (in *Inspection) queues(plan ladder.Plan, v views, missing map[string]bool, nodes int) {
	states := map[string]QueueState{}
	for _, q := range v.queues {
		states[q.Name] = q
	}
	planned := map[string]bool{}
	for _, q := range plan.Queues {
		planned[q.Name] = true
		if have, ok := states[q.Name]; ok && !missing["queue "+q.Name] {
			in.queue(q, have, nodes)
		}
	}
	for _, q := range v.queues {
		if !planned[q.Name] && Ours(q.Name, v.prefix) {
			in.add(FindExtra, "queue", q.Name, "not of this layout; it holds %d messages", q.Messages)
		}
	}
}

// Ours says whether a name is one of those that a ladder makes: others may call theirs after us.
func Ours(name, prefix string) bool {
	rest, ok := strings.CutPrefix(name, prefix+".")
	if !ok {
		return false
	}
	word, _, _ := strings.Cut(rest, ".")
	return slices.Contains([]string{"wait", "due", "unroutable", "parked", "issuance", "orders", "users", "ledger", "notice"}, word)
}

// atMostOnce names the arguments without which a quorum queue dead-letters at most once.
func atMostOnce(name string) bool {
	return name == "x-dead-letter-strategy" || name == "x-overflow" || name == "x-queue-type"
}

func (in *Inspection) queue(q ladder.Queue, have QueueState, nodes int) {
	for _, d := range differences(q.Args, have.Args) {
		kind := FindArguments
		switch {
		case atMostOnce(d.name):
			kind = FindAtMostOnce
			if _, set := have.Args[d.name]; !set && same(q.Args[d.name], have.Policy[strings.TrimPrefix(d.name, "x-")]) {
				continue // a policy serves where there is no argument
			}
		case strings.HasPrefix(d.name, "x-dead-letter-"):
			kind = FindDeadLetter
		}
		in.add(kind, "queue", q.Name, "%s", d)
	}
	// An argument wins over a policy, but for limits the lower one holds.
	if limit, ok := integer(have.Policy["delivery-limit"]); ok {
		if want, set := integer(q.Args["x-delivery-limit"]); set && limit < want {
			in.add(FindPolicy, "queue", q.Name, "%s sets delivery-limit to %d: reconnects would park good messages", have.PolicyOf, limit)
		}
	}
	if key, set := have.Policy["dead-letter-routing-key"]; set {
		in.add(FindDeadLetter, "queue", q.Name, "%s sets dead-letter-routing-key to %v: the digits are lost", have.PolicyOf, key)
	}
	in.replicas(q, have, nodes)
	if q.Role == ladder.RoleWait && have.Consumers > 0 {
		in.add(FindConsumer, "queue", q.Name, "%d consumers on a queue that nobody may consume from (a drain does, while it runs)", have.Consumers)
	}
	if age := time.Since(have.Head); q.Role == ladder.RoleWait && !have.Head.IsZero() && age > q.TTL+headSlack {
		in.add(FindHeadAge, "queue", q.Name, "the first message is %s old, the TTL %s", age.Truncate(time.Second), q.TTL)
	}
}

// headSlack: timestamps are the publisher's, and count whole seconds.
const headSlack = time.Minute

func (in *Inspection) replicas(q ladder.Queue, have QueueState, nodes int) {
	if have.Type != "quorum" {
		return
	}
	if want, ok := integer(q.Args["x-quorum-initial-group-size"]); ok && nodes > 0 {
		if want = min(want, int64(nodes)); int64(len(have.Members)) < want {
			in.add(FindMembers, "queue", q.Name, "%d members on %d nodes, want %d (rabbitmq-queues grow)", len(have.Members), nodes, want)
		}
	}
	var off []string
	for _, m := range have.Members {
		if !slices.Contains(have.Online, m) {
			off = append(off, m)
		}
	}
	if len(off) > 0 {
		in.add(FindMembers, "queue", q.Name, "offline: %s", strings.Join(off, ", "))
	}
	if len(have.Members) > 0 && have.Leader == "" {
		in.add(FindLeader, "queue", q.Name, "no leader among %s", strings.Join(have.Members, ", "))
	}
}

func (in *Inspection) bindings(plan ladder.Plan, v views, prefix string) {
	planned := make(map[ladder.Binding]bool, len(plan.Bindings))
	for _, b := range plan.Bindings {
		planned[b] = true
		if !v.bindings[b] {
			in.absent("binding", Describe(b))
		}
	}
	sources := map[string]bool{}
	for _, e := range plan.Exchanges {
		sources[e.Name] = true
	}
	events := prefix + ".events"
	var extra []string
	for b := range v.bindings {
		toUs := !b.ToExchange && Ours(b.Destination, prefix)
		// The events are for everyone.
		if b.Source == "" || planned[b] || b.Source == events && !toUs || !sources[b.Source] && !toUs {
			continue
		}
		extra = append(extra, Describe(b))
	}
	sort.Strings(extra)
	for _, name := range extra {
		in.add(FindExtra, "binding", name, "not of this layout: messages may go two ways")
	}
}

// catchAll marks the missing pieces without which unroutable dead letters stop their queue.
func (in *Inspection) catchAll(plan ladder.Plan) {
	name := ""
	for _, q := range plan.Queues {
		if q.Role == ladder.RoleUnroutable {
			name = q.Name
		}
	}
	for i := range in.Findings {
		f := &in.Findings[i]
		if name != "" && f.Kind == FindMissing && (f.Name == name || strings.HasPrefix(f.Name, name+" -> ")) {
			f.Kind = FindCatchAll
		}
	}
}
