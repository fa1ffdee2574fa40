package ladder

import (
	"fmt"
	"strings"
	"time"
)

// Kind is what a delayed message is for.
type Kind string

// The kinds of trigger, and what else waits on the ladder.
const (
	Expire Kind = "expire"
	Unlock Kind = "unlock"
	Order  Kind = "order" // an order event that was set aside; it comes back to its own queue
)

// Class separates triggers that must be on the second from those that may
// wait behind them.
type Class byte

// The classes of trigger.
const (
	Exact   Class = 'x'
	Relaxed Class = 'r'
)

// Route says how to publish a message so that it comes due after a delay.
type Route struct {
	Exchange string
	Key      string
	// Expiration is the message's own TTL on its first hop in whole
	// milliseconds; 0 = none.
	Expiration time.Duration
	// Wait is what the message will spend on the ladder: the delay asked for,
	// rounded up to the millisecond, or less if Clamped.
	Wait time.Duration
	// Clamped is set if the ladder is shorter than the delay: what is left
	// must be scheduled when the message arrives.
	Clamped bool
}

// Route finds the way for a delay; a delay of zero or less is due at once.
// The partition counts mod Partitions; with several shards it chooses the
// queue.
//
// The delay is rounded up to the base unit, and the rounding taken off the
// first hop by Expiration, so that ends on whole units leave every queue in
// the order in which they came. A clamped route is trimmed alike, which keeps
// the rest on whole units.
func (l *Ladder) Route(delay time.Duration, kind Kind, class Class, partition int) Route {
	key := Key{Kind: kind, Class: class, Partition: (partition%Partitions + Partitions) % Partitions}
	route := Route{Exchange: l.Enter()}
	if delay <= 0 {
		route.Key = key.String()
		return route
	}
	// Rounding up must not overflow: nothing in this region fits anyway.
	delay = ceil(min(delay, 1<<63-1-l.base-time.Millisecond), time.Millisecond)
	rounded := ceil(delay, l.base)
	trim := rounded - delay
	if rounded > l.max {
		rounded, route.Clamped = l.max, true
	}
	route.Wait = rounded - trim

	rest := rounded
	for i, level := range l.levels {
		digit := rest / level.Unit
		rest -= digit * level.Unit
		key.Digits[l.skip+i] = int(digit)
		if digit > 0 && trim > 0 {
			route.Expiration = digit*level.Unit - trim
			trim = 0
		}
	}
	route.Key = key.String()
	return route
}

// Slack is how far out of step publishers may be without a message being late
// for it: an eighth of the base unit.
//
// Messages of one bucket fall due in the order in which they came, as long as
// they came in the order in which their delays were computed. Publishers side
// by side do not keep to that by some tens of milliseconds. Just where one
// second's messages give way to the next one's, a message that came too late
// would stand behind one that falls due a second after it, and be a second
// late: one in thirty was, under load. So the last of a second's messages,
// those whose delay exceeds whole units by no more than Slack, are sent to fall
// due a unit early, together with those of the second before; whoever receives
// them holds them. One that comes too late then stands behind messages of its
// own second, and is in time.
func (l *Ladder) Slack() time.Duration { return l.base / 8 }

// RouteAt is the route for an instant, seen from now on the same clock: the
// time between, rounded up to the millisecond, and Margin; or a base unit less,
// see Slack. The receiver holds what comes early.
func (l *Ladder) RouteAt(now, at time.Time, kind Kind, class Class, partition int) Route {
	left := at.Sub(now)
	if left > MaxTTL*20 { // also where Sub saturates; adding would overflow
		return l.Route(left, kind, class, partition)
	}
	delay := ceil(left, time.Millisecond) + Margin
	if over := delay % l.base; over > 0 && over <= l.Slack() {
		delay -= l.base
	}
	return l.Route(delay, kind, class, partition)
}

// ceil rounds up to a multiple of unit, towards zero if d is negative.
func ceil(d, unit time.Duration) time.Duration {
	if d <= 0 {
		return d - d%unit
	}
	return (d + unit - 1) / unit * unit
}

// Key is a routing key in parts: 03.07.12.59.30.expire.x.07.
type Key struct {
	// Digits of months, days, hours, minutes, seconds. A ladder of fewer
	// levels uses the last ones.
	Digits    [digitWords]int
	Kind      Kind
	Class     Class
	Partition int
}

// String is the routing key.
func (k Key) String() string {
	var buf [48]byte
	b := buf[:0]
	for _, digit := range k.Digits {
		b = append(appendTwo(b, digit), '.')
	}
	b = append(b, k.Kind...)
	b = append(b, '.', byte(k.Class), '.')
	return string(appendTwo(b, k.Partition))
}

func appendTwo(b []byte, n int) []byte {
	return append(b, '0'+byte(n/10), '0'+byte(n%10))
}

// ParseKey reads a routing key of the ladder; it takes exactly what String
// writes.
func ParseKey(s string) (Key, error) {
	words := strings.Split(s, ".")
	if len(words) != digitWords+3 {
		return Key{}, fmt.Errorf("routing key %q: want %d words, got %d", s, digitWords+3, len(words))
	}
	var k Key
	for i := range k.Digits {
		digit, ok := twoDigits(words[i])
		if !ok {
			return Key{}, fmt.Errorf("routing key %q: word %d must be two digits, got %q", s, i+1, words[i])
		}
		k.Digits[i] = digit
	}
	switch kind := Kind(words[digitWords]); kind {
	case Expire, Unlock, Order:
		k.Kind = kind
	default:
		return Key{}, fmt.Errorf("routing key %q: unknown kind %q", s, kind)
	}
	switch class := words[digitWords+1]; class {
	case string(Exact), string(Relaxed):
		k.Class = Class(class[0])
	default:
		return Key{}, fmt.Errorf("routing key %q: unknown class %q", s, class)
	}
	partition, ok := twoDigits(words[digitWords+2])
	if !ok || partition >= Partitions {
		return Key{}, fmt.Errorf("routing key %q: partition must be 00 to %d, got %q", s, Partitions-1, words[digitWords+2])
	}
	k.Partition = partition
	return k, nil
}

func twoDigits(s string) (int, bool) {
	if len(s) != 2 || s[0] < '0' || s[0] > '9' || s[1] < '0' || s[1] > '9' {
		return 0, false
	}
	return int(s[0]-'0')*10 + int(s[1]-'0'), true
}

// Delay is what the digits of a key add up to on this ladder, without a trim.
// It fails for a digit that no declared queue stands for.
func (l *Ladder) Delay(k Key) (time.Duration, error) {
	var sum time.Duration
	for i, digit := range k.Digits {
		if digit == 0 {
			continue
		}
		if i < l.skip {
			return 0, fmt.Errorf("routing key %s: digit %d belongs to no declared level", k, i+1)
		}
		level := l.levels[i-l.skip]
		if digit < 0 || digit > level.Digits {
			return 0, fmt.Errorf("routing key %s: level %q has no digit %d", k, level.Name, digit)
		}
		sum += time.Duration(digit) * level.Unit
	}
	return sum, nil
}
