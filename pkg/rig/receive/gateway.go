package receive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	bodyLimit  = 1 << 20
	headerWait = 10 * time.Second
)

// GatewayConfig says how a Gateway runs.
type GatewayConfig struct {
	Authority *Authority        // nil: plain HTTP
	Keys      map[string]string // by key id: secrets of signatures; empty: none is asked for
	Keep      int               // arrivals kept; more are counted alone. Default 200000
	Now       func() time.Time
}

// Arrival is a request that a Gateway has read, answered or not.
type Arrival struct {
	NoticeID    string            `json:"notice_id"`
	Kind        string            `json:"kind"`
	Offset      string            `json:"offset"`
	Locale      string            `json:"locale"`
	Recipient   string            `json:"recipient"`
	UserID      string            `json:"user_id"`
	Title       string            `json:"title"`
	Text        string            `json:"text"`
	TemplateKey string            `json:"template_key"`
	Params      map[string]string `json:"params"`
	Sign        string            `json:"sign"`
	NotAfter    string            `json:"not_after"`

	Path   string      `json:"-"`
	Key    string      `json:"-"` // Idempotency-Key
	Header http.Header `json:"-"`
	Body   []byte      `json:"-"`
	Took   bool        `json:"-"` // the provider went on to send it, whatever it answered
	At     time.Time   `json:"-"`
}

// Gateway is a provider's HTTP receiver on a free loopback port. It answers 200 with the JSON of an id, and 401 if the
// signature is wrong. Faults: all acts; of them a code takes nothing, all others take the message. Safe for concurrent use.
type Gateway struct {
	cfg    GatewayConfig
	server *http.Server
	addr   string
	faults faults
	owned  sync.WaitGroup
	life   context.Context
	kill   context.CancelFunc

	mu       sync.Mutex
	arrivals []Arrival
	counts   map[string]int // all of them, by notice id
	took     map[string]int // those taken
	total    int
	unsigned int
	bell     bell
}

// StartGateway starts one. It runs until Close, or until ctx ends.
func StartGateway(ctx context.Context, cfg GatewayConfig) (*Gateway, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Keep == 0 {
		cfg.Keep = keepDefault
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for notices: %w", err)
	}
	g := &Gateway{cfg: cfg, addr: l.Addr().String(), counts: make(map[string]int), took: make(map[string]int), bell: newBell()}
	g.life, g.kill = context.WithCancel(ctx)
	g.faults.set(Fault{})
	g.server = &http.Server{Handler: g, ReadHeaderTimeout: headerWait, ErrorLog: silentLog()}
	g.owned.Go(func() {
		if cfg.Authority == nil {
			_ = g.server.Serve(l) // ends when the server is closed
			return
		}
		g.server.TLSConfig = cfg.Authority.server()
		_ = g.server.ServeTLS(l, "", "")
	})
	g.owned.Go(func() {
		<-g.life.Done()
		_ = g.server.Close()
	})
	return g, nil
}

// URL is where notices are posted.
func (g *Gateway) URL() string {
	if g.cfg.Authority != nil {
		return "https://" + g.addr + "/notices"
	}
	return "http://" + g.addr + "/notices"
}

// Addr is where it listens (host:port).
func (g *Gateway) Addr() string { return g.addr }

// Fault puts another fault in the place of the present one; the zero one ends it.
func (g *Gateway) Fault(f Fault) { g.faults.set(f) }

// Close ends every request and waits for them.
func (g *Gateway) Close() error {
	g.mu.Lock() // nobody enters afterwards
	g.kill()
	g.mu.Unlock()
	g.owned.Wait()
	return nil
}

// ServeHTTP takes a notice.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.enter() {
		return
	}
	defer g.owned.Done()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
	if err != nil {
		http.Error(w, "the body did not come whole", http.StatusBadRequest)
		return
	}
	fault, over := g.faults.at("")
	a := Arrival{
		Path: r.URL.Path, Key: r.Header.Get("Idempotency-Key"), Header: r.Header.Clone(), Body: body, At: g.cfg.Now(),
		Took: fault.Act != ActCode && fault.Act != ActRedirect,
	}
	switch {
	case json.Unmarshal(body, &a) != nil || r.Method != http.MethodPost:
		http.Error(w, "not a notice", http.StatusBadRequest)
	case !Signed(g.cfg.Keys, r.Header, body, a.At):
		g.forged()
		http.Error(w, "not signed", http.StatusUnauthorized)
	default:
		g.take(&a)
		g.answer(r.Context(), w, &a, fault, over)
	}
}

// enter counts a request among what Close waits for, unless it has begun.
func (g *Gateway) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.life.Err() != nil {
		return false
	}
	g.owned.Add(1)
	return true
}

func (g *Gateway) answer(ctx context.Context, w http.ResponseWriter, a *Arrival, fault Fault, over <-chan struct{}) {
	switch fault.Act {
	case "":
	case ActCode:
		if fault.RetryAfter != "" {
			w.Header().Set("Retry-After", fault.RetryAfter)
		}
		w.WriteHeader(fault.Code)
		_, _ = io.WriteString(w, fault.Text)
		return
	case ActGarbage:
		_, _ = io.WriteString(w, "<html>busy</html>")
		return
	case ActRedirect:
		w.Header().Set("Location", fault.Text)
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	case ActEndless:
		for chunk := make([]byte, 32<<10); g.life.Err() == nil; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	case ActHang:
		g.wait(ctx, over, 0)
		cut(w)
		return
	case ActDrop:
		cut(w)
		return
	case ActCut:
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"id":"p-`)
		_ = http.NewResponseController(w).Flush()
		cut(w)
		return
	case ActSlow:
		g.wait(ctx, over, fault.Delay)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"id": "p-" + a.NoticeID})
}

func (g *Gateway) wait(ctx context.Context, over <-chan struct{}, d time.Duration) {
	var passed <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		passed = timer.C
	}
	select {
	case <-over:
	case <-ctx.Done(): // the client is gone
	case <-g.life.Done():
	case <-passed:
	}
}

// cut resets the connection under an answer.
func cut(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	reset(c)
}

func (g *Gateway) take(a *Arrival) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total++
	g.counts[a.NoticeID]++
	if a.Took {
		g.took[a.NoticeID]++
	}
	if len(g.arrivals) < g.cfg.Keep {
		g.arrivals = append(g.arrivals, *a)
	}
	g.bell.ring()
}

func (g *Gateway) forged() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unsigned++
}

// Arrivals gives those that came with a right signature, in their order, as far as they are kept.
func (g *Gateway) Arrivals() []Arrival {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.arrivals)
}

// Counts tells how often each notice id came, and how often it was taken: what its user got if the provider tells no repeats.
func (g *Gateway) Counts() (came, took map[string]int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.counts), maps.Clone(g.took)
}

// Total is how many requests came; unsigned how many more were turned away for their signature.
func (g *Gateway) Total() (came, unsigned int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.total, g.unsigned
}

// Wait lasts until n requests came in all, or ctx ends.
func (g *Gateway) Wait(ctx context.Context, n int) error {
	for {
		g.mu.Lock()
		total, next := g.total, g.bell.next
		g.mu.Unlock()
		if total >= n {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d requests came: %w", total, n, ctx.Err())
		}
	}
}

// ErrRefused is what Receipts gives when an answer is not 2xx.
var ErrRefused = errors.New("refused")

func refusal(code int) error { return fmt.Errorf("%w: %s", ErrRefused, strconv.Itoa(code)) }
