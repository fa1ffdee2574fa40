package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/adopt"
	"github.com/lapsehq/lapse/pkg/coupon"
)

const shopMapping = `
name: shop
zone: Asia/Shanghai
fields: {external_id: id, user_id: uid, state: st, expires_at: ends, order_id: oid, used_at: used, expired_at: gone}
states: {"0": unused, "1": locked, "2": used, "3": expired}
`

// shopRows are rows of a shop: of each state, and one that cannot be.
func shopRows(ends time.Time) string {
	shanghai := time.FixedZone("", 8*3600)
	at := ends.In(shanghai).Format(time.DateTime)
	return "id,uid,st,ends,oid,used,gone\n" +
		"1,u1,0," + at + ",,,\n" +
		"2,u2,1," + at + ",77,,\n" +
		"3,u3,2," + at + ",78,2026-01-01 10:00:00,\n" +
		"4,u4,3,2026-01-31 23:59:59,,,2026-02-01 00:40:00\n" +
		"5,u5,9," + at + ",,,\n"
}

func TestImportCommand(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	template := c.template("--after=1h")
	ends := time.Now().Add(time.Hour).Truncate(time.Second)
	mapping, rows := c.file("m.yaml", shopMapping), c.file("rows.csv", shopRows(ends))
	args := []string{"import", rows, "--mapping=" + mapping, "--template=*=" + template}

	r := c.run(append(args, "--dry-run")...)
	require.Equal(t, exitMiss, r.code, r.stderr)
	require.Regexp(t, `would be new unused +1 +500 CNY`, r.stdout)
	require.Regexp(t, `refused +1 `, r.stdout)
	require.Contains(t, r.stdout, `line 6: refused: state: the mapping says nothing of "9"`)
	require.Contains(t, r.stdout, "nothing was changed")
	require.Zero(t, c.db.Int(t, `SELECT COUNT(*) FROM coupon`)+c.db.Int(t, `SELECT COUNT(*) FROM operation`)+c.db.Int(t, `SELECT COUNT(*) FROM import_source`))

	refused := filepath.Join(c.dir, "refused.jsonl")
	var x importJSON
	r = c.run(append(args, "--reason=moving in", "--refused="+refused, "--json")...)
	require.Equal(t, exitMiss, r.code, r.stderr)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &x))
	require.True(t, x.Finished)
	require.EqualValues(t, 5, x.Rows)
	require.Equal(t, []adopt.Told{{Where: "line 6", Key: "5", What: "refused", Detail: `state: the mapping says nothing of "9"`}}, x.Told)
	text, err := os.ReadFile(refused)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), "\n"))
	require.EqualValues(t, 4, c.db.Int(t, `SELECT COUNT(*) FROM coupon`))
	require.EqualValues(t, 1, c.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4 AND expires_at = '2026-01-31 16:00:00' AND expired_at = '2026-01-31 16:40:00'`))
	require.Zero(t, c.db.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 1`))
	deeds, err := c.store.Deeds(c.ctx(), adopt.Kind, 0, 10)
	require.NoError(t, err)
	require.Equal(t, []string{"tester", "moving in", "shop"}, []string{deeds[0].Actor, deeds[0].Reason, deeds[0].Subject})

	// Once more, by a row that has changed.
	require.NoError(t, os.WriteFile(rows, []byte(strings.Replace(strings.Replace(shopRows(ends), "1,u1,0,", "1,u1,3,", 1), "\n5,u5,9", "\n5,u5,0", 1)), 0o600))
	out := c.ok(append(args, "--reason=again")...)
	require.Regexp(t, `new unused +1 `, out)
	require.Regexp(t, `updated expired +1 `, out)
	require.Regexp(t, `same locked +1 `, out)
	r = c.run("reconcile", "--json")
	require.Equal(t, exitOK, r.code, r.stdout+r.stderr)

	for want, args := range map[string][]string{
		"--mapping: ":                      {"import", rows, "--mapping=nothing.yaml", "--reason=r"},
		"zone: must be given":              {"import", rows, "--mapping=" + c.file("bad.yaml", "name: x\n"), "--reason=r"},
		"templates: the mapping must say":  {"import", rows, "--mapping=" + mapping, "--reason=r"},
		"--template: must be an id":        {"import", rows, "--mapping=" + mapping, "--reason=r", "--template=1=x"},
		"template: 4711":                   {"import", rows, "--mapping=" + mapping, "--reason=r", "--template=*=4711"},
		"--reason":                         append(args, "--events"),
		"observe: nothing is told of":      append(args, "--reason=r", "--observe", "--events"),
		"the coupons of shop are real":     append(args, "--reason=r", "--observe"),
		"source: must be a file":           {"import", "mysql://x", "--mapping=" + mapping, "--reason=r", "--template=*=" + template},
		"must end in .csv":                 {"import", mapping, "--mapping=" + mapping, "--reason=r", "--template=*=" + template},
		"import nobody: import.source: no": {"import", "cut-over", "nobody", "--reason=r"},
	} {
		r := c.run(args...)
		require.NotEqual(t, exitOK, r.code, args)
		require.Contains(t, r.stderr, want)
	}
}

// A table of another database is observed, compared, cut over and given back.
func TestImportObserves(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	template := c.template("--after=1h")
	c.db.Exec(t, `CREATE TABLE theirs (id BIGINT PRIMARY KEY, uid INT NOT NULL, st INT NOT NULL, ends DATETIME NOT NULL, oid BIGINT NULL, used DATETIME NULL, gone DATETIME NULL)`)
	for i := range 20 {
		c.db.Exec(t, `INSERT INTO theirs VALUES (?, ?, 0, UTC_TIMESTAMP() + INTERVAL 8 HOUR - INTERVAL 600 SECOND + INTERVAL ? HOUR, NULL, NULL, NULL)`, i+1, i%3, i%2)
	}
	mapping := c.file("m.yaml", shopMapping+"source: {key: id, page: 3, select: 'SELECT id, uid, st, ends, oid, used, gone FROM theirs WHERE 1 = 1 AND {page}'}\n")
	u := url.URL{Scheme: "mysql", User: url.User(c.db.Config.User), Host: c.db.Config.Address, Path: "/" + c.db.Config.Name}
	c.environ = append(c.environ, envImportPassword+"="+c.db.Config.Password.Reveal())
	source := []string{u.String(), "--mapping=" + mapping, "--template=*=" + template}
	with := func(more ...string) []string { return append(more, source...) }

	require.Regexp(t, `new unused +20 +10000 CNY`, c.ok(with("import", "--observe", "--reason=looking")...))
	var ids []coupon.Trigger
	for id := range 20 {
		first := c.db.Int(t, `SELECT MIN(id) FROM coupon`)
		ids = append(ids, coupon.Trigger{Kind: coupon.KindExpire, CouponID: uint64(first) + uint64(id), Origin: coupon.OriginLadder})
	}
	_, _, err := c.store.ExpireBatch(c.ctx(), ids, func(time.Time) error { return nil })
	require.NoError(t, err)

	require.Contains(t, c.ok("explain", fmt.Sprint(ids[0].CouponID)), "observed   another system owns it")
	r := c.run(with("import", "diff")...)
	require.Equal(t, exitMiss, r.code, r.stderr)
	require.Regexp(t, `not_expired +10`, r.stdout)
	require.Contains(t, r.stdout, "id 1: not_expired: unused there, ends ")
	c.db.Exec(t, `UPDATE theirs SET st = 3, gone = ends + INTERVAL 90 SECOND WHERE ends < UTC_TIMESTAMP() + INTERVAL 8 HOUR AND id > 1`)
	c.db.Exec(t, `UPDATE theirs SET st = 2, oid = 5, used = ends + INTERVAL 60 SECOND WHERE id = 1`)
	file := filepath.Join(c.dir, "diff.jsonl")
	var d diffJSON
	r = c.run(with("import", "diff", "--json", "--file="+file)...)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &d), r.stderr)
	require.Equal(t, map[string]int64{"agrees": 19, "used_after_end": 1}, d.Kinds)
	require.Equal(t, &lateJSON{9, 90_000, 90_000, 90_000}, d.Late)
	require.FileExists(t, file)

	require.Regexp(t, `updated expired +9`, c.ok(with("import", "--observe", "--reason=the last")...))
	r = c.run(with("import", "--reason=not observed")...)
	require.Contains(t, r.stderr, "the coupons of shop are observed, until its cut-over")
	require.Contains(t, c.ok("import", "cut-over", "shop", "--reason=we have moved"), "import shop: 20 coupons are real now")
	open := uint64(c.db.Int(t, `SELECT coupon_id FROM grant_key WHERE grant_key = '2'`))
	_, out, err := c.store.Act(c.ctx(), coupon.Order{Verb: coupon.VerbVoid, CouponIDs: []uint64{open}, Actor: "a", Reason: "r"})
	require.NoError(t, err)
	require.Empty(t, out[0].Refused)
	r = c.run("reconcile", "--json")
	require.Equal(t, exitOK, r.code, r.stdout+r.stderr)

	moved := filepath.Join(c.dir, "moved.jsonl")
	require.Contains(t, c.ok("import", "back-out", "shop", "--reason=too soon", "--file="+moved), "1 coupons were moved here meanwhile")
	text, err := os.ReadFile(moved)
	require.NoError(t, err)
	var b backJSON
	require.NoError(t, json.Unmarshal(text, &b))
	require.Equal(t, []string{"2", fmt.Sprint(open), "voided"}, []string{b.ExternalID, b.CouponID, b.State})
	require.EqualValues(t, 20, c.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE observed = 1`))
}
