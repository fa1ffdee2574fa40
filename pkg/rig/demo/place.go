package demo

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
)

const (
	keptPrefix   = "lapse-demo"
	keptDatabase = "lapse_demo"
	envFile      = "demo.env"
	failedLogs   = "demo-failed"
	declareTries = 4
	varURL       = "LAPSE__BROKER__URL"
	varAddresses = "LAPSE__BROKER__ADDRESSES"
)

// place is where a run happens: names, addresses, and how to make and remove what carries them.
type place struct {
	stack    rig.Stack
	prefix   string // also the installation
	database string
	dir      string // of logs and ports files
	mysql    *mysql.Config
	// mechanism of delay; "": as it is by default
	mechanism string
	reshape   func(*ladder.Config)   // nil: the ladder as it is by default
	accounts  map[string]rig.Account // of workers, once they are made
	password  func(worker string) string
}

func newPlace(stack rig.Stack, keep bool) (*place, error) {
	p := &place{stack: stack, prefix: keptPrefix, database: keptDatabase}
	if !keep {
		b := make([]byte, 4)
		if _, err := rand.Read(b); err != nil {
			return nil, fmt.Errorf("naming the run: %w", err)
		}
		p.prefix += "-" + hex.EncodeToString(b)
		p.database += "_" + hex.EncodeToString(b)
	}
	p.dir = filepath.Join(stack.Dir, p.prefix)
	var err error
	if p.mysql, err = mysql.ParseDSN(stack.DSN.Reveal()); err != nil {
		return nil, errors.New("TEST_MYSQL_DSN is malformed")
	}
	return p, nil
}

func (p *place) dsn() string {
	c := p.mysql.Clone()
	c.DBName = p.database
	return c.FormatDSN()
}

func (p *place) storeConfig() store.Config {
	c := store.DefaultConfig()
	c.Address, c.User, c.Password, c.Name, c.Migrate = p.mysql.Addr, p.mysql.User, secret.New(p.mysql.Passwd), p.database, "auto"
	c.MaxOpen = 4
	return c
}

// env is the configuration that every process of the run shares, by the names of its variables.
func (p *place) env() map[string]string {
	vars := map[string]string{
		"LAPSE__INSTALLATION":           p.prefix,
		"LAPSE__PREFIX":                 p.prefix,
		varURL:                          p.stack.AMQPURL.Reveal(),
		"LAPSE__BROKER__MANAGEMENT_URL": p.stack.ManagementURL.Reveal(),
		"LAPSE__DATABASE__ADDRESS":      p.mysql.Addr,
		"LAPSE__DATABASE__USER":         p.mysql.User,
		"LAPSE__DATABASE__PASSWORD":     p.mysql.Passwd,
		"LAPSE__DATABASE__NAME":         p.database,
	}
	if len(p.stack.Addresses) > 0 {
		vars[varAddresses] = strings.Join(p.stack.Addresses, ",")
		vars["LAPSE__BROKER__MANAGEMENT_ADDRESSES"] = strings.Join(p.stack.ManagementAddresses(), ",")
	}
	if p.mechanism != "" {
		vars["LAPSE__DELAY__MECHANISM"] = p.mechanism
	}
	if p.mechanism == config.MechanismZSet {
		vars["LAPSE__DELAY__REDIS__URL"] = p.stack.RedisURL.Reveal()
	}
	return vars
}

// forgetDelay removes what waits in Redis.
func (p *place) forgetDelay(ctx context.Context) error {
	if p.stack.RedisURL.Empty() {
		return nil
	}
	c := delay.DefaultZSetConfig()
	c.URL = p.stack.RedisURL
	z, err := delay.NewZSet(c, delay.ZSetDeps{Prefix: p.prefix})
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return errors.Join(z.Forget(ctx), z.Close())
}

// program is a worker with its environment: ours without what an outer configuration says of Lapse.
func (p *place) program(bin, name string, more map[string]string) rig.Program {
	vars := p.env()
	p.asAccount(name, vars)
	vars["LAPSE__ADMIN__ADDRESS"] = "127.0.0.1:0"
	if name == "publisher" { // the others have no API, and refuse settings that they do not know
		vars["LAPSE__API__ADDRESS"] = "127.0.0.1:0"
		vars["LAPSE__HEARTBEAT__ENABLED"] = "false" // every coupon of a run is the run's
	}
	if more[varURL] != "" {
		delete(vars, varAddresses) // who is told another URL goes by it
	}
	maps.Copy(vars, more)
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LAPSE_") && !strings.HasPrefix(v, "STACK_") && !strings.HasPrefix(v, "TEST_") {
			env = append(env, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, name+"="+vars[name])
	}
	return rig.Program{Name: name, Path: filepath.Join(bin, name), Env: env}
}

func (p *place) ladder() (*ladder.Ladder, error) {
	c := ladder.DefaultConfig()
	c.Prefix = p.prefix
	if p.reshape != nil {
		p.reshape(&c)
	}
	return ladder.New(c)
}

func (p *place) client() (*broker.Client, error) {
	c := broker.DefaultConfig()
	c.URL, c.Addresses, c.Name = p.stack.AMQPURL, p.stack.Addresses, p.prefix
	return broker.New(c, broker.Options{Role: "demo"})
}

func (p *place) createDatabase(ctx context.Context) error {
	return p.admin(ctx, "CREATE DATABASE "+p.database+" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
}

func (p *place) dropDatabase(ctx context.Context) error {
	return p.admin(ctx, "DROP DATABASE IF EXISTS "+p.database)
}

func (p *place) admin(ctx context.Context, statement string) error {
	connector, err := mysql.NewConnector(p.mysql)
	if err != nil {
		return fmt.Errorf("database %s: %w", p.database, err)
	}
	db := sql.OpenDB(connector)
	_, err = db.ExecContext(ctx, statement)
	if err != nil {
		err = fmt.Errorf("database %s: %w", p.database, err)
	}
	return errors.Join(err, db.Close())
}

func (p *place) openStore(ctx context.Context) (*store.Store, *event.Codec, error) {
	codec, err := event.NewCodec(p.prefix)
	if err != nil {
		return nil, nil, err
	}
	s, err := store.Open(ctx, p.storeConfig(), codec, zap.NewNop(), prometheus.NewRegistry())
	return s, codec, err
}

func (p *place) declare(ctx context.Context, l *ladder.Ladder) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	// A cluster of RabbitMQ 3.10 may answer a declare with an internal error, when the queue's leader is elected on a node that has not
	// heard of the queue yet; it is there all the same. Workers try again without end.
	for tries := 0; ; tries++ {
		err := c.Declare(ctx, l.Plan())
		if err == nil || broker.Refused(err) || tries == declareTries || lifecycle.Sleep(ctx, time.Second) != nil {
			return err
		}
	}
}

func (p *place) deleteTopology(ctx context.Context) error {
	l, err := p.ladder()
	if err != nil {
		return err
	}
	c, err := p.client()
	if err != nil {
		return err
	}
	return c.Delete(ctx, l.Plan())
}

// remove takes away everything of the run but what still runs.
func (p *place) remove(ctx context.Context) error {
	return errors.Join(p.deleteTopology(ctx), p.dropDatabase(ctx), p.forgetDelay(ctx), p.dropAccounts(ctx), os.RemoveAll(p.dir))
}

// saveLogs puts the logs of a failed run where the next one that fails will replace them.
func (p *place) saveLogs(name string) (string, error) {
	to := filepath.Join(p.stack.Dir, "log", cmp.Or(name, failedLogs))
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.RemoveAll(to), os.Rename(p.dir, to)); err != nil {
		return "", fmt.Errorf("keeping the logs: %w", err)
	}
	return to, nil
}

// fleet runs the workers; scripts/stack down, too, ends what is noted in its run directory.
func (p *place) fleet() *rig.Fleet {
	return rig.NewFleet(p.dir, filepath.Join(p.stack.Dir, "run", p.prefix+"-"))
}

// keep notes for lapsectl where the run is.
func (p *place) keep() error {
	return p.keepAs(envFile, "Where the kept demo is. lapsectl reads this when no configuration is given; the next demo or scripts/stack down removes it.")
}

// keepAs writes the configuration that all processes share to a file of the stack's directory, as a shell reads it.
func (p *place) keepAs(file, remark string) error {
	var b strings.Builder
	b.WriteString("# " + remark + "\n")
	vars := p.env()
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		fmt.Fprintf(&b, "export %s='%s'\n", name, vars[name])
	}
	if err := os.WriteFile(filepath.Join(p.stack.Dir, file), []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("keeping where it is: %w", err)
	}
	return nil
}

// clearKept removes what an earlier run kept, if there is any.
func clearKept(ctx context.Context, stack rig.Stack) error {
	p, err := newPlace(stack, true)
	if err != nil {
		return err
	}
	var errs []error
	fleet := p.fleet()
	for _, name := range []string{Notifier, Expirer, Publisher} {
		_, err := rig.StopPid(ctx, fleet.PidFile(name))
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ending what an earlier demo kept: %w", err)
	}
	if err := os.Remove(filepath.Join(stack.Dir, envFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("clearing what an earlier demo kept: %w", err)
	}
	if err := p.remove(ctx); err != nil {
		return fmt.Errorf("clearing what an earlier demo kept: %w", err)
	}
	return nil
}

// ReadEnv reads what a kept demo left for other commands; nil if there is none.
func ReadEnv(stackDir string) (map[string]string, error) {
	body, err := os.ReadFile(filepath.Join(stackDir, envFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading where the demo is: %w", err)
	}
	vars := make(map[string]string)
	for line := range strings.Lines(string(body)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if ok {
			vars[name] = strings.Trim(value, "'")
		}
	}
	return vars, nil
}

// management is where a person looks at the queues.
func (p *place) management() (address, user, password string) {
	u, err := url.Parse(p.stack.ManagementURL.Reveal())
	if err != nil {
		return "", "", ""
	}
	password, _ = u.User.Password()
	user = u.User.Username()
	u.User = nil
	return u.String(), user, password
}
