package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Schema is a connection for migrating alone: it takes a database as it is, empty or behind, and has no verbs.
type Schema struct{ s *Store }

// OpenSchema connects and checks the server, as Open does, but neither migrates nor verifies.
func OpenSchema(ctx context.Context, c Config, log *zap.Logger) (*Schema, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("database config: %w", err)
	}
	// A step may take as long as migrating may: a key on a large table is made in one statement, which may first wait for readers of the table.
	c.ReadTimeout = max(c.ReadTimeout, c.MigrateLimit)
	primary := &primary{}
	pool := sql.OpenDB(connector{c, primary})
	pool.SetMaxOpenConns(c.MaxOpen)
	pool.SetConnMaxIdleTime(9 * time.Second) // below wait_timeout
	s := &Store{sql: pool, primary: primary, log: log, metrics: newMetrics(prometheus.NewRegistry(), newSlow(c.Slow, log, time.Now)), limit: c.TxLimit}
	if err := s.checkServer(ctx); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &Schema{s}, nil
}

// migrate brings the schema to this build's version, over connections of its own that wait for as long as a step may take.
func migrate(ctx context.Context, c Config, log *zap.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, c.MigrateLimit)
	defer cancel()
	m, err := OpenSchema(ctx, c, log)
	if err != nil {
		return err
	}
	return errors.Join(m.Up(ctx), m.Close())
}

// Close ends every connection.
func (m *Schema) Close() error { return m.s.Close() }

// Up brings the schema to this build's version. Safe to call from several processes at once.
func (m *Schema) Up(ctx context.Context) error { return m.s.MigrateUp(ctx) }

// DownTo takes the schema back to the version, 0 for an empty database.
func (m *Schema) DownTo(ctx context.Context, version int64) error {
	return m.s.MigrateDownTo(ctx, version)
}

// Versions gives the database's version and the one that this build knows.
func (m *Schema) Versions(ctx context.Context) (have, want int64, err error) {
	return m.s.SchemaVersion(ctx)
}

// Migration is one step of the schema.
type Migration struct {
	Version   int64
	Name      string
	AppliedAt time.Time // zero: not yet
}

// Migrations lists the steps that this build knows, in order.
func (m *Schema) Migrations(ctx context.Context) ([]Migration, error) {
	p, err := m.s.provider()
	if err != nil {
		return nil, err
	}
	status, err := p.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("schema status: %w", classify(err))
	}
	steps := make([]Migration, len(status))
	for i, st := range status {
		steps[i] = Migration{Version: st.Source.Version, Name: path.Base(st.Source.Path)}
		if st.State == goose.StateApplied {
			steps[i].AppliedAt = st.AppliedAt.UTC()
		}
	}
	return steps, nil
}
