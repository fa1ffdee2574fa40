package demo

import (
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/store"
)

// newTemplate makes what coupons are granted from: as many as are wanted, ending exactly when each says.
func newTemplate(ctx context.Context, s *store.Store, name string) (uint64, error) {
	return s.CreateTemplate(ctx, coupon.Template{
		Name: name, Rule: coupon.Rule{Kind: coupon.RuleAfter, After: "24h"},
		Terms: coupon.Terms{Value: 1000, Currency: "CNY", Precision: coupon.Exact},
		Actor: "lapsectl " + name,
	})
}

// grantEvent asks for coupons as an issuer does.
func grantEvent(l *ladder.Ladder, c *event.Codec, template uint64, now time.Time, asks []audit.Ask) (broker.Message, error) {
	if len(asks) == 0 {
		return broker.Message{}, errors.New("a grant event of no grants")
	}
	grants := make([]coupon.Grant, len(asks))
	for i, ask := range asks {
		grants[i] = coupon.Grant{Key: ask.Key, TemplateID: template, UserID: ask.User, BatchID: "demo", ExpiresAt: ask.End}
	}
	id := "demo-grants-" + asks[0].Key
	body, err := c.Grants(id, now, grants)
	if err != nil {
		return broker.Message{}, err
	}
	return broker.Message{Exchange: l.Issuance(), Key: event.KeyGrant, ID: id, Body: body, ContentType: event.ContentType, Mandatory: true}, nil
}

// publisher over a connection of its own, until stop, which waits for its end. It lives on when ctx ends.
func (p *place) publisher(ctx context.Context) (pub *broker.Publisher, stop func() error, err error) {
	client, err := p.client()
	if err != nil {
		return nil, nil, err
	}
	pub = client.NewPublisher()
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- pub.Run(running) }()
	return pub, func() error { cancel(); return <-ended }, nil
}

func (p *place) publish(ctx context.Context, ms ...broker.Message) error {
	publisher, stop, err := p.publisher(ctx)
	if err != nil {
		return err
	}
	defer stop() //nolint:errcheck // it ends because it is stopped
	return errors.Join(publisher.Publish(ctx, ms)...)
}
