package notice_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/inbox"
)

func TestTheChainGoesOn(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]notice.Result{
		"for good":         {Outcome: notice.Permanent, Reason: "http_400"},
		"after many tries": {Outcome: notice.Retry, Reason: "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBook()
				push := &far{name: coupon.ChannelPush, does: func(context.Context, notice.Message) notice.Result { return fails }}
				sms := &far{name: coupon.ChannelSMS, once: true}
				p := newPod(t, b, zap.NewNop(), func(c *notice.Config) {
					never(c)
					c.Limits.Push.Trip = 1000
				}, push, sms)
				b.put(coupon.Notice{WindowID: 1, Channel: coupon.ChannelPush, UserID: "u", Next: "sms,email"})
				stop := running(t, p.sender.Run)
				pass(2 * time.Hour)
				stop()
				require.Equal(t, coupon.NoticeFailed, b.get(1, coupon.ChannelPush).state)
				require.Equal(t, fails.Reason, b.get(1, coupon.ChannelPush).reason)
				require.Equal(t, coupon.NoticeSent, b.get(1, coupon.ChannelSMS).state)
				require.Equal(t, "+861380000u", sms.got[0].Recipient)
				if fails.Outcome == notice.Permanent {
					require.Equal(t, 1, push.calls())
				} else {
					require.Equal(t, 8, push.calls())
				}
			})
		})
	}
}

// TestWhatIsOfOneMessageOpensNothing: a provider that puts off one message after another answers, and the rest goes out.
func TestWhatIsOfOneMessageOpensNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		mail := &far{name: coupon.ChannelEmail, does: func(_ context.Context, m notice.Message) notice.Result {
			if m.Window <= 40 {
				return notice.Result{Outcome: notice.Retry, Reason: "smtp_450", MessageOnly: true}
			}
			return notice.Result{}
		}}
		p := newPod(t, b, zap.NewNop(), never, mail)
		notices(b, coupon.ChannelEmail, 60)
		stop := running(t, p.sender.Run)
		pass(10 * time.Second)
		require.Equal(t, 20, b.count(coupon.ChannelEmail, coupon.NoticeSent))
		require.InDelta(t, 1, metric(t, p.reg, "lapse_provider_up", "channel", "email"), 0)
		stop()
		require.Equal(t, 40, b.count(coupon.ChannelEmail, coupon.NoticePending))
	})
}

// TestWhatALastStepRefusesGoesOn: what this channel may not tell any more the next of its chain does.
func TestWhatALastStepRefusesGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		b.profile = func(user string) coupon.Profile {
			p := coupon.Profile{UserID: user, ActiveAt: time.Now()}
			switch user {
			case "away":
				p.ActiveAt = time.Now().Add(-40 * 24 * time.Hour)
			case "out":
				p.OptOuts = []coupon.OptOut{{Channel: coupon.ChannelSMS, Kind: coupon.AllKinds, Out: true}}
			case "erased":
				p.ErasedAt = time.Now()
			}
			return p
		}
		b.gone["3-sms"], b.gone["4-sms"] = coupon.ReasonCap, coupon.ReasonEmpty
		sms, push := &far{name: coupon.ChannelSMS, once: true}, &far{name: coupon.ChannelPush}
		p := newPod(t, b, zap.NewNop(), never, sms, push)
		for i, user := range []string{"away", "out", "capped", "nothing", "erased"} {
			b.put(coupon.Notice{WindowID: uint64(i + 1), Channel: coupon.ChannelSMS, UserID: user, Next: "push"})
		}
		stop := running(t, p.sender.Run)
		pass(5 * time.Second)
		stop()
		require.Zero(t, sms.calls())
		require.Equal(t, 5, b.count(coupon.ChannelSMS, coupon.NoticeSuppressed))
		for window := range uint64(5) {
			want := coupon.NoticeSent
			if window >= 3 {
				want = ""
			}
			require.Equal(t, want, b.get(window+1, coupon.ChannelPush).state, window+1)
		}
	})
}

func TestWhatADeadPodBeganIsCountedByKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		p := newPod(t, b, zap.NewNop(), never, &far{name: coupon.ChannelSMS, once: true})
		for i, kind := range []coupon.NoticeKind{coupon.NoticeExpiring, coupon.NoticeExpired, coupon.NoticeExpired} {
			n := coupon.Notice{WindowID: uint64(i + 1), Channel: coupon.ChannelSMS, UserID: "u", Kind: kind}
			b.put(n)
			b.rows[n.ID()].state = coupon.NoticeSending
		}
		stop := running(t, p.sender.Run)
		pass(time.Second)
		stop()
		require.InDelta(t, 1, metric(t, p.reg, "lapse_notices_total", "channel", "sms", "kind", "expiring", "result", "unknown"), 0)
		require.InDelta(t, 2, metric(t, p.reg, "lapse_notices_total", "channel", "sms", "kind", "expired", "result", "unknown"), 0)
	})
}

// TestAddressesThatCannotBeOpened are no reason for channels that need none, nor for the end of a chain; and they are said once.
func TestAddressesThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		b := newBook()
		mail, push := &far{name: coupon.ChannelEmail}, &far{name: coupon.ChannelPush}
		p := newPod(t, b, zap.New(core), never, mail, push, inbox.New(b, 100, zap.NewNop()))
		b.put(coupon.Notice{WindowID: 1, Channel: coupon.ChannelInbox, UserID: "sealed"})
		b.put(coupon.Notice{WindowID: 2, Channel: coupon.ChannelEmail, UserID: "sealed", Next: "push,inbox"})
		b.put(coupon.Notice{WindowID: 3, Channel: coupon.ChannelEmail, UserID: "sealed"})
		for id := range uint64(20) {
			b.put(coupon.Notice{WindowID: 10 + id, Channel: coupon.ChannelEmail, UserID: "u"})
		}
		stop := running(t, p.sender.Run)
		pass(30 * time.Second)
		stop()
		require.Equal(t, coupon.NoticeSent, b.get(1, coupon.ChannelInbox).state)
		require.Equal(t, coupon.NoticeFailed, b.get(2, coupon.ChannelEmail).state)
		require.Equal(t, coupon.NoticeFailed, b.get(2, coupon.ChannelPush).state, "the gateway is not asked for another address")
		require.Equal(t, coupon.NoticeSent, b.get(2, coupon.ChannelInbox).state)
		require.Equal(t, coupon.NoticePending, b.get(3, coupon.ChannelEmail).state, "the key may come")
		require.Greater(t, b.get(3, coupon.ChannelEmail).Attempt, 1)
		require.Equal(t, 20, mail.calls())
		require.Zero(t, push.calls())
		require.Equal(t, 2, logs.FilterMessage("notices: addresses cannot be opened").Len(), "once for each channel")
		require.Zero(t, logs.FilterMessage("notices: sending again").Len())
	})
}

// TestTheChainGoesOnWhileAProviderIsDown: what was never tried, too, long before it is of no use; and by itself again afterwards.
func TestTheChainGoesOnWhileAProviderIsDown(t *testing.T) {
	t.Parallel()
	for reason, fails := range map[string]notice.Result{
		"circuit": {Outcome: notice.Retry, Reason: "http_500"},
		"held":    {Outcome: notice.Throttled, Reason: "http_429"},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBook()
				var down atomic.Bool
				down.Store(true)
				push := &far{name: coupon.ChannelPush, does: func(context.Context, notice.Message) notice.Result {
					if down.Load() {
						return fails
					}
					return notice.Result{}
				}}
				mail := &far{name: coupon.ChannelEmail}
				p := newPod(t, b, zap.NewNop(), never, push, mail)
				for id := range uint64(1000) {
					n := coupon.Notice{WindowID: id + 1, Channel: coupon.ChannelPush, UserID: "u", NotAfter: time.Now().Add(6 * time.Hour)}
					if id%2 == 0 {
						n.Next = "email"
					}
					b.put(n)
				}
				stop := running(t, p.sender.Run)
				pass(time.Hour)
				require.Equal(t, 500, b.count(coupon.ChannelEmail, coupon.NoticeSent))
				require.Equal(t, 500, b.count(coupon.ChannelPush, coupon.NoticeFailed))
				require.Equal(t, 500, b.count(coupon.ChannelPush, coupon.NoticePending), "what has nowhere else to go waits")
				require.Equal(t, reason, b.get(999, coupon.ChannelPush).reason)
				require.LessOrEqual(t, b.claimed(coupon.ChannelPush), 3600, "no more than an idle loop looks")
				down.Store(false)
				pass(30 * time.Minute)
				require.Equal(t, 500, b.count(coupon.ChannelPush, coupon.NoticeSent))
				b.put(coupon.Notice{WindowID: 5000, Channel: coupon.ChannelPush, UserID: "u", Next: "email"})
				pass(10 * time.Second)
				stop()
				require.Equal(t, coupon.NoticeSent, b.get(5000, coupon.ChannelPush).state)
			})
		})
	}
}

// TestNoInstantLeft: a channel that can only try again when it is too late gives the notice on in time.
func TestNoInstantLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		start := time.Now()
		push := &far{name: coupon.ChannelPush, does: func(context.Context, notice.Message) notice.Result {
			return notice.Result{Outcome: notice.Throttled, Until: start.Add(10 * time.Minute), Reason: "http_429"}
		}}
		mail := &far{name: coupon.ChannelEmail}
		p := newPod(t, b, zap.NewNop(), never, push, mail)
		b.put(coupon.Notice{WindowID: 1, Channel: coupon.ChannelPush, UserID: "u", Next: "email", NotAfter: start.Add(5 * time.Minute)})
		stop := running(t, p.sender.Run)
		pass(5 * time.Second)
		stop()
		require.Equal(t, coupon.NoticeFailed, b.get(1, coupon.ChannelPush).state)
		require.Equal(t, coupon.NoticeSent, b.get(1, coupon.ChannelEmail).state)
	})
}
