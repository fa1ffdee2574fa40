package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const noticeConfig = `
installation: dry
notice:
  channels: [inbox, sms, push]
  policy:
    zone: Asia/Tokyo
    rules:
      - {kinds: [expiring], offsets: [-1d], min_value: 5000, currency: CNY, channels: [inbox, sms>push>email]}
      - {kinds: [expiring], channels: [push]}
      - {kinds: [expired], channels: [sms]}
    quiet: {push: "20:00-09:00"}
  gateway:
    sms: {url: "https://example.com/sms", key_id: k, key: 0123456789abcdef0123456789}
    push: {url: "https://example.com/push", key_id: k, key: 0123456789abcdef0123456789}
`

// dry runs notice policy without any server.
func dry(t *testing.T, args ...string) (dryRunJSON, call) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "notifier.yaml")
	require.NoError(t, os.WriteFile(file, []byte(noticeConfig), 0o600))
	r := lapsectl(t.Context(), nil, t.TempDir(), append([]string{"--config", file, "notice", "policy", "--json"}, args...)...)
	var x dryRunJSON
	if r.stdout != "" {
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &x), r.stdout)
	}
	return x, r
}

func plans(x dryRunJSON) (out []string) {
	for _, ch := range x.Channels {
		text := ch.Channel + " " + ch.Plan
		if ch.Reason != nil {
			text += " " + *ch.Reason
		}
		if ch.SendAt != nil {
			text += " " + *ch.SendAt
		}
		for _, next := range ch.Next {
			text += " >" + next
		}
		out = append(out, text)
	}
	return out
}

func TestNoticePolicyExplains(t *testing.T) {
	t.Parallel()
	flags := func(more ...string) []string {
		return append([]string{"--offset=-1d", "--ends=2026-12-05T21:30:00+08:00", "--at=2026-12-01T00:00:00Z", "--zone=Asia/Shanghai"}, more...)
	}
	x, r := dry(t, flags("--value=5000CNY")...)
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, []string{
		"inbox send 2026-12-04T13:30:00.000Z", "sms send 2026-12-04T12:45:00.000Z >push", "push fallback 2026-12-04T11:45:00.000Z", "email off off",
	}, plans(x))
	require.Equal(t, "2026-12-04T11:45:00.000Z", *x.CloseAt)
	require.Equal(t, 0, *x.Rule)
	require.Nil(t, x.UserID)

	x, r = dry(t, flags("--value=4999CNY", "--value=9000USD")...)
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, []string{"push send 2026-12-04T11:45:00.000Z"}, plans(x))
	x, _ = dry(t, flags("--value=5000CNY", "--inactive", "--opt-out=push:expiring")...)
	require.Equal(t, []string{"inbox send 2026-12-04T13:30:00.000Z", "sms suppress inactive", "push suppress opt_out", "email off off"}, plans(x))

	x, r = dry(t, flags("--late")...)
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stderr, "no channel would be used")
	require.Equal(t, []string{"push suppress late"}, plans(x))

	x, r = dry(t, "--kind=expired", "--ends=2026-12-05T21:30:00+09:00", "--at=2026-12-05T12:31:00Z")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, []string{"sms send 2026-12-05T23:00:00.000Z"}, plans(x), "eight o'clock in Tokyo")
	require.Nil(t, x.NotifyAt)
	require.Equal(t, "Asia/Tokyo", x.Zone)
	require.False(t, x.Known)

	_, r = dry(t, "--kind=expired", "--offset=-1d", "--ends=tomorrow", "--value=5", "--count=0", "--zone=Local", "--opt-out=pigeon", "--at=now")
	require.Equal(t, exitError, r.code)
	for _, flag := range []string{"--offset: goes with", "--ends: must be", "--value: must be", "--count: must be", "--zone: must be", "--opt-out: must be", "--at: must be"} {
		require.Contains(t, r.stderr, flag)
	}
	_, r = dry(t, "--ends=2026-12-05T21:30:00+08:00")
	require.Contains(t, r.stderr, "--offset: must be like -3d")
}

func TestNoticePolicyOfAStoredUser(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	now := time.Now().UTC().Truncate(time.Second)
	require.NoError(t, c.db.Store(t).ApplyUserEvents(t.Context(), []coupon.UserEvent{
		{UserID: "u", At: now.Add(-40 * day), Activity: coupon.ActivityLogin},
		{UserID: "u", At: now.Add(-40 * day), Profile: &coupon.ProfileChange{Zone: "Pacific/Auckland", OptOuts: []coupon.OptOut{
			{Channel: coupon.ChannelPush, Kind: coupon.AllKinds, Out: true, At: now},
		}}},
	}))
	file := c.file("notice.yaml", "notice:\n  channels: [inbox, popup, log]\n")
	args := []string{"--config", file, "notice", "policy", "--offset=-1d", "--ends=" + now.Add(2*day).Format(time.RFC3339)}
	text := c.ok(append(args, "--user=u")...)
	require.Contains(t, text, "user        u\n")
	require.Contains(t, text, "zone        Pacific/Auckland\n")
	require.Contains(t, text, "seen last   "+instant(now.Add(-40*day)))
	require.Contains(t, text, "rule        rules[2] of expiring at -1d: inbox, push>email\n")
	require.Contains(t, text, "inbox    send ")
	require.Contains(t, c.ok(append(args, "--user=nobody")...), "user        nobody, of whom nothing is known\n")
	require.Contains(t, c.ok(append(args, "--user=u", "--zone=Asia/Tokyo")...), "zone        Asia/Tokyo\n")
}

func TestNoticePreview(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	preview := func(args ...string) call {
		return lapsectl(t.Context(), nil, dir, append([]string{"notice", "preview"}, args...)...)
	}
	page := filepath.Join(dir, "page.html")
	r := preview("--locale=zh-Hans", "--zone=Asia/Shanghai", "--count=1000", "--ends=2026-11-01T22:00:00+08:00", "--html="+page)
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, `locale      zh-CN
read at     2026-10-31T22:00:00+08:00
title       你有1,000张优惠券明天到期
text        你的1,000张优惠券（共¥10,000.00）将于明天（11月1日）到期：¥10.00（22:00）、¥10.00（23:00）、¥10.00（24:00）等。
{amount}    ¥10,000.00
{count}     1000
{currency}  CNY
{date}      2026-11-01
{day}       明天
{ends_at}   2026-11-01T22:00:00+08:00
{time}      22:00
html        `+page+"\n", r.stdout)
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), `<html lang="zh-CN"`)

	var x previewJSON
	r = preview("--kind=expired", "--count=1", "--value=5JPY", "--ends=2026-11-01T00:00:00Z", "--json")
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &x), r.stderr)
	require.Equal(t, "Your coupon worth ¥5 expired at the end of yesterday, Saturday 31 October.", x.Text)
	require.Contains(t, x.HTML, "<html")

	for offset, day := range map[string]string{"-1d": "tomorrow", "-1d@10:00": "tomorrow", "-30m": "today"} {
		r = preview("--offset="+offset, "--json")
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &x), r.stderr)
		require.Equal(t, day, x.Params["day"], "by default it is read at its hour")
	}
	r = preview("--offset=1d", "--count=0", "--value=x", "--ends=x", "--at=x", "--zone=Mars", "--apart=25h")
	require.Equal(t, exitError, r.code)
	for _, flag := range []string{"--offset: ", "--count: ", "--value: ", "--ends: ", "--at: ", "--zone: ", "--apart: "} {
		require.Contains(t, r.stderr, flag)
	}
	require.Equal(t, exitError, preview("--html="+dir).code)
}
