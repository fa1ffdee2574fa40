package config

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Flags of a worker.
type Flags struct {
	Config      string // name of the configuration file
	PortsFile   string // where to write the ports that are listened on
	Validate    bool
	PrintConfig bool
	Version     bool
	Healthcheck bool
}

// Exit codes of a worker.
const (
	ExitOK      = 0
	ExitFailure = 1 // it failed, or its configuration is invalid, or it is not alive
	ExitUsage   = 2 // the command line is wrong
)

// Process is what a worker gets from outside: everything that os would give.
type Process struct {
	Args           []string // without the program's name
	Environ        []string
	Stdout, Stderr io.Writer
}

// Worker is a root configuration: it names its admin server, for -healthcheck.
type Worker interface{ AdminAddress() string }

const healthcheckTimeout = 3 * time.Second

// Start reads flags and configuration and does what the flags ask for. If run is false the process is to exit with code;
// else the worker is to run with cfg, and to log the warnings.
func Start[T Worker](ctx context.Context, b telemetry.Build, defaults T, p Process) (cfg T, f Flags, warnings []string, code int, run bool) {
	f, err := parseFlags(b.Name, p)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return defaults, f, nil, ExitOK, false
	case err != nil:
		return defaults, f, nil, ExitUsage, false // the flag set has said why
	case f.Version:
		_, err := fmt.Fprintln(p.Stdout, b)

		return defaults, f, nil, exitCode(p.Stderr, err), false
	}
	src, err := ReadSources(f.Config, p.Environ)
	if err == nil {
		cfg, warnings, err = Load(defaults, src)
	}
	if f.Validate || f.PrintConfig || f.Healthcheck {
		for _, w := range warnings {
			_, _ = fmt.Fprintln(p.Stderr, "warning:", w)
		}
	}
	switch {
	case err != nil && f.PrintConfig && cfg.AdminAddress() != "":
		// What it would be, with the faults beside it: that is when one wants to see it.
		err = errors.Join(err, Print(p.Stdout, cfg))
	case err != nil:
	case f.PrintConfig:
		err = Print(p.Stdout, cfg)
	case f.Healthcheck:
		ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
		defer cancel()
		err = telemetry.CheckLive(ctx, cfg.AdminAddress(), f.PortsFile)
	case f.Validate:
		_, err = fmt.Fprintln(p.Stdout, "the configuration is valid")
	default:
		return cfg, f, warnings, ExitOK, true
	}

	return cfg, f, warnings, exitCode(p.Stderr, err), false
}

func exitCode(stderr io.Writer, err error) int {
	if err == nil {
		return ExitOK
	}
	_, _ = fmt.Fprintln(stderr, err)

	return ExitFailure
}

func parseFlags(name string, p Process) (Flags, error) {
	var f Flags
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(p.Stderr)
	set.StringVar(&f.Config, "config", "", "read the configuration from this YAML `file`")
	set.StringVar(&f.PortsFile, "ports-file", "", "write the ports listened on to this `file`, as JSON")
	set.BoolVar(&f.Validate, "validate", false, "check the configuration, say everything that is wrong with it, and exit")
	set.BoolVar(&f.PrintConfig, "print-config", false, "print the configuration in force, secrets redacted, and exit")
	set.BoolVar(&f.Version, "version", false, "print the version and exit")
	set.BoolVar(&f.Healthcheck, "healthcheck", false, "ask the running process's /livez and exit (0: alive)")
	if err := set.Parse(p.Args); err != nil {
		return f, err
	}
	if set.NArg() > 0 {
		err := fmt.Errorf("unexpected arguments: %s", strings.Join(set.Args(), " "))
		_, _ = fmt.Fprintf(p.Stderr, "%s: %v\n", name, err)

		return f, err
	}

	return f, nil
}
