package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/archive"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/console"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/expiry"
	"github.com/lapsehq/lapse/pkg/heartbeat"
	"github.com/lapsehq/lapse/pkg/issuance"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/ledger"
	"github.com/lapsehq/lapse/pkg/order"
	"github.com/lapsehq/lapse/pkg/outbox"
	"github.com/lapsehq/lapse/pkg/planner"
	"github.com/lapsehq/lapse/pkg/profile"
	"github.com/lapsehq/lapse/pkg/reconcile"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/wakeup"
	"github.com/lapsehq/lapse/pkg/yield"
)

// settings has the keys of all workers, so that the file of any of them can be given.
type settings struct {
	config.Common `koanf:",squash"`
	Outbox        outbox.Config        `koanf:"outbox"`
	Planner       planner.Config       `koanf:"planner"`
	Reminders     planner.RemindConfig `koanf:"reminders"`
	Issuance      issuance.Config      `koanf:"issuance"`
	Order         order.Config         `koanf:"order"`
	Ledger        ledger.Config        `koanf:"ledger"`
	Expiry        expiry.Config        `koanf:"expiry"`
	Notice        config.Notice        `koanf:"notice"`
	Profile       profile.Config       `koanf:"profile"`
	Wakeup        wakeup.Config        `koanf:"wakeup"`
	Yield         yield.Config         `koanf:"yield"`
	API           api.Config           `koanf:"api"`
	Archive       archive.Config       `koanf:"archive"`
	Reconcile     reconcile.Config     `koanf:"reconcile"`
	Heartbeat     heartbeat.Config     `koanf:"heartbeat"`
	Console       console.Config       `koanf:"console"`
}

func defaultSettings() settings {
	return settings{
		Common: config.DefaultCommon(), Outbox: outbox.DefaultConfig(), Planner: planner.DefaultConfig(), Reminders: planner.DefaultRemindConfig(),
		Issuance: issuance.DefaultConfig(), Order: order.DefaultConfig(), Ledger: ledger.DefaultConfig(),
		Expiry: expiry.DefaultConfig(), Notice: config.DefaultNotice(), API: api.DefaultConfig(),
		Profile: profile.DefaultConfig(), Wakeup: wakeup.DefaultConfig(), Yield: yield.DefaultConfig(),
		Archive: archive.DefaultConfig(), Reconcile: reconcile.DefaultConfig(), Heartbeat: heartbeat.DefaultConfig(),
		Console: console.DefaultConfig(),
	}
}

// configFlag is --config.
type configFlag string

// AfterApply notes the file for the commands.
func (f configFlag) AfterApply(s *system) error { //nolint:unparam // kong asks for the result
	s.config = string(f)
	return nil
}

const (
	envPrefix       = "LAPSE__"
	envInstallation = "LAPSE__INSTALLATION="
	envDatabase     = "LAPSE__DATABASE__"
	keptDemo        = ".stack/demo.env"

	openWithin = 15 * time.Second
)

// A command that does not need a key runs without it; a wrong value is a fault all the same.
const (
	keyInstallation = "installation"
	keyBroker       = "broker.url"
)

// settings reads the configuration. Faults of keys that are not given and not among needs do not count.
func (s *system) settings(needs ...string) (settings, error) {
	environ, err := s.place(slices.Contains(needs, keyInstallation))
	if err != nil {
		return settings{}, err
	}
	src, err := config.ReadSources(s.config, environ)
	if err != nil {
		return settings{}, err //nolint:wrapcheck // says what it reads
	}
	cfg, warnings, err := config.Load(defaultSettings(), src)
	var faults *config.Error
	if errors.As(err, &faults) {
		faults.Faults = slices.DeleteFunc(faults.Faults, func(f config.Fault) bool {
			optional := f.Path == keyInstallation || f.Path == keyBroker
			return optional && f.Source == "" && !slices.Contains(needs, f.Path)
		})
		if len(faults.Faults) == 0 {
			return cfg, nil
		}
	}
	if err != nil {
		for _, w := range warnings {
			s.note("warning: %s", w)
		}
		return settings{}, err //nolint:wrapcheck // names every fault
	}
	return cfg, nil
}

// place is the environment to read: the process's own, or that of a kept demo when neither a file nor the environment
// says which installation (or, where that is enough, which database) is meant. The two are never mixed.
func (s *system) place(installation bool) ([]string, error) {
	given := func(prefix string) bool {
		return slices.ContainsFunc(s.environ, func(v string) bool { return strings.HasPrefix(v, prefix) })
	}
	if s.config != "" || given(envInstallation) || (!installation && given(envDatabase)) {
		return s.environ, nil
	}
	file, kept, err := findKept(s.dir)
	if err != nil {
		return nil, err
	}
	if file == "" {
		return nil, fmt.Errorf("no installation is given: use --config FILE or %sINSTALLATION and the other %s… variables; "+
			"or keep a demo to work with (make demo): %s was looked for in %s and above", envPrefix, envPrefix, keptDemo, s.dir)
	}
	ignored := given(envPrefix)
	environ := slices.DeleteFunc(slices.Clone(s.environ), func(v string) bool { return strings.HasPrefix(v, envPrefix) })
	if ignored {
		s.note("the kept demo of %s; the %s… variables of the environment name no installation and are not read", file, envPrefix)
	}
	return append(environ, kept...), nil
}

// findKept looks for what a kept demo left, in dir and above.
func findKept(dir string) (file string, environ []string, err error) {
	for {
		file = filepath.Join(dir, keptDemo)
		environ, err = readKept(file)
		if !errors.Is(err, os.ErrNotExist) {
			return file, environ, err
		}
		parent := filepath.Dir(dir)
		if dir == "" || parent == dir {
			return "", nil, nil
		}
		dir = parent
	}
}

// readKept reads shell exports or plain NAME=value lines.
func readKept(file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err //nolint:wrapcheck // names the file
	}
	var environ []string
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "export ")), "=")
		if !ok {
			return nil, errors.Join(fmt.Errorf("%s: line %d: must be NAME=value", file, n), f.Close())
		}
		if strings.HasPrefix(name, envPrefix) {
			environ = append(environ, name+"="+unquote(value))
		}
	}
	if err := errors.Join(lines.Err(), f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return environ, nil
}

// unquote takes the quotes off that a shell would.
func unquote(value string) string {
	n := len(value)
	switch {
	case n >= 2 && value[0] == '\'' && value[n-1] == '\'':
		return strings.ReplaceAll(value[1:n-1], `'\''`, `'`)
	case n >= 2 && value[0] == '"' && value[n-1] == '"':
		return strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\$`, `$`, "\\`", "`").Replace(value[1 : n-1])
	default:
		return value
	}
}

// openStore opens the database; its schema must be this build's.
func (s *system) openStore(ctx context.Context) (*store.Store, error) {
	cfg, err := s.settings(keyInstallation)
	if err != nil {
		return nil, err
	}
	codec, err := event.NewCodec(cfg.Installation)
	if err != nil {
		return nil, err //nolint:wrapcheck // names the field
	}
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	cfg.Database.Migrate, cfg.Database.MaxOpen, cfg.Database.Reader = "verify", 4, true
	opened, err := store.Open(ctx, cfg.Database, codec, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		return nil, fmt.Errorf("database %s at %s: %w", cfg.Database.Name, cfg.Database.Address, err)
	}
	return opened, nil
}

// withStore opens the database for f.
func (s *system) withStore(ctx context.Context, f func(*store.Store) error) error {
	opened, err := s.openStore(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(opened), opened.Close())
}

// broker gives the broker's client, not connected yet; it declares plan of the ladder if the configuration says so.
func (s *system) broker(cfg settings, plan func(*ladder.Ladder) ladder.Plan) (*broker.Client, *ladder.Ladder, error) {
	l, err := ladder.New(cfg.Ladder)
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // names the fault
	}
	c, err := broker.New(cfg.Broker, broker.Options{Role: "lapsectl", Plan: plan(l)})
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // names the fault
	}
	return c, l, nil
}

// note says something to the person at the terminal, beside the output.
func (s *system) note(format string, args ...any) {
	_, _ = fmt.Fprintf(s.stderr, "lapsectl: "+format+"\n", args...)
}

// miss says what is amiss; the exit code is 1.
func (s *system) miss(format string, args ...any) error {
	s.note(format, args...)
	return errMiss
}

// errPrint: the output cannot be written.
var errPrint = errors.New("printing")

// print writes output.
func (s *system) print(text string) error {
	if _, err := s.stdout.Write([]byte(text)); err != nil {
		return fmt.Errorf("%w: %w", errPrint, err)
	}
	return nil
}
