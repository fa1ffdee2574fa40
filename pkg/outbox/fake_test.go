package outbox_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
)

const refusalLimit = 20

// fakeStore is the outbox in memory; it passes the same conformance suite as the real store.
type fakeStore struct {
	now func() time.Time

	mu     sync.Mutex
	next   uint64
	rows   []coupon.Outgoing
	parked []uint64
	owner  [coupon.Partitions]string
	until  [coupon.Partitions]time.Time
	asked  map[string]time.Time
	fail   error // of every call
	reads  int
}

func newFakeStore(now func() time.Time) *fakeStore {
	return &fakeStore{now: now, asked: make(map[string]time.Time)}
}

func (f *fakeStore) insert(rows ...coupon.Outgoing) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range rows {
		f.next++
		r.ID = f.next
		f.rows = append(f.rows, r)
	}
}

// begin takes ids for rows that are seen only after the commit.
func (f *fakeStore) begin(rows ...coupon.Outgoing) (commit func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range rows {
		f.next++
		rows[i].ID = f.next
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rows = append(f.rows, rows...)
		slices.SortFunc(f.rows, func(a, b coupon.Outgoing) int { return cmp.Compare(a.ID, b.ID) })
	}
}

func (f *fakeStore) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.rows)
}

func (f *fakeStore) readings() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

func (f *fakeStore) aside() []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.parked)
}

// waiting gives the rows as they are.
func (f *fakeStore) waiting() []coupon.Outgoing {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.rows)
}

func (f *fakeStore) break_(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func (f *fakeStore) ClaimParts(_ context.Context, owner string, lease time.Duration) (coupon.OutboxClaim, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return coupon.OutboxClaim{}, f.fail
	}
	now := f.now()
	var c coupon.OutboxClaim
	live := []string{owner}
	for p, o := range f.owner {
		if o == owner {
			f.until[p] = now.Add(lease)
			c.Parts = append(c.Parts, p)
		} else if o != "" && f.until[p].After(now) {
			live = append(live, o)
		}
	}
	if len(c.Parts) == 0 {
		f.asked[owner] = now.Add(lease)
	}
	for o, until := range f.asked {
		if until.After(now) {
			live = append(live, o)
		}
	}
	slices.Sort(live)
	live = slices.Compact(live)
	c.Live = len(live)
	share := coupon.Partitions / len(live)
	if slices.Index(live, owner) < coupon.Partitions%len(live) {
		share++
	}
	if len(c.Parts) > share {
		c.Surplus = slices.Clone(c.Parts[share:])
	}
	for p := range f.owner {
		if len(c.Parts) < share && f.owner[p] != owner && !f.until[p].After(now) {
			f.owner[p], f.until[p] = owner, now.Add(lease)
			c.Parts = append(c.Parts, p)
		}
	}
	slices.Sort(c.Parts)
	return c, nil
}

func (f *fakeStore) ReleaseParts(_ context.Context, owner string, parts []int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range parts {
		if f.owner[p] == owner {
			f.owner[p], f.until[p] = "", time.Time{}
		}
	}
	return f.fail
}

func (f *fakeStore) LeaveParts(_ context.Context, owner string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p, o := range f.owner {
		if o == owner {
			f.owner[p], f.until[p] = "", time.Time{}
		}
	}
	delete(f.asked, owner)
	return f.fail
}

func (f *fakeStore) OutboxBatch(_ context.Context, lane int, from []coupon.OutboxCursor, limit int) (
	rows []coupon.Outgoing, now time.Time, rest []coupon.OutboxCursor, err error,
) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if f.fail != nil || len(from) == 0 {
		return nil, now, nil, f.fail
	}
	each := (limit + len(from) - 1) / len(from)
	at := make(map[int]coupon.OutboxCursor, len(from))
	for _, c := range from {
		at[c.Part] = c
	}
	var taken [coupon.Partitions]int
	var end [coupon.Partitions]uint64 // the last row taken
	var upto [coupon.Partitions]uint64
	for i := range f.rows {
		r := &f.rows[i]
		c, asked := at[r.Part]
		if !asked || r.Lane != lane || r.ID <= c.After || (c.Upto != 0 && r.ID > c.Upto) {
			continue
		}
		upto[r.Part] = max(c.Upto, r.ID)
		if taken[r.Part] < each {
			taken[r.Part], end[r.Part] = taken[r.Part]+1, r.ID
			rows = append(rows, *r)
		}
	}
	slices.SortStableFunc(rows, func(a, b coupon.Outgoing) int { return cmp.Compare(a.Part, b.Part) })
	for _, c := range from {
		if end[c.Part] < upto[c.Part] && taken[c.Part] == each {
			rest = append(rest, coupon.OutboxCursor{Part: c.Part, After: end[c.Part], Upto: upto[c.Part]})
		}
	}
	if len(rows) > 0 {
		now = f.now()
	}
	return rows, now, rest, nil
}

func (f *fakeStore) DeleteOutbox(_ context.Context, lane int, confirmed map[int][]uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	gone := make(map[uint64]bool)
	for _, ids := range confirmed {
		for _, id := range ids {
			gone[id] = true
		}
	}
	f.rows = slices.DeleteFunc(f.rows, func(r coupon.Outgoing) bool { return r.Lane == lane && gone[r.ID] })
	return nil
}

func (f *fakeStore) RefuseOutbox(_ context.Context, lane int, refused map[int][]coupon.OutboxRefusal) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return 0, f.fail
	}
	no := make(map[uint64]bool)
	for _, list := range refused {
		for _, x := range list {
			no[x.ID] = true
		}
	}
	parked := len(f.parked)
	f.rows = slices.DeleteFunc(f.rows, func(r coupon.Outgoing) bool {
		return r.Lane == lane && r.Refused == refusalLimit-1 && no[r.ID] && f.park(r.ID)
	})
	for i, r := range f.rows {
		if r.Lane == lane && no[r.ID] {
			f.rows[i].Refused++
		}
	}
	return len(f.parked) - parked, nil
}

func (f *fakeStore) park(id uint64) bool {
	f.parked = append(f.parked, id)
	return true
}

// fakeBroker notes what was sent, in order, and answers as it is told. It is both the delay mechanism and the events'
// publisher.
type fakeBroker struct {
	mu     sync.Mutex
	sent   []string
	at     []time.Time // the clock that Deliver was given
	calls  int
	answer func(id string, nth int) error // nth time that this id is sent; nil: all confirmed
	times  map[string]int
	enter  func(calls int) // called before each call, without the lock
}

func (b *fakeBroker) send(ids []string) []error {
	b.mu.Lock()
	b.calls++
	calls, enter := b.calls, b.enter
	b.mu.Unlock()
	if enter != nil {
		enter(calls)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.times == nil {
		b.times = make(map[string]int)
	}
	errs := make([]error, len(ids))
	for i, id := range ids {
		b.times[id]++
		if b.answer != nil {
			errs[i] = b.answer(id, b.times[id])
		}
		if errs[i] == nil || errors.Is(errs[i], broker.ErrUnknown) {
			b.sent = append(b.sent, id)
		}
	}
	return errs
}

// tries tells how often a message was sent, answered with no or not.
func (b *fakeBroker) tries(id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.times[id]
}

func (b *fakeBroker) called() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

func (b *fakeBroker) clocks() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.at)
}

func (b *fakeBroker) list() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sent)
}

func (b *fakeBroker) Publish(_ context.Context, ms []broker.Message) []error {
	ids := make([]string, len(ms))
	for i, m := range ms {
		if ids[i] = m.ID; m.Exchange == bundles {
			ids[i] = fmt.Sprint(m.Key, " of ", strings.ReplaceAll(string(m.Body), "\n", " "))
		}
	}
	return b.send(ids)
}

const bundles = "p.bundles"

func (b *fakeBroker) Deliver(_ context.Context, now time.Time, ts []coupon.Timed) []error {
	ids := make([]string, len(ts))
	for i, x := range ts {
		ids[i] = x.ID
	}
	errs := b.send(ids)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at = append(b.at, now)
	return errs
}
