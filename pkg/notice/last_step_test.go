package notice_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
)

func TestQuietHoursAreAskedInTheLastStep(t *testing.T) {
	t.Parallel()
	for _, wrong := range []time.Duration{0, 9 * time.Hour, -9 * time.Hour} {
		t.Run(wrong.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { quietHours(t, wrong) })
		})
	}
}

// quietHours are the database's clock's, whatever the process's own shows.
func quietHours(t *testing.T, wrong time.Duration) {
	t.Helper()
	b := newBook() // a bubble's clock begins at midnight UTC
	b.wrong = wrong
	b.profile = func(user string) coupon.Profile {
		p := coupon.Profile{UserID: user}
		if user == "out" {
			p.OptOuts = []coupon.OptOut{{Channel: coupon.ChannelSMS, Kind: coupon.AllKinds, Out: true}}
		}
		if user == "east" {
			p.Zone = "Asia/Shanghai" // 08:00 there
		}
		return p
	}
	sms := &far{name: coupon.ChannelSMS, once: true}
	p := newPod(t, b, zap.NewNop(), nil, sms)
	start := time.Now()
	b.put(coupon.Notice{WindowID: 1, Channel: coupon.ChannelSMS, UserID: "home"})
	b.put(coupon.Notice{WindowID: 2, Channel: coupon.ChannelSMS, UserID: "home", NotAfter: start.Add(7 * time.Hour)})
	b.put(coupon.Notice{WindowID: 3, Channel: coupon.ChannelSMS, UserID: "out"})
	b.put(coupon.Notice{WindowID: 4, Channel: coupon.ChannelSMS, UserID: "east"})
	stop := running(t, p.sender.Run)
	pass(time.Hour)
	require.Equal(t, coupon.NoticePending, b.get(1, coupon.ChannelSMS).state, "not held as being sent")
	require.Equal(t, coupon.ReasonQuiet, b.get(2, coupon.ChannelSMS).reason)
	require.Equal(t, coupon.ReasonOptOut, b.get(3, coupon.ChannelSMS).reason)
	require.Equal(t, coupon.NoticeSent, b.get(4, coupon.ChannelSMS).state)
	pass(8 * time.Hour)
	require.Equal(t, coupon.NoticeSent, b.get(1, coupon.ChannelSMS).state)
	stop()
	require.Equal(t, 2, sms.calls())
	require.WithinDuration(t, start.Add(8*time.Hour), sms.at[1], 2*time.Second)
}

// TestNothingLeavesAfterItsTime: a send that may last is over before the coupons end and before quiet hours begin, however long the
// database took.
func TestNothingLeavesAfterItsTime(t *testing.T) {
	t.Parallel()
	for _, wrong := range []time.Duration{0, 5 * time.Hour, -5 * time.Hour} {
		t.Run(wrong.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBook() // a bubble's clock begins at midnight UTC
				b.wrong, b.slow = wrong, 2*time.Second
				var mu sync.Mutex
				cut := make(map[uint64]time.Time)
				cutOf := func(window uint64) time.Time {
					mu.Lock()
					defer mu.Unlock()
					return cut[window]
				}
				sms := &far{name: coupon.ChannelSMS, once: true, does: func(ctx context.Context, m notice.Message) notice.Result {
					<-ctx.Done()
					mu.Lock()
					defer mu.Unlock()
					cut[m.Window] = time.Now()
					return notice.Result{Outcome: notice.Unknown, Reason: "timeout"}
				}}
				p := newPod(t, b, zap.NewNop(), func(c *notice.Config) {
					c.Policy.Quiet = map[string]string{"sms": "00:01-08:00"}
					c.Limits.SMS.Concurrency = 1
				}, sms)
				start := time.Now()
				stop := running(t, p.sender.Run)
				b.put(coupon.Notice{WindowID: 1, Channel: coupon.ChannelSMS, UserID: "u", NotAfter: start.Add(8 * time.Second)})
				pass(48 * time.Second)
				require.WithinDuration(t, start.Add(6*time.Second), cutOf(1), 2*time.Second, "before the end, by as long as the database took at most")
				require.True(t, cutOf(1).Before(start.Add(8*time.Second)))
				b.put(coupon.Notice{WindowID: 2, Channel: coupon.ChannelSMS, UserID: "u"})
				b.put(coupon.Notice{WindowID: 3, Channel: coupon.ChannelSMS, UserID: "u", NotAfter: start.Add(7 * time.Hour)})
				pass(7 * time.Hour)
				require.Equal(t, coupon.NoticePending, b.get(2, coupon.ChannelSMS).state, "not ten seconds before the quiet hours")
				require.Equal(t, coupon.ReasonQuiet, b.get(3, coupon.ChannelSMS).reason)
				require.Zero(t, cutOf(2))
				pass(2 * time.Hour)
				stop()
				require.WithinDuration(t, start.Add(8*time.Hour+12*time.Second), cutOf(2), 3*time.Second)
			})
		})
	}
}

// TestWhatWasBegunWithoutAnAnswerIsNotLost: the last step before an SMS is recorded, the answer is lost, nothing was sent.
func TestWhatWasBegunWithoutAnAnswerIsNotLost(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"prepare", "prepared"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBook()
				fails := 2
				b.fail = func(c string) error {
					if c == call && fails > 0 {
						fails--
						return coupon.ErrUnavailable
					}
					return nil
				}
				sms := &far{name: coupon.ChannelSMS, once: true}
				p := newPod(t, b, zap.NewNop(), never, sms)
				notices(b, coupon.ChannelSMS, 40)
				stop := running(t, p.sender.Run)
				pass(20 * time.Second)
				stop()
				require.Zero(t, fails)
				require.Equal(t, 40, b.count(coupon.ChannelSMS, coupon.NoticeSent), "without waiting for a lease to run out")
				require.Equal(t, 40, sms.calls())
			})
		})
	}
}
