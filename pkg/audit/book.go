package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// book keeps what was asked for and what was heard.
type book struct {
	mu     sync.Mutex
	asks   map[string]Ask // by grant key
	ends   []time.Time    // of the coupons that are to end, sorted up to sorted
	sorted bool
	heard  int // events, all of them

	issued   map[string]string // coupon id → grant key, from coupon.issued
	granted  int               // issued events of coupons that are to end
	expired  map[string]*heard // coupon.expired events by source and id
	refused  map[string]int    // codes of coupon.refused
	others   map[string]int    // further types
	strange  []string          // events that do not keep the contract
	nStrange int
	recent   []time.Duration // lateness of the last expired events heard, a ring
	turn     int
}

// heard is a coupon.expired event.
type heard struct {
	id        string
	coupon    string
	user      string
	version   uint32
	expiresAt time.Time
	expiredAt time.Time
	from, by  time.Time // bounds of the database's clock when it was first heard
	times     int
}

const (
	recentEvents = 1000
	maxStrange   = 8
)

func newBook() book {
	return book{
		asks: make(map[string]Ask), issued: make(map[string]string), expired: make(map[string]*heard),
		refused: make(map[string]int), others: make(map[string]int),
	}
}

func (b *book) expect(asks []Ask) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ask := range asks {
		if _, known := b.asks[ask.Key]; known {
			continue
		}
		b.asks[ask.Key] = ask
		if ask.Waiting {
			continue
		}
		b.ends = append(b.ends, ask.End)
		b.sorted = false
	}
}

type envelope struct {
	ID     string          `json:"id"`
	Source string          `json:"source"`
	Type   string          `json:"type"`
	Data   json.RawMessage `json:"data"`
}

// hear takes one event: its body, whether the broker says that it delivers it again, and the bounds of the
// database's clock now.
func (b *book) hear(body []byte, redelivered bool, low, high time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard++
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil || e.ID == "" || e.Type == "" {
		b.odd("an event that is no CloudEvent: %.120q", body)
		return
	}
	switch e.Type {
	case "coupon.issued.v1":
		b.hearIssued(e)
	case "coupon.expired.v1":
		b.hearExpired(e, redelivered, low, high)
	case "coupon.refused.v1":
		var d struct {
			Code string `json:"code"`
		}
		if err := json.Unmarshal(e.Data, &d); err != nil || d.Code == "" {
			b.odd("event %s has no code", e.ID)
		}
		b.refused[d.Code]++
	default:
		b.others[e.Type]++
	}
}

func (b *book) hearIssued(e envelope) {
	var d struct {
		CouponID string `json:"coupon_id"`
		GrantKey string `json:"grant_key"`
	}
	if err := json.Unmarshal(e.Data, &d); err != nil || d.CouponID == "" {
		b.odd("event %s has no coupon_id", e.ID)
		return
	}
	if _, again := b.issued[d.CouponID]; again {
		return
	}
	b.issued[d.CouponID] = d.GrantKey
	if ask, ok := b.asks[d.GrantKey]; ok && !ask.Waiting {
		b.granted++
	}
}

func (b *book) hearExpired(e envelope, redelivered bool, low, high time.Time) {
	key := e.Source + " " + e.ID
	if known := b.expired[key]; known != nil {
		if !redelivered { // else it may be our own unacknowledged delivery
			known.times++
		}
		return
	}
	var d struct {
		CouponID  string    `json:"coupon_id"`
		UserID    string    `json:"user_id"`
		Version   uint32    `json:"version"`
		ExpiresAt time.Time `json:"expires_at"`
		ExpiredAt time.Time `json:"expired_at"`
	}
	if err := json.Unmarshal(e.Data, &d); err != nil || d.CouponID == "" || d.ExpiredAt.IsZero() || d.ExpiresAt.IsZero() {
		b.odd("event %s lacks coupon_id, expires_at or expired_at", e.ID)
		return
	}
	if want := fmt.Sprintf("%s:%d:expired", d.CouponID, d.Version); e.ID != want {
		b.odd("event %s should have the id %s", e.ID, want)
	}
	b.expired[key] = &heard{
		id: e.ID, coupon: d.CouponID, user: d.UserID, version: d.Version,
		expiresAt: d.ExpiresAt, expiredAt: d.ExpiredAt, from: low, by: high, times: 1,
	}
	if ask, ok := b.asks[b.issued[d.CouponID]]; ok {
		late := low.Sub(ask.End)
		if len(b.recent) < recentEvents {
			b.recent = append(b.recent, late)
		} else {
			b.recent[b.turn%recentEvents] = late
		}
		b.turn++
	}
}

func (b *book) odd(format string, args ...any) {
	b.nStrange++
	if len(b.strange) < maxStrange {
		b.strange = append(b.strange, fmt.Sprintf(format, args...))
	}
}

// Progress is what was heard so far, for a live view.
type Progress struct {
	Issued  int       // coupon.issued events, of waiting coupons too
	Granted int       // coupon.issued events of coupons that are to end
	Refused int       // coupon.refused events
	Last    time.Time // the last end asked for
	Ended   int       // asked ends that have passed on the database's clock
	Expired int       // coupon.expired events
	P50     time.Duration
	Max     time.Duration // lateness of the last thousand events, when heard
}

// Progress reads no server.
func (a *Audit) Progress() Progress {
	now := a.Now()
	b := &a.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.sorted {
		slices.SortFunc(b.ends, time.Time.Compare)
		b.sorted = true
	}
	p := Progress{
		Issued: len(b.issued), Granted: b.granted, Expired: len(b.expired),
		Ended: sort.Search(len(b.ends), func(i int) bool { return b.ends[i].After(now) }),
	}
	if n := len(b.ends); n > 0 {
		p.Last = b.ends[n-1]
	}
	for _, n := range b.refused {
		p.Refused += n
	}
	if len(b.recent) > 0 {
		late := slices.Clone(b.recent)
		slices.Sort(late)
		p.P50, p.Max = late[rank(len(late), 50)], late[len(late)-1]
	}
	return p
}

// Answered counts the grants heard of as issued or refused.
func (a *Audit) Answered() int {
	b := &a.book
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.issued)
	for _, refused := range b.refused {
		n += refused
	}
	return n
}

// Refusals renders the codes of refused grants, most first.
func (a *Audit) Refusals() string {
	b := &a.book
	b.mu.Lock()
	defer b.mu.Unlock()
	return counted(b.refused)
}

func counted(m map[string]int) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y string) int {
		if m[x] != m[y] {
			return m[y] - m[x]
		}
		return strings.Compare(x, y)
	})
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%d × %s", m[k], k)
	}
	return strings.Join(keys, ", ")
}

// Heard counts the events heard so far, of every type, repeats too.
func (a *Audit) Heard() int {
	a.book.mu.Lock()
	defer a.book.mu.Unlock()
	return a.book.heard
}
