package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// plantDigests makes a closed window of reminders of u's coupons 1 and 2 with three notices, and an open one.
func plantDigests(c *scene) {
	c.Helper()
	c.db.Exec(c, `INSERT INTO notice_window (id,user_id,kind,remind_at,slot,open_mark,late,items,opened_at,last_item_at,due_at,notify_at,ends_at,closed_at,closed_by) VALUES
		(7,'u','expiring','-1d','-1d/2026-11-03',NULL,0,2,'2026-11-01','2026-11-01','9999-12-31','2026-11-02','2026-11-03','2026-11-02','time'),
		(8,'u','expiring','-1d','-1d/2026-11-03',1,1,1,'2026-11-02','2026-11-02','2026-11-02 10:00:00',NULL,NULL,NULL,'')`)
	c.db.Exec(c, `INSERT INTO notice_item (window_id,event_id,coupon_id,version,expires_at,value,currency,dropped,added_at) VALUES
		(7,'1:1793664000:expiring:-1d',1,1,'2026-11-03',500,'CNY','','2026-11-01'),
		(7,'2:1793664000:expiring:-1d',2,1,'2026-11-03',500,'CNY','repeated','2026-11-01'),
		(8,'1:1793664000:expiring:-1d:2',1,2,'2026-11-03',500,'CNY','','2026-11-02')`)
	c.db.Exec(c, `INSERT INTO notice (window_id,channel,user_id,kind,slot,items,state,reason,next_channels,attempts,try_at,not_after,created_at,settled_at,ref) VALUES
		(7,'push','u','expiring','-1d/2026-11-03',1,'failed','unregistered','sms',2,'9999-12-31','2090-11-03','2026-11-02','2026-11-02','p-1'),
		(7,'sms','u','expiring','-1d/2026-11-03',1,'pending','','',0,'2026-11-02 08:00:00','2090-11-03','2026-11-02',NULL,''),
		(7,'inbox','u','expiring','-1d/2026-11-03',1,'sent','','',1,'9999-12-31','2090-11-03','2026-11-02','2026-11-02','')`)
}

func TestNotices(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	require.Equal(t, "there is no such notice\n", c.ok("notice", "list"))
	require.Equal(t, "there is no such notice\n", c.ok("notice", "list", "--parked"))
	plantDigests(c)

	text := c.ok("notice", "list", "--user=u")
	require.Contains(t, text, "7-sms    u     expiring  -1d/2026-11-03  1        pending, from 2026-11-02T08:00:00.000Z  0  ")
	require.Contains(t, text, "7-push ")
	require.Contains(t, text, "failed: unregistered ")
	require.NotContains(t, c.ok("notice", "list", "--channel=sms", "--since=2026-11-01T00:00:00Z"), "7-push")
	require.Equal(t, "there is no such notice\n", c.ok("notice", "list", "--user=v"))
	require.Equal(t, "there is no such notice\n", c.ok("notice", "list", "--since=2090-11-01T00:00:00Z"))
	require.Contains(t, c.ok("notice", "list", "--limit=2"), "… and more\n")

	var parked struct {
		Found   int           `json:"found"`
		Counts  []noticeCount `json:"counts"`
		Notices []noticeJSON  `json:"notices"`
	}
	r := c.run("notice", "list", "--parked", "--json")
	require.Equal(t, exitMiss, r.code, r.stderr)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &parked))
	require.Equal(t, 1, parked.Found)
	require.Equal(t, []noticeCount{{Channel: "push", State: "failed", Reason: "unregistered", N: 1}}, parked.Counts)
	require.Equal(t, "sms", *parked.Notices[0].Next)
	require.Contains(t, c.run("notice", "list", "--parked").stdout, "1  push     failed  unregistered\n")

	for _, id := range []string{"7", "7-sms"} {
		text = c.ok("notice", "show", id)
		require.Contains(t, text, "window     7 expiring -1d/2026-11-03\n")
		require.Contains(t, text, "closed     2026-11-02T00:00:00.000Z by time\n")
		require.Contains(t, text, "no: repeated")
		require.Contains(t, text, "p-1\n")
	}
	text = c.ok("notice", "show", "8")
	require.Contains(t, text, "expiring -1d/2026-11-03 late\n")
	require.Contains(t, text, "not yet")
	require.Contains(t, text, "notices   none\n")
	var w noticeWindowJSON
	require.NoError(t, json.Unmarshal([]byte(c.ok("notice", "show", "7", "--json")), &w))
	require.Equal(t, []string{"1", "2"}, []string{w.Members[0].CouponID, w.Members[1].CouponID})
	require.Len(t, w.Notices, 3)
	require.Nil(t, w.DueAt)
	r = c.run("notice", "show", "9")
	require.Equal(t, exitMiss, r.code)

	r = c.run("notice", "resend", "7-push", "7-inbox", "9-sms", "--reason=the provider was down")
	require.Equal(t, exitMiss, r.code)
	require.Equal(t, "7-push will be sent again\n", r.stdout)
	require.Contains(t, r.stderr, "7-inbox is sent: only")
	require.Contains(t, r.stderr, "2 of 3 are not sent again")
	require.EqualValues(t, 1, c.db.Int(t, `SELECT COUNT(*) FROM notice WHERE channel = 'push' AND state = 'pending' AND try_at <= UTC_TIMESTAMP(3)`))
	require.EqualValues(t, 1, c.db.Int(t, `SELECT COUNT(*) FROM operator_log WHERE action = 'notice.resend' AND subject = '7-push' AND actor = 'tester'`))
	require.Equal(t, "there is no such notice\n", c.ok("notice", "list", "--parked"))

	for _, bad := range []struct{ arg, want string }{
		{"--state=lost", `--state: must be one of [pending`},
		{"--channel=fax", `--channel: must be one of`},
		{"--since=yesterday", `--since: must be`},
		{"--limit=0", "--limit: must be between 1"},
		{"--scan=0", "--scan: must be 1 or more"},
		{"--user=" + string(make([]byte, 129)), "--user: must have 1 to 128"},
	} {
		r = c.run("notice", "list", bad.arg)
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stderr, bad.want)
	}
	require.Contains(t, c.run("notice", "list", "--parked", "--state=sent").stderr, "--parked: goes without --state")
	require.Contains(t, c.run("notice", "show", "7-fax").stderr, `got "7-fax"`)
	require.Contains(t, c.run("notice", "resend", "7", "--reason=r").stderr, `must be like 123-sms, got "7"`)
	require.Equal(t, exitError, c.run("notice", "resend", "7-sms").code, "a reason is needed")
}

func TestExplainTellsOfNotices(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	c.ok("grant", "--template", c.template("--after=1h"), "--user=u", "--batch=b")
	_, made := c.issue()
	require.Equal(t, 1, made)
	require.Contains(t, c.ok("explain", "1"), "notices   none\n")
	plantDigests(c)
	text := c.ok("explain", "1")
	require.Contains(t, text, "1:1793664000:expiring:-1d    yes      7 expiring -1d/2026-11-03       push     failed: unregistered ")
	require.Contains(t, text, "1:1793664000:expiring:-1d:2  not yet  8 expiring -1d/2026-11-03 late  –        gathering, looked at next 2026-11-02T10:00:00.000Z  1 ")
	require.NotContains(t, text, "2:1793664000")
	var e explainedJSON
	require.NoError(t, json.Unmarshal([]byte(c.ok("explain", "1", "--json")), &e))
	require.Len(t, e.Notices, 2)
	require.Equal(t, "-1d", *e.Notices[0].Offset)
	require.Equal(t, "7-inbox", e.Notices[0].Channels[0].NoticeID)
	require.Equal(t, "sms", *e.Notices[0].Channels[1].Next)
	require.True(t, e.Notices[1].Late)
	require.Nil(t, e.Notices[1].ClosedAt)
}
