package chaos

import (
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/rig"
)

// line is what a process reaches another one by: a proxy, or one for each node of a broker. What is done to it is done to all.
type line []*rig.Proxy

// addr is where to connect, separated by commas.
func (l line) addr() string {
	var all []string
	for _, p := range l {
		all = append(all, p.Addr())
	}
	return strings.Join(all, ",")
}

func (l line) each(do func(*rig.Proxy)) {
	for _, p := range l {
		do(p)
	}
}

// cut says how many connections there were.
func (l line) cut() (n int) {
	l.each(func(p *rig.Proxy) { n += p.Cut() })
	return n
}

func (l line) pause()                { l.each((*rig.Proxy).Pause) }
func (l line) resume()               { l.each((*rig.Proxy).Resume) }
func (l line) refuse(on bool)        { l.each(func(p *rig.Proxy) { p.Refuse(on) }) }
func (l line) delay(d time.Duration) { l.each(func(p *rig.Proxy) { p.Delay(d) }) }
func (l line) bandwidth(bytes int)   { l.each(func(p *rig.Proxy) { p.Bandwidth(bytes) }) }

// ports are those by which the server knows the connections.
func (l line) ports() (all []int) {
	l.each(func(p *rig.Proxy) { all = append(all, p.Ports()...) })
	return all
}
