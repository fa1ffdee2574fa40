package coupon_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
)

var update = flag.Bool("update", false, "write drawing and tables into docs/transitions.md")

func TestTransitionsAreDocumented(t *testing.T) {
	t.Parallel()
	const file = "../../docs/transitions.md"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	want := string(text)
	for name, part := range map[string]string{"diagram": diagram(), "verbs": verbTable(), "facts": factTable()} {
		begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->"
		before, rest, ok := strings.Cut(want, begin)
		require.True(t, ok, name)
		_, after, ok := strings.Cut(rest, end)
		require.True(t, ok, name)
		want = before + begin + part + end + after
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	require.Equal(t, want, string(text), "run with -update")
}

// situation is a row that a verb may meet.
type situation struct {
	name string
	row  coupon.Row
}

func situations() []situation {
	hour := func(n int) time.Time { return now.Truncate(time.Second).Add(time.Duration(n) * time.Hour) }
	minute := func(n int) time.Time { return now.Truncate(time.Second).Add(time.Duration(n) * time.Minute) }
	row := func(status coupon.Status, order string, ends, lock time.Time) coupon.Row {
		return coupon.Row{
			ID: 7, Status: status, Version: 5, ValidFrom: hour(-9), ExpiresAt: ends, DueAt: ends, LockUntil: lock, OrderID: order,
			LatePay: coupon.HonourLock, LateWindow: window,
		}
	}
	late, none := minute(-5), time.Time{}
	early := row(coupon.Unused, "", hour(9), none)
	early.ValidFrom = hour(1)
	strict := row(coupon.Locked, own, late, minute(10))
	strict.LatePay = coupon.Strict
	return []situation{
		{"unused", row(coupon.Unused, "", hour(9), none)},
		{"unused, not yet valid", early},
		{"unused, past its end", row(coupon.Unused, "", late, none)},
		{"locked by own", row(coupon.Locked, own, hour(9), minute(10))},
		{"locked by own, past its end", row(coupon.Locked, own, late, minute(10))},
		{"the same, `strict`", strict},
		{"locked by own, run out", row(coupon.Locked, own, hour(9), minute(-1))},
		{"locked by own, run out, past its end", row(coupon.Locked, own, late, minute(-1))},
		{"locked by another", row(coupon.Locked, other, hour(9), minute(10))},
		{"locked by another, past its end", row(coupon.Locked, other, late, minute(10))},
		{"locked by another, run out", row(coupon.Locked, other, hour(9), minute(-1))},
		{"locked by another, run out, past its end", row(coupon.Locked, other, late, minute(-1))},
		{"used by own", row(coupon.Used, own, hour(9), none)},
		{"used by own, past its end", row(coupon.Used, own, late, none)},
		{"used by another", row(coupon.Used, other, hour(9), none)},
		{"expired", row(coupon.Expired, "", late, none)},
		{"voided", row(coupon.Voided, "", hour(9), none)},
	}
}

func asked(verb coupon.Verb) coupon.Ask {
	return coupon.Ask{Verb: verb, OrderID: own, LockFor: 20 * time.Minute, EndsAt: now.Truncate(time.Second).Add(5 * time.Hour)}
}

func cell(row coupon.Row, a coupon.Ask) string {
	v := coupon.Apply(row, a, now)
	switch {
	case v.Repeat:
		return "*repeat*"
	case v.Refused != "":
		return "`" + string(v.Refused) + "`"
	case len(v.Steps) == 0:
		return "nothing"
	}
	text := "→ " + v.Steps[len(v.Steps)-1].To.String()
	if len(v.Steps) > 1 {
		text = "*settled,* " + text
	}
	return text
}

func verbTable() string {
	var b strings.Builder
	for _, verbs := range [][]coupon.Verb{coupon.Verbs()[:5], coupon.Verbs()[5:]} {
		b.WriteString("| the coupon is |")
		for _, verb := range verbs {
			fmt.Fprintf(&b, " %s |", verb)
		}
		b.WriteString("\n|---|" + strings.Repeat("---|", len(verbs)) + "\n")
		for _, s := range situations() {
			if verbs[0] == coupon.VerbExtend && strings.Contains(s.name, "another") {
				continue // an operator is no order
			}
			fmt.Fprintf(&b, "| %s |", strings.ReplaceAll(s.name, map[bool]string{true: " by own", false: "\x00"}[verbs[0] == coupon.VerbExtend], ""))
			for _, verb := range verbs {
				fmt.Fprintf(&b, " %s |", cell(s.row, asked(verb)))
			}
			b.WriteString("\n")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func factTable() string {
	done, over := func(a *coupon.Ask) { a.Done = true }, func(a *coupon.Ask) { a.Over = true }
	tombstone := func(a *coupon.Ask) { a.Tombstone = true }
	facts := []struct {
		name string
		set  []func(*coupon.Ask)
	}{
		{"history: the order has done it before", []func(*coupon.Ask){done}},
		{"history: the order's last lock on it is over, and nothing came of it", []func(*coupon.Ask){over}},
		{"tombstone: the order was closed", []func(*coupon.Ask){func(a *coupon.Ask) { a.Closed = true }}},
		{"tombstone: the order was refunded", []func(*coupon.Ask){func(a *coupon.Ask) { a.Refunded = true }}},
		{"asked: leave a tombstone", []func(*coupon.Ask){tombstone}},
		{"both: leave a tombstone, and the last lock is over", []func(*coupon.Ask){tombstone, over}},
		{"asked: of a part", []func(*coupon.Ask){func(a *coupon.Ask) { a.Partial = true }}},
		{"asked: break the lock", []func(*coupon.Ask){func(a *coupon.Ask) { a.BreakLock = true }}},
		{"asked: an end that has passed", []func(*coupon.Ask){func(a *coupon.Ask) { a.EndsAt = now.Truncate(time.Second) }}},
	}
	var b strings.Builder
	b.WriteString("| fact | verb | it answers | where the coupon is |\n|---|---|---|---|\n")
	for _, f := range facts {
		for _, verb := range coupon.Verbs() {
			var answers []string
			where := make(map[string][]string)
			for _, s := range situations() {
				all := asked(verb)
				known := []string{cell(s.row, all)} // without it, and with a part of it
				for _, set := range f.set {
					one := asked(verb)
					set(&one)
					set(&all)
					if len(f.set) > 1 {
						known = append(known, cell(s.row, one))
					}
				}
				// What the row says itself is not asked of history, and what an order has used it did not give back last.
				past := all.Done || all.Over
				if past && !all.AsksPast(&s.row) || past && verb == coupon.VerbRelease && s.row.Status == coupon.Used && s.row.OrderID == own {
					continue
				}
				with := cell(s.row, all)
				if slices.Contains(known, with) {
					continue
				}
				if where[with] == nil {
					answers = append(answers, with)
				}
				where[with] = append(where[with], s.name)
			}
			for _, with := range answers {
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.name, verb, with, strings.Join(where[with], "; "))
			}
		}
	}
	return b.String()
}

// diagram draws every step that Apply and Decide can take.
func diagram() string {
	edges := make(map[[2]coupon.Status]map[string]bool)
	add := func(from, to coupon.Status, label string) {
		key := [2]coupon.Status{from, to}
		if edges[key] == nil {
			edges[key] = make(map[string]bool)
		}
		edges[key][label] = true
	}
	for m := range everyMeeting {
		for _, s := range coupon.Apply(m.row, m.ask, now).Steps {
			if s.Cause == coupon.CauseLock && s.To == coupon.Unused {
				add(s.From, s.To, "lock ran out")
				continue
			}
			add(s.From, s.To, string(m.ask.Verb))
		}
	}
	for _, status := range []coupon.Status{coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided} {
		for end := range ends {
			for lock := range locks {
				switch d := coupon.Decide(row(status, end, lock), coupon.Trigger{Kind: coupon.KindExpire}, now); {
				case d.Action == coupon.Expire && status == coupon.Locked, d.Action == coupon.Unlock:
					add(status, map[bool]coupon.Status{true: coupon.Expired, false: coupon.Unused}[d.Action == coupon.Expire], "lock ran out")
				case d.Action == coupon.Expire:
					add(status, coupon.Expired, "its end")
				}
			}
		}
	}
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n    [*] --> unused: grant\n")
	keys := slices.SortedFunc(maps.Keys(edges), func(a, b [2]coupon.Status) int { return slices.Compare(a[:], b[:]) })
	for _, key := range keys {
		fmt.Fprintf(&b, "    %s --> %s: %s\n", key[0], key[1], strings.Join(slices.Sorted(maps.Keys(edges[key])), ", "))
	}
	b.WriteString("```\n")
	return b.String()
}
