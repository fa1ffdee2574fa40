package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/store"
)

// handedOut grants n coupons of a template and gives their ids.
func (c *scene) handedOut(template, key string, n int) []uint64 {
	c.Helper()
	id, err := parseID("template", template)
	require.NoError(c, err)
	grants := make([]coupon.Grant, n)
	for i := range grants {
		grants[i] = coupon.Grant{Issuer: "shop", Key: fmt.Sprint(key, i), TemplateID: id, UserID: fmt.Sprint("u", i%3), BatchID: "autumn", EventID: "e"}
	}
	out, err := c.store.Issue(c.ctx(), grants)
	require.NoError(c, err)
	ids := make([]uint64, n)
	for i := range out {
		require.Empty(c, out[i].Refused)
		ids[i] = out[i].CouponID
	}
	return ids
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	template := c.template("--after=1h")
	require.Contains(t, c.ok("pause", "expiry", "--template="+template, "--reason=wrong end"), "expiry of template "+template+" is paused, in all workers within 2 s")
	r := c.run("pause", "expiry", "--template="+template, "--reason=again")
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stdout, "is paused already, since ")
	c.ok("pause", "notices", "--channel=sms", "--reason=the provider asked")
	var x pausedJSON
	require.NoError(t, json.Unmarshal([]byte(c.ok("pause", "issuance", "--reason=stock", "--actor=amy", "--json")), &x))
	require.Equal(t, pausedJSON{What: "issuance", Changed: true, Paused: true, Since: x.Since}, x)

	r = c.run("status", "--json")
	require.Equal(t, exitMiss, r.code)
	var st statusJSON
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &st))
	require.Len(t, st.Paused, 3)
	require.Equal(t, pauseJSON{What: "expiry", Scope: "template", ID: template, Since: st.Paused[0].Since, Actor: "tester", Reason: "wrong end"}, st.Paused[0])
	require.Contains(t, strings.Join(st.Attention, "\n"), "issuance is paused since "+*x.Since+" by amy: stock (lapsectl resume)")
	require.Contains(t, c.run("status").stdout, "notices of channel sms since")

	id, err := parseID("template", template)
	require.NoError(t, err)
	held, err := c.store.IssueOrHold(c.ctx(), []coupon.Grant{{Issuer: "shop", Key: "k", TemplateID: id, UserID: "u", EventID: "e"}})
	require.NoError(t, err)
	require.True(t, held[0].Held)
	require.Contains(t, c.ok("resume", "issuance", "--reason=there is stock"), "issuance goes on: 1 grants were held")
	require.Contains(t, c.ok("resume", "expiry", "--template="+template, "--reason=mended"), "goes on: 0 coupons are past their due instant")
	require.Contains(t, c.ok("resume", "notices", "--channel=sms", "--reason=r"), "notices of channel sms goes on")
	r = c.run("resume", "notices", "--channel=sms", "--reason=r")
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stdout, "is not paused")
	deeds, err := c.store.Deeds(c.ctx(), store.DeedResume, 0, 10)
	require.NoError(t, err)
	require.Len(t, deeds, 3)

	for want, args := range map[string][]string{
		"notices are paused by channel":      {"pause", "notices", "--template=" + template, "--reason=r"},
		"channel: must be one of":            {"pause", "notices", "--channel=pigeon", "--reason=r"},
		"template: 4711":                     {"pause", "expiry", "--template=4711", "--reason=r"},
		`must be one of "expiry","notices"`:  {"pause", "everything", "--reason=r"},
		"--reason":                           {"pause", "expiry"},
		"can't be used together":             {"pause", "expiry", "--template=1", "--batch=b", "--reason=r"},
		"batch: must have 1 to 128 bytes of": {"pause", "expiry", "--batch=" + strings.Repeat("b", 129), "--reason=r"},
	} {
		r := c.run(args...)
		require.Equal(t, exitError, r.code, args)
		require.Contains(t, r.stderr, want)
	}
}

func TestBulkCommands(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	template := c.template("--after=1h")
	ids := c.handedOut(template, "k", 30)
	list := c.file("ids", fmt.Sprintf("# three\n%d\n%d\n%d\n%d\n", ids[0], ids[1], ids[2], ids[0]))
	to := time.Now().Add(48 * time.Hour).UTC().Format(time.RFC3339)

	require.Contains(t, c.ok("extend", "--template="+template, "--to="+to, "--reason=goodwill"), "would be changed")
	require.Zero(t, c.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE version > 1`))
	var x bulkJSON
	require.NoError(t, json.Unmarshal([]byte(c.ok("extend", "--template="+template, "--user=u1", "--to="+to, "--reason=goodwill", "--yes", "--json")), &x))
	require.True(t, x.Finished)
	require.Equal(t, coupon.BulkProgress{coupon.BulkChange: {Coupons: 10, Value: map[string]int64{"CNY": 5000}}}, x.Counts)
	require.EqualValues(t, 10, c.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE version = 2 AND user_id = 'u1' AND expires_at > UTC_TIMESTAMP(3) + INTERVAL 47 HOUR`))
	out := c.ok("extend", "--batch=autumn", "--to="+to, "--reason=goodwill", "--yes")
	require.Regexp(t, `changed +20 +10000 CNY`, out)
	require.Regexp(t, `as asked already +10 +5000 CNY`, out)

	require.Regexp(t, `changed +3 `, c.ok("void", "--file="+list, "--reason=fraud", "--yes"))
	require.EqualValues(t, 3, c.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 5`))
	_, _, err := c.store.Act(c.ctx(), coupon.Order{Verb: coupon.VerbLock, OrderID: "o", CouponIDs: ids[3:5], LockFor: time.Hour})
	require.NoError(t, err)
	r := c.run("void", "--batch=autumn", "--reason=fraud", "--yes", "--rate=0")
	require.Equal(t, exitMiss, r.code)
	require.Regexp(t, `not: locked +2 `, r.stdout)
	require.Regexp(t, `as asked already +3 `, r.stdout)
	require.Contains(t, r.stderr, "2 coupons were not changed")
	require.Regexp(t, `changed +2 `, c.ok("void", "--batch=autumn", "--reason=fraud", "--yes", "--break-locks"))

	second := c.handedOut(template, "l", 4)
	from := time.Now().UTC().Truncate(time.Second).Add(-2 * time.Hour)
	for _, id := range second {
		c.db.Exec(t, `UPDATE coupon SET expires_at = ?, due_at = ?, valid_from = ? WHERE id = ?`, from.Add(time.Minute), from.Add(time.Minute), from, id)
		c.db.Exec(t, `UPDATE coupon_history SET expires_at = ?, due_at = ? WHERE coupon_id = ?`, from.Add(time.Minute), from.Add(time.Minute), id)
	}
	c.ok("sweep", "--once")
	between := "--ended-between=" + from.Format(time.RFC3339) + "," + from.Add(time.Hour).Format(time.RFC3339)
	r = c.run("reinstate", between, "--by=1h", "--reason=sorry", "--yes")
	require.Equal(t, exitMiss, r.code)
	require.Regexp(t, `not: invalid +4 `, r.stdout, "an hour more has passed, too")
	require.Regexp(t, `changed +4 `, c.ok("reinstate", between, "--by=24h", "--reason=sorry", "--yes"))
	require.EqualValues(t, 4, c.db.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.reinstated'`))
	deeds, err := c.store.Deeds(c.ctx(), "bulk.reinstate", 0, 10)
	require.NoError(t, err)
	require.Len(t, deeds, 2)
	require.Equal(t, []string{"tester", "sorry"}, []string{deeds[0].Actor, deeds[0].Reason})

	for want, args := range map[string][]string{
		"--template, batch, user, file, ended-between": {"void", "--reason=r"},
		"--to, by: one of them":                        {"extend", "--batch=b", "--reason=r"},
		"--to: must be an instant":                     {"extend", "--batch=b", "--to=tomorrow", "--reason=r"},
		"--ended-between: must be two instants":        {"void", "--ended-between=now", "--reason=r"},
		"--rate: must be a number":                     {"void", "--batch=b", "--rate=fast", "--reason=r"},
		"--file: line 1: must be an id":                {"void", "--file=" + c.file("bad", "x\n"), "--reason=r"},
		"--template: 4711":                             {"void", "--template=4711", "--reason=r"},
		"--reason":                                     {"void", "--batch=b"},
	} {
		r := c.run(args...)
		require.Equal(t, exitError, r.code, args)
		require.Contains(t, r.stderr, want)
	}
}

func TestEventsReplay(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		require.NoError(t, c.client.Delete(ctx, part(c.ladder, c.ladder.Bundles(), c.ladder.Ledger(), c.ladder.Notice())))
	})
	template := c.template("--after=1h")
	ids := c.handedOut(template, "k", 20)
	for _, id := range ids[:5] {
		_, _, err := c.store.Act(c.ctx(), coupon.Order{Verb: coupon.VerbRedeem, OrderID: "o", CouponIDs: []uint64{id}})
		require.NoError(t, err)
	}
	from, to := "--from="+time.Now().Add(-time.Hour).Format(time.RFC3339), "--to="+time.Now().Add(time.Hour).Format(time.RFC3339)
	out := c.ok("events", "replay", from, to, "--reason=lost")
	require.Regexp(t, `to publish +25 events`, out)
	require.Regexp(t, `coupon.used +5`, out)
	require.Contains(t, out, "nothing was published")

	seen := map[string]string{}
	enough := errors.New("enough")
	listening, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.client.Tail(c.ctx(), c.ladder.Events(), []string{"#"}, func() { close(listening) }, func(d broker.Delivery) error {
			if seen[d.MessageID] = string(d.Body); len(seen) == 25 {
				return enough
			}
			return nil
		})
	}()
	select {
	case <-listening:
	case err := <-ended:
		require.NoError(t, err)
	}
	var x replayJSON
	require.NoError(t, json.Unmarshal([]byte(c.ok("events", "replay", from, to, "--reason=lost", "--yes", "--json", "--rate=0")), &x))
	require.Equal(t, replayJSON{Finished: true, Operation: x.Operation, Steps: 25, Events: 25, TookMS: x.TookMS}, x)
	depths, err := c.client.Depths(c.ctx(), []string{c.ladder.Ledger(), c.ladder.Notice()})
	require.NoError(t, err)
	require.Equal(t, map[string]int{c.ladder.Ledger(): 25, c.ladder.Notice(): 0}, depths, "statistics get them; none of these is for notices")
	was := map[string]string{}
	rows, err := c.db.SQL.QueryContext(c.ctx(), `SELECT msg_id, body FROM outbox WHERE lane = 1`)
	require.NoError(t, err)
	for rows.Next() {
		var id, body string
		require.NoError(t, rows.Scan(&id, &body))
		was[id] = body
	}
	require.NoError(t, rows.Err())
	require.NoError(t, rows.Close())
	require.ErrorIs(t, <-ended, enough)
	require.Equal(t, was, seen)
	require.Regexp(t, `to publish +5 events`, c.ok("events", "replay", from, to, "--type=used", "--template="+template, "--reason=r"))
	deeds, err := c.store.Deeds(c.ctx(), "events.replay", 0, 10)
	require.NoError(t, err)
	require.Len(t, deeds, 1)
	for want, args := range map[string][]string{
		"must be instants":           {"--from=yesterday", to},
		"the first must be before":   {"--from=2026-01-02T00:00:00Z", "--to=2026-01-01T00:00:00Z"},
		"is no step of a coupon":     {from, to, "--type=refused"},
		"--type: must be one of":     {from, to, "--type=nothing"},
		"--rate: must be a number a": {from, to, "--rate=x"},
	} {
		r := c.run(append([]string{"events", "replay", "--reason=r"}, args...)...)
		require.Equal(t, exitError, r.code, args)
		require.Contains(t, r.stderr, want)
	}
}

func TestEventsSample(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"coupon.expired.v1", "coupon.expired", "expired", "order.paid", "user.deleted.v1", "coupon.grant"} {
		r := lapsectl(t.Context(), nil, dir, "events", "sample", name)
		require.Equal(t, exitOK, r.code, r.stderr)
		for line := range strings.SplitSeq(strings.TrimSpace(r.stdout), "\n") {
			require.True(t, json.Valid([]byte(line)), name)
		}
	}
	r := lapsectl(t.Context(), nil, dir, "events", "sample", "nothing")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "coupon.reinstated.v1")
}

// A consumer is sent every sample twice; one that refuses what it had before, or a type, is named.
func TestEventsCheckByHTTP(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]int{}
	var refuse func(typ string, time int) bool
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var e struct {
			ID   string `json:"id"`
			Type string `json:"type"`
		}
		if err != nil || json.Unmarshal(body, &e) != nil || r.Header.Get("Content-Type") != event.ContentType {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if seen[string(body)]++; refuse != nil && refuse(e.Type, seen[string(body)]) {
			w.WriteHeader(http.StatusConflict)
		}
	}))
	defer shop.Close()
	samples, err := event.OutSamples()
	require.NoError(t, err)
	r := lapsectl(t.Context(), nil, t.TempDir(), "events", "check", shop.URL)
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Contains(t, r.stdout, "sent "+strconv.Itoa(2*len(samples))+" events")
	require.Len(t, seen, len(samples))
	for body, n := range seen {
		require.Equal(t, 2, n, body)
	}
	clear(seen)
	refuse = func(typ string, time int) bool { return typ == event.TypeReinstated && time == 2 }
	r = lapsectl(t.Context(), nil, t.TempDir(), "events", "check", shop.URL, "--seed=5")
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stdout, "not taken: reinstated, time 2: answered 409")
	shop.Close()
	r = lapsectl(t.Context(), nil, t.TempDir(), "events", "check", shop.URL)
	require.Equal(t, exitMiss, r.code)
}

// A queue that nobody empties is reported, one that is not there refused.
func TestEventsCheckByQueue(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	r := c.run("events", "check", c.ladder.Issuance(), "--within=1s", "--json")
	require.Equal(t, exitMiss, r.code, r.stderr)
	var x checkJSON
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &x))
	require.Equal(t, x.Sent, x.Left)
	require.Empty(t, x.Refused)
	r = c.run("events", "check", "nobody")
	require.Equal(t, exitError, r.code)
}
