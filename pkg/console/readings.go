package console

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/status"
)

const (
	samples       = 240              // of the past that are kept: twenty minutes at one each five seconds
	shown         = 100              // templates
	forecastLimit = 30 * time.Second // of one forecast
	rowsOfAnHour  = 300_000          // counted for the next sixty minutes at most
	rowsOfADay    = 1_000_000
	mostMidnights = 16 // kept: one for each zone that somebody looks from
	midnightSpan  = 10 * time.Minute
)

// sample is what the charts draw.
type sample struct {
	At      int64   `json:"at"` // milliseconds since 1970
	Waiting int     `json:"waiting"`
	Due     int     `json:"due"`
	Issued  float64 `json:"issued"`
	Expired float64 `json:"expired"`
	P99MS   float64 `json:"p99_ms"`
}

// reading is the state of the installation.
type reading struct {
	state status.Status
	due   int
}

// spans are the forecasts that are kept.
func (c *Console) spans() map[string]struct {
	bucket, length, every time.Duration
	rows                  int
} {
	type span = struct {
		bucket, length, every time.Duration
		rows                  int
	}
	return map[string]span{
		"60m": {time.Minute, time.Hour, 15 * time.Second, min(c.cfg.Rows, rowsOfAnHour)},
		"24h": {time.Hour, 24 * time.Hour, time.Minute, min(c.cfg.Rows, rowsOfADay)},
		"30d": {24 * time.Hour, 30 * 24 * time.Hour, 5 * time.Minute, c.cfg.Rows},
	}
}

// readings makes what is read for all.
func (c *Console) readings() {
	c.state = &kept[reading]{
		every: c.cfg.Every, stale: 3 * c.cfg.Every, within: c.cfg.Timeout, turn: c.seats, work: c.work, now: c.deps.Now, read: c.readState,
	}
	c.templates = &kept[templates]{
		every: 2 * c.cfg.Every, stale: 6 * c.cfg.Every, within: c.cfg.Timeout, turn: c.seats, work: c.work, now: c.deps.Now, read: c.readTemplates,
	}
	c.aside = &kept[set]{
		every: time.Second, stale: time.Second, within: c.cfg.Timeout, turn: c.seats, work: c.work, now: c.deps.Now, read: c.readParked,
	}
	c.forecasts = map[string]*kept[status.Forecast]{}
	for name, s := range c.spans() {
		c.forecasts[name] = &kept[status.Forecast]{
			every: s.every, stale: 3 * s.every, within: forecastLimit, turn: c.turn, work: c.work, now: c.deps.Now,
			read: func(ctx context.Context) (status.Forecast, error) {
				now, err := c.deps.Store.Now(ctx)
				if err != nil {
					return status.Forecast{}, err //nolint:wrapcheck // says what it does
				}
				return c.count(ctx, coupon.ForecastQuery{
					From: now, To: now.Truncate(s.bucket).Add(s.length), Bucket: s.bucket, Cap: s.rows, Budget: s.rows,
				})
			},
		}
	}
}

func (c *Console) count(ctx context.Context, q coupon.ForecastQuery) (status.Forecast, error) {
	f, err := c.deps.Store.Forecast(ctx, q)
	if err != nil {
		return status.Forecast{}, err //nolint:wrapcheck // says what it does
	}
	return status.ForecastOf(q, f, ""), nil
}

// readState reads the state, and keeps what the charts draw of it.
func (c *Console) readState(ctx context.Context) (reading, error) {
	s, err := status.Read(ctx, c.deps.Store, c.deps.Installation, c.deps.Queues)
	if err != nil {
		return reading{}, err //nolint:wrapcheck // says what it does
	}
	r := reading{state: s}
	for _, q := range s.Broker.Queues {
		if q.Role == string(ladder.RoleDue) {
			r.due += q.Messages
		}
	}
	if !s.Broker.Reachable {
		return r, nil // a gap in the chart, not a zero
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.past) == samples {
		c.past = append(c.past[:0:0], c.past[1:]...)
	}
	c.past = append(c.past, sample{
		At: c.deps.Now().UnixMilli(), Waiting: s.Broker.Waiting, Due: r.due, Issued: s.Rates.Issued, Expired: s.Rates.Expired, P99MS: s.Lateness.P99MS,
	})
	return r, nil
}

type statusOut struct {
	ReadAt string        `json:"read_at"`
	Status status.Status `json:"status"`
	Notes  []status.Note `json:"notes"`
	Due    int           `json:"due"`
	Past   []sample      `json:"past"` // oldest first
}

func (c *Console) status(ctx context.Context, _ asked) (any, error) {
	r, at, err := c.state.get(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	past := append([]sample{}, c.past...)
	c.mu.Unlock()
	return statusOut{status.Instant(at), r.state, r.state.Notes, r.due, past}, nil
}

type forecastOut struct {
	ReadAt   string          `json:"read_at"`
	Forecast status.Forecast `json:"forecast"`
}

func (c *Console) forecast(ctx context.Context, r asked) (any, error) {
	span, err := query(r, "span", 8)
	if err != nil {
		return nil, err
	}
	k, ok := c.forecasts[span]
	if !ok {
		return nil, api.NewProblem(http.StatusBadRequest, api.CodeBadRequest, fmt.Sprintf("query.span: must be 60m, 24h or 30d, got %q", span))
	}
	f, at, err := k.get(ctx)
	if err != nil {
		return nil, err
	}
	return forecastOut{status.Instant(at), f}, nil
}

// midnight is what comes due in the ten minutes from an instant on, which is midnight somewhere: ends at a full day are many, and are
// spread over as long by their precision.
func (c *Console) midnight(ctx context.Context, r asked) (any, error) {
	text, err := query(r, "at", 16)
	if err != nil {
		return nil, err
	}
	seconds, perr := strconv.ParseInt(text, 10, 64)
	at, now := time.Unix(seconds, 0).UTC(), c.deps.Now()
	if perr != nil || seconds%900 != 0 || at.Before(now.Add(-time.Hour)) || at.After(now.Add(26*time.Hour)) {
		return nil, api.NewProblem(http.StatusBadRequest, api.CodeBadRequest,
			"query.at: must be a quarter of an hour within the next day, in seconds since 1970")
	}
	k := c.midnightOf(at, now)
	if k == nil {
		return nil, api.NewProblem(http.StatusServiceUnavailable, api.CodeBusy, "too many zones look at once")
	}
	f, read, err := k.get(ctx)
	if err != nil {
		return nil, err
	}
	return forecastOut{status.Instant(read), f}, nil
}

func (c *Console) midnightOf(at, now time.Time) *kept[status.Forecast] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.midnights[at]; k != nil {
		return k
	}
	for old := range c.midnights {
		if old.Before(now) {
			delete(c.midnights, old)
		}
	}
	if len(c.midnights) >= mostMidnights {
		return nil
	}
	k := &kept[status.Forecast]{
		every: 30 * time.Second, stale: 2 * time.Minute, within: forecastLimit, turn: c.turn, work: c.work, now: c.deps.Now,
		read: func(ctx context.Context) (status.Forecast, error) {
			return c.count(ctx, coupon.ForecastQuery{From: at, To: at.Add(midnightSpan), Bucket: 5 * time.Minute, Cap: rowsOfADay, Budget: rowsOfADay})
		},
	}
	c.midnights[at] = k
	return k
}

// templates is the states of the templates that were made last.
type templates struct {
	Templates []templateOut `json:"templates"`
	More      bool          `json:"more"` // there are older ones
}

type templateOut struct {
	TemplateID string    `json:"template_id"`
	Name       string    `json:"name"`
	Value      int64     `json:"value"`
	Currency   string    `json:"currency"`
	Offer      api.Offer `json:"offer"` // without its conditions
	Stopped    bool      `json:"stopped"`
	Granted    int64     `json:"granted"`
	Unused     int64     `json:"unused"`
	Locked     int64     `json:"locked"`
	Used       int64     `json:"used"`
	Expired    int64     `json:"expired"`
	Voided     int64     `json:"voided"`
}

func (c *Console) readTemplates(ctx context.Context) (templates, error) {
	ts, more, err := c.deps.Store.TemplateStates(ctx, shown)
	if err != nil {
		return templates{}, err //nolint:wrapcheck // says what it does
	}
	out := templates{Templates: make([]templateOut, len(ts)), More: more}
	for i, t := range ts {
		out.Templates[i] = templateOut{
			TemplateID: strconv.FormatUint(t.TemplateID, 10), Name: t.Name, Value: t.Value, Currency: t.Currency, Offer: api.ShowOffer(t.Offer), Stopped: t.Stopped,
			Granted: t.Granted, Unused: t.Unused, Locked: t.Locked, Used: t.Used, Expired: t.Expired, Voided: t.Voided,
		}
	}
	return out, nil
}

type templatesOut struct {
	ReadAt string `json:"read_at"`
	templates
}

func (c *Console) templateStates(ctx context.Context, _ asked) (any, error) {
	t, at, err := c.templates.get(ctx)
	if err != nil {
		return nil, err
	}
	return templatesOut{status.Instant(at), t}, nil
}
