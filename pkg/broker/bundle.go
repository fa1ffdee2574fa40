package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// contentTypeBundle is that of a bundle: one event a line (https://github.com/ndjson/ndjson-spec).
const contentTypeBundle = "application/x-ndjson"

// BundleEvents is a good size: those who take bundles share the work, and the broker has little of it.
const BundleEvents = 100

// bundleBytes is the most that a bundle has, but for one event that is larger.
const bundleBytes = 128 << 10

// Bundles are messages that carry events of ours, at most so many, in their order, each with its own body and nothing else; members tells which of
// events each has. With most 1 they are the events themselves. key gives the routing key of the bundle that an event belongs in, by the event's own;
// empty: in none. Queues of our own are fed by bundles: what a message costs the broker, it costs once for all of its events.
func Bundles(exchange string, key func(event string) string, most int, events []Message) (bundles []Message, members [][]int) {
	open := make(map[string]int, 3)
	for i := range events {
		e := &events[i]
		k := key(e.Key)
		if k == "" {
			continue
		}
		if most == 1 {
			one := *e
			one.Exchange, one.Key, one.Optional = exchange, k, false
			bundles, members = append(bundles, one), append(members, []int{i})
			continue
		}
		at, ok := open[k]
		if !ok || len(members[at]) == most || len(bundles[at].Body)+len(e.Body) > bundleBytes {
			at = len(bundles)
			open[k] = at
			bundles = append(bundles, Message{Exchange: exchange, Key: k, ID: e.ID, Body: slices.Clone(line(e.Body)), ContentType: contentTypeBundle, Mandatory: true})
			members = append(members, []int{i})
			continue
		}
		m := &bundles[at]
		m.Body = append(append(m.Body, '\n'), line(e.Body)...)
		members[at] = append(members[at], i)
	}
	return bundles, members
}

// Bundling sends events one by one, to where each says, and in bundles for queues of our own.
type Bundling struct {
	Publisher interface {
		Publish(ctx context.Context, ms []Message) []error
	}
	Exchange string
	Key      func(event string) string // see Bundles
	Most     int                       // events in a bundle
}

// Publish gives one result for each event, nil when both ways are confirmed. So an event that was sent one way alone is sent both ways again.
func (b Bundling) Publish(ctx context.Context, events []Message) []error {
	bundles, members := Bundles(b.Exchange, b.Key, b.Most, events)
	results := b.Publisher.Publish(ctx, append(events[:len(events):len(events)], bundles...))
	for i, of := range members {
		err := results[len(events)+i]
		if err == nil {
			continue
		}
		for _, at := range of {
			results[at] = worst([]error{results[at], err})
		}
	}
	return results[:len(events)]
}

// line is an event without line breaks. What is no JSON loses them: its reader refuses it, with or without.
func line(body []byte) []byte {
	if bytes.IndexByte(body, '\n') < 0 {
		return body
	}
	var b bytes.Buffer
	if json.Compact(&b, body) != nil {
		return bytes.ReplaceAll(body, []byte{'\n'}, []byte{' '})
	}
	return b.Bytes()
}

// Unbundling says where what was in a bundle goes by itself.
type Unbundling struct {
	Most  int    // events that the handler sees at once
	Park  string // the exchange for what it parks
	Again string // the exchange through which a message comes back to a queue, by the queue's name
}

// Unbundle gives a handler of bundles and of single events, made of h, which handles events. Every event of a bundle is a delivery of its own
// to h, with no key, id or headers. A bundle is done with when all of its events are; one that holds an event to be held is held, and h sees
// all of them again. After aloneFrom deliveries its events are sent back one by one: whichever takes the process down is found.
func (u Unbundling) Unbundle(h Handler) Handler {
	return func(ctx context.Context, batch []Delivery) ([]Outcome, error) {
		out := make([]Outcome, len(batch))
		var events []Delivery
		var of []int // the delivery of each event
		for i := range batch {
			d := &batch[i]
			switch {
			case d.ContentType != contentTypeBundle:
				events, of = append(events, *d), append(of, i)
			case d.DeliveryCount >= aloneFrom:
				out[i] = u.scatter(d)
			default:
				for _, e := range d.events() {
					events, of = append(events, e), append(of, i)
				}
			}
		}
		for len(events) > 0 {
			n := min(len(events), max(1, u.Most))
			some, err := h(ctx, events[:n])
			if err == nil && len(some) != n {
				err = fmt.Errorf("the handler answered %d outcomes for %d events", len(some), n)
			}
			if err != nil {
				return nil, err
			}
			for i, o := range some {
				if o.kind == kindNone { // which another event's outcome would hide
					return nil, fmt.Errorf("the handler gave no outcome for event %d of %d", i+1, n)
				}
				u.add(&out[of[i]], &batch[of[i]], &events[i], o)
			}
			events, of = events[n:], of[n:]
		}
		return out, nil
	}
}

// events are those of a bundle; of an empty one a single empty event, which its reader refuses.
func (d *Delivery) events() []Delivery {
	var events []Delivery
	for body := range bytes.SplitSeq(d.Body, []byte{'\n'}) {
		e := *d
		e.Body, e.Key, e.MessageID, e.ContentType, e.Headers = body, "", "", contentTypeEvent, nil
		events = append(events, e)
	}
	return events
}

// named gives an event of a bundle what it says of itself, as it was published with: id, key, trace.
func (d *Delivery) named() Delivery {
	var of struct {
		ID    string `json:"id"`
		Type  string `json:"type"`
		Trace string `json:"traceparent"`
	}
	e := *d
	if json.Unmarshal(d.Body, &of) != nil {
		return e // whoever looks at it sees that
	}
	e.MessageID, e.Key = of.ID, of.Type
	if at := strings.LastIndex(of.Type, ".v"); at > 0 {
		if _, err := strconv.ParseUint(of.Type[at+2:], 10, 16); err == nil {
			e.Key = of.Type[:at]
		}
	}
	if of.Trace != "" {
		e.Headers = map[string]any{HeaderTrace: of.Trace}
	}
	return e
}

// add makes the outcome of an event part of its delivery's.
func (u Unbundling) add(out *Outcome, d, event *Delivery, o Outcome) {
	if d.ContentType != contentTypeBundle {
		*out = o
		return
	}
	if o.kind == kindPark {
		named := event.named()
		o = Forward(named.Parked(u.Park, o.reason))
	}
	switch {
	case out.kind == kindNone, out.kind == kindAck && o.kind != kindAck, o.kind == kindHold && out.kind == kindForward:
		*out = o
	case out.kind == kindForward && o.kind == kindForward:
		out.messages = append(out.messages, o.messages...)
	}
}

// scatter sends the events of a bundle to where the bundle came from, each as a message of its own.
func (u Unbundling) scatter(d *Delivery) Outcome {
	var ms []Message
	for _, e := range d.events() {
		named := e.named()
		ms = append(ms, named.Again(u.Again, d.Queue))
	}
	return Forward(ms...)
}
