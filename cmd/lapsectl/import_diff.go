package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lapsehq/lapse/pkg/adopt"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

type importDiff struct {
	sourceFlags
	File string `placeholder:"FILE" help:"Append every difference to this file, as JSON lines; else the first are shown."`
	JSON bool   `name:"json" help:"Print JSON."`
}

// Help says how to read it.
func (c *importDiff) Help() string {
	return `Reads the source as it is now and holds each row against what was decided here about the coupon: "not_expired" ended here and can still
be used there, more than two minutes later; "expired_early" expired there before the end that was imported; "used_after_end" was used there when it
had ended; "undecided" ended and nothing was decided here; "missing" was never imported. "changed_there" has changed since it was imported, which the
next import takes over, and is no difference. Where the mapping names a column for expired_at, it also tells how late the old job was. Exit code 0: the two agree; 1: they do not.`
}

// diffJSON is what --json prints.
type diffJSON struct {
	Name    string             `json:"name"`
	Source  string             `json:"source"`
	Rows    int64              `json:"rows"`
	Refused int64              `json:"refused"` // of which the mapping makes no coupon
	Kinds   map[string]int64   `json:"kinds"`
	Late    *lateJSON          `json:"old_job_late_ms,omitempty"`
	First   []adopt.Difference `json:"differences,omitempty"` // the first of them
	TookMS  int64              `json:"took_ms"`
}

type lateJSON struct {
	Coupons int   `json:"coupons"`
	P50     int64 `json:"p50"`
	P99     int64 `json:"p99"`
	Max     int64 `json:"max"`
}

// Run compares.
func (c *importDiff) Run(ctx context.Context, s *system) error {
	src, err := c.open(s)
	if err != nil {
		return err
	}
	if _, err := s.settings(keyInstallation); err != nil {
		return err
	}
	began := time.Now()
	x := diffJSON{Name: src.mapping.Name, Source: src.name}
	var out *os.File
	err = s.withStore(ctx, func(db *store.Store) error {
		if _, err := db.Import(ctx, x.Name); err != nil {
			return fmt.Errorf("import %s: %w", x.Name, err)
		}
		config := adopt.DefaultConfig()
		config.Rate = src.rate
		im, err := adopt.New(config, "lapsectl-"+uuid.NewString(), db, func(coupon.ImportProgress, []adopt.Told) {})
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		in, err := src.from("")
		if err != nil {
			return err
		}
		total, err := in.Total(ctx)
		if err != nil {
			return errors.Join(err, in.Close())
		}
		bar := newProgress(s, "rows", total, 0)
		d, err := im.Diff(ctx, x.Name, src.mapping, in, db, func(d adopt.Diff, found []adopt.Difference) error {
			bar.set(d.Rows)
			found = slices.DeleteFunc(found, func(d adopt.Difference) bool { return !adopt.Differs(d.Kind) })
			for _, f := range found {
				if len(x.First) < toldMost {
					x.First = append(x.First, f)
				}
			}
			if c.File == "" || len(found) == 0 {
				return nil
			}
			return appendLines(&out, c.File, found)
		})
		bar.close()
		x.Rows, x.Refused, x.Kinds = d.Rows, d.Refused, d.Kinds
		if n := len(d.Late); n > 0 {
			x.Late = &lateJSON{n, d.Late[n/2].Milliseconds(), d.Late[n*99/100].Milliseconds(), d.Late[n-1].Milliseconds()}
		}
		return errors.Join(err, in.Close())
	})
	if out != nil {
		err = errors.Join(err, out.Close())
	}
	if err != nil {
		return err
	}
	x.TookMS = time.Since(began).Milliseconds()
	return c.report(s, x)
}

func (c *importDiff) report(s *system, x diffJSON) error {
	var err error
	if c.JSON {
		err = s.printJSON(x)
	} else {
		err = s.print(x.text())
	}
	if err != nil {
		return err
	}
	n := int64(0)
	for kind, count := range x.Kinds {
		if adopt.Differs(kind) {
			n += count
		}
	}
	if n > 0 {
		return s.miss("%s coupons fared otherwise there than they would have here", grouped(int(n)))
	}
	return nil
}

func (x diffJSON) text() string {
	rows := table{{"import " + x.Name, "ROWS"}}
	for _, kind := range slices.Sorted(maps.Keys(x.Kinds)) {
		rows = append(rows, []string{kind, grouped(int(x.Kinds[kind]))})
	}
	if x.Refused > 0 {
		rows = append(rows, []string{"refused by the mapping", grouped(int(x.Refused))})
	}
	text := rows.String()
	if l := x.Late; l != nil {
		text += fmt.Sprintf("the old job expired %s coupons after their end by %s (median), %s (99 %%), %s (most)\n", grouped(l.Coupons), seconds(int64(l.P50)), seconds(int64(l.P99)), seconds(int64(l.Max)))
	}
	for _, d := range x.First {
		text += fmt.Sprintf("%s: %s: %s there, ends %s", d.Where, d.Kind, d.There, d.Ends)
		if d.Decided != "" {
			text += ", expired here at " + d.Decided
		}
		if d.ByMS != 0 {
			text += ", " + seconds(d.ByMS) + " apart"
		}
		text += "\n"
	}
	return text
}
