package main

import (
	"fmt"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// grantProgress shows how far a run is: a bar on a terminal, else a line each few seconds.
type grantProgress struct {
	s       *system
	total   int64 // lines; 0: unknown
	began   time.Time
	first   int64 // rows of an earlier run
	printed time.Time
	bars    *mpb.Progress
	bar     *mpb.Bar
}

const progressEvery = 3 * time.Second

func newGrantProgress(s *system, total, first int64) *grantProgress {
	now := time.Now()
	p := &grantProgress{s: s, total: total, first: first, began: now, printed: now}
	// Progress goes beside the output.
	if on := (&system{stdout: s.stderr, lookup: s.lookup}); total > 0 && on.terminal() {
		p.bars = mpb.New(mpb.WithOutput(s.stderr), mpb.WithWidth(40), mpb.WithRefreshRate(200*time.Millisecond))
		p.bar = p.bars.AddBar(total,
			mpb.PrependDecorators(decor.Name("rows "), decor.CountersNoUnit("%d / %d")),
			mpb.AppendDecorators(decor.Percentage(), decor.Name("  "), decor.AverageSpeed(0, "%.0f/s"), decor.Name("  "), decor.AverageETA(decor.ET_STYLE_GO)))
		p.bar.SetCurrent(first)
	}
	return p
}

func (p *grantProgress) set(st grantState) {
	if p.bar != nil {
		p.bar.SetCurrent(min(st.Rows, p.total))
		return
	}
	if now := time.Now(); now.Sub(p.printed) >= progressEvery {
		p.printed = now
		of := ""
		if p.total > 0 {
			of = " of " + grouped(int(p.total))
		}
		speed := float64(st.Rows-p.first) / now.Sub(p.began).Seconds()
		p.s.note("%s%s rows, %s rejected, %s rows/s", grouped(int(st.Rows)), of, grouped(int(st.Rejected)), grouped(int(speed)))
	}
}

// close takes the bar away.
func (p *grantProgress) close() {
	if p.bars != nil {
		p.bar.Abort(true)
		p.bars.Wait()
		p.bars, p.bar = nil, nil
	}
}

func (p *grantProgress) took() string { return fmt.Sprintf("%.1f s", time.Since(p.began).Seconds()) }
