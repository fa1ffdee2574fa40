package store

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// StepBack is one step of the schema that is to be taken back, and what goes with it.
type StepBack struct {
	Migration
	Losses []Loss
	// Refused says why the database would refuse the step, in the words of its file; empty: it would not.
	Refused string
}

// Loss is something that a step back takes away: a table, a column, or rows that the schema before has no place for.
type Loss struct {
	Table  string
	Column string // empty: the whole table, or rows of it
	Kept   bool   // the table stays, and loses rows or a column
	Rows   int64  // how many go; of a column: how many hold something else than its default
}

// String names it.
func (l Loss) String() string {
	switch {
	case l.Column != "":
		return "column " + l.Table + "." + l.Column
	case l.Kept:
		return "rows of " + l.Table
	default:
		return "table " + l.Table
	}
}

// The forms that a statement of a way back may have. What else there is would be lost without a word.
var (
	downSection = regexp.MustCompile(`(?m)^-- \+goose Down\s*$`)
	downDrop    = regexp.MustCompile(`^DROP TABLE (\w+)$`)
	downDelete  = regexp.MustCompile(`^DELETE (?:\w+ )?(FROM (\w+)\b.*)$`)
	downAlter   = regexp.MustCompile(`^ALTER TABLE (\w+) (.+)$`)
	downColumn  = regexp.MustCompile(`^DROP COLUMN (\w+)$`)
	downKey     = regexp.MustCompile(`^(?:DROP KEY \w+|ADD (?:UNIQUE )?KEY \w+ \([\w, ]+\))$`)
	downGuard   = regexp.MustCompile(`^INSERT INTO \w+ \([\w, ]+\) (SELECT NULL, .+)$`)
	space       = regexp.MustCompile(`\s+`)
)

// StepsBack lists what MigrateDownTo(version) would do, the newest step first, and counts what each step would take away. It changes nothing;
// what it reads is whole tables.
func (m *Schema) StepsBack(ctx context.Context, version int64) ([]StepBack, error) {
	steps, err := m.Migrations(ctx)
	if err != nil {
		return nil, err
	}
	files, err := Migrations()
	if err != nil {
		return nil, err
	}
	var back []StepBack
	for i := len(steps) - 1; i >= 0 && steps[i].Version > version; i-- {
		if steps[i].AppliedAt.IsZero() {
			continue
		}
		text, err := fs.ReadFile(files, path.Base(steps[i].Name))
		if err != nil {
			return nil, fmt.Errorf("migration %d: %w", steps[i].Version, err)
		}
		b := StepBack{Migration: steps[i]}
		for _, st := range downStatements(string(text)) {
			if err := m.lose(ctx, &b, st); err != nil {
				return nil, fmt.Errorf("migration %d: %w", steps[i].Version, err)
			}
		}
		back = append(back, b)
	}
	return back, nil
}

// downStatement is a statement of a way back, on one line, and the comment before it.
type downStatement struct{ text, remark string }

func downStatements(file string) (out []downStatement) {
	at := downSection.FindStringIndex(file)
	if at == nil {
		return nil
	}
	var text, remark []string
	for line := range strings.Lines(file[at[1]:]) {
		line = strings.TrimSpace(line)
		if said, ok := strings.CutPrefix(line, "--"); ok {
			remark = append(remark, strings.TrimSpace(said))
			continue
		}
		end, over := strings.CutSuffix(line, ";")
		text = append(text, end)
		if over {
			out = append(out, downStatement{strings.TrimSpace(space.ReplaceAllString(strings.Join(text, " "), " ")), strings.Join(remark, " ")})
			text, remark = nil, nil
		}
	}
	return out
}

// lose adds what one statement takes away.
func (m *Schema) lose(ctx context.Context, b *StepBack, st downStatement) error {
	if p := downDrop.FindStringSubmatch(st.text); p != nil {
		n, err := m.count(ctx, "SELECT COUNT(*) FROM "+p[1])
		b.Losses = append(b.Losses, Loss{Table: p[1], Rows: n})
		return err
	}
	if p := downDelete.FindStringSubmatch(st.text); p != nil {
		n, err := m.count(ctx, "SELECT COUNT(*) "+p[1])
		b.Losses = append(b.Losses, Loss{Table: p[2], Kept: true, Rows: n})
		return err
	}
	if p := downGuard.FindStringSubmatch(st.text); p != nil {
		rows, err := m.s.sql.QueryContext(ctx, p[1])
		if err != nil {
			return fmt.Errorf("asking whether it is refused: %w", classify(err))
		}
		defer rows.Close() //nolint:errcheck // Err is what counts
		if rows.Next() {
			b.Refused = st.remark
		}
		return rows.Err()
	}
	if p := downAlter.FindStringSubmatch(st.text); p != nil {
		return m.loseColumns(ctx, b, p[1], p[2])
	}
	return fmt.Errorf("it is not known what this takes away: %s", st.text)
}

func (m *Schema) loseColumns(ctx context.Context, b *StepBack, table, actions string) error {
	for _, action := range splitActions(actions) {
		p := downColumn.FindStringSubmatch(action)
		if p == nil {
			if !downKey.MatchString(action) {
				return fmt.Errorf("it is not known what this takes away: ALTER TABLE %s %s", table, action)
			}
			continue
		}
		n, err := m.count(ctx, fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE NOT (%s <=> DEFAULT(%s))", table, p[1], p[1]))
		if err != nil {
			return err
		}
		b.Losses = append(b.Losses, Loss{Table: table, Column: p[1], Kept: true, Rows: n})
	}
	return nil
}

// splitActions splits at the commas that are in no parentheses.
func splitActions(list string) (actions []string) {
	depth, from := 0, 0
	for i, r := range list {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth == 0:
			actions, from = append(actions, strings.TrimSpace(list[from:i])), i+1
		}
	}
	return append(actions, strings.TrimSpace(list[from:]))
}

func (m *Schema) count(ctx context.Context, query string) (n int64, err error) {
	if err := m.s.sql.QueryRowContext(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting what is lost: %w", classify(err))
	}
	return n, nil
}
