package profile

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

// Store keeps what is known of users.
type Store interface {
	Now(ctx context.Context) (time.Time, error)
	// ApplyUserEvents takes all of them up or, after an error, some. coupon.ErrIntegrity says that one of them cannot be stored.
	ApplyUserEvents(ctx context.Context, evs []coupon.UserEvent) error
	PruneProfiles(ctx context.Context, before time.Time, limit int) (pruned int, more bool, err error)
	AddressKeys(ctx context.Context) ([]string, error)
	SealedWith(ctx context.Context, key, after string, limit int) ([]coupon.Sealed, error)
	Reseal(ctx context.Context, from, to []coupon.Sealed) (resealed int, err error)
}

// Keeper takes user events and looks after what they told. Safe for concurrent use.
type Keeper struct {
	*Book

	config  Config
	store   Store
	park    string // the exchange
	log     *zap.Logger
	metrics *metrics
	said    atomic.Bool // that addresses are dropped
	wait    func(ctx context.Context) error
}

// New makes a keeper. What cannot be read is published to the exchange park.
func New(c Config, store Store, park string, log *zap.Logger, reg prometheus.Registerer) (*Keeper, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("profile config: %w", err)
	}
	book, err := NewBook(c.Addresses)
	if err != nil {
		return nil, fmt.Errorf("profile config: %w", err)
	}
	return &Keeper{Book: book, config: c, store: store, park: park, log: log, metrics: newMetrics(reg), wait: breathe}, nil
}

// Handle answers each delivery of a batch. An error means that nothing can be done now: what was committed before it is a
// repeat when it comes again.
func (k *Keeper) Handle(ctx context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
	out := make([]broker.Outcome, len(batch))
	evs := make([]coupon.UserEvent, 0, len(batch))
	at := make([]int, 0, len(batch))
	for i := range batch {
		u, err := event.DecodeUser(batch[i].Body, batch[i].ContentType, batch[i].MessageID, batch[i].Key)
		if err != nil {
			out[i] = k.parked(typeUnknown, batch[i], err)
			continue
		}
		if u.Profile != nil {
			dropped, err := k.Seal(u.UserID, u.Profile)
			if err != nil {
				out[i] = k.parked(label(event.TypeUserProfile), batch[i], err)
				continue
			}
			if dropped {
				k.metrics.dropped.Inc()
				if !k.said.Swap(true) {
					k.log.Warn("addresses of users are not kept: there is no key to seal them with (profile.addresses); gateways are given the user's id")
				}
			}
		}
		for _, fact := range u.Unknown {
			k.metrics.unknown.WithLabelValues(fact).Inc()
		}
		evs, at = append(evs, u.UserEvent), append(at, i)
	}
	err := k.apply(ctx, evs, func(n int, err error) {
		if err != nil {
			out[at[n]] = k.parked(labelOf(&evs[n]), batch[at[n]], errors.New("cannot be stored")) // the database's words may hold a value
			return
		}
		k.metrics.events.WithLabelValues(labelOf(&evs[n]), resultDone).Inc()
		out[at[n]] = broker.Ack()
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// apply stores what can be stored. A batch that the database refuses is halved until the bad event is alone. done is told of
// each by its index.
func (k *Keeper) apply(ctx context.Context, evs []coupon.UserEvent, done func(n int, err error)) error {
	if len(evs) == 0 {
		return nil
	}
	err := k.store.ApplyUserEvents(ctx, evs)
	switch {
	case err == nil:
		for n := range evs {
			done(n, nil)
		}
		return nil
	case !errors.Is(err, coupon.ErrIntegrity):
		return fmt.Errorf("apply %d user events: %w", len(evs), err)
	case len(evs) == 1:
		done(0, err)
		return nil
	}
	half := len(evs) / 2
	if err := k.apply(ctx, evs[:half], done); err != nil {
		return err
	}
	return k.apply(ctx, evs[half:], func(n int, err error) { done(half+n, err) })
}

// parked sets a delivery aside without its content, which may be an address; of its headers the trace alone stays.
func (k *Keeper) parked(typ string, d broker.Delivery, reason error) broker.Outcome {
	k.metrics.events.WithLabelValues(typ, resultParked).Inc()
	k.log.Warn("user event parked", zap.String("type", typ))
	d.Body = fmt.Appendf(nil, `{"withheld":"what is told of users is not kept here","bytes":%d}`, len(d.Body))
	trace, ok := d.Headers[broker.HeaderTrace].(string)
	d.Headers, d.ContentType, d.Type = nil, "application/json", ""
	if ok && len(trace) <= maxTrace {
		d.Headers = map[string]any{broker.HeaderTrace: trace}
	}
	return broker.Forward(d.Parked(k.park, reason.Error()))
}

// maxTrace is more than a traceparent has.
const maxTrace = 64

func labelOf(e *coupon.UserEvent) string {
	switch {
	case e.Deleted:
		return label(event.TypeUserDeleted)
	case e.Profile != nil:
		return label(event.TypeUserProfile)
	}
	return label(event.TypeUserActivity)
}
