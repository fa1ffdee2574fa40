package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/pulse"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// sluggish is a channel whose provider takes its time before the notices are recorded.
type sluggish struct {
	notice.SentStore
	takes time.Duration
}

func (sluggish) Name() coupon.Channel { return coupon.ChannelLog }

func (s sluggish) Deliver(ctx context.Context, ms []coupon.NoticeMessage) (int, error) {
	answer := time.NewTimer(s.takes)
	defer answer.Stop()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-answer.C:
	}
	windows := make([]uint64, len(ms))
	for i := range ms {
		windows[i] = ms[i].WindowID
	}
	return s.NoticesSent(ctx, coupon.ChannelLog, windows)
}

func (c *scene) due(users int) {
	c.Helper()
	var items []coupon.NoticeItem
	for i := range users {
		items = append(items, coupon.NoticeItem{
			EventID: fmt.Sprintf("1:%d:expired", i+1), UserID: fmt.Sprint("u", i), CouponID: uint64(i + 1), Version: 2,
			ExpiresAt: time.Date(2020, 1, 2, 0, 0, 0, 0, time.UTC), Currency: "CNY",
		})
	}
	_, err := c.store.CollectNotices(c.ctx(), coupon.NoticeExpired, coupon.WindowRules{Quiet: time.Hour, MaxAge: time.Hour, MaxItems: 10}, items)
	require.NoError(c, err)
	c.db.Exec(c, `UPDATE notice_window SET due_at = '2020-01-02', opened_at = '2020-01-02', last_item_at = '2020-01-02'`)
}

func TestStatusNamesTheProvider(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	c.issued(3)
	c.due(3)
	reg := prometheus.NewRegistry()
	recorder := pulse.NewRecorder(nil, reg)
	c.store.WatchStages(recorder)
	cfg := notice.DefaultConfig()
	texts, err := notice.NewTexts(cfg.Locale)
	require.NoError(t, err)
	closer, err := notice.NewCloser(cfg, c.store, texts, []notice.Teller{sluggish{c.store, 1500 * time.Millisecond}}, zap.NewNop(), reg, time.Now)
	require.NoError(t, err)
	closer.Tell(recorder)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- closer.Run(ctx) }()
	go func() {
		ended <- pulse.NewTeller(recorder, c.store, pulse.Report{Pod: "n", Role: "notifier", Started: time.Now()}, zap.NewNop()).Run(ctx)
	}()
	testenv.Wait(t, "status to name the provider", func() bool {
		x, _ := c.status()
		return x.Bottleneck != nil && x.Bottleneck.Party == string(pulse.Provider)
	})
	x, _ := c.status()
	require.Equal(t, string(pulse.Send), x.Bottleneck.Stage)
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	rs, err := c.store.Pulses(c.ctx())
	require.NoError(t, err)
	require.Empty(t, rs, "one that stops in order takes its rows away")
}

var _ notice.SentStore = (*store.Store)(nil)

// issued makes coupons that have expired.
func (c *scene) issued(n int) {
	c.Helper()
	template := c.template("--after=1h")
	c.ok("grant", "--template", template, "--user=u", "--batch=b", fmt.Sprintf("--count=%d", n))
	_, made := c.issue()
	require.Equal(c, n, made)
	for id := range n {
		c.expire(uint64(id + 1))
	}
}
