package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// diffSaid is what lapsectl import diff says.
type diffSaid struct {
	Rows  int            `json:"rows"`
	Kinds map[string]int `json:"kinds"`
}

const (
	observeLead  = 40 * time.Second // until the first of what is observed ends
	observePace  = 100              // ends a second
	oldJobTardy  = 10 * time.Minute // how far the ends are put back, so that the old job is late
	decidedLimit = 90 * time.Second // the sweep's grace and a round
)

// observe lets coupons end that are only observed, beside an old job that does not run, then does; and then makes them real.
func (w *adoption) observe(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) (err error) {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		first := s.soon(observeLead)
		w.cfg.View.Step(fmt.Sprintf("%d rows as yudao has them", w.adopt.observed))
		theirs, err := w.foreign(ctx, yudao, w.adopt.observed, first, observePace)
		if theirs != nil {
			defer func() { err = errors.Join(err, theirs.drop(w.cfg)) }()
		}
		if err != nil {
			return err
		}
		args, env, err := theirs.arguments(w.cfg, template)
		if err != nil {
			return err
		}
		run := append([]string{"import", "--json", "--reason=looking first", "--observe"}, args...)
		done, err := w.importOnce(ctx, s, env, run...)
		if err != nil {
			return err
		}
		want(t, "new", done.of("new"), Equal, theirs.rows)
		soon := theirs.rows / 2
		if err := w.decided(ctx, t, s, soon); err != nil {
			return err
		}
		if err := w.compared(ctx, t, s, theirs, env, args, soon); err != nil {
			return err
		}
		return w.cutOver(ctx, t, s, env, run, soon)
	})
}

// decided waits until the end of every coupon has been decided upon, and holds that nothing else has happened.
func (w *adoption) decided(ctx context.Context, t *tally, s *shop, soon int) error {
	var last time.Time
	if err := s.DB().QueryRowContext(ctx, "SELECT MAX(expires_at) FROM coupon WHERE expires_at < '2035-01-01'").Scan(&last); err != nil {
		return fmt.Errorf("reading the last end: %w", err)
	}
	w.cfg.View.Step(fmt.Sprintf("%d ends to be decided upon within %s", soon, last.Sub(s.Now()).Round(time.Second)))
	limited, cancel := context.WithTimeout(ctx, max(0, last.Sub(s.Now()))+decidedLimit)
	defer cancel()
	const decisions = "SELECT COUNT(*) FROM observation"
	err := until(limited, func() (bool, error) {
		n, err := countIn(limited, s.DB(), decisions)
		return n >= soon, err
	})
	if err != nil && limited.Err() == nil {
		return err
	}
	for _, q := range []struct {
		name, query string
		op          Op
		bound       int
	}{
		{"decided", decisions, Equal, soon},
		{"decided_early", "SELECT COUNT(*) FROM observation o JOIN coupon c ON c.id = o.coupon_id WHERE o.decided_at < c.expires_at", Equal, 0},
		{"decided_late_by_1s", "SELECT COUNT(*) FROM observation WHERE decided_at > due_at + INTERVAL 1 SECOND", AtMost, soon / 100},
		{"moved", "SELECT COUNT(*) FROM coupon_history WHERE cause <> 'import'", Equal, 0},
		{"notices", "SELECT COUNT(*) FROM notice_item", Equal, 0},
	} {
		n, err := countIn(ctx, s.DB(), q.query)
		if err != nil {
			return err
		}
		want(t, q.name, n, q.op, q.bound)
	}
	if err := errors.Join(drained(ctx, s.DB()), lifecycle.Sleep(ctx, lateEvents)); err != nil {
		return err
	}
	want(t, "events", s.ears.len(), Equal, 0)
	return nil
}

// compared holds what was observed against an old job that is late, and against one that has done its work. Nobody waits for an hour: the
// ends are put back on both sides.
func (w *adoption) compared(ctx context.Context, t *tally, s *shop, theirs *foreign, env, args []string, soon int) error {
	back := fmt.Sprintf("INTERVAL %d SECOND", int(oldJobTardy.Seconds()))
	for _, statement := range []string{
		"UPDATE coupon SET expires_at = expires_at - " + back + " WHERE status = 1 AND expires_at < '2035-01-01'",
		"UPDATE coupon_history h JOIN coupon c ON c.id = h.coupon_id SET h.expires_at = h.expires_at - " + back + ", h.due_at = h.due_at - " + back + " WHERE c.status = 1 AND h.expires_at < '2035-01-01'",
	} {
		if _, err := s.DB().ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("putting ends back: %w", err)
		}
	}
	if err := w.there(ctx, theirs, "UPDATE promotion_coupon SET valid_end_time = valid_end_time - "+back+" WHERE status = 1 AND valid_end_time < '2035-01-01'"); err != nil {
		return err
	}
	diff := append([]string{"import", "diff", "--json"}, args...)
	look := func() (d diffSaid, code int, err error) {
		said, err := w.lapsectl(ctx, s, env, diff...)
		if err != nil {
			return d, 0, err
		}
		return d, said.code, said.json(&d)
	}
	d, code, err := look()
	if err != nil {
		return err
	}
	want(t, "late_job_exit", code, Equal, 1)
	want(t, "late_job_not_expired", d.Kinds["not_expired"], Equal, soon)
	want(t, "late_job_agrees", d.Kinds["agrees"], Equal, theirs.rows-soon)
	// The old job runs, but for a tenth; one coupon was used when it had ended, and one expired though it has not.
	if err := w.there(ctx, theirs,
		"UPDATE promotion_coupon SET status = 3, update_time = valid_end_time + INTERVAL 90 SECOND WHERE status = 1 AND valid_end_time < '2035-01-01' AND id % 10 <> 1",
		"UPDATE promotion_coupon SET status = 2, use_order_id = 7, use_time = valid_end_time + INTERVAL 60 SECOND WHERE status = 1 AND valid_end_time < '2035-01-01' LIMIT 1",
		"UPDATE promotion_coupon SET status = 3, update_time = '2026-02-01 00:10:00' WHERE status = 1 AND valid_end_time > '2035-01-01' LIMIT 1"); err != nil {
		return err
	}
	if d, code, err = look(); err != nil {
		return err
	}
	want(t, "job_exit", code, Equal, 1)
	want(t, "job_used_after_end", d.Kinds["used_after_end"], Equal, 1)
	want(t, "job_expired_early", d.Kinds["expired_early"], Equal, 1)
	want(t, "job_not_expired", d.Kinds["not_expired"], Equal, soon/5-1)
	return nil
}

// there runs statements in the other shop's database.
func (w *adoption) there(ctx context.Context, theirs *foreign, statements ...string) error {
	return w.cfg.asRoot(func(db *sql.DB) error {
		db.SetMaxOpenConns(1)
		for _, statement := range append([]string{"USE " + theirs.name}, statements...) {
			if _, err := db.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("the other shop's table: %w", err)
			}
		}
		return nil
	})
}

// cutOver imports what has changed there, and makes it all real: what the old job left over expires.
func (w *adoption) cutOver(ctx context.Context, t *tally, s *shop, env, run []string, soon int) error {
	last, err := w.importOnce(ctx, s, env, run...)
	if err != nil {
		return err
	}
	want(t, "last_updated", last.of("updated"), AtLeast, soon*4/5)
	if _, err := w.lapsectl(ctx, s, nil, "import", "cut-over", "yudao", "--reason=the old job is stopped"); err != nil {
		return err
	}
	left := soon/5 - 1
	limited, cancel := context.WithTimeout(ctx, importedLimit)
	defer cancel()
	const over = "SELECT COUNT(*) FROM coupon_history WHERE to_status = 4 AND cause <> 'import'"
	err = until(limited, func() (bool, error) {
		n, err := countIn(limited, s.DB(), over)
		return n >= left, err
	})
	if err != nil && limited.Err() == nil {
		return err
	}
	n, err := countIn(ctx, s.DB(), over)
	if err != nil {
		return err
	}
	want(t, "expired_after_cut_over", n, Equal, left)
	if err := errors.Join(drained(ctx, s.DB()), lifecycle.Sleep(ctx, lateEvents)); err != nil {
		return err
	}
	want(t, "expired_events", s.ears.of("expired"), Equal, left)
	n, err = countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE observed <> 0")
	if err != nil {
		return err
	}
	want(t, "still_observed", n, Equal, 0)
	b, code, err := w.books(ctx, s, "reconcile", "--json")
	if err != nil {
		return err
	}
	want(t, "reconcile_exit", code, Equal, 0)
	want(t, "reconcile_findings", b.total(), Equal, 0)
	return nil
}
