package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// layout is a prefix of its own on the real broker, with a small ladder, and lapsectl with its configuration.
type layout struct {
	*testing.T
	db       testenv.Database
	prefix   string
	ladder   *ladder.Ladder
	plan     ladder.Plan
	client   *broker.Client // declares nothing
	environ  []string
	declared time.Time // not before the last declaration
}

func newLayout(t *testing.T, db testenv.Database, vars ...string) *layout {
	t.Helper()
	y := &layout{T: t, db: db, prefix: testenv.Prefix(t)}
	lc := ladder.DefaultConfig()
	lc.Prefix = y.prefix
	lc.Levels = []ladder.Level{{Name: "h", Unit: 2 * time.Minute, Digits: 5}, {Name: "m", Unit: 10 * time.Second, Digits: 11}, {Name: "s", Unit: time.Second, Digits: 9}}
	var err error
	y.ladder, err = ladder.New(lc)
	require.NoError(t, err)
	y.plan = y.ladder.Plan()
	bc := broker.DefaultConfig()
	bc.URL, bc.Name = secret.New(os.Getenv("TEST_AMQP_URL")), "test"
	bc.ManagementURL = secret.New(os.Getenv("TEST_MANAGEMENT_URL"))
	y.client, err = broker.New(bc, broker.Options{Role: "test", Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	y.environ = append([]string{
		"LAPSE__INSTALLATION=" + testenv.Installation, "LAPSE__PREFIX=" + y.prefix, "LAPSE__BROKER__URL=" + os.Getenv("TEST_AMQP_URL"),
		"LAPSE__BROKER__MANAGEMENT_URL=" + os.Getenv("TEST_MANAGEMENT_URL"),
		"LAPSE__LADDER__LEVELS=[{name: h, unit: 2m, digits: 5}, {name: m, unit: 10s, digits: 11}, {name: s, unit: 1s, digits: 9}]",
		"LAPSE__DATABASE__ADDRESS=" + db.Config.Address, "LAPSE__DATABASE__USER=" + db.Config.User,
		"LAPSE__DATABASE__PASSWORD=" + db.Config.Password.Reveal(), "LAPSE__DATABASE__NAME=" + db.Config.Name, "USER=tester",
	}, vars...)
	t.Cleanup(y.wipe)
	return y
}

// wipe deletes everything, not before the broker can bear it (docs/compatibility.md).
func (y *layout) wipe() {
	y.rest()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	require.NoError(y, y.client.Delete(ctx, y.plan))
}

// rest waits until what was declared last may be deleted.
func (y *layout) rest() {
	if !y.declared.IsZero() {
		require.NoError(y, lifecycle.Sleep(context.Background(), time.Until(y.declared.Add(4*time.Second))))
	}
}

func (y *layout) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*waitLimit)
	y.Cleanup(cancel)
	return ctx
}

func (y *layout) run(args ...string) call {
	y.Helper()
	y.declared = time.Now().Add(time.Minute) // if it fails in the middle
	r := lapsectl(y.ctx(), y.environ, y.TempDir(), args...)
	y.declared = time.Now()
	return r
}

func (y *layout) ok(args ...string) string {
	y.Helper()
	r := y.run(args...)
	require.Equal(y, exitOK, r.code, r.stdout+r.stderr)
	return r.stdout
}

// depth counts what is ready in the queues of the roles, all if there are none.
func (y *layout) depth(roles ...ladder.Role) (n int) {
	y.Helper()
	var names []string
	for _, q := range y.plan.Queues {
		if len(roles) == 0 || slices.Contains(roles, q.Role) {
			names = append(names, q.Name)
		}
	}
	depths, err := y.client.Depths(y.ctx(), names)
	require.NoError(y, err)
	for _, k := range depths {
		n += k
	}
	return n
}

func (y *layout) publish(ms ...broker.Message) {
	y.Helper()
	p := y.client.NewPublisher()
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(running) }()
	require.NoError(y, p.WaitReady(y.ctx()))
	for _, err := range p.Publish(y.ctx(), ms) {
		require.NoError(y, err)
	}
	stop()
	require.NoError(y, <-ended)
}

// manage calls the management API; VHOST in the path is ours.
func (y *layout) manage(method, path, body string) {
	y.Helper()
	base, err := url.Parse(os.Getenv("TEST_MANAGEMENT_URL"))
	require.NoError(y, err)
	user := base.User
	base.User = nil
	path = strings.ReplaceAll(path, "VHOST", url.PathEscape(y.client.Vhost()))
	req, err := http.NewRequestWithContext(y.ctx(), method, base.String()+path, bytes.NewBufferString(body))
	require.NoError(y, err)
	password, _ := user.Password()
	req.SetBasicAuth(user.Username(), password)
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	require.NoError(y, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(y, errorsOf(err, res.Body.Close()))
	require.Less(y, res.StatusCode, 300, "%s %s: %s", method, path, text)
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// plant inserts coupons of a status, due (or with a lock that ends) so many seconds from now.
func plant(t *testing.T, d testenv.Database, first, n int, status coupon.Status, seconds func(i int) int) {
	t.Helper()
	d.Exec(t, `INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason)
		VALUES (1,1,'t','{"kind":"never"}',500,'CNY','exact',UTC_TIMESTAMP(3),'test','') ON DUPLICATE KEY UPDATE id = id`)
	for ; n > 0; n, first = n-1000, first+1000 {
		rows := make([]string, min(n, 1000))
		for i := range rows {
			at := fmt.Sprintf("'1970-01-01' + INTERVAL (UNIX_TIMESTAMP() + %d) SECOND", seconds(i))
			end, until, order := at, "NULL", "NULL"
			if status == coupon.Locked {
				end, until, order = "'2040-01-01'", at, "'o'"
			}
			rows[i] = fmt.Sprintf("(%d,1,1,'','u%d',%d,1,UTC_TIMESTAMP(3),%s,%s,%s,%s,UTC_TIMESTAMP(3))", first+i, first+i, status, end, end, until, order)
		}
		d.Exec(t, `INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, lock_until, order_id, granted_at)
			VALUES `+strings.Join(rows, ","))
	}
}
