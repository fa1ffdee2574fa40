package audit

import (
	"context"
	"fmt"
	"time"
)

// watchBack is how far behind the clock the watch looks: rows that changed between two turns are due within it, and
// whatever was changed too early is due in the future.
const watchBack = 3 * time.Second

const watchQuery = `SELECT c.id, k.grant_key FROM coupon c JOIN grant_key k ON k.coupon_id = c.id
	WHERE c.status IN (?,3,4,5) AND c.due_at >= ?`

// watch looks for rows that are unusable although their asked end has not come. It catches what the final rows no
// longer show: a row that was put back, or an instant that was written later than it was.
func (a *Audit) watch(ctx context.Context) error {
	low, _ := a.clock.at(time.Now())
	locked := statusLocked
	if a.cfg.Locks {
		locked = statusExpired
	}
	rows, err := a.db.QueryContext(ctx, watchQuery, locked, low.Add(-watchBack))
	if err != nil {
		return fmt.Errorf("audit: watching rows: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	unusable := make(map[uint64]string)
	for rows.Next() {
		var id uint64
		var key string
		if err := rows.Scan(&id, &key); err != nil {
			return fmt.Errorf("audit: watching rows: %w", err)
		}
		unusable[id] = key
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("audit: watching rows: %w", err)
	}
	// Only now: the rows were read at some instant before.
	_, high := a.clock.at(time.Now())
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, key := range unusable {
		if _, known := a.seen[id]; known {
			continue
		}
		a.seen[id] = struct{}{}
		if ask, ok := a.book.ask(key); ok && high.Before(ask.End) {
			a.watched[key] = high
		}
	}
	return nil
}

func (b *book) ask(key string) (Ask, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ask, ok := b.asks[key]
	return ask, ok
}

// Watched counts the rows that the watch saw unusable before their asked end.
func (a *Audit) Watched() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.watched)
}
