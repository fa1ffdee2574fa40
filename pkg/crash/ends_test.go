//go:build proof

package crash_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/chaos/model"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/ladder"
)

const (
	soonOver = 3 * time.Second // time enough to arm somebody before the end
	findable = 8 * time.Second // time enough to find a trigger in the ladder, and in its last level
)

// ends are the ways in which a coupon ends, and what becomes of it then.
func ends() *stage {
	return &stage{
		name: "ends", rings: []string{"#"}, runs: []string{crash.Publisher},
		env: func(_ *world, role string) map[string]string {
			if role != crash.Expirer {
				return nil
			}
			return map[string]string{"LAPSE__ARCHIVE__WINDOW": "always", "LAPSE__ARCHIVE__AFTER": "1h", "LAPSE__ARCHIVE__INTERVAL": "1s"}
		},
		lanes: []lane{{worker: crash.Expirer, scenes: []scene{
			{point: "commit expire", pass: func(v *visit) {
				c := v.grant(soonOver)
				v.stop(func() {}, func() { v.is(c, 1+v.done()) })
				v.becomes(c, 2, model.Expired)
			}},
			// Acks may be those of triggers that came again.
			{point: "ack due.expire.exact", pass: func(v *visit) {
				c := v.grant(soonOver)
				v.stop(func() {})
				v.becomes(c, 2, model.Expired)
			}},
			{point: "ack due.expire.relaxed", pass: func(v *visit) {
				c := v.grantStandard()
				v.stop(func() {})
				v.becomes(c, 2, model.Expired)
			}},
			{point: "ack due.unlock", pass: func(v *visit) {
				c := v.grant(time.Hour)
				lock := v.asking(c, model.Lock, "order-"+c.id)
				lock.lock = soonOver
				lock.answered(crash.Publisher)
				v.stop(func() {})
				v.becomes(c, 3, model.Unused)
			}},
			{point: "forward due.expire.exact", pass: func(v *visit) {
				c := v.grant(time.Hour)
				id := "early." + c.id
				v.stop(func() { v.ring(v.i.Ladder().Due(), c, id) })
				v.until("the rest to be sent", func() (bool, error) { return v.bells.rung(id) >= 1+v.done(), nil })
				require.Equal(v, 1+v.done(), v.bells.rung(id), "triggers of the rest")
				v.is(c, 1)
			}},
			{point: "ack unroutable", pass: func(v *visit) { // its trigger lost its way, and rings from where such are kept
				c := v.grant(findable)
				v.mislay(c)
				v.passed(c.End)
				v.stop(func() { v.ring(v.i.Ladder().Unroutable(), c, trigger(coupon.SentByVerb, c)) }, func() { v.is(c, 2) })
				v.becomes(c, 2, model.Expired)
			}},
			{point: "commit sweep", pass: func(v *visit) {
				c := v.grant(findable)
				v.mislay(c)
				v.stop(func() {}, func() { v.is(c, 1+v.done()) })
				v.becomes(c, 2, model.Expired)
				require.Equal(v, 1, v.count("SELECT COUNT(*) FROM coupon_history WHERE coupon_id = ? AND to_status = 4 AND cause = 'sweep'", c.ID))
			}},
			{point: "commit archive", pass: func(v *visit) {
				c := v.grant(time.Hour)
				v.do(crash.Publisher, c, model.Redeem, "order-"+c.id)
				v.drained()
				v.exec("UPDATE coupon SET used_at = used_at - INTERVAL 2 HOUR WHERE id = ?", c.ID) // it has been finished for long
				v.stop(func() {                                                                    // who starts looks at once
					v.kill(v.worker)
					v.launch(v.worker)
				}, func() { v.archived(c, v.done()) })
				v.counted("coupon "+c.id+" in the archive", 1, "SELECT COUNT(*) FROM coupon_archive WHERE id = ?", c.ID)
				v.archived(c, 1)
			}},
		}}},
	}
}

// is says how many steps a coupon has gone by now.
func (v *visit) is(c *promised, steps int) {
	have, _ := v.version(c)
	require.Equal(v, steps, have, "steps of coupon %s", c.id)
}

// archived says that a coupon and its history are in one place: the archive, or not yet.
func (v *visit) archived(c *promised, n int) {
	rows := []int{
		v.count("SELECT COUNT(*) FROM coupon_archive WHERE id = ?", c.ID), v.count("SELECT COUNT(*) FROM coupon WHERE id = ?", c.ID),
		v.count("SELECT COUNT(*) FROM coupon_history_archive WHERE coupon_id = ?", c.ID), v.count("SELECT COUNT(*) FROM coupon_history WHERE coupon_id = ?", c.ID),
	}
	require.Equal(v, []int{n, 1 - n, 2 * n, 2 - 2*n}, rows, "coupon %s in the archive and not, and its history", c.id)
}

// grantStandard has a coupon granted that is processed within a minute of its end, by chance at once.
func (v *visit) grantStandard() *promised {
	var made client.Template
	v.again(crash.Publisher, func(ctx context.Context, api *client.Client) (err error) {
		made, err = api.CreateTemplate(ctx, terms("standard", func(t *client.Terms) { t.Precision = string(coupon.Standard) }))
		return err
	})
	end := v.soon(soonOver)
	key := ""
	for n := 0; key == "" || !coupon.DueAt(end, coupon.Standard, issuer, key).Equal(end); n++ {
		key = fmt.Sprintf("standard-%s-%d", v.side, n)
	}
	return v.world.grant(crash.Publisher, end, func(g *client.Grant) { g.TemplateID, g.GrantKey = made.TemplateID, key })
}

// ring sends a trigger of the coupon's end to an exchange.
func (v *visit) ring(exchange string, c *promised, id string) {
	t := coupon.Trigger{Kind: coupon.KindExpire, CouponID: c.ID, At: c.End, ID: id, Origin: coupon.OriginLadder}
	key := ladder.Key{Kind: ladder.Expire, Class: ladder.Exact, Partition: coupon.Partition(c.ID)}
	v.publish(broker.Message{Exchange: exchange, Key: key.String(), ID: id, Body: v.i.Codec().Trigger(t), Mandatory: true})
}

var errOther = errors.New("another one's")

// mislay takes the coupon's trigger out of the ladder.
func (v *visit) mislay(c *promised) {
	b, err := v.i.Client()
	require.NoError(v, err)
	id := trigger(coupon.SentByVerb, c)
	// Not until nothing is left to be sent: what others have told meanwhile may wait longer than the trigger.
	v.until("its trigger to be sent", func() (bool, error) { return v.bells.rung(id) > 0, nil })
	v.until("its trigger in the ladder", func() (bool, error) {
		for digit := 9; digit > 0; digit-- { // what is left of findable when it is sent
			found := false
			_, err := b.Take(v.ctx, v.i.Ladder().WaitQueue("s", digit, 0), 1, func(d broker.Delivery) error {
				if found = d.MessageID == id; !found {
					return errOther
				}
				return nil
			})
			if found || err != nil && !errors.Is(err, errOther) {
				return found, err
			}
		}
		return false, nil
	})
}
