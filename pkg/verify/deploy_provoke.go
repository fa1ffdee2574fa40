package verify

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// provocations in the order in which they are made.
func provocations() []provocation {
	soonSwept := map[string]map[string]string{demo.Expirer: {
		"LAPSE__EXPIRY__SWEEP__GRACE": "3s", "LAPSE__EXPIRY__SWEEP__OUTAGE_GRACE": "3s", "LAPSE__EXPIRY__SWEEP__INTERVAL": "1s",
	}}
	return []provocation{
		{alert: "LapseLatenessBurnsFast", do: pauseExpirer},
		{alert: "LapseLatenessBurnsSlowly", do: pauseExpirer},
		{alert: "LapseOverdue", env: soonSwept, do: func(ctx context.Context, h *harm) error {
			if err := h.ending(ctx, 3, 5*time.Second); err != nil {
				return err
			}
			return h.hold(ctx, "status = 1 AND batch_id = 'provoked'")
		}},
		{alert: "LapseHeartbeatMissing", do: func(ctx context.Context, h *harm) error {
			if err := h.Fleet().StopOne(ctx, demo.Notifier); err != nil {
				return err
			}
			return h.exec(ctx, `UPDATE setting SET value = value - 300000 WHERE name = 'heartbeat.exact'`)
		}},
		{alert: "LapseDeadLetteringStuck", do: func(ctx context.Context, h *harm) error {
			if err := h.deleteExchange(ctx, h.Ladder().Due()); err != nil {
				return err
			}
			return h.ending(ctx, 10, 3*time.Second)
		}},
		{alert: "LapseDueBacklogGrows", do: stop(demo.Expirer), again: func(ctx context.Context, h *harm) error {
			return h.pile(ctx, h.Ladder().DueExact(), 1500)
		}},
		{alert: "LapseIntakeBacklogGrows", do: stop(demo.Notifier), again: func(ctx context.Context, h *harm) error {
			return h.pile(ctx, h.Ladder().Notice(), 150)
		}},
		{alert: "LapseSweepRecovers", env: soonSwept, do: func(ctx context.Context, h *harm) error {
			if err := h.ending(ctx, 5, 8*time.Second); err != nil {
				return err
			}
			return h.purgeSeconds(ctx)
		}},
		{alert: "LapseUnroutable", do: func(ctx context.Context, h *harm) error {
			return h.Publish(ctx, broker.Message{Exchange: h.Ladder().Due(), Key: "nowhere", ID: "nowhere", Body: []byte("{}")})
		}},
		{alert: "LapseParked", do: func(ctx context.Context, h *harm) error {
			return h.Publish(ctx, broker.Message{Exchange: h.Ladder().Issuance(), Key: "coupon.grant", ID: "nonsense", Body: []byte("no event")})
		}},
		{alert: "LapseBrokerDown", do: func(_ context.Context, h *harm) error {
			cut(h.broker)
			return nil
		}},
		{alert: "LapseOutboxOld", do: func(ctx context.Context, h *harm) error {
			cut(h.broker)
			return h.ending(ctx, 5, time.Hour)
		}, again: func(ctx context.Context, h *harm) error {
			return h.exec(ctx, `UPDATE outbox SET created_at = UTC_TIMESTAMP(3) - INTERVAL 5 MINUTE`)
		}},
		{alert: "LapseNoConsumers", do: stop(demo.Notifier)},
		{alert: "LapseWorkerMissing", do: stop(demo.Notifier)},
		{alert: "LapseBrokerUnseen", without: "rabbitmq-queues"},
		{alert: "LapseDatabaseDown", do: func(_ context.Context, h *harm) error {
			cut(h.database)
			return nil
		}},
		{alert: "LapseAPIFails", do: func(_ context.Context, h *harm) error {
			cut(h.database)
			return nil
		}, again: func(ctx context.Context, h *harm) error { return h.call(ctx, 20) }},
		{
			alert: "LapseSlowStatements", env: map[string]map[string]string{demo.Publisher: {"LAPSE__DATABASE__SLOW": "1ms"}},
			again: func(ctx context.Context, h *harm) error { return h.live(ctx) },
		},
		{
			alert: "LapseArchiveLags", env: map[string]map[string]string{demo.Expirer: {"LAPSE__ARCHIVE__WINDOW": "never", "LAPSE__ARCHIVE__INTERVAL": "1s"}},
			do: func(ctx context.Context, h *harm) error {
				return h.exec(ctx, `UPDATE coupon SET used_at = used_at - INTERVAL 40 DAY, expired_at = expired_at - INTERVAL 40 DAY,
					due_at = due_at - INTERVAL 40 DAY, expires_at = expires_at - INTERVAL 40 DAY WHERE status IN (3, 4)`)
			},
		},
		{
			alert: "LapseReconcileUnclean", env: map[string]map[string]string{demo.Expirer: {
				"LAPSE__RECONCILE__WINDOW": "always", "LAPSE__RECONCILE__INTERVAL": "1s",
			}},
			before: damageBooks,
		},
	}
}

// ending grants coupons of the batch "provoked" that end so soon.
func (h *harm) ending(ctx context.Context, n int, in time.Duration) error {
	at := h.soon(in)
	_, err := h.grant(ctx, h.template, n, func(i int, g *client.Grant) {
		g.GrantKey, g.BatchID, g.ExpiresAt = fmt.Sprintf("provoked-%d-%d", at.Unix(), i), "provoked", &at
	})
	return err
}

// pile puts triggers of coupons that there are none of into a queue.
func (h *harm) pile(ctx context.Context, queue string, n int) error {
	ms := make([]broker.Message, n)
	for i := range ms {
		h.turn++
		id := fmt.Sprintf("piled-%d", h.turn)
		body := h.Codec().Trigger(coupon.Trigger{Kind: coupon.KindExpire, CouponID: 1 << 40, At: h.Now(), ID: id, Origin: coupon.OriginLadder})
		ms[i] = broker.Message{Key: queue, ID: id, Body: body, Mandatory: true}
	}
	return h.Publish(ctx, ms...)
}

// purgeSeconds empties the buckets of seconds.
func (h *harm) purgeSeconds(ctx context.Context) error {
	c, err := h.Client()
	if err != nil {
		return err
	}
	for digit := 1; digit <= 59; digit++ {
		if _, err := c.Purge(ctx, h.Ladder().WaitQueue("s", digit, 0)); err != nil {
			return err
		}
	}
	return nil
}

// deleteExchange takes an exchange away, as somebody in the management UI may.
func (h *harm) deleteExchange(ctx context.Context, name string) error {
	amqp, err := url.Parse(h.w.cfg.Stack.AMQPURL.Reveal())
	if err != nil || len(amqp.Path) < 2 {
		return errors.New("TEST_AMQP_URL is malformed")
	}
	to := h.w.cfg.Stack.ManagementURL.Reveal() + "/api/exchanges/" + url.PathEscape(amqp.Path[1:]) + "/" + url.PathEscape(name)
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, to, nil)
	if err != nil {
		return errors.New("TEST_MANAGEMENT_URL is malformed")
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: apiTimeout}).Do(req)
	if err != nil {
		return errors.New("the management API does not answer") // its error would show the password
	}
	if err := res.Body.Close(); err != nil || res.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("deleting exchange %s: %s", name, res.Status)
	}
	return nil
}

// call asks the API for a coupon, once each, whatever it answers.
func (h *harm) call(ctx context.Context, n int) error {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: apiTimeout}
	for range n {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.url+"/v1/coupons/1", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+h.secret)
		res, err := c.Do(req)
		if err != nil {
			return fmt.Errorf("calling the API: %w", err)
		}
		if err := res.Body.Close(); err != nil {
			return err
		}
	}
	return nil
}

// damageBooks makes a counter wrong, and lets the expirer reconcile anew.
func damageBooks(ctx context.Context, h *harm) error {
	template, err := h.shop.template(ctx, nil)
	if err != nil {
		return err
	}
	if err := h.Fleet().StopOne(ctx, demo.Expirer); err != nil {
		return err
	}
	if err := h.exec(ctx, `UPDATE template_stock SET taken = taken + 5 WHERE template_id = ?`, template); err != nil {
		return err
	}
	if err := h.exec(ctx, `DELETE FROM setting WHERE name = 'night.reconcile'`); err != nil {
		return err
	}
	return h.Start(ctx, demo.Expirer)
}
