package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/parked"
	"github.com/lapsehq/lapse/pkg/status"
	"github.com/lapsehq/lapse/pkg/store"
)

// seats is how many connections of the database it takes at once, beside that of a forecast.
const seats = 2

// Path is where the console is served; everything of it is below.
const Path = "/console/"

// Deps is what the console works with. All of it must be given.
type Deps struct {
	Store        *store.Store
	Tokens       []api.Token // of the API
	Desk         parked.Desk
	Publisher    parked.Publisher                    // of replays
	Ready        func() error                        // whether Publisher can send
	Queues       func(context.Context) status.Broker // what is in the broker
	Installation status.Config
	Log          *zap.Logger
	Now          func() time.Time
}

// Console serves the page. It does nothing by itself.
type Console struct {
	cfg    Config
	deps   Deps
	tokens *api.Tokens
	work   *work
	mux    *http.ServeMux

	state     *kept[reading]
	forecasts map[string]*kept[status.Forecast]
	templates *kept[templates]
	aside     *kept[set]
	turn      chan struct{} // of readings that count many rows
	seats     chan struct{} // of all others, and of look-ups: each takes a connection of the database

	mu        sync.Mutex
	past      []sample
	midnights map[time.Time]*kept[status.Forecast]
}

// New makes it; Run must run, for what Handler serves.
func New(c Config, d Deps) (*Console, error) {
	tokens, err := api.NewTokens(d.Tokens, c.PerSecond, c.Burst)
	if err != nil {
		return nil, err //nolint:wrapcheck // names the token
	}
	x := &Console{
		cfg: c, deps: d, tokens: tokens, work: newWork(), mux: http.NewServeMux(), turn: make(chan struct{}, 1), seats: make(chan struct{}, seats),
		midnights: map[time.Time]*kept[status.Forecast]{},
	}
	x.readings()
	x.routes()
	if err := x.files(); err != nil {
		return nil, err
	}
	return x, nil
}

// Run ends with ctx, when what is being read has ended, too.
func (c *Console) Run(ctx context.Context) error {
	<-ctx.Done()
	c.work.close()
	return nil
}

// policy is what the page may do: run and show what comes from here, and ask here.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP serves what is below Path.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		"Permissions-Policy": "camera=(), geolocation=(), microphone=()", "Cache-Control": "no-store",
	} {
		w.Header().Set(name, value)
	}
	c.mux.ServeHTTP(w, r)
}

// asked is a request by somebody who may.
type asked struct {
	*http.Request
	by api.Bearer
}

// routes are the questions that the page asks.
func (c *Console) routes() {
	anybody := []api.Scope{api.ScopeRead, api.ScopeOps}
	operator := []api.Scope{api.ScopeOps}
	c.route("GET", "session", anybody, c.session)
	c.route("GET", "status", anybody, c.status)
	c.route("GET", "forecast", anybody, c.forecast)
	c.route("GET", "midnight", anybody, c.midnight)
	c.route("GET", "templates", anybody, c.templateStates)
	c.route("GET", "coupon", anybody, c.coupon)
	c.route("GET", "user", anybody, c.user)
	c.route("GET", "parked", operator, c.parked)
	c.route("POST", "parked/replay", operator, c.replay)
	c.mux.HandleFunc(Path+"api/", func(w http.ResponseWriter, _ *http.Request) {
		api.NewProblem(http.StatusNotFound, api.CodeBadRequest, "there is no such path").Write(w)
	})
}

func (c *Console) route(method, name string, scopes []api.Scope, do func(context.Context, asked) (any, error)) {
	c.mux.HandleFunc(method+" "+Path+"api/"+name, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), c.cfg.Timeout+time.Second)
		defer cancel()
		by, p := c.tokens.Check(r.Header, c.deps.Now(), scopes...)
		if p != nil {
			p.Write(w)
			return
		}
		out, err := do(ctx, asked{r.WithContext(ctx), by})
		if err != nil {
			c.fail(ctx, w, name, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // the client went away: nobody to tell
	})
}

// fail answers with the error, and tells the log of faults that are not the asker's.
func (c *Console) fail(ctx context.Context, w http.ResponseWriter, name string, err error) {
	var p *api.Problem
	switch {
	case errors.As(err, &p):
	case errors.Is(err, errClosed):
		p = api.NewProblem(http.StatusServiceUnavailable, api.CodeUnavailable, "the publisher is stopping")
	case errors.Is(err, context.DeadlineExceeded):
		p = api.NewProblem(http.StatusGatewayTimeout, api.CodeTimeout, "it took too long to read")
	default:
		p = api.ProblemOf(ctx, err)
	}
	if p.Status >= http.StatusInternalServerError && ctx.Err() == nil {
		c.deps.Log.Warn("the console could not answer", zap.String("question", name), zap.Error(err))
	}
	p.Write(w)
}

// seat waits for a turn to ask the database; leave must be called if there is no error.
func (c *Console) seat(ctx context.Context) (leave func(), err error) {
	select {
	case c.seats <- struct{}{}:
		return func() { <-c.seats }, nil
	case <-ctx.Done():
		return nil, ctx.Err() //nolint:wrapcheck // told by the caller
	}
}

type sessionOut struct {
	Name         string      `json:"name"` // of the token
	Scopes       []api.Scope `json:"scopes"`
	Installation string      `json:"installation"`
	EveryMS      int64       `json:"every_ms"`
	Zone         string      `json:"zone,omitempty"` // in which times are told; empty: the browser's
}

// session tells who asks.
func (c *Console) session(_ context.Context, r asked) (any, error) {
	return sessionOut{r.by.Name, r.by.Scopes, c.deps.Installation.Installation, c.cfg.Every.Milliseconds(), c.cfg.Zone}, nil
}

// query gives the only value of a parameter, that must be text.
func query(r asked, name string, most int) (string, error) {
	values := r.URL.Query()[name]
	if len(values) != 1 || values[0] == "" || len(values[0]) > most || !api.Printable(values[0]) {
		return "", api.NewProblem(http.StatusBadRequest, api.CodeBadRequest,
			fmt.Sprintf("query.%s: must be given once, in 1 to %d bytes of UTF-8 without control characters", name, most))
	}
	return values[0], nil
}
