package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/profile"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
)

type exportJSON struct {
	UserID    string `json:"user_id"`
	Addresses any    `json:"addresses"`
	Rows      []struct {
		Table string         `json:"table"`
		Row   map[string]any `json:"row"`
	} `json:"rows"`
}

func (c *scene) exported(args ...string) (exportJSON, map[string]int) {
	c.Helper()
	var x exportJSON
	text := c.ok(append([]string{"user", "export", "--reason=asked for it"}, args...)...)
	require.NoError(c, json.Unmarshal([]byte(text), &x), text)
	tables := make(map[string]int)
	for _, r := range x.Rows {
		tables[r.Table]++
	}
	return x, tables
}

func TestUserExportAndErase(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	const key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	template, err := parseID("template", c.template("--after=1h", "--per-user=5"))
	require.NoError(t, err)
	_, err = c.store.Issue(c.ctx(), []coupon.Grant{{Key: "k1", TemplateID: template, UserID: "u"}, {Key: "k2", TemplateID: template, UserID: "v"}})
	require.NoError(t, err)
	book, err := profile.NewBook(secret.KeyringConfig{Active: "k1", Keys: map[string]secret.String{"k1": secret.New(key)}})
	require.NoError(t, err)
	told := coupon.UserEvent{UserID: "u", At: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), Profile: &coupon.ProfileChange{
		Locale: "en", Addresses: coupon.Addresses{Email: "wang@example.com"},
	}}
	_, err = book.Seal("u", told.Profile)
	require.NoError(t, err)
	require.NoError(t, c.store.ApplyUserEvents(c.ctx(), []coupon.UserEvent{told}))
	require.Contains(t, c.ok("user", "optout", "u", "--channel=sms", "--reason=called us"), "u wants notices of channel sms and kind * not any more")

	// Without the key it says that there are some; with it, which.
	x, tables := c.exported("u")
	require.Equal(t, map[string]any{"sealed_with": "k1", "error": `addresses sealed with key "k1": the key is not in the ring`}, x.Addresses)
	c.environ = append(c.environ, "LAPSE__PROFILE__ADDRESSES__ACTIVE=k1", "LAPSE__PROFILE__ADDRESSES__KEYS={k1: "+key+"}")
	x, again := c.exported("u")
	require.Equal(t, tables, again)
	require.Equal(t, "u", x.UserID)
	require.Equal(t, map[string]any{"email": "wang@example.com"}, x.Addresses)
	require.Equal(t, map[string]int{"user_profile": 1, "user_optout": 1, "coupon": 1, "coupon_history": 1, "user_quota": 1}, tables)
	for _, r := range x.Rows {
		switch r.Table {
		case "coupon":
			require.Equal(t, [3]any{"1", "unused", "k1"}, [3]any{r.Row["id"], r.Row["status"], r.Row["grant_key"]})
		case "user_profile":
			require.Equal(t, [2]any{"en", "2026-03-01T00:00:00.000Z"}, [2]any{r.Row["locale"], r.Row["profile_at"]})
		}
	}

	r := c.run("user", "erase", "u", "--reason=asked for it")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "--yes: must be given")
	require.Contains(t, c.ok("user", "erase", "u", "--reason=asked for it", "--yes"), "erased: the profile of u, 0 windows of notices, 0 rows of the inbox")
	x, tables = c.exported("u")
	require.Nil(t, x.Addresses)
	require.Equal(t, map[string]int{"user_profile": 1, "coupon": 1, "coupon_history": 1, "user_quota": 1}, tables)
	x, tables = c.exported("nobody")
	require.Empty(t, tables)
	require.Nil(t, x.Addresses)

	for action, n := range map[string]int{deedUserExport: 4, deedUserOptOut: 1, store.ActionErase: 1} {
		deeds, err := c.store.Deeds(c.ctx(), action, 0, 10)
		require.NoError(t, err)
		require.Len(t, deeds, n, action)
		for _, d := range deeds {
			require.NotContains(t, string(d.Detail.(json.RawMessage)), "wang@")
		}
	}
}

func TestUserCommandsNameTheirFaults(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	for _, tt := range []struct{ args, want string }{
		{"user export u", "--reason"},
		{"user export a\x00b --reason=x", "USER: "},
		{"user optout u --channel=fax --reason=x", "--channel: must be inbox, popup, email, sms, push, log or *"},
		{"user optout u --kind=fax --reason=x", "--kind: must be expiring, expired or *"},
	} {
		r := c.run(strings.Fields(tt.args)...)
		require.Equal(t, exitError, r.code, tt.args)
		require.Contains(t, r.stderr, tt.want)
	}
	require.Contains(t, c.ok("user", "optout", "u", "--again", "--reason=x", "--json"), `"out": false`)
}
