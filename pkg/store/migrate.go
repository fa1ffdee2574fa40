package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migrations gives the embedded SQL files, for the grammar check.
func Migrations() (fs.FS, error) {
	sub, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return sub, nil
}

func (s *Store) provider() (*goose.Provider, error) {
	files, err := Migrations()
	if err != nil {
		return nil, err
	}
	// A lease row keeps workers that start together from migrating at once; a dead one's lease runs out.
	locker, err := lock.NewMySQLTableLocker(lock.WithTableLockTimeout(time.Second, 120))
	if err != nil {
		return nil, fmt.Errorf("migration lock: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectMySQL, s.sql, files, goose.WithLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return p, nil
}

// MigrateUp brings the schema to this build's version. Safe to call from several processes at once.
func (s *Store) MigrateUp(ctx context.Context) error {
	p, err := s.provider()
	if err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate up: %w", classify(err))
	}
	return nil
}

// MigrateDownTo takes the schema back to the version, 0 for an empty database.
func (s *Store) MigrateDownTo(ctx context.Context, version int64) error {
	p, err := s.provider()
	if err != nil {
		return err
	}
	if _, err := p.DownTo(ctx, version); err != nil {
		return fmt.Errorf("migrate down to %d: %w", version, classify(err))
	}
	return nil
}

// SchemaVersion gives the database's version and the one that this build knows.
func (s *Store) SchemaVersion(ctx context.Context) (have, want int64, err error) {
	p, err := s.provider()
	if err != nil {
		return 0, 0, err
	}
	have, want, err = p.GetVersions(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("schema version: %w", classify(err))
	}
	return have, want, nil
}

// ErrSchema: the database's schema is older than this build needs.
var ErrSchema = errors.New("schema is behind")

// VerifySchema refuses a schema older than this build; a newer one is accepted, since during a deploy old and new
// versions run side by side.
func (s *Store) VerifySchema(ctx context.Context) error {
	have, want, err := s.SchemaVersion(ctx)
	if err != nil {
		return err
	}
	if have < want {
		return fmt.Errorf("%w: version %d, this build needs %d; run `lapsectl migrate up`", ErrSchema, have, want)
	}
	return nil
}
