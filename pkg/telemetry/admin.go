package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// AdminConfig of the admin server. It asks nobody who they are, but for what is mounted on it: keep its port inside the cluster.
type AdminConfig struct {
	// Address to listen on, "host:port"; an empty host means all interfaces, port 0 a free one. Each worker has its default.
	Address string `koanf:"address"`
	// Pprof serves /debug/pprof/ too. Default false.
	Pprof bool `koanf:"pprof"`
	// CheckTimeout bounds each readiness check. Default 2s.
	CheckTimeout time.Duration `koanf:"check_timeout"`
}

// DefaultAdminConfig listens on a free port of all interfaces, without pprof.
func DefaultAdminConfig() AdminConfig {
	return AdminConfig{Address: ":0", CheckTimeout: 2 * time.Second}
}

// Validate reports every fault, each beginning with its field's name.
func (c AdminConfig) Validate() error {
	var errs []error
	if _, port, err := net.SplitHostPort(c.Address); err != nil {
		errs = append(errs, fmt.Errorf("address: must be host:port, got %q", c.Address))
	} else if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		errs = append(errs, fmt.Errorf("address: the port must be between 0 and 65535, got %q", c.Address))
	}
	if c.CheckTimeout < 10*time.Millisecond || c.CheckTimeout > 30*time.Second {
		errs = append(errs, fmt.Errorf("check_timeout: must be between 10ms and 30s, got %s", c.CheckTimeout))
	}

	return errors.Join(errs...)
}

// Check says why something is not ready, or nil. It should return when its context ends.
type Check func(ctx context.Context) error

// Admin serves /livez, /readyz, /metrics and, if asked for, /debug/pprof/.
type Admin struct {
	cfg    AdminConfig
	logger *zap.Logger
	mux    *http.ServeMux
	server *http.Server

	mu       sync.Mutex
	checks   []*check
	listener net.Listener
	served   chan error
	inFlight sync.WaitGroup
}

// NewAdmin returns a server that shows reg. Register checks, then Start it.
func NewAdmin(cfg AdminConfig, reg *prometheus.Registry, logger *zap.Logger) *Admin {
	mux := http.NewServeMux()
	a := &Admin{cfg: cfg, logger: logger, mux: mux}
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]bool{"live": true})
	})
	mux.HandleFunc("GET /readyz", a.serveReady)
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog: zap.NewStdLog(logger), ErrorHandling: promhttp.ContinueOnError, Registry: reg,
		MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
	}))
	if cfg.Pprof {
		for path, h := range map[string]http.HandlerFunc{
			"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
		} {
			mux.HandleFunc("GET /debug/pprof/"+path, unhurried(h))
		}
	}
	a.server = &http.Server{
		Handler: mux, ErrorLog: zap.NewStdLog(logger),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 40 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}

	return a
}

// AddCheck registers a readiness check under a name of its own. Checks may be added while serving.
func (a *Admin) AddCheck(name string, c Check) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checks = append(a.checks, &check{name: name, run: c})
}

// Mount serves whatever is below path ("/console/") by h, besides the rest. It may be called while serving, once for each path. h has
// forty seconds for an answer.
func (a *Admin) Mount(path string, h http.Handler) { a.mux.Handle(path, h) }

// Start listens; when it returns nil the server answers.
func (a *Admin) Start(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", a.cfg.Address)
	if err != nil {
		return fmt.Errorf("admin server: %w", err)
	}
	served := make(chan error, 1)
	a.mu.Lock()
	a.listener, a.served = l, served
	a.mu.Unlock()
	go func() { served <- a.server.Serve(l) }()

	return nil
}

// Port returns the port that is listened on, 0 before Start.
func (a *Admin) Port() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.listener == nil {
		return 0
	}
	addr, ok := a.listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0
	}

	return addr.Port
}

// Stop lets requests finish until ctx ends, then cuts them off, and waits for running checks. Legal before Start.
func (a *Admin) Stop(ctx context.Context) error {
	a.mu.Lock()
	served := a.served
	a.served = nil
	a.mu.Unlock()
	if served == nil {
		return nil
	}
	err := a.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, a.server.Close())
	}
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	checked := make(chan struct{})
	go func() {
		a.inFlight.Wait()
		close(checked)
	}()
	select {
	case <-checked:
	case <-ctx.Done():
		err = errors.Join(err, errors.New("a readiness check still runs"))
	}
	if err != nil {
		return fmt.Errorf("admin server: %w", err)
	}

	return nil
}

// unhurried lifts the write deadline for handlers that take as long as they are asked to.
func unhurried(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)

			return
		}
		h(w, r)
	}
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the peer went away: nobody to tell
}
