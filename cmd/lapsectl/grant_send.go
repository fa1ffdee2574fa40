package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
)

const (
	eventRows  = 500 // grants of one event at most
	group      = 8   // events sent together
	patience   = 60 * time.Second
	readyLimit = 15 * time.Second
	noteEvery  = time.Second // how often it is noted how far it came
	retryPause = 500 * time.Millisecond
)

// rows gives rows until io.EOF.
type rows interface{ Read() (grantRow, error) }

// chunk is what one event is made of, and the faults of the rows between.
type chunk struct {
	first  int64 // row
	rows   int64
	grants []coupon.Grant
	faults [][]fault
}

// granter sends rows in order: a chunk counts when its event is confirmed and its faults are written.
type granter struct {
	s         *system
	in        rows
	publisher *broker.Publisher
	codec     *event.Codec
	exchange  string
	limiter   *rate.Limiter // nil: as fast as it goes
	size      int           // rows of a chunk
	rejects   *rejects
	state     grantState
	stateFile string // empty: nothing is noted
	progress  *grantProgress
	noted     time.Time
	read      int64
}

// intake is the part of the topology that grants need.
func intake(l *ladder.Ladder) ladder.Plan { return part(l, l.Issuance(), l.ParkExchange(), l.Parked()) }

// part is what of the topology has one of the names, and the bindings between.
func part(l *ladder.Ladder, names ...string) ladder.Plan {
	all := l.Plan()
	var p ladder.Plan
	for _, e := range all.Exchanges {
		if slices.Contains(names, e.Name) {
			p.Exchanges = append(p.Exchanges, e)
		}
	}
	for _, q := range all.Queues {
		if slices.Contains(names, q.Name) {
			p.Queues = append(p.Queues, q)
		}
	}
	for _, b := range all.Bindings {
		if slices.Contains(names, b.Source) && slices.Contains(names, b.Destination) {
			p.Bindings = append(p.Bindings, b)
		}
	}
	return p
}

// run sends everything. However it ends, the state says how far it came.
func (g *granter) run(ctx context.Context) error {
	err := g.skip(ctx)
	for err == nil {
		var chunks []chunk
		chunks, err = g.next()
		if len(chunks) == 0 {
			break
		}
		end := err
		if err = g.send(ctx, chunks); err == nil {
			err = g.settle(chunks)
		}
		if err == nil {
			err = end
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, g.note(true))
}

// skip passes over what an earlier run has dealt with; made keys go on counting.
func (g *granter) skip(ctx context.Context) error {
	for g.read < g.state.Rows {
		if _, err := g.in.Read(); err != nil {
			return fmt.Errorf("passing over the first %d rows: %w", g.state.Rows, err)
		}
		g.read++
		if ctx.Err() != nil {
			return g.interrupted(ctx)
		}
	}
	return nil
}

// next gathers up to a group of chunks; io.EOF with the last ones.
func (g *granter) next() ([]chunk, error) {
	events := group
	if g.limiter != nil {
		events = 1
	}
	var chunks []chunk
	for range events {
		c := chunk{first: g.read + 1}
		for int(c.rows) < g.size {
			row, err := g.in.Read()
			if err != nil {
				if c.rows > 0 {
					chunks = append(chunks, c)
				}
				return chunks, err //nolint:wrapcheck // names the line
			}
			g.read++
			c.rows++
			if len(row.faults) > 0 {
				c.faults = append(c.faults, row.faults)
			} else {
				c.grants = append(c.grants, row.grant)
			}
		}
		chunks = append(chunks, c)
	}
	return chunks, nil
}

// send publishes the chunks' events until all are confirmed.
func (g *granter) send(ctx context.Context, chunks []chunk) error {
	var msgs []broker.Message
	for _, c := range chunks {
		if len(c.grants) == 0 {
			continue
		}
		if g.limiter != nil {
			if err := g.limiter.WaitN(ctx, len(c.grants)); err != nil {
				return g.interrupted(ctx)
			}
		}
		// The same rows have the same id if they are sent once more.
		id := g.state.Run + "-" + strconv.FormatInt(c.first, 10)
		body, err := g.codec.Grants(id, time.Now(), c.grants)
		if err != nil {
			return fmt.Errorf("rows from %d on: %w", c.first, err)
		}
		msgs = append(msgs, broker.Message{
			Exchange: g.exchange, Key: event.KeyGrant, ID: id, Body: body, ContentType: event.ContentType, Type: event.TypeGrant, Mandatory: true,
		})
	}
	since := time.Now()
	for len(msgs) > 0 {
		if ctx.Err() != nil {
			return g.interrupted(ctx)
		}
		waiting, cancel := context.WithTimeout(ctx, time.Until(since.Add(patience)))
		err := g.publisher.WaitReady(waiting)
		cancel()
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("sending grants for %s without success: %w", patience, err)
		}
		if err != nil {
			return g.interrupted(ctx)
		}
		// What is under way is seen to its end (publish_timeout at most), Ctrl-C or not.
		results := g.publisher.Publish(context.WithoutCancel(ctx), msgs)
		var left []broker.Message
		var last error
		for i, err := range results {
			switch {
			case err == nil:
				since = time.Now()
			case errors.Is(err, broker.ErrReturned):
				return fmt.Errorf("exchange %s has no queue: declare the topology (topology.declare, or start the publisher): %w", g.exchange, err)
			case errors.Is(err, broker.ErrInvalid), errors.Is(err, broker.ErrStopped):
				return fmt.Errorf("sending grants: %w", err)
			default:
				left, last = append(left, msgs[i]), err
			}
		}
		if msgs = left; len(msgs) == 0 {
			return nil
		}
		if time.Since(since) > patience {
			return fmt.Errorf("sending grants for %s without success: %w", patience, last)
		}
		g.s.note("%v; sending again", last)
		timer := time.NewTimer(retryPause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// settle counts chunks whose events are confirmed.
func (g *granter) settle(chunks []chunk) error {
	for _, c := range chunks {
		for _, faults := range c.faults {
			if err := g.rejects.add(faults); err != nil {
				return err
			}
			if g.rejects.file == nil && g.state.Rejected < shownFaults {
				for _, f := range faults {
					g.s.note("%v", f)
				}
			}
			g.state.Rejected++
		}
		if len(c.grants) > 0 {
			g.state.Events++
		}
		g.state.Sent += int64(len(c.grants))
		g.state.Rows += c.rows
		g.state.Rejects = g.rejects.size
	}
	g.progress.set(g.state)
	return g.note(false)
}

const shownFaults = 20 // rows whose faults are shown when no file takes them

func (g *granter) note(now bool) error {
	if g.stateFile == "" || (!now && time.Since(g.noted) < noteEvery) {
		return nil
	}
	g.noted = time.Now()
	return g.state.write(g.stateFile)
}

func (g *granter) interrupted(ctx context.Context) error {
	return fmt.Errorf("ended by %w", context.Cause(ctx))
}
