package store

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	peakSeconds = 4                // seconds that one call of Issue asks about at most: those it adds most to
	peakKnown   = 4096             // seconds that are remembered
	peakEvery   = 10 * time.Second // how long what was counted holds; what was granted meanwhile here is added
	peakRate    = time.Minute      // how long the drain rate holds
	peakWithin  = 250 * time.Millisecond
	peakFactor  = 10 // seconds are counted up to so many times what the fleet drains in one
)

// peaks tells grants that make a second hold more than the fleet drains in a second. It is a forecast: it costs a grant
// little, and never fails one.
type peaks struct {
	mu    sync.Mutex
	rate  coupon.DrainRate
	rated time.Time
	known map[int64]peakSecond // by unix second
}

type peakSecond struct {
	n  int64
	at time.Time // when it was counted
}

// note fills in Granted.Peak of the coupons that were just made. now is the process's own clock: it only ages a cache.
func (p *peaks) note(ctx context.Context, s *Store, made []coupon.Transition, makers []int, answers []coupon.Granted, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, peakWithin)
	defer cancel()
	rate, ok := p.drain(ctx, s, now)
	if !ok || rate.PerSecond() <= 0 {
		return
	}
	added := make(map[int64]int64)
	for i := range made {
		if !coupon.IsNever(made[i].DueAt) {
			added[made[i].DueAt.Unix()]++
		}
	}
	for _, second := range p.add(added, now) {
		var n int64
		most := int64(rate.PerSecond()*peakFactor) + 1
		if s.queryRow(ctx, s.sql, stmtForecastSecond, []any{&n}, time.Unix(second, 0).UTC(), most) != nil {
			break
		}
		p.counted(second, n, now)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range made {
		if k := p.known[made[i].DueAt.Unix()]; k.at.Add(peakEvery).After(now) && rate.Over(k.n) {
			answers[makers[i]].Peak = k.n
		}
	}
}

// drain gives the fleet's rate; not ok: it is not known now.
func (p *peaks) drain(ctx context.Context, s *Store, now time.Time) (rate coupon.DrainRate, ok bool) {
	p.mu.Lock()
	rate, fresh := p.rate, !p.rated.IsZero() && now.Sub(p.rated) < peakRate
	p.mu.Unlock()
	if fresh {
		return rate, true
	}
	rate, err := s.DrainRate(ctx)
	if err != nil {
		return rate, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate, p.rated = rate, now
	return rate, true
}

// add adds what was granted to what is known, and gives the seconds that must be counted anew.
func (p *peaks) add(added map[int64]int64, now time.Time) []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil || len(p.known) > peakKnown {
		p.known = make(map[int64]peakSecond)
	}
	var stale []int64
	for second, n := range added {
		k, ok := p.known[second]
		if !ok || now.Sub(k.at) >= peakEvery {
			stale = append(stale, second)
			continue
		}
		k.n += n
		p.known[second] = k
	}
	slices.SortFunc(stale, func(a, b int64) int { return cmp.Or(cmp.Compare(added[b], added[a]), cmp.Compare(a, b)) })
	return stale[:min(len(stale), peakSeconds)]
}

func (p *peaks) counted(second, n int64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[second] = peakSecond{n: n, at: now}
}
