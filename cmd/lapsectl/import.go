package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/lapsehq/lapse/pkg/adopt"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/operation"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
)

type importCommand struct {
	Run     importRun     `cmd:"" default:"withargs" help:"Take coupons of another system over, or what has changed there since."`
	Diff    importDiff    `cmd:"" help:"Hold what was observed against what the other system did."`
	CutOver importCutOver `cmd:"" help:"Make an import's observed coupons real."`
	BackOut importBackOut `cmd:"" help:"Give an import's coupons back to the other system: they are observed again."`
}

// Variables that hold what must not be seen in a list of processes.
const envImportPassword = "LAPSE_IMPORT_PASSWORD"

// sourceFlags say what is read, and what its rows are.
type sourceFlags struct {
	Source   string   `arg:"" help:"A file (.csv, .jsonl, .ndjson), or mysql://user@host:port/database; the password in LAPSE_IMPORT_PASSWORD."`
	Mapping  string   `required:"" placeholder:"FILE" help:"What its rows are: see configs/import."`
	Template []string `placeholder:"THEIRS=ID" help:"Which template here one of theirs is, beside the mapping's; * for all others."`
	Rate     string   `default:"5000/s" placeholder:"N/s" help:"At most so many rows a second; 0: no bound."`
}

// source is what the flags mean.
type source struct {
	mapping *adopt.Mapping
	address *adopt.Address // nil: a file
	name    string         // without a password
	rate    float64
}

func (f *sourceFlags) open(s *system) (*source, error) {
	text, err := os.ReadFile(f.Mapping)
	if err != nil {
		return nil, fmt.Errorf("--mapping: %w", err)
	}
	src := &source{}
	var errs []error
	if src.mapping, err = adopt.ParseMapping(text); err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	for _, t := range f.Template {
		theirs, ours, _ := strings.Cut(t, "=")
		id, err := parseID("--template", ours)
		errs = append(errs, err)
		src.mapping.Templates[theirs] = id
	}
	if len(src.mapping.Templates) == 0 {
		errs = append(errs, errors.New("templates: the mapping must say which template here each of theirs is, or --template must"))
	}
	if f.Rate != "0" {
		src.rate, err = parseRate(f.Rate, operation.MaxRate)
		errs = append(errs, err)
	}
	if strings.HasPrefix(f.Source, "mysql:") {
		password, _ := s.lookup(envImportPassword)
		address, err := adopt.ParseAddress(f.Source, secret.New(password))
		errs = append(errs, err)
		src.address, src.name = &address, address.String()
	} else {
		src.name, err = filepath.Abs(f.Source)
		errs = append(errs, err)
	}
	return src, errors.Join(errs...)
}

// from opens the source behind a place.
func (f *source) from(place string) (adopt.Source, error) {
	if f.address != nil {
		return adopt.OpenMySQL(*f.address, &f.mapping.Query, place) //nolint:wrapcheck // names the source
	}
	return adopt.OpenFile(f.name, place) //nolint:wrapcheck // names the source
}

type importRun struct {
	sourceFlags
	DryRun  bool   `help:"Read everything and say what would become of it; change nothing."`
	Observe bool   `help:"The other system still owns the coupons: what would become of them is noted, and nothing happens to them."`
	Events  bool   `help:"Tell of coupons that can still be used as issued."`
	Notices bool   `help:"Tell of reminders that are about due."`
	Refused string `placeholder:"FILE" help:"Append the rows that were not taken over to this file, as JSON lines; else the first are shown."`

	FromScratch bool   `help:"Begin again, instead of going on where an unfinished run of the same command stands."`
	Reason      string `help:"Why; kept with what is done. A dry run needs none."`
	Actor       string `help:"Who ($USER, or the account that runs this)."`
	JSON        bool   `name:"json" help:"Print JSON."`
}

// Help says what it does.
func (c *importRun) Help() string {
	return `Reads a CSV or JSONL file, or tables of another MySQL (read-only, a page at a time, each statement under a time limit), and takes each row over
as a coupon: owner, state, ends, and the orders that hold or have used it. The mapping says which columns these are. History says "import". Nothing
is told of, unless asked for: no issued events, no reminders; each coupon's end is on its way at once, as if it had been issued here. Interrupted, or
killed, the same command goes on. Repeated, it takes over what has changed there since: only where nothing else has touched the coupon here; the others are
reported as "changed_here". Exit code 0: every row was taken over; 1: some were not; 2: it could not run, or not to its end. docs/migrate.md tells
of the whole way.`
}

// importJSON is what --json prints.
type importJSON struct {
	Name      string              `json:"name"`
	Source    string              `json:"source"`
	DryRun    bool                `json:"dry_run"`
	Observe   bool                `json:"observe"`
	Resumed   bool                `json:"resumed"`
	Finished  bool                `json:"finished"`
	Operation string              `json:"operation,omitempty"`
	Rows      int64               `json:"rows"`
	Counts    coupon.BulkProgress `json:"counts"` // new, updated, same, changed_here, busy, each with the state of its rows; refused
	Told      []adopt.Told        `json:"not_taken,omitempty"`
	TookMS    int64               `json:"took_ms"`
}

const toldMost = 20 // rows that are shown

// Run imports, or says what it would.
func (c *importRun) Run(ctx context.Context, s *system) error {
	by := byFlags{Reason: c.Reason, Actor: c.Actor}
	if c.DryRun && by.Reason == "" {
		by.Reason = "a dry run" // is kept nowhere
	}
	if err := by.check(s); err != nil {
		return err
	}
	c.Reason, c.Actor = by.Reason, by.Actor
	src, err := c.open(s)
	if err != nil {
		return err
	}
	m := src.mapping
	ask := coupon.ImportAsk{Name: m.Name, Batch: m.Batch, Observe: c.Observe, Events: c.Events, Notices: c.Notices, Actor: c.Actor, Reason: c.Reason}
	if err := ask.Validate(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if _, err := s.settings(keyInstallation); err != nil {
		return err
	}
	told := &tolds{file: c.Refused}
	x := importJSON{Name: m.Name, Source: src.name, DryRun: c.DryRun, Observe: c.Observe}
	began := time.Now()
	err = s.withStore(ctx, func(db *store.Store) error {
		for _, id := range slices.Compact(slices.Sorted(maps.Values(m.Templates))) {
			if err := templateThere(ctx, db, strconv.FormatUint(id, 10)); err != nil {
				return err
			}
		}
		var bar *progress
		config := adopt.DefaultConfig()
		config.Rate = src.rate
		im, err := adopt.New(config, "lapsectl-"+uuid.NewString(), db, func(p coupon.ImportProgress, rows []adopt.Told) {
			told.add(rows)
			bar.set(p.Rows)
		})
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		defer func() { bar.close() }()
		start := func(total, first int64) { bar = newProgress(s, "rows", total, first) }
		if c.DryRun {
			return c.look(ctx, im, src, &ask, &x, start)
		}
		return c.take(ctx, s, db, im, src, &ask, &x, start)
	})
	x.Told, x.TookMS = told.first, time.Since(began).Milliseconds()
	if err := errors.Join(err, told.close()); err != nil {
		return err
	}
	return c.report(s, x)
}

func (c *importRun) look(ctx context.Context, im *adopt.Import, src *source, ask *coupon.ImportAsk, x *importJSON, start func(total, first int64)) error {
	in, err := src.from("")
	if err != nil {
		return err
	}
	total, err := in.Total(ctx)
	if err == nil {
		start(total, 0)
		var p coupon.ImportProgress
		p, err = im.Look(ctx, ask, src.mapping, in)
		x.Rows, x.Counts = p.Rows, p.Counts
	}
	return errors.Join(err, in.Close())
}

func (c *importRun) take(ctx context.Context, s *system, db *store.Store, im *adopt.Import, src *source, ask *coupon.ImportAsk, x *importJSON,
	start func(total, first int64),
) error {
	if err := db.RegisterImport(ctx, ask.Name, ask.Observe); err != nil {
		return err //nolint:wrapcheck // says what is wrong
	}
	w, p, err := im.Claim(ctx, adopt.Terms{Ask: *ask, Source: src.name, Mapping: src.mapping.Hash()}, c.FromScratch)
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	x.Operation, x.Resumed = strconv.FormatUint(w.ID, 10), w.Resumed
	if w.Resumed {
		s.note("going on with operation %s, begun at %s, %s rows read so far (--from-scratch begins again)", x.Operation, instant(w.Created), grouped(int(p.Rows)))
	}
	deed := store.Deed{Actor: c.Actor, Reason: c.Reason, Action: adopt.Kind, Subject: ask.Name, Detail: map[string]any{
		"operation": x.Operation, "source": src.name, "observe": ask.Observe, "events": ask.Events, "notices": ask.Notices, "resumed": w.Resumed,
	}}
	err = db.RecordDeed(ctx, deed)
	var in adopt.Source
	if err == nil {
		in, err = src.from(p.Place)
	}
	if err != nil {
		return w.End(ctx, p, false, err) //nolint:wrapcheck // says what it does
	}
	total, err := in.Total(ctx)
	if err != nil {
		return errors.Join(w.End(ctx, p, false, err), in.Close())
	}
	start(total, p.Rows)
	p, err = im.Run(ctx, ask, src.mapping, in, w, p)
	x.Rows, x.Counts, x.Finished = p.Rows, p.Counts, p.Done && err == nil
	deed.Action, deed.Detail = adopt.Kind+".done", map[string]any{"operation": x.Operation, "finished": x.Finished, "rows": p.Rows, "counts": p.Counts}
	if told := db.RecordDeed(context.WithoutCancel(ctx), deed); err == nil {
		err = told
	}
	if err = errors.Join(err, in.Close()); err != nil {
		return fmt.Errorf("%w; %s rows are done, the same command goes on", err, grouped(int(p.Rows)))
	}
	return nil
}

func (c *importRun) report(s *system, x importJSON) error {
	var err error
	if c.JSON {
		err = s.printJSON(x)
	} else {
		err = s.print(x.text())
	}
	if err != nil {
		return err
	}
	p := coupon.ImportProgress{Counts: x.Counts}
	if n := p.Count(coupon.ImportRefused) + p.Count(coupon.ImportHere) + p.Count(coupon.ImportBusy); n > 0 {
		return s.miss("%s rows were not taken over", grouped(int(n)))
	}
	return nil
}

func (x importJSON) text() string {
	rows := table{{"import " + x.Name, "ROWS", "VALUE"}}
	for _, what := range []string{coupon.ImportNew, coupon.ImportUpdated, coupon.ImportSame, coupon.ImportHere, coupon.ImportBusy, coupon.ImportRefused} {
		for _, kind := range slices.Sorted(maps.Keys(x.Counts)) {
			name, state, _ := strings.Cut(kind, ".")
			if name != what {
				continue
			}
			word := what
			if x.DryRun && (what == coupon.ImportNew || what == coupon.ImportUpdated) {
				word = "would be " + what
			}
			rows = append(rows, []string{strings.TrimSpace(word + " " + state), grouped(int(x.Counts[kind].Coupons)), valueText(x.Counts[kind].Value)})
		}
	}
	if len(rows) == 1 {
		rows = append(rows, []string{"there are no rows", "0"})
	}
	text := rows.String()
	for _, t := range x.Told {
		text += fmt.Sprintf("%s: %s: %s\n", t.Where, t.What, shown(t.Detail))
	}
	if x.DryRun {
		text += "nothing was changed\n"
	}
	return text
}
