package ladder_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/ladder"
)

// matches is a topic exchange's rule: * is one word, # any number of words.
func matches(pattern, key []string) bool {
	if len(pattern) == 0 {
		return len(key) == 0
	}
	if pattern[0] == "#" {
		for i := range len(key) + 1 {
			if matches(pattern[1:], key[i:]) {
				return true
			}
		}
		return false
	}
	return len(key) > 0 && (pattern[0] == "*" || pattern[0] == key[0]) && matches(pattern[1:], key[1:])
}

// simulated walks messages through a plan as the broker would.
type simulated struct {
	queues   map[string]ladder.Queue
	bindings map[string][]ladder.Binding
	patterns map[string][]string
}

func simulate(t require.TestingT, p ladder.Plan) *simulated {
	s := &simulated{queues: map[string]ladder.Queue{}, bindings: map[string][]ladder.Binding{}, patterns: map[string][]string{}}
	exchanges := map[string]bool{}
	for _, exchange := range p.Exchanges {
		require.False(t, exchanges[exchange.Name], "exchange %s twice", exchange.Name)
		exchanges[exchange.Name] = true
	}
	for _, queue := range p.Queues {
		_, twice := s.queues[queue.Name]
		require.False(t, twice, queue.Name)
		s.queues[queue.Name] = queue
		if to, ok := queue.Args["x-dead-letter-exchange"]; ok {
			require.True(t, exchanges[to.(string)], "%s dead-letters to %s, which is not declared", queue.Name, to)
		}
	}
	for _, binding := range p.Bindings {
		require.True(t, exchanges[binding.Source], "%+v", binding)
		if binding.ToExchange {
			require.True(t, exchanges[binding.Destination], "%+v", binding)
		} else {
			_, known := s.queues[binding.Destination]
			require.True(t, known, "%+v", binding)
		}
		s.bindings[binding.Source] = append(s.bindings[binding.Source], binding)
		s.patterns[binding.Key] = strings.Split(binding.Key, ".")
	}
	return s
}

// route follows exchanges until a queue; at each exactly one binding matches.
func (s *simulated) route(t require.TestingT, exchange, key string) ladder.Queue {
	words := strings.Split(key, ".")
	for range 10 {
		var taken []ladder.Binding
		for _, binding := range s.bindings[exchange] {
			if matches(s.patterns[binding.Key], words) {
				taken = append(taken, binding)
			}
		}
		require.Len(t, taken, 1, "key %s at exchange %s", key, exchange)
		if !taken[0].ToExchange {
			return s.queues[taken[0].Destination]
		}
		exchange = taken[0].Destination
	}
	require.FailNow(t, "exchanges in a circle", "key %s", key)
	return ladder.Queue{}
}

// walk sends a routed message and returns where it came due and after what.
func (s *simulated) walk(t require.TestingT, route ladder.Route) (due ladder.Queue, waited time.Duration, hops int) {
	exchange, expiration := route.Exchange, route.Expiration
	visited := map[string]bool{}
	for {
		queue := s.route(t, exchange, route.Key)
		if queue.Role != ladder.RoleWait {
			return queue, waited, hops
		}
		require.False(t, visited[queue.Name], "%s visited twice", queue.Name)
		visited[queue.Name] = true
		hops++
		stay := time.Duration(queue.Args["x-message-ttl"].(int64)) * time.Millisecond
		if expiration > 0 {
			stay = min(stay, expiration)
		}
		expiration = 0 // dropped by the broker at the first dead-lettering
		waited += stay
		exchange = queue.Args["x-dead-letter-exchange"].(string)
	}
}

func dueQueue(l *ladder.Ladder, kind ladder.Kind, class ladder.Class) string {
	switch {
	case kind == ladder.Order:
		return l.Orders()
	case kind == ladder.Unlock:
		return l.DueUnlock()
	case class == ladder.Exact:
		return l.DueExact()
	default:
		return l.DueRelaxed()
	}
}

func TestEveryRouteArrives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := ladder.New(anyConfig(t))
		require.NoError(t, err)
		broker := simulate(t, l.Plan())
		for range 10 {
			// Digits first, zeros among them more often than chance has them.
			var delay time.Duration
			for _, level := range l.Levels() {
				if rapid.Bool().Draw(t, "nonzero") {
					delay += time.Duration(rapid.IntRange(1, level.Digits).Draw(t, "digit")) * level.Unit
				}
			}
			delay += time.Duration(rapid.Int64Range(-int64(l.Base()), int64(l.Base())).Draw(t, "part"))
			kind := rapid.SampledFrom([]ladder.Kind{ladder.Expire, ladder.Unlock, ladder.Order}).Draw(t, "kind")
			class := rapid.SampledFrom([]ladder.Class{ladder.Exact, ladder.Relaxed}).Draw(t, "class")
			route := l.Route(delay, kind, class, rapid.IntRange(0, 15).Draw(t, "partition"))

			due, waited, hops := broker.walk(t, route)
			require.Equal(t, dueQueue(l, kind, class), due.Name)
			require.Equal(t, map[bool]ladder.Role{true: ladder.RoleIntake, false: ladder.RoleDue}[kind == ladder.Order], due.Role)
			require.Equal(t, route.Wait, waited)
			require.LessOrEqual(t, hops, len(l.Levels()))
		}
	})
}

// Every single digit, on the ladder as it ships, for every shard count.
func TestEveryQueueIsReached(t *testing.T) {
	for _, shards := range []int{1, 5} {
		l := build(t, func(c *ladder.Config) { c.Shards = shards })
		plan := l.Plan()
		broker := simulate(t, plan)
		reached := map[string]bool{}
		for i, level := range l.Levels() {
			for digit := 1; digit <= level.Digits; digit++ {
				for shard := range shards {
					first := broker.route(t, l.Enter(), ladder.Key{Digits: digits(i, digit, 0), Kind: ladder.Expire, Class: ladder.Exact, Partition: shard}.String())
					inner := broker.route(t, l.LevelExchange(level.Name), ladder.Key{Digits: digits(i, digit, 1), Kind: ladder.Unlock, Class: ladder.Relaxed, Partition: shard}.String())
					require.Equal(t, l.WaitQueue(level.Name, digit, shard), first.Name)
					require.Equal(t, first.Name, inner.Name)
					reached[first.Name] = true
				}
			}
		}
		waiting := 0
		for _, queue := range plan.Queues {
			if queue.Role == ladder.RoleWait {
				waiting++
			}
		}
		require.Equal(t, 182*shards, waiting)
		require.Len(t, reached, waiting)
	}
}

// digits sets one digit and fills those above it.
func digits(i, digit, above int) (d [5]int) {
	for j := range i {
		d[j] = above
	}
	d[i] = digit
	return d
}

func TestPlanArguments(t *testing.T) {
	l := build(t, func(c *ladder.Config) { c.GroupSize = 5; c.Orders, c.Users, c.Ledger = true, true, true })
	plan := l.Plan()
	replicated := map[string]any{"x-queue-type": "quorum", "x-queue-leader-locator": "balanced", "x-quorum-initial-group-size": int64(5)}
	with := func(more map[string]any) map[string]any {
		args := map[string]any{}
		for _, m := range []map[string]any{replicated, more} {
			for k, v := range m {
				args[k] = v
			}
		}
		return args
	}
	work := with(map[string]any{
		"x-dead-letter-exchange": "lapse.park", "x-dead-letter-strategy": "at-least-once",
		"x-overflow": "reject-publish", "x-delivery-limit": int64(100_000),
	})
	lower := map[string]string{"mo": "lapse.level.d", "d": "lapse.level.h", "h": "lapse.level.m", "m": "lapse.level.s", "s": "lapse.due"}
	roles := map[ladder.Role]int{}
	for _, queue := range plan.Queues {
		roles[queue.Role]++
		require.NotContains(t, queue.Args, "x-expires")
		switch queue.Role {
		case ladder.RoleWait:
			require.Equal(t, with(map[string]any{
				"x-message-ttl": queue.TTL.Milliseconds(), "x-dead-letter-exchange": lower[queue.Level],
				"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
			}), queue.Args, queue.Name)
		case ladder.RoleParked:
			require.Equal(t, with(map[string]any{"x-delivery-limit": int64(100_000)}), queue.Args)
		case ladder.RoleDue, ladder.RoleUnroutable, ladder.RoleIntake, ladder.RoleNotice:
			require.Equal(t, work, queue.Args, queue.Name)
		default:
			require.FailNow(t, "a queue without a role", queue.Name)
		}
	}
	require.Equal(t, map[ladder.Role]int{
		ladder.RoleWait: 182, ladder.RoleDue: 3, ladder.RoleParked: 1,
		ladder.RoleUnroutable: 1, ladder.RoleIntake: 4, ladder.RoleNotice: 1,
	}, roles)

	alternate := map[string]any{"alternate-exchange": "lapse.unroutable"}
	exchanges := map[string]ladder.Exchange{}
	for _, exchange := range plan.Exchanges {
		exchanges[exchange.Name] = exchange
	}
	for name, want := range map[string]ladder.Exchange{
		"lapse.enter":      {Type: "topic"},
		"lapse.level.mo":   {Type: "topic", Args: alternate},
		"lapse.level.d":    {Type: "topic", Args: alternate},
		"lapse.level.h":    {Type: "topic", Args: alternate},
		"lapse.level.m":    {Type: "topic", Args: alternate},
		"lapse.level.s":    {Type: "topic", Args: alternate},
		"lapse.due":        {Type: "topic", Args: alternate},
		"lapse.park":       {Type: "fanout"},
		"lapse.replay":     {Type: "direct"},
		"lapse.unroutable": {Type: "fanout"},
		"lapse.events":     {Type: "topic"},
		"lapse.bundles":    {Type: "direct"},
		"lapse.issuance":   {Type: "topic"},
		"lapse.orders":     {Type: "topic"},
		"lapse.users":      {Type: "topic"},
	} {
		want.Name = name
		require.Equal(t, want, exchanges[name])
		delete(exchanges, name)
	}
	require.Empty(t, exchanges)

	broker := simulate(t, plan)
	require.Equal(t, "lapse.issuance", broker.route(t, l.Issuance(), "whatever.they.use").Name)
	require.Equal(t, "lapse.orders", broker.route(t, l.Orders(), "order.paid").Name)
	require.Equal(t, "lapse.parked", broker.queues[l.Parked()].Name)
	require.Contains(t, plan.Bindings, ladder.Binding{Source: "lapse.events", Destination: "lapse.notice", Key: "heartbeat.expired"})
	for event, queues := range map[string][]string{
		"coupon.expired": {"lapse.ledger", "lapse.notice"}, "coupon.expiring": {"lapse.notice"}, "coupon.at_risk": {"lapse.notice"},
		"coupon.issued": {"lapse.ledger"}, "coupon.used": {"lapse.ledger"}, "coupon.refused": nil, "coupon.redeem_refused": nil, "heartbeat.expired": nil, "": nil,
	} {
		require.Equal(t, queues, bundledTo(plan, l.BundleKey(event)), event)
	}
	require.Contains(t, plan.Bindings, ladder.Binding{Source: "lapse.replay", Destination: "lapse.notice", Key: "lapse.notice"})
	require.Contains(t, plan.Bindings, ladder.Binding{Source: "lapse.replay", Destination: "lapse.ledger", Key: "lapse.ledger"})
	require.Contains(t, plan.Bindings, ladder.Binding{Source: "lapse.park", Destination: "lapse.parked"})
	require.Contains(t, plan.Bindings, ladder.Binding{Source: "lapse.unroutable", Destination: "lapse.unroutable"})
}

// bundledTo are the queues that a bundle goes to.
func bundledTo(p ladder.Plan, key string) (queues []string) {
	for _, b := range p.Bindings {
		if b.Source == "lapse.bundles" && b.Key == key {
			queues = append(queues, b.Destination)
		}
	}
	slices.Sort(queues)
	return queues
}

// What is switched off is not there at all: neither a queue that nobody consumes nor an exchange that swallows.
func TestNothingNobodyConsumes(t *testing.T) {
	names := func(l *ladder.Ladder) (names []string) {
		for _, queue := range l.Plan().Queues {
			names = append(names, queue.Name)
		}
		for _, exchange := range l.Plan().Exchanges {
			names = append(names, exchange.Name)
		}
		return names
	}
	l := build(t, nil)
	require.Subset(t, names(l), []string{l.Orders(), l.Users(), l.Ledger()})
	l = build(t, func(c *ladder.Config) { c.Orders, c.Users, c.Ledger = false, false, false })
	for _, off := range []string{l.Orders(), l.Users(), l.Ledger()} {
		require.NotContains(t, names(l), off)
	}
}

func TestHorizonDeclaresWhatItNeeds(t *testing.T) {
	for horizon, want := range map[time.Duration]string{
		time.Second:         "m s",
		44 * time.Minute:    "m s",
		45 * time.Minute:    "h m s",
		23 * time.Hour:      "h m s",
		24 * time.Hour:      "d h m s",
		72 * time.Hour:      "d h m s",
		30 * 24 * time.Hour: "mo d h m s",
		100 * year:          "mo d h m s",
		0:                   "mo d h m s",
	} {
		l := build(t, func(c *ladder.Config) { c.Horizon = horizon })
		var names []string
		for _, level := range l.Levels() {
			names = append(names, level.Name)
		}
		require.Equal(t, want, strings.Join(names, " "), horizon)
	}
}

// A message under way must find its queues when a horizon is made longer or
// shorter, so the queues of a level never differ by horizon.
func TestHorizonChangesNoQueue(t *testing.T) {
	all := map[string]ladder.Queue{}
	for _, queue := range build(t, nil).Plan().Queues {
		all[queue.Name] = queue
	}
	for _, horizon := range []time.Duration{time.Second, time.Hour, day} {
		for _, queue := range build(t, func(c *ladder.Config) { c.Horizon = horizon }).Plan().Queues {
			require.Equal(t, all[queue.Name], queue)
		}
	}
}

func TestPrefixesDoNotMeet(t *testing.T) {
	names := map[string]string{}
	for _, prefix := range []string{"a", "a-b", "b", "lapse"} {
		plan := build(t, func(c *ladder.Config) { c.Prefix = prefix }).Plan()
		for _, queue := range plan.Queues {
			require.True(t, strings.HasPrefix(queue.Name, prefix+"."))
			require.NotContains(t, names, queue.Name)
			names[queue.Name] = prefix
		}
		for _, binding := range plan.Bindings {
			require.True(t, strings.HasPrefix(binding.Source, prefix+"."))
			require.True(t, strings.HasPrefix(binding.Destination, prefix+"."))
		}
	}
}

func TestValidate(t *testing.T) {
	change := func(f func(*ladder.Config)) ladder.Config {
		c := ladder.DefaultConfig()
		f(&c)
		return c
	}
	require.NoError(t, ladder.DefaultConfig().Validate())
	for want, c := range map[string]ladder.Config{
		`prefix: must match [a-z][a-z0-9-]{0,30}, got "A.b"`: change(func(c *ladder.Config) { c.Prefix = "A.b" }),
		`prefix: must match [a-z][a-z0-9-]{0,30}, got "a\n"`: change(func(c *ladder.Config) { c.Prefix = "a\n" }),
		`shards: must be between 1 and 16, got 0`:            change(func(c *ladder.Config) { c.Shards = 0 }),
		`shards: must be between 1 and 16, got 17`:           change(func(c *ladder.Config) { c.Shards = 17 }),
		`horizon: must be 0 (unlimited) or more, got -1s`:    change(func(c *ladder.Config) { c.Horizon = -time.Second }),
		`group_size: must be between 1 and 99, got 0`:        change(func(c *ladder.Config) { c.GroupSize = 0 }),
		`levels: must be between 1 and 5, got 0`:             change(func(c *ladder.Config) { c.Levels = nil }),
		`levels: must be between 1 and 5, got 6`:             change(func(c *ladder.Config) { c.Levels = append(c.Levels, c.Levels[4]) }),
		`levels[4].name: "m" is used twice`:                  change(func(c *ladder.Config) { c.Levels[4].Name = "m" }),
		`levels[0].name: must match [a-z][a-z0-9]{0,7}`:      change(func(c *ladder.Config) { c.Levels[0].Name = "m.o" }),
		`levels[4].unit: must be whole milliseconds`:         change(func(c *ladder.Config) { c.Levels[4].Unit = 1500 * time.Microsecond }),
		`levels[4].digits: must be between 1 and 99, got 0`:  change(func(c *ladder.Config) { c.Levels[4].Digits = 0 }),
		`levels[0].digits: must be between 1 and 99`:         change(func(c *ladder.Config) { c.Levels[0].Digits = 100 }),
		`levels[0].unit: 99 × 8760h0m0s is above the longest`: change(func(c *ladder.Config) {
			c.Levels = []ladder.Level{{Name: "y", Unit: year, Digits: 99}}
		}),
		`levels[1].unit: must be 24h0m0s, (digits + 1) × unit of level "h" below, got 25h0m0s`: change(func(c *ladder.Config) { c.Levels[1].Unit = 25 * time.Hour }),
	} {
		require.ErrorContains(t, c.Validate(), want)
		_, err := ladder.New(c)
		require.ErrorContains(t, err, want)
	}
	err := change(func(c *ladder.Config) { c.Prefix = ""; c.Shards = 99 }).Validate()
	require.ErrorContains(t, err, "prefix: ")
	require.ErrorContains(t, err, "shards: ")
}

func TestMermaid(t *testing.T) {
	drawn := build(t, nil).Plan().Mermaid()
	require.True(t, strings.HasPrefix(drawn, "flowchart TD\n"))
	require.Contains(t, drawn, "lapse.wait.mo.01 … lapse.wait.mo.12<br/>12 queues, TTL 30 d to 360 d")
	require.Contains(t, drawn, `"lapse.due.expire.exact"`)
	require.Less(t, strings.Count(drawn, "\n"), 90)
	require.Equal(t, drawn, build(t, nil).Plan().Mermaid())
}
