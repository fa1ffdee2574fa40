package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// views is what the management API shows of the vhost.
type views struct {
	prefix    string
	exchanges map[string]exchangeView
	queues    []QueueState // of the prefix, by name
	bindings  map[ladder.Binding]bool
}

type exchangeView struct {
	Name      string         `json:"name"`
	Type      string         `json:"type"`
	Durable   bool           `json:"durable"`
	Arguments map[string]any `json:"arguments"`
	Policy    definition     `json:"effective_policy_definition"`
}

// definition is a policy's; an empty one is sent as a list.
type definition map[string]any

// UnmarshalJSON takes both forms.
func (d *definition) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '[' {
		return nil
	}
	return json.Unmarshal(text, (*map[string]any)(d))
}

type queueView struct {
	Name      string         `json:"name"`
	Type      string         `json:"type"`
	Arguments map[string]any `json:"arguments"`
	Effective definition     `json:"effective_policy_definition"`
	Policy    string         `json:"policy"`
	Operator  string         `json:"operator_policy"`
	Messages  int64          `json:"messages"`
	Ready     int64          `json:"messages_ready"`
	Unacked   int64          `json:"messages_unacknowledged"`
	Consumers int64          `json:"consumers"`
	Members   []string       `json:"members"`
	Online    []string       `json:"online"`
	Leader    string         `json:"leader"`
	Head      any            `json:"head_message_timestamp"`
}

func (v queueView) state() QueueState {
	q := QueueState{
		Name: v.Name, Type: v.Type, Args: v.Arguments, Policy: v.Effective, Messages: v.Messages, Ready: v.Ready, Unacked: v.Unacked,
		Consumers: v.Consumers, Members: v.Members, Online: v.Online, Leader: v.Leader,
	}
	if q.Type == "" {
		q.Type, _ = v.Arguments["x-queue-type"].(string)
	}
	var names []string
	if v.Policy != "" {
		names = append(names, "policy "+v.Policy)
	}
	if v.Operator != "" {
		names = append(names, "operator policy "+v.Operator)
	}
	q.PolicyOf = strings.Join(names, " and ")
	if s, ok := v.Head.(float64); ok && s > 0 {
		q.Head = time.Unix(int64(s), 0)
	}
	return q
}

// QueueStates reads the queues whose names begin with prefix and a dot, by name, from the management API.
func (c *Client) QueueStates(ctx context.Context, prefix string) ([]QueueState, error) {
	if c.cfg.ManagementURL.Reveal() == "" {
		return nil, ErrNoManagement
	}
	const size = 500
	var out []QueueState
	for page := 1; ; page++ {
		var answer struct {
			Items     []queueView `json:"items"`
			PageCount int         `json:"page_count"`
		}
		q := url.Values{
			"name": {"^" + regexp.QuoteMeta(prefix) + "\\."}, "use_regex": {"true"}, "page": {fmt.Sprint(page)}, "page_size": {fmt.Sprint(size)},
			"sort": {"name"},
		}
		if err := c.manage(ctx, "/api/queues/"+url.PathEscape(c.vhost())+"?"+q.Encode(), &answer); err != nil {
			return nil, fmt.Errorf("reading the queues of the broker: %w", err)
		}
		for _, v := range answer.Items {
			out = append(out, v.state())
		}
		if page >= answer.PageCount {
			break
		}
	}
	slices.SortFunc(out, func(a, b QueueState) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (c *Client) views(ctx context.Context, prefix string) (views, error) {
	v := views{prefix: prefix, exchanges: map[string]exchangeView{}}
	var err error
	if v.queues, err = c.QueueStates(ctx, prefix); err != nil {
		return v, err
	}
	var exchanges []exchangeView
	if err := c.manage(ctx, "/api/exchanges/"+url.PathEscape(c.vhost()), &exchanges); err != nil {
		return v, fmt.Errorf("reading the exchanges of the broker: %w", err)
	}
	for _, e := range exchanges {
		v.exchanges[e.Name] = e
	}
	v.bindings, err = c.bindings(ctx)
	return v, err
}

// runningNodes counts the cluster's nodes that run.
func (c *Client) runningNodes(ctx context.Context) (int, error) {
	var nodes []struct {
		Running bool `json:"running"`
	}
	if err := c.manage(ctx, "/api/nodes?columns=name,running", &nodes); err != nil {
		return 0, err
	}
	n := 0
	for _, node := range nodes {
		if node.Running {
			n++
		}
	}
	return n, nil
}

// Vhost is the one that the client works in.
func (c *Client) Vhost() string { return c.vhost() }

// Stuck looks again every few seconds for as long as after, and finds the queues whose dead letters did not move on
// in that time: some are held in every look, and never fewer than before. If none is held at the first look it returns
// at once. One that holds its dead letters while the next queue is merely slow is not found.
func (c *Client) Stuck(ctx context.Context, prefix string, after time.Duration) ([]Finding, error) {
	const every = 5 * time.Second // the broker's own interval
	held := map[string]int64{}
	began := time.Now()
	for look := 0; ; look++ {
		queues, err := c.QueueStates(ctx, prefix)
		if err != nil {
			return nil, err
		}
		now := map[string]int64{}
		for _, q := range queues {
			n := q.Held()
			if before, ok := held[q.Name]; n > 0 && (look == 0 || ok && n >= before) {
				now[q.Name] = n
			}
		}
		held = now
		left := after - time.Since(began)
		if len(held) == 0 || left <= 0 {
			break
		}
		if err := lifecycle.Sleep(ctx, min(every, left)); err != nil {
			return nil, err
		}
	}
	var out []Finding
	for name, n := range held {
		out = append(out, Finding{
			Kind: FindStuck, Object: "queue", Name: name,
			Detail: fmt.Sprintf("%d dead letters have not moved on for %s: has the next exchange a route, and does the next queue take messages?", n, after),
		})
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}
