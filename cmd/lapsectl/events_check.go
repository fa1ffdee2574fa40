package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
)

type eventsCheck struct {
	Consumer string        `arg:"" help:"An http(s) URL that events are posted to, or the name of a queue on the installation's broker."`
	Seed     uint64        `default:"1" help:"Of the order in which they are sent."`
	Within   time.Duration `default:"10s" help:"How long each answer, or the queue's being emptied, may take."`
	JSON     bool          `name:"json" help:"Print JSON."`
}

// Help says what is sent, and what a consumer must do.
func (c *eventsCheck) Help() string {
	return `Sends a consumer what the contract lets happen: a valid sample of every event, each twice, in no order. Over HTTP each is a POST of structured
CloudEvents JSON, and both must be answered 2xx; whether the second did nothing, only you can see. To a queue they are published past all
exchanges, with confirms; it must then be emptied. Exit code 0: all were taken; 1: some were not, which are named. Samples are of
coupons that there are not: send them to no production consumer.`
}

const (
	checkLongest = 5 * time.Minute
	checkPoll    = 100 * time.Millisecond
	checkShown   = 20 // of an answer's faults
)

// checkJSON is what --json prints.
type checkJSON struct {
	Consumer string         `json:"consumer"`
	Sent     int            `json:"sent"`
	Types    int            `json:"types"`
	Refused  []refusedJSON  `json:"refused"`
	Left     int            `json:"left"` // in the queue
	Status   map[string]int `json:"status,omitempty"`
	TookMS   int64          `json:"took_ms"`
}

type refusedJSON struct {
	Sample string `json:"sample"`
	Time   int    `json:"time"` // 1: the first, 2: the repeat
	Why    string `json:"why"`
}

// sending is one sample, for the first or second time.
type sending struct {
	event.Sample
	time int
}

// plan is what is sent, in order: every sample twice, shuffled.
func (c *eventsCheck) plan() ([]sending, int, error) {
	samples, err := event.OutSamples()
	if err != nil {
		return nil, 0, err //nolint:wrapcheck // says what it does
	}
	types := map[string]bool{}
	out := make([]sending, 0, 2*len(samples))
	for _, s := range samples {
		types[s.Type] = true
		out = append(out, sending{Sample: s}, sending{Sample: s})
	}
	r := rand.New(rand.NewPCG(c.Seed, 0))
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	seen := map[string]int{}
	for i := range out {
		seen[out[i].Name]++
		out[i].time = seen[out[i].Name]
	}
	return out, len(types), nil
}

// Run sends.
func (c *eventsCheck) Run(ctx context.Context, s *system) error {
	if c.Within < time.Second || c.Within > checkLongest {
		return fmt.Errorf("--within: must be between 1s and %s, got %s", checkLongest, c.Within)
	}
	plan, types, err := c.plan()
	if err != nil {
		return err
	}
	began := time.Now()
	x := checkJSON{Consumer: c.Consumer, Sent: len(plan), Types: types, Refused: []refusedJSON{}}
	if strings.HasPrefix(c.Consumer, "http://") || strings.HasPrefix(c.Consumer, "https://") {
		err = c.post(ctx, plan, &x)
	} else {
		err = c.enqueue(ctx, s, plan, &x)
	}
	if err != nil {
		return err
	}
	x.TookMS = time.Since(began).Milliseconds()
	return c.report(s, x)
}

func (c *eventsCheck) report(s *system, x checkJSON) error {
	var err error
	if c.JSON {
		err = s.printJSON(x)
	} else {
		var b strings.Builder
		fmt.Fprintf(&b, "sent %d events of %d types, each sample twice, in no order\n", x.Sent, x.Types)
		for i, r := range x.Refused {
			if i == checkShown {
				fmt.Fprintf(&b, "and %d more\n", len(x.Refused)-checkShown)
				break
			}
			fmt.Fprintf(&b, "not taken: %s, time %d: %s\n", r.Sample, r.Time, shown(r.Why))
		}
		err = s.print(b.String())
	}
	switch {
	case err != nil:
		return err
	case len(x.Refused) > 0:
		return s.miss("%d of %d were not taken", len(x.Refused), x.Sent)
	case x.Left > 0:
		return s.miss("%d messages are still in the queue after %s", x.Left, c.Within)
	}
	return nil
}

// post sends over HTTP, one after the other.
func (c *eventsCheck) post(ctx context.Context, plan []sending, x *checkJSON) error {
	at, err := url.Parse(c.Consumer)
	if err != nil || at.Host == "" {
		return fmt.Errorf("consumer: must be a URL such as https://shop.example/events, got %q", clipped(c.Consumer))
	}
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: c.Within}
	x.Status = map[string]int{}
	for i := range plan {
		status, err := c.one(ctx, client, &plan[i])
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			x.Refused = append(x.Refused, refusedJSON{plan[i].Name, plan[i].time, err.Error()})
			x.Status["none"]++
			continue
		}
		x.Status[fmt.Sprint(status)]++
		if status < 200 || status > 299 {
			x.Refused = append(x.Refused, refusedJSON{plan[i].Name, plan[i].time, fmt.Sprintf("answered %d", status)})
		}
	}
	return nil
}

func (c *eventsCheck) one(ctx context.Context, client *http.Client, m *sending) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Consumer, bytes.NewReader(m.Body))
	if err != nil {
		return 0, fmt.Errorf("post: %w", err)
	}
	req.Header.Set("Content-Type", event.ContentType)
	res, err := client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("post: %w", err)
	}
	const most = 64 << 10
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, most))
	return res.StatusCode, errors.Join(err, res.Body.Close())
}

// enqueue publishes straight to the queue, and waits until it is empty.
func (c *eventsCheck) enqueue(ctx context.Context, s *system, plan []sending, x *checkJSON) error {
	cfg, err := s.settings(keyInstallation, keyBroker)
	if err != nil {
		return err
	}
	client, _, err := s.broker(cfg, func(*ladder.Ladder) ladder.Plan { return ladder.Plan{} })
	if err != nil {
		return err
	}
	if _, err := client.Depths(ctx, []string{c.Consumer}); err != nil {
		return fmt.Errorf("queue %s: %w", clipped(c.Consumer), err)
	}
	return withPublisher(ctx, client, func(p *broker.Publisher) error {
		ms := make([]broker.Message, len(plan))
		for i := range plan {
			ms[i] = broker.Event("", c.Consumer, plan[i].ID, "", plan[i].Body)
		}
		for i, err := range p.Publish(ctx, ms) {
			if err != nil {
				x.Refused = append(x.Refused, refusedJSON{plan[i].Name, plan[i].time, err.Error()})
			}
		}
		return c.drained(ctx, client, x)
	})
}

func (c *eventsCheck) drained(ctx context.Context, client *broker.Client, x *checkJSON) error {
	end := time.NewTimer(c.Within)
	poll := time.NewTicker(checkPoll)
	defer end.Stop()
	defer poll.Stop()
	for {
		depths, err := client.Depths(ctx, []string{c.Consumer})
		if err != nil {
			return fmt.Errorf("queue %s: %w", clipped(c.Consumer), err)
		}
		if x.Left = depths[c.Consumer]; x.Left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end.C:
			return nil
		case <-poll.C:
		}
	}
}
