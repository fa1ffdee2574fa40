package chaos

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
	"github.com/lapsehq/lapse/pkg/rig/receive"
)

// site is where a run happens: an installation, its workers behind proxies, and the far side of its channels.
type site struct {
	cfg          Config
	stack        rig.Stack
	installation *demo.Installation
	proxies      map[string]line // by link
	root         *sql.DB         // as the database's root
	db           *sql.DB         // of the installation's database
	publisher    *broker.Publisher
	mail         *receive.Mail
	sms          *receive.Gateway
	ears         *ears
	token        string
	poisoned     atomic.Int64
	closers      []func(context.Context) error // in the order of opening

	mu    sync.Mutex
	out   map[string]bool // workers that are down on purpose
	died  []string
	ready map[string]string // API address by publisher
}

func (s *site) fleet() *rig.Fleet      { return s.installation.Fleet() }
func (s *site) ladder() *ladder.Ladder { return s.installation.Ladder() }

// away notes that a worker is down on purpose, or no longer.
func (s *site) away(worker string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out[worker] = on
}

// back starts a worker. It does not wait until that is ready: what it needs may be away.
func (s *site) back(ctx context.Context, worker string) error {
	if err := s.fleet().Launch(ctx, worker); err != nil {
		return err
	}
	s.away(worker, false)
	return nil
}

// The bounds of the fleet that is run, shorter than the defaults, so that a minute has room for what follows from them.
const (
	sweepGrace    = 10 * time.Second
	noticeQuiet   = 1500 * time.Millisecond
	noticeMaxAge  = 6 * time.Second
	noticeLease   = 14 * time.Second
	apiAttempt    = 5 * time.Second
	fleetReady    = 2 * time.Minute
	providerKey   = "chaos-key-1"
	providerToken = "chaos-0123456789abcdef0123456789abcdef"
)

// open makes the site. close must be called whatever it returns.
func open(ctx context.Context, cfg Config) (s *site, err error) {
	s = &site{cfg: cfg, stack: cfg.Stack, proxies: make(map[string]line), ears: newEars(), out: make(map[string]bool), ready: make(map[string]string)}
	if s.token, err = secretToken(); err != nil {
		return s, err
	}
	if err := cfg.Stack.Check(ctx); err != nil {
		return s, err
	}
	ca, err := s.channels(ctx)
	if err != nil {
		return s, err
	}
	s.installation, err = demo.Install(ctx, demo.InstallationConfig{
		Stack: cfg.Stack, Bin: cfg.Bin, Hear: s.ears.hear, Workers: []string{}, Ladder: demo.ShortLadder,
	})
	if err != nil {
		return s, err
	}
	s.ears.clock(func() time.Time { _, high := s.installation.Audit().Bounds(); return high })
	if err := s.connect(ctx); err != nil {
		return s, err
	}
	if err := s.proxy(); err != nil {
		return s, err
	}
	start, limit := errgroup.WithContext(ctx)
	limited, cancel := context.WithTimeout(limit, fleetReady)
	defer cancel()
	for _, w := range workers() {
		vars := s.env(w, ca)
		start.Go(func() error { return s.installation.Add(limited, cfg.Bin, w, roleOf(w), vars) })
	}
	return s, start.Wait()
}

// channels starts the far side of the channels, and gives the file of their authority.
func (s *site) channels(ctx context.Context) (ca string, err error) {
	authority, err := receive.NewAuthority(time.Now())
	if err != nil {
		return "", fmt.Errorf("an authority for the receivers: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Join(s.stack.Dir, "run"), "chaos-")
	if err != nil {
		return "", fmt.Errorf("a place for the authority: %w", err)
	}
	s.closers = append(s.closers, func(context.Context) error { return os.RemoveAll(dir) })
	ca = filepath.Join(dir, "ca.pem")
	if err := authority.WriteFile(ca); err != nil {
		return "", fmt.Errorf("the authority's file: %w", err)
	}
	if s.mail, err = receive.StartMail(context.WithoutCancel(ctx), receive.MailConfig{Authority: authority}); err != nil {
		return "", fmt.Errorf("a mail server: %w", err)
	}
	s.closers = append(s.closers, func(context.Context) error { return s.mail.Close() })
	s.sms, err = receive.StartGateway(context.WithoutCancel(ctx), receive.GatewayConfig{Authority: authority, Keys: map[string]string{providerKey: providerToken}})
	if err != nil {
		return "", fmt.Errorf("a provider's receiver: %w", err)
	}
	s.closers = append(s.closers, func(context.Context) error { return s.sms.Close() })
	return ca, nil
}

// connect opens what the run itself uses, past the proxies.
func (s *site) connect(ctx context.Context) error {
	var err error
	if s.root, err = openDB(s.stack.RootDSN.Reveal(), 3); err != nil {
		return err
	}
	s.closers = append(s.closers, func(context.Context) error { return s.root.Close() })
	if s.db, err = openDB(s.installation.DSN(), 6); err != nil {
		return err
	}
	s.closers = append(s.closers, func(context.Context) error { return s.db.Close() })
	client, err := s.installation.Client()
	if err != nil {
		return err
	}
	s.publisher = client.NewPublisher()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- s.publisher.Run(running) }()
	s.closers = append(s.closers, func(context.Context) error { stop(); return <-ended })
	return nil
}

func openDB(dsn string, most int) (*sql.DB, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("the database's address is malformed")
	}
	const short, long = 5 * time.Second, 2 * time.Minute
	c.ParseTime, c.Loc, c.Timeout, c.ReadTimeout, c.WriteTimeout, c.Logger = true, time.UTC, short, long, short, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("database address: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	return db, nil
}

// proxy puts one into every link. Those of the API are aimed once there is something to aim at: see aim.
func (s *site) proxy() error {
	u, err := url.Parse(s.stack.AMQPURL.Reveal())
	if err != nil {
		return errors.New("TEST_AMQP_URL is malformed")
	}
	c, err := mysql.ParseDSN(s.stack.DSN.Reveal())
	if err != nil {
		return errors.New("TEST_MYSQL_DSN is malformed")
	}
	targets := map[string][]string{"broker": {u.Host}, "database": {c.Addr}, "api": {"127.0.0.1:1"}}
	if s.stack.Nodes() > 1 {
		targets["broker"] = s.stack.Addresses
	}
	for _, link := range links() {
		_, to, _ := strings.Cut(link, "/")
		for _, target := range targets[to] {
			p, err := rig.NewProxy(target)
			if err != nil {
				return err
			}
			s.proxies[link] = append(s.proxies[link], p)
			s.closers = append(s.closers, func(context.Context) error { return p.Close() })
		}
	}
	return nil
}

// aim points the API's proxies to where the publishers listen now, as a service's name would.
func (s *site) aim() {
	for _, w := range workers() {
		l := s.proxies[w+"/api"]
		if l == nil {
			continue
		}
		ports, err := s.fleet().Ports(w)
		if err != nil || ports["api"] == 0 {
			continue // it is starting
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports["api"]))
		s.mu.Lock()
		same := s.ready[w] == addr
		s.ready[w] = addr
		s.mu.Unlock()
		if !same {
			l.each(func(p *rig.Proxy) { p.Aim(addr) })
		}
	}
}

// zones of the workers' hosts, none of them the database's or UTC.
func zones() []string {
	return []string{"America/New_York", "Asia/Kathmandu", "Pacific/Apia", "Europe/Berlin", "America/St_Johns", "Asia/Shanghai", "Australia/Lord_Howe"}
}

func (s *site) env(worker, ca string) map[string]string {
	vars := map[string]string{
		"LAPSE__LOG__LEVEL":        "warn",
		"LAPSE__LADDER__LEVELS":    demo.ShortLevels(),
		"LAPSE__BROKER__ADDRESSES": s.proxies[worker+"/broker"].addr(),
		"LAPSE__BROKER__HEARTBEAT": "5s",
		"LAPSE__BROKER__NAME":      worker,
		"LAPSE__DATABASE__ADDRESS": s.proxies[worker+"/database"].addr(),
	}
	for i, w := range workers() {
		if w == worker {
			vars["TZ"] = zones()[i%len(zones())]
		}
	}
	switch roleOf(worker) {
	case demo.Publisher:
		maps.Copy(vars, map[string]string{
			"LAPSE__API__TOKENS":                    fmt.Sprintf(`[{name: chaos, hash: %s, scopes: [issue, order, read, ops]}]`, hash(s.token)),
			"LAPSE__API__LIMITS__ISSUE__PER_SECOND": "0",
			"LAPSE__API__LIMITS__ORDER__PER_SECOND": "0",
			"LAPSE__API__LIMITS__READ__PER_SECOND":  "0",
			"LAPSE__API__LIMITS__OPS__PER_SECOND":   "0",
		})
	case demo.Expirer:
		maps.Copy(vars, map[string]string{
			"LAPSE__EXPIRY__SWEEP__GRACE": sweepGrace.String(), "LAPSE__EXPIRY__SWEEP__OUTAGE_GRACE": "3s", "LAPSE__EXPIRY__SWEEP__INTERVAL": "1s",
		})
	case demo.Notifier:
		maps.Copy(vars, s.notifierEnv(ca))
	}
	return vars
}

func (s *site) notifierEnv(ca string) map[string]string {
	key := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	vars := map[string]string{
		"LAPSE__NOTICE__CHANNELS":           "inbox,email,sms",
		"LAPSE__NOTICE__QUIET":              noticeQuiet.String(),
		"LAPSE__NOTICE__MAX_AGE":            noticeMaxAge.String(),
		"LAPSE__NOTICE__LEASE":              noticeLease.String(),
		"LAPSE__NOTICE__POLICY__RULES":      `[{"channels":["inbox","sms","email"]}]`,
		"LAPSE__NOTICE__POLICY__QUIET":      `{"sms":"never","email":"never"}`,
		"LAPSE__NOTICE__POLICY__CAPS":       `{"sms":{"day":0,"week":0},"email":{"day":0,"week":0}}`,
		"LAPSE__NOTICE__POLICY__INACTIVE":   "0s",
		"LAPSE__PROFILE__ADDRESSES__ACTIVE": "k1",
		"LAPSE__PROFILE__ADDRESSES__KEYS":   fmt.Sprintf(`{"k1":%q}`, key),
		"LAPSE__NOTICE__EMAIL__HOST":        "127.0.0.1",
		"LAPSE__NOTICE__EMAIL__PORT":        strconv.Itoa(s.mail.Port()),
		"LAPSE__NOTICE__EMAIL__CA_FILE":     ca,
		"LAPSE__NOTICE__EMAIL__FROM":        "Shop <coupons@lapse.example>",
		"LAPSE__NOTICE__EMAIL__CONNECTIONS": "8",
	}
	at := "LAPSE__NOTICE__GATEWAY__SMS__"
	vars[at+"URL"], vars[at+"CA_FILE"], vars[at+"KEY_ID"], vars[at+"KEY"] = s.sms.URL(), ca, providerKey, providerToken
	for _, name := range []string{"EMAIL", "SMS"} {
		at := "LAPSE__NOTICE__LIMITS__" + name + "__"
		vars[at+"RATE"], vars[at+"CONCURRENCY"], vars[at+"DEADLINE"] = "0", "8", "3s"
		vars[at+"BACKOFF"], vars[at+"BACKOFF_MAX"], vars[at+"OPEN_FOR"] = "500ms", "3s", "2s"
	}
	return vars
}

// close ends and removes everything, the last opened first. With a name, the workers' logs are kept; it says where.
func (s *site) close(ctx context.Context, logs string) (kept string, err error) {
	var errs []error
	if s.installation != nil {
		for _, w := range workers() { // a stopped one would not hear that it is to end
			_ = s.resume(w)(ctx)
		}
		kept, err = s.installation.Remove(ctx, logs)
		errs = append(errs, err)
	}
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i](ctx))
	}
	return kept, errors.Join(errs...)
}
