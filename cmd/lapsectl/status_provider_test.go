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
	"github.com/lapsehq/lapse/pkg/notice/policy"
	"github.com/lapsehq/lapse/pkg/notice/text"
	"github.com/lapsehq/lapse/pkg/pulse"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// sluggish is a channel whose provider takes its time.
type sluggish struct{ takes time.Duration }

func (sluggish) Name() coupon.Channel { return coupon.ChannelLog }
func (sluggish) Batch() int           { return 1 }
func (sluggish) AtMostOnce() bool     { return false }

func (s sluggish) Deliver(ctx context.Context, ms []notice.Message) []notice.Result {
	answer := time.NewTimer(s.takes)
	defer answer.Stop()
	results := make([]notice.Result, len(ms))
	select {
	case <-ctx.Done():
		results[0] = notice.Result{Outcome: notice.Retry, Reason: "cut"}
	case <-answer.C:
	}
	return results
}

func (c *scene) due(users int) {
	c.Helper()
	var items []coupon.NoticeItem
	for i := range users {
		items = append(items, coupon.NoticeItem{
			EventID: fmt.Sprintf("1:%d:expired", i+1), Kind: coupon.NoticeExpired, UserID: fmt.Sprint("u", i), CouponID: uint64(i + 1), Version: 2,
			ExpiresAt: time.Date(2020, 1, 2, 0, 0, 0, 0, time.UTC), Currency: "CNY",
		})
	}
	_, err := c.store.CollectNotices(c.ctx(), coupon.WindowRules{Quiet: time.Hour, MaxAge: time.Hour, MaxItems: 10}, items)
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
	cfg.Channels = []string{"log"}
	rules, err := policy.New(cfg.Policy, cfg.Names())
	require.NoError(t, err)
	texts, err := text.New(cfg.Locale)
	require.NoError(t, err)
	metrics := notice.NewMetrics(reg, cfg.Names())
	sender, err := notice.NewSender(cfg, notice.SenderDeps{
		Store: c.store, Policy: rules, Texts: texts, Metrics: metrics, Pulse: recorder, Log: zap.NewNop(), Now: time.Now,
	}, []notice.Channel{sluggish{1500 * time.Millisecond}})
	require.NoError(t, err)
	// They ended long ago: told all the same.
	toLog := func(now time.Time, _ *coupon.Closed) coupon.Decided {
		return coupon.Decided{Notices: []coupon.PlannedNotice{{Channel: coupon.ChannelLog, State: coupon.NoticePending, SendAt: now, NotAfter: coupon.Never}}}
	}
	closer, err := notice.NewCloser(cfg, notice.CloserDeps{Store: c.store, Decide: toLog, Ring: sender.Ring, Metrics: metrics, Log: zap.NewNop()})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 3)
	go func() { ended <- closer.Run(ctx) }()
	go func() { ended <- sender.Run(ctx) }()
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
	for range cap(ended) {
		require.NoError(t, <-ended)
	}
	rs, err := c.store.Pulses(c.ctx())
	require.NoError(t, err)
	require.Empty(t, rs, "one that stops in order takes its rows away")
}

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
