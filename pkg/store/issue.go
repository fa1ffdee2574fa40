package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// MaxGrants is the most grants that one call of Issue takes: one transaction must stay far below TxLimit.
const MaxGrants = 1000

// errStockMoved: the stock that the decision was based on changed before it could be reserved.
var errStockMoved = errors.New("template stock changed meanwhile")

// Issue grants coupons in one transaction and gives one answer for each grant, in order. The result is that of
// granting one after the other:
//
//   - A key of an issuer that is known gives the first answer again (Repeated) if it asked for the same, else
//     grant_key_conflict. Keys of refused grants are not remembered, so a later retry may succeed.
//   - A refusal is an answer, not an error. It is told by a coupon.refused event in the same transaction.
//   - With more grants than the template's quota leaves, as many as fit succeed, the first ones first.
//
// An error means that nothing was written: coupon.ErrUnavailable, ErrContention, or ErrIntegrity when the database
// (or the codec) refuses a row for what it holds, or coupon.ErrPaused while an operator has paused one of them.
//
// # Concurrency
//
// A hot template's stock row is what all pods want, so it is locked as late as possible: the decision is made on a
// plain read, and the last statement before the commit reserves the stock only if template and quota still allow it.
// If they do not, the transaction runs again and locks the stock before it decides. Keys are inserted in order; a key
// that another transaction inserted meanwhile makes this one run again, and then it finds the first answer. Rows of
// user_quota are locked in order before the decision. So locks are taken in the order user_quota, (stock,) grant_key,
// stock; what deadlocks remain are retried.
func (s *Store) Issue(ctx context.Context, grants []coupon.Grant) ([]coupon.Granted, error) {
	if len(grants) == 0 {
		return nil, nil
	}
	if len(grants) > MaxGrants {
		return nil, fmt.Errorf("issue: at most %d grants at once, got %d", MaxGrants, len(grants))
	}
	brakes, err := s.Brakes(ctx)
	if err == nil {
		err = pausedFor(brakes, grants)
	}
	if err != nil {
		return nil, err
	}
	asks := make([]ask, len(grants))
	for i := range grants {
		asks[i] = newAsk(grants[i])
	}
	var done *issue
	lock := false
	err = s.tx(ctx, "issue", func(ctx context.Context, tx *txn) error {
		is := &issue{asks: asks, lockStock: lock, answers: make([]coupon.Granted, len(asks))}
		err := s.issueIn(ctx, tx, is)
		if errors.Is(err, errStockMoved) {
			lock = true
		}
		done = is
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(done.made) > 0 {
		s.peaks.note(ctx, s, done.made, done.makers, done.answers, time.Now())
	}
	return done.answers, nil
}

// issue is the work of one transaction, built anew for each try.
type issue struct {
	asks      []ask
	lockStock bool
	now       time.Time
	step      uint64 // auto_increment_increment

	known map[grantKey]*granted
	stock map[uint64]*stock
	users map[userKey]*userQuota

	answers []coupon.Granted
	made    []coupon.Transition // the new coupons, in order; ids set once they are inserted
	makers  []int               // index in asks of each of made
	repeats []repeat            // answers that wait for a coupon of this batch to get its id
	refused []int               // indices in asks
}

// ask is a grant with what follows from it alone.
type ask struct {
	coupon.Grant
	key   grantKey
	hash  [sha256.Size]byte
	fault string // why it can never be granted, whatever the template says
}

type grantKey struct{ issuer, key string }

// granted is a key's first answer.
type granted struct {
	hash      [sha256.Size]byte
	couponID  uint64
	expiresAt time.Time
	made      int // 1 + index in issue.made; 0 when it was there before
}

type repeat struct{ ask, made int }

type userKey struct {
	template uint64
	user     string
}

type userQuota struct{ taken, added int64 }

func (s *Store) issueIn(ctx context.Context, tx *txn, is *issue) error {
	if err := s.queryRow(ctx, tx, stmtIssueStart, []any{&is.now, &is.step}); err != nil {
		return err
	}
	if err := s.readKeys(ctx, tx, is); err != nil {
		return err
	}
	if err := s.readStock(ctx, tx, is); err != nil {
		return err
	}
	is.decide()
	if err := s.recheckRefused(ctx, tx, is); err != nil {
		return err
	}
	if err := s.writeRefusals(ctx, tx, is); err != nil {
		return err
	}
	if len(is.made) == 0 {
		return nil
	}
	if err := s.insertCoupons(ctx, tx, is); err != nil {
		return err
	}
	if err := s.insertKeys(ctx, tx, is); err != nil {
		return err
	}
	if err := s.addUserQuota(ctx, tx, is); err != nil {
		return err
	}
	if err := s.record(ctx, tx, is.now, is.made); err != nil {
		return err
	}
	is.answerMade()
	return s.reserveStock(ctx, tx, is)
}

// answerMade fills in what is known only once the coupons have ids.
func (is *issue) answerMade() {
	for i := range is.made {
		is.answers[is.makers[i]] = coupon.Granted{CouponID: is.made[i].CouponID, ExpiresAt: is.made[i].ExpiresAt}
	}
	for _, r := range is.repeats {
		is.answers[r.ask] = coupon.Granted{
			CouponID: is.made[r.made].CouponID, ExpiresAt: is.made[r.made].ExpiresAt, Repeated: true,
		}
	}
}

// writeRefusals tells the refused grants so, in the order they came.
func (s *Store) writeRefusals(ctx context.Context, tx *txn, is *issue) error {
	rows := make([]outboxRow, 0, len(is.refused))
	for _, i := range is.refused {
		a := &is.asks[i]
		key, id, body, err := s.codec.Refused(a.Grant, is.answers[i], is.now)
		if err != nil {
			return fmt.Errorf("encode refusal of a grant: %w", err)
		}
		rows = append(rows, outboxRow{
			lane: LaneEvent, part: keyPartition(a.Key), msgID: id, key: key, class: ' ', body: body, trace: a.Trace,
		})
	}
	return s.writeOutbox(ctx, tx, rows)
}

// keyPartition is the outbox partition of what concerns a key and no coupon.
func keyPartition(key string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return int(h.Sum32() % coupon.Partitions)
}

// contentHash tells whether two grants ask for the same. It covers the instants as asked, not as resolved: a grant by
// rule stays the same grant the day after. Stored for ever, so it never changes.
func contentHash(g coupon.Grant) [sha256.Size]byte {
	b := make([]byte, 0, 256)
	b = append(b, "lapse.grant.1"...)
	b = binary.BigEndian.AppendUint64(b, g.TemplateID)
	b = appendText(b, g.UserID)
	b = appendText(b, g.BatchID)
	b = appendInstant(b, g.ValidFrom)
	b = appendInstant(b, g.ExpiresAt)
	return sha256.Sum256(b)
}

func appendText(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

func appendInstant(b []byte, t time.Time) []byte {
	switch {
	case t.IsZero():
		return append(b, 0)
	case coupon.IsNever(t):
		return append(b, 1)
	default:
		b = append(b, 2)
		b = binary.BigEndian.AppendUint64(b, uint64(t.Unix()))
		return binary.BigEndian.AppendUint32(b, uint32(t.Nanosecond()))
	}
}
