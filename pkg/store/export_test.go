package store

import (
	"context"
	"database/sql"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Pool gives the checked connections, to look at their sessions.
func (s *Store) Pool() *sql.DB { return s.sql }

// Tx is the transaction helper.
func (s *Store) Tx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.tx(ctx, "test", func(ctx context.Context, tx *txn) error { return classify(fn(ctx, tx.Tx)) })
}

// IssueStepped issues on a connection whose ids go in steps, as on a node of a cluster.
func (s *Store) IssueStepped(ctx context.Context, step int, grants []coupon.Grant) ([]coupon.Granted, error) {
	is := &issue{answers: make([]coupon.Granted, len(grants))}
	for i := range grants {
		is.asks = append(is.asks, newAsk(grants[i]))
	}
	err := s.tx(ctx, "test", func(ctx context.Context, tx *txn) error {
		if _, err := tx.ExecContext(ctx, "SET SESSION auto_increment_increment = ?", step); err != nil {
			return err
		}
		err := s.issueIn(ctx, tx, is)
		if _, rerr := tx.ExecContext(ctx, "SET SESSION auto_increment_increment = 1"); rerr != nil {
			return rerr
		}
		return err
	})
	return is.answers, err
}

// Slow is the watch over slow statements.
type Slow struct{ w *slow }

// NewSlow makes one.
func NewSlow(limit time.Duration, log *zap.Logger, now func() time.Time) Slow {
	return Slow{newSlow(limit, log, now)}
}

// Note notes a run.
func (s Slow) Note(name string, took time.Duration, rows int64, err error) {
	s.w.note(name, took, rows, err)
}

// UpTo brings the schema to a version.
func (m *Schema) UpTo(ctx context.Context, version int64) error {
	p, err := m.s.provider()
	if err == nil {
		_, err = p.UpTo(ctx, version)
	}
	return err
}

// Loses says whether it is known what a statement of a way back takes away.
func (m *Schema) Loses(ctx context.Context, statement string) error {
	return m.lose(ctx, &StepBack{}, downStatement{text: statement})
}
