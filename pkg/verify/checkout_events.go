package verify

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
)

// What the system of orders can say.
const (
	paid     = "paid"
	closed   = "closed"
	failed   = "payment_failed"
	refunded = "refunded"
)

// permutations of what is said, each in every order.
func permutations(words []string) [][]string {
	if len(words) == 0 {
		return [][]string{nil}
	}
	var out [][]string
	for i := range words {
		rest := append(append([]string(nil), words[:i]...), words[i+1:]...)
		for _, p := range permutations(rest) {
			out = append(out, append([]string{words[i]}, p...))
		}
	}
	return out
}

// story is one order's events, and what must have become of its coupon, which it had locked. Every event but the payment frees the
// coupon. An order that was refunded before it was said to be paid never uses it; one that was paid first has used it, and
// after the refund it is back. Without a refund it stays used.
type story struct {
	id, order string
	words     []string
	final     client.State
	used      int
	refused   client.Code // of the payment; empty: it was not
}

func storiesOf() []story {
	var out []story
	for _, words := range [][]string{
		{paid},
		{closed},
		{failed},
		{refunded},
		{paid, closed},
		{paid, failed},
		{paid, refunded},
		{closed, refunded},
		{failed, refunded},
		{paid, closed, failed},
		{paid, closed, refunded},
		{paid, failed, refunded},
		{closed, failed, refunded},
		{paid, closed, failed, refunded},
	} {
		for _, p := range permutations(words) {
			s := story{words: p, final: client.Unused}
			gone := false
			for _, word := range p {
				switch {
				case word == refunded && s.used == 0:
					gone = true
				case word == refunded:
					s.final = client.Unused
				case word == paid && gone:
					s.refused = client.CodeOrderRefunded
				case word == paid:
					s.used, s.final = 1, client.Used
				}
			}
			out = append(out, s)
		}
	}
	return out
}

func (w *checkout) orderEvents(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		if err := w.stories(ctx, s, template); err != nil {
			return err
		}
		if err := w.closedBeforeLock(ctx, s, template); err != nil {
			return err
		}
		if err := w.paidTooLate(ctx, s, template); err != nil {
			return err
		}
		return s.agreed(ctx, "", false)
	})
}

// stories tells every story with each event repeated at once, and then all of it once more.
func (w *checkout) stories(ctx context.Context, s *shop, template string) error {
	stories := storiesOf()
	ids, err := s.grant(ctx, template, len(stories), func(_ int, g *client.Grant) { g.UserID = "one" })
	if err != nil {
		return err
	}
	w.cfg.View.Step(fmt.Sprintf("%d orders tell their events in every order, repeated", len(stories)))
	var events []orderEvent
	for i := range stories {
		st := &stories[i]
		st.id, st.order = ids[i], "story-"+strconv.Itoa(i)
		if _, err := s.api.Lock(ctx, st.order, client.Order{UserID: "one", CouponIDs: []string{st.id}, LockFor: time.Hour}); err != nil {
			return err
		}
		for _, word := range st.words {
			e := orderEvent{what: word, order: st.order, user: "one", coupons: []string{st.id}}
			events = append(events, e, e)
		}
	}
	if err := s.order(ctx, events...); err != nil {
		return err
	}
	if err := s.told(ctx, template); err != nil {
		return err
	}
	wrong := s.judgeStories(ctx, w, stories)
	want(s.t, "stories", len(stories), AtLeast, 60)
	want(s.t, "stories_with_another_end", wrong, Equal, 0)
	// The whole once more: a broker or an outbox may repeat anything, much later.
	before, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon_history")
	if err != nil {
		return err
	}
	if err := s.order(ctx, events...); err != nil {
		return err
	}
	if err := s.told(ctx, template); err != nil {
		return err
	}
	after, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon_history")
	if err != nil {
		return err
	}
	want(s.t, "steps_at_the_second_telling", after-before-toldSteps, Equal, 0)
	want(s.t, "stories_with_another_end_at_the_second_telling", s.judgeStories(ctx, w, stories), Equal, 0)
	return nil
}

const (
	marks     = 16
	toldSteps = 2 * marks // each is granted and redeemed
)

// told waits until every order event sent so far has been taken: one more, of a coupon for each partition of the work, has its effect.
func (s *shop) told(ctx context.Context, template string) error {
	n := s.Now().UnixNano()
	ids, err := s.grant(ctx, template, marks, func(i int, g *client.Grant) {
		g.UserID, g.GrantKey = "marker", fmt.Sprintf("mark-%d-%d", n, i)
	})
	if err != nil {
		return err
	}
	events := make([]orderEvent, marks)
	for i, id := range ids {
		events[i] = orderEvent{what: paid, order: "mark-" + id, user: "marker", coupons: []string{id}}
	}
	if err := s.order(ctx, events...); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	err = until(limit, func() (bool, error) {
		left, err := countIn(limit, s.DB(), "SELECT COUNT(*) FROM coupon WHERE user_id = 'marker' AND status = 1")
		return left == 0, err
	})
	if err != nil {
		return fmt.Errorf("waiting for order events to be taken: %w", err)
	}
	return drained(ctx, s.DB())
}

func (s *shop) judgeStories(ctx context.Context, w *checkout, stories []story) int {
	limit, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	wrong := 0
	for _, st := range stories {
		used, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon_history WHERE coupon_id = ? AND to_status = 3", st.id)
		if err != nil {
			wrong++
			continue
		}
		c, err := s.api.Coupon(ctx, st.id)
		refused := ""
		_ = until(limit, func() (bool, error) { // events come a little later than rows
			refused = s.ears.refusals()[st.id+":"+st.order]
			return (refused != "") == (st.refused != ""), nil
		})
		if err != nil || c.State != st.final || used != st.used || refused != string(st.refused) {
			wrong++
			w.cfg.View.Step(fmt.Sprintf("amiss: %s: %s, used %d times, refused %q (%v); should be %s, %d, %q",
				strings.Join(st.words, " "), c.State, used, refused, err, st.final, st.used, st.refused))
		}
	}
	return wrong
}

// closedBeforeLock closes orders whose locks come later: they are refused, and another order may lock.
func (w *checkout) closedBeforeLock(ctx context.Context, s *shop, template string) error {
	const n = 20
	ids, err := s.grant(ctx, template, n, func(i int, g *client.Grant) { g.UserID, g.GrantKey = "one", "closed-"+strconv.Itoa(i) })
	if err != nil {
		return err
	}
	events := make([]orderEvent, n)
	for i, id := range ids {
		events[i] = orderEvent{what: closed, order: "closed-" + id, coupons: []string{id}}
	}
	if err := s.order(ctx, events...); err != nil {
		return err
	}
	if err := s.told(ctx, template); err != nil {
		return err
	}
	refusals, others := 0, 0
	for _, id := range ids {
		ask := client.Order{UserID: "one", CouponIDs: []string{id}, LockFor: time.Hour}
		if _, err := s.api.Lock(ctx, "closed-"+id, ask); client.IsCode(err, client.CodeOrderClosed) {
			refusals++
		}
		if _, err := s.api.Lock(ctx, "another-"+id, ask); err == nil {
			others++
		}
	}
	want(s.t, "locks_after_the_close_refused", refusals, Equal, n)
	want(s.t, "locked_by_another_order", others, Equal, n)
	return nil
}

// paidTooLate pays orders whose coupons were used by others, belong to others, or do not exist: each is told why.
func (w *checkout) paidTooLate(ctx context.Context, s *shop, template string) error {
	ids, err := s.grant(ctx, template, 3, func(i int, g *client.Grant) { g.UserID, g.GrantKey = "one", "late-"+strconv.Itoa(i) })
	if err != nil {
		return err
	}
	if _, err := s.api.Redeem(ctx, "first", client.Order{UserID: "one", CouponIDs: ids[:1]}); err != nil {
		return err
	}
	if _, err := s.api.Void(ctx, ids[1], "verify", false); err != nil {
		return err
	}
	// One event of three coupons: the good one is redeemed, each of the others is told.
	if err := s.order(ctx, orderEvent{what: paid, order: "late", user: "one", coupons: ids}); err != nil {
		return err
	}
	if err := s.told(ctx, template); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	want(s.t, "refused_for_used", boolean(s.refusedFor(limit, ids[0]+":late", client.CodeAlreadyUsed)), Equal, 1)
	want(s.t, "refused_for_voided", boolean(s.refusedFor(limit, ids[1]+":late", client.CodeVoided)), Equal, 1)
	c, err := s.api.Coupon(ctx, ids[2])
	if err != nil {
		return err
	}
	want(s.t, "the_good_one_redeemed", boolean(c.State == client.Used && c.OrderID == "late"), Equal, 1)
	return nil
}

func (s *shop) refusedFor(ctx context.Context, key string, code client.Code) bool {
	_ = until(ctx, func() (bool, error) { return s.ears.refusals()[key] != "", nil })
	return s.ears.refusals()[key] == string(code)
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}
