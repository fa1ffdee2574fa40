package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/lapsehq/lapse/pkg/bulk"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/operation"
	"github.com/lapsehq/lapse/pkg/store"
)

// bulkFlags say which coupons, and how.
type bulkFlags struct {
	Template     string `placeholder:"ID" help:"Coupons of this template."`
	Batch        string `placeholder:"ID" help:"Coupons of this batch."`
	User         string `placeholder:"ID" help:"Coupons of this user."`
	File         string `placeholder:"FILE" help:"Coupons whose ids this file lists, one a line; - is standard input."`
	EndedBetween string `placeholder:"A,B" help:"Coupons whose end lies from A on and before B: two instants, RFC 3339."`
	Rate         string `default:"2000/s" placeholder:"N/s" help:"At most so many coupons a second; 0: no bound."`
	Yes          bool   `help:"Do it. Without, it is only said what would be done."`
	FromScratch  bool   `help:"Begin again, instead of going on where an unfinished run of the same command stands."`
	byFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// endFlags say what the new end is.
type endFlags struct {
	To string        `xor:"end" placeholder:"INSTANT" help:"The new end, RFC 3339; never: none."`
	By time.Duration `xor:"end" help:"Move each coupon's own end by so much."`
}

func (f *endFlags) into(a *coupon.BulkAsk) error {
	a.By = f.By
	switch f.To {
	case "":
	case "never":
		a.EndsAt = coupon.Never
	default:
		at, err := time.Parse(time.RFC3339, f.To)
		if err != nil {
			return fmt.Errorf("--to: must be an instant such as 2026-12-31T23:00:00+08:00, or never, got %q", clipped(f.To))
		}
		a.EndsAt = coupon.CeilSecond(at)
	}
	return nil
}

const bulkHelp = `Without --yes nothing is changed: it says how many coupons would be, what they are worth, and how many would not, and why.
Several conditions must all be met. With --yes coupons are changed nearest end first, in small transactions, at most --rate a second;
each is judged when its row is locked, so one that has ended meanwhile is reported as "expired" and not changed. Interrupted, or killed, the
same command goes on, and changes no coupon twice. Actor and reason stand in each coupon's history and in the operators' log. Exit code 0: all
was done; 1: some coupons were not changed for what they are; 2: it could not run, or not to its end.`

type extendCommand struct {
	bulkFlags
	endFlags
}

// Help says what it does.
func (c *extendCommand) Help() string {
	return `Moves the ends of coupons that have not ended, either way. One under a live lock keeps its lock. ` + bulkHelp
}

// Run extends.
func (c *extendCommand) Run(ctx context.Context, s *system) error {
	a := coupon.BulkAsk{Verb: coupon.VerbExtend}
	if err := c.into(&a); err != nil {
		return err
	}
	return c.run(ctx, s, a)
}

type voidCommand struct {
	bulkFlags
	BreakLocks bool `help:"Also coupons that an order has locked; without, they are skipped."`
}

// Help says what it does.
func (c *voidCommand) Help() string {
	return `Withdraws coupons that are unused. Those under a live lock are skipped (reported as "locked") unless --break-locks. ` + bulkHelp
}

// Run voids.
func (c *voidCommand) Run(ctx context.Context, s *system) error {
	return c.run(ctx, s, coupon.BulkAsk{Verb: coupon.VerbVoid, BreakLocks: c.BreakLocks})
}

type reinstateCommand struct {
	bulkFlags
	endFlags
}

// Help says what it does.
func (c *reinstateCommand) Help() string {
	return `Gives expired coupons back to their holders, with a later end: they are unused again, archived ones too, and coupon.reinstated is told.
What they had returned to their template's quota they take again, whether or not that exceeds it. ` + bulkHelp
}

// Run reinstates.
func (c *reinstateCommand) Run(ctx context.Context, s *system) error {
	a := coupon.BulkAsk{Verb: coupon.VerbReinstate}
	if err := c.into(&a); err != nil {
		return err
	}
	return c.run(ctx, s, a)
}

// ask is what the flags say.
func (f *bulkFlags) ask(s *system, a coupon.BulkAsk) (coupon.BulkAsk, float64, error) {
	errs := []error{f.check(s)}
	var perSecond float64
	if f.Rate != "0" {
		n, err := parseRate(f.Rate, operation.MaxRate)
		perSecond, errs = n, append(errs, err)
	}
	a.Batch, a.User, a.Actor, a.Reason = f.Batch, f.User, f.Actor, f.Reason
	if f.Template != "" {
		id, err := parseID("--template", f.Template)
		a.Template, errs = id, append(errs, err)
	}
	if f.EndedBetween != "" {
		first, second, ok := strings.Cut(f.EndedBetween, ",")
		from, err1 := time.Parse(time.RFC3339, strings.TrimSpace(first))
		to, err2 := time.Parse(time.RFC3339, strings.TrimSpace(second))
		if !ok || err1 != nil || err2 != nil {
			errs = append(errs, fmt.Errorf("--ended-between: must be two instants such as 2026-11-10T00:00:00+08:00,2026-11-11T00:00:00+08:00, got %q", clipped(f.EndedBetween)))
		}
		a.EndsFrom, a.EndsTo = from.UTC(), to.UTC()
	}
	if f.File != "" {
		ids, err := f.ids(s)
		a.IDs, errs = ids, append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return a, perSecond, err
	}
	if err := a.Validate(); err != nil {
		var faults []error
		for line := range strings.SplitSeq(err.Error(), "\n") {
			faults = append(faults, errors.New("--"+line))
		}
		return a, perSecond, errors.Join(faults...)
	}
	return a, perSecond, nil
}

// ids reads the list: sorted, each once.
func (f *bulkFlags) ids(s *system) (ids []uint64, err error) {
	in := s.stdin
	if f.File != "-" {
		file, err := os.Open(f.File)
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		defer func() { _ = file.Close() }() // only read
		in = file
	}
	ids = []uint64{}
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		id, err := parseID("--file: line "+strconv.Itoa(n), text)
		if err != nil {
			return nil, err
		}
		if ids = append(ids, id); len(ids) > coupon.MaxBulkIDs {
			return nil, fmt.Errorf("--file: must name at most %s coupons", grouped(coupon.MaxBulkIDs))
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("--file: %w", err)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// bulkJSON is what --json prints.
type bulkJSON struct {
	Verb      string              `json:"verb"`
	DryRun    bool                `json:"dry_run"`
	Resumed   bool                `json:"resumed"`
	Finished  bool                `json:"finished"`
	Operation string              `json:"operation,omitempty"`
	Counts    coupon.BulkProgress `json:"counts"` // by what became of them: change, repeat, busy, or the code of the refusal
	TookMS    int64               `json:"took_ms"`
}

func (f *bulkFlags) run(ctx context.Context, s *system, a coupon.BulkAsk) error {
	a, perSecond, err := f.ask(s, a)
	if err != nil {
		return err
	}
	if _, err := s.settings(keyInstallation); err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		if a.Template != 0 {
			if err := templateThere(ctx, db, f.Template); err != nil {
				return err
			}
		}
		c := bulk.DefaultConfig()
		c.Rate = perSecond
		if perSecond == 0 || perSecond > float64(10*c.Batch) {
			c.Batch = 500
		}
		b, err := bulk.New(c, "lapsectl-"+uuid.NewString(), db)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		began := time.Now()
		seen := newProgress(s, "coupons looked at", 0, 0)
		found, err := b.Look(ctx, &a, func(n int) { seen.set(int64(n)) })
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		if !f.Yes {
			return f.report(s, bulkJSON{Verb: string(a.Verb), DryRun: true, Counts: found.Sums, TookMS: time.Since(began).Milliseconds()})
		}
		return f.act(ctx, s, db, b, &a, found, began)
	})
}

// act changes what was found.
func (f *bulkFlags) act(ctx context.Context, s *system, db *store.Store, b *bulk.Bulk, a *coupon.BulkAsk, found *bulk.Found, began time.Time) error {
	w, p, err := b.Claim(ctx, a, f.FromScratch)
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	id := strconv.FormatUint(w.ID, 10)
	if w.Resumed {
		s.note("going on with operation %s, begun at %s, %s coupons changed so far (--from-scratch begins again)", id, instant(w.Created), grouped(int(p.Count(coupon.BulkChange))))
	}
	deed := store.Deed{Actor: a.Actor, Reason: a.Reason, Action: bulk.Kind(a.Verb), Subject: "operation " + id, Detail: f.detail(a, w.Resumed, found.Sums)}
	if err := db.RecordDeed(ctx, deed); err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	first := p.Count(coupon.BulkChange)
	rest := found.Sums.Clone() // what is not to be changed; what is, is counted as it is done
	delete(rest, coupon.BulkChange)
	if t := p[coupon.BulkChange]; t != nil && a.By == 0 { // an earlier run has brought them there
		rest.Less(coupon.BulkRepeat, t)
	}
	bar := newProgress(s, "coupons", first+int64(found.Changes()), first)
	p, err = b.Run(ctx, a, w, p, found, func(p coupon.BulkProgress) { bar.set(p.Count(coupon.BulkChange)) })
	bar.close()
	finished := err == nil
	for what, t := range rest {
		p = merged(p, what, t)
	}
	deed.Action, deed.Detail = bulk.Kind(a.Verb)+".done", map[string]any{"finished": finished, "counts": p}
	if told := db.RecordDeed(context.WithoutCancel(ctx), deed); err == nil {
		err = told
	}
	if err != nil {
		return fmt.Errorf("%w; %s coupons are changed, the same command goes on", err, grouped(int(p.Count(coupon.BulkChange))))
	}
	return f.report(s, bulkJSON{Verb: string(a.Verb), Resumed: w.Resumed, Finished: true, Operation: id, Counts: p, TookMS: time.Since(began).Milliseconds()})
}

func merged(p coupon.BulkProgress, what string, by *coupon.BulkTally) coupon.BulkProgress {
	if p[what] == nil {
		p[what] = &coupon.BulkTally{Value: map[string]int64{}}
	}
	p[what].Coupons += by.Coupons
	for currency, n := range by.Value {
		p[what].Value[currency] += n
	}
	return p
}

// detail is what the operators' log keeps of it.
func (f *bulkFlags) detail(a *coupon.BulkAsk, resumed bool, sums coupon.BulkProgress) map[string]any {
	d := map[string]any{"resumed": resumed, "found": sums}
	for name, value := range map[string]string{
		"template": f.Template, "batch": f.Batch, "user": f.User, "file": f.File, "ended_between": f.EndedBetween, "to": instantOrNever(a.EndsAt),
	} {
		if value != "" {
			d[name] = value
		}
	}
	if a.IDs != nil {
		d["listed"] = len(a.IDs)
	}
	if a.By != 0 {
		d["by"] = a.By.String()
	}
	if a.BreakLocks {
		d["break_locks"] = true
	}
	return d
}

func instantOrNever(t time.Time) string {
	if coupon.IsNever(t) {
		return "never"
	}
	return instant(t)
}

func (f *bulkFlags) report(s *system, x bulkJSON) error {
	var err error
	if f.JSON {
		err = s.printJSON(x)
	} else {
		err = s.print(x.text())
	}
	if err != nil || x.DryRun {
		return err
	}
	left := int64(0)
	for what, t := range x.Counts {
		if what != coupon.BulkChange && what != coupon.BulkRepeat {
			left += t.Coupons
		}
	}
	if left > 0 {
		return s.miss("%s coupons were not changed, for what they are", grouped(int(left)))
	}
	return nil
}

func (x bulkJSON) text() string {
	words := map[string]string{coupon.BulkChange: "changed", coupon.BulkRepeat: "as asked already"}
	if x.DryRun {
		words[coupon.BulkChange] = "would be changed"
	}
	rows := table{{x.Verb, "COUPONS", "VALUE"}}
	kinds := slices.Sorted(maps.Keys(x.Counts))
	slices.SortStableFunc(kinds, func(a, b string) int { // what is changed comes first
		switch coupon.BulkChange {
		case a:
			return -1
		case b:
			return 1
		}
		return 0
	})
	for _, what := range kinds {
		word := words[what]
		if word == "" {
			word = "not: " + what
		}
		rows = append(rows, []string{word, grouped(int(x.Counts[what].Coupons)), valueText(x.Counts[what].Value)})
	}
	if len(kinds) == 0 {
		rows = append(rows, []string{"nothing is meant by that", "0"})
	}
	text := rows.String()
	if x.DryRun {
		text += "nothing was changed; --yes does it\n"
	}
	return text
}
