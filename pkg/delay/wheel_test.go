package delay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/delay"
)

// rows is the database: unused coupons with their ends, by the instant.
type rows struct {
	mu    sync.Mutex
	all   []coupon.Timed
	reads int
	err   error
}

func (r *rows) commit(ts ...coupon.Timed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, ts...)
	slices.SortFunc(r.all, func(a, b coupon.Timed) int {
		if c := a.At.Compare(b.At); c != 0 {
			return c
		}
		return int(a.CouponID) - int(b.CouponID)
	})
}

func (r *rows) Upcoming(_ context.Context, kind coupon.Kind, parts []int, end time.Time, from coupon.Cursor, limit int) (
	ts []coupon.Timed, next coupon.Cursor, err error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	next = from
	for _, t := range r.all {
		behind := t.At.After(from.At) || t.At.Equal(from.At) && t.CouponID > from.ID
		if t.Kind == kind && behind && t.At.Before(end) && slices.Contains(parts, coupon.Partition(t.CouponID)) && len(ts) < limit {
			ts = append(ts, t)
			next = coupon.Cursor{At: t.At, ID: t.CouponID}
		}
	}
	return ts, next, r.err
}

// post notes what is published, when, and fails when it is told to.
type post struct {
	mu   sync.Mutex
	at   map[string]time.Time // the first time
	n    map[string]int
	fail int
}

func newPost() *post { return &post{at: map[string]time.Time{}, n: map[string]int{}} }

func (p *post) Ready() error { return nil }

func (p *post) Publish(_ context.Context, ms []broker.Message) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, len(ms))
	for i, m := range ms {
		if p.fail > 0 {
			p.fail--
			errs[i] = errors.New("away")
			continue
		}
		if p.n[m.ID]++; p.n[m.ID] == 1 {
			p.at[m.ID] = time.Now()
		}
	}
	return errs
}

func ring(id uint64, at time.Time) coupon.Timed {
	return coupon.Timed{ID: fmt.Sprint("v", id), Kind: coupon.KindExpire, Class: 'x', CouponID: id, At: at, Body: []byte("{}")}
}

func turn(t require.TestingT, c delay.WheelConfig, r delay.WheelRows, p delay.Publisher, parts func() []int) *delay.Wheel {
	w, err := delay.NewWheel(c, delay.WheelDeps{
		Exchange: "x", Publisher: p, Rows: r, Parts: parts, Clock: func(context.Context) (time.Time, error) { return time.Now(), nil },
	})
	require.NoError(t, err)
	return w
}

func background(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// Whatever is committed when, before the wheel turns or while it does, near or far, more or less than there is room for: each is
// published, none early, and within the time that it takes to look.
func TestTheWheelPublishesEachRowAndNoneEarly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		seed := rapid.SliceOfN(rapid.IntRange(-30, 900), 1, 150).Draw(r, "before")
		later := rapid.SliceOfN(rapid.IntRange(-30, 900), 1, 60).Draw(r, "meanwhile")
		fail := rapid.IntRange(0, 5).Draw(r, "fail")
		synctest.Test(t, func(t *testing.T) {
			c := delay.DefaultWheelConfig()
			c.Window, c.Max, c.Batch = 2*time.Minute, 100, 7
			db, p := &rows{}, newPost()
			p.fail = fail
			begin := time.Now()
			var all []coupon.Timed
			add := func(seconds int) coupon.Timed {
				one := ring(uint64(len(all)+1), time.Now().Truncate(time.Second).Add(time.Duration(seconds)*time.Second))
				all = append(all, one)
				db.commit(one)
				return one
			}
			for _, s := range seed {
				add(s)
			}
			w := turn(t, c, db, p, allParts)
			stop := background(w.Run)
			defer stop()
			for _, s := range later {
				<-time.After(1300 * time.Millisecond)
				one := add(s)
				require.NoError(t, errors.Join(w.Deliver(t.Context(), time.Now(), []coupon.Timed{one})...))
			}
			<-time.After(1000 * time.Second)
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, one := range all {
				at, ok := p.at[one.ID]
				require.True(t, ok, "%s at %s", one.ID, one.At.Sub(begin))
				require.False(t, at.Before(one.At), "%s came %s early", one.ID, one.At.Sub(at))
			}
		})
	})
}

// The memory is bounded: many more rows than there is room for pass through it, in their order.
func TestTheWheelHoldsNoMoreThanItMay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := delay.DefaultWheelConfig()
		c.Max, c.Batch = 100, 20
		db, p := &rows{}, newPost()
		at := time.Now().Add(10 * time.Second)
		for id := range uint64(1000) {
			db.commit(ring(id+1, at.Add(time.Duration(id/200)*time.Second)))
		}
		w := turn(t, c, db, p, allParts)
		stop := background(w.Run)
		defer stop()
		<-time.After(5 * time.Second)
		synctest.Wait()
		db.mu.Lock()
		require.LessOrEqual(t, db.reads, 20, "it stops reading when it is full")
		db.mu.Unlock()
		<-time.After(15 * time.Second)
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		require.Len(t, p.at, 1000)
		for id, n := range p.n {
			require.Equal(t, 1, n, id)
		}
	})
}

// When a partition moves its new holder reads it anew, and what the former one still holds of it is dropped.
func TestTheWheelFollowsItsPartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, p, q := &rows{}, newPost(), newPost()
		at := time.Now().Add(30 * time.Second)
		for id := range uint64(64) {
			db.commit(ring(id+1, at))
		}
		var mu sync.Mutex
		first, second := allParts(), []int{}
		of := func(parts *[]int) func() []int {
			return func() []int {
				mu.Lock()
				defer mu.Unlock()
				return *parts
			}
		}
		a, b := turn(t, delay.DefaultWheelConfig(), db, p, of(&first)), turn(t, delay.DefaultWheelConfig(), db, q, of(&second))
		defer background(a.Run)()
		defer background(b.Run)()
		<-time.After(10 * time.Second)
		mu.Lock()
		first, second = allParts()[:8], allParts()[8:]
		mu.Unlock()
		require.ErrorIs(t, a.Deliver(t.Context(), time.Now(), []coupon.Timed{ring(8, at)})[0], delay.ErrNotHere)
		require.NoError(t, b.Deliver(t.Context(), time.Now(), []coupon.Timed{ring(8, at)})[0])
		<-time.After(30 * time.Second)
		synctest.Wait()
		require.Len(t, p.n, 32)
		require.Len(t, q.n, 32)
	})
}

func TestTheWheelsBoundsAreChecked(t *testing.T) {
	t.Parallel()
	err := delay.WheelConfig{}.Validate()
	for _, text := range []string{"window: must be between 1s", "max: must be between 100", "batch: must be between 1"} {
		require.ErrorContains(t, err, text)
	}
}
