package lapsetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

// memory is what the store's tables hold. One lock is held by whatever reads or changes it, so that every act is one
// transaction, at one instant.
type memory struct {
	codec     *event.Codec
	reminders coupon.Reminders
	keepKeys  time.Duration // of the API
	outage    atomic.Bool

	mu        sync.Mutex
	now       time.Time // whole milliseconds
	templates map[uint64]*template
	coupons   map[uint64]*coupon.Coupon
	history   map[uint64][]coupon.Transition
	granted   map[grantKey]*granted
	graves    map[grave]*tombstone
	keys      map[idemKey]*idem
	events    []Event
}

// template is one with what it has issued.
type template struct {
	coupon.Template
	users map[string]int64 // what each user has of it, if the template counts that
	days  map[string]*coupon.DayStats
}

type grantKey struct{ issuer, key string }

// granted is a key's first answer.
type granted struct {
	grant     coupon.Grant
	couponID  uint64
	expiresAt time.Time
}

type grave struct {
	couponID uint64
	orderID  string
}

// tombstone remembers that an order is over.
type tombstone struct{ closed, refunded bool }

func newMemory(codec *event.Codec, r coupon.Reminders, keepKeys time.Duration, start time.Time) *memory {
	return &memory{
		codec: codec, reminders: r, keepKeys: keepKeys, now: start.UTC().Truncate(time.Millisecond),
		templates: map[uint64]*template{}, coupons: map[uint64]*coupon.Coupon{}, history: map[uint64][]coupon.Transition{},
		granted: map[grantKey]*granted{}, graves: map[grave]*tombstone{}, keys: map[idemKey]*idem{},
	}
}

// enter takes the lock, unless there is an outage; leave gives it back.
func (m *memory) enter() (leave func(), err error) {
	if m.outage.Load() {
		return nil, coupon.ErrUnavailable
	}
	m.mu.Lock()
	return m.mu.Unlock, nil
}

// CreateTemplate keeps the first revision.
func (m *memory) CreateTemplate(_ context.Context, t coupon.Template) (uint64, error) {
	leave, err := m.enter()
	if err != nil {
		return 0, err
	}
	defer leave()
	return m.create(t)
}

// CreateTemplateOnce notes the id with the key.
func (m *memory) CreateTemplateOnce(_ context.Context, t coupon.Template, caller, key string) (uint64, error) {
	leave, err := m.enter()
	if err != nil {
		return 0, err
	}
	defer leave()
	return once(m, caller, key, func() (uint64, error) { return m.create(t) })
}

// once does it and notes the answer with the key.
func once[T uint32 | uint64](m *memory, caller, key string, do func() (T, error)) (T, error) {
	i, err := m.markable(caller, key)
	if err != nil {
		return 0, err
	}
	answer, err := do()
	if err == nil {
		i.answer = []byte(strconv.FormatUint(uint64(answer), 10))
	}
	return answer, err
}

func (m *memory) create(t coupon.Template) (uint64, error) {
	if err := t.Validate(); err != nil {
		return 0, err //nolint:wrapcheck // names the field
	}
	t.ID, t.Revision, t.Taken, t.Stopped = uint64(len(m.templates)+1), 1, 0, false
	m.templates[t.ID] = &template{users: map[string]int64{}, days: map[string]*coupon.DayStats{}}
	m.keep(t)
	return t.ID, nil
}

// keep makes it the revision that issues now.
func (m *memory) keep(t coupon.Template) {
	t.Terms = t.Terms.Defaults()
	t.Terms.TemplateID, t.Terms.Revision, t.CreatedAt = t.ID, t.Revision, m.now
	t.Terms.Offer.Scopes = slices.Clone(t.Terms.Offer.Scopes)
	m.templates[t.ID].Template = t
}

// ReviseTemplate keeps the next revision, if nobody was quicker.
func (m *memory) ReviseTemplate(_ context.Context, t coupon.Template) (uint32, error) {
	leave, err := m.enter()
	if err != nil {
		return 0, err
	}
	defer leave()
	return m.revise(t)
}

// ReviseTemplateOnce notes the revision with the key.
func (m *memory) ReviseTemplateOnce(_ context.Context, t coupon.Template, caller, key string) (uint32, error) {
	leave, err := m.enter()
	if err != nil {
		return 0, err
	}
	defer leave()
	return once(m, caller, key, func() (uint32, error) { return m.revise(t) })
}

func (m *memory) revise(t coupon.Template) (uint32, error) {
	if err := t.Validate(); err != nil {
		return 0, err //nolint:wrapcheck // names the field
	}
	was := m.templates[t.ID]
	if was == nil || was.Revision != t.Revision {
		return 0, fmt.Errorf("template %d revision %d: %w", t.ID, t.Revision, coupon.ErrConflict)
	}
	t.Revision++
	t.Taken, t.Stopped = was.Taken, was.Stopped
	m.keep(t)
	return t.Revision, nil
}

// Template gives the revision that issues now.
func (m *memory) Template(_ context.Context, id uint64) (coupon.Template, error) {
	leave, err := m.enter()
	if err != nil {
		return coupon.Template{}, err
	}
	defer leave()
	t := m.templates[id]
	if t == nil {
		return coupon.Template{}, fmt.Errorf("template %d: %w", id, coupon.ErrNotFound)
	}
	return t.Template, nil
}

// Templates lists them in the order of ids.
func (m *memory) Templates(_ context.Context, from uint64, limit int) ([]coupon.Template, error) {
	leave, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	var out []coupon.Template
	for id := max(from, 1); id <= uint64(len(m.templates)) && len(out) < limit; id++ {
		out = append(out, m.templates[id].Template)
	}
	return out, nil
}

// StopTemplate makes a template issue no more, or again.
func (m *memory) StopTemplate(_ context.Context, id uint64, stopped bool, _, _ string) error {
	leave, err := m.enter()
	if err != nil {
		return err
	}
	defer leave()
	t := m.templates[id]
	if t == nil {
		return fmt.Errorf("template %d: %w", id, coupon.ErrNotFound)
	}
	t.Stopped = stopped
	return nil
}

// TemplateStats gives the days on which there was anything.
func (m *memory) TemplateStats(_ context.Context, id uint64, from, to time.Time) ([]coupon.DayStats, error) {
	leave, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	t := m.templates[id]
	if t == nil {
		return nil, fmt.Errorf("template %d: %w", id, coupon.ErrNotFound)
	}
	var out []coupon.DayStats
	first, last := from.UTC().Format(time.DateOnly), to.UTC().Format(time.DateOnly)
	for day, d := range t.days {
		if day >= first && day <= last && *d != (coupon.DayStats{Day: d.Day}) {
			out = append(out, *d)
		}
	}
	slices.SortFunc(out, func(a, b coupon.DayStats) int { return a.Day.Compare(b.Day) })
	return out, nil
}

// record keeps what transitions leave behind: history, events, statistics, and the quota that one gives back. Those of one
// coupon follow one another.
func (m *memory) record(ts []coupon.Transition) error {
	for i := range ts {
		t := &ts[i]
		key, id, body, err := m.codec.Transition(*t)
		if err != nil {
			return fmt.Errorf("event of a transition: %w", err)
		}
		m.tell(key, id, body, t.At, t.CouponID)
		m.history[t.CouponID] = append(m.history[t.CouponID], *t)
		m.count(t)
		if rest := ts[i+1:]; len(rest) == 0 || rest[0].CouponID != t.CouponID {
			m.giveBack(t)
		}
	}
	return nil
}

func (m *memory) count(t *coupon.Transition) {
	day := t.At.UTC().Format(time.DateOnly)
	tpl := m.templates[t.Terms.TemplateID]
	d := tpl.days[day]
	if d == nil {
		d = &coupon.DayStats{Day: t.At.UTC().Truncate(24 * time.Hour)}
		tpl.days[day] = d
	}
	d.Count(&coupon.Counted{
		CouponID: t.CouponID, Version: t.Version, TemplateID: t.Terms.TemplateID, From: t.From, To: t.To, Moved: t.From == t.To, At: t.At, Value: t.Terms.Value,
	})
}

// giveBack returns the quota of a coupon that is over without use.
func (m *memory) giveBack(t *coupon.Transition) {
	if t.To != coupon.Expired && t.To != coupon.Voided {
		return
	}
	tpl := m.templates[t.Terms.TemplateID]
	switch t.Terms.QuotaBack {
	case coupon.QuotaBackTotalAndUser:
		tpl.users[t.UserID] = max(0, tpl.users[t.UserID]-1)
		fallthrough
	case coupon.QuotaBackTotal:
		tpl.Taken = max(0, tpl.Taken-1)
	case coupon.QuotaBackNone:
	default:
	}
}

// sorted gives the coupons that are asked for, in an order of theirs.
func (m *memory) sorted(wanted func(*coupon.Coupon) bool, order func(a, b *coupon.Coupon) int) []*coupon.Coupon {
	var out []*coupon.Coupon
	for _, c := range m.coupons {
		if wanted(c) {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *coupon.Coupon) int { return cmp.Or(order(a, b), cmp.Compare(a.ID, b.ID)) })
	return out
}
