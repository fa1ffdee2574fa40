package email

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wneessen/go-mail/smtp"
)

// farewell is how long QUIT may take.
const farewell = time.Second

// link is a connection to the server that has said hello, and logged in.
type link struct {
	client *smtp.Client
	raw    net.Conn
	used   int         // letters
	timer  *time.Timer // ends it while it idles; guarded by pool.mu
}

// within bounds what is done on the link by ctx, until release, which reports whether ctx had not ended.
func (l *link) within(ctx context.Context) (release func() bool) {
	return bounded(ctx, l.raw)
}

func bounded(ctx context.Context, c net.Conn) (release func() bool) {
	deadline, _ := ctx.Deadline() // zero: none
	_ = c.SetDeadline(deadline)   // of an open connection it cannot fail
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
}

// settled reports whether the link is of use after a failure: the server said no to one letter, and forgets it.
func (l *link) settled(f *failure) bool {
	var said *textproto.Error
	if errors.Is(f.err, errAddress) {
		return true
	}
	if !errors.As(f.err, &said) || said.Code == 421 {
		return false
	}
	return l.client.Reset() == nil
}

func (l *link) drop() { _ = l.raw.Close() }

// quit says goodbye, briefly.
func (l *link) quit() {
	_ = l.raw.SetDeadline(time.Now().Add(farewell))
	_ = l.client.Quit()
	l.drop()
}

// pool bounds the links in use, and keeps those that idle for the next letter.
type pool struct {
	slots chan struct{}
	after time.Duration
	owned sync.WaitGroup // letters on their way, and farewells

	mu     sync.Mutex
	links  []*link // that idle; the last was used last
	closed bool
}

func newPool(size int, idle time.Duration) *pool {
	return &pool{slots: make(chan struct{}, size), after: idle}
}

// enter waits for the right to use one link; busy if ctx ends first, closed if the pool was.
func (p *pool) enter(ctx context.Context) (refused string) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return "closed"
	}
	p.owned.Add(1)
	p.mu.Unlock()
	select {
	case p.slots <- struct{}{}:
		return ""
	case <-ctx.Done():
		p.owned.Done()
		return "busy"
	}
}

func (p *pool) leave() {
	<-p.slots
	p.owned.Done()
}

// idle gives the link that was used last, nil if none idles.
func (p *pool) idle() *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.links) == 0 {
		return nil
	}
	l := p.links[len(p.links)-1]
	p.links = p.links[:len(p.links)-1]
	if l.timer.Stop() {
		p.owned.Done() // of its farewell
	} // else the farewell runs, finds that it is not there, and does nothing
	return l
}

// put keeps a link. Whoever puts has entered and not left.
func (p *pool) put(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.part(l)
		return
	}
	p.owned.Add(1)
	p.links = append(p.links, l)
	l.timer = time.AfterFunc(p.after, func() {
		defer p.owned.Done()
		if p.forget(l) {
			l.quit()
		}
	})
}

// part says goodbye to a link. Whoever parts has entered and not left.
func (p *pool) part(l *link) { p.owned.Go(l.quit) }

func (p *pool) forget(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.links {
		if p.links[i] == l {
			p.links = append(p.links[:i], p.links[i+1:]...)
			return true
		}
	}
	return false
}

func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	for _, l := range p.links {
		if !l.timer.Stop() {
			p.owned.Add(1) // its own farewell finds nothing left to do
		}
		go func() {
			defer p.owned.Done()
			l.quit()
		}()
	}
	p.links = nil
	p.mu.Unlock()
	p.owned.Wait()
}

// dial opens a link. Its deadline is ctx's while it does.
func (e *Email) dial(ctx context.Context) (*link, *failure) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(e.cfg.Host, strconv.Itoa(e.cfg.port())))
	if err != nil {
		return nil, &failure{stageConnect, err}
	}
	release := bounded(ctx, raw)
	l, fail := e.hello(ctx, raw)
	if !release() && fail == nil {
		fail = &failure{stageHello, ctx.Err()}
	}
	if fail != nil {
		_ = raw.Close()
		return nil, fail
	}
	return l, nil
}

func (e *Email) hello(ctx context.Context, raw net.Conn) (*link, *failure) {
	conn := raw
	trust, err := e.cfg.Client(e.cfg.Host)
	if err != nil {
		return nil, &failure{stageTLS, err}
	}
	switch e.cfg.TLS {
	case TLSImplicit:
		secure := tls.Client(raw, trust)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, &failure{stageTLS, err}
		}
		conn = secure
	case TLSNone:
		if there, ok := raw.RemoteAddr().(*net.TCPAddr); !ok || !there.IP.IsLoopback() {
			return nil, &failure{stageTLS, errors.New("not of loopback, and without TLS")}
		}
	}
	client, err := smtp.NewClient(conn, e.cfg.Host)
	if err != nil {
		return nil, &failure{stageConnect, err}
	}
	if err := client.Hello(e.domain); err != nil {
		return nil, &failure{stageHello, err}
	}
	if e.cfg.TLS == TLSStart {
		if offered, _ := client.Extension("STARTTLS"); !offered {
			return nil, &failure{stageTLS, errors.New("not offered")}
		}
		if err := client.StartTLS(trust); err != nil {
			return nil, &failure{stageTLS, err}
		}
	}
	if e.cfg.Username != "" {
		if err := e.login(client); err != nil {
			return nil, &failure{stageAuth, err}
		}
	}
	return &link{client: client, raw: raw}, nil
}

func (e *Email) login(client *smtp.Client) error {
	now, err := e.cfg.Password.Current()
	if err != nil {
		return err //nolint:wrapcheck // says what it reads
	}
	password := now.Reveal()
	_, offered := client.Extension("AUTH")
	mechanisms := strings.Fields(strings.ToUpper(offered))
	allowed := e.cfg.TLS == TLSNone // loopback, as the configuration says
	for _, name := range mechanisms {
		if name == "PLAIN" {
			return client.Auth(smtp.PlainAuth("", e.cfg.Username, password, e.cfg.Host, allowed))
		}
	}
	for _, name := range mechanisms {
		if name == "LOGIN" {
			return client.Auth(smtp.LoginAuth(e.cfg.Username, password, e.cfg.Host, allowed))
		}
	}
	return errors.New("the server offers neither PLAIN nor LOGIN")
}
