package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	consoleLooks  = 200                    // of each question
	consoleFirst  = 35 * time.Second       // the first look waits for a reading, which has thirty
	consoleAgain  = 100 * time.Millisecond // p95 of looks at what is kept
	consoleLookup = 250 * time.Millisecond // p95 of look-ups, each of which asks the database
	consoleEvery  = 2 * time.Second
)

// console looks at the page's questions over as many coupons as its readings are meant for: the first look at each, then many, and
// what they say against SQL.
func (w *adoption) console(ctx context.Context, t *tally) error {
	env := func(worker string) map[string]string {
		if worker != demo.Publisher {
			return nil
		}
		return map[string]string{"LAPSE__CONSOLE__PER_SECOND": "1000", "LAPSE__CONSOLE__BURST": "10000", "LAPSE__CONSOLE__EVERY": consoleEvery.String()}
	}
	return w.open(ctx, t, opening{env: env}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		n := w.adopt.looked
		w.cfg.View.Step(fmt.Sprintf("%d coupons that end within thirty days", n))
		// One after the other over the month, from a day on: while it is looked at, the numbers stand still.
		from, spread := s.soon(24*time.Hour), 28*24*3600/60
		first, end, err := s.plant(ctx, planted{
			template: template, n: n, status: statusUnused, ends: from, apart: time.Minute, spread: spread, granted: s.Now().Add(-time.Hour), keys: true,
		})
		if err != nil {
			return err
		}
		told(t, "coupons", end-first)
		p, err := newPage(s)
		if err != nil {
			return err
		}
		defer p.client.CloseIdleConnections()
		if err := p.shared(ctx, t); err != nil {
			return err
		}
		if err := p.lookups(ctx, t, first, end); err != nil {
			return err
		}
		return p.agrees(ctx, t, s)
	})
}

// consolePage asks what the console's page asks.
type consolePage struct {
	url    string
	secret string
	client *http.Client
}

func newPage(s *shop) (*consolePage, error) {
	ports, err := s.Fleet().Ports(demo.Publisher)
	if err != nil {
		return nil, err //nolint:wrapcheck // names the file
	}
	return &consolePage{
		url: fmt.Sprintf("http://127.0.0.1:%d/console/api/", ports["admin"]), secret: s.secret,
		client: &http.Client{Timeout: consoleFirst, Transport: &http.Transport{MaxIdleConnsPerHost: 4}},
	}, nil
}

// ask gives how long an answer took; a refusal is an error.
func (p *consolePage) ask(ctx context.Context, question string, into any) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+question, nil)
	if err != nil {
		return 0, fmt.Errorf("asking the console: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+p.secret)
	began := time.Now()
	res, err := p.client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("asking the console: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // read only
	body, err := io.ReadAll(res.Body)
	took := time.Since(began)
	switch {
	case err != nil:
		return took, fmt.Errorf("asking the console: %w", err)
	case res.StatusCode != http.StatusOK:
		return took, &refusedError{question: question, status: res.StatusCode}
	case into == nil:
		return took, nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		return took, fmt.Errorf("asking the console %s: %w", question, err)
	}
	return took, nil
}

type refusedError struct {
	question string
	status   int
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("the console answered %s with %d", e.question, e.status)
}

func p95(took []time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)*95/100].Microseconds()) / 1000
}

// shared looks at what is read for all: the first look, which may wait, and many.
func (p *consolePage) shared(ctx context.Context, t *tally) error {
	for _, q := range []struct{ name, question string }{
		{"status", "status"},
		{"forecast_60m", "forecast?span=60m"},
		{"forecast_24h", "forecast?span=24h"},
		{"forecast_30d", "forecast?span=30d"},
		{"templates", "templates"},
		{"midnight", "midnight?at=" + strconv.FormatInt((time.Now().Unix()/900+90)*900, 10)},
	} {
		began := time.Now()
		for { // a page that is told that it takes too long asks again, and so do we
			_, err := p.ask(ctx, q.question, nil)
			if err == nil {
				break
			}
			if time.Since(began) > consoleFirst {
				return err
			}
		}
		want(t, q.name+".first_ms", float64(time.Since(began).Milliseconds()), AtMost, float64(consoleFirst.Milliseconds()))
		took := make([]time.Duration, consoleLooks)
		for i := range took {
			var err error
			if took[i], err = p.ask(ctx, q.question, nil); err != nil {
				return err
			}
		}
		want(t, q.name+".p95_ms", p95(took), AtMost, float64(consoleAgain.Milliseconds()))
	}
	return nil
}

// lookups looks coupons and users up, spread over all.
func (p *consolePage) lookups(ctx context.Context, t *tally, first, end int) error {
	for _, q := range []struct {
		name     string
		question func(i int) string
	}{
		{"coupon", func(i int) string { return "coupon?id=" + strconv.Itoa(first+i*7919%(end-first)) }},
		{"user", func(i int) string { return "user?id=" + url.QueryEscape(fmt.Sprintf("user-%d", i*7919%100_000)) }},
	} {
		took := make([]time.Duration, consoleLooks)
		for i := range took {
			var err error
			if took[i], err = p.ask(ctx, q.question(i), nil); err != nil {
				return err
			}
		}
		want(t, q.name+".p95_ms", p95(took), AtMost, float64(consoleLookup.Milliseconds()))
	}
	return nil
}

// agrees holds what the page says against SQL.
func (p *consolePage) agrees(ctx context.Context, t *tally, s *shop) error {
	var month struct {
		Forecast struct {
			Unused   int  `json:"unused"`
			Complete bool `json:"complete"`
			Buckets  []struct {
				Start   time.Time `json:"start"`
				End     time.Time `json:"end"`
				Unused  int       `json:"unused"`
				Counted string    `json:"counted"`
			} `json:"buckets"`
		} `json:"forecast"`
	}
	if _, err := p.ask(ctx, "forecast?span=30d", &month); err != nil {
		return err
	}
	wrong, whole := 0, 0
	for _, b := range month.Forecast.Buckets {
		there, err := countIn(ctx, s.DB(), `SELECT COUNT(*) FROM coupon WHERE status = 1 AND due_at >= ? AND due_at < ?`, b.Start.UTC(), b.End.UTC())
		if err != nil {
			return err
		}
		switch {
		case b.Counted == "all" && b.Unused != there, b.Counted == "at_least" && b.Unused > there:
			wrong++
		case b.Counted == "all":
			whole++
		}
	}
	want(t, "days_that_sql_counts_otherwise", wrong, Equal, 0)
	told(t, "days_counted_whole", whole)
	if month.Forecast.Complete {
		want(t, "days_not_counted_whole", len(month.Forecast.Buckets)-whole, Equal, 0)
	}
	return nil
}
