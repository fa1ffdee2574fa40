package notice_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/policy"
	"github.com/lapsehq/lapse/pkg/notice/text"
)

// row is a notice in the book.
type row struct {
	coupon.Notice
	state  coupon.NoticeState
	reason string
	tryAt  time.Time
	ref    string
}

// book is a store for the loops: windows that are due at instants, and notices. It keeps to the protocol of the real one.
type book struct {
	wrong   time.Duration // by which the process's own clock is
	mu      sync.Mutex
	windows map[uint64]*coupon.Closed
	due     map[uint64]time.Time
	rows    map[string]*row // by id
	looks   []time.Time     // at due windows of what has expired
	claims  map[coupon.Channel]int
	most    int               // claimed at a time
	gone    map[string]string // by notice: why it does not stand
	profile func(user string) coupon.Profile
	fail    func(call string) error
	slow    time.Duration // of preparing
}

func newBook() *book {
	return &book{
		windows: map[uint64]*coupon.Closed{}, due: map[uint64]time.Time{}, rows: map[string]*row{}, claims: map[coupon.Channel]int{},
		gone: map[string]string{}, fail: func(string) error { return nil },
		profile: func(user string) coupon.Profile { return coupon.Profile{UserID: user} },
	}
}

// open has a window that is to be closed at the instant.
func (b *book) open(w coupon.Closed, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.windows[w.WindowID], b.due[w.WindowID] = &w, at
}

// put has a notice that may be sent from now on.
func (b *book) put(n coupon.Notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.NotAfter.IsZero() {
		n.NotAfter = coupon.Never
	}
	if n.Kind == "" {
		n.Kind = coupon.NoticeExpired
	}
	n.Items = max(1, n.Items)
	b.rows[n.ID()] = &row{Notice: n, state: coupon.NoticePending, tryAt: time.Now()}
}

func (b *book) get(window uint64, ch coupon.Channel) row {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.rows[coupon.NoticeID(window, ch)]; r != nil {
		return *r
	}
	return row{}
}

func (b *book) count(ch coupon.Channel, state coupon.NoticeState) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.rows {
		if r.Channel == ch && r.state == state {
			n++
		}
	}
	return n
}

func (b *book) looked() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.looks)
}

func (b *book) CloseNotices(ctx context.Context, p coupon.ClosePlan) (coupon.Closing, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.Kind == coupon.NoticeExpired {
		b.looks = append(b.looks, time.Now())
	}
	if err := errors.Join(b.fail("close"), ctx.Err()); err != nil {
		return coupon.Closing{}, err
	}
	c := coupon.Closing{Now: time.Now(), Suppressed: make(map[string]int)}
	for id, at := range b.due {
		w := b.windows[id]
		switch {
		case w.Kind != p.Kind:
		case at.After(c.Now):
			if c.Next.IsZero() || at.Before(c.Next) {
				c.Next = at
			}
		case c.Windows == p.Limit:
			c.More = true
		default:
			delete(b.due, id)
			c.Windows++
			for _, n := range p.Decide(c.Now, w).Notices {
				r := &row{
					Notice: coupon.Notice{WindowID: id, Channel: n.Channel, UserID: w.UserID, Kind: w.Kind, Slot: w.Slot, Items: w.Items, NotAfter: n.NotAfter},
					state:  n.State, reason: n.Reason, tryAt: n.SendAt,
				}
				for _, ch := range n.Next {
					r.Next += string(ch) + ","
				}
				r.Next = strings.TrimSuffix(r.Next, ",")
				b.rows[r.ID()] = r
				if n.State == coupon.NoticeSuppressed {
					c.Suppressed[n.Reason]++
				} else if !n.SendAt.After(c.Now) {
					c.Pending = append(c.Pending, r.Notice)
				}
			}
		}
	}
	return c, b.fail("closed") // the commit went through and the answer was lost
}

func (b *book) ClaimNotices(ctx context.Context, ch coupon.Channel, lease time.Duration, limit int) ([]coupon.Notice, map[coupon.NoticeKind]int, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := errors.Join(b.fail("claim"), ctx.Err()); err != nil {
		return nil, nil, false, err
	}
	b.claims[ch]++
	var due []*row
	unknown := make(map[coupon.NoticeKind]int)
	for _, r := range b.rows {
		if r.Channel != ch || r.tryAt.After(time.Now()) {
			continue
		}
		switch r.state {
		case coupon.NoticeSending:
			r.state = coupon.NoticeUnknown
			unknown[r.Kind]++
		case coupon.NoticePending:
			due = append(due, r)
		default:
		}
	}
	slices.SortFunc(due, func(x, y *row) int { return cmp.Or(x.tryAt.Compare(y.tryAt), cmp.Compare(x.WindowID, y.WindowID)) })
	var ns []coupon.Notice
	for _, r := range due[:min(len(due), limit)] {
		r.tryAt = time.Now().Add(lease)
		r.Attempt++
		ns = append(ns, r.Notice)
	}
	b.most = max(b.most, len(ns))
	return ns, unknown, false, nil
}

// claimed is how often the channel has asked.
func (b *book) claimed(ch coupon.Channel) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.claims[ch]
}

func (b *book) PrepareNotices(ctx context.Context, ch coupon.Channel, ns []coupon.Notice, _ coupon.Cap, atMostOnce bool,
	_ func(time.Time, *coupon.Profile) time.Time,
) ([]coupon.Prepared, error) {
	b.mu.Lock()
	slow := b.slow
	b.mu.Unlock()
	pass(slow)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := errors.Join(b.fail("prepare"), ctx.Err()); err != nil {
		return nil, err
	}
	var ps []coupon.Prepared
	for _, n := range ns {
		r := b.rows[n.ID()]
		if r.state != coupon.NoticePending || r.Attempt != n.Attempt || r.Channel != ch {
			continue
		}
		p := coupon.Prepared{Notice: r.Notice, Now: time.Now(), Items: r.Items, Profile: b.profile(r.UserID), Suppressed: b.gone[n.ID()]}
		p.EndsAt = n.NotAfter
		if p.Suppressed != "" {
			r.state, r.reason = coupon.NoticeSuppressed, p.Suppressed
			b.handOn(r)
		} else if atMostOnce {
			r.state = coupon.NoticeSending
		}
		ps = append(ps, p)
	}
	return ps, b.fail("prepared")
}

func (b *book) SettleNotices(ctx context.Context, ch coupon.Channel, rs []coupon.NoticeResult) (settled, fallbacks int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := errors.Join(b.fail("settle"), ctx.Err()); err != nil {
		return 0, 0, err
	}
	for _, x := range rs {
		r := b.rows[coupon.NoticeID(x.WindowID, ch)]
		if r == nil || r.Attempt != x.Attempt || r.state != coupon.NoticePending && r.state != coupon.NoticeSending {
			continue
		}
		settled++
		r.state, r.reason, r.ref, r.tryAt = x.State, x.Reason, x.Ref, x.TryAt
		if b.handOn(r) {
			fallbacks++
		}
	}
	return settled, fallbacks, b.fail("settled")
}

// handOn starts the rest of the chain of a notice that its channel did not tell.
func (b *book) handOn(r *row) bool {
	if r.Next == "" || r.state != coupon.NoticeFailed && (r.state != coupon.NoticeSuppressed || !coupon.HandsOn(r.reason)) {
		return false
	}
	next, rest, _ := strings.Cut(r.Next, ",")
	n := r.Notice
	n.Channel, n.Next, n.Attempt = coupon.Channel(next), rest, 0
	if b.rows[n.ID()] != nil {
		return false
	}
	b.rows[n.ID()] = &row{Notice: n, state: coupon.NoticePending, tryAt: time.Now()}
	return true
}

func (b *book) DeliverInbox(ctx context.Context, es []coupon.InboxEntry) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := errors.Join(b.fail("inbox"), ctx.Err()); err != nil {
		return 0, err
	}
	n := 0
	for i := range es {
		if r := b.rows[es[i].ID()]; r.state == coupon.NoticePending {
			r.state = coupon.NoticeSent
			n++
		}
	}
	return n, nil
}

// far is a channel with a provider: what it does to each message is up to the test.
type far struct {
	name coupon.Channel
	once bool
	does func(ctx context.Context, m notice.Message) notice.Result

	mu     sync.Mutex
	got    []notice.Message
	at     []time.Time
	flying int
	most   int
}

func (f *far) Name() coupon.Channel { return f.name }
func (*far) Batch() int             { return 1 }
func (f *far) AtMostOnce() bool     { return f.once }

func (f *far) Deliver(ctx context.Context, ms []notice.Message) []notice.Result {
	f.mu.Lock()
	f.got, f.at = append(f.got, ms...), append(f.at, time.Now())
	f.flying++
	f.most = max(f.most, f.flying)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.flying--
	}()
	if f.does == nil {
		return make([]notice.Result, len(ms))
	}
	return []notice.Result{f.does(ctx, ms[0])}
}

func (f *far) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.at)
}

// hangs is a provider that never answers.
func hangs(ctx context.Context, _ notice.Message) notice.Result {
	<-ctx.Done()
	return notice.Result{Outcome: notice.Unknown, Reason: "timeout"}
}

// pod is closer and sender over a book.
type pod struct {
	closer *notice.Closer
	sender *notice.Sender
	reg    *prometheus.Registry
}

// openAddresses has no key for the user "sealed".
type openAddresses struct{}

func (openAddresses) Addresses(p *coupon.Profile) (coupon.Addresses, error) {
	if p.UserID == "sealed" {
		return coupon.Addresses{}, errors.New("no such key")
	}
	return coupon.Addresses{Email: p.UserID + "@example.com", Phone: "+861380000" + p.UserID, Push: "token-" + p.UserID}, nil
}

func newPod(t testing.TB, b *book, log *zap.Logger, change func(*notice.Config), channels ...notice.Channel) pod {
	t.Helper()
	c := notice.DefaultConfig()
	c.Channels = nil
	for _, ch := range channels {
		c.Channels = append(c.Channels, string(ch.Name()))
	}
	if change != nil {
		change(&c)
	}
	rules, err := policy.New(c.Policy, c.Names())
	require.NoError(t, err)
	texts, err := text.New(c.Locale)
	require.NoError(t, err)
	p := pod{reg: prometheus.NewRegistry()}
	m := notice.NewMetrics(p.reg, c.Names())
	p.sender, err = notice.NewSender(c, notice.SenderDeps{
		Store: b, Policy: rules, Texts: texts, Addresses: openAddresses{}, Metrics: m, Log: log,
		Now: func() time.Time { return time.Now().Add(b.wrong) },
	}, channels)
	require.NoError(t, err)
	p.closer, err = notice.NewCloser(c, notice.CloserDeps{
		Store: b, Decide: rules.Decide, Ring: p.sender.Ring, Metrics: m, Log: log,
	})
	require.NoError(t, err)
	return p
}

// pass lets the bubble's clock go on; nothing waits.
func pass(d time.Duration) {
	if d > 0 {
		time.Sleep(d) //nolint:forbidigo // in a synctest bubble
	}
}

// running runs loops beside the test until they end.
func running(t testing.TB, loops ...func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, len(loops))
	for _, loop := range loops {
		go func() { done <- loop(ctx) }()
	}
	return func() {
		cancel()
		for range loops {
			require.NoError(t, <-done)
		}
	}
}
