package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const waitLimit = 60 * time.Second

// scene is lapsectl in a database and a prefix of its own.
type scene struct {
	*testing.T
	db      testenv.Database
	store   *store.Store // migrated
	ladder  *ladder.Ladder
	client  *broker.Client
	environ []string
	dir     string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	c := &scene{T: t, db: testenv.NewDatabase(t), dir: t.TempDir()}
	c.store = c.db.Store(t)
	prefix := testenv.Prefix(t)
	lc := ladder.DefaultConfig()
	lc.Prefix = prefix
	var err error
	c.ladder, err = ladder.New(lc)
	require.NoError(t, err)
	// lapsectl declares what it needs; the events' exchange is the workers' to declare.
	plan := intake(c.ladder)
	plan.Exchanges = append(plan.Exchanges, ladder.Exchange{Name: c.ladder.Events(), Type: "topic"})
	bc := broker.DefaultConfig()
	bc.URL, bc.Name = secret.New(os.Getenv("TEST_AMQP_URL")), "test"
	c.client, err = broker.New(bc, broker.Options{Role: "test", Plan: plan, Log: zap.NewNop(), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	require.NoError(t, c.client.Declare(c.ctx(), plan))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		require.NoError(t, c.client.Delete(ctx, plan))
	})
	c.environ = []string{
		"LAPSE__INSTALLATION=" + testenv.Installation, "LAPSE__PREFIX=" + prefix, "LAPSE__BROKER__URL=" + os.Getenv("TEST_AMQP_URL"),
		"LAPSE__DATABASE__ADDRESS=" + c.db.Config.Address, "LAPSE__DATABASE__USER=" + c.db.Config.User,
		"LAPSE__DATABASE__PASSWORD=" + c.db.Config.Password.Reveal(), "LAPSE__DATABASE__NAME=" + c.db.Config.Name, "USER=tester",
	}
	return c
}

func (c *scene) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	c.Cleanup(cancel)
	return ctx
}

// call is one call of lapsectl.
type call struct {
	code           int
	stdout, stderr string
}

func (c *scene) run(args ...string) call {
	c.Helper()
	return c.runIn(c.ctx(), args...)
}

func (c *scene) runIn(ctx context.Context, args ...string) call {
	return lapsectl(ctx, c.environ, c.dir, args...)
}

func lapsectl(ctx context.Context, environ []string, dir string, args ...string) call {
	var out, errs bytes.Buffer
	lookup := func(name string) (string, bool) {
		for _, v := range environ {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
	code := run(ctx, &system{args: args, environ: environ, stdin: strings.NewReader(""), stdout: &out, stderr: &errs, lookup: lookup, dir: dir})
	return call{code, out.String(), errs.String()}
}

// ok runs what must succeed.
func (c *scene) ok(args ...string) string {
	c.Helper()
	r := c.run(args...)
	require.Equal(c, exitOK, r.code, r.stderr)
	return r.stdout
}

func (c *scene) file(name, content string) string {
	c.Helper()
	path := filepath.Join(c.dir, name)
	require.NoError(c, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// issue takes everything from the issuance queue, as the publisher would, and says how many grants there were, and
// how many of them made a coupon.
func (c *scene) issue() (grants, made int) {
	c.Helper()
	_, err := c.client.Take(c.ctx(), c.ladder.Issuance(), 1_000_000, func(d broker.Delivery) error {
		in, err := event.DecodeIssuance(d.Body, d.ContentType, d.MessageID)
		require.NoError(c, err)
		require.Empty(c, in.Rejected)
		require.Equal(c, d.MessageID, in.EventID)
		answers, err := c.store.Issue(c.ctx(), in.Grants)
		require.NoError(c, err)
		for _, a := range answers {
			require.Empty(c, a.Refused, a.Detail)
			grants++
			if !a.Repeated {
				made++
			}
		}
		return nil
	})
	require.NoError(c, err)
	return grants, made
}

func (c *scene) template(args ...string) string {
	c.Helper()
	c.ok(append([]string{"template", "create", "--name=Test", "--value=500", "--currency=CNY", "--reason=test"}, args...)...)
	ts, err := c.store.Templates(c.ctx(), 1, 1000)
	require.NoError(c, err)
	return templateOf(ts[len(ts)-1]).ID
}

// expire ends a coupon in the past and lets its trigger ring.
func (c *scene) expire(id uint64) {
	c.Helper()
	c.db.Exec(c, `UPDATE coupon SET expires_at = '2020-01-02', due_at = '2020-01-02' WHERE id = ?`, id)
	_, out, err := c.store.ExpireBatch(c.ctx(), []coupon.Trigger{{
		Kind: coupon.KindExpire, CouponID: id, At: time.Date(2020, 1, 2, 0, 0, 0, 0, time.UTC),
		ID: coupon.TriggerID(coupon.SentByVerb, id, 1), Origin: coupon.OriginLadder,
	}}, func(time.Time) error { return nil })
	require.NoError(c, err)
	require.Equal(c, coupon.Expire, out[0].Decision.Action)
}
