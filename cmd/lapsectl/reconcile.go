package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/reconcile"
	"github.com/lapsehq/lapse/pkg/store"
)

type reconcileCommand struct {
	Template string `placeholder:"ID" help:"Report of this template alone."`
	Orders   string `placeholder:"FILE" help:"Hold an export of orders against the coupons: JSON lines, - is standard input."`
	Repair   bool   `help:"Mend what can be mended: expire what is overdue, settle dead locks, recount counters. Needs --reason."`
	Reason   string `help:"Why; kept with what was mended."`
	Actor    string `help:"Who ($USER, or the account that runs this)."`
	Once     bool   `help:"For an outside scheduler: one pass, one JSON line."`
	Shard    string `placeholder:"I/N" help:"Only the I-th of N shares, from 1 on: the first has the counters, all share the coupons."`
	JSON     bool   `name:"json" help:"Print JSON."`
}

// Help says what is held against what.
func (c *reconcileCommand) Help() string {
	return `Holds the books against each other: what each template granted against the states its coupons are in, quota and statistics against
coupons and history, every history against its coupon, what is overdue or waits too long, and, given an export of orders, those against
their coupons. It reads in short statements and may run at any time; what goes on meanwhile is no finding. A line of the export is
{"order_id": "…", "state": "paid", "coupon_ids": ["…"], "at": "2026-11-01T12:00:00Z"}, with the order's last state (paid, closed or
refunded) and when it took it. Exit code 0: clean, or all of it mended; 1: findings are left; 2: it could not run.`
}

// reconcileJSON is what --json prints.
type reconcileJSON struct {
	Began     string         `json:"began_at"`
	Coupons   int64          `json:"coupons"`
	Orders    int            `json:"orders"`
	Young     int            `json:"orders_too_young"`
	Unseeded  bool           `json:"statistics_unseeded"`
	Templates []templateLine `json:"templates"`
	Findings  []findingsJSON `json:"findings"`
	Left      int64          `json:"left"`
	TookMS    int64          `json:"took_ms"`
}

type templateLine struct {
	TemplateID string `json:"template_id"`
	Granted    int64  `json:"granted"`
	Unused     int64  `json:"unused"`
	Locked     int64  `json:"locked"`
	Used       int64  `json:"used"`
	Expired    int64  `json:"expired"`
	Voided     int64  `json:"voided"`
	Archived   int64  `json:"archived"`
	Taken      int64  `json:"quota_taken"`
	Statistics int64  `json:"statistics_granted"`
}

type findingsJSON struct {
	Kind       string             `json:"kind"`
	Count      int64              `json:"count"`
	Repaired   int64              `json:"repaired"`
	Repairable bool               `json:"repairable"`
	Shown      []disagreementJSON `json:"shown"`
}

type disagreementJSON struct {
	Subject  string `json:"subject"`
	Expected string `json:"expected"`
	Found    string `json:"found"`
}

// deedReconcile is the action of a repair.
const deedReconcile = "reconcile.repair"

// Run reconciles.
func (c *reconcileCommand) Run(ctx context.Context, s *system) error {
	ask, err := c.ask(s)
	if err != nil {
		return err
	}
	cfg, err := s.settings(keyInstallation)
	if err != nil {
		return err
	}
	export, err := c.export(s)
	if err != nil {
		return err
	}
	if export != nil {
		defer export.Close() //nolint:errcheck // was only read
		ask.Export = export
	}
	return s.withStore(ctx, func(db *store.Store) error {
		began := time.Now()
		if ask.Repair != nil {
			if err := c.mender(ctx, db, cfg, ask.Repair); err != nil {
				return err
			}
		}
		rep, err := reconcile.Reconcile(ctx, cfg.Reconcile, db, ask)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		if ask.Repair != nil {
			if err := c.record(ctx, db, rep); err != nil {
				return err
			}
		}
		return c.report(s, rep, time.Since(began))
	})
}

// ask checks the flags.
func (c *reconcileCommand) ask(s *system) (reconcile.Ask, error) {
	var a reconcile.Ask
	of, rest, err := parseShard(c.Shard)
	if err != nil {
		return a, err
	}
	a.Of, a.Part = int(of), int(rest)
	if c.Template != "" {
		if a.Template, err = parseID("--template", c.Template); err != nil {
			return a, err
		}
	}
	if !c.Repair {
		return a, nil
	}
	if of > 1 {
		return a, errors.New("--repair: must not be given with --shard: a share does not see which templates are damaged")
	}
	by := byFlags{Reason: c.Reason, Actor: c.Actor}
	if err := by.check(s); err != nil {
		return a, err
	}
	c.Actor = by.Actor
	a.Repair = &reconcile.Repair{Actor: by.Actor, Reason: by.Reason}
	return a, nil
}

func (c *reconcileCommand) export(s *system) (io.ReadCloser, error) {
	switch c.Orders {
	case "":
		return nil, nil //nolint:nilnil // none was asked for
	case "-":
		return io.NopCloser(s.stdin), nil
	}
	f, err := os.Open(c.Orders)
	if err != nil {
		return nil, fmt.Errorf("--orders: %w", err)
	}
	return f, nil
}

// mender notes that somebody begins to mend, and lets the database's clock decide only if it is vouched for.
func (c *reconcileCommand) mender(ctx context.Context, db *store.Store, cfg settings, r *reconcile.Repair) error {
	guard := clock.NewGuard(cfg.Expiry.ClockAhead, time.Now)
	if err := believe(ctx, db, guard, cfg.Expiry.ClockAhead); err != nil {
		return err
	}
	r.Mender, r.Allow = db, guard.Allow
	err := db.RecordDeed(ctx, store.Deed{Actor: r.Actor, Reason: r.Reason, Action: deedReconcile, Subject: c.subject(), Detail: map[string]any{"begun": true}})
	return err //nolint:wrapcheck // says what it does
}

func (c *reconcileCommand) subject() string {
	if c.Template == "" {
		return ""
	}
	return "template " + c.Template
}

func (c *reconcileCommand) record(ctx context.Context, db *store.Store, rep *reconcile.Report) error {
	detail := make(map[string]any)
	for _, k := range rep.Kinds {
		if k.Repaired > 0 {
			detail[string(k.Kind)] = k.Repaired
		}
	}
	err := db.RecordDeed(ctx, store.Deed{Actor: c.Actor, Reason: c.Reason, Action: deedReconcile, Subject: c.subject(), Detail: detail})
	return err //nolint:wrapcheck // says what it does
}

func (c *reconcileCommand) report(s *system, rep *reconcile.Report, took time.Duration) error {
	x := reconcileOf(rep, took)
	var err error
	switch {
	case c.Once:
		err = s.printLine(x)
	case c.JSON:
		err = s.printJSON(x)
	default:
		err = s.print(x.text())
	}
	if err != nil {
		return err
	}
	if x.Left > 0 {
		return s.miss("%s", x.advice(c.Repair))
	}
	return nil
}

func reconcileOf(rep *reconcile.Report, took time.Duration) reconcileJSON {
	x := reconcileJSON{
		Began: instant(rep.Began), Coupons: rep.Coupons, Orders: rep.Orders, Young: rep.Young, Unseeded: rep.Unseeded,
		Templates: make([]templateLine, 0, len(rep.Templates)), Findings: make([]findingsJSON, 0, len(rep.Kinds)),
		Left: rep.Left(), TookMS: took.Milliseconds(),
	}
	for _, b := range rep.Templates {
		x.Templates = append(x.Templates, templateLine{
			TemplateID: strconv.FormatUint(b.Template, 10), Granted: b.Granted, Unused: b.Unused, Locked: b.Locked, Used: b.Used,
			Expired: b.Expired, Voided: b.Voided, Archived: b.Archived, Taken: b.Taken, Statistics: b.Statistics,
		})
	}
	for _, k := range rep.Kinds {
		f := findingsJSON{Kind: string(k.Kind), Count: k.Count, Repaired: k.Repaired, Repairable: k.Kind.Repairable(), Shown: make([]disagreementJSON, 0, len(k.Shown))}
		for _, one := range k.Shown {
			f.Shown = append(f.Shown, disagreementJSON{Subject: one.Subject, Expected: one.Expected, Found: one.Found})
		}
		x.Findings = append(x.Findings, f)
	}
	return x
}

// text is the books as tables: the templates, then what disagrees.
func (x reconcileJSON) text() string {
	rows := table{{"TEMPLATE", "GRANTED", "UNUSED", "LOCKED", "USED", "EXPIRED", "VOIDED", "ARCHIVED", "QUOTA", "STATISTICS"}}
	for _, t := range x.Templates {
		row := []string{t.TemplateID}
		for _, n := range []int64{t.Granted, t.Unused, t.Locked, t.Used, t.Expired, t.Voided, t.Archived, t.Taken, t.Statistics} {
			row = append(row, strconv.FormatInt(n, 10))
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	b.WriteString(rows.String())
	if x.Unseeded {
		b.WriteString("The statistics are still being seeded from history; they were not compared.\n")
	}
	if x.Orders+x.Young > 0 {
		fmt.Fprintf(&b, "%d orders compared, %d too young to be.\n", x.Orders, x.Young)
	}
	for _, k := range x.Findings {
		fmt.Fprintf(&b, "\n%s: %d found", k.Kind, k.Count)
		if k.Repaired > 0 {
			fmt.Fprintf(&b, ", %d mended", k.Repaired)
		}
		b.WriteString("\n")
		found := table{{"  SUBJECT", "EXPECTED", "FOUND"}}
		for _, f := range k.Shown {
			found = append(found, []string{"  " + f.Subject, f.Expected, f.Found})
		}
		b.WriteString(found.String())
		if more := k.Count - int64(len(k.Shown)); more > 0 {
			fmt.Fprintf(&b, "  and %d more\n", more)
		}
	}
	if len(x.Findings) == 0 {
		fmt.Fprintf(&b, "\nThe books agree: %d coupons.\n", x.Coupons)
	}
	return b.String()
}

// advice says what is left, and what can be done about it.
func (x reconcileJSON) advice(repaired bool) string {
	mendable := false
	for _, k := range x.Findings {
		mendable = mendable || k.Repairable && k.Count > k.Repaired
	}
	text := fmt.Sprintf("%d findings are left", x.Left)
	switch {
	case mendable && !repaired:
		text += "; overdue, stuck_lock, quota and statistics can be mended: --repair --reason …"
	case mendable:
		text += "; counters of templates whose coupons or histories are damaged are not recounted"
	}
	return text
}
