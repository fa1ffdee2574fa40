package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/inbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type shelf struct {
	got []coupon.InboxEntry
	err error
}

func (s *shelf) DeliverInbox(_ context.Context, es []coupon.InboxEntry) (int, error) {
	s.got = append(s.got, es...)
	return len(es), s.err
}

func TestRowsAreWrittenAndRecordedAtOnce(t *testing.T) {
	t.Parallel()
	ends := time.Now().Add(time.Hour)
	ms := []notice.Message{
		{ID: "1-inbox", Window: 1, UserID: "u", Kind: coupon.NoticeExpiring, Items: 2, EndsAt: ends, NotAfter: ends, Texts: map[string]coupon.NoticeText{"en": {Text: "x"}}},
		{ID: "2-inbox", Window: 2, UserID: "v", Kind: coupon.NoticeExpired, Items: 1, EndsAt: ends, NotAfter: coupon.Never},
	}
	for _, x := range []struct {
		name  coupon.Channel
		make  func(inbox.Store, int, *zap.Logger) *inbox.Channel
		until time.Time
	}{{coupon.ChannelInbox, inbox.New, coupon.Never}, {coupon.ChannelPopup, inbox.NewPopup, ends}} {
		s := &shelf{}
		c := x.make(s, 100, zap.NewNop())
		require.Equal(t, x.name, c.Name())
		require.Equal(t, 100, c.Batch())
		require.False(t, c.AtMostOnce())
		require.Equal(t, []notice.Result{{Recorded: true}, {Recorded: true}}, c.Deliver(t.Context(), ms))
		require.Equal(t, coupon.InboxEntry{
			Notice: coupon.Notice{WindowID: 1, Channel: x.name, UserID: "u", Kind: coupon.NoticeExpiring, Items: 2, NotAfter: ends},
			Texts:  ms[0].Texts, ValidUntil: x.until,
		}, s.got[0])
		s.err = errors.New("away")
		for _, r := range c.Deliver(t.Context(), ms) {
			require.Equal(t, notice.Result{Outcome: notice.Retry, Reason: notice.ReasonStore}, r)
		}
	}
}
