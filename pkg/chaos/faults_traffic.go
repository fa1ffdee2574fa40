package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	soonQuery = `SELECT id FROM coupon WHERE status IN (1, 2) AND due_at BETWEEN UTC_TIMESTAMP(3) - INTERVAL 1 SECOND AND UTC_TIMESTAMP(3) + INTERVAL 3 SECOND
		ORDER BY RAND() LIMIT 40`
	holdRow = `SELECT id FROM coupon WHERE id = ? FOR UPDATE`
	holdFor = 300 * time.Millisecond
)

// deadlock locks rows in the order in which nobody else does, and changes nothing.
func deadlock(ctx context.Context, s *site, _ Strike) (func(context.Context) error, string, error) {
	return beside(ctx, func(ctx context.Context) {
		for ctx.Err() == nil {
			_ = s.hold(ctx) // a deadlock, or a server that is away, is what it is here for
			_ = lifecycle.Sleep(ctx, 50*time.Millisecond)
		}
	}), "", nil
}

func (s *site) hold(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	ids, err := s.ids(ctx, soonQuery)
	if err != nil {
		return err
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("holding rows: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it changes nothing
	for _, id := range ids {
		var got uint64
		if err := tx.QueryRowContext(ctx, holdRow, id).Scan(&got); err != nil {
			return fmt.Errorf("holding rows: %w", err)
		}
	}
	return lifecycle.Sleep(ctx, holdFor)
}

func (s *site) ids(ctx context.Context, query string) ([]uint64, error) {
	rows, err := s.db.QueryContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("reading ids: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	var ids []uint64
	for rows.Next() {
		var id uint64
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("reading ids: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

const (
	liveTriggers = `SELECT id, version, expires_at, lock_until FROM coupon WHERE status IN (1, 2) ORDER BY RAND() LIMIT 150`
	pastTriggers = `SELECT coupon_id, version, expires_at - INTERVAL (coupon_id % 2) DAY, lock_until FROM coupon_history ORDER BY RAND() LIMIT 300`
	thrice       = 3
	publishLimit = 5 * time.Second
)

// duplicates sends the triggers of coupons that wait three times: due at once, or in a few seconds, in any order.
func duplicates(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	return s.ring(ctx, k, liveTriggers, thrice)
}

// replayOld sends triggers as they were for the steps of the past, some of them with the instants of the day before.
func replayOld(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	return s.ring(ctx, k, pastTriggers, 1)
}

func (s *site) ring(ctx context.Context, k Strike, query string, times int) (func(context.Context) error, string, error) {
	ms, err := s.triggers(ctx, query)
	if err != nil {
		return nil, "the database cannot be asked: " + err.Error(), nil // another lane has stopped it
	}
	rng := k.rng()
	var all []broker.Message
	for range times {
		all = append(all, ms...)
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i := range all {
		wait := time.Duration(0)
		if rng.IntN(2) == 0 {
			wait = drawn(rng, 0, 8*time.Second)
		}
		class := []ladder.Class{ladder.Exact, ladder.Relaxed}[rng.IntN(2)]
		route := s.ladder().Route(wait, ladder.Kind(all[i].Key), class, rng.IntN(16))
		all[i].Exchange, all[i].Key, all[i].Expiration = route.Exchange, route.Key, route.Expiration
	}
	return nil, fmt.Sprintf("%d of %d triggers", s.publish(ctx, all), len(all)), nil
}

// triggers writes them; Key is their kind.
func (s *site) triggers(ctx context.Context, query string) ([]broker.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	rows, err := s.db.QueryContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("reading triggers: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	var out []broker.Message
	for rows.Next() {
		var t coupon.Trigger
		var version uint32
		var until sql.NullTime
		if err := rows.Scan(&t.CouponID, &version, &t.At, &until); err != nil {
			return nil, fmt.Errorf("reading triggers: %w", err)
		}
		t.Kind, t.Origin, t.ID = coupon.KindExpire, coupon.OriginLadder, coupon.TriggerID(coupon.SentByVerb, t.CouponID, version)
		if until.Valid {
			t.Kind, t.At = coupon.KindUnlock, until.Time
		}
		out = append(out, broker.Message{Key: string(t.Kind), ID: t.ID, Body: s.installation.Codec().Trigger(t), Mandatory: true})
	}
	return out, rows.Err()
}

// publish sends what it can within a few seconds, and says how much that was.
func (s *site) publish(ctx context.Context, ms []broker.Message) int {
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	sent := 0
	for _, err := range s.publisher.Publish(ctx, ms) {
		if err == nil {
			sent++
		}
	}
	return sent
}

// poisonMark begins the ids of what nobody can read, so that it is known again where it is parked.
const poisonMark = "poison-"

// poison sends what nobody can read straight into every queue that somebody reads.
func poison(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	l := s.ladder()
	queues := append(l.DueQueues(), l.Unroutable(), l.Issuance(), l.Orders(), l.Users(), l.Ledger(), l.Notice())
	bodies := []string{
		"", "no JSON", `{"v":1}`, `{"v":99,"kind":"expire"}`, `[1,2,3]`, `{"specversion":"1.0","id":"x","source":"/x","type":"coupon.expired.v99","data":{}}`,
		`{"v":1,"kind":"expire","coupon_id":"x","at":"yesterday","id":"x","origin":"ladder","attempt":0}`, strings.Repeat("{", 5000), "\xff\xfe\x00",
	}
	rng := k.rng()
	var ms []broker.Message
	for _, queue := range queues {
		for range 2 {
			ms = append(ms, broker.Message{
				Exchange: "", Key: queue, ID: fmt.Sprintf("%s%d-%d", poisonMark, k.Draw, len(ms)), Body: []byte(bodies[rng.IntN(len(bodies))]), Mandatory: true,
			})
		}
	}
	sent := s.publish(ctx, ms)
	s.poisoned.Add(int64(sent))
	return nil, fmt.Sprintf("%d messages", sent), nil
}
