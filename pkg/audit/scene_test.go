package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const (
	coupons = 6 // of three users, two each
	users   = 3
	waiting = 2
)

// scene is a run that went well, written by hand: rows by SQL, events by AMQP. Tests damage it.
type scene struct {
	db       testenv.Database
	audit    *audit.Audit
	channel  *amqp.Channel
	exchange string
	queue    string
	ends     []time.Time // of coupon i+1
	sent     int         // events
}

const layout = "2006-01-02 15:04:05.000"

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{db: testenv.NewDatabase(t)}
	s.db.Store(t) // migrates
	prefix := testenv.Prefix(t)
	s.exchange, s.queue = prefix+".events", prefix+".audit"
	conn, err := amqp.Dial(os.Getenv("TEST_AMQP_URL"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	s.channel, err = conn.Channel()
	require.NoError(t, err)
	require.NoError(t, s.channel.ExchangeDeclare(s.exchange, "topic", true, false, false, false, nil))
	t.Cleanup(func() { require.NoError(t, s.channel.ExchangeDelete(s.exchange, false, false)) })
	require.NoError(t, s.channel.Confirm(false))

	s.audit, err = audit.Open(t.Context(), s.config(t))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, s.audit.Close(ctx))
	})

	now := s.audit.Now().Truncate(time.Second)
	for i := range coupons {
		s.ends = append(s.ends, now.Add(time.Duration(i-30)*time.Second))
	}
	for i := range waiting {
		s.ends = append(s.ends, now.Add(time.Duration(i+1)*time.Hour))
	}
	for i, end := range s.ends {
		s.audit.Expect(audit.Ask{Key: key(i + 1), User: user(i + 1), End: end, Waiting: i >= coupons})
		s.grant(t, i+1)
	}
	for id := 1; id <= coupons; id++ {
		s.expire(t, id, s.ends[id-1].Add(time.Duration(10*id)*time.Millisecond))
	}
	for u := range users {
		s.notify(t, u+1, u+1, u+1+users)
	}
	return s
}

func (s *scene) config(t *testing.T) audit.Config {
	t.Helper()
	c := s.db.Config
	return audit.Config{
		DSN:     fmt.Sprintf("%s:%s@tcp(%s)/%s", c.User, c.Password.Reveal(), c.Address, c.Name),
		AMQPURL: os.Getenv("TEST_AMQP_URL"), Exchange: s.exchange, Queue: s.queue,
	}
}

func key(id int) string  { return fmt.Sprintf("demo-%d", id) }
func user(id int) string { return fmt.Sprintf("user-%d", (id-1)%users+1) }

func (s *scene) grant(t *testing.T, id int) {
	t.Helper()
	s.row(t, id, user(id), s.ends[id-1])
	s.db.Exec(t, `INSERT INTO grant_key (issuer, grant_key, coupon_id, content_hash) VALUES ('',?,?,'')`, key(id), id)
	s.send(t, "coupon.issued", fmt.Sprintf("%d:1:issued", id), map[string]any{
		"coupon_id": fmt.Sprint(id), "grant_key": key(id), "user_id": user(id), "version": 1,
	})
}

func (s *scene) row(t *testing.T, id int, user string, end time.Time) {
	t.Helper()
	s.db.Exec(t, `INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at)
		VALUES (?,1,1,'',?,1,1,UTC_TIMESTAMP(3),?,?,UTC_TIMESTAMP(3))`, id, user, end.Format(layout), end.Format(layout))
	s.history(t, id, 1, 0, 1, "grant", s.audit.Now())
}

func (s *scene) history(t *testing.T, id, version, from, to int, cause string, at time.Time) {
	t.Helper()
	s.db.Exec(t, `INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace)
		VALUES (?,?,?,?,?,?,?,?,'','','','','','')`, id, version, from, to, cause, at.Format(layout), at.Format(layout), at.Format(layout))
}

func (s *scene) expire(t *testing.T, id int, at time.Time) {
	t.Helper()
	s.expireRow(t, id, at)
	s.tellExpired(t, id, fmt.Sprintf("%d:2:expired", id), at)
}

func (s *scene) expireRow(t *testing.T, id int, at time.Time) {
	t.Helper()
	s.db.Exec(t, `UPDATE coupon SET status=4, version=2, expired_at=?, expire_cause='ladder' WHERE id=?`, at.Format(layout), id)
	s.history(t, id, 2, 1, 4, "ladder", at)
}

func (s *scene) tellExpired(t *testing.T, id int, event string, at time.Time) {
	t.Helper()
	var version int
	_, err := fmt.Sscanf(event, fmt.Sprintf("%d:%%d:expired", id), &version)
	require.NoError(t, err)
	s.send(t, "coupon.expired", event, map[string]any{
		"coupon_id": fmt.Sprint(id), "user_id": user(id), "version": version,
		"expires_at": s.ends[id-1].Format(time.RFC3339), "expired_at": at.Format("2006-01-02T15:04:05.000Z"),
	})
}

func (s *scene) notify(t *testing.T, window, firstID, secondID int) {
	t.Helper()
	s.db.Exec(t, `INSERT INTO notice_window (id, user_id, kind, open_mark, items, opened_at, last_item_at, due_at, closed_at, closed_by)
		VALUES (?,?,'expired',NULL,2,UTC_TIMESTAMP(3),UTC_TIMESTAMP(3),'9999-12-31',UTC_TIMESTAMP(3),'quiet')`, window, user(firstID))
	for _, id := range []int{firstID, secondID} {
		s.item(t, window, id)
	}
	s.db.Exec(t, `INSERT INTO notice (window_id, channel, user_id, kind, items, state, reason, attempts, try_at, created_at, settled_at)
		VALUES (?,'inbox',?,'expired',2,'sent','',1,'9999-12-31',UTC_TIMESTAMP(3),UTC_TIMESTAMP(3))`, window, user(firstID))
	s.db.Exec(t, `INSERT INTO inbox (user_id, window_id, kind, items, texts, created_at) VALUES (?,?,'expired',2,?,UTC_TIMESTAMP(3))`,
		user(firstID), window, `{"en":{"title":"-","text":"2 of your coupons have expired"},"zh-CN":{"title":"-","text":"你有2张优惠券已过期"}}`)
}

func (s *scene) item(t *testing.T, window, id int) {
	t.Helper()
	s.db.Exec(t, `INSERT INTO notice_item (window_id, event_id, coupon_id, version, expires_at, value, currency, dropped, added_at)
		VALUES (?,?,?,2,UTC_TIMESTAMP(3),100,'CNY','',UTC_TIMESTAMP(3))`, window, fmt.Sprintf("%d:%d", window, id), id)
}

func (s *scene) send(t *testing.T, routingKey, id string, data map[string]any) {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": id, "source": "/lapse/test", "type": routingKey + ".v1", "data": data,
	})
	require.NoError(t, err)
	s.raw(t, routingKey, body)
}

func (s *scene) raw(t *testing.T, routingKey string, body []byte) {
	t.Helper()
	confirm, err := s.channel.PublishWithDeferredConfirmWithContext(t.Context(), s.exchange, routingKey, true, false,
		amqp.Publishing{Body: body, DeliveryMode: amqp.Persistent})
	require.NoError(t, err)
	require.True(t, confirm.Wait())
	s.sent++
}

// report waits until the audit has heard what was sent.
func (s *scene) report(t *testing.T) audit.Report {
	t.Helper()
	testenv.Wait(t, "the audit hears every event", func() bool { return s.audit.Heard() == s.sent })
	r, err := s.audit.Report(t.Context())
	require.NoError(t, err)
	return r
}
