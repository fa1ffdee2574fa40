package notice

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Teller is the way that channels were told by before Channel. Its notices are recorded as pending before Deliver is called, and leased to this pod.
type Teller interface {
	Name() coupon.Channel
	// Deliver sends the notices and records each as sent; sent counts those that were not recorded before. After an
	// error those not recorded stay pending and come again when their lease has run out.
	Deliver(ctx context.Context, ms []coupon.NoticeMessage) (sent int, err error)
}

// SentStore records what a channel has sent, and gives how many were not recorded before.
type SentStore interface {
	NoticesSent(ctx context.Context, channel coupon.Channel, windows []uint64) (int, error)
}

// Log is the channel into the log: at info the counts of a batch in one line, at debug each notice.
type Log struct {
	store SentStore
	log   *zap.Logger
}

// NewLog makes the channel.
func NewLog(store SentStore, log *zap.Logger) *Log { return &Log{store: store, log: log} }

// Name is "log".
func (*Log) Name() coupon.Channel { return coupon.ChannelLog }

// Deliver writes the lines, then records.
func (l *Log) Deliver(ctx context.Context, ms []coupon.NoticeMessage) (int, error) {
	windows := make([]uint64, len(ms))
	items := 0
	for i := range ms {
		m := &ms[i]
		windows[i] = m.WindowID
		items += m.Items
		if ce := l.log.Check(zap.DebugLevel, "notice"); ce != nil {
			ce.Write(zap.String("kind", string(m.Kind)), zap.Uint64("window", m.WindowID), zap.String("user", m.UserID),
				zap.Int("coupons", m.Items), zap.String("text", m.Texts[fallback].Text))
		}
	}
	l.log.Info("notices", zap.Int("notices", len(ms)), zap.Int("coupons", items))
	sent, err := l.store.NoticesSent(ctx, coupon.ChannelLog, windows)
	if err != nil {
		return sent, fmt.Errorf("log channel: %w", err)
	}
	return sent, nil
}
