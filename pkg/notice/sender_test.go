package notice_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/inbox"
)

// metric reads one series.
func metric(t testing.TB, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			has := 0
			for i := 0; i < len(labels); i += 2 {
				for _, l := range m.GetLabel() {
					if l.GetName() == labels[i] && l.GetValue() == labels[i+1] {
						has += 2
					}
				}
			}
			if has == len(labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	require.Failf(t, "no such series", "%s %v", name, labels)
	return 0
}

func never(c *notice.Config) { c.Policy.Quiet = nil }

func notices(b *book, ch coupon.Channel, n int) {
	for id := range uint64(n) {
		b.put(coupon.Notice{WindowID: id + 1, Channel: ch, UserID: fmt.Sprint("u", id)})
	}
}

func TestAHangingProviderStopsNothingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		sms, push := &far{name: coupon.ChannelSMS, once: true, does: hangs}, &far{name: coupon.ChannelPush}
		p := newPod(t, b, zap.NewNop(), never, sms, push, inbox.New(b, 100, zap.NewNop()))
		notices(b, coupon.ChannelSMS, 200)
		notices(b, coupon.ChannelPush, 200)
		notices(b, coupon.ChannelInbox, 200)
		b.open(expiredWindow(1000), time.Now().Add(5*time.Second))
		stop := running(t, p.closer.Run, p.sender.Run)
		pass(9 * time.Second)
		require.Equal(t, 200, b.count(coupon.ChannelPush, coupon.NoticeSent))
		require.Equal(t, 201, b.count(coupon.ChannelInbox, coupon.NoticeSent), "and windows are closed")
		begun := sms.calls()
		require.LessOrEqual(t, begun, 16)
		require.Zero(t, b.count(coupon.ChannelSMS, coupon.NoticeSent))
		stop()
		require.Equal(t, begun, b.count(coupon.ChannelSMS, coupon.NoticeUnknown), "cut off by the stop: recorded, never sent again")
		require.Equal(t, 200-begun, b.count(coupon.ChannelSMS, coupon.NoticePending))
	})
}

func TestTheCircuitOpensAndTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		b := newBook()
		down := true
		push := &far{name: coupon.ChannelPush}
		push.does = func(context.Context, notice.Message) notice.Result {
			push.mu.Lock()
			defer push.mu.Unlock()
			if down {
				return notice.Result{Outcome: notice.Retry, Reason: "http_500"}
			}
			return notice.Result{Ref: "r1"}
		}
		p := newPod(t, b, zap.New(core), never, push)
		notices(b, coupon.ChannelPush, 100)
		stop := running(t, p.sender.Run)
		pass(time.Second)
		first := push.calls()
		require.LessOrEqual(t, first, 16, "open after the first failures")
		require.InDelta(t, 0, metric(t, p.reg, "lapse_provider_up", "channel", "push"), 0)
		claims := b.claimed(coupon.ChannelPush)
		pass(10 * time.Second)
		require.Equal(t, first, push.calls())
		require.Equal(t, claims, b.claimed(coupon.ChannelPush), "nothing is claimed while it is open")
		pass(50 * time.Second)
		require.LessOrEqual(t, push.calls(), first+5, "one trial at a time")
		require.Greater(t, push.calls(), first)
		push.mu.Lock()
		down = false
		push.mu.Unlock()
		pass(time.Minute)
		require.Equal(t, 100, b.count(coupon.ChannelPush, coupon.NoticeSent), "nothing lost")
		require.Equal(t, "r1", b.get(1, coupon.ChannelPush).ref)
		require.InDelta(t, 1, metric(t, p.reg, "lapse_provider_up", "channel", "push"), 0)
		stop()
		require.LessOrEqual(t, logs.FilterMessage("notices: the channel fails").Len(), 2, "once, then once a minute")
		require.Equal(t, 1, logs.FilterMessage("notices: the channel works again").Len())
		for _, e := range logs.All() {
			require.NotContains(t, fmt.Sprint(e.Message, e.ContextMap()), "token-", "no addresses")
		}
	})
}

func TestThrottledHoldsTheChannel(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ wrong, hold time.Duration }{
		{0, time.Minute}, {0, 3 * time.Hour}, {5 * time.Hour, time.Minute}, {-5 * time.Hour, time.Minute},
	} {
		t.Run(fmt.Sprintf("%s, the clock wrong by %s", x.hold, x.wrong), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { throttledFor(t, x.wrong, x.hold) })
		})
	}
}

func throttledFor(t *testing.T, wrong, hold time.Duration) {
	t.Helper()
	b := newBook()
	b.wrong = wrong
	start := time.Now()
	push := &far{name: coupon.ChannelPush}
	push.does = func(context.Context, notice.Message) notice.Result {
		if time.Since(start) < hold {
			return notice.Result{Outcome: notice.Throttled, Until: start.Add(wrong + hold), Reason: "http_429"}
		}
		return notice.Result{}
	}
	p := newPod(t, b, zap.NewNop(), never, push)
	notices(b, coupon.ChannelPush, 100)
	stop := running(t, p.sender.Run)
	pass(hold - time.Second)
	first := push.calls()
	require.LessOrEqual(t, first, 16)
	require.WithinDuration(t, start.Add(hold), b.get(1, coupon.ChannelPush).tryAt, time.Second, "by the database's clock")
	require.InDelta(t, 1, metric(t, p.reg, "lapse_provider_up", "channel", "push"), 0, "it answers")
	pass(20 * time.Second)
	require.Equal(t, 100, b.count(coupon.ChannelPush, coupon.NoticeSent))
	require.Equal(t, first+100, push.calls())
	stop()
}

func TestRetriesBackOffUntilItIsOfNoUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		push := &far{name: coupon.ChannelPush, does: func(context.Context, notice.Message) notice.Result {
			return notice.Result{Outcome: notice.Retry, Reason: "http_503"}
		}}
		p := newPod(t, b, zap.NewNop(), func(c *notice.Config) {
			never(c)
			c.Limits.Push.Trip = 1000
		}, push)
		b.put(coupon.Notice{WindowID: 1, Channel: coupon.ChannelPush, UserID: "u", NotAfter: time.Now().Add(30 * time.Minute)})
		stop := running(t, p.sender.Run)
		pass(time.Hour)
		stop()
		r := b.get(1, coupon.ChannelPush)
		require.Equal(t, coupon.NoticeSuppressed, r.state)
		require.Equal(t, coupon.ReasonTooLate, r.reason)
		require.InDelta(t, 1, metric(t, p.reg, "lapse_notices_suppressed_total", "reason", coupon.ReasonTooLate), 0)
		require.Less(t, push.calls(), 14)
		var gaps []time.Duration
		for i := 1; i < len(push.at); i++ {
			gaps = append(gaps, push.at[i].Sub(push.at[i-1]))
		}
		for i, gap := range gaps {
			want := min(5*time.Second<<i, 10*time.Minute)
			require.GreaterOrEqual(t, gap, want/2)
			require.LessOrEqual(t, gap, want+2*time.Second)
		}
		for _, m := range push.got {
			require.Equal(t, "1-push", m.ID, "the same id on every try")
		}
	})
}

func TestWhatMayHaveGoneOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		answered := 0
		does := func(context.Context, notice.Message) notice.Result {
			if answered++; answered <= 2 {
				return notice.Result{Outcome: notice.Unknown, Reason: "cut"}
			}
			return notice.Result{}
		}
		sms := &far{name: coupon.ChannelSMS, once: true, does: does}
		push := &far{name: coupon.ChannelPush, does: does}
		p := newPod(t, b, zap.NewNop(), never, sms, push)
		b.put(coupon.Notice{WindowID: 1, Channel: coupon.ChannelSMS, UserID: "u"})
		stop := running(t, p.sender.Run)
		pass(time.Minute)
		b.put(coupon.Notice{WindowID: 2, Channel: coupon.ChannelPush, UserID: "u"})
		pass(time.Minute)
		stop()
		require.Equal(t, coupon.NoticeUnknown, b.get(1, coupon.ChannelSMS).state)
		require.Equal(t, 1, sms.calls(), "an SMS is not repeated")
		require.Equal(t, coupon.NoticeSent, b.get(2, coupon.ChannelPush).state)
		require.Equal(t, []string{"2-push", "2-push"}, []string{push.got[0].ID, push.got[1].ID}, "others are, with the same id")
	})
}

func TestTheRateIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		push := &far{name: coupon.ChannelPush, does: func(context.Context, notice.Message) notice.Result {
			pass(50 * time.Millisecond)
			return notice.Result{}
		}}
		p := newPod(t, b, zap.NewNop(), func(c *notice.Config) {
			never(c)
			c.Limits.Push.Rate = 30
		}, push)
		notices(b, coupon.ChannelPush, 3000)
		stop := running(t, p.sender.Run)
		pass(time.Minute)
		stop()
		require.InDelta(t, 30*60, push.calls(), 30*60*0.05)
		for i := 40; i < len(push.at); i++ {
			require.GreaterOrEqual(t, push.at[i].Sub(push.at[i-40]), time.Second, "no more than 40 in a second")
		}
	})
}

func TestNothingWaitsInMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		push := &far{name: coupon.ChannelPush, does: func(context.Context, notice.Message) notice.Result {
			pass(time.Second)
			return notice.Result{}
		}}
		p := newPod(t, b, zap.NewNop(), func(c *notice.Config) {
			never(c)
			c.Limits.Push.Rate = 0
		}, push)
		notices(b, coupon.ChannelPush, 2000)
		stop := running(t, p.sender.Run)
		pass(60 * time.Second)
		stop()
		require.Equal(t, 16, push.most, "as many as may be sent at a time")
		require.LessOrEqual(t, b.most, 16, "and none claimed beyond them, whatever the backlog")
		require.GreaterOrEqual(t, push.calls(), 16*55)
		require.Equal(t, push.calls(), b.count(coupon.ChannelPush, coupon.NoticeSent))
	})
}

func TestWhatIsBegunIsFinished(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		slow time.Duration
		sent int
	}{{"within the bound", 2 * time.Second, 1}, {"beyond it", 8 * time.Second, 0}} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBook()
				push := &far{name: coupon.ChannelPush, does: func(ctx context.Context, _ notice.Message) notice.Result {
					select {
					case <-ctx.Done():
						return notice.Result{Outcome: notice.Unknown, Reason: "cut"}
					case <-time.After(x.slow):
						return notice.Result{}
					}
				}}
				p := newPod(t, b, zap.NewNop(), never, push)
				notices(b, coupon.ChannelPush, 1)
				stop := running(t, p.sender.Run)
				synctest.Wait()
				stop()
				require.Equal(t, x.sent, b.count(coupon.ChannelPush, coupon.NoticeSent))
				require.Equal(t, 1-x.sent, b.count(coupon.ChannelPush, coupon.NoticePending), "another pod takes it up, with the same id")
				require.InDelta(t, 1, metric(t, p.reg, "lapse_provider_up", "channel", "push"), 0)
			})
		})
	}
}

func TestASlowDatabaseSendsNothingThatAnotherMayHave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		b.slow = 25 * time.Second
		push := &far{name: coupon.ChannelPush}
		p := newPod(t, b, zap.NewNop(), never, push)
		notices(b, coupon.ChannelPush, 1)
		stop := running(t, p.sender.Run)
		pass(26 * time.Second)
		require.Zero(t, push.calls())
		b.mu.Lock()
		b.slow = 0
		b.mu.Unlock()
		pass(time.Minute)
		stop()
		require.Equal(t, 1, push.calls())
		require.Equal(t, 1, b.count(coupon.ChannelPush, coupon.NoticeSent))
	})
}

func TestRecordingIsRepeatedUntilItWorks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		b := newBook()
		away := true
		b.fail = func(call string) error {
			if away && call == "settle" {
				return coupon.ErrUnavailable
			}
			return nil
		}
		push := &far{name: coupon.ChannelPush}
		p := newPod(t, b, zap.New(core), never, push)
		notices(b, coupon.ChannelPush, 40)
		stop := running(t, p.sender.Run)
		pass(20 * time.Second)
		sent := push.calls()
		require.LessOrEqual(t, sent, 16, "no more than may be in flight")
		b.mu.Lock()
		away = false
		b.mu.Unlock()
		pass(5 * time.Second)
		stop()
		require.Equal(t, 40, b.count(coupon.ChannelPush, coupon.NoticeSent))
		require.Equal(t, 40, push.calls(), "none twice")
		require.Equal(t, 1, logs.FilterMessage("notices: recorded again").Len())
	})
}

func TestMessagesSayWhatTheyMust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		b.profile = func(user string) coupon.Profile {
			return coupon.Profile{UserID: user, Locale: "zh-Hans-CN", Zone: "Asia/Tokyo"}
		}
		mail, push := &far{name: coupon.ChannelEmail}, &far{name: coupon.ChannelPush}
		p := newPod(t, b, zap.NewNop(), never, mail, push)
		end := time.Now().Add(24 * time.Hour)
		for _, ch := range []coupon.Channel{coupon.ChannelEmail, coupon.ChannelPush} {
			b.put(coupon.Notice{WindowID: 7, Channel: ch, UserID: "u", Kind: coupon.NoticeExpiring, Slot: "-1d/2000-01-02", Items: 3, NotAfter: end})
		}
		stop := running(t, p.sender.Run)
		pass(time.Second)
		stop()
		m := mail.got[0]
		require.Equal(t, "7-email", m.ID)
		require.Equal(t, []string{"-1d", "zh-CN", "Asia/Tokyo", "u@example.com"}, []string{m.Offset, m.Locale, m.Zone, m.Recipient})
		require.Contains(t, m.Text.Text+m.Text.Title, "3")
		require.NotEmpty(t, m.HTML)
		require.Equal(t, "3", m.Params["count"])
		require.Equal(t, end, m.NotAfter)
		require.Equal(t, "token-u", push.got[0].Recipient)
		require.Empty(t, push.got[0].HTML)
		require.True(t, slices.ContainsFunc(mail.got, func(m notice.Message) bool { return m.Items == 3 }))
	})
}
