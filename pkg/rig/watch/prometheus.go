package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	askLimit  = 15 * time.Second
	poll      = 200 * time.Millisecond
	stopLimit = 20 * time.Second
)

// Prometheus is one that runs.
type Prometheus struct {
	url   string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
	http  *http.Client
}

// Start starts the Prometheus that is on PATH (scripts/stack tools installs Debian's) and waits until it answers. Stop ends it, whatever
// it returns.
func Start(ctx context.Context, o Options) (*Prometheus, error) {
	p := &Prometheus{ended: make(chan struct{}), http: &http.Client{Timeout: askLimit, Transport: &http.Transport{DisableKeepAlives: true}}}
	program, err := exec.LookPath("prometheus")
	if err != nil {
		return p, fmt.Errorf("%w; run: scripts/stack tools", err)
	}
	config, err := o.configure()
	if err != nil {
		return p, err
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return p, err
	}
	p.url, p.log = "http://"+address, filepath.Join(o.Dir, "prometheus.log")
	out, err := os.Create(p.log)
	if err != nil {
		return p, fmt.Errorf("log of Prometheus: %w", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(o.Dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's Ctrl-C is ours
	err = errors.Join(cmd.Start(), out.Close())
	if err != nil {
		return p, fmt.Errorf("starting Prometheus: %w", err)
	}
	p.cmd = cmd
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.ended)
	}()
	return p, p.ready(ctx)
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

func (p *Prometheus) ready(ctx context.Context) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/-/ready", nil)
		if err != nil {
			return err
		}
		if res, err := p.http.Do(req); err == nil {
			_ = res.Body.Close() // read only
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.ended:
			body, _ := os.ReadFile(p.log) // what it says of itself, if anything
			return fmt.Errorf("the Prometheus ended before it was ready:\n%s", body)
		default:
		}
		if err := lifecycle.Sleep(ctx, poll); err != nil {
			return fmt.Errorf("waiting for Prometheus: %w", err)
		}
	}
}

// Stop ends it. Nil, and one that was not started, are stopped.
func (p *Prometheus) Stop() error {
	if p == nil || p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping Prometheus: %w", err)
	}
	timer := time.NewTimer(stopLimit)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing Prometheus: %w", err)
	}
	<-p.ended
	return errors.New("stopping Prometheus: it did not end and was killed")
}

// Sample is one of a query's answers.
type Sample struct {
	Metric map[string]string `json:"metric"`
}

// Query asks an expression now.
func (p *Prometheus) Query(ctx context.Context, expr string) ([]Sample, error) {
	var data struct {
		Result []Sample `json:"result"`
	}
	if err := p.get(ctx, "/api/v1/query?query="+url.QueryEscape(expr), &data); err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, err)
	}
	return data.Result, nil
}

// Alert is one that is pending or firing.
type Alert struct {
	Labels map[string]string `json:"labels"`
	State  string            `json:"state"`
}

// Alerts gives those that are pending or firing.
func (p *Prometheus) Alerts(ctx context.Context) ([]Alert, error) {
	var data struct {
		Alerts []Alert `json:"alerts"`
	}
	err := p.get(ctx, "/api/v1/alerts", &data)
	return data.Alerts, err
}

// Faults gives what targets and rules complain about: scrapes that failed, rules that could not be evaluated.
func (p *Prometheus) Faults(ctx context.Context) ([]string, error) {
	var targets struct {
		Active []struct {
			URL    string `json:"scrapeUrl"`
			Health string `json:"health"`
			Last   string `json:"lastError"`
		} `json:"activeTargets"`
	}
	if err := p.get(ctx, "/api/v1/targets", &targets); err != nil {
		return nil, err
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Name string `json:"name"`
				Last string `json:"lastError"`
			} `json:"rules"`
		} `json:"groups"`
	}
	if err := p.get(ctx, "/api/v1/rules", &rules); err != nil {
		return nil, err
	}
	var faults []string
	for _, t := range targets.Active {
		if t.Health != "up" {
			faults = append(faults, fmt.Sprintf("%s is %s: %s", t.URL, t.Health, t.Last))
		}
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Last != "" {
				faults = append(faults, r.Name+": "+r.Last)
			}
		}
	}
	return faults, nil
}

func (p *Prometheus) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	res, err := p.http.Do(req)
	if err != nil {
		return fmt.Errorf("asking Prometheus: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // only read
	var answer struct {
		Status string          `json:"status"`
		Error  string          `json:"error"`
		Data   json.RawMessage `json:"data"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return fmt.Errorf("answer of Prometheus: %w", err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("the Prometheus says: %s", answer.Error)
	}
	if err := json.Unmarshal(answer.Data, into); err != nil {
		return fmt.Errorf("answer of Prometheus: %w", err)
	}
	return nil
}
