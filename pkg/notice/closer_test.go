package notice_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/inbox"
)

func expiredWindow(id uint64) coupon.Closed {
	return coupon.Closed{WindowID: id, UserID: "u", Kind: coupon.NoticeExpired, Items: 3, EndsAt: time.Now(), LastEnd: time.Now()}
}

func TestCloserLooksWhenItMust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		p := newPod(t, b, zap.NewNop(), nil, inbox.New(b, 100, zap.NewNop()), notice.NewLog(100, zap.NewNop()))
		start := time.Now()
		stop := running(t, p.closer.Run, p.sender.Run)
		pass(10*time.Second + time.Millisecond)
		require.Len(t, b.looked(), 11, "idle: once a second")

		b.open(expiredWindow(1), time.Now().Add(30*time.Second))
		b.open(expiredWindow(2), start.Add(20*time.Second+300*time.Millisecond))
		b.open(expiredWindow(3), start.Add(20*time.Second+310*time.Millisecond))
		pass(10*time.Second + 600*time.Millisecond)
		require.Equal(t, 2, b.count(coupon.ChannelInbox, coupon.NoticeSent), "rung: without waiting for the next look")
		require.Equal(t, 2, b.count(coupon.ChannelLog, coupon.NoticeSent))
		looks := b.looked()
		last := looks[len(looks)-2:]
		require.Equal(t, []time.Duration{20*time.Second + 300*time.Millisecond, 20*time.Second + 500*time.Millisecond},
			[]time.Duration{last[0].Sub(start), last[1].Sub(start)}, "at the instant, and the near one not before the least wait is over")
		stop()
	})
}

func TestCloserDrainsAndCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		b := newBook()
		p := newPod(t, b, zap.New(core), func(c *notice.Config) { c.Batch = 10 },
			inbox.New(b, 10, zap.NewNop()), notice.NewLog(10, zap.New(core)))
		for id := range uint64(95) {
			b.open(expiredWindow(id+1), time.Now())
		}
		b.gone["13-inbox"], b.gone["13-log"] = coupon.ReasonEmpty, coupon.ReasonEmpty
		stop := running(t, p.closer.Run, p.sender.Run)
		synctest.Wait()
		require.Equal(t, 94, b.count(coupon.ChannelInbox, coupon.NoticeSent), "without a wait between full batches")
		require.Equal(t, 94, b.count(coupon.ChannelLog, coupon.NoticeSent))
		stop()
		require.NoError(t, testutil.GatherAndCompare(p.reg, strings.NewReader(`
# HELP lapse_provider_up 1 while the channel's provider is taken to work, 0 while its circuit is open.
# TYPE lapse_provider_up gauge
lapse_provider_up{channel="inbox"} 1
lapse_provider_up{channel="log"} 1
`), "lapse_provider_up"))
		require.InDelta(t, 2, metric(t, p.reg, "lapse_notices_suppressed_total", "reason", coupon.ReasonEmpty), 0)
		require.InDelta(t, 94, metric(t, p.reg, "lapse_notices_total", "channel", "inbox", "kind", "expired", "result", "sent"), 0)
		require.InDelta(t, 1, metric(t, p.reg, "lapse_notices_total", "channel", "log", "kind", "expired", "result", "suppressed"), 0)
		require.LessOrEqual(t, logs.FilterMessage("notices").Len(), 12, "one line a batch")
		for _, e := range logs.All() {
			require.NotContains(t, e.ContextMap(), "user")
		}
	})
}

// TestKilledAnywhere cuts pods off at every point of the protocol; the next pods finish what they began, each notice once
// where that can be: on the way to the log a pod that dies between send and record sends again.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"close", "closed", "claim", "prepare", "prepared", "inbox", "settle", "settled"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBook()
				sms := &far{name: coupon.ChannelSMS, once: true}
				push := &far{name: coupon.ChannelPush}
				route := func(c *notice.Config) {
					c.Policy.Rules = c.Policy.Rules[:1]
					c.Policy.Rules[0].Kinds, c.Policy.Rules[0].Offsets = nil, nil
					c.Policy.Rules[0].Channels = []string{"inbox", "sms", "push"}
					c.Policy.Quiet = nil
				}
				b.open(expiredWindow(1), time.Now())
				b.open(expiredWindow(2), time.Now())
				dying := true
				b.fail = func(call string) error {
					if dying && call == point {
						return errors.New("killed")
					}
					return nil
				}
				channels := func() []notice.Channel { return []notice.Channel{inbox.New(b, 10, zap.NewNop()), sms, push} }
				first := newPod(t, b, zap.NewNop(), route, channels()...)
				stop := running(t, first.closer.Run, first.sender.Run)
				synctest.Wait()
				stop()
				b.mu.Lock()
				dying = false
				b.mu.Unlock()
				second, third := newPod(t, b, zap.NewNop(), route, channels()...), newPod(t, b, zap.NewNop(), route, channels()...)
				stop2 := running(t, second.closer.Run, second.sender.Run)
				stop3 := running(t, third.closer.Run, third.sender.Run)
				pass(2 * time.Minute)
				stop2()
				stop3()
				require.Equal(t, 2, b.count(coupon.ChannelInbox, coupon.NoticeSent))
				require.Equal(t, 2, b.count(coupon.ChannelPush, coupon.NoticeSent))
				require.Equal(t, 2, b.count(coupon.ChannelSMS, coupon.NoticeSent)+b.count(coupon.ChannelSMS, coupon.NoticeUnknown))
				seen := map[string]int{}
				for _, m := range sms.got {
					seen[m.ID]++
				}
				for id, n := range seen {
					require.Equal(t, 1, n, "%s at most once", id)
				}
				if point != "settle" && point != "settled" {
					require.Len(t, push.got, 2, "nothing was sent before the death")
				}
			})
		})
	}
}

func TestCloserBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		b := newBook()
		away := true
		b.fail = func(string) error {
			if away {
				return coupon.ErrUnavailable
			}
			return nil
		}
		p := newPod(t, b, zap.New(core), nil, notice.NewLog(10, zap.NewNop()))
		stop := running(t, p.closer.Run, p.sender.Run)
		pass(10 * time.Minute)
		require.Less(t, len(b.looked()), 150)
		require.LessOrEqual(t, logs.Len(), 2*11, "said once a minute by each loop")
		said := logs.Len()
		b.mu.Lock()
		away = false
		b.mu.Unlock()
		pass(20 * time.Second)
		require.Equal(t, said+2, logs.Len())
		stop()
	})
}

func TestDecisionsAreAddedTo(t *testing.T) {
	t.Parallel()
	d := notice.Decide(func(time.Time, *coupon.Closed) coupon.Decided {
		return coupon.Decided{Notices: []coupon.PlannedNotice{{Channel: coupon.ChannelInbox}}}
	}).With(nil, func(_ time.Time, c *coupon.Closed, d coupon.Decided) coupon.Decided {
		d.AtRisk = &coupon.AtRisk{UserID: c.UserID}
		return d
	})
	got := d(time.Now(), &coupon.Closed{UserID: "u"})
	require.Len(t, got.Notices, 1)
	require.Equal(t, "u", got.AtRisk.UserID)
}
