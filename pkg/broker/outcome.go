package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
)

const (
	// MaxHold is the longest that Hold keeps a delivery.
	MaxHold = time.Second

	// aloneFrom deliveries on, a message comes in a batch of its own: one that
	// takes the process down is found, and does not take 499 others with it.
	aloneFrom = 3
)

// Handler decides over a batch: one Outcome for each delivery, in their order.
//
// An error means that nothing could be done at all (the database is away). The
// consumer then stops, once, puts everything back, and goes on when
// ConsumerOptions.Ready answers nil; no attempt is counted. ctx ends only if a
// stopping consumer runs out of time.
type Handler func(ctx context.Context, batch []Delivery) ([]Outcome, error)

type outcomeKind byte

const (
	kindNone outcomeKind = iota
	kindAck
	kindForward
	kindPark
	kindHold
)

// Outcome is what becomes of one delivery.
type Outcome struct {
	kind     outcomeKind
	messages []Message
	reason   string
	hold     time.Duration
}

// Ack says that the delivery is done with.
func Ack() Outcome { return Outcome{kind: kindAck} }

// Forward publishes ms, waits for their confirms, then acks. If one of them cannot be
// published, that is tried again for a while, with all of them; then the delivery is put back.
func Forward(ms ...Message) Outcome { return Outcome{kind: kindForward, messages: ms} }

// Hold presents the delivery to the handler again after d (at most MaxHold).
// It stays unsettled meanwhile.
func Hold(d time.Duration) Outcome { return Outcome{kind: kindHold, hold: min(max(d, 0), MaxHold)} }

// Park sets the delivery aside for a person: Forward to
// ConsumerOptions.ParkExchange, with the reason and the queue in headers.
func Park(reason string) Outcome { return Outcome{kind: kindPark, reason: reason} }

const maxReason = 1000 // bytes of a reason header

// Parked is the message that Park publishes. Headers that would leave no room for ours are left out.
func (d Delivery) Parked(exchange, reason string) Message {
	m := d.Again(exchange, d.Key)
	m.Headers = make(map[string]any, len(d.Headers)+2)
	if sizeOf(d.Headers) <= maxHeaders/2 {
		maps.Copy(m.Headers, d.Headers)
	} else {
		reason = "(its headers were too large to keep) " + reason
	}
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	m.Headers[HeaderReason], m.Headers[HeaderOrigin] = reason, d.Queue
	return m
}

// ConsumerConfig is the part of a consumer that is configuration.
type ConsumerConfig struct {
	// Prefetch is how many deliveries may be unsettled. At least batch.
	// Default 4000: what is held counts, too.
	Prefetch int `koanf:"prefetch"`
	// Batch is how many deliveries the handler gets at most at once. Default 500.
	Batch int `koanf:"batch"`
	// Linger is how long the first delivery of a batch waits for others.
	// Default 10ms.
	Linger time.Duration `koanf:"linger"`
	// Concurrency is how many batches are handled side by side. Default 2.
	Concurrency int `koanf:"concurrency"`
}

// DefaultConsumerConfig suits small messages handled in database batches.
func DefaultConsumerConfig() ConsumerConfig {
	return ConsumerConfig{Prefetch: 4000, Batch: 500, Linger: 10 * time.Millisecond, Concurrency: 2}
}

// bundledPart: deliveries that may be bundles are taken by this part of what is configured, since each may hold a hundred events.
const bundledPart = 20

// Bundled is c for a queue of bundles, where c counts events.
func (c ConsumerConfig) Bundled() ConsumerConfig {
	c.Batch = max(1, c.Batch/bundledPart)
	c.Prefetch = max(c.Batch, c.Prefetch/bundledPart)
	return c
}

// Validate reports everything that is wrong, each error starting with the
// field's name.
func (c ConsumerConfig) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Batch < 1 || c.Batch > 10_000 {
		bad("batch: must be between 1 and 10000, got %d", c.Batch)
	}
	if c.Prefetch < c.Batch || c.Prefetch > 65_535 {
		bad("prefetch: must be between batch (%d) and 65535, got %d", c.Batch, c.Prefetch)
	}
	if c.Linger < 0 || c.Linger > 10*time.Second {
		bad("linger: must be between 0s and 10s, got %s", c.Linger)
	}
	if c.Concurrency < 1 || c.Concurrency > 64 {
		bad("concurrency: must be between 1 and 64, got %d", c.Concurrency)
	}
	return errors.Join(errs...)
}
