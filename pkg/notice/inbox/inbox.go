// Package inbox is the in-app channel: a row in the user's inbox, in every language, written in the transaction that
// marks the notice sent. A notice is there once, whichever pods deliver it and wherever they die. A pop-up is such a row,
// too: handed out once, while the coupons live.
package inbox

import (
	"context"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
)

// Store writes the notices that are still pending into inboxes and marks them sent, in one transaction per batch; it
// gives how many it wrote.
type Store interface {
	DeliverInbox(ctx context.Context, es []coupon.InboxEntry) (int, error)
}

// Channel delivers into inboxes. Safe for concurrent use.
type Channel struct {
	store Store
	name  coupon.Channel
	batch int
	log   *zap.Logger
}

// New makes the channel of ordinary rows; batch is how many one transaction writes at most.
func New(store Store, batch int, log *zap.Logger) *Channel {
	return &Channel{store: store, name: coupon.ChannelInbox, batch: batch, log: log}
}

// NewPopup makes that of rows that are handed out once.
func NewPopup(store Store, batch int, log *zap.Logger) *Channel {
	return &Channel{store: store, name: coupon.ChannelPopup, batch: batch, log: log}
}

// Name is "inbox" or "popup".
func (c *Channel) Name() coupon.Channel { return c.name }

// Batch is how many one transaction writes.
func (c *Channel) Batch() int { return c.batch }

// AtMostOnce is false: repeats are no-ops here.
func (*Channel) AtMostOnce() bool { return false }

// Deliver writes the rows; those that are there already are settled.
func (c *Channel) Deliver(ctx context.Context, ms []notice.Message) []notice.Result {
	out := make([]notice.Result, len(ms))
	es := make([]coupon.InboxEntry, len(ms))
	for i := range ms {
		m := &ms[i]
		es[i] = coupon.InboxEntry{
			Notice: coupon.Notice{WindowID: m.Window, Channel: c.name, UserID: m.UserID, Kind: m.Kind, Items: m.Items, NotAfter: m.NotAfter},
			Texts:  m.Texts, ValidUntil: coupon.Never,
		}
		if c.name == coupon.ChannelPopup {
			es[i].ValidUntil = m.EndsAt
		}
	}
	_, err := c.store.DeliverInbox(ctx, es)
	if err != nil {
		c.log.Debug("inbox rows not written", zap.Error(err))
	}
	for i := range out {
		out[i] = notice.Result{Outcome: notice.Sent, Recorded: true}
		if err != nil {
			out[i] = notice.Result{Outcome: notice.Retry, Reason: notice.ReasonStore}
		}
	}
	return out
}
