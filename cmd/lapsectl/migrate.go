package main

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/store"
)

type migrateCommand struct {
	Up     migrateUp     `cmd:"" help:"Bring the schema to this build's version."`
	Status migrateStatus `cmd:"" help:"Show the schema's steps. Exit code 1 if some are missing."`
	Down   migrateDown   `cmd:"" help:"Take the schema back. It says first what is lost, and does it with --yes."`
}

type migrateUp struct{}

// Run migrates.
func (migrateUp) Run(ctx context.Context, s *system) error {
	return s.withSchema(ctx, func(ctx context.Context, m *store.Schema) error {
		before, _, err := m.Versions(ctx)
		if err != nil {
			return err
		}
		if err := m.Up(ctx); err != nil {
			return err
		}
		after, want, err := m.Versions(ctx)
		switch {
		case err != nil:
			return err
		case after > want:
			return s.print(fmt.Sprintf("schema: version %d, newer than this build's %d; nothing done\n", after, want))
		case after == before:
			return s.print(fmt.Sprintf("schema: version %d already\n", after))
		default:
			return s.print(fmt.Sprintf("schema: from version %d to %d\n", before, after))
		}
	})
}

type migrateStatus struct{}

// Run shows the steps.
func (migrateStatus) Run(ctx context.Context, s *system) error {
	return s.withSchema(ctx, func(ctx context.Context, m *store.Schema) error {
		steps, err := m.Migrations(ctx)
		if err != nil {
			return err
		}
		have, want, err := m.Versions(ctx)
		if err != nil {
			return err
		}
		t := table{{"VERSION", "NAME", "APPLIED"}}
		for _, step := range steps {
			applied := "not yet"
			if !step.AppliedAt.IsZero() {
				applied = step.AppliedAt.Format("2006-01-02T15:04:05Z")
			}
			t = append(t, []string{fmt.Sprint(step.Version), step.Name, applied})
		}
		if err := s.print(t.String()); err != nil {
			return err
		}
		if have < want {
			return s.miss("the schema is behind: version %d, this build needs %d; run lapsectl migrate up", have, want)
		}
		return nil
	})
}

type migrateDown struct {
	To  int64 `required:"" placeholder:"N" help:"The version to go back to; 0 empties the database."`
	Yes bool  `help:"Do it. Without, it is only said what would be lost."`
}

// Help says what it does.
func (c *migrateDown) Help() string {
	return `Lists what each step back takes away (tables, columns, rows) and how much is in it: of a column, how many rows hold something else than
its default. Whole tables are read for that. Without --yes nothing is changed. A step that the database would refuse for what it holds is named
with its reason, and then no step is taken. The binaries go back first: docs/upgrade.md.`
}

// Run says what is lost, and takes the schema back.
func (c *migrateDown) Run(ctx context.Context, s *system) error {
	return s.withSchema(ctx, func(ctx context.Context, m *store.Schema) error {
		have, want, err := m.Versions(ctx)
		switch {
		case err != nil:
			return err
		case c.To < 0 || c.To > have:
			return fmt.Errorf("--to: must be between 0 and the schema's version %d, got %d", have, c.To)
		case have > want:
			return fmt.Errorf("the schema has version %d, of which this build (version %d) knows no way back", have, want)
		case c.To == have:
			return s.print(fmt.Sprintf("schema: version %d already\n", have))
		}
		steps, err := m.StepsBack(ctx, c.To)
		if err != nil {
			return err
		}
		if err := s.print(stepsBack(steps)); err != nil {
			return err
		}
		for _, step := range steps {
			if step.Refused != "" {
				return fmt.Errorf("step %d back cannot be taken: %s Nothing was changed", step.Version, step.Refused)
			}
		}
		if !c.Yes {
			return s.print(fmt.Sprintf("nothing was changed; --yes takes the schema from version %d back to %d\n", have, c.To))
		}
		if err := m.DownTo(ctx, c.To); err != nil {
			return err
		}
		return s.print(fmt.Sprintf("schema: from version %d back to %d\n", have, c.To))
	})
}

func stepsBack(steps []store.StepBack) string {
	t := table{{"STEP BACK", "LOSES", "ROWS"}}
	for _, step := range steps {
		name := step.Name
		for _, l := range step.Losses {
			t = append(t, []string{name, l.String(), grouped(int(l.Rows))})
			name = ""
		}
		if len(step.Losses) == 0 {
			t = append(t, []string{name, "nothing", ""})
		}
	}
	return t.String()
}

func (s *system) withSchema(ctx context.Context, f func(context.Context, *store.Schema) error) error {
	cfg, err := s.settings()
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	m, err := store.OpenSchema(opening, cfg.Database, zap.NewNop())
	if err != nil {
		return fmt.Errorf("database %s at %s: %w", cfg.Database.Name, cfg.Database.Address, err)
	}
	limited, stop := context.WithTimeout(ctx, cfg.Database.MigrateLimit)
	defer stop()
	return errors.Join(f(limited, m), m.Close())
}
