package rig

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/pkg/secret"
)

const (
	startStack       = `scripts/stack up; eval "$(scripts/stack env)"`
	amqpOffset       = 672              // of AMQP from the stack's first port, see docs/stack.md
	managementOffset = 673              // of the management API
	nodeOffset       = 30               // of each further node of a cluster from the one before
	redisOffset      = 379              // of Redis
	askLimit         = 15 * time.Second // for one answer of a server
	scriptLimit      = 3 * time.Minute  // for one command of scripts/stack
	upLimit          = 8 * time.Minute  // for one that starts everything: a cluster is formed one node after the other
)

// ErrForeign says that a server is not the one that this checkout's scripts/stack started.
var ErrForeign = errors.New("is not a server of this checkout's stack")

// Stack is the development servers of this checkout, as scripts/stack env describes them. Nothing may write to them
// before Check has let them pass.
type Stack struct {
	Dir           string        // the stack's directory: .stack in the checkout
	PortBase      int           // the stack's first port
	Token         secret.String // what both servers answer with
	AMQPURL       secret.String
	ManagementURL secret.String
	DSN           secret.String // go-sql-driver form, database lapse, a user with rights on lapse and lapse_*
	RootDSN       secret.String // the same server's root, without database
	RedisURL      secret.String // empty: this stack has no Redis
	Addresses     []string      // of AMQP (host:port), of each node of a cluster in their order; none: the broker is one node
}

// Versions is what the servers say they are, such as "RabbitMQ 3.10.8" and "MariaDB 10.11.19".
type Versions struct {
	Broker   string `json:"broker"`
	Database string `json:"database"`
	Redis    string `json:"redis,omitempty"` // empty: none is up
}

// LoadStack reads the variables that scripts/stack env prints, usually with os.LookupEnv. Its error names every one
// that is missing or malformed, and the command that sets them.
func LoadStack(lookup func(name string) (string, bool)) (Stack, error) {
	var missing []string
	get := func(name string) string {
		v, _ := lookup(name)
		if v == "" {
			missing = append(missing, name)
		}
		return v
	}
	s := Stack{
		Dir:           get("STACK_DIR"),
		Token:         secret.New(get("STACK_TOKEN")),
		AMQPURL:       secret.New(get("TEST_AMQP_URL")),
		ManagementURL: secret.New(get("TEST_MANAGEMENT_URL")),
		DSN:           secret.New(get("TEST_MYSQL_DSN")),
		RootDSN:       secret.New(get("STACK_MYSQL_ROOT_DSN")),
	}
	redis, _ := lookup("TEST_REDIS_URL")
	s.RedisURL = secret.New(redis)
	if nodes, _ := lookup("TEST_AMQP_ADDRESSES"); nodes != "" {
		s.Addresses = strings.Split(nodes, ",")
	}
	base := get("STACK_PORT_BASE")
	if len(missing) > 0 {
		return Stack{}, fmt.Errorf("not set: %s; run: %s", strings.Join(missing, ", "), startStack)
	}
	var err error
	if s.PortBase, err = strconv.Atoi(base); err != nil {
		return Stack{}, fmt.Errorf("STACK_PORT_BASE: must be a number, got %q; run: %s", base, startStack)
	}
	if _, err := s.addresses(); err != nil {
		return Stack{}, fmt.Errorf("%w; run: %s", err, startStack)
	}
	return s, nil
}

// ReadStack asks the scripts/stack of a checkout, for a caller whose environment was not set by it.
func ReadStack(ctx context.Context, checkout string) (Stack, error) {
	return readStack(ctx, checkout, nil)
}

// readStack with the environment that its scripts/stack is called with; nil is this process's.
func readStack(ctx context.Context, checkout string, env []string) (Stack, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(checkout, "scripts", "stack"), "env")
	cmd.Env = env
	out, err := cmd.Output()
	if err != nil {
		return Stack{}, fmt.Errorf("asking scripts/stack env: %w", withStderr(err))
	}
	vars := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if ok {
			vars[name] = strings.Trim(value, "'")
		}
	}
	return LoadStack(func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
}

// addresses is where the stack's servers are, by the variable that says so.
func (s Stack) addresses() (map[string]string, error) {
	found := make(map[string]string, 4)
	for name, raw := range map[string]secret.String{"TEST_AMQP_URL": s.AMQPURL, "TEST_MANAGEMENT_URL": s.ManagementURL} {
		u, err := url.Parse(raw.Reveal())
		if err != nil || u.Hostname() == "" || u.Port() == "" {
			return nil, fmt.Errorf("%s: must be a URL with host and port", name) // the parser's error would show the password
		}
		found[name] = u.Host
	}
	for name, raw := range map[string]secret.String{"TEST_MYSQL_DSN": s.DSN, "STACK_MYSQL_ROOT_DSN": s.RootDSN} {
		c, err := mysql.ParseDSN(raw.Reveal())
		if err != nil || c.Net != "tcp" {
			return nil, fmt.Errorf("%s: must be user:password@tcp(host:port)/database", name)
		}
		found[name] = c.Addr
	}
	return found, nil
}

// Check is the fence: every address must be loopback and both servers must answer with this checkout's token. Its
// error names the address and is ErrForeign unless the server could not be asked at all.
func (s Stack) Check(ctx context.Context) error {
	addresses, err := s.addresses()
	if err != nil {
		return err
	}
	for name, address := range addresses {
		if err := loopback(address); err != nil {
			return fmt.Errorf("%s: %s %w: %w", name, address, ErrForeign, err)
		}
	}
	amqp, dsn := addresses["TEST_AMQP_URL"], addresses["TEST_MYSQL_DSN"]
	// The token is read over the management port, so the AMQP port is tied to the same stack by its number.
	if _, port, _ := net.SplitHostPort(amqp); port != strconv.Itoa(s.PortBase+amqpOffset) {
		return fmt.Errorf("TEST_AMQP_URL: %s %w: its port would be %d", amqp, ErrForeign, s.PortBase+amqpOffset)
	}
	if err := errors.Join(s.checkNodes(), s.checkRedis()); err != nil {
		return err
	}
	if root := addresses["STACK_MYSQL_ROOT_DSN"]; root != dsn {
		return fmt.Errorf("STACK_MYSQL_ROOT_DSN: %s %w: the database is at %s", root, ErrForeign, dsn)
	}
	if err := s.checkBroker(ctx); err != nil {
		return fmt.Errorf("broker at %s: %w", addresses["TEST_MANAGEMENT_URL"], err)
	}
	if err := s.checkDatabase(ctx); err != nil {
		return fmt.Errorf("database at %s: %w", dsn, err)
	}
	return nil
}

// checkNodes ties the nodes of the environment, if there are several, to the same stack by their ports.
func (s Stack) checkNodes() error {
	for i, address := range s.Addresses {
		_, port, _ := net.SplitHostPort(address)
		if want := strconv.Itoa(s.PortBase + amqpOffset + i*nodeOffset); port != want || loopback(address) != nil {
			return fmt.Errorf("TEST_AMQP_ADDRESSES: %s %w: node %d would be on loopback, at port %s", address, ErrForeign, i+1, want)
		}
	}
	return nil
}

// checkRedis ties the Redis of the environment, if there is one, to the same stack by its port.
func (s Stack) checkRedis() error {
	if s.RedisURL.Empty() {
		return nil
	}
	u, err := url.Parse(s.RedisURL.Reveal())
	if err != nil || u.Port() != strconv.Itoa(s.PortBase+redisOffset) || loopback(u.Host) != nil {
		return fmt.Errorf("TEST_REDIS_URL: %w: it would be on loopback, at port %d", ErrForeign, s.PortBase+redisOffset)
	}
	return nil
}

func loopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("splitting the address: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return errors.New("only loopback addresses are allowed")
	}
	return nil
}

func (s Stack) checkBroker(ctx context.Context) error {
	var vhost struct {
		Description string `json:"description"`
	}
	if err := s.manage(ctx, "/api/vhosts/"+url.PathEscape(s.vhost()), &vhost); err != nil {
		return err
	}
	if words := strings.Fields(vhost.Description); len(words) == 0 || words[len(words)-1] != s.Token.Reveal() {
		return fmt.Errorf("%w: the description of vhost %s does not end with our token", ErrForeign, s.vhost())
	}
	return nil
}

func (s Stack) checkDatabase(ctx context.Context) error {
	var token string
	err := s.query(ctx, "SELECT token FROM lapse_stack", &token)
	var refused *mysql.MySQLError
	if errors.Is(err, sql.ErrNoRows) || errors.As(err, &refused) || err == nil && token != s.Token.Reveal() {
		return errors.Join(fmt.Errorf("%w: table lapse_stack does not hold our token", ErrForeign), err)
	}
	return err
}

func (s Stack) vhost() string {
	u, err := url.Parse(s.AMQPURL.Reveal())
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(u.Path, "/")
}

// Versions asks the servers what they are.
func (s Stack) Versions(ctx context.Context) (Versions, error) {
	var overview struct {
		Version string `json:"rabbitmq_version"`
	}
	if err := s.manage(ctx, "/api/overview", &overview); err != nil {
		return Versions{}, fmt.Errorf("asking the broker's version: %w", err)
	}
	var version string
	if err := s.query(ctx, "SELECT @@version", &version); err != nil {
		return Versions{}, fmt.Errorf("asking the database's version: %w", err)
	}
	kind := "MySQL"
	if strings.Contains(version, "MariaDB") {
		kind = "MariaDB"
	}
	number, _, _ := strings.Cut(version, "-")
	redis, err := s.redisVersion(ctx)
	return Versions{Broker: "RabbitMQ " + overview.Version, Database: kind + " " + number, Redis: redis}, err
}

func (s Stack) redisVersion(ctx context.Context) (string, error) {
	if s.RedisURL.Empty() {
		return "", nil
	}
	options, err := redis.ParseURL(s.RedisURL.Reveal())
	if err != nil {
		return "", errors.New("TEST_REDIS_URL is malformed")
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	client := redis.NewClient(options)
	info, err := client.InfoMap(ctx, "server").Result()
	if err := errors.Join(err, client.Close()); err != nil {
		return "", fmt.Errorf("asking Redis's version: %w", err)
	}
	return "Redis " + info["Server"]["redis_version"], nil
}

// manage reads one JSON answer of the broker's management API. A 401 or 404 is another broker's.
func (s Stack) manage(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.ManagementURL.Reveal()+path, nil)
	if err != nil {
		return errors.New("making the request failed: the management URL is malformed")
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err // without the URL, which holds the password
		}
		return fmt.Errorf("asking the management API: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // read only: nothing to lose
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusNotFound:
		return fmt.Errorf("%w: the management API answered %s to %s", ErrForeign, resp.Status, path)
	default:
		return fmt.Errorf("the management API answered %s to %s", resp.Status, path)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("reading the management API's answer: %w", err)
	}
	return nil
}

// Get reads one JSON answer of the broker's management API.
func (s Stack) Get(ctx context.Context, path string, into any) error {
	return s.manage(ctx, path, into)
}

// query reads one value over a connection of its own.
func (s Stack) query(ctx context.Context, query string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	db, err := sql.Open("mysql", s.DSN.Reveal())
	if err != nil {
		return errors.New("TEST_MYSQL_DSN is malformed")
	}
	defer func() { _ = db.Close() }() // read only: nothing to lose
	if err := db.QueryRowContext(ctx, query).Scan(into); err != nil {
		return fmt.Errorf("asking the database: %w", err)
	}
	return nil
}

// KillBroker ends the broker by SIGKILL, all of its nodes.
func (s Stack) KillBroker(ctx context.Context) error { return s.run(ctx, "kill", "rabbitmq") }

// StopBroker stops the broker in good order.
func (s Stack) StopBroker(ctx context.Context) error { return s.run(ctx, "stop", "rabbitmq") }

// StartBroker starts the broker and waits until it answers.
func (s Stack) StartBroker(ctx context.Context) error { return s.run(ctx, "start", "rabbitmq") }

// RestartBroker stops the broker in good order, starts it and waits until it answers.
func (s Stack) RestartBroker(ctx context.Context) error { return s.run(ctx, "restart", "rabbitmq") }

// KillDatabase ends the database by SIGKILL.
func (s Stack) KillDatabase(ctx context.Context) error { return s.run(ctx, "kill", "database") }

// StopDatabase stops the database in good order.
func (s Stack) StopDatabase(ctx context.Context) error { return s.run(ctx, "stop", "database") }

// StartDatabase starts the database and waits until it answers.
func (s Stack) StartDatabase(ctx context.Context) error { return s.run(ctx, "start", "database") }

// RestartDatabase stops the database in good order, starts it and waits until it answers.
func (s Stack) RestartDatabase(ctx context.Context) error { return s.run(ctx, "restart", "database") }

// KillRedis ends Redis by SIGKILL.
func (s Stack) KillRedis(ctx context.Context) error { return s.run(ctx, "kill", "redis") }

// StartRedis starts Redis and waits until it answers.
func (s Stack) StartRedis(ctx context.Context) error { return s.run(ctx, "start", "redis") }

// run calls the checkout's own script, which signals nothing but the processes of its pid files.
func (s Stack) run(ctx context.Context, verb, server string) error {
	return script(ctx, filepath.Dir(s.Dir), onPorts(s.PortBase), verb, server)
}

// BrokerCtl runs rabbitmqctl on the stack's node, of a cluster on the first.
func (s Stack) BrokerCtl(ctx context.Context, args ...string) error {
	return script(ctx, filepath.Dir(s.Dir), onPorts(s.PortBase), append([]string{"rabbitmqctl"}, args...)...)
}

// script runs a checkout's scripts/stack with an environment.
func script(ctx context.Context, checkout string, env []string, args ...string) error {
	limit := scriptLimit
	if args[0] == "up" {
		limit = upLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(checkout, "scripts", "stack"), args...)
	cmd.Env = env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = askLimit
	if _, err := cmd.Output(); err != nil {
		return fmt.Errorf("scripts/stack %s: %w", strings.Join(args, " "), withStderr(err))
	}
	return nil
}

// withStderr adds what a command said last.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
