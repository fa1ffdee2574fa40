package outbox_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/outbox"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const patience = 4 * time.Minute

// world is a database and a small topology of the test's own on the real servers.
type world struct {
	testing.TB
	testenv.Topology

	db testenv.Database
}

func newWorld(t testing.TB) *world {
	t.Helper()
	y := testenv.NewTopology(t, ladder.Level{Name: "m", Unit: time.Minute, Digits: 5}, ladder.Level{Name: "s", Unit: time.Second, Digits: 59})
	return &world{TB: t, Topology: y, db: testenv.NewDatabase(t)}
}

func (w *world) relay(cfg outbox.Config, s outbox.Store, events delay.Publisher, wake <-chan struct{}) *outbox.Relay {
	w.Helper()
	r, err := outbox.New(cfg, outbox.Deps{
		Owner: "relay", Store: s, Delay: delay.NewLadder(w.Ladder, events), Exchange: w.Ladder.Events(),
		Events: broker.Bundling{Publisher: events, Exchange: w.Ladder.Bundles(), Key: w.Ladder.BundleKey, Most: cfg.Bundle},
		Wake:   wake, Log: testenv.Log(w),
	})
	require.NoError(w, err)
	return r
}

// mortal is a relay's store that, told to die, does so at its next delete: nothing gets through any more, as if its
// process had been killed between a confirm and its delete.
type mortal struct {
	*store.Store
	die  atomic.Bool
	once sync.Once
	dead chan struct{}
}

var errDead = errors.New("killed")

func (m *mortal) alive() error {
	select {
	case <-m.dead:
		return errDead
	default:
		return nil
	}
}

func (m *mortal) ClaimParts(ctx context.Context, owner string, lease time.Duration) (coupon.OutboxClaim, error) {
	if err := m.alive(); err != nil {
		return coupon.OutboxClaim{}, err
	}
	return m.Store.ClaimParts(ctx, owner, lease)
}

func (m *mortal) DeleteOutbox(ctx context.Context, lane int, confirmed map[int][]uint64) error {
	if m.die.Load() {
		m.once.Do(func() { close(m.dead) })
		return errDead
	}
	return m.Store.DeleteOutbox(ctx, lane, confirmed)
}

func (m *mortal) LeaveParts(ctx context.Context, owner string) error {
	if err := m.alive(); err != nil {
		return err
	}
	return m.Store.LeaveParts(ctx, owner)
}

// Two relays on the real servers; committers with transactions of random length; one relay is killed in the middle. An
// independent consumer of bundles hears every event, each coupon's in order.
func TestRelaysOnRealServers(t *testing.T) {
	t.Parallel()
	const coupons, each, committers = 500, 40, 5
	w := newWorld(t)
	heard := make(chan string, coupons*each)
	oneByOne := broker.DefaultConsumerConfig()
	oneByOne.Concurrency = 1 // or the test itself would mix the order up
	consumer, err := w.Client.NewConsumer(broker.ConsumerOptions{
		Config: oneByOne.Bundled(), Queue: w.Ladder.Notice(),
		Handler: broker.Unbundling{Most: oneByOne.Batch}.Unbundle(func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
			outcomes := make([]broker.Outcome, len(batch))
			for i, d := range batch {
				heard <- string(d.Body)
				outcomes[i] = broker.Ack()
			}
			return outcomes, nil
		}),
	})
	require.NoError(t, err)
	testenv.Run(w, consumer.Run)

	cfg := outbox.DefaultConfig()
	cfg.Lease, cfg.Batch = time.Second, 100 // small batches: walks of many readings among late commits
	victim := &mortal{Store: w.db.Store(t), dead: make(chan struct{})}
	killVictim := testenv.Run(w, w.relay(cfg, victim, w.NewPublisher(w), nil).Run)
	testenv.Run(w, w.relay(cfg, w.db.Store(t), w.NewPublisher(w), nil).Run)
	testenv.Wait(t, "both relays at work", func() bool {
		return w.db.Int(t, `SELECT COUNT(DISTINCT owner) FROM outbox_part WHERE owner != ''`) == 2
	})

	seed := testenv.Seed(t)
	var g errgroup.Group
	for i := range committers {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		g.Go(func() error { return commitEvents(t, w.db, random, i, coupons, each, committers) })
	}
	var ids []string
	seen := make(map[string]bool)
	deadline, died := time.After(patience), (<-chan struct{})(victim.dead)
	for len(seen) < coupons*each {
		select {
		case id := <-heard:
			ids = append(ids, id)
			seen[id] = true
			if len(seen) == coupons*each/4 {
				victim.die.Store(true)
			}
		case <-died:
			died = nil
			killVictim()
		case <-deadline:
			require.Fail(t, "events are missing", "%d of %d heard, %d rows left", len(seen), coupons*each, w.db.Int(t, `SELECT COUNT(*) FROM outbox`))
		}
	}
	require.NoError(t, g.Wait())
	testenv.Wait(t, "an empty outbox", func() bool { return w.db.Int(t, `SELECT COUNT(*) FROM outbox`) == 0 })
	require.Nil(t, died, "the victim has died")
	t.Logf("%d repeats heard so far", requireOrder(t, ids, coupons, each))
	require.Zero(t, w.db.Int(t, `SELECT COUNT(*) FROM outbox_parked`))
}

// commitEvents writes the events of every n-th coupon in transactions that stay open for random times, overlapping
// those of the other committers.
func commitEvents(t testing.TB, d testenv.Database, random *rand.Rand, first, coupons, each, n int) error {
	for k := 1; k <= each; k++ {
		tx, err := d.SQL.BeginTx(t.Context(), nil)
		if err != nil {
			return err
		}
		for c := first; c < coupons; c += n {
			e := event(uint64(c), k)
			if _, err := tx.ExecContext(t.Context(), `INSERT INTO outbox (lane, part, coupon_id, msg_id, routing_key, class, body, trace, refused, created_at)
				VALUES (1,?,?,?,'coupon.expired',' ',?,'',0,UTC_TIMESTAMP(3))`, e.Part, e.CouponID, e.MsgID, e.MsgID); err != nil {
				return errors.Join(err, tx.Rollback())
			}
		}
		if _, err := tx.ExecContext(t.Context(), `DO SLEEP(?)`, random.Float64()/20); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return nil
}
