package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// maxBuckets bounds a forecast: each bucket is a few index ranges.
const maxBuckets = 2000

const settingDrain = "drain_rate"

// The index is named: over a long range the optimizer would rather read the whole table than a bounded piece of it.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtForecastTerms = define("forecast.terms", `SELECT template_id, revision, COUNT(*) FROM
		(SELECT template_id, revision FROM coupon FORCE INDEX (coupon_due)
		WHERE status = ? AND due_at >= ? AND due_at < ? ORDER BY due_at LIMIT ?) x GROUP BY template_id, revision`)
	stmtForecastPeak = define("forecast.peak", `SELECT due_at, COUNT(*) FROM
		(SELECT due_at FROM coupon FORCE INDEX (coupon_due)
		WHERE status = 1 AND due_at >= ? AND due_at < ? ORDER BY due_at LIMIT ?) x GROUP BY due_at ORDER BY COUNT(*) DESC, due_at LIMIT 1`)
	stmtForecastWithin = define("forecast.within", `SELECT COUNT(*) FROM
		(SELECT due_at FROM coupon FORCE INDEX (coupon_due)
		WHERE status = 1 AND due_at >= UTC_TIMESTAMP(3) AND due_at < UTC_TIMESTAMP(3) + INTERVAL ? SECOND ORDER BY due_at LIMIT ?) x`)
	stmtForecastSecond = define("forecast.second", `SELECT COUNT(*) FROM
		(SELECT due_at FROM coupon WHERE status = 1 AND due_at = ? LIMIT ?) x`)
	stmtDrainRead = define("forecast.drain", `SELECT value, updated_at FROM setting WHERE name = 'drain_rate'`)
)

// ErrForecast: the query cannot be answered as asked.
var ErrForecast = errors.New("forecast")

// Forecast counts what comes due when, bucket by bucket, with a bound on what each bucket and the whole may cost: q.Cap
// rows of the index a bucket and state, q.Budget in all. What was not counted for that is told. Only unused and locked
// coupons are counted; those without an end never come due.
func (s *Store) Forecast(ctx context.Context, q coupon.ForecastQuery) (coupon.Forecast, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return coupon.Forecast{}, err
	}
	if q.From.IsZero() {
		q.From = now
	}
	if err := forecastFault(q); err != nil {
		return coupon.Forecast{}, err
	}
	f := coupon.Forecast{Now: now}
	if f.Drain, err = s.DrainRate(ctx); err != nil {
		return f, err
	}
	left := q.Budget
	for at := q.From; at.Before(q.To); {
		end := at.Truncate(q.Bucket).Add(q.Bucket)
		if end.After(q.To) {
			end = q.To
		}
		b := coupon.ForecastBucket{Start: at, End: end, Skipped: left <= 0}
		if !b.Skipped {
			if err := s.forecastBucket(ctx, q, &b, &left); err != nil {
				return f, err
			}
		}
		f.Buckets = append(f.Buckets, b)
		at = end
	}
	f.Spread()
	return f, nil
}

func forecastFault(q coupon.ForecastQuery) error {
	switch n := q.To.Sub(q.From); {
	case q.Bucket < time.Second || q.Bucket%time.Second != 0:
		return fmt.Errorf("%w: bucket: must be whole seconds, got %s", ErrForecast, q.Bucket)
	case n <= 0:
		return fmt.Errorf("%w: to: must be after from, got %s and %s", ErrForecast, q.To.Format(time.RFC3339), q.From.Format(time.RFC3339))
	case n/q.Bucket >= maxBuckets:
		return fmt.Errorf("%w: at most %d buckets, got %d of %s", ErrForecast, maxBuckets, n/q.Bucket+1, q.Bucket)
	case q.Cap < 1 || q.Budget < 1:
		return fmt.Errorf("%w: cap and budget: must be above 0, got %d and %d", ErrForecast, q.Cap, q.Budget)
	}
	return nil
}

func (s *Store) forecastBucket(ctx context.Context, q coupon.ForecastQuery, b *coupon.ForecastBucket, left *int) error {
	b.Value = make(map[string]int64)
	for _, state := range []coupon.Status{coupon.Unused, coupon.Locked} {
		if *left <= 0 {
			b.Capped = true
			return nil
		}
		most := min(q.Cap, *left)
		read, counted, err := s.forecastTerms(ctx, q, b, state, most)
		if err != nil {
			return err
		}
		*left -= int(read)
		b.Capped = b.Capped || read == int64(most)
		if state == coupon.Locked {
			b.Locked = counted
			continue
		}
		b.Unused = counted
		if read == 0 {
			continue
		}
		// The same piece of the index again, and nothing but the index.
		if err := s.queryRow(ctx, s.sql, stmtForecastPeak, []any{&b.Peak.At, &b.Peak.Coupons}, b.Start, b.End, most); err != nil && !errors.Is(err, coupon.ErrNotFound) {
			return err
		}
	}
	return nil
}

// forecastTerms counts one state of a bucket by revision, which says what each is worth. read is how many rows that took,
// counted how many of them are the template's that was asked for.
func (s *Store) forecastTerms(ctx context.Context, q coupon.ForecastQuery, b *coupon.ForecastBucket, state coupon.Status, most int) (read, counted int64, err error) {
	type group struct {
		template uint64
		revision uint32
		n        int64
	}
	var groups []group
	err = s.query(ctx, s.sql, stmtForecastTerms, func(r *sql.Rows) error {
		var g group
		groups = append(groups, g)
		at := &groups[len(groups)-1]
		return r.Scan(&at.template, &at.revision, &at.n)
	}, uint8(state), b.Start, b.End, most)
	if err != nil {
		return 0, 0, err
	}
	for _, g := range groups {
		read += g.n
		if q.Template != 0 && g.template != q.Template {
			continue
		}
		counted += g.n
		terms, err := s.termsOf(ctx, s.sql, g.template, g.revision)
		if err != nil {
			return 0, 0, err
		}
		b.Value[terms.Currency] += terms.Value * g.n
	}
	return read, counted, nil
}

// DueWithin counts the unused coupons that come due within a time from now on, limit at most, by the index alone.
func (s *Store) DueWithin(ctx context.Context, within time.Duration, limit int) (n int64, err error) {
	err = s.queryRow(ctx, s.sql, stmtForecastWithin, []any{&n}, int64(within/time.Second), limit)
	return n, err
}

// drainRow is the drain rate as it is stored.
type drainRow struct {
	PerPod   float64 `json:"per_pod"`
	Measured bool    `json:"measured"`
}

// PutDrainRate keeps how fast one expirer drains. What is configured never takes the place of what was measured.
func (s *Store) PutDrainRate(ctx context.Context, perPod float64, measured bool) error {
	value, err := json.Marshal(drainRow{PerPod: perPod, Measured: measured})
	if err != nil {
		return fmt.Errorf("drain rate: %w", err)
	}
	if !measured {
		known, err := s.DrainRate(ctx)
		if err != nil || known.Measured {
			return err
		}
	}
	_, err = s.exec(ctx, s.sql, stmtMarkPut, settingDrain, string(value))
	return err
}

// DrainRate gives how fast the fleet drains: what one expirer last measured or was configured with, times the expirers
// that were heard of lately. Nothing stored: a zero rate, by which nothing is a peak.
func (s *Store) DrainRate(ctx context.Context) (coupon.DrainRate, error) {
	var rate coupon.DrainRate
	var value string
	switch err := s.queryRow(ctx, s.sql, stmtDrainRead, []any{&value, &rate.At}); {
	case errors.Is(err, coupon.ErrNotFound):
		return rate, nil
	case err != nil:
		return rate, err
	}
	var row drainRow
	if json.NewDecoder(strings.NewReader(value)).Decode(&row) != nil {
		return coupon.DrainRate{}, nil // of another release
	}
	rate.PerPod, rate.Measured = row.PerPod, row.Measured
	var err error
	rate.Pods, err = s.Expirers(ctx)
	return rate, err
}

// Expirers is how many expirers were heard of lately, at least 1.
func (s *Store) Expirers(ctx context.Context) (int, error) {
	reports, err := s.ClockReports(ctx)
	n := 0
	for _, r := range reports {
		if r.Role == "expirer" {
			n++
		}
	}
	return max(1, n), err
}
