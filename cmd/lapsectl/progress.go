package main

import (
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress shows how far a run is: a bar with the time left on a terminal, else a line each few seconds.
type progress struct {
	s       *system
	what    string // of what: "triggers"
	total   int64  // 0: unknown
	first   int64  // done by an earlier run
	began   time.Time
	printed time.Time
	bars    *mpb.Progress
	bar     *mpb.Bar
}

func newProgress(s *system, what string, total, first int64) *progress {
	now := time.Now()
	p := &progress{s: s, what: what, total: total, first: first, began: now, printed: now}
	// Progress goes beside the output.
	if on := (&system{stdout: s.stderr, lookup: s.lookup}); total > 0 && on.terminal() {
		p.bars = mpb.New(mpb.WithOutput(s.stderr), mpb.WithWidth(40), mpb.WithRefreshRate(200*time.Millisecond))
		p.bar = p.bars.AddBar(total,
			mpb.PrependDecorators(decor.Name(what+" "), decor.CountersNoUnit("%d / %d")),
			mpb.AppendDecorators(decor.Percentage(), decor.Name("  "), decor.AverageSpeed(0, "%.0f/s"), decor.Name("  "), decor.AverageETA(decor.ET_STYLE_GO)))
		p.bar.SetCurrent(first)
	}
	return p
}

func (p *progress) set(n int64) {
	if p == nil {
		return // nothing is known yet
	}
	if p.bar != nil {
		p.bar.SetCurrent(min(n, p.total))
		return
	}
	now := time.Now()
	if now.Sub(p.printed) < progressEvery {
		return
	}
	p.printed = now
	speed := float64(n-p.first) / now.Sub(p.began).Seconds()
	if p.total <= 0 {
		p.s.note("%s %s, %s/s", grouped(int(n)), p.what, grouped(int(speed)))
		return
	}
	left := "?"
	if speed > 0 {
		left = (time.Duration(float64(max(0, p.total-n))/speed) * time.Second).String()
	}
	p.s.note("%s of %s %s, %s/s, %s left", grouped(int(n)), grouped(int(p.total)), p.what, grouped(int(speed)), left)
}

// close takes the bar away.
func (p *progress) close() {
	if p != nil && p.bars != nil {
		p.bar.Abort(true)
		p.bars.Wait()
		p.bars, p.bar = nil, nil
	}
}
