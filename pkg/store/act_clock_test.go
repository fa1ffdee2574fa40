package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// A database clock that jumped ahead takes no coupon from a shopper who cancels or is refunded: what comes back stays
// unused, and the core expires it when the clock is believed again.
func TestActExpiresNothingByAClockInDoubt(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	doubt := errors.New("ahead")
	s.GuardClock(func() func(time.Time) error { return func(time.Time) error { return doubt } })
	plantUnused(t, d, 1, 2, 3600)
	done(t, s, ask(coupon.VerbLock, "a", 1))
	done(t, s, ask(coupon.VerbRedeem, "a", 2))
	d.Exec(t, `UPDATE coupon SET expires_at = expires_at - INTERVAL 2 HOUR, due_at = due_at - INTERVAL 2 HOUR, lock_until = lock_until + INTERVAL 1 HOUR`)

	released := done(t, s, ask(coupon.VerbRelease, "a", 1))
	refunded := done(t, s, ask(coupon.VerbRefund, "a", 2))
	require.Equal(t, []coupon.Status{coupon.Unused, coupon.Unused}, []coupon.Status{released.Status, refunded.Status})
	refused(t, s, ask(coupon.VerbLock, "b", 1), coupon.CodeExpired)

	doubt = nil
	_, settled, err := s.ExpireBatch(t.Context(), triggersFor(1, 2, coupon.OriginLadder), always)
	require.NoError(t, err)
	require.Equal(t, []coupon.Action{coupon.Expire, coupon.Expire}, []coupon.Action{settled[0].Decision.Action, settled[1].Decision.Action})
}
