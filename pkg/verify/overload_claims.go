package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	calmCallers  = 48
	crowdCallers = 2000
)

// caller is a client that takes each answer as it comes: nothing is tried again.
func (s *shop) caller() (*client.Client, error) {
	return client.New(client.Config{
		URL: s.url, Token: s.secret, Actor: "verify", Attempts: 1, Timeout: apiTimeout,
		Transport: &http.Transport{MaxConnsPerHost: crowdCallers, MaxIdleConnsPerHost: crowdCallers, MaxIdleConns: crowdCallers, IdleConnTimeout: time.Minute},
	})
}

// claiming says how many claim one coupon each, and how often.
type claiming struct {
	name    string // of the grant keys
	over    time.Duration
	callers int     // at the same time
	rate    float64 // claims a second; 0: as fast as they are answered
}

// turnout is what became of claims.
type turnout struct {
	ok      int
	refused int // as too many: 429 and 503
	bare    int // of these, without saying when to come again
	failed  int // in any other way
	slowest time.Duration
}

func (a turnout) all() int { return a.ok + a.refused + a.failed }

func (a *turnout) count(err error, took time.Duration) {
	a.slowest = max(a.slowest, took)
	var e *client.Error
	switch {
	case err == nil:
		a.ok++
	case errors.As(err, &e) && (e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable):
		a.refused++
		if e.RetryAfter <= 0 {
			a.bare++
		}
	default:
		a.failed++
	}
}

// claim lets callers claim until the time is over; all of them are answered when it returns.
func (s *shop) claim(ctx context.Context, api *client.Client, template string, c claiming) turnout {
	var mu sync.Mutex
	var out turnout
	var next atomic.Int64
	var callers sync.WaitGroup
	began := time.Now()
	for range c.callers {
		callers.Go(func() {
			for ctx.Err() == nil && time.Since(began) < c.over {
				i := next.Add(1)
				if c.rate > 0 && lifecycle.Sleep(ctx, time.Until(began.Add(time.Duration(float64(i)/c.rate*float64(time.Second))))) != nil {
					return
				}
				asked := time.Now()
				_, err := api.Grant(ctx, client.Grant{GrantKey: claimKey(c.name, i), TemplateID: template, UserID: userOf(int(i % manyUsers))})
				took := time.Since(asked)
				if ctx.Err() != nil {
					return
				}
				mu.Lock()
				out.count(err, took)
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	return out
}

// backlog is the most that waited at a time.
type backlog struct {
	intake           int // messages with grants
	rows             int // of the outbox
	triggers, events int // age of the oldest one in the outbox, in milliseconds
}

const oldestQuery = `SELECT o.lane, TIMESTAMPDIFF(MICROSECOND, MIN(o.created_at), UTC_TIMESTAMP(3)) DIV 1000
	FROM (SELECT lane, part, MIN(id) AS id FROM outbox GROUP BY lane, part) f JOIN outbox o ON o.lane = f.lane AND o.part = f.part AND o.id = f.id
	GROUP BY o.lane`

// watch looks every second, until ctx ends.
func (b *backlog) watch(ctx context.Context, s *shop) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	for {
		if lifecycle.Sleep(ctx, overloadSample) != nil {
			return nil
		}
		queue := s.Ladder().Issuance()
		depths, err := client.Depths(ctx, []string{queue})
		if err == nil {
			b.intake = max(b.intake, depths[queue])
			err = b.outbox(ctx, s)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
}

func (b *backlog) outbox(ctx context.Context, s *shop) error {
	rows, err := countIn(ctx, s.DB(), outboxQuery)
	if err != nil {
		return err
	}
	b.rows = max(b.rows, rows)
	oldest, err := oldestOf(ctx, s.DB())
	b.triggers, b.events = max(b.triggers, oldest[0]), max(b.events, oldest[1])
	return err
}

// oldestOf is the age of the oldest row in each lane of the outbox, in milliseconds.
func oldestOf(ctx context.Context, db *sql.DB) (oldest [2]int, err error) {
	rows, err := db.QueryContext(ctx, oldestQuery)
	if err != nil {
		return oldest, fmt.Errorf("reading the outbox: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var lane, age int
		if err := rows.Scan(&lane, &age); err != nil {
			return oldest, fmt.Errorf("reading the outbox: %w", err)
		}
		if lane >= 0 && lane < len(oldest) {
			oldest[lane] = age
		}
	}
	return oldest, rows.Err()
}
