package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	day        = 24 * time.Hour
	perLife    = 3 // coupons of each lifetime
	tries      = 5
	fewCoupons = 20
	never      = time.Duration(0) // among lifetimes
)

// lifetime says in which queue coupons that live so long wait first, and how many of them are to be seen there.
type lifetime struct {
	name  string
	lives time.Duration
	queue string // below P.wait; none: nowhere
	short bool   // it ends in the run
}

// lifetimesOf is the table of requirement and design: the queue of the highest digit, the topmost for what is longer than the ladder.
func lifetimesOf() []lifetime {
	return []lifetime{
		{"59s", 59 * time.Second, "s.59", true},
		{"60s", 60 * time.Second, "m.01", true},
		{"61s", 61 * time.Second, "m.01", true},
		{"24h", day, "d.01", false},
		{"30d", 30 * day, "mo.01", false},
		{"400d", 400 * day, "mo.12", false},
		{"10y", 3652 * day, "mo.12", false},
		{"never", never, "", false},
	}
}

func (w *walk) lifetimes(ctx context.Context, t *tally) error {
	both, ctx := errgroup.WithContext(ctx)
	beside := *w
	beside.cfg.View = oneAtATime(w.cfg.View)
	// The checks are shown in order, afterwards.
	planned := &tally{section: t.section, view: silent{}}
	beyond := &tally{section: t.section, view: silent{}}
	both.Go(func() error { return beside.plannedLives(ctx, planned) })
	both.Go(func() error { return beside.beyondTheTop(ctx, beyond) })
	err := both.Wait()
	for _, c := range append(planned.checks, beyond.checks...) {
		t.checks = append(t.checks, c)
		t.view.Check(c)
	}
	return err
}

func (w *walk) plannedLives(ctx context.Context, t *tally) error {
	var seen map[string]int
	var short, withTrigger, waitingNever int
	cfg := w.base(t, fewCoupons, 8*time.Second)
	cfg.Waiting, cfg.Allow.Refusals = 0, true // a coupon that is to live for less than a second may come too late
	cfg.View = quiet{cfg.View}
	cfg.During = func(ctx context.Context, s *demo.Stage) (err error) {
		if seen, err = grantLives(ctx, s); err != nil {
			return err
		}
		short, err = grantShortest(ctx, s)
		return err
	}
	cfg.Inspect = func(ctx context.Context, s *demo.Stage, _ *audit.Report) (err error) {
		if waitingNever, err = countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE status = 1 AND expires_at = '9999-12-31'"); err != nil {
			return err
		}
		// Whatever waits in the broker now belongs to the long lives: nothing is left of the short ones, and never has nothing.
		depths, err := waitDepths(ctx, s)
		for _, n := range depths {
			withTrigger += n
		}
		return err
	}
	r, err := w.run(ctx, cfg)
	if err != nil {
		return err
	}
	long, shortLives := 0, 0
	for _, queue := range []string{"s.59", "m.01", "d.01", "mo.01", "mo.12"} {
		n := 0
		for _, l := range lifetimesOf() {
			if l.queue == queue {
				n += perLife
			}
		}
		want(t, "waiting_in_"+strings.ReplaceAll(queue, ".", "_"), seen[queue], Equal, n)
	}
	for _, l := range lifetimesOf() {
		switch {
		case l.short:
			shortLives += perLife
		case l.lives != never:
			long += perLife
		}
	}
	want(t, "granted_below_1s", short, Equal, perLife)
	want(t, "waiting", r.Report.Waiting, Equal, long+perLife)
	want(t, "never", waitingNever, Equal, perLife)
	want(t, "triggers_left", withTrigger, Equal, long)
	want(t, "coupons", r.Report.Coupons, AtLeast, fewCoupons+shortLives+short)
	walked(t, "", &r.Report, r.Failures)
	undisturbed(t, "", &r.Report)
	return nil
}

// grantLives grants coupons of every lifetime at the beginning of a second, and counts where they wait. If the machine was too slow to
// grant them within that second they are a second shorter on their way, and it tries again.
func grantLives(ctx context.Context, s *demo.Stage) (map[string]int, error) {
	var seen map[string]int
	granted := 0
	for try := range tries {
		if err := atFraction(ctx, s, 20*time.Millisecond); err != nil {
			return nil, err
		}
		before, err := waitDepths(ctx, s)
		if err != nil {
			return nil, err
		}
		if err := atFraction(ctx, s, 20*time.Millisecond); err != nil {
			return nil, err
		}
		var asks []audit.Ask
		now := s.Now().Truncate(time.Second)
		for _, l := range lifetimesOf() {
			if try > 0 && !l.short {
				continue
			}
			end := now.Add(l.lives)
			if l.lives == never {
				end = coupon.Never
			}
			for i := range perLife {
				key := fmt.Sprintf("life-%s-%d-%d", l.name, try, i)
				asks = append(asks, audit.Ask{Key: key, User: key, End: end, Waiting: !l.short})
			}
		}
		granted += len(asks)
		if err := errors.Join(s.Grant(ctx, asks...), s.Answered(ctx, granted), drained(ctx, s.DB())); err != nil {
			return nil, err
		}
		after, err := waitDepths(ctx, s)
		if err != nil {
			return nil, err
		}
		if try == 0 {
			seen = make(map[string]int)
			for _, queue := range []string{"d.01", "mo.01", "mo.12"} {
				seen[queue] = after[queue]
			}
		}
		for _, queue := range []string{"s.59", "m.01"} {
			seen[queue] = after[queue] - before[queue]
		}
		if seen["s.59"] == perLife && seen["m.01"] == 2*perLife {
			break
		}
	}
	return seen, nil
}

// atFraction waits until the database's clock is so far behind the beginning of a second.
func atFraction(ctx context.Context, s *demo.Stage, fraction time.Duration) error {
	now := s.Now()
	at := now.Truncate(time.Second).Add(fraction)
	if !at.After(now) {
		at = at.Add(time.Second)
	}
	return lifecycle.Sleep(ctx, at.Sub(now))
}

// waitDepths counts the messages in each wait queue, by its name below P.wait.
func waitDepths(ctx context.Context, s *demo.Stage) (map[string]int, error) {
	client, err := s.Client()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, q := range s.Ladder().Plan().Queues {
		if q.Role == ladder.RoleWait {
			names = append(names, q.Name)
		}
	}
	depths, err := client.Depths(ctx, names)
	if err != nil {
		return nil, err
	}
	short := make(map[string]int, len(depths))
	for name, n := range depths {
		if _, queue, ok := strings.Cut(name, ".wait."); ok && n > 0 {
			short[queue] = n
		}
	}
	return short, nil
}

const storedQuery = `SELECT c.granted_at, c.expires_at FROM coupon c JOIN grant_key k ON k.coupon_id = c.id WHERE k.grant_key = ?`

// grantShortest grants coupons that end less than a second after they are stored, and says how many it got. One that comes too late is
// refused, which is right, and another is asked for.
func grantShortest(ctx context.Context, s *demo.Stage) (int, error) {
	got := 0
	earlier := s.Audit().Answered()
	for try := 0; try < tries*perLife && got < perLife; try++ {
		if err := atFraction(ctx, s, 150*time.Millisecond); err != nil {
			return got, err
		}
		key := "life-short-" + strconv.Itoa(try)
		ask := audit.Ask{Key: key, User: key, End: s.Now().Truncate(time.Second).Add(time.Second)}
		if err := s.Send(ctx, ask); err != nil {
			return got, err
		}
		limit, cancel := context.WithTimeout(ctx, drainFor)
		err := until(limit, func() (bool, error) { return s.Audit().Answered() > earlier+try, nil })
		cancel()
		if err != nil {
			return got, fmt.Errorf("waiting for the answer to a grant: %w", err)
		}
		var granted, ends time.Time
		err = s.DB().QueryRowContext(ctx, storedQuery, key).Scan(&granted, &ends)
		if errors.Is(err, sql.ErrNoRows) {
			continue // refused: its end had passed
		}
		if err != nil {
			return got, fmt.Errorf("looking for a coupon: %w", err)
		}
		s.Expect(ask)
		if ends.Sub(granted) < time.Second {
			got++
		}
	}
	return got, nil
}

// beyondTheTop runs a ladder of 4.9 s in all, of units of 100 ms and 1 s, so that every trigger arrives before its coupon's end and must be
// sent on, twice or more.
func (w *walk) beyondTheTop(ctx context.Context, t *tally) error {
	const levels = `[{name: s, unit: 1s, digits: 4}, {name: t, unit: 100ms, digits: 9}]`
	var found causes
	var sentOn int
	cfg := w.base(t, fewestCoupons, 20*time.Second)
	cfg.First, cfg.Waiting = 11*time.Second, 10
	cfg.View = quiet{cfg.View}
	cfg.Setup.Logs += "-beyond"
	cfg.Ladder = func(c *ladder.Config) {
		c.Levels = []ladder.Level{{Name: "s", Unit: time.Second, Digits: 4}, {Name: "t", Unit: 100 * time.Millisecond, Digits: 9}}
	}
	cfg.Env = func(string) map[string]string { return map[string]string{"LAPSE__LADDER__LEVELS": levels} }
	cfg.Inspect = func(ctx context.Context, s *demo.Stage, _ *audit.Report) (err error) {
		if found, err = readCauses(ctx, s.DB()); err != nil {
			return err
		}
		sentOn, err = metric(ctx, s, demo.Expirer, `lapse_reschedules_total{reason="rest"}`)
		return err
	}
	r, err := w.run(ctx, cfg)
	if err != nil {
		return err
	}
	const prefix = "beyond_the_top_"
	want(t, prefix+"sent_on", sentOn, AtLeast, 2*cfg.Coupons)
	want(t, prefix+"cause_ladder", found.by["ladder"], Equal, r.Report.Coupons)
	walked(t, prefix, &r.Report, r.Failures)
	undisturbed(t, prefix, &r.Report)
	return nil
}

// metric asks a worker for one number.
func metric(ctx context.Context, s *demo.Stage, worker, name string) (int, error) {
	return metricOf(ctx, s.Fleet(), worker, name)
}

func metricOf(ctx context.Context, fleet *rig.Fleet, worker, name string) (int, error) {
	ports, err := fleet.Ports(worker)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(ports["admin"])+"/metrics", nil)
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", worker, err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: drainFor}
	res, err := client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", worker, err)
	}
	defer res.Body.Close() //nolint:errcheck // only read
	body, err := io.ReadAll(io.LimitReader(res.Body, 4<<20))
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", worker, err)
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("metric %s of %s: %w", name, worker, err)
			}
			return int(n), nil
		}
	}
	return 0, fmt.Errorf("metrics of %s: no %s", worker, name)
}

// silent shows nothing.
type silent struct{}

func (silent) Step(string)            {}
func (silent) Progress(demo.Progress) {}
func (silent) Section(string, string) {}
func (silent) Check(Check)            {}

// quiet is a view without the progress, for runs beside each other.
type quiet struct{ demo.View }

// Progress shows nothing.
func (quiet) Progress(demo.Progress) {}

// locking is a view for several goroutines.
type locking struct {
	mu   *sync.Mutex
	view View
}

func oneAtATime(v View) View { return locking{mu: new(sync.Mutex), view: v} }

func (l locking) Step(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.view.Step(text)
}

func (l locking) Progress(p demo.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.view.Progress(p)
}

func (l locking) Section(name, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.view.Section(name, what)
}

func (l locking) Check(c Check) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.view.Check(c)
}
