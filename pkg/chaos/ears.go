package chaos

import (
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/chaos/model"
)

// ears keep what an independent consumer heard.
type ears struct {
	mu      sync.Mutex
	high    func() time.Time // the latest that the database's clock can show
	by      map[string]*model.Event
	issued  map[string]uint64          // grant key → coupon
	waiting map[string][]chan<- uint64 // for a grant key
	refused map[string]string          // grants: code
	unpaid  map[string]string          // payments, "coupon:order": code
	strange []string
}

func newEars() *ears {
	return &ears{
		by: make(map[string]*model.Event), issued: make(map[string]uint64), waiting: make(map[string][]chan<- uint64),
		refused: make(map[string]string), unpaid: make(map[string]string),
	}
}

const mostStrange = 10

// clock says what to ask for the database's clock. Nothing is heard before.
func (e *ears) clock(high func() time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.high = high
}

func (e *ears) hear(ev audit.Event) {
	var d struct {
		CouponID string `json:"coupon_id"`
		GrantKey string `json:"grant_key"`
		OrderID  string `json:"order_id"`
		Code     string `json:"code"`
		Version  uint32 `json:"version"`
	}
	words := strings.Split(ev.Type, ".")
	err := json.Unmarshal(ev.Data, &d)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil || len(words) < 2 || words[0] != "coupon" {
		if len(e.strange) < mostStrange {
			e.strange = append(e.strange, ev.Type+" "+ev.ID)
		}
		return
	}
	switch words[1] {
	case "refused":
		e.refused[d.GrantKey] = d.Code
		e.answer(d.GrantKey, 0)
		return
	case "redeem_refused":
		e.unpaid[d.CouponID+":"+d.OrderID] = d.Code
		return
	case "expiring", "at_risk":
		return // they tell of no step
	}
	id, err := strconv.ParseUint(d.CouponID, 10, 64)
	if err != nil {
		if len(e.strange) < mostStrange {
			e.strange = append(e.strange, ev.Type+" "+ev.ID)
		}
		return
	}
	if known := e.by[ev.ID]; known != nil {
		if !ev.Redelivered {
			known.Times++
		}
		return
	}
	e.by[ev.ID] = &model.Event{ID: ev.ID, What: words[1], Coupon: id, Version: d.Version, Times: 1, By: e.high()}
	if words[1] == "issued" {
		e.issued[d.GrantKey] = id
		e.answer(d.GrantKey, id)
	}
}

// answer tells who waits for a grant.
func (e *ears) answer(key string, id uint64) {
	for _, c := range e.waiting[key] {
		c <- id // has room
	}
	delete(e.waiting, key)
}

// wait gives a channel that tells which coupon a grant key stands for, once that is heard; 0: the grant was refused.
func (e *ears) wait(key string) <-chan uint64 {
	c := make(chan uint64, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	_, refused := e.refused[key]
	if id := e.issued[key]; id != 0 || refused {
		c <- id
	} else {
		e.waiting[key] = append(e.waiting[key], c)
	}
	return c
}

// len is how many different events were heard.
func (e *ears) len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.by)
}

// tell puts what was heard among the facts.
func (e *ears) tell(f *model.Facts) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.by {
		f.Events = append(f.Events, *ev)
	}
	f.RedeemRefused, f.GrantRefused = e.unpaid, e.refused
	for _, text := range e.strange {
		f.Unsettled = append(f.Unsettled, "an event that breaks the contract: "+text)
	}
}
