package notice_test

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/policy"
)

type remindsAt struct {
	mu      sync.Mutex
	offsets []string
	err     error
}

func (r *remindsAt) set(err error, offsets ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offsets, r.err = offsets, err
}

func (r *remindsAt) Reminders(context.Context) (coupon.Reminders, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	offsets, err := coupon.ParseOffsets(r.offsets)
	if r.err != nil {
		err = r.err
	}
	return coupon.Reminders{Offsets: offsets}, err
}

func TestSettingsThatNameNoReminder(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	at := &remindsAt{}
	o := notice.NewOffsets(at, map[string][]string{
		"notice.policy.rules": policy.DefaultConfig().Offsets(), "wakeup.offset": {"-1d"}, "nothing": {""},
	}, zap.New(core))
	look := func(want []any, offsets ...string) {
		t.Helper()
		at.set(nil, offsets...)
		require.NoError(t, o.Look(t.Context()))
		all := logs.TakeAll()
		if want == nil {
			require.Empty(t, all)
			return
		}
		require.Len(t, all, 1)
		require.Equal(t, want, all[0].ContextMap()["settings"])
	}
	look(nil) // nobody is reminded
	look(nil, "-3d", "-1d", "-30m", "-1h")
	odd := []any{"notice.policy.rules: -1d", "wakeup.offset: -1d"}
	look(odd, "-3d", "-30m")
	look(nil, "-3d", "-30m") // once
	look(nil, "-3d", "-30m", "-1d")
	look(odd, "-30m", "-3d")

	at.set(coupon.ErrUnavailable)
	require.ErrorIs(t, o.Look(t.Context()), coupon.ErrUnavailable)
}

func TestOffsetsAreLookedAtNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		at := &remindsAt{err: coupon.ErrUnavailable}
		stop := running(t, notice.NewOffsets(at, map[string][]string{"wakeup.offset": {"-2d"}}, zap.New(core)).Run)
		pass(time.Minute)
		require.Len(t, logs.TakeAll(), 1)
		at.set(nil, "-1d")
		pass(10 * time.Minute)
		require.Equal(t, 1, logs.FilterMessageSnippet("does not have").Len())
		stop()
	})
}

func TestARateIsANumber(t *testing.T) {
	t.Parallel()
	c := notice.DefaultConfig()
	require.NoError(t, c.Validate())
	c.Limits.Push.Rate = math.NaN()
	require.ErrorContains(t, c.Validate(), "limits.push.rate: must be 0 or between 0.01 and 100000, got NaN")
}
