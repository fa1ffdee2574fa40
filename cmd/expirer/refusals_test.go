package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/receive"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/telemetry"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const patience = time.Minute

// ward is what the workers of a test share: a database and a prefix of their own.
type ward struct {
	stack  rig.Stack
	db     testenv.Database
	ladder *ladder.Ladder
	tls    string // directory of the stack's certificates
	amqps  string
}

func newWard(t *testing.T) *ward {
	t.Helper()
	w := &ward{stack: testenv.Servers(t), db: testenv.NewDatabase(t), tls: os.Getenv("TEST_TLS_DIR"), amqps: os.Getenv("TEST_AMQPS_URL")}
	require.NotEmpty(t, w.amqps, "TEST_AMQPS_URL is not set: the stack has no TLS port; scripts/stack down; scripts/stack up")
	w.db.Store(t) // migrates
	lc := ladder.DefaultConfig()
	lc.Prefix = testenv.Prefix(t)
	lc.Levels = []ladder.Level{{Name: "s", Unit: time.Second, Digits: 3}}
	var err error
	w.ladder, err = ladder.New(lc)
	require.NoError(t, err)
	bc := broker.DefaultConfig()
	bc.URL = w.stack.AMQPURL
	client, err := broker.New(bc, broker.Options{Role: "test"})
	require.NoError(t, err)
	require.NoError(t, client.Declare(t.Context(), w.ladder.Plan()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, client.Delete(ctx, w.ladder.Plan()))
	})
	return w
}

// patient is one worker, with a user of its own in both servers.
type patient struct {
	*testing.T
	*ward
	account rig.Account
	dir     string
	vars    map[string]string
}

func (w *ward) admit(t *testing.T) *patient {
	t.Helper()
	p := &patient{T: t, ward: w, dir: t.TempDir()}
	p.account = rig.Account{Name: testenv.Prefix(t), Password: "planted-" + strings.ToLower(rand.Text())}
	require.NoError(t, w.stack.MakeDatabaseUser(t.Context(), p.account, p.grants("")))
	require.NoError(t, w.stack.MakeBrokerUser(t.Context(), p.account, p.allowed()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, w.stack.DropDatabaseUser(ctx, p.account.Name))
		require.NoError(t, w.stack.DropBrokerUser(ctx, p.account.Name))
	})
	host, port, _ := strings.Cut(w.db.Config.Address, ":")
	p.vars = map[string]string{
		"INSTALLATION": testenv.Installation, "PREFIX": w.ladder.Prefix(), "ADMIN__ADDRESS": "127.0.0.1:0",
		"LADDER__LEVELS":   "[{name: s, unit: 1s, digits: 3}]",
		"BROKER__URL_FILE": p.file("url", p.url(nil)), "BROKER__BACKOFF_MAX": "500ms",
		"DATABASE__ADDRESS": host + ":" + port, "DATABASE__USER": p.account.Name,
		"DATABASE__PASSWORD_FILE": p.file("password", p.account.Password), "DATABASE__NAME": w.db.Config.Name,
	}
	return p
}

// grants are the worker's, without those on a table.
func (p *patient) grants(without string) []string {
	grants, err := store.Grants(store.RoleExpirer, p.db.Config.Name, p.account.Name, "%")
	require.NoError(p, err)
	return slices.DeleteFunc(grants, func(g string) bool { return without != "" && strings.Contains(g, "`"+without+"`") })
}

func (p *patient) allowed() ladder.Permissions {
	allowed, err := p.ladder.PermissionsOf("expirer", true)
	require.NoError(p, err)
	return allowed
}

// file writes a file of the worker's, in one step.
func (p *patient) file(name, content string) string {
	path := filepath.Join(p.dir, name)
	require.NoError(p, os.WriteFile(path+".new", []byte(content), 0o600))
	require.NoError(p, os.Rename(path+".new", path))
	return path
}

// copied is a copy of one of the stack's files.
func (p *patient) copied(name string) string {
	content, err := os.ReadFile(filepath.Join(p.tls, name))
	require.NoError(p, err)
	return p.file(name, string(content))
}

// url is the broker's with the worker's user, but for what change does.
func (p *patient) url(change func(*url.URL)) string {
	u, err := url.Parse(p.stack.AMQPURL.Reveal())
	require.NoError(p, err)
	u.User = url.UserPassword(p.account.Name, p.account.Password)
	if change != nil {
		change(u)
	}
	return u.String()
}

func (p *patient) overTLS() {
	p.vars["BROKER__URL_FILE"] = p.file("url", p.url(func(u *url.URL) {
		secure, err := url.Parse(p.amqps)
		require.NoError(p, err)
		u.Scheme, u.Host = secure.Scheme, secure.Host
	}))
	p.vars["BROKER__TLS__CA_FILE"], p.vars["BROKER__TLS__CERT_FILE"], p.vars["BROKER__TLS__KEY_FILE"] = p.copied("ca.pem"), p.copied("client.pem"), p.copied("client.key")
}

// stranger writes certificates of another authority under the names of the stack's.
func (p *patient) stranger() {
	other, err := receive.NewAuthority(time.Now())
	require.NoError(p, err)
	require.NoError(p, other.WriteFile(filepath.Join(p.dir, "ca.pem")))
}

// pretender writes a client's certificate that nobody has signed but itself.
func (p *patient) pretender() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(p, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "pretender"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(p, err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(p, err)
	p.file("client.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	p.file("client.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
}

type refusal struct {
	name string
	harm func(p *patient)
	says string
	mend func(p *patient) // nil: what is wrong is in the configuration itself
}

func refusals() []refusal {
	const wrong = "planted-wrong"
	permit := func(p *patient, vhost string, allowed ladder.Permissions) {
		require.NoError(p, p.stack.Permit(p.Context(), vhost, p.account.Name, allowed))
	}
	right := func(p *patient) { p.file("url", p.url(nil)) }
	return []refusal{
		{"broker, password", func(p *patient) {
			p.file("url", p.url(func(u *url.URL) { u.User = url.UserPassword(p.account.Name, wrong) }))
		}, "or the password (broker.url)", right},
		{"broker, vhost", func(p *patient) {
			p.file("url", p.url(func(u *url.URL) { u.Path = "/" + p.account.Name }))
		}, "it has no vhost", func(p *patient) {
			path := "/api/vhosts/" + p.account.Name
			p.Cleanup(func() { require.NoError(p, p.stack.Delete(context.WithoutCancel(p.Context()), path)) })
			require.NoError(p, p.stack.Put(p.Context(), path, map[string]string{}))
			permit(p, p.account.Name, p.allowed())
		}},
		{"broker, no permissions in the vhost", func(p *patient) {
			require.NoError(p, p.stack.Delete(p.Context(), "/api/permissions/lapse/"+p.account.Name))
		}, `has no permissions in vhost "lapse"`, func(p *patient) { permit(p, "lapse", p.allowed()) }},
		{"broker, permission", func(p *patient) {
			permit(p, "lapse", ladder.Permissions{Configure: "^$", Write: ".*", Read: ".*"})
		}, "the user of broker.url lacks a permission", func(p *patient) { permit(p, "lapse", p.allowed()) }},
		{"broker, host", func(p *patient) {
			p.file("url", p.url(func(u *url.URL) { u.Host = "broker.invalid:5672" }))
		}, "the host of broker.url (or broker.addresses) cannot be found", right},
		{"broker, port", func(p *patient) {
			p.file("url", p.url(func(u *url.URL) { u.Host = "127.0.0.1:1" }))
		}, "nothing listens there (broker.url)", right},
		{"broker, authority", func(p *patient) {
			p.overTLS()
			p.stranger()
		}, "its certificate is signed by an authority that is not trusted here (ca_file)", func(p *patient) { p.copied("ca.pem") }},
		{"broker, certificate of the client", func(p *patient) {
			p.overTLS()
			p.pretender()
		}, "it refuses the client's certificate (cert_file, key_file)", func(p *patient) {
			p.copied("client.key")
			p.copied("client.pem")
		}},
		{"broker, no certificate", func(p *patient) {
			p.overTLS()
			delete(p.vars, "BROKER__TLS__CERT_FILE")
			delete(p.vars, "BROKER__TLS__KEY_FILE")
		}, "it wants a certificate of the client", nil},
		{"broker, name", func(p *patient) {
			p.overTLS()
			p.vars["BROKER__TLS__SERVER_NAME"] = "other.example"
		}, "its certificate is not for other.example (server_name)", nil},
		{
			"database, password", func(p *patient) { p.file("password", wrong) },
			"the database refuses database.user, its password", func(p *patient) { p.file("password", p.account.Password) },
		},
		{"database, no grants", func(p *patient) {
			require.NoError(p, p.stack.DropDatabaseUser(p.Context(), p.account.Name))
			require.NoError(p, p.stack.MakeDatabaseUser(p.Context(), p.account, nil))
		}, "there is no database of the name database.name, or database.user has no grant on it", func(p *patient) {
			require.NoError(p, p.stack.Grant(p.Context(), p.grants("")))
		}},
		{"database, grant", func(p *patient) {
			require.NoError(p, p.stack.DropDatabaseUser(p.Context(), p.account.Name))
			require.NoError(p, p.stack.MakeDatabaseUser(p.Context(), p.account, p.grants("setting")))
		}, "database.user lacks a grant", func(p *patient) {
			require.NoError(p, p.stack.Grant(p.Context(), p.grants("")))
		}},
		{"database, host", func(p *patient) { p.vars["DATABASE__ADDRESS"] = "database.invalid:3306" }, "the host of database.address cannot be found", nil},
		{"database, port", func(p *patient) { p.vars["DATABASE__ADDRESS"] = "127.0.0.1:1" }, "nothing listens at database.address", nil},
		{"database, authority", func(p *patient) {
			p.vars["DATABASE__TLS__ENABLED"], p.vars["DATABASE__TLS__CA_FILE"] = "true", p.copied("ca.pem")
			p.stranger()
		}, "its certificate is signed by an authority that is not trusted here (ca_file)", func(p *patient) { p.copied("ca.pem") }},
		{"database, authority that is none", func(p *patient) {
			p.vars["DATABASE__TLS__ENABLED"], p.vars["DATABASE__TLS__CA_FILE"] = "true", p.file("ca.pem", "nothing")
		}, "holds no certificate in PEM", func(p *patient) { p.copied("ca.pem") }},
	}
}

// A worker that is refused says by whom and for what, in the log and on /readyz, is not ready, and is once that is mended, without
// a restart. Of the passwords it shows none.
func TestRefusalsAreSaidAndMended(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	t.Run("all", func(t *testing.T) {
		for _, r := range refusals() {
			t.Run(r.name, func(t *testing.T) {
				t.Parallel()
				p := w.admit(t)
				r.harm(p)
				worker := p.start()
				testenv.Wait(t, "/readyz says "+r.says, func() bool {
					status, body := worker.get("/readyz")
					return status == http.StatusServiceUnavailable && strings.Contains(body, r.says)
				})
				testenv.Wait(t, "the log says "+r.says, func() bool { return strings.Contains(worker.log.text(), r.says) })
				if r.mend != nil {
					r.mend(p)
					testenv.Wait(t, "it is ready", func() bool {
						status, _ := worker.get("/readyz")
						return status == http.StatusOK
					})
				}
				worker.get("/metrics")
				worker.stop()
				for _, shown := range []string{worker.log.text(), worker.heard.text()} {
					require.NotContains(t, shown, "planted-")
				}
			})
		}
	})
}

// running is a worker's whole life in this process.
type running struct {
	p     *patient
	log   logs
	heard logs // whatever it answered
	ports string
	quit  context.CancelFunc
	exit  chan int
}

func (p *patient) start() *running {
	r := &running{p: p, ports: filepath.Join(p.dir, "ports.json"), exit: make(chan int, 1)}
	var environ []string
	for _, name := range slices.Sorted(maps.Keys(p.vars)) {
		environ = append(environ, "LAPSE__"+name+"="+p.vars[name])
	}
	ctx, quit := context.WithCancel(context.WithoutCancel(p.Context()))
	r.quit = quit
	go func() {
		r.exit <- run(ctx, config.Process{Args: []string{"-ports-file", r.ports}, Stdout: io.Discard, Stderr: &r.log, Environ: environ})
	}()
	p.Cleanup(r.stop)
	return r
}

// stop is legal twice.
func (r *running) stop() {
	if r.quit == nil {
		return
	}
	r.quit()
	r.quit = nil
	require.Zero(r.p, <-r.exit, "%s", r.log.text())
}

func (r *running) get(path string) (int, string) {
	ports, err := telemetry.ReadPorts(r.ports)
	if err != nil {
		return 0, ""
	}
	req, err := http.NewRequestWithContext(r.p.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", ports["admin"], path), nil)
	require.NoError(r.p, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := client.Do(req)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, ""
	}
	_, _ = r.heard.Write(body)
	return res.StatusCode, strings.ReplaceAll(string(body), `\"`, `"`)
}

type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logs) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.ReplaceAll(l.buf.String(), `\"`, `"`)
}
