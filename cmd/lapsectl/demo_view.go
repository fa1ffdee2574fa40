package main

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// demoView shows a run: bars on a terminal, else a line a second.
type demoView struct {
	out      io.Writer
	terminal bool
	start    time.Time
	printed  time.Time // the last plain line

	bars             *mpb.Progress
	granted, expired *mpb.Bar
	told             *mpb.Bar
	line             atomic.Pointer[string] // beside the bars, which draw from goroutines of their own
}

func newDemoView(s *system) *demoView {
	return &demoView{out: s.stdout, terminal: s.terminal(), start: time.Now()}
}

// terminal reports whether standard output can be drawn on.
func (s *system) terminal() bool {
	f, ok := s.stdout.(*os.File)
	if term, _ := s.lookup("TERM"); !ok || term == "" || term == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}

// Step prints a line; above the bars, if there are any.
func (v *demoView) Step(text string) {
	line := fmt.Sprintf("%7.1f s  %s\n", time.Since(v.start).Seconds(), text)
	if v.bars != nil {
		if _, err := v.bars.Write([]byte(line)); err == nil {
			return // above the bars
		}
	}
	_, _ = io.WriteString(v.out, line)
}

// Progress redraws.
func (v *demoView) Progress(p demo.Progress) {
	if !v.terminal {
		if now := time.Now(); now.Sub(v.printed) >= time.Second {
			v.printed = now
			v.Step(fmt.Sprintf("granted %s / %s   expired %s   told %s   %s", grouped(p.Granted), grouped(p.Coupons),
				grouped(p.Expired), grouped(p.Told), live(p)))
		}
		return
	}
	if v.bars == nil {
		v.open(p.Coupons)
	}
	text := live(p)
	v.line.Store(&text)
	v.granted.SetCurrent(int64(p.Granted))
	v.expired.SetCurrent(int64(min(p.Expired, p.Coupons)))
	v.told.SetCurrent(int64(min(p.Told, p.Coupons)))
}

func live(p demo.Progress) string {
	return fmt.Sprintf("waiting %s   due %s   late p50 %s max %s   last end in %s", grouped(p.Waiting), grouped(p.Due),
		seconds(p.P50.Milliseconds()), seconds(p.Max.Milliseconds()), p.Left.Round(time.Second))
}

func (v *demoView) open(coupons int) {
	v.bars = mpb.New(mpb.WithOutput(v.out), mpb.WithWidth(40), mpb.WithRefreshRate(200*time.Millisecond))
	bar := func(name string, more func(decor.Statistics) string) *mpb.Bar {
		return v.bars.AddBar(int64(coupons),
			mpb.PrependDecorators(decor.Name("  "+name, decor.WC{W: 12, C: decor.DindentRight}), decor.CountersNoUnit("%d / %d", decor.WC{W: 18})),
			mpb.AppendDecorators(decor.Any(more)))
	}
	none := func(decor.Statistics) string { return "" }
	v.granted = bar("granted", none)
	v.expired = bar("expired", func(decor.Statistics) string {
		if text := v.line.Load(); text != nil {
			return "  " + *text
		}
		return ""
	})
	v.told = bar("told", none)
}

// close takes the bars away.
func (v *demoView) close() {
	if v.bars == nil {
		return
	}
	for _, b := range []*mpb.Bar{v.granted, v.expired, v.told} {
		b.Abort(true)
	}
	v.bars.Wait()
	v.bars = nil
}
