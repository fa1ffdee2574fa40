package expiry_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/expiry"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/outbox"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// fleet is relay and expirer on the real broker and database; no sweep.
type fleet struct {
	*testing.T
	db     testenv.Database
	store  *store.Store
	ladder *ladder.Ladder
}

// newFleet starts them; gate is passed by every batch of the due queue of its name.
func newFleet(t *testing.T, gate map[string]<-chan struct{}) *fleet {
	t.Helper()
	f := &fleet{T: t, db: testenv.NewDatabase(t)}
	f.store = f.db.Store(t)
	y := testenv.NewTopology(t, ladder.Level{Name: "s", Unit: time.Second, Digits: 12})
	f.ladder = y.Ladder
	codec, err := event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	route := delay.NewLadder(f.ladder, y.Publisher)
	relay, err := outbox.New(outbox.DefaultConfig(), outbox.Deps{
		Owner: "relay", Store: f.store, Delay: route, Events: y.Publisher, Exchange: f.ladder.Events(), Wake: f.store.OutboxWritten(), Log: zap.NewNop(),
	})
	require.NoError(t, err)
	testenv.Run(t, relay.Run)
	c := expiry.DefaultConfig()
	core := expiry.NewCore(f.store, clock.NewGuard(c.ClockAhead, time.Now), prometheus.NewRegistry())
	h := expiry.NewHandler(core, route, codec, expiry.NewLimiter(c), zap.NewNop())
	for _, queue := range f.ladder.DueQueues() {
		consumer, err := y.Client.NewConsumer(broker.ConsumerOptions{
			Config: c.Consumer, Queue: queue, Ready: f.store.Ping, Publisher: y.Publisher, ParkExchange: f.ladder.ParkExchange(),
			Handler: func(ctx context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
				if g := gate[strings.TrimPrefix(queue, f.ladder.Prefix()+".")]; g != nil {
					select {
					case <-g:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
				return h.Handle(ctx, batch)
			},
		})
		require.NoError(t, err)
		testenv.Run(t, consumer.Run)
	}
	return f
}

// issue grants n coupons of a class; the keys are chosen so that the offset lies within most.
func (f *fleet) issue(p coupon.Precision, n int, ends time.Time, most time.Duration) {
	f.Helper()
	template, err := f.store.CreateTemplate(f.Context(), coupon.Template{
		Name: string(p), Rule: coupon.Rule{Kind: coupon.RuleNever}, Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: p},
	})
	require.NoError(f, err)
	grants := make([]coupon.Grant, 0, n)
	for i := 0; len(grants) < n; i++ {
		key := fmt.Sprintf("%s:%d", p, i)
		if coupon.DueAt(ends, p, "", key).Sub(ends) <= most {
			grants = append(grants, coupon.Grant{Key: key, TemplateID: template, UserID: "u", ExpiresAt: ends})
		}
	}
	answers, err := f.store.Issue(f.Context(), grants)
	require.NoError(f, err)
	for _, a := range answers {
		require.Empty(f, a.Refused, a.Detail)
	}
}

func (f *fleet) expired(p coupon.Precision) int64 {
	f.Helper()
	return f.db.Int(f, `SELECT COUNT(*) FROM coupon c JOIN coupon_template t ON t.id = c.template_id WHERE c.status = 4 AND t.prec_class = ?`, string(p))
}

// Exact coupons come at their end while a backlog of relaxed ones stands still: each has its own due queue. The others
// come when their offset is over, by the ladder and never before the end.
func TestClassesKeepTheirDueInstantsAndTheirQueues(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	f := newFleet(t, map[string]<-chan struct{}{"due.expire.relaxed": open})
	now, err := f.store.Now(t.Context())
	require.NoError(t, err)
	ends := coupon.CeilSecond(now.Add(3 * time.Second))
	f.issue(coupon.Relaxed, 100, ends, 4*time.Second)
	f.issue(coupon.Standard, 100, ends, 4*time.Second)
	f.issue(coupon.Exact, 300, ends, 0)

	testenv.Wait(t, "every exact coupon", func() bool { return f.expired(coupon.Exact) == 300 })
	require.Zero(t, f.expired(coupon.Relaxed)+f.expired(coupon.Standard), "the backlog stands")
	close(open)
	testenv.Wait(t, "the rest", func() bool { return f.expired(coupon.Relaxed) == 100 && f.expired(coupon.Standard) == 100 })

	require.EqualValues(t, 500, f.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE expire_cause = 'ladder' AND expires_at = ? AND expired_at >= expires_at`, ends))
	// The ladder lets some come a second early (ladder.Slack); an ended coupon is not held for that.
	require.Zero(t, f.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE expired_at < due_at - INTERVAL 1 SECOND`))
	require.Positive(t, f.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE due_at > expires_at + INTERVAL 2 SECOND`))
}
