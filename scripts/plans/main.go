// Command plans proves that no statement of the API reads more rows than it must. In a database of its own on the stack it
// makes a million coupons, runs every statement, and prints the indexes and the rows that the engine read:
//
//	eval "$(scripts/stack env)"; go run ./scripts/plans [-coupons N]
//
// It fails if a statement reads more than its page and 20 rows, if it found nothing to read, and if a statement of the API is
// missing in its table (probes.go says which those are).
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lapsehq/lapse/pkg/store"
)

const (
	slack = 20 // rows beyond the page
	limit = 20 * time.Minute
)

func main() {
	coupons := flag.Int("coupons", 1_000_000, "how many coupons to make, in fifty thousands")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeout(ctx, limit)
	err := run(ctx, *coupons)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, coupons int) (err error) {
	if coupons < step || coupons%step != 0 {
		return fmt.Errorf("coupons: must be a multiple of 50000, got %d", coupons)
	}
	db, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.drop()) }()
	started := time.Now()
	d, err := fill(ctx, db.SQL, coupons)
	if err != nil {
		return fmt.Errorf("making coupons: %w", err)
	}
	fmt.Fprintf(os.Stderr, "%d coupons made in %s\n", coupons, time.Since(started).Round(time.Second))
	conn, err := db.SQL.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the pool is closed after it
	var version string
	if err := conn.QueryRowContext(ctx, `SELECT VERSION()`).Scan(&version); err != nil {
		return fmt.Errorf("version: %w", err)
	}
	return report(ctx, conn, fmt.Sprintf("%s, %d coupons", version, coupons), d.probes())
}

// report runs every statement of the API and prints what it read.
func report(ctx context.Context, conn *sql.Conn, title string, table map[string][]probe) error {
	texts := make(map[string]string)
	var faults []string
	for _, st := range store.Statements() {
		texts[st.Name] = st.SQL
		if _, ok := table[st.Name]; !ok && ofAPI(st.Name) {
			faults = append(faults, st.Name+": a statement of the API without an entry in scripts/plans/probes.go")
		}
	}
	names := make([]string, 0, len(table))
	for name := range table {
		names = append(names, name)
	}
	slices.Sort(names)
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "%s\n\nSTATEMENT\tWITH\tINDEXES\tROWS READ\tPAGE\t\n", title)
	for _, name := range names {
		if texts[name] == "" {
			faults = append(faults, name+": there is no such statement any more")
			continue
		}
		for _, p := range table[name] {
			indexes, rows, err := p.measure(ctx, conn, texts[name])
			if err != nil {
				return fmt.Errorf("%s (%s): %w", name, p.with, err)
			}
			verdict := ""
			if p.page >= 10 && rows*10 < p.page {
				faults = append(faults, fmt.Sprintf("%s (%s): read %d rows of a page of %d: there was nothing to read", name, p.with, rows, p.page))
			}
			if rows > p.page+slack {
				verdict = "TOO MANY"
				faults = append(faults, fmt.Sprintf("%s (%s): read %d rows, at most %d + %d", name, p.with, rows, p.page, slack))
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\n", name, p.with, indexes, rows, p.page, verdict)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	if _, err := fmt.Print(out.String()); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%d faults:\n%s", len(faults), strings.Join(faults, "\n"))
	}
	return nil
}
