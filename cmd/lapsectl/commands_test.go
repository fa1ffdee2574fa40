package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestSettingsComeFromAKeptDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, ".stack"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, keptDemo), []byte("# a note\nexport LAPSE__INSTALLATION='lapse-demo'\n"+
		"LAPSE__PREFIX=lapse-demo\nexport LAPSE__DATABASE__PASSWORD='it'\\''s'\nexport LAPSE__DATABASE__NAME=\"lapse_demo\"\nexport OTHER=1\n"), 0o600))
	below := filepath.Join(dir, "a", "b")
	require.NoError(t, os.MkdirAll(below, 0o700))

	var notes strings.Builder
	s := &system{dir: below, stderr: &notes}
	cfg, err := s.settings(keyInstallation)
	require.NoError(t, err)
	require.Equal(t, []string{"lapse-demo", "lapse-demo", "lapse_demo", "it's"},
		[]string{cfg.Installation, cfg.Prefix, cfg.Database.Name, cfg.Database.Password.Reveal()})
	require.Empty(t, notes.String())

	// Half an environment is never mixed with the demo's.
	s.environ = []string{"LAPSE__DATABASE__USER=other", "LAPSE__BROKER__NAME=x"}
	cfg, err = s.settings(keyInstallation)
	require.NoError(t, err)
	require.Equal(t, "lapse", cfg.Database.User)
	require.Contains(t, notes.String(), "are not read")
	// A migration needs a database alone.
	cfg, err = s.settings()
	require.NoError(t, err)
	require.Equal(t, "other", cfg.Database.User)
	// A whole one wins.
	s.environ = []string{"LAPSE__INSTALLATION=prod"}
	cfg, err = s.settings(keyInstallation)
	require.NoError(t, err)
	require.Equal(t, []string{"prod", "lapse"}, []string{cfg.Installation, cfg.Database.Name})
	_, err = s.settings(keyInstallation, keyBroker)
	require.ErrorContains(t, err, "broker.url: must be given")
	s.environ = []string{"LAPSE__INSTALLATION=Prod!", "LAPSE__DATABSE__NAME=x"}
	_, err = s.settings()
	require.ErrorContains(t, err, "installation: must be set")
	require.ErrorContains(t, err, "databse")
}

func TestSettingsReadTheWorkersFiles(t *testing.T) {
	t.Parallel()
	for _, worker := range []string{"publisher", "expirer", "notifier"} {
		s := &system{dir: t.TempDir(), config: "../../configs/" + worker + ".yaml", environ: []string{"LAPSE__BROKER__URL=amqp://u:p@h:5672/v"}}
		_, err := s.settings(keyInstallation, keyBroker)
		require.NoError(t, err, worker)
	}
}

func TestNothingIsGiven(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{{"template", "list"}, {"migrate", "status"}, {"explain", "1"}, {"events", "tail"}} {
		r := lapsectl(t.Context(), nil, dir, args...)
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stderr, "no installation is given: use --config FILE or LAPSE__INSTALLATION")
		require.Contains(t, r.stderr, dir)
	}
	r := lapsectl(t.Context(), nil, dir, "-c", "absent.yaml", "template", "list")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "absent.yaml")
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	environ := []string{
		"LAPSE__DATABASE__ADDRESS=" + db.Config.Address, "LAPSE__DATABASE__USER=" + db.Config.User,
		"LAPSE__DATABASE__PASSWORD=" + db.Config.Password.Reveal(), "LAPSE__DATABASE__NAME=" + db.Config.Name,
	}
	run := func(args ...string) call {
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		return lapsectl(ctx, environ, t.TempDir(), append([]string{"migrate"}, args...)...)
	}
	r := run("status")
	require.Equal(t, exitMiss, r.code, r.stderr)
	require.Contains(t, r.stdout, "00001_walk.sql")
	require.Contains(t, r.stdout, "not yet")
	require.Contains(t, r.stderr, "run lapsectl migrate up")
	r = run("up")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Contains(t, r.stdout, "from version 0 to")
	r = run("up")
	require.Contains(t, r.stdout, "already")
	r = run("status")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.NotContains(t, r.stdout, "not yet")
	r = run("down", "--to=99")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "--to: must be between 0 and the schema's version")

	db.Exec(t, `INSERT INTO import_source (name, observe, created_at, updated_at) VALUES ('old', 1, UTC_TIMESTAMP(3), UTC_TIMESTAMP(3))`)
	r = run("down", "--to=6", "--yes")
	require.Equal(t, exitError, r.code, r.stdout)
	require.Contains(t, r.stderr, "step 8 back cannot be taken: Refused (name cannot be null) while an import is observed")
	require.Contains(t, run("up").stdout, "already", "no step was taken")
	db.Exec(t, `UPDATE import_source SET observe = 0`)
	db.Exec(t, `INSERT INTO setting (name, value, updated_at) VALUES ('pause.expiry', '{}', UTC_TIMESTAMP(3))`)
	r = run("down", "--to=6")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Regexp(t, `(?m)^00008_import.sql +table observation +0$`, r.stdout)
	require.Regexp(t, `(?m)^ +table import_source +1$`, r.stdout)
	require.Regexp(t, `(?m)^ +column coupon.observed +0$`, r.stdout)
	require.Regexp(t, `(?m)^ +rows of setting +1$`, r.stdout)
	require.Contains(t, r.stdout, "nothing was changed; --yes takes the schema from version")
	require.Contains(t, run("up").stdout, "already")
	r = run("down", "--to=6", "--yes")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Contains(t, r.stdout, "back to 6")
	require.EqualValues(t, 0, db.Int(t, `SELECT COUNT(*) FROM setting WHERE name = 'pause.expiry'`))

	r = run("down", "--to=0", "--yes")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.EqualValues(t, 0, db.Int(t, `SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ? AND table_name = 'coupon'`, db.Config.Name))
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	base := []string{"template", "create", "--name=国庆", "--value=500", "--currency=CNY", "--reason=launch"}
	for _, rule := range []struct{ flags, text string }{
		{"--after=168h", "168h after the grant"},
		{"--until=2027-01-01T00:00:00+08:00", "at 2027-01-01T00:00:00+08:00"},
		{"--end-of-day=2026-10-31 --zone=Asia/Shanghai", "end of 2026-10-31, Asia/Shanghai"},
		{"--days-after=0 --zone=Europe/Berlin", "end of day 0 after the grant, Europe/Berlin"},
		{"--never", "never"},
	} {
		require.Contains(t, c.ok(append(base, strings.Fields(rule.flags)...)...), rule.text)
	}
	for flags, want := range map[string]string{
		"":                                    "when coupons end is missing",
		"--never --after=1h":                  "not several",
		"--after=0s":                          `after: want a duration above 0`,
		"--after=1h --zone=UTC":               "--zone goes with",
		"--days-after=7":                      `zone: want a tz database name such as Asia/Shanghai, got ""`,
		"--until=2027-01-01":                  `at: want RFC 3339 with a zone, got "2027-01-01"`,
		"--never --precision=fuzzy":           `precision: must be exact, standard or relaxed, got "fuzzy"`,
		"--never --quota=-1 --currency=yuan1": "quota: must be 0 (unlimited) or more, got -1",
		"--never --actor= --reason=":          `--reason: must not be empty`,
		"--never --reminders=3d":              `reminders: must be like -3d, -30m or -1d@10:00, got "3d"`,
	} {
		r := c.run(append(base, strings.Fields(flags)...)...)
		require.Equal(t, exitError, r.code, flags)
		require.Contains(t, r.stderr, want, flags)
	}
	require.EqualValues(t, 5, c.db.Int(t, `SELECT COUNT(*) FROM coupon_template`))

	require.Contains(t, c.ok("template", "revise", "1", "--revision=1", "--quota=10", "--reason=less"), "revision 2: 168h after the grant")
	r := c.run("template", "revise", "1", "--revision=1", "--quota=20", "--reason=more")
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stderr, "template 1 has revision 2 now, not 1")

	var one templateJSON
	require.NoError(t, json.Unmarshal([]byte(c.ok("template", "show", "1", "--json")), &one))
	require.Equal(t, []any{"1", uint32(2), "国庆", int64(500), int64(10), "tester", "less"},
		[]any{one.ID, one.Revision, one.Name, one.Value, one.Quota, one.Actor, one.Reason})
	var all []templateJSON
	require.NoError(t, json.Unmarshal([]byte(c.ok("template", "list", "--json")), &all))
	require.Len(t, all, 5)
	require.Contains(t, c.ok("template", "list", "--from=5"), "5   1         国庆  500 CNY (minor units)  never")
	require.Equal(t, termsJSON{Offer: "amount", Scopes: []string{}, LatePay: "honour_lock", LateWindow: "30m0s", QuotaBack: "none"}, one.Terms)
	c.ok("template", "revise", "1", "--revision=2", "--offer=percent", "--basis-points=1250", "--cap=5000", "--min-spend=10000",
		"--scope=shoes", "--scope=hats, and caps", "--late-pay=strict", "--late-window=0s", "--quota-back=total", "--reason=percent")
	require.NoError(t, json.Unmarshal([]byte(c.ok("template", "show", "1", "--json")), &one))
	require.Equal(t, termsJSON{
		Offer: "percent", BasisPoints: 1250, Cap: 5000, MinSpend: 10000, Scopes: []string{"shoes", "hats, and caps"},
		LatePay: "strict", LateWindow: "0s", QuotaBack: "total",
	}, one.Terms)
	require.Contains(t, c.ok("template", "show", "1"), "12.50 % off, at most 5000 CNY (minor units), from 10000 CNY (minor units), for shoes, hats, and caps")
	r = c.run("template", "revise", "1", "--revision=3", "--offer=amount", "--late-pay=never", "--late-window=1ms", "--quota-back=all", "--reason=r")
	require.Equal(t, exitError, r.code)
	for _, field := range []string{"basis_points, cap:", "late_pay_policy:", "late_pay_window:", "quota_back:"} {
		require.Contains(t, r.stderr, field)
	}
	c.ok("template", "revise", "1", "--revision=3", "--scope=", "--reason=for everything")
	require.NotContains(t, c.ok("template", "show", "1"), "shoes")
	r = c.run("template", "show", "77")
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stderr, "there is no template 77")
}

func TestExplain(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	id := c.template("--after=1h")
	c.ok("grant", "--template", id, "--user=u", "--batch=b", "--count=2")
	_, made := c.issue()
	require.Equal(t, 2, made)

	text := c.ok("explain", "1")
	require.Contains(t, text, "state      unused\n")
	require.Contains(t, text, "grant key  b:u:1\n")
	require.Contains(t, text, "trigger    in the outbox, on its way to the broker\n")
	require.Contains(t, text, "– → unused")
	require.Contains(t, text, "coupon.issued")
	require.Contains(t, text, "notices   none")

	// The row says unused; whoever reads it must not take it for usable.
	c.db.Exec(t, `UPDATE coupon SET expires_at = '2020-01-02', due_at = '2020-01-02' WHERE id = 2`)
	require.Contains(t, c.ok("explain", "2"), "state      expired; the row still says unused\n")

	c.expire(1)
	c.db.Exec(t, `INSERT INTO notice_window (id,user_id,kind,open_mark,items,opened_at,last_item_at,due_at,closed_by)
		VALUES (5,'u','expired',1,1,'2020-01-02','2020-01-02','2020-01-02','')`)
	c.db.Exec(t, `INSERT INTO notice_item (window_id,event_id,coupon_id,version,expires_at,value,currency,dropped,added_at)
		VALUES (5,'1:2:expired',1,2,'2020-01-02',500,'CNY','','2020-01-02')`)
	text = c.ok("explain", "1")
	require.Contains(t, text, "unused → expired")
	require.Contains(t, text, "v1.1")
	require.Contains(t, text, "gathering, looked at next")

	var e explainedJSON
	require.NoError(t, json.Unmarshal([]byte(c.ok("explain", "1", "--json")), &e))
	require.Equal(t, []string{"1", "expired", "expired", "u"}, []string{e.CouponID, e.Status, e.SeenAs, e.UserID})
	require.Len(t, e.History, 2)
	require.Equal(t, "ladder", e.History[1].Cause)
	require.Equal(t, "2020-01-02T00:00:00.000Z", *e.ExpiresAt)
	require.Len(t, e.Outbox, 3) // its trigger and two events: no relay runs
	require.Len(t, e.Notices, 1)
	require.Empty(t, e.Notices[0].Channels)

	c.db.Exec(t, `UPDATE notice_window SET open_mark = NULL, closed_at = '2020-01-02', closed_by = 'quiet', due_at = '9999-12-31'`)
	c.db.Exec(t, `INSERT INTO notice (window_id,channel,user_id,kind,items,state,reason,attempts,try_at,created_at)
		VALUES (5,'inbox','u','expired',1,'pending','',1,'2020-01-02','2020-01-02'), (5,'log','u','expired',1,'sent','',1,'9999-12-31','2020-01-02')`)
	require.NoError(t, json.Unmarshal([]byte(c.ok("explain", "1", "--json")), &e))
	require.Len(t, e.Notices[0].Channels, 2)
	require.Equal(t, []string{"5-inbox", "inbox", "pending"}, []string{e.Notices[0].Channels[0].NoticeID, e.Notices[0].Channels[0].Channel, e.Notices[0].Channels[0].State})
	require.Contains(t, c.ok("explain", "1"), "pending")

	for arg, want := range map[string]struct {
		code int
		text string
	}{
		"77":                   {exitMiss, "there is no coupon 77"},
		"0":                    {exitError, `coupon: must be an id, a whole number from 1 on, got "0"`},
		"+1":                   {exitError, `got "+1"`},
		"1.5":                  {exitError, `got "1.5"`},
		"99999999999999999999": {exitError, `got "99999999999999999999"`},
	} {
		r := c.run("explain", arg)
		require.Equal(t, want.code, r.code)
		require.Contains(t, r.stderr, want.text)
	}
}

func TestEventsTail(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	id := c.template("--after=1h")
	type result struct {
		args []string
		call
	}
	ended := make(chan result, 3)
	watch := func(ctx context.Context, args ...string) {
		go func() { ended <- result{args, c.runIn(ctx, append([]string{"events", "tail"}, args...)...)} }()
	}
	ctx, interrupt := context.WithCancelCause(c.ctx())
	watch(ctx, "--limit=2")
	watch(ctx, "--json", "--limit=1", "--type=coupon.refused.v1")
	watch(ctx, "--type=expired") // none comes

	publisher := c.client.NewPublisher()
	running, stop := context.WithCancel(c.ctx())
	stopped := make(chan error, 1)
	go func() { stopped <- publisher.Run(running) }()
	defer func() { stop(); require.NoError(t, <-stopped) }()

	c.ok("grant", "--template", id, "--user=u", "--key=k")
	c.issue()
	var key, msgID string
	var body []byte
	require.NoError(t, c.db.SQL.QueryRowContext(c.ctx(), `SELECT routing_key, msg_id, body FROM outbox WHERE lane = 1`).Scan(&key, &msgID, &body))
	// Published again and again, because nobody knows when the watchers are there.
	watching := map[string]call{}
	for n := 0; len(watching) < 2; n++ {
		require.NoError(t, publisher.Publish(c.ctx(), []broker.Message{
			{Exchange: c.ladder.Events(), Key: key, ID: msgID, Body: body},
		})[0])
		require.NoError(t, publisher.Publish(c.ctx(), []broker.Message{
			{Exchange: c.ladder.Events(), Key: "coupon.refused", ID: fmt.Sprint(n), Body: []byte("{\n \"type\": \"coupon.refused.v1\",\n\"data\":{}}")},
		})[0])
		select {
		case r := <-ended:
			watching[r.args[0]] = r.call
		case <-time.After(50 * time.Millisecond):
		}
	}
	require.Equal(t, exitOK, watching["--json"].code, watching["--json"].stderr)
	require.JSONEq(t, `{"type":"coupon.refused.v1","data":{}}`, watching["--json"].stdout)
	require.Equal(t, 1, strings.Count(watching["--json"].stdout, "\n"))
	plain := watching["--limit=2"]
	require.Equal(t, exitOK, plain.code, plain.stderr)
	require.Len(t, strings.Split(plain.stdout, "\n"), 3)
	require.Contains(t, plain.stderr, "watching "+c.ladder.Events()+" for #")
	interrupt(errors.New("interrupt signal received"))
	r := <-ended
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Empty(t, r.stdout)

	bad := c.run("events", "tail", "--type=coupon.exipred")
	require.Equal(t, exitError, bad.code)
	require.Contains(t, bad.stderr, `got "coupon.exipred"`)
}

func TestEventLine(t *testing.T) {
	t.Parallel()
	c := &eventsTail{}
	line := c.line(broker.Delivery{Body: []byte(`{"type":"coupon.expired.v1","subject":"coupon/1","time":"2026-11-29T19:19:39.839Z",
		"data":{"coupon_id":"1","user_id":"u1","batch_id":null,"version":2,"detail":"a b"}}`)})
	require.Equal(t, `2026-11-29T19:19:39.839Z coupon.expired.v1 coupon/1 user_id=u1 version=2 detail="a b"`+"\n", line)
	require.NotContains(t, c.line(broker.Delivery{Body: []byte(`{"type":"\u001b[2J","data":{"x":"\u001b[2J"}}`)}), "\x1b")
	require.Equal(t, "unreadable event on k: \"not JSON\"\n", c.line(broker.Delivery{Key: "k", Body: []byte("not JSON")}))
}

func TestWhoActs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ given, environ, account, want string }{
		{"ann", "bob", "root", "ann"}, {"", "bob", "root", "bob"}, {"", "", "root", "root"},
	} {
		by := byFlags{Reason: "test", Actor: c.given}
		require.NoError(t, by.check(&system{lookup: func(string) (string, bool) { return c.environ, true }, account: c.account}))
		require.Equal(t, c.want, by.Actor)
	}
	require.NotEmpty(t, newSystem(nil).account)
	by := byFlags{Reason: "test"}
	require.ErrorContains(t, by.check(&system{lookup: func(string) (string, bool) { return "", false }}), "--actor: must not be empty")
}
