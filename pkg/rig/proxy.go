package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const proxyDial = 5 * time.Second

// Proxy stands between a client and one TCP server and plays the network's
// bad days: connections cut, silent for ever, slow, or refused.
type Proxy struct {
	listener net.Listener
	owned    sync.WaitGroup

	mu      sync.Mutex
	target  string
	links   map[*link]struct{}
	paused  chan struct{} // not nil while paused; closed by Resume
	delay   time.Duration
	rate    int // bytes a second each way of each connection; 0: unbounded
	refuse  bool
	closing bool
}

// link is one client's connection and ours to the server.
type link struct {
	client, server *net.TCPConn
	toClient       sync.Mutex
}

// NewProxy listens on a free loopback port and forwards to target (host:port).
func NewProxy(target string) (*Proxy, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for the proxy: %w", err)
	}
	p := &Proxy{target: target, listener: l, links: make(map[*link]struct{})}
	p.owned.Go(p.accept)
	return p, nil
}

// Addr is where clients connect (host:port).
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Aim sends new connections to another server (host:port); those there are stay where they are, as after a change of a name.
func (p *Proxy) Aim(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Cut resets every connection and says how many there were. New ones are taken.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
	return len(p.links)
}

// Pause makes every connection, new ones too, half-open: alive, but no byte
// passes either way until Resume.
func (p *Proxy) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused == nil {
		p.paused = make(chan struct{})
	}
}

// Resume ends Pause; what was sent meanwhile arrives.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
	}
}

// Delay holds back whatever passes, in both directions, by d.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Bandwidth lets so many bytes a second pass each way of each connection; 0: as many as there are.
func (p *Proxy) Bandwidth(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = max(0, bytes)
}

// Ports are those by which the server knows the connections that are open.
func (p *Proxy) Ports() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	ports := make([]int, 0, len(p.links))
	for l := range p.links {
		if a, ok := l.server.LocalAddr().(*net.TCPAddr); ok {
			ports = append(ports, a.Port)
		}
	}
	return ports
}

// Refuse makes new connections end at once, or no longer.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Inject sends bytes to every client as if the server had, between two pieces
// of what it really sends: for whole protocol frames, while the line is quiet.
func (p *Proxy) Inject(data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for l := range p.links {
		l.toClient.Lock()
		_, err := l.client.Write(data)
		l.toClient.Unlock()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Close cuts everything and waits for all that belongs to the proxy.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.Resume()
	p.Cut()
	p.owned.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.mu.Lock()
		refuse, target := p.refuse || p.closing, p.target
		p.mu.Unlock()
		if refuse {
			_ = c.Close()
			continue
		}
		s, err := net.DialTimeout("tcp", target, proxyDial) //nolint:noctx // bounded by its own limit
		if err != nil {
			_ = c.Close()
			continue
		}
		l := &link{client: c.(*net.TCPConn), server: s.(*net.TCPConn)} //nolint:forcetypeassert // both speak "tcp"
		p.mu.Lock()
		if p.closing {
			l.cut()
		}
		p.links[l] = struct{}{}
		p.owned.Go(func() { p.forward(l) })
		p.mu.Unlock()
	}
}

// forward copies both ways until either ends, then ends both.
func (p *Proxy) forward(l *link) {
	var both sync.WaitGroup
	both.Go(func() {
		defer l.cut()
		p.copy(l.server, l.client, nil)
	})
	both.Go(func() {
		defer l.cut()
		p.copy(l.client, l.server, &l.toClient)
	})
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (p *Proxy) copy(dst io.Writer, src io.Reader, whole *sync.Mutex) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		p.mu.Lock()
		paused, delay := p.paused, p.delay
		p.mu.Unlock()
		if delay > 0 {
			<-time.After(delay)
		}
		if paused != nil {
			<-paused
		}
		if n > 0 {
			if p.pass(dst, buf[:n], whole) != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass writes what was read, in pieces of a tenth of a second where the bandwidth is bounded.
func (p *Proxy) pass(dst io.Writer, data []byte, whole *sync.Mutex) error {
	if whole != nil {
		whole.Lock()
		defer whole.Unlock()
	}
	for len(data) > 0 {
		piece := data
		p.mu.Lock()
		rate := p.rate
		p.mu.Unlock()
		if rate > 0 {
			piece = data[:min(len(data), max(1, rate/10))]
			<-time.After(time.Duration(len(piece)) * time.Second / time.Duration(rate))
		}
		if _, err := dst.Write(piece); err != nil {
			return err
		}
		data = data[len(piece):]
	}
	return nil
}

// cut resets both ends: no orderly goodbye reaches anyone.
func (l *link) cut() {
	for _, c := range []*net.TCPConn{l.client, l.server} {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}
