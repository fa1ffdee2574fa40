package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/certs"
)

// API is the server. Safe for concurrent use.
type API struct {
	cfg     Config
	deps    Deps
	log     *zap.Logger
	metrics *metrics
	guard   *guard
	limits  *limits
	large   *gate // bodies of more than smallBody bytes that are being read or at work
	signed  *gate // the same of those that are signed: what anybody sends takes nothing from who has a token
	mux     *http.ServeMux
	huma    huma.API
	routes  map[string]*route // by pattern; read only once made
	spec    spec
	gather  *gatherer

	mu       sync.Mutex
	listener net.Listener
	tls      *tls.Config // nil: none
}

const schemaPrefix = "#/components/schemas/"

// New makes the API; it listens only when it is run. deps must be complete.
func New(c Config, deps Deps, log *zap.Logger, reg prometheus.Registerer) (*API, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("api config: %w", err)
	}
	if c.Sandbox && deps.Sandbox == nil {
		return nil, errors.New("api config: sandbox: nothing to bring coupons forward with was given")
	}
	g, err := newGuard(c.Tokens)
	if err != nil {
		return nil, fmt.Errorf("api config: %w", err)
	}
	a := &API{
		cfg: c, deps: deps, log: log, metrics: newMetrics(reg), guard: g, limits: newLimits(c), large: newGate(largeBodies, 10*largeBodies, c.QueueTimeout),
		signed: newGate(signedBodies, 10*signedBodies, c.QueueTimeout),
		mux:    http.NewServeMux(), routes: map[string]*route{},
	}
	a.gather = &gatherer{
		cfg: c.Gather, queue: make(chan *claim, c.Gather.Waiting), slots: a.limits.gates[ScopeIssue].slots,
		issue: a.issue, limit: c.RequestTimeout, sizes: a.metrics.gathered,
	}
	a.huma = humago.New(a.mux, a.humaConfig())
	a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "")
	a.addRoutes()
	if a.spec, err = newSpec(a.huma.OpenAPI()); err != nil {
		return nil, fmt.Errorf("openapi: %w", err)
	}
	return a, nil
}

// addRoutes adds every operation. Each file adds its own.
func (a *API) addRoutes() {
	a.addTemplates()
	a.addStats()
	a.addGrants()
	a.addCheckout()
	a.addCoupons()
	a.addWallet()
	a.addNotices()
	a.addReceipts()
	a.addSandbox()
}

func (a *API) humaConfig() huma.Config {
	c := huma.DefaultConfig("Lapse", "1")
	c.Info.Description = description
	c.OpenAPIPath, c.DocsPath, c.SchemasPath = "", "", "" // we serve the document ourselves; the page would need other hosts
	c.CreateHooks = nil
	c.Formats = map[string]huma.Format{"application/json": strictJSON(), "json": strictJSON()}
	c.Transformers = []huma.Transformer{transform}
	c.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"token": {Type: "http", Scheme: "bearer", Description: "A token of the configuration (api.tokens), with its scopes."},
		"signature": {
			Type: "apiKey", In: "header", Name: "Lapse-Signature",
			Description: "v1= and the HMAC-SHA256 in hex of Lapse-Timestamp (Unix seconds), a full stop and the body, by the key that Lapse-Key names (api.providers).",
		},
	}
	c.Tags = []*huma.Tag{
		{Name: tagTemplates, Description: "What coupons are made from."},
		{Name: tagGrants, Description: "Coupons for users."},
		{Name: tagCheckout, Description: "What orders do to coupons: all of a request's or none."},
		{Name: tagCoupons, Description: "Coupons one by one, and as operators list them."},
		{Name: tagWallet, Description: "A user's coupons."},
		{Name: tagNotices, Description: "What a user was told in the app."},
		{Name: tagProviders, Description: "What gateways for SMS and push tell, signed instead of with a token."},
		{Name: tagSandbox, Description: "What integrators try things with; refused on any installation that is no sandbox (api.sandbox)."},
	}
	return c
}

// transform turns what huma says of a bad request into a problem, with a status of ours.
func transform(ctx huma.Context, _ string, v any) (any, error) {
	e, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	p := fromHuma(e)
	answerOf(ctx).insist(p)
	return p, nil
}

// Listen binds the address, so that Port is known before Run.
func (a *API) Listen(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.listener != nil {
		return nil
	}
	if a.cfg.TLS.Enabled() {
		files, err := certs.NewServer(a.cfg.TLS, time.Now, a.tellTLS, "h2", "http/1.1")
		if err != nil {
			return fmt.Errorf("api.tls.%w", err)
		}
		a.tls = files.TLS()
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", a.cfg.Address)
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	a.listener = l
	return nil
}

// tellTLS tells of certificates that were replaced.
func (a *API) tellTLS(err error) {
	if err != nil {
		a.log.Error("the API's certificate was replaced by what is of no use; the former one is still shown", zap.Error(err))
		return
	}
	a.log.Info("the API shows another certificate from now on")
}

// Port is what is listened on, 0 before Listen.
func (a *API) Port() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.listener == nil {
		return 0
	}
	if addr, ok := a.listener.Addr().(*net.TCPAddr); ok {
		return addr.Port
	}
	return 0
}

const (
	headerWithin = 5 * time.Second
	readWithin   = 15 * time.Second // the whole request
	idleWithin   = 2 * time.Minute
	maxHeader    = 16 << 10 // bytes
	drainWithin  = 5 * time.Second
)

// DrainWithin is the longest that Run takes to end once its context has: requests at work get their time.
func (c Config) DrainWithin() time.Duration { return c.RequestTimeout + drainWithin }

// Run serves until ctx ends; then it takes no new requests, lets those at work finish, and stops what it owns.
func (a *API) Run(ctx context.Context) error {
	if err := a.Listen(ctx); err != nil {
		return err
	}
	a.mu.Lock()
	l := a.listener
	a.mu.Unlock()
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	server := &http.Server{
		Handler: a.Handler(), ErrorLog: zap.NewStdLog(a.log.WithOptions(zap.IncreaseLevel(zap.WarnLevel))),
		ReadHeaderTimeout: headerWithin, ReadTimeout: readWithin, WriteTimeout: readWithin + a.cfg.RequestTimeout + drainWithin,
		IdleTimeout: idleWithin, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return work }, TLSConfig: a.tls,
	}
	var loops sync.WaitGroup
	a.startLoops(work, &loops)
	if a.cfg.Sandbox {
		a.log.Warn("sandbox mode: whoever has an ops token brings the ends of coupons forward; not for real coupons")
	}
	served := make(chan error, 1)
	go func() {
		if a.tls != nil {
			served <- server.ServeTLS(l, "", "")
		} else {
			served <- server.Serve(l)
		}
	}()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.DrainWithin())
		if err = server.Shutdown(drain); err != nil {
			stopWork()
			err = errors.Join(err, server.Close())
		}
		cancel()
		if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
			err = errors.Join(err, serveErr)
		}
	}
	stopWork()
	loops.Wait()
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	return nil
}

// startLoops starts what the API does by itself.
func (a *API) startLoops(ctx context.Context, loops *sync.WaitGroup) {
	loops.Go(func() { a.gather.run(ctx) })
	loops.Go(func() { a.prune(ctx) })
}
