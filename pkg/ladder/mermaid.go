package ladder

import (
	"fmt"
	"strings"
	"time"
)

// Mermaid draws the plan as a Mermaid flowchart: exchanges as rounded nodes,
// queues as boxes, and all queues of a level as one box that tells how many
// they are. Dotted lines are alternate exchanges; a line out of a wait box is
// its dead-lettering. Dead-lettering of work queues to the park exchange is
// left out.
func (p Plan) Mermaid() string {
	d := drawing{seen: map[string]bool{}, nodes: map[string]string{}}
	d.line("flowchart TD")
	for _, exchange := range p.Exchanges {
		d.line("  %s([%q])", d.exchange(exchange.Name), exchange.Name+"<br/>"+exchange.Type)
	}
	for _, level := range p.levels() {
		first, last := level[0], level[len(level)-1]
		label := first.Name
		if len(level) > 1 {
			label = fmt.Sprintf("%s … %s<br/>%d queues, TTL %s to %s", first.Name, last.Name, len(level), short(first.TTL), short(last.TTL))
		}
		d.line("  %s[%q]", d.level(first), label)
	}
	for _, queue := range p.Queues {
		if queue.Role != RoleWait {
			d.line("  %s[%q]", d.queue(queue), queue.Name)
		}
	}
	queues := map[string]string{}
	for _, queue := range p.Queues {
		queues[queue.Name] = d.queue(queue)
	}
	for _, binding := range p.Bindings {
		to := queues[binding.Destination]
		label := "|" + `"` + binding.Key + `"` + "|"
		if binding.ToExchange {
			to = d.exchange(binding.Destination)
		}
		if strings.HasPrefix(to, "l_") {
			label = "|digit|"
		}
		if binding.Key == "" {
			label = ""
		}
		d.line("  %s -->%s %s", d.exchange(binding.Source), label, to)
	}
	for _, queue := range p.Queues {
		if to, ok := queue.Args["x-dead-letter-exchange"].(string); ok && queue.Role == RoleWait {
			d.line("  %s -->|TTL| %s", d.queue(queue), d.exchange(to))
		}
	}
	for _, exchange := range p.Exchanges {
		if to, ok := exchange.Args["alternate-exchange"].(string); ok {
			d.line("  %s -.-> %s", d.exchange(exchange.Name), d.exchange(to))
		}
	}
	return d.out.String()
}

// levels groups the wait queues by level, in the order of the plan.
func (p Plan) levels() [][]Queue {
	var groups [][]Queue
	at := map[string]int{}
	for _, queue := range p.Queues {
		if queue.Role != RoleWait {
			continue
		}
		i, ok := at[queue.Level]
		if !ok {
			i = len(groups)
			at[queue.Level] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], queue)
	}
	return groups
}

// drawing collects lines, each once, and names nodes by number: names of
// queues are no identifiers in Mermaid.
type drawing struct {
	out   strings.Builder
	seen  map[string]bool
	nodes map[string]string
}

func (d *drawing) line(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if d.seen[line] {
		return
	}
	d.seen[line] = true
	d.out.WriteString(line + "\n")
}

func (d *drawing) node(kind, name string) string {
	id := kind + "_" + name
	if d.nodes[id] == "" {
		d.nodes[id] = fmt.Sprintf("%s_%d", kind, len(d.nodes)+1)
	}
	return d.nodes[id]
}

func (d *drawing) exchange(name string) string { return d.node("x", name) }

func (d *drawing) level(q Queue) string { return d.node("l", q.Level) }

func (d *drawing) queue(q Queue) string {
	if q.Role == RoleWait {
		return d.level(q)
	}
	return d.node("q", q.Name)
}

// short writes a TTL in its largest unit, as far as it is whole.
func short(d time.Duration) string {
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if d%unit.of == 0 {
			return fmt.Sprintf("%d %s", d/unit.of, unit.name)
		}
	}
	return d.String()
}
