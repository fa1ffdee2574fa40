package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/pkg/rig/demo"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

const (
	refusedFor = 4 * time.Second // how long a worker tries with what is wrong
	stopWithin = 30 * time.Second
)

// refusal is a configuration with a planted secret that is wrong.
type refusal struct {
	name    string
	workers []string
	env     []string // lines
	yaml    string   // of a file beside it
	without string   // a variable that would win over the file
	says    string   // by which one sees that it was refused for this
	live    bool     // it is of good form: the worker runs, and servers refuse it
}

// refusals are the ways in which each secret can be wrong.
func (l *leaks) refusals(dir string) ([]refusal, error) {
	all := []string{demo.Publisher, demo.Expirer, demo.Notifier}
	amqp, err := url.Parse(l.w.cfg.Stack.AMQPURL.Reveal())
	if err != nil {
		return nil, errors.New("TEST_AMQP_URL is malformed")
	}
	management, err := url.Parse(l.w.cfg.Stack.ManagementURL.Reveal())
	if err != nil {
		return nil, errors.New("TEST_MANAGEMENT_URL is malformed")
	}
	var errs []error
	wrong := func(what string) string {
		s, err := l.plant(what + ", wrong")
		errs = append(errs, err)
		return s
	}
	amqp.User = url.UserPassword("nobody", wrong("broker.url"))
	management.User = url.UserPassword("nobody", wrong("broker.management_url"))
	key := filepath.Join(dir, "api.key")
	pem := "-----BEGIN PRIVATE KEY-----\n" + wrong("api.tls.key_file") + "\n-----END PRIVATE KEY-----\n"
	errs = append(errs, os.WriteFile(key, []byte(pem), 0o600))
	short := "pl4ntedshort"
	l.know("notice.gateway.push.key, too short", short)
	out := []refusal{
		{name: "a wrong password of the broker", workers: all, env: []string{"LAPSE__BROKER__URL=" + amqp.String()}, says: "password", live: true},
		{name: "a wrong password of the database", workers: all, env: []string{"LAPSE__DATABASE__PASSWORD=" + wrong("database.password")}, says: "password", live: true},
		{name: "a wrong password of the management API", workers: all[:1], env: []string{"LAPSE__BROKER__MANAGEMENT_URL=" + management.String()}, says: "management", live: true},
		{
			name: "a Redis that is not there", workers: all[:1], says: "refused", live: true,
			env: []string{"LAPSE__DELAY__MECHANISM=zset", "LAPSE__DELAY__REDIS__URL=redis://:" + wrong("delay.redis.url") + "@127.0.0.1:1/0"},
		},
		{name: "a broker's URL that is none", workers: all, env: []string{"LAPSE__BROKER__URL=amqp://u:" + wrong("broker.url, malformed") + "@no host:x/"}, says: "broker.url"},
		{
			name: "a Redis URL that is none", workers: all[:1], says: "delay.redis.url",
			env: []string{"LAPSE__DELAY__MECHANISM=zset", "LAPSE__DELAY__REDIS__URL=redis//:" + wrong("delay.redis.url, malformed") + "@h"},
		},
		{
			name: "a token in the place of its hash", workers: all[:1], says: "hash",
			env: []string{"LAPSE__API__TOKENS=[{name: shop, hash: " + wrong("api.tokens") + ", scopes: [read]}]"},
		},
		{name: "a provider's key that is too short", workers: all[:1], env: []string{`LAPSE__API__PROVIDERS={"p":"` + short + `"}`}, says: "api.providers"},
		{
			name: "a key of addresses that is none", workers: all[2:], says: "profile.addresses",
			env: []string{"LAPSE__PROFILE__ADDRESSES__ACTIVE=k1", `LAPSE__PROFILE__ADDRESSES__KEYS={"k1":"` + wrong("profile.addresses.keys") + `"}`},
		},
		{
			name: "a gateway's key that is too short", workers: all[2:], says: "notice.gateway.push",
			env: []string{"LAPSE__NOTICE__CHANNELS=inbox,push", "LAPSE__NOTICE__GATEWAY__PUSH__URL=https://h/", "LAPSE__NOTICE__GATEWAY__PUSH__KEY=" + short},
		},
		{
			name: "a key of TLS that is none", workers: all[:1], says: "key_file", live: true,
			env: []string{"LAPSE__API__TLS__CERT_FILE=" + key, "LAPSE__API__TLS__KEY_FILE=" + key},
		},
		{
			name: "secrets under names that are misspelt", workers: all, says: "urll",
			env:  []string{"LAPSE__BROKER__URLL=amqp://u:" + wrong("broker.urll") + "@h/", "LAPSE_BROKER_URL=amqp://u:" + wrong("LAPSE_BROKER_URL") + "@h/"},
			yaml: "database: {passwort: " + wrong("database.passwort") + "}\n",
		},
		{name: "a secret of another form", workers: all, says: "database.password", yaml: "database: {password: {is: " + wrong("database.password.is") + "}}\n", without: "LAPSE__DATABASE__PASSWORD"},
	}
	return out, errors.Join(errs...)
}

// refused runs the programs with each of them, and looks at all that they say.
func (l *leaks) refused(ctx context.Context, s *shop) (err error) {
	dir, err := os.MkdirTemp("", "lapse-verify-")
	if err != nil {
		return fmt.Errorf("a directory for files: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cases, err := l.refusals(dir)
	if err != nil {
		return err
	}
	expected, said, printed := 0, 0, 0
	for i, c := range cases {
		args := []string{}
		if c.yaml != "" {
			file := filepath.Join(dir, fmt.Sprintf("%d.yaml", i))
			if err := os.WriteFile(file, []byte(c.yaml), 0o600); err != nil {
				return fmt.Errorf("a bad configuration: %w", err)
			}
			args = append(args, "-config", file)
		}
		for _, worker := range c.workers {
			env := slices.Concat(s.Env(), []string{"LAPSE__ADMIN__ADDRESS=127.0.0.1:0", "LAPSE__LOG__LEVEL=debug"}, c.env)
			env = slices.DeleteFunc(env, func(line string) bool { return c.without != "" && strings.HasPrefix(line, c.without+"=") })
			if worker == demo.Publisher {
				env = append(env, "LAPSE__API__ADDRESS=127.0.0.1:0")
			}
			out, err := l.run(ctx, c.name, worker, args, env, c.live)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			expected++
			if bytes.Contains(out, []byte(c.says)) {
				said++
			} else {
				l.w.cfg.View.Step(fmt.Sprintf("%s: %s does not say %q", c.name, worker, c.says))
			}
			if bytes.Contains(out, []byte("mechanism: ")) { // the configuration was printed, down to there
				printed++
			}
		}
		if c.live {
			if err := l.control(ctx, c.name, slices.Concat(s.Env(), c.env)); err != nil {
				return err
			}
		}
	}
	want(s.t, "configurations_refused", expected, AtLeast, 20)
	want(s.t, "refusals_not_said", expected-said, Equal, 0)
	want(s.t, "configurations_printed", printed, AtLeast, 10)
	return nil
}

// run lets a worker check, print and use the configuration.
func (l *leaks) run(ctx context.Context, name, worker string, args, env []string, live bool) ([]byte, error) {
	var all []byte
	for _, flag := range []string{"-validate", "-print-config"} {
		out, err := l.output(ctx, worker, append(slices.Clone(args), flag), env)
		if err != nil {
			return nil, err
		}
		l.look(worker+" "+flag+", "+name, out)
		all = append(all, out...)
	}
	if !live {
		out, err := l.output(ctx, worker, args, env) // it ends by itself
		l.look(worker+", "+name, out)
		return append(all, out...), err
	}
	out, err := l.try(ctx, name, worker, args, env)
	return append(all, out...), err
}

// output is all that a program says that ends by itself.
func (l *leaks) output(ctx context.Context, program string, args, env []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(l.w.cfg.Bin, program), args...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		return out, fmt.Errorf("calling %s %s: %w", program, strings.Join(args, " "), errors.Join(err, ctx.Err()))
	}
	return out, nil
}

// try lets a worker run for a moment, asks its admin port, and stops it.
func (l *leaks) try(ctx context.Context, name, worker string, args, env []string) (_ []byte, err error) {
	dir, err := os.MkdirTemp("", "lapse-verify-")
	if err != nil {
		return nil, fmt.Errorf("a directory for files: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "ports.json")
	limit, cancel := context.WithTimeout(ctx, refusedFor+stopWithin)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(limit, filepath.Join(l.w.cfg.Bin, worker), append([]string{"-ports-file", file}, args...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &said, &said
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", worker, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // however it ended, what it has said is looked at
		close(ended)
	}()
	var pages []byte
	timer := time.NewTimer(refusedFor)
	defer timer.Stop()
	select {
	case <-ended: // by itself, which its log explains
	case <-timer.C:
		if ports, err := telemetry.ReadPorts(file); err == nil {
			_, ready, perr := page(limit, "http://"+loopback(ports["admin"])+"/readyz", "GET", "", "")
			if err := errors.Join(perr, l.admin(limit, worker, ports["admin"])); err != nil {
				l.w.cfg.View.Step(worker + " with " + name + ": " + err.Error())
			}
			pages = ready
		}
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-ended
	}
	l.look("the log of "+worker+", "+name, said.Bytes())
	l.look("/readyz of "+worker+", "+name, pages)
	return slices.Concat(said.Bytes(), pages), ctx.Err()
}

// control calls lapsectl with it.
func (l *leaks) control(ctx context.Context, name string, env []string) error {
	for _, line := range []string{"status", "topology verify", "forecast"} {
		out, err := l.output(ctx, lapsectl, strings.Fields(line), env)
		if err != nil {
			return err
		}
		l.look("lapsectl "+line+", "+name, out)
	}
	return nil
}
