package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	apartCoupons = 40
	heldRowFor   = 30 * time.Second
	heldAskers   = 64  // more than the API lets work at once
	besideHeld   = 120 // coupons of the same template, granted around the held one
)

func (w *checkout) ordersApart(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		if err := w.lateCancels(ctx, s); err != nil {
			return err
		}
		if err := w.heldRow(ctx, s); err != nil {
			return err
		}
		return s.agreed(ctx, "", false)
	})
}

// lateCancels lets order A give up its coupon, or its lock run out, and order B lock it; then everything of A's comes late.
func (w *checkout) lateCancels(ctx context.Context, s *shop) error {
	template, err := s.template(ctx, nil)
	if err != nil {
		return err
	}
	ids, err := s.grant(ctx, template, apartCoupons, func(_ int, g *client.Grant) { g.UserID = "one" })
	if err != nil {
		return err
	}
	w.cfg.View.Step("order A's cancel, failure, refund and payment come when order B holds the coupon")
	for i, id := range ids {
		ask := client.Order{UserID: "one", CouponIDs: []string{id}, LockFor: time.Hour}
		a := ask
		if i%2 == 0 {
			a.LockFor = time.Second // and it runs out
		}
		if _, err := s.api.Lock(ctx, "a-"+id, a); err != nil {
			return err
		}
		if i%2 == 1 {
			if _, err := s.api.Release(ctx, "a-"+id, a); err != nil {
				return err
			}
		}
	}
	if err := lifecycle.Sleep(ctx, 2100*time.Millisecond); err != nil { // the locks have run out
		return err
	}
	kept, foreign := 0, 0
	var events []orderEvent
	for _, id := range ids {
		ask := client.Order{UserID: "one", CouponIDs: []string{id}, LockFor: time.Hour}
		if _, err := s.api.Lock(ctx, "b-"+id, ask); err != nil {
			return err
		}
		for verb, call := range map[string]func(context.Context, string, client.Order) (client.Acted, error){
			"release": s.api.Release, "refund": s.api.Refund, "redeem": s.api.Redeem, "renew": s.api.Renew,
		} {
			_, err := call(ctx, "a-"+id, ask)
			switch {
			case err == nil && verb == "release": // a repeat of what A did before: nothing moves
			case client.IsCode(err, client.CodeLockedByOther, client.CodeNotUsed):
			default:
				foreign++
				w.cfg.View.Step(fmt.Sprintf("amiss: %s by order A: %v", verb, err))
			}
		}
		for _, what := range []string{"closed", "payment_failed", "refunded", "paid"} {
			events = append(events, orderEvent{what: what, order: "a-" + id, user: "one", coupons: []string{id}})
		}
	}
	if err := s.order(ctx, events...); err != nil {
		return err
	}
	if err := s.ordersTaken(ctx, len(ids)); err != nil { // each payment of A's is refused
		return err
	}
	for _, id := range ids {
		c, err := s.api.Coupon(ctx, id)
		if err != nil {
			return err
		}
		if c.State == client.Locked && c.OrderID == "b-"+id {
			kept++
		}
	}
	want(s.t, "b_keeps_its_coupon", kept, Equal, len(ids))
	want(s.t, "calls_of_a_that_did_something", foreign, Equal, 0)
	redeemed := 0
	for _, id := range ids {
		if _, err := s.api.Redeem(ctx, "b-"+id, client.Order{UserID: "one", CouponIDs: []string{id}}); err == nil {
			redeemed++
		}
	}
	want(s.t, "b_redeems_it", redeemed, Equal, len(ids))
	return nil
}

// heldRow holds one coupon's row by a transaction for half a minute, while its neighbours are locked, redeemed, and expire.
func (w *checkout) heldRow(ctx context.Context, s *shop) error {
	template, err := s.template(ctx, nil)
	if err != nil {
		return err
	}
	first := s.soon(8 * time.Second)
	ids, err := s.grant(ctx, template, besideHeld, func(i int, g *client.Grant) {
		end := first.Add(time.Duration(i%18) * time.Second)
		g.UserID, g.ExpiresAt = "one", &end
	})
	if err != nil {
		return err
	}
	const row = 55 // of those that end early, and are not redeemed
	held := ids[row]
	w.cfg.View.Step("one row is held for 30 s; its neighbours are locked, redeemed and expire")
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("holding a row: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it changes nothing
	var status int
	if err := tx.QueryRowContext(ctx, "SELECT status FROM coupon WHERE id = ? FOR UPDATE", held).Scan(&status); err != nil {
		return fmt.Errorf("holding a row: %w", err)
	}
	release := s.Now().Add(heldRowFor)
	// The held one is asked for all the time; it must not use up what the others need.
	asking, stop := context.WithCancel(ctx)
	defer stop()
	var askers errgroup.Group
	answered := make(chan string, 1024)
	impatient, err := s.impatient()
	if err != nil {
		return err
	}
	defer impatient.Close()
	for i := range heldAskers {
		askers.Go(func() error {
			for asking.Err() == nil && s.Now().Before(release.Add(-4*time.Second)) {
				_, err := impatient.Lock(asking, "held-"+strconv.Itoa(i), client.Order{UserID: "one", CouponIDs: []string{held}, LockFor: time.Minute})
				if asking.Err() == nil {
					select {
					case answered <- codeOf(err):
					default:
					}
				}
			}
			return nil
		})
	}
	var took []time.Duration
	failed, used := 0, 0
	for i, id := range ids {
		if id == held || i%3 != 0 {
			continue
		}
		ask := client.Order{UserID: "one", CouponIDs: []string{id}, LockFor: time.Minute}
		for _, call := range []func(context.Context, string, client.Order) (client.Acted, error){s.api.Lock, s.api.Redeem} {
			start := time.Now()
			_, err := call(ctx, "beside-"+id, ask)
			took = append(took, time.Since(start))
			if err != nil {
				failed++
				w.cfg.View.Step("amiss: a neighbour: " + err.Error())
			}
		}
		used++
	}
	want(s.t, "neighbours_before_the_first_end_ms", first.Sub(s.Now()).Milliseconds(), AtLeast, 0)
	if err := lifecycle.Sleep(ctx, release.Sub(s.Now())); err != nil {
		return err
	}
	stop()
	_ = askers.Wait() // they return nil
	close(answered)
	busy := 0
	for code := range answered {
		if code == string(client.CodeBusy) {
			busy++
		}
	}
	if err := tx.Rollback(); err != nil {
		return fmt.Errorf("letting a row go: %w", err)
	}
	released, _ := s.Audit().Bounds()
	limit, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	err = until(limit, func() (bool, error) { return s.ended(limit, held) })
	if err != nil {
		return err
	}
	fates, err := s.fates(ctx)
	if err != nil {
		return err
	}
	var ds []time.Duration
	expired := 0
	for i, id := range ids {
		f := fates[id]
		if id == held || i%3 == 0 || f.expired == 0 {
			continue
		}
		expired++
		ds = append(ds, f.at.Sub(f.ends))
	}
	want(s.t, "neighbours_calls_failed", failed, Equal, 0)
	want(s.t, "neighbours_slowest_call_ms", late(took, 100), AtMost, second)
	want(s.t, "neighbours_expired", expired, Equal, besideHeld-used-1)
	want(s.t, "neighbours_lateness_p99_ms", late(ds, 99), AtMost, second)
	want(s.t, "held_answered_busy", busy, AtLeast, 1)
	want(s.t, "held_settled_after_its_release_ms", fates[held].at.Sub(released).Milliseconds(), AtMost, 5*second)
	want(s.t, "held_expired_once", fates[held].expired, Equal, 1)
	return nil
}

// ended reports whether a coupon is in a state that it does not leave.
func (s *shop) ended(ctx context.Context, id string) (bool, error) {
	n, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE id = ? AND status IN (3, 4)", id)
	return n == 1, err
}

// impatient is a client that asks once.
func (s *shop) impatient() (*client.Client, error) {
	return client.New(client.Config{URL: s.url, Token: s.secret, Actor: "verify", Attempts: 1, Timeout: apiTimeout})
}

func codeOf(err error) string {
	var e *client.Error
	if errors.As(err, &e) {
		return string(e.Code)
	}
	return answerOf(err)
}

// orderEvent is what the system of orders says.
type orderEvent struct {
	what, order, user string
	coupons           []string
	partial           bool
}

// order publishes order events, in order.
func (s *shop) order(ctx context.Context, events ...orderEvent) error {
	ms := make([]broker.Message, len(events))
	for i, e := range events {
		data := map[string]any{"order_id": e.order, "coupon_ids": e.coupons}
		if e.user != "" {
			data["user_id"] = e.user
		}
		if e.partial {
			data["full"] = false
		}
		id := fmt.Sprintf("%s-%s-%d", e.order, e.what, i)
		body, err := json.Marshal(map[string]any{
			"specversion": "1.0", "id": id, "source": "/verify/orders", "type": "order." + e.what + ".v1",
			"datacontenttype": "application/json", "data": data,
		})
		if err != nil {
			return fmt.Errorf("an order event: %w", err)
		}
		ms[i] = broker.Message{
			Exchange: s.Ladder().Orders(), Key: "order." + e.what, ID: id, Body: body,
			ContentType: event.ContentType, Mandatory: true,
		}
	}
	const batch = 500
	for part := range slices.Chunk(ms, batch) {
		if err := s.Publish(ctx, part...); err != nil {
			return err
		}
	}
	return nil
}

// ordersTaken waits until so many payments were heard of as refused, and no order event waits in the queue.
func (s *shop) ordersTaken(ctx context.Context, refusals int) error {
	limit, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	err := until(limit, func() (bool, error) { return len(s.ears.refusals()) >= refusals, nil })
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil // the checks will say what is amiss
	}
	return err
}
