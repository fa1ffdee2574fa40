package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	settingPause = "pause." // then the brake; of a part of it a dot, the scope, a dot, the id

	// DeedPause is an action in the operators' log; the subject is what is paused, as coupon.Pause says it.
	DeedPause = "pause"
	// DeedResume is its opposite.
	DeedResume = "resume"

	// mostPauses is how many may be on: every process reads them every second.
	mostPauses = 200
	// brakesFresh is how old a reading of the brakes may be that something is done by. Processes that watch the clock read
	// them every second on the way; who does not, or is late with it, reads them when they are needed.
	brakesFresh = 1500 * time.Millisecond
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtPauses = define("pause.list", `SELECT name, value, updated_at FROM setting WHERE name >= 'pause.' AND name < 'pause/' ORDER BY name LIMIT 1000`)
	stmtPaused = define("pause.put", `INSERT INTO setting (name, value, updated_at) VALUES (?,?,UTC_TIMESTAMP(3))
		ON DUPLICATE KEY UPDATE name = VALUES(name)`)
	stmtPauseLock = define("pause.lock", `SELECT name, value, updated_at FROM setting WHERE name >= 'pause.' AND name < 'pause/' ORDER BY name LIMIT 1000 FOR UPDATE`)
)

// brakes is what this process last read of the pauses.
type brakes struct {
	mu   sync.Mutex
	last *coupon.Pauses
	read time.Time // when that reading began, by the process's clock; zero: never
}

func (b *brakes) take(ps *coupon.Pauses, began time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if began.After(b.read) {
		b.last, b.read = ps, began
	}
}

func (b *brakes) seen() (*coupon.Pauses, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last, b.read
}

// pauseName is the row of a pause. A batch's id may be longer than a name.
func pauseName(p coupon.Pause) string {
	name := settingPause + string(p.Brake)
	switch p.Scope {
	case coupon.PauseAll:
		return name
	case coupon.PauseBatch:
		sum := sha256.Sum256([]byte(p.ID))
		return name + "." + string(p.Scope) + "." + hex.EncodeToString(sum[:16])
	case coupon.PauseTemplate, coupon.PauseChannel:
	}
	return name + "." + string(p.Scope) + "." + p.ID
}

// parsePause reads a row's name and value; false for one that this release does not know.
func parsePause(name, value string, since time.Time) (coupon.Pause, bool) {
	for _, b := range coupon.Brakes() {
		for _, scope := range []coupon.PauseScope{coupon.PauseAll, coupon.PauseTemplate, coupon.PauseBatch, coupon.PauseChannel} {
			p := coupon.Pause{Brake: b, Scope: scope, ID: value, Since: since}
			if pauseName(p) == name && p.Validate() == nil {
				return p, true
			}
		}
	}
	return coupon.Pause{}, false
}

// Pauses reads the brakes that are on. What was read is kept for Brakes.
func (s *Store) Pauses(ctx context.Context) (*coupon.Pauses, error) {
	began := time.Now()
	ps, err := s.pauses(ctx, s.sql, stmtPauses)
	if err != nil {
		return nil, err
	}
	s.brakes.take(ps, began)
	return ps, nil
}

func (s *Store) pauses(ctx context.Context, q querier, st Statement) (*coupon.Pauses, error) {
	var list []coupon.Pause
	err := s.query(ctx, q, st, func(r *sql.Rows) error {
		var name, value string
		var at time.Time
		if err := r.Scan(&name, &value, &at); err != nil {
			return err
		}
		if p, ok := parsePause(name, value, at); ok {
			list = append(list, p)
		}
		return nil
	})
	return coupon.NewPauses(list), err
}

// Brakes gives the brakes that are on, as they were at most a second and a half ago.
func (s *Store) Brakes(ctx context.Context) (*coupon.Pauses, error) {
	if ps, read := s.brakes.seen(); !read.IsZero() && time.Since(read) < brakesFresh {
		return ps, nil
	}
	return s.Pauses(ctx)
}

// BrakesSeen gives what this process last read of the brakes, however long ago, and asks nobody; nil before the first reading.
func (s *Store) BrakesSeen() *coupon.Pauses {
	ps, _ := s.brakes.seen()
	return ps
}

// Pause puts a brake on, and keeps who did it and why. It reports whether it was off; one that is on already keeps its age.
func (s *Store) Pause(ctx context.Context, p coupon.Pause, actor, reason string) (changed bool, err error) {
	return s.brake(ctx, p, Deed{Actor: actor, Reason: reason, Action: DeedPause, Subject: p.String()}, func(ctx context.Context, tx *txn, on []coupon.Pause) error {
		if len(on) >= mostPauses {
			return fmt.Errorf("%w: at most %d pauses at once", coupon.ErrConflict, mostPauses)
		}
		_, err := s.exec(ctx, tx, stmtPaused, pauseName(p), []byte(p.ID))
		return err
	}, false)
}

// Resume takes a brake off, likewise. It reports whether it was on.
func (s *Store) Resume(ctx context.Context, p coupon.Pause, actor, reason string) (changed bool, err error) {
	return s.brake(ctx, p, Deed{Actor: actor, Reason: reason, Action: DeedResume, Subject: p.String()}, func(ctx context.Context, tx *txn, _ []coupon.Pause) error {
		_, err := s.exec(ctx, tx, stmtSettingDrop, pauseName(p))
		return err
	}, true)
}

// brake changes one pause if it is as it should be before, and records the deed with what was on.
func (s *Store) brake(ctx context.Context, p coupon.Pause, d Deed, change func(context.Context, *txn, []coupon.Pause) error, was bool) (changed bool, err error) {
	if err := p.Validate(); err != nil {
		return false, fmt.Errorf("%s: %w", d.Action, err)
	}
	err = s.tx(ctx, d.Action, func(ctx context.Context, tx *txn) error {
		changed = false
		ps, err := s.pauses(ctx, tx, stmtPauseLock)
		if err != nil {
			return err
		}
		since, on := ps.Since(p.Brake)[coupon.Pause{Brake: p.Brake, Scope: p.Scope, ID: p.ID}]
		if on != was {
			return nil
		}
		changed = true
		if err := change(ctx, tx, ps.List()); err != nil {
			return err
		}
		detail := map[string]any{"what": p.Brake, "scope": p.Scope, "id": p.ID}
		if on {
			detail["paused_at"] = since.UTC().Format(time.RFC3339Nano)
		}
		d.Detail = detail
		return s.recordDeed(ctx, tx, d)
	})
	return changed && err == nil, err
}
