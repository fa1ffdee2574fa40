package telemetry

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"time"
)

// Config is what a process tells besides its log and metrics.
type Config struct {
	Traces TracesConfig `koanf:"traces"`
}

// DefaultConfig sends no traces.
func DefaultConfig() Config { return Config{Traces: DefaultTracesConfig()} }

// TracesConfig says where spans go. Headers that the receiver wants (a token) come from the environment, as OpenTelemetry has it:
// OTEL_EXPORTER_OTLP_HEADERS.
type TracesConfig struct {
	// Endpoint of an OTLP receiver over HTTP, such as http://collector:4318; without a path it is /v1/traces. Default empty: no traces.
	Endpoint string `koanf:"endpoint"`
	// Ratio of what comes without a trace that gets one, 0 to 1. What comes with one is traced exactly if that says so. Default 0.01.
	Ratio float64 `koanf:"ratio"`
	// Timeout of one request to the receiver. Default 5s.
	Timeout time.Duration `koanf:"timeout"`
	// Queue is how many spans may wait to be sent; those beyond are dropped. Default 8192.
	Queue int `koanf:"queue"`
}

// DefaultTracesConfig gives the documented defaults.
func DefaultTracesConfig() TracesConfig {
	return TracesConfig{Ratio: 0.01, Timeout: 5 * time.Second, Queue: 8192}
}

// Validate reports every fault, each beginning with its field's name.
func (c TracesConfig) Validate() error {
	var errs []error
	if c.Endpoint != "" {
		switch u, err := url.Parse(c.Endpoint); {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			errs = append(errs, errors.New("endpoint: must be http(s)://host:port")) // it may hold what is secret
		case u.User != nil || u.RawQuery != "" || u.Fragment != "":
			errs = append(errs, errors.New("endpoint: must have no password and no query; headers come from OTEL_EXPORTER_OTLP_HEADERS"))
		}
	}
	if math.IsNaN(c.Ratio) || c.Ratio < 0 || c.Ratio > 1 {
		errs = append(errs, fmt.Errorf("ratio: must be between 0 and 1, got %v", c.Ratio))
	}
	if c.Timeout < 100*time.Millisecond || c.Timeout > 30*time.Second {
		errs = append(errs, fmt.Errorf("timeout: must be between 100ms and 30s, got %s", c.Timeout))
	}
	if c.Queue < 512 || c.Queue > 1_000_000 {
		errs = append(errs, fmt.Errorf("queue: must be between 512 and 1000000, got %d", c.Queue))
	}
	return errors.Join(errs...)
}
