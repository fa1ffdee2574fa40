package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/inbox"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFromEventToInbox runs two pods on a real database, from the delivered event to the row that the app reads.
func TestFromEventToInbox(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	const coupons, users = 600, 40
	codec, err := event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	d.Store(t) // migrates
	batch := make([]broker.Delivery, coupons)
	rows := make([]string, coupons)
	ended := time.Now().Add(-time.Minute).Truncate(time.Second)
	for i := range batch {
		id, user := uint64(i+1), fmt.Sprint("u", i%users)
		rows[i] = fmt.Sprintf("(%d,1,1,'','%s',4,2,'2026-01-01','2026-02-01','2026-02-01','2026-01-01')", id, user)
		_, _, body, err := codec.Transition(coupon.Transition{
			CouponID: id, Version: 2, From: coupon.Unused, To: coupon.Expired, Cause: coupon.CauseLadder, UserID: user,
			Terms: coupon.Terms{TemplateID: 1, Revision: 1, Value: 500, Currency: "CNY"}, ExpiresAt: ended, DueAt: ended, At: ended,
		})
		require.NoError(t, err)
		batch[i] = broker.Delivery{Body: body}
	}
	d.Exec(t, `INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at) VALUES `+
		strings.Join(rows, ","))

	config := notice.DefaultConfig()
	config.Quiet, config.Batch = 500*time.Millisecond, 16
	config.NotBefore = time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339Nano)
	texts, err := notice.NewTexts("en")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for range 2 {
		s := d.Store(t)
		collector, err := notice.NewCollector(config, codec.Source(), s, zap.NewNop(), prometheus.NewRegistry())
		require.NoError(t, err)
		closer, err := notice.NewCloser(config, s, texts, []notice.Teller{inbox.New(s), notice.NewLog(s, zap.NewNop())}, zap.NewNop(),
			prometheus.NewRegistry(), time.Now)
		require.NoError(t, err)
		go func() { done <- closer.Run(ctx) }()
		for first := 0; first < coupons; first += 200 { // both pods get everything
			out, err := collector.Handle(t.Context(), batch[first:first+200])
			require.NoError(t, err)
			require.Equal(t, broker.Ack(), out[199])
		}
	}
	testenv.Wait(t, "every notice is sent", func() bool {
		return d.Int(t, `SELECT COUNT(*) FROM notice WHERE state = 'sent'`) == 2*users
	})
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.EqualValues(t, users, d.Int(t, `SELECT COUNT(*) FROM inbox`))
	require.EqualValues(t, coupons, d.Int(t, `SELECT SUM(items) FROM inbox`))

	box, _, err := d.Store(t).Inbox(t.Context(), "u7", 0, 10)
	require.NoError(t, err)
	require.Len(t, box, 1)
	require.Equal(t, "15 of your coupons have expired", texts.Choose(box[0].Texts, "en-GB").Text)
	require.Equal(t, "你有15张优惠券已过期", texts.Choose(box[0].Texts, "zh").Text)
}
