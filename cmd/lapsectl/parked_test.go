package main

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// listed is what parked list --json prints.
type listed struct {
	Found  int          `json:"found"`
	Counts []countJSON  `json:"counts"`
	Items  []parkedItem `json:"items"`
}

func (c *scene) parked(args ...string) (l listed) {
	c.Helper()
	r := c.run(append([]string{"parked", "list", "--json"}, args...)...)
	require.NoError(c, json.Unmarshal([]byte(r.stdout), &l), r.stderr)
	require.Equal(c, l.Found > 0, r.code == exitMiss, r.stderr)
	return l
}

func TestParkedMessagesGoHome(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	plan := part(c.ladder, c.ladder.Due(), c.ladder.DueExact(), c.ladder.DueRelaxed(), c.ladder.Unroutable(), c.ladder.Parked(),
		c.ladder.ParkExchange(), c.ladder.Issuance(), c.ladder.Notice(), c.ladder.Replay())
	require.NoError(t, c.client.Declare(c.ctx(), plan))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		require.NoError(t, c.client.Delete(ctx, plan))
	})
	publisher := c.client.NewPublisher()
	running, stop := context.WithCancel(c.ctx())
	stopped := make(chan error, 1)
	go func() { stopped <- publisher.Run(running) }()
	defer func() { stop(); require.NoError(t, <-stopped) }()
	codec, err := event.NewCodec(testenv.Installation)
	require.NoError(t, err)

	trigger := coupon.Trigger{Kind: coupon.KindExpire, CouponID: 7, At: time.Unix(1_900_000_000, 0).UTC(), ID: "v7.1", Origin: coupon.OriginLadder, Attempt: 5}
	key := "00.00.00.00.01.expire.r.07"
	_, err = ladder.ParseKey(key)
	require.NoError(t, err)
	park := func(d broker.Delivery, reason string) {
		d.Headers = map[string]any{broker.HeaderTrace: "t"}
		require.NoError(t, publisher.Publish(c.ctx(), []broker.Message{d.Parked(c.ladder.ParkExchange(), reason)})[0])
	}
	for i := range 3 {
		park(broker.Delivery{Queue: c.ladder.DueRelaxed(), MessageID: fmt.Sprintf("v%d.1", i), Key: key, Body: codec.Trigger(trigger)}, fmt.Sprintf("attempt 6 failed: coupon %d", i))
	}
	park(broker.Delivery{Queue: c.ladder.Issuance(), MessageID: "grant", Key: event.KeyGrant, Body: []byte("not json")}, "malformed: body")
	park(broker.Delivery{Queue: c.ladder.Notice(), MessageID: "event", Key: "coupon.expired", Body: []byte("{}")}, "malformed: type")
	park(broker.Delivery{Queue: "gone.queue", MessageID: "lost", Key: "x", Body: []byte("?")}, "unknown")

	all := c.parked()
	require.Equal(t, 6, all.Found)
	require.Equal(t, countJSON{Place: "parked", Origin: c.ladder.DueRelaxed(), Reason: "attempt # failed: coupon #", N: 3}, all.Counts[0])
	require.Equal(t, 1, c.parked("--origin="+c.ladder.Issuance()).Found)
	require.Equal(t, 2, c.parked("--reason-has=malformed").Found)
	require.Contains(t, c.run("parked", "list").stdout, "attempt # failed")
	ref := c.parked("--origin=" + c.ladder.Issuance()).Items[0].Ref
	require.Contains(t, c.ok("parked", "show", ref), "not json")
	require.Equal(t, exitMiss, c.run("parked", "show", "nosuch").code)

	require.Equal(t, exitError, c.run("parked", "replay", "--reason=r").code, "say what")
	require.Contains(t, c.ok("parked", "replay", "--all", "--dry-run", "--reason=r"), "6 of 6 would be replayed")
	require.Equal(t, 6, c.parked().Found, "a dry run does nothing")

	require.Contains(t, c.ok("parked", "replay", "--origin="+c.ladder.DueRelaxed(), "--reason=the table is back", "--actor=ann"), "3 of 6 replayed")
	d, ok, err := c.client.Get(c.ctx(), c.ladder.DueRelaxed())
	require.NoError(t, err)
	require.True(t, ok)
	again, err := event.DecodeTrigger(d.Body)
	require.NoError(t, err)
	require.Zero(t, again.Attempt, "its attempts begin anew")
	require.Equal(t, key, d.Key)
	require.Equal(t, "t", d.Headers[broker.HeaderTrace])
	require.NotContains(t, d.Headers, broker.HeaderReason)

	r := c.run("parked", "replay", "--all", "--reason=r")
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stdout, "2 of 3 replayed")
	require.Contains(t, r.stderr, "not known where it came from")
	for queue, key := range map[string]string{c.ladder.Issuance(): event.KeyGrant, c.ladder.Notice(): c.ladder.Notice()} {
		d, ok, err := c.client.Get(c.ctx(), queue)
		require.NoError(t, err)
		require.True(t, ok, queue)
		require.Equal(t, key, d.Key)
	}
	require.Contains(t, c.ok("parked", "discard", "--all", "--reason=nobody knows it"), "1 of 1 discarded")
	require.Zero(t, c.parked().Found)
	text := c.ok("parked", "log")
	require.Contains(t, text, "ann")
	require.Contains(t, text, "the table is back")
	require.Contains(t, text, "parked.discard")
	var deeds []parkedDeed
	require.NoError(t, json.Unmarshal([]byte(c.ok("parked", "log", "--json")), &deeds))
	require.Len(t, deeds, 3)
}

func TestParkedOutboxRowsGoBackOrAway(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	require.NoError(t, c.client.Declare(c.ctx(), part(c.ladder, c.ladder.Unroutable())))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		require.NoError(t, c.client.Delete(ctx, part(c.ladder, c.ladder.Unroutable())))
	})
	for id := 1; id <= 250; id++ {
		c.db.Exec(t, `INSERT INTO outbox_parked (id, lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, reason, parked_at)
			VALUES (?,?,3,?,?,'coupon.expired',' ',NULL,'{}','',?,UTC_TIMESTAMP(3))`, id, id%2, id, fmt.Sprintf("%d:2:expired", id), fmt.Sprintf("returned %d", id))
	}
	l := c.parked("--in=outbox")
	require.Equal(t, 250, l.Found)
	require.Len(t, l.Items, 50)
	require.Len(t, l.Counts, 2)
	require.Contains(t, c.ok("parked", "replay", "--ref=row-7", "--reason=r"), "1 of 250 replayed")
	require.EqualValues(t, 1, c.db.Int(t, `SELECT COUNT(*) FROM outbox WHERE msg_id = '7:2:expired' AND lane = 1 AND part = 3 AND refused = 0 AND body = '{}'`))
	require.Contains(t, c.ok("parked", "discard", "--origin=triggers", "--in=outbox", "--reason=r"), "125 of 249 discarded")
	require.Contains(t, c.ok("parked", "replay", "--all", "--reason=r"), "124 of 124 replayed")
	require.Zero(t, c.db.Int(t, `SELECT COUNT(*) FROM outbox_parked`))
	require.EqualValues(t, 125, c.db.Int(t, `SELECT COUNT(*) FROM outbox`))
}
