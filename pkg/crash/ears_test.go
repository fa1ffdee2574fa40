//go:build proof

package crash_test

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/chaos/model"
)

// ears keep every event that an independent consumer heard, by its id.
type ears struct {
	mu     sync.Mutex
	high   func() time.Time // the latest that the database's clock can show
	by     map[string]*sound
	unpaid map[string]string // payments that were refused, "coupon:order": code
	source map[string]bool
}

// sound is an event, and when it was heard.
type sound struct {
	model.Event
	at []time.Time
}

func newEars() *ears {
	return &ears{by: make(map[string]*sound), unpaid: make(map[string]string), source: make(map[string]bool)}
}

func (e *ears) clock(high func() time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.high = high
}

func (e *ears) hear(ev audit.Event) {
	var d struct {
		CouponID string `json:"coupon_id"`
		OrderID  string `json:"order_id"`
		Code     string `json:"code"`
		Version  uint32 `json:"version"`
	}
	words := strings.Split(ev.Type, ".")
	e.mu.Lock()
	defer e.mu.Unlock()
	if json.Unmarshal(ev.Data, &d) != nil || len(words) < 2 {
		words = []string{"", "strange"}
	}
	e.source[ev.Source] = true
	if s := e.by[ev.ID]; s != nil {
		if !ev.Redelivered {
			s.Times++
			s.at = append(s.at, time.Now())
		}
		return
	}
	id, _ := strconv.ParseUint(d.CouponID, 10, 64) // 0: the judge finds no such coupon
	e.by[ev.ID] = &sound{Event: model.Event{ID: ev.ID, What: words[1], Coupon: id, Version: d.Version, Times: 1, By: e.high()}, at: []time.Time{time.Now()}}
	if words[1] == "redeem_refused" {
		e.unpaid[d.CouponID+":"+d.OrderID] = d.Code
	}
}

// times is how often an event of a coupon was heard; of several, the most.
func (e *ears) times(of uint64, what string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.by {
		if s.Coupon == of && s.What == what {
			n = max(n, s.Times)
		}
	}
	return n
}

// steps is how many events of steps were heard, each once.
func (e *ears) steps() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.by {
		if ofStep(s.What) {
			n++
		}
	}
	return n
}

// ofStep tells the events of a coupon's steps from the others.
func ofStep(what string) bool {
	return what != "expiring" && what != "at_risk" && what != "redeem_refused"
}

// tell puts what was heard among the facts.
func (e *ears) tell(f *model.Facts) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.by {
		if ofStep(s.What) {
			f.Events = append(f.Events, s.Event)
		}
	}
	f.RedeemRefused = e.unpaid
}

// bells keep what is sent into the ladder, by the message's id: that of a trigger names its sender, its coupon, and the version.
type bells struct {
	mu     sync.Mutex
	by     map[string]int
	stop   context.CancelFunc
	ending sync.WaitGroup
}

func newBells() *bells { return &bells{by: make(map[string]int)} }

// listen hears the keys that the stage names. What is heard so is no longer returned where nothing else takes it.
func (b *bells) listen(w *world) {
	c, err := w.i.Client()
	require.NoError(w, err)
	ctx, cancel := context.WithCancel(w.ctx)
	b.stop = cancel
	ready := make(chan struct{})
	failed := make(chan error, 1)
	b.ending.Go(func() {
		err := c.Tail(ctx, w.i.Ladder().Enter(), w.stage.rings, func() { close(ready) }, func(d broker.Delivery) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.by[d.MessageID]++
			return nil
		})
		failed <- err
		if err != nil {
			w.Errorf("the triggers are not heard any more: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-failed:
		require.NoError(w, err)
	}
}

func (b *bells) close(*world) {
	if b.stop != nil {
		b.stop()
	}
	b.ending.Wait()
}

// rung is how often a message was sent.
func (b *bells) rung(id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.by[id]
}

// rung says of triggers of a sender how many different ones were sent, and how many more than once.
type rung struct{ ids, again int }

func (b *bells) most(sender byte) (r rung) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, n := range b.by {
		if id[0] == sender {
			r.ids++
			r.again += n - 1
		}
	}
	return r
}

// different is how many events of a kind were heard, again how many more times.
func (e *ears) different(what string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.by {
		if s.What == what {
			n++
		}
	}
	return n
}

func (e *ears) again(what string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.by {
		if s.What == what {
			n += s.Times - 1
		}
	}
	return n
}
