package telemetry

import (
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Build is what a binary knows of its own making.
type Build struct {
	Name     string // of the binary
	Version  string // git describe, or "dev"
	Revision string // commit, "unknown" if it was not recorded
	Go       string // version of Go
}

// NewBuild fills in what Go recorded. version is what the linker set (-X main.version=…); empty means "dev".
func NewBuild(name, version string) Build {
	b := Build{Name: name, Version: version, Revision: "unknown", Go: runtime.Version()}
	if b.Version == "" {
		b.Version = "dev"
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Revision = s.Value
			}
		}
	}

	return b
}

// String is one line for -version.
func (b Build) String() string {
	return b.Name + " " + b.Version + " (revision " + b.Revision + ", " + b.Go + " " + runtime.GOOS + "/" + runtime.GOARCH + ")"
}

// NewRegistry returns a registry with the process's and Go's own metrics and lapse_build_info.
func NewRegistry(b Build) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lapse_build_info", Help: "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{"binary": b.Name, "version": b.Version, "revision": b.Revision, "goversion": b.Go},
	})
	info.Set(1)
	reg.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	return reg
}
