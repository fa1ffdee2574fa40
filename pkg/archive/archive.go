package archive

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/quiet"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Rows is what the archive needs of the database.
type Rows interface {
	Now(ctx context.Context) (time.Time, error)
	FinishedPage(ctx context.Context, of coupon.Status, before time.Time, from coupon.Cursor, limit int) (coupon.ArchivePage, error)
	ArchiveBatch(ctx context.Context, batch []coupon.Finished) (coupon.Archived, error)
	ArchivePlace(ctx context.Context, of coupon.Status) (coupon.Cursor, error)
	PutArchivePlace(ctx context.Context, of coupon.Status, at coupon.Cursor) error
	OutboxLonger(ctx context.Context, n int) (bool, error)
	ArchiveLag(ctx context.Context, after time.Duration) (time.Duration, error)
	PruneNotices(ctx context.Context, before time.Time, after uint64, limit int) (pruned int, next uint64, err error)
	PruneInbox(ctx context.Context, before time.Time, limit int) (pruned int, more bool, err error)
	PruneNoticeCounts(ctx context.Context, before time.Time, limit int) (pruned int, more bool, err error)
}

// countsAfter is for how long it is known how many notices a user got on a day: caps look back over a week of local days.
const countsAfter = 9 * 24 * time.Hour

// pageRows is how many rows one look goes over. It is more than a batch, since among used coupons few may be old.
const pageRows = 3000

// portions is into how many transactions the work of a second is cut at least, where there is a rate to keep: a large one
// holds up every commit behind it, and orders go on beside it.
const portions = 20

// Shard is one of so many parts of the coupons, by id; the zero value is all of them.
type Shard struct{ Part, Of int }

func (s Shard) holds(id uint64) bool { return s.Of < 2 || id%uint64(s.Of) == uint64(s.Part) }

// Report is what a pass did.
type Report struct {
	Moved    int  // coupons
	Steps    int  // rows of their history
	Waiting  int  // left: something of theirs is still to be sent, folded or told
	Left     int  // left: held by somebody, or changed meanwhile
	Looked   int  // pages
	Windows  int  // digests removed
	Inbox    int  // inbox rows removed
	Complete bool // it came to its end
	Busy     bool // it stopped because the outbox was long
}

// Archiver moves what is finished. One pass at a time.
type Archiver struct {
	config Config
	rows   Rows
	shard  Shard
	log    *zap.Logger
	limit  *rate.Limiter
	lag    prometheus.Gauge
	moved  prometheus.Counter
}

// New makes the archive of a shard.
func New(c Config, shard Shard, rows Rows, log *zap.Logger, reg prometheus.Registerer) (*Archiver, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("archive config: %w", err)
	}
	a := &Archiver{
		config: c, rows: rows, shard: shard, log: log, limit: rate.NewLimiter(rate.Inf, 0),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lapse_archive_lag_seconds", Help: "For how long the oldest finished coupon has been old enough for the archive.",
		}),
		moved: prometheus.NewCounter(prometheus.CounterOpts{Name: "lapse_archived_total", Help: "Coupons moved into the archive."}),
	}
	if c.MaxRate > 0 {
		a.config.Batch = min(c.Batch, max(1, c.MaxRate/portions))
		a.limit = rate.NewLimiter(rate.Limit(c.MaxRate), a.config.Batch)
	}
	reg.MustRegister(a.lag, a.moved)
	return a, nil
}

// Run archives in quiet hours until ctx ends, once through each time; the hours are by the database's clock.
func (a *Archiver) Run(ctx context.Context) error {
	window, err := quiet.Parse(a.config.Window)
	if err != nil {
		return fmt.Errorf("archive: window: %w", err)
	}
	var done time.Time // the end of the window in which everything was gone through
	tell := telemetry.NewRepeats(a.log, time.Hour, time.Now).Tell("archive stopped early", "archive goes on")
	look := func(ctx context.Context) error { return a.look(ctx, window, &done) }
	return lifecycle.Every(ctx, a.config.Interval, look, tell) //nolint:wrapcheck // nil
}

// look makes a pass if the hours are quiet and none was completed in them, and gauges the lag.
func (a *Archiver) look(ctx context.Context, window quiet.Window, done *time.Time) error {
	now, err := a.rows.Now(ctx)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if ends, open := window.Open(now); open && !ends.Equal(*done) {
		r, err := a.Pass(ctx, ends.Sub(now))
		if r.Moved+r.Windows+r.Inbox > 0 || r.Complete {
			a.log.Info("archived", zap.Int("coupons", r.Moved), zap.Int("waiting", r.Waiting), zap.Int("left", r.Left),
				zap.Int("digests", r.Windows), zap.Int("inbox", r.Inbox), zap.Bool("complete", r.Complete))
		}
		if err != nil {
			return err
		}
		if r.Complete {
			*done = ends
		}
	}
	lag, err := a.rows.ArchiveLag(ctx, a.config.After)
	if err != nil {
		return fmt.Errorf("archive lag: %w", err)
	}
	a.lag.Set(lag.Seconds())
	return nil
}

// Pass goes once over everything that may be old, within the budget; that it ran out is no error. After an error the report
// says what was done before it.
func (a *Archiver) Pass(ctx context.Context, budget time.Duration) (Report, error) {
	var r Report
	end, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	err := a.pass(end, &r)
	switch {
	case err != nil && ctx.Err() == nil && end.Err() != nil:
		return r, nil // the hours are over
	case err != nil:
		return r, err
	}
	r.Complete = !r.Busy
	return r, nil
}

func (a *Archiver) pass(ctx context.Context, r *Report) error {
	now, err := a.rows.Now(ctx)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	for _, of := range coupon.FinalStatuses() {
		if err := a.walk(ctx, of, now.Add(-a.config.After), r); err != nil || r.Busy {
			return err
		}
	}
	return a.prune(ctx, now, r)
}

// walk goes over one state, from where the last walk stopped around to there. Expired coupons stand in the order in which
// they become old, so that walk begins at the beginning.
func (a *Archiver) walk(ctx context.Context, of coupon.Status, before time.Time, r *Report) error {
	var start coupon.Cursor
	kept := of != coupon.Expired && a.shard.Of < 2
	if kept {
		var err error
		if start, err = a.rows.ArchivePlace(ctx, of); err != nil {
			return fmt.Errorf("archive: %w", err)
		}
	}
	at, turned := start, start == coupon.Cursor{}
	for {
		page, err := a.rows.FinishedPage(ctx, of, before, at, pageRows)
		if err != nil {
			return fmt.Errorf("archive: %w", err)
		}
		r.Looked++
		if err := a.move(ctx, page.Old, r); err != nil || r.Busy {
			return err
		}
		at = page.Next
		if !page.More {
			at = coupon.Cursor{}
		}
		if kept {
			if err := a.rows.PutArchivePlace(ctx, of, at); err != nil {
				return fmt.Errorf("archive: %w", err)
			}
		}
		switch {
		case !page.More && turned:
			return nil
		case !page.More:
			turned = true
		case turned && start != (coupon.Cursor{}) && !start.After(at):
			return nil // once around
		}
	}
}

// move archives what a page gave, batch by batch, at the rate.
func (a *Archiver) move(ctx context.Context, old []coupon.Finished, r *Report) error {
	batch := make([]coupon.Finished, 0, a.config.Batch)
	for i, f := range old {
		if a.shard.holds(f.ID) {
			batch = append(batch, f)
		}
		if len(batch) == 0 || len(batch) < a.config.Batch && i < len(old)-1 {
			continue
		}
		long, err := a.rows.OutboxLonger(ctx, a.config.MaxOutbox)
		if err != nil {
			return fmt.Errorf("archive: %w", err)
		}
		if r.Busy = long; long {
			return nil
		}
		if err := a.pay(ctx, len(batch)); err != nil {
			return err
		}
		moved, err := a.rows.ArchiveBatch(ctx, batch)
		if err != nil {
			return fmt.Errorf("archive: %w", err)
		}
		a.moved.Add(float64(moved.Moved))
		r.Moved, r.Steps, r.Waiting, r.Left = r.Moved+moved.Moved, r.Steps+moved.Steps, r.Waiting+moved.Waiting, r.Left+moved.Left
		batch = batch[:0]
	}
	return nil
}

// prune removes what users were told long ago. One shard does it.
func (a *Archiver) prune(ctx context.Context, now time.Time, r *Report) error {
	if a.shard.Of > 1 && a.shard.Part != 0 {
		return nil
	}
	var at uint64
	for more := true; more; more = at != 0 {
		pruned, next, err := a.rows.PruneNotices(ctx, now.Add(-a.config.NoticesAfter), at, a.config.Batch)
		if err == nil {
			err = a.pay(ctx, pruned)
		}
		if err != nil {
			return fmt.Errorf("remove old notices: %w", err)
		}
		r.Windows, at = r.Windows+pruned, next
	}
	for more := true; more; {
		pruned, again, err := a.rows.PruneInbox(ctx, now.Add(-a.config.InboxAfter), a.config.Batch)
		if err == nil {
			err = a.pay(ctx, pruned)
		}
		if err != nil {
			return fmt.Errorf("remove old inbox rows: %w", err)
		}
		r.Inbox, more = r.Inbox+pruned, again
	}
	for more := true; more; {
		pruned, again, err := a.rows.PruneNoticeCounts(ctx, now.Add(-countsAfter), a.config.Batch)
		if err == nil {
			err = a.pay(ctx, pruned)
		}
		if err != nil {
			return fmt.Errorf("remove old counts of notices: %w", err)
		}
		more = again
	}
	return nil
}

// pay waits until so many may be done at the rate, or ctx ends.
func (a *Archiver) pay(ctx context.Context, n int) error {
	if err := lifecycle.Sleep(ctx, a.limit.ReserveN(time.Now(), n).Delay()); err != nil {
		return fmt.Errorf("wait for max_rate: %w", err)
	}
	return nil
}
