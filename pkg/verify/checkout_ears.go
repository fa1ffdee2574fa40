package verify

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/lapsehq/lapse/pkg/audit"
)

// ears keep what was heard of each coupon, by the event's id.
type ears struct {
	mu      sync.Mutex
	by      map[string]said   // event id → what it says
	doubled map[string]int    // event ids that were published more than once
	refused map[string]string // coupon.redeem_refused: coupon:order → code
}

// said is an event of a coupon's life.
type said struct {
	coupon, what string // what: the type's second word
	order        string
	cause        string
}

func newEars() *ears {
	return &ears{by: make(map[string]said), doubled: make(map[string]int), refused: make(map[string]string)}
}

func (e *ears) hear(ev audit.Event) {
	var d struct {
		CouponID string `json:"coupon_id"`
		OrderID  string `json:"order_id"`
		Cause    string `json:"cause"`
		Code     string `json:"code"`
	}
	if err := json.Unmarshal(ev.Data, &d); err != nil || d.CouponID == "" {
		return // the audit's book notes what is strange
	}
	words := strings.Split(ev.Type, ".")
	if len(words) < 2 {
		return
	}
	if words[1] == "expiring" {
		return // it tells of no step
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if words[1] == "redeem_refused" {
		e.refused[d.CouponID+":"+d.OrderID] = d.Code
		return
	}
	if _, known := e.by[ev.ID]; known {
		if !ev.Redelivered {
			e.doubled[ev.ID]++
		}
		return
	}
	e.by[ev.ID] = said{coupon: d.CouponID, what: words[1], order: d.OrderID, cause: d.Cause}
}

// len is how many different events were heard.
func (e *ears) len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.by)
}

// of counts the events of a kind.
func (e *ears) of(what string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, s := range e.by {
		if s.what == what {
			n++
		}
	}
	return n
}

// refusals is how many redemptions were heard of as refused, by coupon and order.
func (e *ears) refusals() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(map[string]string, len(e.refused))
	for k, v := range e.refused {
		out[k] = v
	}
	return out
}

// agreement is what rows, history and events say of each other.
type agreement struct {
	rows                    int // coupons
	steps                   int // rows of history
	broken                  int // coupons whose history does not lead, unbroken, to their row
	missing, stray, doubled int // events
}

const (
	stepsQuery  = `SELECT coupon_id, version, from_status, to_status FROM coupon_history ORDER BY coupon_id, version`
	statesQuery = `SELECT id, status, version FROM coupon`
)

type stepRow struct {
	version  uint32
	from, to int
}

// agree holds every coupon's row against its history, and every step of history against the events heard.
func (s *shop) agree(ctx context.Context) (agreement, error) {
	if err := drained(ctx, s.DB()); err != nil {
		return agreement{}, err
	}
	tx, err := s.DB().BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return agreement{}, fmt.Errorf("reading rows: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it only reads
	var a agreement
	history := make(map[uint64][]stepRow)
	err = each(ctx, tx, stepsQuery, func(r *sql.Rows) error {
		var id uint64
		var step stepRow
		if err := r.Scan(&id, &step.version, &step.from, &step.to); err != nil {
			return err
		}
		history[id] = append(history[id], step)
		a.steps++
		return nil
	})
	if err != nil {
		return a, err
	}
	err = each(ctx, tx, statesQuery, func(r *sql.Rows) error {
		var id uint64
		var status int
		var version uint32
		if err := r.Scan(&id, &status, &version); err != nil {
			return err
		}
		a.rows++
		at, n := 0, uint32(0)
		for _, step := range history[id] {
			if step.from != at || step.version != n+1 {
				at = -1
				break
			}
			at, n = step.to, step.version
		}
		if at != status || n != version {
			a.broken++
		}
		return nil
	})
	if err != nil {
		return a, err
	}
	// What was confirmed to the relay may still be on its way to us.
	limit, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	_ = until(limit, func() (bool, error) { return s.ears.len() >= a.steps, nil }) // what is missing is counted below
	a.missing, a.stray, a.doubled = s.ears.against(history)
	return a, ctx.Err()
}

// against counts steps without an event, events without a step, and events that came twice.
func (e *ears) against(history map[uint64][]stepRow) (missing, stray, doubled int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	heard := make(map[string]int, len(e.by))
	for id, said := range e.by {
		cut := strings.LastIndexByte(id, ':')
		if cut < 0 || !strings.HasPrefix(id, said.coupon+":") {
			stray++
			continue
		}
		heard[id[:cut]]++
	}
	for coupon, steps := range history {
		for _, step := range steps {
			key := fmt.Sprintf("%d:%d", coupon, step.version)
			switch n := heard[key]; {
			case n == 0:
				missing++
			case n > 1:
				stray += n - 1
			}
			delete(heard, key)
		}
	}
	return missing, stray + len(heard), len(e.doubled)
}

// agreed adds the checks of it. Where workers were killed or cut off, events may come twice.
func (s *shop) agreed(ctx context.Context, prefix string, repeats bool) error {
	a, err := s.agree(ctx)
	if err != nil {
		return err
	}
	told(s.t, prefix+"steps", a.steps)
	want(s.t, prefix+"history_broken", a.broken, Equal, 0)
	want(s.t, prefix+"events_missing", a.missing, Equal, 0)
	want(s.t, prefix+"events_stray", a.stray, Equal, 0)
	if repeats {
		told(s.t, prefix+"events_doubled", a.doubled)
	} else {
		want(s.t, prefix+"events_doubled", a.doubled, Equal, 0)
	}
	return nil
}

func each(ctx context.Context, tx *sql.Tx, query string, do func(*sql.Rows) error) error {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return fmt.Errorf("reading rows: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	for rows.Next() {
		if err := do(rows); err != nil {
			return fmt.Errorf("reading rows: %w", err)
		}
	}
	return rows.Err()
}
