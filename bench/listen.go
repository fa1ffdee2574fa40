package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ear hears the events of one exchange over a connection of its own. Its queue is transient and its deliveries are not acknowledged: what
// listens must not cost what is measured; that events are kept is what the durable queues beside it are for.
type ear struct {
	conn *amqp.Connection
	done chan struct{}

	mu     sync.Mutex
	first  uint64
	suffix string
	heard  []time.Duration // by coupon, from zero to its event; 0: none
	zero   time.Time
	n      int
	twice  int
	stray  int
	begun  time.Time // when the first was heard
	last   time.Time
	want   int           // so many are enough
	moved  chan struct{} // closed and renewed whenever something new was heard
}

// listen opens an ear.
func listen(url, exchange string) (*ear, error) {
	conn, err := amqp.DialConfig(url, amqp.Config{Heartbeat: 10 * time.Second, Properties: amqp.Table{"connection_name": "bench ear"}})
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	e := &ear{conn: conn, done: make(chan struct{}), moved: make(chan struct{})}
	deliveries, err := subscribe(conn, exchange)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening to %s: %w", exchange, err), conn.Close())
	}
	go func() {
		defer close(e.done)
		for d := range deliveries {
			e.hear(d.MessageId)
		}
	}()
	return e, nil
}

func subscribe(conn *amqp.Connection, exchange string) (<-chan amqp.Delivery, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	q, err := ch.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		return nil, err
	}
	if err := ch.QueueBind(q.Name, "#", exchange, false, nil); err != nil {
		return nil, err
	}
	return ch.Consume(q.Name, "", true, true, false, false, nil)
}

func (e *ear) close() error {
	err := e.conn.Close()
	<-e.done
	if err != nil && !errors.Is(err, amqp.ErrClosed) {
		return fmt.Errorf("listening: %w", err)
	}
	return nil
}

// expect forgets what was heard and listens to the expired events of n coupons from first on.
func (e *ear) expect(first uint64, n int) { e.expectAmong(first, n, n, "expired") }

// expectAmong is expect for events whose ids end in what, of n coupons whose ids are not known but to lie among so many.
func (e *ear) expectAmong(first uint64, among, n int, what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.first, e.suffix, e.heard, e.zero = first, ":"+what, make([]time.Duration, among), time.Now()
	e.n, e.twice, e.stray, e.last, e.begun, e.want = 0, 0, 0, time.Time{}, time.Time{}, n
}

// hear takes an event by its message id, <coupon>:<version>:<what>.
func (e *ear) hear(id string) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.suffix == "" || !strings.HasSuffix(id, e.suffix) {
		return
	}
	text, _, _ := strings.Cut(id, ":")
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil || number < e.first || number >= e.first+uint64(len(e.heard)) {
		e.stray++
		return
	}
	at := &e.heard[number-e.first]
	if *at != 0 {
		e.twice++
		return
	}
	*at = max(now.Sub(e.zero), 1)
	if e.n == 0 {
		e.begun = now
	}
	e.n, e.last = e.n+1, now
	if e.n == e.want || e.n%256 == 0 {
		close(e.moved)
		e.moved = make(chan struct{})
	}
}

func (e *ear) state() (n int, moved <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.n, e.moved
}

// sum is how many coupons were heard of, how often again, and when last.
func (e *ear) sum() (n, twice int, last time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.n, e.twice, e.last
}

// wait until every coupon's event was heard, or nothing was for as long as patience after the instant from.
func (e *ear) wait(ctx context.Context, from time.Time, died func() error) error {
	timer := time.NewTicker(500 * time.Millisecond)
	defer timer.Stop()
	last, since := -1, time.Now()
	for {
		n, moved := e.state()
		if n >= e.want {
			return nil
		}
		if n > last || time.Now().Before(from) {
			last, since = n, time.Now()
		} else if time.Since(since) > patience {
			return nil // what is missing is counted as lost
		}
		if err := died(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-moved:
		case <-timer.C:
		}
	}
}

// harvest is what was heard of a crop.
type harvest struct {
	n, lost, twice, early int
	took                  time.Duration   // from the first end to the last event
	late                  []time.Duration // of every event, after its coupon's end; sorted
}

// harvest of a crop; ahead is the database's clock before ours.
func (e *ear) harvest(c crop, ahead time.Duration) harvest {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := harvest{n: e.n, lost: c.n - e.n, twice: e.twice, late: make([]time.Duration, 0, e.n)}
	for i, at := range e.heard {
		if at == 0 {
			continue
		}
		late := e.zero.Add(at).Add(ahead).Sub(c.end(i))
		if late < 0 {
			h.early++
		}
		h.late = append(h.late, late)
	}
	slices.Sort(h.late)
	if e.n > 0 {
		h.took = e.last.Add(ahead).Sub(c.due)
	}
	return h
}

// percentile of sorted durations, in milliseconds.
func percentile(ds []time.Duration, permille int) float64 {
	if len(ds) == 0 {
		return 0
	}
	i := max(0, (len(ds)*permille+999)/1000-1)
	return float64(ds[i].Microseconds()) / 1000
}
