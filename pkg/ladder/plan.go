package ladder

import (
	"fmt"
	"strings"
	"time"
)

// Role is what a queue is for.
type Role string

// The roles of queues.
const (
	RoleWait       Role = "wait"       // a step of the ladder; no consumer
	RoleDue        Role = "due"        // due triggers, for the expirer
	RoleParked     Role = "parked"     // set aside for a person
	RoleUnroutable Role = "unroutable" // what no binding of the ladder took
	RoleIntake     Role = "intake"     // what others send us
	RoleNotice     Role = "notice"     // expired events, for the notifier
)

// Plan is everything that the installation owns on the broker, in an order in
// which it can be declared: exchanges, queues, bindings.
type Plan struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
}

// Exchange is a durable exchange.
type Exchange struct {
	Name string
	Type string // topic, fanout or direct
	Args map[string]any
}

// Queue is a durable quorum queue.
type Queue struct {
	Name  string
	Role  Role
	Level string        // of a wait queue
	TTL   time.Duration // of a wait queue
	Args  map[string]any
}

// Binding leads from an exchange to a queue or, if ToExchange, to an exchange.
type Binding struct {
	Source      string
	Destination string
	ToExchange  bool
	Key         string
}

const (
	topic  = "topic"
	fanout = "fanout"
	direct = "direct"

	// deliveryLimit is set because the broker's own default differs by
	// version (none, or 20 from 4.0, which reconnects alone use up), and
	// because –1 counts as zero on 3.10.
	deliveryLimit = int64(100_000)
)

// Plan lists what to declare. Every call returns a value of its own.
func (l *Ladder) Plan() Plan {
	var p Plan
	l.planLadder(&p)
	l.planDue(&p)
	l.planAside(&p)
	l.planIntake(&p)
	return p
}

func (l *Ladder) planLadder(p *Plan) {
	// A topic exchange without alternate exchange: a publish that finds no
	// first hop is returned to its publisher.
	p.Exchanges = append(p.Exchanges, Exchange{Name: l.Enter(), Type: topic})
	for i, level := range l.levels {
		word := l.skip + i
		exchange := l.LevelExchange(level.Name)
		next := l.Due()
		if i+1 < len(l.levels) {
			next = l.LevelExchange(l.levels[i+1].Name)
		}
		p.Exchanges = append(p.Exchanges, Exchange{Name: exchange, Type: topic, Args: l.alternate()})
		for digit := 1; digit <= level.Digits; digit++ {
			for shard := range l.shards {
				queue := l.WaitQueue(level.Name, digit, shard)
				ttl := time.Duration(digit) * level.Unit
				args := l.quorum(next)
				args["x-message-ttl"] = ttl.Milliseconds()
				p.Queues = append(p.Queues, Queue{Name: queue, Role: RoleWait, Level: level.Name, TTL: ttl, Args: args})
				for _, tail := range l.tails(digitWords-word-1, shard) {
					p.Bindings = append(p.Bindings,
						Binding{Source: l.Enter(), Destination: queue, Key: strings.Repeat("00.", word) + twoWord(digit) + tail},
						Binding{Source: exchange, Destination: queue, Key: strings.Repeat("*.", word) + twoWord(digit) + tail})
				}
			}
		}
		p.Bindings = append(p.Bindings, Binding{Source: exchange, Destination: next, ToExchange: true, Key: strings.Repeat("*.", word) + "00.#"})
	}
	p.Bindings = append(p.Bindings, Binding{Source: l.Enter(), Destination: l.Due(), ToExchange: true, Key: strings.Repeat("00.", digitWords) + "#"})
}

// tails are the ends of binding keys behind a digit that is followed by so
// many more: one for all partitions, or with shards one for each partition of
// the shard.
func (l *Ladder) tails(digits, shard int) []string {
	if l.shards == 1 {
		return []string{".#"}
	}
	var tails []string
	for partition := shard; partition < Partitions; partition += l.shards {
		tails = append(tails, strings.Repeat(".*", digits+2)+"."+twoWord(partition))
	}
	return tails
}

func (l *Ladder) planDue(p *Plan) {
	p.Exchanges = append(p.Exchanges, Exchange{Name: l.Due(), Type: topic, Args: l.alternate()})
	any5 := strings.Repeat("*.", digitWords)
	for _, due := range []struct{ queue, key string }{
		{l.DueExact(), any5 + string(Expire) + "." + string(Exact) + ".*"},
		{l.DueRelaxed(), any5 + string(Expire) + "." + string(Relaxed) + ".*"},
		{l.DueUnlock(), any5 + string(Unlock) + ".*.*"},
	} {
		p.Queues = append(p.Queues, Queue{Name: due.queue, Role: RoleDue, Args: l.work()})
		p.Bindings = append(p.Bindings, Binding{Source: l.Due(), Destination: due.queue, Key: due.key})
	}
}

// planAside adds where goes what cannot be processed. Neither queue has a
// length or time limit.
func (l *Ladder) planAside(p *Plan) {
	p.Exchanges = append(p.Exchanges,
		Exchange{Name: l.Unroutable(), Type: fanout},
		Exchange{Name: l.ParkExchange(), Type: fanout})
	parked := l.replicated()
	parked["x-delivery-limit"] = deliveryLimit
	p.Queues = append(p.Queues,
		Queue{Name: l.Unroutable(), Role: RoleUnroutable, Args: l.work()},
		Queue{Name: l.Parked(), Role: RoleParked, Args: parked})
	p.Bindings = append(p.Bindings,
		Binding{Source: l.Unroutable(), Destination: l.Unroutable()},
		Binding{Source: l.ParkExchange(), Destination: l.Parked()})
}

func (l *Ladder) planIntake(p *Plan) {
	intake := func(name string) {
		p.Exchanges = append(p.Exchanges, Exchange{Name: name, Type: topic})
		p.Queues = append(p.Queues, Queue{Name: name, Role: RoleIntake, Args: l.work()})
		p.Bindings = append(p.Bindings, Binding{Source: name, Destination: name, Key: "#"})
	}
	p.Exchanges = append(p.Exchanges, Exchange{Name: l.Events(), Type: topic}, Exchange{Name: l.Bundles(), Type: direct})
	intake(l.Issuance())
	if l.orders {
		intake(l.Orders())
		// What was set aside for a while comes back by the ladder.
		p.Bindings = append(p.Bindings, Binding{
			Source: l.Due(), Destination: l.Orders(), Key: strings.Repeat("*.", digitWords) + string(Order) + ".*.*",
		})
	}
	if l.users {
		intake(l.Users())
	}
	if l.ledger {
		p.Queues = append(p.Queues, Queue{Name: l.Ledger(), Role: RoleIntake, Args: l.work()})
		l.bundled(p, l.Ledger(), bundleLedger, bundleBoth)
	}
	p.Queues = append(p.Queues, Queue{Name: l.Notice(), Role: RoleNotice, Args: l.work()})
	// What was set aside of an event goes back to the queue that refused it, and to no other that hears of it.
	p.Exchanges = append(p.Exchanges, Exchange{Name: l.Replay(), Type: direct})
	for _, q := range p.Queues {
		if q.Name == l.Ledger() || q.Name == l.Notice() {
			p.Bindings = append(p.Bindings, Binding{Source: l.Replay(), Destination: q.Name, Key: q.Name})
		}
	}
	l.bundled(p, l.Notice(), bundleNotice, bundleBoth)
	p.Bindings = append(p.Bindings, Binding{Source: l.Events(), Destination: l.Notice(), Key: "heartbeat.expired"}) // which no outbox sends
}

// The routing keys of bundles.
const (
	bundleLedger = "ledger"
	bundleNotice = "notice"
	bundleBoth   = "both"
)

func (l *Ladder) bundled(p *Plan, queue string, keys ...string) {
	for _, key := range keys {
		p.Bindings = append(p.Bindings, Binding{Source: l.Bundles(), Destination: queue, Key: key})
	}
}

// BundleKey is the routing key of a bundle for the queues of ours that want the event, given its own routing key; empty: none does.
func (l *Ladder) BundleKey(event string) string {
	switch {
	case event == "coupon.refused", event == "coupon.redeem_refused": // no step of a coupon
		return ""
	case event == "coupon.expiring", event == "coupon.at_risk":
		return bundleNotice
	case event == "coupon.expired" && l.ledger:
		return bundleBoth
	case event == "coupon.expired":
		return bundleNotice
	case strings.HasPrefix(event, "coupon.") && l.ledger:
		return bundleLedger
	default:
		return ""
	}
}

// WaitQueue is the name of a level's queue for a digit; the shard counts only
// if there are several.
func (l *Ladder) WaitQueue(level string, digit, shard int) string {
	name := fmt.Sprintf("%s.wait.%s.%02d", l.prefix, level, digit)
	if l.shards > 1 {
		name += fmt.Sprintf(".s%d", shard)
	}
	return name
}

func (l *Ladder) alternate() map[string]any {
	return map[string]any{"alternate-exchange": l.Unroutable()}
}

// replicated are the arguments that every queue has. Never x-expires: what a
// queue holds when it expires is not dead-lettered.
func (l *Ladder) replicated() map[string]any {
	return map[string]any{
		"x-queue-type":                "quorum",
		"x-queue-leader-locator":      "balanced",
		"x-quorum-initial-group-size": int64(l.groupSize),
	}
}

// quorum are the arguments of a queue that hands on without loss. At-least-once
// dead-lettering takes effect only together with reject-publish.
func (l *Ladder) quorum(deadLetter string) map[string]any {
	args := l.replicated()
	args["x-dead-letter-exchange"] = deadLetter
	args["x-dead-letter-strategy"] = "at-least-once"
	args["x-overflow"] = "reject-publish"
	return args
}

func (l *Ladder) work() map[string]any {
	args := l.quorum(l.ParkExchange())
	args["x-delivery-limit"] = deliveryLimit
	return args
}

func twoWord(n int) string { return fmt.Sprintf("%02d", n) }
