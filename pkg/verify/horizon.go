package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// The installation of the section, and what is done to it. Verbs reach horizon + guard = 26 s ahead by themselves; the planner walks
// the slice 20 s ahead. So locks end 10 to 28 s before their coupons do: on both sides of both borders.
const (
	horizon    = 20 * time.Second
	guard      = 6 * time.Second
	lockedPart = 5 // one coupon of so many is locked
	lockAhead  = 31 * time.Second
	lockLeast  = 10 // seconds from the end of a lock to the coupon's
	lockSpread = 19
	heldEvery  = 4                       // of the seconds in which locks end, one of so many commits late
	heldFor    = 1800 * time.Millisecond // below the transaction limit of 3 s
	heldGrants = 40
)

// disturbed is what was done to the coupons on their way.
type disturbed struct {
	locked int
	// seen not to have committed long after they were decided
	lateGrants, lateUnlocks int
	kills                   int
}

func (w *walk) horizon(ctx context.Context, t *tally) error {
	var did disturbed
	var found causes
	var unlocked int
	cfg := w.base(t, w.small, 62*time.Second)
	cfg.First = 40 * time.Second
	cfg.Ladder = func(c *ladder.Config) { c.Horizon = horizon }
	cfg.Locks, cfg.Allow.Repeats = true, true
	cfg.Env = func(worker string) map[string]string {
		vars := map[string]string{"LAPSE__LADDER__HORIZON": horizon.String(), "LAPSE__DATABASE__TX_LIMIT": "3s"}
		if worker == demo.Publisher {
			maps.Copy(vars, map[string]string{
				"LAPSE__PLANNER__SLICE": "1s", "LAPSE__PLANNER__GUARD": guard.String(),
				"LAPSE__PLANNER__POLL": "200ms", "LAPSE__PLANNER__LEASE": "3s",
			})
		}
		return vars
	}
	cfg.During = func(ctx context.Context, s *demo.Stage) (err error) {
		did, err = w.disturb(ctx, s)
		return err
	}
	cfg.Inspect = func(ctx context.Context, s *demo.Stage, _ *audit.Report) (err error) {
		if found, err = readCauses(ctx, s.DB()); err != nil {
			return err
		}
		unlocked, err = countIn(ctx, s.DB(), `SELECT COUNT(*) FROM coupon_history WHERE from_status = 2 AND to_status = 1 AND cause = 'lock'`)
		return err
	}
	r, err := w.run(ctx, cfg)
	if err != nil {
		return err
	}
	walked(t, "", &r.Report, r.Failures)
	want(t, "notices", r.Report.Notices, Equal, r.Report.Users)
	want(t, "cause_ladder", found.by["ladder"], Equal, r.Report.Coupons)
	want(t, "sweep_recovered", r.Report.SweepRecovered, Equal, 0)
	want(t, "planner_share", float64(found.planner)/float64(max(1, r.Report.Expired)), AtLeast, 0.5)
	want(t, "locked", did.locked, AtLeast, cfg.Coupons/lockedPart/2)
	want(t, "unlocked_by_the_product", unlocked, Equal, did.locked)
	want(t, "late_grants", did.lateGrants, Equal, heldGrants)
	want(t, "late_unlocks", did.lateUnlocks, AtLeast, 1)
	want(t, "publisher_kills", did.kills, Equal, 2)
	told(t, "duplicate_event_ids", r.Report.DuplicateEventIDs)
	return nil
}

// disturb locks coupons while their slices pass, lets grants and unlocks commit late, and kills the planner's process twice.
func (w *walk) disturb(ctx context.Context, s *demo.Stage) (disturbed, error) {
	var did disturbed
	locks, err := w.lock(ctx, s)
	if err != nil {
		return did, err
	}
	for _, ls := range locks {
		did.locked += len(ls)
	}
	s.Step(fmt.Sprintf("%d coupons locked until 10 to 28 s before their ends", did.locked))
	first, err := firstEnd(ctx, s.DB())
	if err != nil {
		return did, err
	}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() (err error) { did.lateGrants, err = w.grantLate(ctx, s); return err })
	all.Go(func() (err error) { did.lateUnlocks, err = unlockLate(ctx, s, locks); return err })
	all.Go(func() error {
		const between = 8 * time.Second
		if err := lifecycle.Sleep(ctx, first.Add(-horizon+2*time.Second).Sub(s.Now())); err != nil {
			return err
		}
		for range 2 {
			s.Step("publisher killed while it walks slices")
			if err := s.Fleet().Kill(demo.Publisher); err != nil {
				return err
			}
			if err := s.Fleet().StartOne(ctx, demo.Publisher); err != nil {
				return err
			}
			did.kills++
			if err := lifecycle.Sleep(ctx, between); err != nil {
				return err
			}
		}
		return nil
	})
	err = all.Wait()
	return did, err
}

func firstEnd(ctx context.Context, db *sql.DB) (time.Time, error) {
	var at time.Time
	err := db.QueryRowContext(ctx, "SELECT MIN(due_at) FROM coupon WHERE status IN (1,2) AND due_at > UTC_TIMESTAMP(3)").Scan(&at)
	if err != nil {
		err = fmt.Errorf("reading the first end: %w", err)
	}
	return at, err
}

// locked is one coupon that was locked by SQL.
type locked struct {
	id      uint64
	version uint32 // of the locked row
}

const (
	waitingQuery = `SELECT id, due_at, version FROM coupon WHERE status = 1 AND due_at > ? AND user_id NOT LIKE 'demo-waiting-%' ORDER BY id`
	lockUpdate   = `UPDATE coupon SET status = 2, version = version + 1, locked_at = UTC_TIMESTAMP(3), lock_until = ?, order_id = 'verify'
		WHERE id = ? AND version = ? AND status = 1`
	lockHistory = `INSERT INTO coupon_history
		(coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace)
		SELECT id, version, 1, 2, 'admin', locked_at, expires_at, due_at, order_id, 'verify', 'its slice passes', '', '', '' FROM coupon WHERE id = ?`
)

// lock locks coupons by SQL, as checkout would, and sends the unlock triggers as the lock's verb would: through the ladder, due when
// the locks end. What settles the locks is the product. It gives the locks by their ends.
func (w *walk) lock(ctx context.Context, s *demo.Stage) (map[time.Time][]locked, error) {
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("locking coupons: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // committed, or not wanted
	locks := make(map[time.Time][]locked)
	var triggers []broker.Message
	rows, err := tx.QueryContext(ctx, waitingQuery, s.Now().Add(lockAhead))
	if err != nil {
		return nil, fmt.Errorf("locking coupons: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	for n := 0; rows.Next(); n++ {
		var l locked
		var due time.Time
		if err := rows.Scan(&l.id, &due, &l.version); err != nil {
			return nil, fmt.Errorf("locking coupons: %w", err)
		}
		if n%lockedPart != 0 {
			continue
		}
		until := due.Add(-time.Duration(lockLeast+n/lockedPart%lockSpread) * time.Second)
		locks[until] = append(locks[until], l)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("locking coupons: %w", err)
	}
	for until, ls := range locks {
		for i := range ls {
			if _, err := tx.ExecContext(ctx, lockUpdate, until, ls[i].id, ls[i].version); err != nil {
				return nil, fmt.Errorf("locking a coupon: %w", err)
			}
			if _, err := tx.ExecContext(ctx, lockHistory, ls[i].id); err != nil {
				return nil, fmt.Errorf("locking a coupon: %w", err)
			}
			ls[i].version++
			triggers = append(triggers, unlockTrigger(s, ls[i], until))
		}
	}
	if err := tx.Commit(); err != nil {
		return nil, fmt.Errorf("locking coupons: %w", err)
	}
	if len(triggers) == 0 {
		return nil, errors.New("no coupon's end was far enough away to lock it")
	}
	return locks, s.Publish(ctx, triggers...)
}

func unlockTrigger(s *demo.Stage, l locked, until time.Time) broker.Message {
	id := coupon.TriggerID(coupon.SentByVerb, l.id, l.version)
	body := s.Codec().Trigger(coupon.Trigger{Kind: coupon.KindUnlock, CouponID: l.id, At: until, ID: id, Origin: coupon.OriginLadder})
	route := s.Ladder().RouteAt(s.Now(), until, ladder.Unlock, ladder.Exact, int(l.id%ladder.Partitions))
	return broker.Message{Exchange: route.Exchange, Key: route.Key, Expiration: route.Expiration, ID: id, Body: body, Mandatory: true}
}

// grantLate grants coupons whose ends lie just beyond the verb's own reach while it holds the row that the grant's transaction needs
// last: the grant decides, and commits when the row is let go. It says how many it kept from being committed.
func (w *walk) grantLate(ctx context.Context, s *demo.Stage) (int, error) {
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("holding grants up: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it changes nothing
	var taken int64
	err = tx.QueryRowContext(ctx, "SELECT taken FROM template_stock WHERE template_id = ? FOR UPDATE", s.Template()).Scan(&taken)
	if err != nil {
		return 0, fmt.Errorf("holding grants up: %w", err)
	}
	asks := make([]audit.Ask, heldGrants)
	soon := s.Now().Truncate(time.Second).Add(horizon + guard)
	for i := range asks {
		asks[i] = audit.Ask{
			Key: fmt.Sprintf("late-%03d", i), User: fmt.Sprintf("late-user-%03d", i), End: soon.Add(time.Duration(1+i%4) * time.Second),
		}
	}
	if err := s.Grant(ctx, asks...); err != nil {
		return 0, err
	}
	if err := lifecycle.Sleep(ctx, heldFor); err != nil {
		return 0, err
	}
	there, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM grant_key WHERE grant_key LIKE 'late-%'")
	if err != nil {
		return 0, err
	}
	if err := tx.Rollback(); err != nil {
		return 0, fmt.Errorf("letting grants go: %w", err)
	}
	return heldGrants - there, s.Answered(ctx, heldGrants)
}

// unlockLate lets some unlocks decide in time and commit late, by holding the history row that they are going to write. It says how
// many were seen locked still when they were let go.
func unlockLate(ctx context.Context, s *demo.Stage, locks map[time.Time][]locked) (int, error) {
	late := 0
	for _, until := range slices.SortedFunc(maps.Keys(locks), time.Time.Compare) {
		if until.Unix()%heldEvery != 0 || until.Sub(s.Now()) < time.Second {
			continue
		}
		if err := lifecycle.Sleep(ctx, until.Add(-300*time.Millisecond).Sub(s.Now())); err != nil {
			return late, err
		}
		n, err := hold(ctx, s.DB(), locks[until])
		if err != nil {
			return late, err
		}
		late += n
	}
	return late, nil
}

func hold(ctx context.Context, db *sql.DB, ls []locked) (int, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("holding unlocks up: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it leaves nothing
	for _, l := range ls {
		_, err := tx.ExecContext(ctx, `INSERT INTO coupon_history
			(coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace)
			VALUES (?, ?, 2, 1, '', '2000-01-01', '2000-01-01', '2000-01-01', '', 'verify', '', '', '', '')`, l.id, l.version+1)
		if err != nil {
			return 0, fmt.Errorf("holding unlocks up: %w", err)
		}
	}
	if err := lifecycle.Sleep(ctx, heldFor); err != nil {
		return 0, err
	}
	n := 0
	for _, l := range ls {
		still, err := countIn(ctx, db, "SELECT COUNT(*) FROM coupon WHERE id = ? AND status = 2", l.id)
		if err != nil {
			return 0, err
		}
		n += still
	}
	if err := tx.Rollback(); err != nil {
		return 0, fmt.Errorf("letting unlocks go: %w", err)
	}
	return n, nil
}
