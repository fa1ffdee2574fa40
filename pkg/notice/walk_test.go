package notice_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/inbox"
	"github.com/lapsehq/lapse/pkg/notice/policy"
	"github.com/lapsehq/lapse/pkg/notice/text"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// dead is a store of a pod that was killed: from then on none of its calls goes through.
type dead struct {
	*store.Store
	killed atomic.Bool
}

func (d *dead) SettleNotices(ctx context.Context, ch coupon.Channel, rs []coupon.NoticeResult) (int, int, error) {
	if d.killed.Load() {
		return 0, 0, coupon.ErrUnavailable
	}
	return d.Store.SettleNotices(ctx, ch, rs)
}

func (d *dead) ClaimNotices(ctx context.Context, ch coupon.Channel, lease time.Duration, limit int) ([]coupon.Notice, map[coupon.NoticeKind]int, bool, error) {
	if d.killed.Load() {
		return nil, nil, false, coupon.ErrUnavailable
	}
	return d.Store.ClaimNotices(ctx, ch, lease, limit)
}

// TestWalkWithOnePodKilled goes from delivered events to rows of the inbox, an SMS gateway and a push gateway, on a real
// database, with two pods of which the first dies when its sends have gone out and are not recorded.
func TestWalkWithOnePodKilled(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	const coupons, users = 400, 40
	codec, err := event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	d.Store(t) // migrates
	ends := time.Now().Add(23 * time.Hour).Truncate(time.Second)
	var batch []broker.Delivery
	var rows []string
	for i := range coupons {
		id, user := uint64(i+1), fmt.Sprint("u", i%users)
		rows = append(rows, fmt.Sprintf("(%d,1,1,'','%s',1,1,'2026-01-01','%[3]s','%[3]s','2026-01-01')", id, user, ends.UTC().Format(time.DateTime)))
		key, _, body := codec.Expiring(coupon.Expiring{
			CouponID: id, UserID: user, TemplateID: 1, Version: 1, ExpiresAt: ends, Offset: "-1d", NotifyAt: ends.Add(-24 * time.Hour),
			Value: 500, Currency: "CNY",
		})
		batch = append(batch, broker.Delivery{Key: key, Body: body})
	}
	d.Exec(t, `INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at) VALUES `+
		strings.Join(rows, ","))

	c := notice.DefaultConfig()
	c.Channels = []string{"inbox", "sms", "push"}
	c.Policy.Rules = []policy.Rule{{Channels: []string{"inbox", "sms", "push"}}}
	c.Policy.Quiet, c.Batch, c.Lease, c.Drain = nil, 16, 4*time.Second, time.Second
	c.Limits.SMS.Deadline, c.Limits.Push.Deadline, c.Limits.Inbox.Deadline = 2*time.Second, 2*time.Second, 2*time.Second
	rules, err := policy.New(c.Policy, c.Names())
	require.NoError(t, err)
	texts, err := text.New("en")
	require.NoError(t, err)

	doomed := &dead{Store: d.Store(t)}
	sms, push := &far{name: coupon.ChannelSMS, once: true}, &far{name: coupon.ChannelPush}
	kill := func(context.Context, notice.Message) notice.Result {
		doomed.killed.Store(true) // it went out, and nobody will record it
		return notice.Result{}
	}
	start := func(s interface {
		notice.WindowStore
		notice.CloseStore
		notice.SendStore
		inbox.Store
	}, sms, push *far,
	) (collect func(), run func() (stop func())) {
		reg := prometheus.NewRegistry()
		m := notice.NewMetrics(reg, c.Names())
		sender, err := notice.NewSender(c, notice.SenderDeps{Store: s, Policy: rules, Texts: texts, Metrics: m, Log: zap.NewNop(), Now: time.Now},
			[]notice.Channel{inbox.New(s, 100, zap.NewNop()), sms, push})
		require.NoError(t, err)
		closer, err := notice.NewCloser(c, notice.CloserDeps{Store: s, Decide: rules.Decide, Ring: sender.Ring, Metrics: m, Log: zap.NewNop()})
		require.NoError(t, err)
		collector, err := notice.NewCollector(c, notice.CollectorDeps{
			Source: codec.Source(), Store: s, Policy: rules, Log: zap.NewNop(), Registerer: reg,
		})
		require.NoError(t, err)
		return func() {
			for first := 0; first < coupons; first += 100 {
				out, err := collector.Handle(t.Context(), batch[first:first+100])
				require.NoError(t, err)
				require.Equal(t, broker.Ack(), out[99])
			}
		}, func() func() { return running(t, closer.Run, sender.Run) }
	}
	smsDoomed := &far{name: coupon.ChannelSMS, once: true, does: kill}
	pushDoomed := &far{name: coupon.ChannelPush, does: kill}
	collect, run := start(doomed, smsDoomed, pushDoomed)
	collect()
	// A coupon is used and another moved before the window closes.
	d.Exec(t, `UPDATE coupon SET status = 3, version = 2 WHERE id = 1`)
	d.Exec(t, `UPDATE coupon SET expires_at = expires_at + INTERVAL 1 DAY, version = 2 WHERE id = 2`)
	stopDoomed := run()
	testenv.Wait(t, "the first pod to be killed", doomed.killed.Load)
	stopDoomed()

	collect, run = start(d.Store(t), sms, push)
	collect() // everything comes again
	stop := run()
	testenv.Wait(t, "every notice to be settled", func() bool {
		return d.Int(t, `SELECT COUNT(*) FROM notice WHERE state IN ('sent','unknown')`) == 3*users
	})
	stop()
	require.EqualValues(t, users, d.Int(t, `SELECT COUNT(*) FROM notice_window`), "one for each user and day")
	require.EqualValues(t, users, d.Int(t, `SELECT COUNT(*) FROM inbox`))
	require.EqualValues(t, coupons-2, d.Int(t, `SELECT SUM(items) FROM inbox`))

	once := map[string]int{}
	for _, f := range []*far{smsDoomed, sms} {
		for _, m := range f.got {
			once[m.ID]++
		}
	}
	require.LessOrEqual(t, len(once), users)
	for id, n := range once {
		require.Equal(t, 1, n, "%s at most once", id)
	}
	require.EqualValues(t, len(smsDoomed.got), d.Int(t, `SELECT COUNT(*) FROM notice WHERE channel = 'sms' AND state = 'unknown'`))
	ids := map[string]bool{}
	for _, f := range []*far{pushDoomed, push} {
		for _, m := range f.got {
			ids[m.ID] = true
			require.LessOrEqual(t, m.Items, 10)
		}
	}
	require.Len(t, ids, users)
	require.LessOrEqual(t, len(pushDoomed.got)+len(push.got), users+len(pushDoomed.got), "repeated at the kill alone")
	require.EqualValues(t, users, d.Int(t, `SELECT COUNT(*) FROM notice WHERE channel = 'push' AND state = 'sent'`))
}
