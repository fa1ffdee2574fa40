package lapsetest

import (
	"bytes"
	"context"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

type idemKey struct{ caller, key string }

// idem is a request with a key: at work while its status is 0, until its lease ends.
type idem struct {
	hash    [32]byte
	status  int
	answer  []byte // or, at work, the mark of what an earlier try made
	lease   time.Time
	created time.Time
}

// BeginIdempotent says what is to be done with a request that bears a key.
func (m *memory) BeginIdempotent(_ context.Context, caller, key string, body [32]byte, lease time.Duration) (coupon.Idempotent, error) {
	leave, err := m.enter()
	if err != nil {
		return coupon.Idempotent{}, err
	}
	defer leave()
	at := idemKey{caller, key}
	i := m.keys[at]
	switch {
	case i == nil:
		m.keys[at] = &idem{hash: body, lease: m.now.Add(lease), created: m.now}
		return coupon.Idempotent{State: coupon.IdempotentFresh}, nil
	case i.hash != body:
		return coupon.Idempotent{State: coupon.IdempotentReused}, nil
	case i.status != 0:
		return coupon.Idempotent{State: coupon.IdempotentAnswered, Status: i.status, Answer: bytes.Clone(i.answer)}, nil
	case i.lease.After(m.now):
		return coupon.Idempotent{State: coupon.IdempotentBusy}, nil
	default:
		i.lease = m.now.Add(lease)
		return coupon.Idempotent{State: coupon.IdempotentFresh, Answer: bytes.Clone(i.answer)}, nil
	}
}

// FinishIdempotent remembers the answer.
func (m *memory) FinishIdempotent(_ context.Context, caller, key string, status int, answer []byte) error {
	leave, err := m.enter()
	if err != nil {
		return err
	}
	defer leave()
	i := m.keys[idemKey{caller, key}]
	if i == nil || i.status != 0 || len(i.answer) > 0 && status >= 400 {
		return coupon.ErrConflict
	}
	i.status, i.answer = status, bytes.Clone(answer)
	return nil
}

// AbandonIdempotent gives a key back; a mark is kept.
func (m *memory) AbandonIdempotent(_ context.Context, caller, key string) error {
	m.mu.Lock() // also while there is an outage: nobody could give it back later
	defer m.mu.Unlock()
	at := idemKey{caller, key}
	i := m.keys[at]
	switch {
	case i == nil || i.status != 0:
	case len(i.answer) == 0:
		delete(m.keys, at)
	default:
		i.lease = m.now
	}
	return nil
}

// PruneIdempotent forgets old keys.
func (m *memory) PruneIdempotent(_ context.Context, age time.Duration, limit int) (int, error) {
	leave, err := m.enter()
	if err != nil {
		return 0, err
	}
	defer leave()
	n := 0
	for at, i := range m.keys {
		if n < limit && i.created.Before(m.now.Add(-age)) && i.lease.Before(m.now) {
			delete(m.keys, at)
			n++
		}
	}
	return n, nil
}

// markable is the row of a key at work that has no mark yet.
func (m *memory) markable(caller, key string) (*idem, error) {
	i := m.keys[idemKey{caller, key}]
	if i == nil || i.status != 0 || len(i.answer) > 0 {
		return nil, coupon.ErrConflict
	}
	return i, nil
}
