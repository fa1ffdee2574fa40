package broker

import (
	"io"
	"net"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/ladder"
)

// Whatever is added or held comes out in a batch exactly once, none too large,
// and what came too often alone.
func TestAssemblerGivesEveryDeliveryOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var (
			size = rapid.IntRange(1, 7).Draw(t, "size")
			a    = assembler{size: size}
			now  = time.Unix(0, 0)
			out  = make(map[uint64]int)
			n    = uint64(rapid.IntRange(0, 60).Draw(t, "n"))
			held = 0
		)
		take := func() {
			for len(a.ready) > 0 {
				batch := a.ready[0]
				a.pop()
				require.LessOrEqual(t, len(batch), size)
				require.NotEmpty(t, batch)
				for _, it := range batch {
					if it.d.DeliveryCount >= aloneFrom && it.forward == nil {
						require.Len(t, batch, 1)
					}
					require.Equal(t, batch[0].forward == nil, it.forward == nil, "fresh ones and forwards do not mix")
					if rapid.IntRange(0, 4).Draw(t, "again") == 0 {
						if rapid.Bool().Draw(t, "forward") {
							it.forward = make([]Message, 1)
						}
						a.hold([]heldItem{{it, now.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "ms")) * time.Millisecond)}})
						held++
						continue
					}
					out[it.tag]++
				}
			}
		}
		for tag := range n {
			a.add(item{tag: tag, d: Delivery{DeliveryCount: rapid.IntRange(0, 4).Draw(t, "count")}})
			if rapid.IntRange(0, 3).Draw(t, "take") == 0 {
				take()
			}
		}
		a.shut()
		take()
		for len(a.held) > 0 {
			again := a.wake(now)
			if !again.IsZero() {
				require.True(t, again.After(now))
				now = again
			}
			take()
		}
		require.Len(t, out, int(n))
		for tag, times := range out {
			require.Equal(t, 1, times, tag)
		}
	})
}

func TestExplainReadsTheBrokersText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]MismatchError{
		"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost 'v': received the value '1000' of type 'signedint' but current is the value '2000' of type 'long'": {Argument: "x-message-ttl", Want: "1000", Have: "2000"},
		"PRECONDITION_FAILED - inequivalent arg 'x-overflow' for queue 'q' in vhost '/': received none but current is the value 'reject-publish' of type 'longstr'":                       {Argument: "x-overflow", Want: "none", Have: "reject-publish"},
		"PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'q' in vhost '/': received 'topic' but current is 'fanout'":                                                           {Argument: "type", Want: "topic", Have: "fanout"},
		"PRECONDITION_FAILED - something new": {},
	} {
		var m *MismatchError
		require.ErrorAs(t, explain("queue", "q", &amqp.Error{Code: amqp.PreconditionFailed, Reason: text}), &m)
		want.Kind, want.Name, want.Text = "queue", "q", text
		require.Equal(t, want, *m)
	}
}

func TestPolicyInForce(t *testing.T) {
	t.Parallel()
	queues := []ladder.Queue{{Name: "p.wait.s.05", TTL: 5 * time.Second}, {Name: "p.due"}}
	for name, c := range map[string]struct {
		policies []policy
		bad      int
	}{
		"none":                            {nil, 0},
		"other queues":                    {[]policy{{Pattern: "^x", Definition: map[string]any{"expires": 1.0}}}, 0},
		"exchanges":                       {[]policy{{Pattern: ".*", ApplyTo: "exchanges", Definition: map[string]any{"expires": 1.0}}}, 0},
		"expires":                         {[]policy{{Pattern: ".*", Definition: map[string]any{"expires": 1.0}}}, 2},
		"max-length":                      {[]policy{{Pattern: "due$", Definition: map[string]any{"max-length": 1.0, "max-length-bytes": 2.0}}}, 2},
		"a longer ttl on a wait queue":    {[]policy{{Pattern: "wait", Definition: map[string]any{"message-ttl": 5000.0}}}, 0},
		"a shorter ttl on a wait queue":   {[]policy{{Pattern: "wait", Definition: map[string]any{"message-ttl": 4999.0}}}, 1},
		"any ttl on a queue without":      {[]policy{{Pattern: "due", Definition: map[string]any{"message-ttl": 1e12}}}, 1},
		"overridden by a higher priority": {[]policy{{Pattern: ".*", Definition: map[string]any{"expires": 1.0}}, {Pattern: ".*", Priority: 1}}, 0},
		"an unreadable pattern":           {[]policy{{Pattern: "("}}, 1},
	} {
		err := judge("policy", c.policies, queues)
		if c.bad == 0 {
			require.NoError(t, err, name)
			continue
		}
		joined, ok := err.(interface{ Unwrap() []error })
		require.True(t, ok, name)
		require.Len(t, joined.Unwrap(), c.bad, name)
	}
}

// A peer that reads nothing costs the write timeout, not for ever.
func TestWireGivesUpOnAPeerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe() // unbuffered: the first write blocks
	defer func() { require.NoError(t, theirs.Close()) }()
	w := newWire(ours, 50*time.Millisecond)
	var err error
	for err == nil {
		_, err = w.Write(make([]byte, 64<<10))
	}
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout())
	<-w.done
}

func TestWireWritesWhatIsQueuedBeforeItCloses(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	w := newWire(ours, time.Second)
	got := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(theirs)
		got <- b
	}()
	for range 1000 {
		_, err := w.Write([]byte("frame"))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.Len(t, <-got, 5000)
	_, err := w.Write([]byte("late"))
	require.ErrorIs(t, err, net.ErrClosed)
}
