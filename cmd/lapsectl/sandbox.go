package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

type sandboxCommand struct {
	Fresh   bool   `help:"Begin with an empty database; else what an earlier run left is there again."`
	Address string `placeholder:"HOST:PORT" help:"Of the API (127.0.0.1, the stack's first port + 80)."`
	Name    string `help:"Of a sandbox beside the usual one: small letters and digits, part of its prefix and database."`
	Once    bool   `help:"End as soon as everything is there."`
	Remove  bool   `help:"Take everything away at the end: database, queues, files."`
}

// Help says where it runs.
func (*sandboxCommand) Help() string {
	return "Publisher, expirer and notifier in sandbox mode, on the development servers of this checkout (scripts/stack up), with a " +
		"token that everybody knows and something of every kind to look at. Ctrl-C ends it. Never for real coupons."
}

// The sandbox's tokens are no secrets: they are in the documentation. The API listens on this host alone by default.
const (
	sandboxToken = "sandbox-token" // every scope
	sandboxOwn   = "sandbox-"      // and the scope's name: that scope alone
)

// sandboxTokens is api.tokens of the sandbox, as a variable of the environment has it.
func sandboxTokens() string {
	entry := func(name, secret string, scopes ...string) string {
		return fmt.Sprintf("{name: %s, hash: %s, scopes: [%s]}", name, api.HashToken(secret), strings.Join(scopes, ", "))
	}
	var all, entries []string
	for _, scope := range api.Scopes() {
		all = append(all, string(scope))
		entries = append(entries, entry(sandboxOwn+string(scope), sandboxOwn+string(scope), string(scope)))
	}
	return "[" + strings.Join(append(entries, entry("sandbox", sandboxToken, all...)), ", ") + "]"
}

// Run starts the sandbox, shows what is there, and waits for Ctrl-C.
func (c *sandboxCommand) Run(ctx context.Context, s *system) error {
	if err := s.sandboxOnly(); err != nil {
		return err
	}
	stack, err := s.stack(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	step := func(text string) { _ = s.print(fmt.Sprintf("%7.1f s  %s\n", time.Since(start).Seconds(), text)) }
	box, err := demo.OpenSandbox(ctx, demo.SandboxConfig{
		Stack: stack, Bin: s.bin(), Address: c.Address, Fresh: c.Fresh, Name: c.Name, Env: sandboxEnv, Step: step,
	})
	if err == nil {
		err = c.serve(ctx, s, box, step)
	}
	step("ending")
	if closed := box.Close(ctx); closed != nil {
		return errors.Join(err, fmt.Errorf("ending the sandbox: %w", closed))
	}
	if c.Remove {
		if removed := box.Remove(ctx); removed != nil {
			err = errors.Join(err, fmt.Errorf("removing the sandbox: %w", removed))
		}
	}
	return err
}

// sandboxEnv is what the sandbox's workers are told beside where everything is.
func sandboxEnv(worker string) map[string]string {
	switch worker {
	case demo.Publisher:
		return map[string]string{"LAPSE__API__TOKENS": sandboxTokens()}
	case demo.Notifier:
		return map[string]string{"LAPSE__NOTICE__QUIET": "2s"} // who tries things does not wait for half a minute
	default:
		return nil
	}
}

// sandboxOnly refuses to begin where another installation is meant: the sandbox has its own, and somebody who named one may
// believe that it runs there.
func (s *system) sandboxOnly() error {
	if s.config != "" {
		return errors.New("--config: the sandbox runs in an installation of its own, never in the one that a file names")
	}
	for _, name := range []string{"LAPSE__INSTALLATION", "LAPSE__PREFIX"} {
		if v, set := s.lookup(name); set && !strings.HasPrefix(v, demo.SandboxPrefix) {
			return fmt.Errorf("%s is %q: the sandbox runs in an installation of its own (%s), never in another; unset it", name, v, demo.SandboxPrefix)
		}
	}
	return nil
}

func (c *sandboxCommand) serve(ctx context.Context, s *system, box *demo.Sandbox, step func(string)) error {
	cl, err := client.New(client.Config{URL: box.URL(), Token: sandboxToken, Actor: "lapsectl"})
	if err != nil {
		return err //nolint:wrapcheck // names the field
	}
	defer cl.Close()
	step("something of every kind")
	there, err := seedSandbox(ctx, cl, time.Now())
	if err != nil {
		if ctx.Err() != nil {
			return nil // it was ended before it was there
		}
		return fmt.Errorf("seeding the sandbox: %w; --fresh begins anew", err)
	}
	if err := s.print(s.sandboxTable(box, there)); err != nil || c.Once {
		return err
	}
	return box.Wait(ctx) //nolint:wrapcheck // names the worker
}

// sandboxTable shows where everything is, what there is, and what to type.
func (s *system) sandboxTable(box *demo.Sandbox, there []seeded) string {
	var b strings.Builder
	k := box.Management()
	fmt.Fprintf(&b, "\n  API       %s   token %s (every scope; %sissue, %sorder, %sread, %sops have one)\n",
		box.URL(), sandboxToken, sandboxOwn, sandboxOwn, sandboxOwn, sandboxOwn)
	fmt.Fprintf(&b, "  console   %s   the same tokens\n", box.Console())
	fmt.Fprintf(&b, "  document  %s/openapi.yaml\n", box.URL())
	fmt.Fprintf(&b, "  RabbitMQ  %s, user %s, password %s; queues %s.*\n", k.Management, k.User, k.Password, box.Prefix())
	fmt.Fprintf(&b, "  logs      %s\n", box.Logs())
	fmt.Fprintf(&b, "  lapsectl  . %s; %s status\n\n", box.EnvFile(), s.name())
	for _, c := range there {
		fmt.Fprintf(&b, "  coupon %-6s %-8s of %-5s %s\n", c.coupon.CouponID, c.coupon.State, c.coupon.UserID, c.what)
	}
	id, user := there[0].coupon.CouponID, there[0].coupon.UserID
	curl := fmt.Sprintf("  curl -s -H 'Authorization: Bearer %s' %s/v1", sandboxToken, box.URL())
	fmt.Fprintf(&b, "\n%s/users/%s/coupons\n", curl, user)
	fmt.Fprintf(&b, "%s/grants --json '{\"grants\":[{\"grant_key\":\"mine-1\",\"template_id\":\"%s\",\"user_id\":\"%s\"}]}'\n", curl, there[0].coupon.TemplateID, user)
	fmt.Fprintf(&b, "%s/orders/order-1/lock --json '{\"user_id\":\"%s\",\"coupon_ids\":[\"%s\"]}'\n", curl, user, id)
	fmt.Fprintf(&b, "%s/orders/order-1/release --json '{\"coupon_ids\":[\"%s\"]}'\n", curl, id)
	fmt.Fprintf(&b, "%s/sandbox/coupons/%s/forward --json '{\"what\":\"end\",\"in_seconds\":10}'\n", curl, id)
	b.WriteString("\n  Ctrl-C ends it; the data stay for the next time, --fresh begins anew.\n")
	return b.String()
}
