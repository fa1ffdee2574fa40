package verify

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	upgradeAlone = 6 * time.Second  // a fleet of one release, before the next step
	upgradeMixed = 10 * time.Second // pods of both releases of every worker at once
	upgradePods  = 4 * 3            // that are replaced, there and back, of two of each worker
	releasesDir  = "releases"       // below the stack's directory
	upgradeCall  = 3 * time.Minute  // of lapsectl
)

// upgradeOrder is that of docs/upgrade.md: who reads what is new comes before who writes it.
func upgradeOrder() []string { return []string{demo.Notifier, demo.Expirer, demo.Publisher} }

// downgradeOrder is the opposite.
func downgradeOrder() []string {
	order := upgradeOrder()
	slices.Reverse(order)
	return order
}

// release is the programs of one side.
type release struct {
	name string // of its pods
	bin  string
	// knows are the settings of each worker, by their paths; nil: all that there are.
	knows map[string]map[string]bool
}

// upgrade is a fleet that goes from the release before to this one, and back.
type upgrade struct {
	*roll
	before, now release
	schema      int64 // of the release before
}

// upgrade runs the release before and this one side by side under load: its schema and fleet; the schema of this release; pod by pod this release,
// with both at once for a while; and the same way back.
func (w *deploy) upgrade(ctx context.Context, t *tally) (err error) {
	root := filepath.Dir(w.cfg.Stack.Dir)
	w.cfg.View.Step("the programs of the release before, out of git's history")
	built, err := rig.BuildRelease(ctx, root, filepath.Join(w.cfg.Stack.Dir, releasesDir), w.cfg.Previous)
	if err != nil {
		return err
	}
	w.cfg.View.Step(fmt.Sprintf("the release before: %s (%.12s), schema %d", built.Ref, built.Commit, built.Schema))
	s := &shop{ears: newEars(), t: t, root: w.cfg.asRoot}
	for _, secret := range []*string{&s.secret, &s.weak} {
		if *secret, err = secretToken(); err != nil {
			return err
		}
	}
	u := &upgrade{
		roll:   &roll{shop: s, w: w, running: map[string][]string{}},
		before: release{name: "before", bin: built.Bin}, now: release{name: "now", bin: w.cfg.Bin}, schema: built.Schema,
	}
	if u.before.knows, err = settingsOf(ctx, built.Bin); err != nil {
		return err
	}
	s.Installation, err = demo.Install(ctx, demo.InstallationConfig{Stack: w.cfg.Stack, Bin: built.Bin, Hear: s.ears.hear, Lay: u.lay})
	return w.attend(ctx, t, s, "", err, u.run)
}

// lay makes the schema by the release's own lapsectl.
func (u *upgrade) lay(ctx context.Context, env []string) error {
	err := u.call(ctx, env, u.before.bin, "migrate", "up")
	return err
}

// call calls a release's lapsectl with what every release knows of the installation.
func (u *upgrade) call(ctx context.Context, env []string, bin string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, upgradeCall)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, lapsectl), args...)
	var errs bytes.Buffer
	cmd.Dir, cmd.Stderr = os.TempDir(), &errs
	cmd.Env = append(only(env, func(path string) bool {
		return path == "installation" || path == "prefix" || path == "broker.url" || strings.HasPrefix(path, "database.")
	}), "USER=verify")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("lapsectl %s: %w: %s", strings.Join(args, " "), errors.Join(err, ctx.Err()), errs.String())
	}
	return nil
}

// only leaves away variables of settings that are not wanted.
func only(env []string, wanted func(path string) bool) (kept []string) {
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		path, ours := strings.CutPrefix(name, "LAPSE__")
		if !ours || wanted(strings.ToLower(strings.ReplaceAll(path, "__", "."))) {
			kept = append(kept, v)
		}
	}
	return kept
}

// settingsOf asks the workers of a release for their settings: they refuse what they do not know.
func settingsOf(ctx context.Context, bin string) (map[string]map[string]bool, error) {
	all := map[string]map[string]bool{}
	for _, worker := range upgradeOrder() {
		ctx, cancel := context.WithTimeout(ctx, programLimit)
		cmd := exec.CommandContext(ctx, filepath.Join(bin, worker), "-print-config")
		cmd.Dir, cmd.Env = os.TempDir(), []string{}
		out, err := cmd.Output() // that something must be given is an error beside it
		cancel()
		var tree map[string]any
		if yerr := yaml.Unmarshal(out, &tree); yerr != nil || len(tree) == 0 {
			return nil, fmt.Errorf("the settings of %s: %w", filepath.Join(bin, worker), errors.Join(err, yerr))
		}
		paths := map[string]bool{}
		flatten(tree, "", paths)
		all[worker] = paths
	}
	return all, nil
}

func flatten(tree map[string]any, above string, into map[string]bool) {
	for name, value := range tree {
		into[above+name] = true
		if below, ok := value.(map[string]any); ok {
			flatten(below, above+name+".", into)
		}
	}
}

// start starts another pod of a release and waits until it is ready.
func (u *upgrade) start(ctx context.Context, r release, worker string) error {
	u.started++
	name := fmt.Sprintf("%s-%s-%02d", worker, r.name, u.started)
	var known func([]string) []string
	if r.knows != nil {
		known = func(env []string) []string { return only(env, func(path string) bool { return r.knows[worker][path] }) }
	}
	env := u.env(worker)
	if worker != demo.Notifier { // those that relay: the release before may know no bundles
		env = maps.Clone(env)
		if env == nil {
			env = map[string]string{}
		}
		env["LAPSE__OUTBOX__BUNDLE"] = "1"
	}
	if err := u.AddAs(ctx, r.bin, name, worker, env, known); err != nil {
		return err
	}
	u.running[worker] = append(u.running[worker], name)
	return nil
}

// run is the whole way.
func (u *upgrade) run(ctx context.Context) error {
	step := u.w.cfg.View.Step
	step("the fleet of the release before")
	for _, worker := range upgradeOrder() {
		for range rollPods {
			if err := u.start(ctx, u.before, worker); err != nil {
				return err
			}
		}
	}
	if err := u.Listen(ctx); err != nil {
		return err
	}
	template, err := u.template(ctx)
	if err != nil {
		return err
	}
	f, err := u.feeding(ctx, template, u.w.size.coupons, false)
	if err != nil {
		return err
	}
	defer func() { _ = f.stop() }() // after the first time it has nothing to say
	if err := lifecycle.Sleep(ctx, rollBefore); err != nil {
		return err
	}
	began := u.Now()
	for _, part := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"the schema of this release, under the fleet of the one before", u.migrate},
		{"pod by pod this release", func(ctx context.Context) error { return u.replace(ctx, u.now, upgradeOrder()) }},
		{"and back, pod by pod", func(ctx context.Context) error { return u.replace(ctx, u.before, downgradeOrder()) }},
		{"the schema of the release before, under its fleet", u.migrateBack},
	} {
		step(part.what)
		if err := part.do(ctx); err != nil {
			return err
		}
		if err := lifecycle.Sleep(ctx, upgradeAlone); err != nil {
			return err
		}
	}
	over := u.Now()
	if err := f.stop(); err != nil {
		return err
	}
	told(u.t, "way_took_s", int(over.Sub(began).Seconds()))
	if err := u.judge(ctx, f, began, over, upgradePods); err != nil {
		return err
	}
	return u.wrong(ctx, f)
}

// template is made by the release before: this one's lapsectl would refuse the schema.
func (u *upgrade) template(ctx context.Context) (string, error) {
	err := u.call(ctx, u.Env(), u.before.bin, "template", "create", "--name=upgrade", "--value=500", "--currency=CNY", "--after=24h", "--reason=verify")
	if err != nil {
		return "", err
	}
	id, err := countIn(ctx, u.DB(), "SELECT MAX(template_id) FROM template_stock")
	return strconv.Itoa(id), err
}

func (u *upgrade) migrate(ctx context.Context) error {
	err := u.call(ctx, u.Env(), u.now.bin, "migrate", "up")
	return err
}

// migrateBack is lapsectl of this release: that of the one before does not know the way.
func (u *upgrade) migrateBack(ctx context.Context) error {
	err := u.call(ctx, u.Env(), u.now.bin, "migrate", "down", "--to="+strconv.FormatInt(u.schema, 10), "--yes")
	return err
}

// replace replaces one pod of every worker, waits with both releases at work, and replaces the others.
func (u *upgrade) replace(ctx context.Context, by release, order []string) error {
	for i := range rollPods {
		if i > 0 {
			if err := lifecycle.Sleep(ctx, upgradeMixed); err != nil {
				return err
			}
		}
		for _, worker := range order {
			if err := u.start(ctx, by, worker); err != nil {
				return err
			}
			if err := u.stopOldest(ctx, worker); err != nil {
				return err
			}
		}
	}
	return nil
}

// wrong counts coupons that are not what was asked for, and what was set aside.
func (u *upgrade) wrong(ctx context.Context, f *feed) error {
	tx, err := u.DB().BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("reading coupons: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it only reads
	wrong, seen := 0, map[string]bool{}
	err = each(ctx, tx, `SELECT k.grant_key, c.user_id, c.expires_at FROM coupon c JOIN grant_key k ON k.coupon_id = c.id`, func(r *sql.Rows) error {
		var key, user string
		var ends time.Time
		if err := r.Scan(&key, &user, &ends); err != nil {
			return err
		}
		var k int
		_, err := fmt.Sscanf(key, "roll-%d", &k)
		if err != nil || k/f.each >= len(f.ends) || seen[key] || user != userOf(k%rollUsers) || !ends.Equal(f.ends[k/f.each]) {
			wrong++
		}
		seen[key] = true
		return nil
	})
	if err != nil {
		return err
	}
	want(u.t, "wrong", wrong, Equal, 0)
	client, err := u.Client()
	if err != nil {
		return err
	}
	depths, err := client.Depths(ctx, []string{u.Ladder().Parked(), u.Ladder().Unroutable()})
	if err != nil {
		return fmt.Errorf("what was set aside: %w", err)
	}
	refused, err := countIn(ctx, u.DB(), "SELECT COUNT(*) FROM outbox_parked")
	want(u.t, "parked", depths[u.Ladder().Parked()]+depths[u.Ladder().Unroutable()]+refused, Equal, 0)
	return err
}
