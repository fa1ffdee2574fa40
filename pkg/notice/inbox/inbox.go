// Package inbox is the in-app channel: a row in the user's inbox, in every language, written in the transaction that
// marks the notice sent. A notice is there once, whichever pods deliver it and wherever they die.
package inbox

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Store writes the notices that are still pending into inboxes and marks them sent, in one transaction per batch; it
// gives how many it wrote.
type Store interface {
	DeliverInbox(ctx context.Context, ms []coupon.NoticeMessage) (int, error)
}

// Channel delivers into inboxes. Safe for concurrent use.
type Channel struct {
	store Store
}

// New makes the channel.
func New(store Store) *Channel { return &Channel{store: store} }

// Name is "inbox".
func (*Channel) Name() coupon.Channel { return coupon.ChannelInbox }

// Deliver writes the rows; it gives how many were not there before.
func (c *Channel) Deliver(ctx context.Context, ms []coupon.NoticeMessage) (int, error) {
	n, err := c.store.DeliverInbox(ctx, ms)
	if err != nil {
		return n, fmt.Errorf("inbox channel: %w", err)
	}
	return n, nil
}
