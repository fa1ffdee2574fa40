package notice

import (
	"context"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Log is the channel into the log: at info the counts of a batch in one line, at debug each notice, without its user.
type Log struct {
	batch int
	log   *zap.Logger
}

// NewLog makes the channel; a line tells of at most batch notices.
func NewLog(batch int, log *zap.Logger) *Log { return &Log{batch: batch, log: log} }

// Name is "log".
func (*Log) Name() coupon.Channel { return coupon.ChannelLog }

// Batch is how many one line tells of.
func (l *Log) Batch() int { return l.batch }

// AtMostOnce is false: a line may be there twice.
func (*Log) AtMostOnce() bool { return false }

// Deliver writes the lines.
func (l *Log) Deliver(_ context.Context, ms []Message) []Result {
	items := 0
	for i := range ms {
		items += ms[i].Items
		if ce := l.log.Check(zap.DebugLevel, "notice"); ce != nil {
			ce.Write(zap.String("kind", string(ms[i].Kind)), zap.Uint64("window", ms[i].Window), zap.Int("coupons", ms[i].Items),
				zap.String("text", ms[i].Text.Text))
		}
	}
	l.log.Info("notices", zap.Int("notices", len(ms)), zap.Int("coupons", items))
	return make([]Result, len(ms))
}
