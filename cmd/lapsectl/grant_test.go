package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestTheSameFileAgainGrantsNothing(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	id := c.template("--after=1h")
	var csv, jsonl strings.Builder
	csv.WriteString("template_id,user_id,batch_id\n")
	for i := range 1200 {
		fmt.Fprintf(&csv, "%s,user-%d,\n", id, i%700)
		fmt.Fprintf(&jsonl, `{"template_id":%s,"user_id":"user-%d"}`+"\n", id, i%700)
	}
	file := c.file("may.csv", csv.String())

	require.Contains(t, c.ok("grant", "--file", file, "--batch=may"), "sent 1 200 grants in 3 events")
	grants, made := c.issue()
	require.Equal(t, []int{1200, 1200}, []int{grants, made})

	require.Contains(t, c.ok("grant", "--file", file, "--batch=may"), "sent 1 200 grants")
	// The same rows in the other format are the same grants.
	c.ok("grant", "--file", c.file("may.jsonl", jsonl.String()), "--batch=may")
	grants, made = c.issue()
	require.Equal(t, []int{2400, 0}, []int{grants, made})
	require.EqualValues(t, 1200, c.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE batch_id = 'may'`))
	require.EqualValues(t, 1, c.db.Int(t, `SELECT COUNT(*) FROM grant_key WHERE grant_key = 'may:user-0:2'`))
	_, err := os.Stat(file + stateSuffix)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestGrantGoesOnWhereItWasInterrupted(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	id := c.template("--after=1h")
	var rows strings.Builder
	const total, good = 90, 81
	for i := range total {
		user := fmt.Sprintf("user-%d", i%7)
		if i%10 == 9 {
			user = ""
		}
		fmt.Fprintf(&rows, `{"template_id":"%s","user_id":"%s"}`+"\n", id, user)
	}
	file, bad := c.file("rows.jsonl", rows.String()), c.dir+"/bad.jsonl"
	args := []string{"grant", "--file", file, "--batch=b", "--rejects", bad}

	ctx, interrupt := context.WithCancelCause(c.ctx())
	ended := make(chan call, 1)
	go func() { ended <- c.runIn(ctx, append(args, "--rate=40/s")...) }()
	testenv.Wait(t, "some events are in the queue", func() bool {
		d, err := c.client.Depths(c.ctx(), []string{c.ladder.Issuance()})
		return err == nil && d[c.ladder.Issuance()] >= 5
	})
	interrupt(errors.New("interrupt signal received"))
	r := <-ended
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "--resume goes on from there")
	require.Contains(t, r.stderr, "ended by interrupt signal received")
	st, found, err := readState(file + stateSuffix)
	require.NoError(t, err)
	require.True(t, found)
	require.Greater(t, st.Rows, int64(10))
	require.Less(t, st.Rows, int64(total))
	first, made := c.issue()
	require.Equal(t, st.Sent, int64(first))
	require.Equal(t, first, made)

	// Another batch makes other keys; another file has other rows.
	r = c.run("grant", "--file", file, "--batch=other", "--rejects", bad, "--resume")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "--resume: the earlier run was started as")
	c.file("rows.jsonl", rows.String()+"\n")
	r = c.run(append(args, "--resume")...)
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "has changed since")
	c.file("rows.jsonl", rows.String())

	r = c.run(append(args, "--resume")...)
	require.Equal(t, exitMiss, r.code, r.stderr)
	require.Contains(t, r.stderr, fmt.Sprintf("going on behind row %d", st.Rows))
	require.Contains(t, r.stdout, "sent 81 grants")
	require.Contains(t, r.stdout, "9 rejected")
	rest, made := c.issue()
	require.Equal(t, good, first+rest)
	require.Equal(t, rest, made)
	require.EqualValues(t, good, c.db.Int(t, `SELECT COUNT(*) FROM coupon`))

	// Each rejected row is told of once, in order.
	body, err := os.ReadFile(bad)
	require.NoError(t, err)
	var lines []int64
	for line := range strings.Lines(string(body)) {
		var f fault
		require.NoError(t, json.Unmarshal([]byte(line), &f))
		require.Equal(t, "user_id", f.Field)
		lines = append(lines, f.Line)
	}
	require.Equal(t, []int64{10, 20, 30, 40, 50, 60, 70, 80, 90}, lines)
	_, err = os.Stat(file + stateSuffix)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestGrantFromFlags(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	id := c.template("--never")
	require.Contains(t, c.ok("grant", "--template", id, "--user=u", "--batch=b", "--count=3", "--expires-at=2030-01-01T00:00:00Z"), "sent 3 grants in 1 events (keys b:u:N)")
	require.Contains(t, c.ok("grant", "--template", id, "--user=u", "--key=k"), "(key k)")
	c.ok("grant", "--template", id, "--user=u", "--key=k")
	c.ok("grant", "--template", id, "--user=u")
	c.ok("grant", "--template", id, "--user=u")
	grants, made := c.issue()
	require.Equal(t, []int{7, 6}, []int{grants, made})
	require.EqualValues(t, 3, c.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE expires_at = '2030-01-01' AND batch_id = 'b'`))
	require.EqualValues(t, 3, c.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE expires_at = '9999-12-31'`))
}

func TestGrantRefusesWhatItCannotMean(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for args, want := range map[string]string{
		"":                                  "give --template and --user, or --file",
		"--template=0 --user=u":             `--template: must be an id, a whole number from 1 on, got "0"`,
		"--template=1 --user=u --count=0":   "--count: must be between 1 and 1000000, got 0",
		"--template=1 --user=u --rate=-5/s": `--rate: must be a number of rows a second above 0`,
		"--template=1 --user=u --rate=NaN":  `--rate: must be a number of rows a second above 0`,
		"--template=1 --user=u --expires-at=tomorrow": `--expires-at: must be an instant in RFC 3339 with a zone, got "tomorrow"`,
		"--template=1 --user=u --resume":              "--resume goes with --file",
		"--file=x.csv --user=u":                       "--user does not go with --file",
		"--file=x.txt":                                "--format: give csv or jsonl",
		"--file=x.csv --batch=a:b":                    `--batch: must not contain a colon, since keys are made of it, got "a:b"`,
		"--file=- --format=csv --resume":              "--resume: standard input cannot be read again",
	} {
		r := lapsectl(t.Context(), nil, dir, append([]string{"grant"}, strings.Fields(args)...)...)
		require.Equal(t, exitError, r.code, args)
		require.Contains(t, r.stderr, want, args)
	}
}

func TestGrantRefusesAFileWithoutKeys(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	for name, content := range map[string]string{
		"a.csv": "template_id,user_id\n1,u\n", "a.jsonl": `{"template_id":1,"user_id":"u"}`,
	} {
		r := c.run("grant", "--file", c.file(name, content))
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stderr, "grant_key")
		require.Contains(t, r.stderr, "no --batch is given")
	}
	grants, _ := c.issue()
	require.Zero(t, grants)
}

func TestGrantSaysWhyTheBrokerCannotBeReached(t *testing.T) {
	t.Parallel()
	r := lapsectl(t.Context(), []string{"LAPSE__INSTALLATION=test", "LAPSE__BROKER__URL=amqp://nobody:secret@127.0.0.1:1/none"}, t.TempDir(),
		"grant", "--template=1", "--user=u")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "connecting to RabbitMQ at 127.0.0.1:1")
	require.NotContains(t, r.stderr, "secret")
}

func TestGrantOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	id := c.template("--after=1h")
	u, err := url.Parse(os.Getenv("TEST_AMQP_URL"))
	require.NoError(t, err)
	proxy, err := rig.NewProxy(u.Host)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	c.environ = append(c.environ, "LAPSE__BROKER__ADDRESSES="+proxy.Addr())

	ended := make(chan call, 1)
	go func() {
		ended <- c.run("grant", "--template", id, "--user=u", "--batch=b", "--count=60", "--rate=40/s")
	}()
	for _, depth := range []int{2, 6} {
		testenv.Wait(t, "some events are in the queue", func() bool {
			d, err := c.client.Depths(c.ctx(), []string{c.ladder.Issuance()})
			return err == nil && d[c.ladder.Issuance()] >= depth
		})
		proxy.Cut()
	}
	r := <-ended
	require.Equal(t, exitOK, r.code, r.stderr)
	_, made := c.issue()
	require.Equal(t, 60, made)
}
