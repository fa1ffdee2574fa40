package broker

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever is settled in whatever order, the broker is told of each delivery once and of none before it is settled: judged as a
// broker judges frames, which knows what it has delivered and what it was told.
func TestAcksTellOfEveryDeliveryOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var (
			a       acks
			n       = rapid.IntRange(1, 200).Draw(t, "n")
			order   = rapid.Permutation(tagsUpTo(n)).Draw(t, "order")
			done    = make(map[uint64]string)
			unacked = make(map[uint64]bool)
			counted = make(map[string]int)
		)
		for _, tag := range order {
			unacked[tag] = true
		}
		hear := func(frames ...ackFrame) {
			for _, f := range frames {
				require.True(t, unacked[f.tag], "a frame for tag %d, which the broker does not know (any more)", f.tag)
				sum := 0
				for outcome, k := range f.outcomes {
					counted[outcome] += k
					sum += k
				}
				for tag := range unacked {
					if tag == f.tag || f.multiple && tag < f.tag {
						require.NotEmpty(t, done[tag], "tag %d is told of before it is settled", tag)
						delete(unacked, tag)
						sum--
					}
				}
				require.Zero(t, sum, "the frame counts what it settles")
			}
		}
		for len(order) > 0 {
			size := min(len(order), rapid.IntRange(1, 30).Draw(t, "size"))
			batch := order[:size]
			order = order[size:]
			outcome := rapid.SampledFrom([]string{"ack", "forward", "requeue"}).Draw(t, "outcome")
			told := outcome == "requeue"
			for _, tag := range batch {
				done[tag] = outcome
				if told {
					delete(unacked, tag) // by a basic.nack of its own
				}
			}
			a.settle(outcome, batch, told)
			if f, ok := a.front(); ok {
				hear(f)
			}
			if rapid.IntRange(0, 5).Draw(t, "rest") == 0 {
				hear(a.rest()...)
			}
		}
		require.Empty(t, unacked, "everything is settled, so nothing waits")
		require.Zero(t, a.waiting)
		require.Empty(t, a.above)
		require.Equal(t, uint64(n), a.floor)
		for _, outcome := range done {
			if outcome != "requeue" {
				counted[outcome]--
			}
		}
		for outcome, k := range counted {
			require.Zero(t, k, outcome)
		}
	})
}

// When a channel ends, what is settled is told of, and what is not goes back or stays.
func TestAcksAtTheEndTellOfWhatIsSettledAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var (
			a       acks
			n       = rapid.IntRange(1, 60).Draw(t, "n")
			fate    = rapid.SliceOfN(rapid.SampledFrom([]string{"", "ack", "requeue"}), n, n).Draw(t, "fate")
			unacked = make(map[uint64]bool)
			acked   = make(map[uint64]bool)
			stretch = 0
		)
		for i, outcome := range fate {
			tag := uint64(i) + 1
			if outcome != "requeue" {
				unacked[tag] = true
			}
			if outcome != "" {
				a.settle(outcome, []uint64{tag}, outcome == "requeue")
			}
			if i == 0 || fate[i-1] != outcome {
				stretch++
			}
		}
		frames := a.last()
		require.LessOrEqual(t, len(frames), stretch)
		for _, f := range frames {
			require.True(t, f.multiple)
			require.True(t, unacked[f.tag], "a frame for tag %d, which the broker does not know (any more)", f.tag)
			for tag := range unacked {
				if tag <= f.tag {
					delete(unacked, tag)
					acked[tag] = !f.back
				}
			}
		}
		for i, outcome := range fate {
			require.Equal(t, outcome == "ack", acked[uint64(i)+1], "tag %d: %q", i+1, outcome)
		}
	})
}

// Batches in order, or two out of order, are one frame each or one for both.
func TestAcksOfBatchesAreOneFrame(t *testing.T) {
	t.Parallel()
	var a acks
	a.settle("ack", []uint64{4, 5, 6}, false)
	_, ok := a.front()
	require.False(t, ok, "1 to 3 are not settled")
	require.Equal(t, 3, a.waiting)
	a.settle("ack", []uint64{3, 1, 2}, false)
	f, ok := a.front()
	require.True(t, ok)
	require.Equal(t, ackFrame{tag: 6, multiple: true, outcomes: map[string]int{"ack": 6}}, f)
	a.settle("park", []uint64{8}, false)
	require.Equal(t, []ackFrame{{tag: 8, outcomes: map[string]int{"park": 1}}}, a.rest())
	require.Empty(t, a.rest())
	a.settle("ack", []uint64{7}, false)
	f, ok = a.front()
	require.True(t, ok)
	require.Equal(t, ackFrame{tag: 7, multiple: true, outcomes: map[string]int{"ack": 1}}, f)
	_, ok = a.front()
	require.False(t, ok)
}

func tagsUpTo(n int) []uint64 {
	tags := make([]uint64, n)
	for i := range tags {
		tags[i] = uint64(i) + 1
	}
	return tags
}
