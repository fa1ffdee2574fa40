package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ofAPI says whether a statement can be behind a call of the API: by the first part of its name. Those of workers' jobs
// alone (sweep., plan., outbox., notice., quota., seed., …) have tests of their own. Statements of other names may be in
// the table as well.
func ofAPI(name string) bool {
	group, _, _ := strings.Cut(name, ".")
	return slices.Contains([]string{"act", "effects", "idempotency", "issue", "list", "operator", "read", "stats", "template"}, group)
}

// probes is how each statement is run: in the middle of much, and at its largest page.
func (d data) probes() map[string][]probe {
	table := make(map[string][]probe)
	for _, part := range []map[string][]probe{d.readers(), d.lists(), d.verbs(), d.issuance(), d.keys(), d.templates(), d.notices()} {
		maps.Copy(table, part)
	}
	return table
}

const page = 100

// ids gives n ids spread over the coupons.
func (d data) ids(n int) []any {
	ids := make([]any, n)
	for i := range ids {
		ids[i] = 1 + (i*7919*97)%d.n
	}
	return ids
}

func (d data) archivedIDs(n int) []any {
	ids := make([]any, n)
	for i := range ids {
		ids[i] = d.n + 1 + (i*7919)%(d.n/10)
	}
	return ids
}

func with(first any, rest ...any) []any { return append([]any{first}, rest...) }

func (d data) readers() map[string][]probe {
	far := time.Date(9999, 12, 31, 12, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	// The range of a stream from one place to another.
	stream := func(with string, status int, low, high time.Time) probe {
		return probe{with: with, page: page, args: []any{[]byte("big"), status, low, low, low, 0, high, high, high, 0, page}}
	}
	early := time.Date(1970, 1, 2, 0, 0, 0, 0, time.UTC)
	return map[string][]probe{
		"read.coupons":  {{with: "900 ids", in: 900, page: 900, args: d.ids(900)}, {with: "one id", page: 1, args: d.ids(1)}},
		"read.archived": {{with: "900 ids", in: 900, page: 900, args: d.archivedIDs(900)}, {with: "none there", page: 1, args: d.ids(1)}},
		"read.key":      {{with: "a key", page: 1, args: []any{[]byte("plans"), []byte("k0000777")}}, {with: "no such", page: 1, args: []any{[]byte("plans"), []byte("no")}}},
		"read.key_of":   {{with: "a coupon", page: 1, args: []any{777}}},
		"read.steps":    {{with: "a coupon", page: 2, args: []any{777, 1000}}}, "read.steps_archived": {{with: "a coupon", page: 2, args: []any{d.n + 777, 1000}}},
		"read.wallet": {
			stream("unused, first page", 1, d.now, far), stream("unused, a late page", 1, d.now.Add(80*day), far),
			stream("used, a late page", 3, d.now.Add(-10*day), far), stream("up to another stream", 1, d.now.Add(40*day), d.now.Add(41*day)),
		},
		"read.wallet_back": {
			stream("ended, not settled", 1, early, d.now), stream("expired, first page", 4, early, far),
			stream("expired, a late page", 4, early, d.now.Add(-80*day)), stream("down to another stream", 4, d.now.Add(-41*day), d.now.Add(-40*day)),
		},
		"read.wallet_archived":      {stream("used, first page", 3, early, far), stream("used, a late page", 3, d.now.Add(80*day), far)},
		"read.wallet_archived_back": {stream("expired, first page", 4, early, far), stream("expired, a late page", 4, early, d.now.Add(-40*day))},
		"read.summary":              {{with: "ten thousand coupons", page: 1001, args: []any{[]byte("big"), 1001}}, {with: "ten coupons", page: 10, args: []any{[]byte("u5000"), 1001}}},
	}
}

func (d data) lists() map[string][]probe {
	state := func(with string, status int, until, from time.Time) probe {
		return probe{with: with, page: page, args: []any{status, until, from, from, from, 500, page}}
	}
	return map[string][]probe{
		"list.template": {
			{with: "nine of ten coupons", page: page, args: []any{1, d.n / 2, page}}, {with: "a small one", page: page, args: []any{2 + 13, d.n / 2, page}},
		},
		"list.batch": {{with: "a hundred thousand", page: page, args: []any{[]byte("big"), 40_000, page}}},
		"list.state": {
			state("unused, a late page", 1, time.Date(9999, 12, 31, 12, 0, 0, 0, time.UTC), d.now.AddDate(0, 0, 70)),
			state("expired, of a day", 4, d.now.AddDate(0, 0, -9), d.now.AddDate(0, 0, -10)),
		},
	}
}

func (d data) verbs() map[string][]probe {
	const most = 10 // coupons of an order
	ids, old := d.ids(most), d.archivedIDs(most)
	order := []byte("o777")
	end := func(seconds int) time.Time { return d.now.Add(time.Duration(seconds) * time.Second) }
	locked := 20_009
	lockedEnd := end(3600 + locked*7919%7_776_000)
	move := []any{3, 3, lockedEnd, lockedEnd, nil, nil, []byte("o20009"), nil, nil, d.now, nil, nil, locked, 2, 2, []byte("u2000"), lockedEnd, []byte("o20009"), end(600)}
	history := []any{2_000_000_000, 1, 0, 1, "grant", d.now, d.now, d.now, []byte(""), "", "", "", "", "", nil, nil}
	return map[string][]probe{
		"act.lock":             {{with: "10 coupons", in: most, page: most, args: ids}},
		"act.read":             {{with: "10 coupons, their tombstones", in: most, page: 2 * most, args: with(order, ids...)}},
		"act.past":             {{with: "10 coupons", in: most, page: 2 * most, args: with(order, ids...)}},
		"act.past_archive":     {{with: "10 coupons", in: most, page: 2 * most, args: with(order, old...)}},
		"act.move":             {{with: "one coupon", page: 1, args: move}},
		"act.tombstone":        {{with: "one coupon", page: 1, args: []any{777, order, 1, 0}}},
		"archive.read":         {{with: "10 coupons, their tombstones", in: most, page: 2 * most, args: with(order, old...)}},
		"archive.lock":         {{with: "10 coupons", in: most, page: most, args: old}},
		"effects.history":      {{with: "one step", page: 1, args: history}},
		"effects.outbox":       {{with: "one row", page: 1, args: []any{1, 1, 777, []byte("m"), "k", "x", nil, []byte("{}"), ""}}},
		"effects.quota_return": {{with: "one coupon", page: 1, args: []any{777, 1, []byte("u"), true}}},
	}
}

func (d data) issuance() map[string][]probe {
	const most = 500 // of one statement
	keys, users := make([]any, most), make([]any, most)
	for i := range keys {
		keys[i], users[i] = fmt.Appendf(nil, "k%07d", 1+(i*7919)%d.n), fmt.Appendf(nil, "u%d", (i*97)%50_000)
	}
	return map[string][]probe{
		"issue.start":          {{with: "–", page: 1}},
		"issue.keys":           {{with: "500 known keys", in: most, page: most, args: with([]byte("plans"), keys...)}},
		"issue.first":          {{with: "500 coupons", in: most, page: most, args: d.ids(most)}},
		"issue.first_archived": {{with: "500 coupons", in: most, page: most, args: d.archivedIDs(most)}},
		"issue.stock":          {{with: "10 templates", in: 10, page: 20, args: []any{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}},
		"issue.stock_lock":     {{with: "10 templates", in: 10, page: 10, args: []any{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}},
		"issue.reserve":        {{with: "one template", page: 1, args: []any{1, 1, 1, 10, 1}}},
		"issue.user_lock":      {{with: "one user", page: 1, args: []any{1, []byte("u777")}}},
		"issue.users":          {{with: "500 users", in: most, page: most, args: with(1, users...)}},
		"issue.user_add":       {{with: "one user", page: 1, args: []any{1, []byte("u777"), 1}}},
		"issue.coupon":         {{with: "one coupon", page: 1, args: []any{1, 1, []byte(""), []byte("u"), 1, 1, d.now, d.now, d.now, d.now}}},
		"issue.count":          {{with: "500 new coupons", page: most, args: []any{d.n / 2, d.n/2 + most - 1, d.now}}},
		"issue.key":            {{with: "one key", page: 1, args: []any{[]byte("plans"), []byte("new"), 1, make([]byte, 32)}}},
	}
}

func (d data) keys() map[string][]probe {
	caller, done, open := []byte("plans"), []byte("k777"), []byte("w777")
	return map[string][]probe{
		"idempotency.insert": {{with: "a key", page: 1, args: []any{caller, []byte("new"), make([]byte, 32), 1_000_000}}},
		"idempotency.lock":   {{with: "a key", page: 1, args: []any{caller, done}}},
		"idempotency.take":   {{with: "a key", page: 1, args: []any{1_000_000, caller, open}}},
		"idempotency.mark":   {{with: "a key", page: 1, args: []any{[]byte("{}"), caller, open}}},
		"idempotency.finish": {{with: "a key", page: 1, args: []any{200, []byte("{}"), caller, open, 200}}},
		"idempotency.delete": {{with: "a key", page: 1, args: []any{caller, open}}},
		"idempotency.yield":  {{with: "a key", page: 1, args: []any{caller, open}}},
		"idempotency.prune":  {{with: "a job's batch", page: page, args: []any{600, page}}},
	}
}

func (d data) templates() map[string][]probe {
	from, to := d.now.AddDate(0, 0, -365).Format(time.DateOnly), d.now.Format(time.DateOnly)
	stats := []any{1, to}
	for range 12 {
		stats = append(stats, 1)
	}
	return map[string][]probe{
		"stats.read":            {{with: "a template's year", page: 366, args: []any{1, from, to}}},
		"stats.add":             {{with: "a day", page: 1, args: stats}},
		"stats.seen":            {{with: "500 events, and where each coupon ends", in: 500, page: 1000, args: append(seq(500), 1, 9)}},
		"stats.seen_add":        {{with: "an event", page: 1, args: []any{2_000_000_000, 1}}},
		"stats.template":        {{with: "a template", page: 1, args: []any{1}}},
		"stats.tombstone_prune": {{with: "a job's batch", page: page, args: []any{600_000_000, page}}},
		"template.list":         {{with: "50 templates", page: 100, args: []any{5, 50}}, {with: "one", page: 2, args: []any{5, 1}}},
		"template.terms":        {{with: "a revision", page: 1, args: []any{5, 1}}},
		"template.insert":       {{with: "a revision", page: 1, args: []any{5, 2, "n", "{}", 1, "CNY", "exact", "strict", 1, "none", "amount", 0, 0, 0, "[]", "", "a", "r"}}},
		"template.stock_insert": {{with: "a template", page: 1, args: []any{0, 0}}},
		"template.stock_revise": {{with: "a template", page: 1, args: []any{2, 0, 0, 5, 1}}},
		"template.stop":         {{with: "a template", page: 1, args: []any{true, 5, true}}},
		"operator.add":          {{with: "a deed", page: 1, args: []any{"a", "r", "template.stop", []byte("1"), []byte("{}")}}},
		"operator.list":         {{with: "a late page", page: page, args: []any{"template.stop", 500, page}}},
		"setting.plan":          {{with: "–", page: 3}},
	}
}

// notices are those of readers, of providers and of operators' lists.
func (d data) notices() map[string][]probe {
	big, u, sms := []byte("big"), []byte("u778"), "sms"
	inbox := make([]any, 0, 101)
	inbox = append(inbox, big)
	for i := range 100 {
		inbox = append(inbox, 9001+4*i)
	}
	return map[string][]probe{
		"read.inbox":           {{with: "first page", page: page, args: []any{big, 1 << 40, page}}, {with: "a late page", page: page, args: []any{big, 500, page}}},
		"read.inbox_unread":    {{with: "fifteen hundred", page: 2 * 1000, args: []any{big, 1000}}, {with: "none", page: 1, args: []any{u, 1000}}},
		"read.inbox_mark":      {{with: "100 rows", in: 100, page: 2 * page, args: inbox}},
		"read.inbox_mark_to":   {{with: "fifteen hundred, of which 75 are older", page: 1500 + 75, args: []any{big, 8100}}},
		"read.popup_any":       {{with: "five hundred wait", page: 2, args: []any{big}}, {with: "none", page: 1, args: []any{u}}},
		"read.popup_lock":      {{with: "a page", page: 2 * page, args: []any{big, page}}},
		"read.popup_hand":      {{with: "one", page: 2, args: []any{big, 9004}}},
		"read.notice_user":     {{with: "a notice", page: 1, args: []any{777, sms}}},
		"profile.read":         {{with: "a user", page: 1, args: []any{u}}},
		"profile.optouts":      {{with: "a user", page: 1, args: []any{u}}},
		"list.notices":         {{with: "first page", page: page, args: []any{1 << 40, 1 << 40, "~", page}}, {with: "a late page", page: page, args: []any{777, 777, sms, page}}},
		"list.notices_user":    {{with: "a late page", page: page, args: []any{big, "expiring", 5000, 5000, sms, page}}},
		"list.notices_state":   {{with: "a late page", page: page, args: []any{"failed", 5000, 5000, sms, page}}},
		"list.notice_window":   {{with: "a window", page: 1, args: []any{777}}},
		"list.notice_items":    {{with: "a window", page: 1, args: []any{777, 1000}}},
		"list.notice_channels": {{with: "a window", page: 4, args: []any{777}}},
		"notice.resend_lock":   {{with: "a notice", page: 1, args: []any{777, sms}}},
		"notice.resend":        {{with: "a notice", page: 1, args: []any{11, sms, "failed"}}},
		"explain.notices":      {{with: "a coupon", page: 6, args: []any{777, 1000}}},
	}
}

func seq(n int) []any {
	ids := make([]any, n)
	for i := range ids {
		ids[i] = i
	}
	return ids
}
