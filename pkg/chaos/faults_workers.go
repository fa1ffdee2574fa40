package chaos

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
)

func kill(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	s.away(k.Target, true)
	if err := s.fleet().Kill(k.Target); err != nil {
		s.away(k.Target, false)
		return nil, "", err
	}
	return func(ctx context.Context) error { return s.back(ctx, k.Target) }, "", ctx.Err()
}

func term(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	s.away(k.Target, true)
	note := ""
	if err := s.fleet().StopOne(ctx, k.Target); err != nil {
		note = "did not end within its grace, and was killed"
		if s.fleet().Running(k.Target) {
			s.away(k.Target, false)
			return nil, "", err
		}
	}
	return func(ctx context.Context) error { return s.back(ctx, k.Target) }, note, nil
}

// logFull: whatever is written to /dev/full fails as on a full disk.
func logFull(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	return s.startedAs(ctx, k.Target, func(p rig.Program) rig.Program {
		p.Log = "/dev/full"
		return p
	})
}

// startedAs kills a worker and starts it in another way, until that is undone.
func (s *site) startedAs(ctx context.Context, worker string, change func(rig.Program) rig.Program) (func(context.Context) error, string, error) {
	normal, err := s.fleet().Program(worker)
	if err != nil {
		return nil, "", err
	}
	again := func(ctx context.Context) error {
		s.away(worker, true)
		if s.fleet().Running(worker) {
			if err := s.fleet().Kill(worker); err != nil {
				return err
			}
		}
		return s.back(ctx, worker)
	}
	s.fleet().Add(change(normal))
	undo := func(ctx context.Context) error {
		s.fleet().Add(normal)
		return again(ctx)
	}
	return undo, "", again(ctx)
}

func pause(_ context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	if err := s.fleet().Pause(k.Target); err != nil {
		return nil, "is not running", nil // another lane has it
	}
	return s.resume(k.Target), "", nil
}

// resume lets a worker go on; one that was killed meanwhile has nothing to resume.
func (s *site) resume(worker string) func(context.Context) error {
	return func(context.Context) error {
		if !s.fleet().Running(worker) {
			return nil
		}
		if err := s.fleet().Resume(worker); err != nil && s.fleet().Running(worker) {
			return err
		}
		return nil
	}
}

const (
	inTransaction = `SELECT p.HOST FROM information_schema.INNODB_TRX t JOIN information_schema.PROCESSLIST p ON p.ID = t.trx_mysql_thread_id
		WHERE t.trx_rows_locked + t.trx_rows_modified > 0`
	findWithin = 6 * time.Second
)

// pauseInTransaction looks for a transaction of the worker's that holds rows, and stops it there.
func pauseInTransaction(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	undo := s.resume(k.Target)
	limit, cancel := context.WithTimeout(ctx, findWithin)
	defer cancel()
	for tries := 0; limit.Err() == nil; {
		held, err := s.holdsRows(limit, k.Target)
		if err != nil || !held {
			if lifecycle.Sleep(limit, time.Millisecond) != nil {
				break
			}
			continue
		}
		if s.fleet().Pause(k.Target) != nil {
			return nil, "is not running", nil
		}
		tries++
		const sure = 60 * time.Millisecond // what was on its way to the server has been done
		_ = lifecycle.Sleep(ctx, sure)
		if held, err := s.holdsRows(ctx, k.Target); err == nil && held {
			return undo, fmt.Sprintf("stopped in a transaction, at the %d. try", tries), nil
		}
		if err := undo(ctx); err != nil {
			return nil, "", err
		}
	}
	if ctx.Err() != nil {
		return undo, "", ctx.Err()
	}
	if s.fleet().Pause(k.Target) != nil {
		return nil, "is not running", nil
	}
	return undo, "no transaction was found open: stopped anywhere", nil
}

// holdsRows reports whether a worker has a transaction open that holds rows.
func (s *site) holdsRows(ctx context.Context, worker string) (bool, error) {
	ports := s.proxies[worker+"/database"].ports()
	ask, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	rows, err := s.root.QueryContext(ask, inTransaction)
	if err != nil {
		return false, fmt.Errorf("looking for transactions: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	found := false
	for rows.Next() {
		var host sql.NullString
		if err := rows.Scan(&host); err != nil {
			return false, fmt.Errorf("looking for transactions: %w", err)
		}
		_, port, err := net.SplitHostPort(host.String)
		if err != nil {
			continue
		}
		if n, err := strconv.Atoi(port); err == nil && slices.Contains(ports, n) {
			found = true
		}
	}
	return found, rows.Err()
}

// consumerTimeout makes the broker impatient for new channels, lets the worker open some, and stops it with deliveries in hand.
func consumerTimeout(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	set := func(timeout, tick time.Duration) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ctlLimit)
		defer cancel()
		return s.stack.BrokerCtl(ctx, "eval", fmt.Sprintf("application:set_env(rabbit, consumer_timeout, %d), application:set_env(rabbit, channel_tick_interval, %d).",
			timeout.Milliseconds(), tick.Milliseconds()))
	}
	const usual, usualTick = 30 * time.Minute, time.Minute
	if err := set(3*time.Second, time.Second); err != nil {
		return nil, "the broker cannot be asked", nil // another lane has stopped it
	}
	undo := func(ctx context.Context) error {
		return errors.Join(s.resume(k.Target)(ctx), s.whileUp(ctx, func() error { return set(usual, usualTick) }))
	}
	s.proxies[k.Target+"/broker"].cut()
	_ = lifecycle.Sleep(ctx, 2*time.Second)
	if s.fleet().Pause(k.Target) != nil {
		return undo, "is not running", nil
	}
	return undo, "", nil
}
