package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/parked"
	"github.com/lapsehq/lapse/pkg/status"
)

const (
	lookedThrough = 500 // of each place at most: they are nobody else's meanwhile
	listed        = 100 // shown one by one
	mostReplayed  = 100 // in one request
	maxBody       = 16 << 10
)

// set is what was set aside.
type set struct {
	Looked int            `json:"looked_through"`
	Found  int            `json:"found"`
	More   bool           `json:"more"` // there may be more than was looked through
	Counts []parked.Count `json:"counts"`
	Items  []parked.Item  `json:"items"`
}

// readParked looks through what was set aside.
func (c *Console) readParked(ctx context.Context) (set, error) {
	out := set{Items: []parked.Item{}}
	counts, places := map[parked.Count]int{}, map[string]int{}
	var err error
	out.Looked, err = c.deps.Desk.Pages(ctx, &parked.Filter{In: parked.Places(), Scan: lookedThrough}, func(place string, items []parked.Item) ([]bool, error) {
		for _, p := range items {
			out.Found++
			places[place]++
			counts[parked.Count{Place: p.Place, Origin: p.Origin, Reason: parked.Alike(p.Reason)}]++
			if len(out.Items) < listed {
				p.Delivery = broker.Delivery{}
				out.Items = append(out.Items, p)
			}
		}
		return nil, nil
	})
	for _, n := range places {
		out.More = out.More || n >= lookedThrough
	}
	out.Counts = parked.CountsOf(counts)
	return out, err //nolint:wrapcheck // names the queue
}

type parkedOut struct {
	ReadAt string `json:"read_at"`
	set
}

func (c *Console) parked(ctx context.Context, _ asked) (any, error) {
	s, at, err := c.aside.get(ctx)
	if err != nil {
		return nil, c.brokers(err)
	}
	return parkedOut{status.Instant(at), s}, nil
}

// brokers tells of a broker that is away, or lacks a queue, as of a database that is away.
func (c *Console) brokers(err error) error {
	switch {
	case errors.Is(err, coupon.ErrUnavailable), errors.Is(err, coupon.ErrContention), errors.Is(err, context.DeadlineExceeded), errors.Is(err, errClosed):
		return err
	case c.deps.Ready() != nil:
		return api.NewProblem(http.StatusServiceUnavailable, api.CodeUnavailable, "the broker cannot be reached")
	default:
		text, _, _ := strings.Cut(err.Error(), "\n")
		return api.NewProblem(http.StatusServiceUnavailable, api.CodeUnavailable, text)
	}
}

type replayIn struct {
	Refs   []string `json:"refs"`
	Actor  string   `json:"actor"` // who sits before the page
	Reason string   `json:"reason"`
}

type replayOut struct {
	Replayed int      `json:"replayed"`
	Asked    int      `json:"asked"`
	Stay     []string `json:"stay"` // why some stay
}

// replay sends some of it to where it came from, in the name of who asks.
func (c *Console) replay(ctx context.Context, r asked) (any, error) {
	in, actor, err := replayAsked(r)
	if err != nil {
		return nil, err
	}
	if c.deps.Ready() != nil {
		return nil, api.NewProblem(http.StatusServiceUnavailable, api.CodeUnavailable, "the broker cannot be reached; nothing was done")
	}
	out := replayOut{Asked: len(in.Refs), Stay: []string{}}
	var mu sync.Mutex
	move := parked.Move{
		Filter: parked.Filter{In: parked.Places(), Refs: in.Refs, Scan: lookedThrough}, Actor: actor, Reason: in.Reason,
		Note: func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			out.Stay = append(out.Stay, fmt.Sprintf(format, args...))
		},
	}
	// Begun, it goes to its end, whether or not the page still listens.
	done := make(chan error, 1)
	if !c.work.run(c.cfg.Timeout, func(ctx context.Context) {
		do := c.deps.Desk.Replay(ctx, c.deps.Publisher, move)
		_, err := c.deps.Desk.Pages(ctx, &move.Filter, func(place string, items []parked.Item) ([]bool, error) {
			gone, err := do(place, items)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				for _, g := range gone {
					if g {
						out.Replayed++
					}
				}
			}
			return gone, err
		})
		c.deps.Log.Info("set aside, and replayed from the console", zap.String("token", r.by.Name), zap.Int("n", out.Replayed), zap.Error(err))
		done <- err
	}) {
		return nil, errClosed
	}
	select {
	case err = <-done:
	case <-ctx.Done():
		return nil, ctx.Err() //nolint:wrapcheck // told by the caller
	}
	c.aside.forget()
	if err != nil {
		return nil, c.brokers(err)
	}
	return out, nil
}

// replayAsked reads the request.
func replayAsked(r asked) (in replayIn, actor string, err error) {
	bad := func(text string) error { return api.NewProblem(http.StatusBadRequest, api.CodeBadRequest, text) }
	if r.Header.Get("Content-Type") != "application/json" {
		return in, "", api.NewProblem(http.StatusUnsupportedMediaType, api.CodeBadRequest, "the body must be application/json")
	}
	dec := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil || dec.More() {
		return in, "", bad("the body must be one JSON object with refs, actor and reason")
	}
	if len(in.Refs) < 1 || len(in.Refs) > mostReplayed {
		return in, "", bad("body.refs: must name 1 to 100")
	}
	for _, ref := range in.Refs {
		if len(ref) < 1 || len(ref) > 32 || !api.Printable(ref) {
			return in, "", bad("body.refs: must be as the list names them")
		}
	}
	if p := api.Reason(in.Reason); p != nil {
		return in, "", p
	}
	actor, p := r.by.Actor(in.Actor)
	if p != nil {
		return in, "", p
	}
	return in, actor, nil
}

// forget makes the next who asks wait for a new reading.
func (k *kept[T]) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.at, k.ended = time.Time{}, time.Time{}
}
