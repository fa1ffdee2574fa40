package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// barePairs are the transactions of lock and redeem without anything around them: the same statements, arguments of the
// same size, on the same checked connections.
type barePairs struct {
	db                                          *sql.DB
	lock, read, move, history, outbox1, outbox2 string
}

func newBarePairs(b *testing.B, s *store.Store) barePairs {
	one := statement(b, "effects.outbox")
	_, row, _ := strings.Cut(one, "VALUES ")
	return barePairs{
		db: s.Pool(), lock: statement(b, "act.lock"), read: statement(b, "act.read"), move: statement(b, "act.move"),
		history: statement(b, "effects.history"), outbox1: one, outbox2: one + "," + row,
	}
}

func (p barePairs) tx(ctx context.Context, id uint64, order string, from, to coupon.Status) (err error) {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback()
		}
	}()
	var locked uint64
	if err := tx.QueryRowContext(ctx, p.lock, id).Scan(&locked); err != nil {
		return err
	}
	cells := make([]any, 22)
	dest := make([]any, len(cells))
	for i := range cells {
		dest[i] = &cells[i]
	}
	var version uint32
	var ends, now time.Time
	var until sql.NullTime
	var user []byte
	dest[4], dest[6], dest[8], dest[12], dest[21] = &user, &version, &ends, &until, &now
	if err := tx.QueryRowContext(ctx, p.read, []byte(order), id).Scan(dest...); err != nil {
		return err
	}
	was, is := "", any(until.Time)
	body := make([]byte, 450)
	for i := range body {
		body[i] = 'x'
	}
	lockUntil := now.Add(time.Minute).Truncate(time.Second)
	args := []any{uint8(to), version + 1, ends, ends, nil, nil, []byte(order), nil, nil, now, nil, nil}
	if to == coupon.Locked {
		args = []any{uint8(to), version + 1, ends, ends, now, lockUntil, []byte(order), "honour_lock", 1800, nil, nil, nil}
		is = nil
	} else {
		was = order
	}
	if _, err := tx.ExecContext(ctx, p.move, append(args, id, uint8(from), version, user, ends, []byte(was), is)...); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, p.history, id, version+1, uint8(from), uint8(to), "order", now, ends, ends, []byte(order), "bench", "", "", "", "",
		lockUntil, nil); err != nil {
		return err
	}
	event := []any{1, id % 16, id, []byte("12345:2:locked"), "coupon.locked", " ", nil, body, ""}
	if to == coupon.Locked {
		trigger := []any{0, id % 16, id, []byte("v12345.2"), "unlock", "x", lockUntil, body[:120], ""}
		_, err = tx.ExecContext(ctx, p.outbox2, append(trigger, event...)...)
	} else {
		_, err = tx.ExecContext(ctx, p.outbox1, event...)
	}
	if err != nil {
		return err
	}
	return tx.Commit()
}

// BenchmarkActPairs compares lock and redeem through Act with the bare transactions, in turns, on 32 connections.
// Compare the ratio: the rates are the machine's. Run with -benchtime 4000x.
func BenchmarkActPairs(b *testing.B) {
	d := testenv.NewDatabase(b)
	d.Config.MaxOpen = 32
	s := d.Store(b)
	const rounds = 4
	n := b.N/(2*rounds) + 1
	plantUnused(b, d, 1, 2*rounds*n+100, 360000)
	bare := newBarePairs(b, s)
	var next atomic.Uint64
	run := func(n int, pair func(id uint64) error) time.Duration {
		var left atomic.Int64
		left.Store(int64(n))
		start := time.Now()
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					if err := pair(next.Add(1)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	order := "order-2026-11-29-000001"
	barely := func(id uint64) error {
		if err := bare.tx(b.Context(), id, order, coupon.Unused, coupon.Locked); err != nil {
			return err
		}
		return bare.tx(b.Context(), id, order, coupon.Locked, coupon.Used)
	}
	acting := func(id uint64) error {
		for _, verb := range []coupon.Verb{coupon.VerbLock, coupon.VerbRedeem} {
			_, out, err := s.Act(b.Context(), ask(verb, order, id))
			if err != nil {
				return err
			}
			if out[0].Refused != "" {
				return fmt.Errorf("%s: %s", verb, out[0].Refused)
			}
		}
		return nil
	}
	run(50, barely)
	run(50, acting)
	b.ResetTimer()
	var of [2]time.Duration
	for range rounds {
		of[0] += run(n, barely)
		of[1] += run(n, acting)
	}
	b.StopTimer()
	pairs := float64(rounds * n)
	b.ReportMetric(pairs/of[0].Seconds(), "bare-pairs/s")
	b.ReportMetric(pairs/of[1].Seconds(), "act-pairs/s")
	b.ReportMetric(of[0].Seconds()/of[1].Seconds(), "ratio")
	b.ReportMetric(0, "ns/op")
	require.EqualValues(b, d.Int(b, `SELECT COUNT(*) FROM coupon WHERE status = 3 AND version = 3`), next.Load())
}
