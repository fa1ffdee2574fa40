package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/broker"
)

const bundleType = "application/x-ndjson"

func eventBody(id string) []byte {
	return fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"type":"coupon.expired.v1","traceparent":"00-%s-01"}`, id, id)
}

func eventMessage(key, id string) broker.Message {
	return broker.Event("x.events", key, id, "", eventBody(id))
}

func bundleOf(ids ...string) broker.Delivery {
	var lines []string
	for _, id := range ids {
		lines = append(lines, string(eventBody(id)))
	}
	return broker.Delivery{Queue: "x.notice", Key: "both", MessageID: "bundle", ContentType: bundleType, Body: []byte(strings.Join(lines, "\n"))}
}

func singleOf(id string) broker.Delivery {
	return broker.Delivery{Queue: "x.notice", Key: "coupon.expired", MessageID: id, ContentType: "application/cloudevents+json", Body: eventBody(id)}
}

func idOf(d *broker.Delivery) string {
	var e struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(d.Body, &e) != nil {
		return "unreadable"
	}
	return e.ID
}

var unbundling = broker.Unbundling{Most: 3, Park: "x.park", Again: "x.replay"}

// by gives a handler that answers by an event's id, and what it saw.
func by(answers map[string]broker.Outcome) (h broker.Handler, seen *[]string, most *int) {
	seen, most = new([]string), new(int)
	return func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		*most = max(*most, len(batch))
		out := make([]broker.Outcome, len(batch))
		for i := range batch {
			id := idOf(&batch[i])
			*seen = append(*seen, id)
			o, ok := answers[id]
			if !ok {
				o = broker.Ack()
			}
			out[i] = o
		}
		return out, nil
	}, seen, most
}

// Every event is in one bundle of its key, in order; none is too large, and nothing of the events' own memory is written to.
func TestBundlesHoldEveryEventOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		keys := []string{"a", "b", "none"}
		events := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) broker.Message {
			body := make([]byte, rapid.SampledFrom([]int{10, 500, 60_000, 200_000}).Draw(t, "size"), 300_000)
			for i := range body {
				body[i] = 'x'
			}
			return broker.Event("x.events", rapid.SampledFrom(keys).Draw(t, "key"), rapid.StringN(1, 8, 8).Draw(t, "id"), "", body)
		}), 0, 260).Draw(t, "events")
		most := rapid.SampledFrom([]int{1, 2, 100}).Draw(t, "most")
		bundles, members := broker.Bundles("x.bundles", func(k string) string {
			if k == "none" {
				return ""
			}
			return "to " + k
		}, most, events)
		require.Len(t, members, len(bundles))
		seen := map[int]bool{}
		for i, m := range bundles {
			require.Equal(t, "x.bundles", m.Exchange)
			require.True(t, m.Mandatory && !m.Optional)
			require.LessOrEqual(t, len(members[i]), most)
			require.Equal(t, most == 1, m.ContentType != bundleType)
			require.True(t, slices.IsSorted(members[i]))
			lines := strings.Split(string(m.Body), "\n")
			require.Len(t, lines, len(members[i]))
			for j, at := range members[i] {
				require.Equal(t, "to "+events[at].Key, m.Key)
				require.Equal(t, string(events[at].Body), lines[j])
				require.False(t, seen[at])
				seen[at] = true
			}
			require.True(t, len(m.Body) <= 129<<10 || len(members[i]) == 1)
		}
		for i := range events {
			require.Equal(t, events[i].Key != "none", seen[i])
			require.NotContains(t, string(events[i].Body[:cap(events[i].Body)]), "\n")
		}
	})
}

func TestABundleKeepsEventsApart(t *testing.T) {
	t.Parallel()
	pretty := broker.Event("x.events", "k", "1", "", []byte("{\n \"id\": \"a\\nb\"\n}"))
	broken := broker.Event("x.events", "k", "2", "", []byte("no\njson"))
	bundles, _ := broker.Bundles("x.bundles", func(string) string { return "both" }, broker.BundleEvents, []broker.Message{pretty, broken, eventMessage("k", "3")})
	require.Len(t, bundles, 1)
	require.Equal(t, `{"id":"a\nb"}`+"\nno json\n"+string(eventBody("3")), string(bundles[0].Body))
}

func TestABundleIsDoneWithWhenItsEventsAre(t *testing.T) {
	t.Parallel()
	h, seen, most := by(nil)
	out, err := unbundling.Unbundle(h)(t.Context(), []broker.Delivery{bundleOf("a", "b"), singleOf("c"), bundleOf("d", "e", "f", "g")})
	require.NoError(t, err)
	require.Equal(t, []broker.Outcome{broker.Ack(), broker.Ack(), broker.Ack()}, out)
	require.Equal(t, []string{"a", "b", "c", "d", "e", "f", "g"}, *seen)
	require.Equal(t, 3, *most)

	bad := errors.New("the database is away")
	out, err = unbundling.Unbundle(func(context.Context, []broker.Delivery) ([]broker.Outcome, error) { return nil, bad })(t.Context(), []broker.Delivery{bundleOf("a")})
	require.ErrorIs(t, err, bad)
	require.Nil(t, out)
	_, err = unbundling.Unbundle(func(context.Context, []broker.Delivery) ([]broker.Outcome, error) { return nil, nil })(t.Context(), []broker.Delivery{bundleOf("a")})
	require.ErrorContains(t, err, "0 outcomes for 1 events")
	h, _, _ = by(map[string]broker.Outcome{"b": {}, "a": broker.Park("bad")})
	_, err = unbundling.Unbundle(h)(t.Context(), []broker.Delivery{bundleOf("a", "b", "c")})
	require.ErrorContains(t, err, "no outcome for event 2 of 3")
}

// What cannot be handled is set aside by itself, named as it would have been alone, and the others are done with.
func TestOneBadEventOfABundleIsParkedAlone(t *testing.T) {
	t.Parallel()
	forwarded := broker.Message{Exchange: "x.due", Key: "later", ID: "c"}
	h, _, _ := by(map[string]broker.Outcome{"b": broker.Park("no such template"), "c": broker.Forward(forwarded), "unreadable": broker.Park("no JSON")})
	bundle := bundleOf("a", "b", "c")
	bundle.Body = append(bundle.Body, "\n{"...)
	out, err := unbundling.Unbundle(h)(t.Context(), []broker.Delivery{bundle, singleOf("b")})
	require.NoError(t, err)
	alone := singleOf("b")
	alone.Headers = map[string]any{broker.HeaderTrace: "00-b-01"}
	nameless := broker.Delivery{Queue: "x.notice", ContentType: alone.ContentType, Body: []byte("{")}
	require.Equal(t, []broker.Outcome{
		broker.Forward(alone.Parked("x.park", "no such template"), forwarded, nameless.Parked("x.park", "no JSON")), broker.Park("no such template"),
	}, out)
}

// One event to be held holds its bundle, whatever became of the others: all of them are seen again.
func TestOneHeldEventHoldsItsBundle(t *testing.T) {
	t.Parallel()
	held := broker.Hold(time.Second / 2)
	for _, ids := range [][]string{{"h", "p", "a"}, {"p", "h", "a"}, {"a", "p", "h"}, {"a", "h"}} {
		h, _, _ := by(map[string]broker.Outcome{"h": held, "p": broker.Park("bad")})
		out, err := unbundling.Unbundle(h)(t.Context(), []broker.Delivery{bundleOf(ids...), bundleOf("a")})
		require.NoError(t, err)
		require.Equal(t, []broker.Outcome{held, broker.Ack()}, out, ids)
	}
}

// A bundle that came back too often is taken apart unseen: one of its events may take the process down.
func TestABundleThatComesBackIsTakenApart(t *testing.T) {
	t.Parallel()
	h, seen, _ := by(nil)
	bundle := bundleOf("a", "b")
	bundle.DeliveryCount = 3
	out, err := unbundling.Unbundle(h)(t.Context(), []broker.Delivery{bundle})
	require.NoError(t, err)
	require.Empty(t, *seen)
	var want []broker.Message
	for _, id := range []string{"a", "b"} {
		want = append(want, broker.Message{
			Exchange: "x.replay", Key: "x.notice", ID: id, Body: eventBody(id), ContentType: "application/cloudevents+json", Mandatory: true,
			Headers: map[string]any{broker.HeaderTrace: "00-" + id + "-01"},
		})
	}
	require.Equal(t, []broker.Outcome{broker.Forward(want...)}, out)
}

// Over a real broker: of a bundle one event is parked, the others are handled once, and nothing is left.
func TestABundleThroughTheBroker(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	var events []broker.Message
	for i := range 250 {
		events = append(events, eventMessage("coupon.expired", fmt.Sprint("e", i)))
	}
	bundles, _ := broker.Bundles(e.ladder.Bundles(), e.ladder.BundleKey, broker.BundleEvents, events)
	require.Len(t, bundles, 3)
	noErrors(t, p.Publish(e.ctx(), bundles))
	e.eventually("both queues have them", func() bool { return e.depth(e.ladder.Notice()) == 3 && e.depth(e.ladder.Ledger()) == 3 })
	h, seen, _ := by(map[string]broker.Outcome{"e77": broker.Park("bad")})
	u := broker.Unbundling{Most: 40, Park: e.ladder.ParkExchange(), Again: e.ladder.Replay()}
	c := broker.DefaultConsumerConfig().Bundled()
	c.Concurrency = 1
	_, stop := e.consume(e.direct, p, u.Unbundle(h), func(o *broker.ConsumerOptions) { o.Config, o.Queue = c, e.ladder.Notice() })
	e.eventually("one is set aside, the rest is done", func() bool { return e.depth(e.ladder.Parked()) == 1 && e.depth(e.ladder.Notice()) == 0 })
	stop()
	slices.Sort(*seen)
	require.Len(t, slices.Compact(*seen), 250)
}
