package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/pulse"
)

const txTries = 6

// txn is a transaction, with what its commit will tell others.
type txn struct {
	*sql.Tx
	moves  map[move]int   // transitions that it recorded
	remind map[string]int // reminders that it told of, by offset; nil: none
	wrote  bool           // rows of the outbox
	change bool           // it changed something; known only where crash.Enabled
}

// tx runs fn in a transaction named for errors and metrics. It retries deadlocks and lock waits a few times, so fn
// must not change anything outside the transaction before it returns nil. After the commit transitions are counted, and
// rows that fn wrote to the outbox wake the relay.
func (s *Store) tx(ctx context.Context, name string, fn func(ctx context.Context, tx *txn) error) error {
	for try := 1; ; try++ {
		err := s.once(ctx, name, fn)
		if err == nil {
			return nil
		}
		if !errors.Is(err, coupon.ErrContention) || try == txTries {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.metrics.retries.Inc()
		pause := time.NewTimer(time.Duration(1+rand.IntN(10*try)) * time.Millisecond)
		select {
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("%s: %w", name, errors.Join(context.Cause(ctx), err))
		case <-pause.C:
		}
	}
}

func (s *Store) once(ctx context.Context, name string, fn func(ctx context.Context, tx *txn) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	began := time.Now()
	begun, err := s.sql.BeginTx(ctx, nil)
	err = classify(err)
	s.took(ctx, pulse.Statement, began, err)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	tx := &txn{Tx: begun, moves: make(map[move]int)}
	defer func() {
		if err == nil {
			return
		}
		if rerr := tx.Rollback(); rerr != nil && !errors.Is(rerr, sql.ErrTxDone) {
			err = fmt.Errorf("%w (rollback: %w)", err, rerr)
		}
	}()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	if crash.Enabled && !tx.change {
		name = "" // no commit point
	}
	crash.Before(crash.Commit, name)
	began = time.Now()
	err = classify(tx.Commit())
	s.primary.note(err)
	s.took(ctx, pulse.Commit, began, err)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	crash.After(crash.Commit, name)
	s.metrics.moved(tx.moves)
	s.metrics.reminded(tx.remind)
	if tx.wrote {
		s.wake.signal()
	}
	return nil
}
