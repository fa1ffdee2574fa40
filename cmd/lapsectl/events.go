package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
)

type eventsCommand struct {
	Tail   eventsTail   `cmd:"" help:"Print events from now on, one a line, until Ctrl-C."`
	Replay eventsReplay `cmd:"" help:"Publish events of coupons again, from their history."`
	Sample eventsSample `cmd:"" help:"Print valid events of a type."`
	Check  eventsCheck  `cmd:"" help:"Send a consumer every sample twice and out of order, and report."`
}

type eventsTail struct {
	Type  []string `placeholder:"TYPE" help:"Only events of these types: coupon.expired, or expired."`
	Limit int      `placeholder:"N" help:"End after so many events; 0: never."`
	JSON  bool     `name:"json" help:"Print the events as they are, one a line."`
}

// Help says that nobody is disturbed.
func (c *eventsTail) Help() string {
	return "It watches through a queue of its own that goes with it; nobody else gets less. Events of before, and of a lost connection, are not shown."
}

var versioned = regexp.MustCompile(`\.v[0-9]+$`)

// keys gives the routing keys of the types; of none, of all.
func (c *eventsTail) keys() ([]string, error) {
	keys, err := keysOf(c.Type)
	if len(keys) == 0 {
		keys = []string{"#"}
	}
	return keys, err
}

// keysOf gives the routing keys of the types.
func keysOf(types []string) ([]string, error) {
	known := make([]string, 0, len(event.OutTypes()))
	for _, typ := range event.OutTypes() {
		known = append(known, versioned.ReplaceAllString(typ, ""))
	}
	keys := make([]string, 0, len(types))
	for _, typ := range types {
		key := versioned.ReplaceAllString(typ, "")
		if !strings.Contains(key, ".") {
			key = "coupon." + key
		}
		if !slices.Contains(known, key) {
			return nil, fmt.Errorf("--type: must be one of %s, got %q", strings.Join(known, ", "), typ)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// errEnough ends the watch when --limit is reached.
var errEnough = errors.New("enough")

// Run prints until ctx ends.
func (c *eventsTail) Run(ctx context.Context, s *system) error {
	keys, err := c.keys()
	if c.Limit < 0 {
		err = errors.Join(err, fmt.Errorf("--limit: must be 0 or more, got %d", c.Limit))
	}
	if err != nil {
		return err
	}
	cfg, err := s.settings(keyInstallation, keyBroker)
	if err != nil {
		return err
	}
	var exchange string
	client, _, err := s.broker(cfg, func(l *ladder.Ladder) ladder.Plan {
		exchange = l.Events()
		return ladder.Plan{} // a watcher declares nothing that stays
	})
	if err != nil {
		return err
	}
	seen := 0
	see := func(d broker.Delivery) error {
		if err := s.print(c.line(d)); err != nil {
			return err
		}
		if seen++; seen == c.Limit {
			return errEnough
		}
		return nil
	}
	return c.watch(ctx, s, client, exchange, keys, see)
}

// watch tails for as long as it takes: once it has begun, a lost connection is made anew.
func (c *eventsTail) watch(ctx context.Context, s *system, client *broker.Client, exchange string, keys []string, see func(broker.Delivery) error) error {
	begun := false
	wait := backoff.NewExponentialBackOff()
	ready := func() {
		begun = true
		wait.Reset()
		s.note("watching %s for %s", exchange, strings.Join(keys, ", "))
	}
	for {
		err := client.Tail(ctx, exchange, keys, ready, see)
		var missing *broker.MissingError
		switch {
		case err == nil, errors.Is(err, errEnough), ctx.Err() != nil:
			return nil
		case errors.As(err, &missing):
			return fmt.Errorf("%w: no worker of this installation has run here yet", err)
		case !begun, errors.Is(err, errPrint):
			return err //nolint:wrapcheck // says what it does
		}
		s.note("%v; trying again, events of the meantime are not shown", err)
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// line is an event on one line.
func (c *eventsTail) line(d broker.Delivery) string {
	var e struct {
		Type    string          `json:"type"`
		ID      string          `json:"id"`
		Subject string          `json:"subject"`
		Time    string          `json:"time"`
		Data    json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(d.Body, &e); err != nil {
		return fmt.Sprintf("unreadable event on %s: %q\n", shown(d.Key), clip(d.Body))
	}
	if c.JSON {
		return string(compacted(d.Body)) + "\n"
	}
	words := []string{shown(e.Time), shown(e.Type), shown(e.Subject)}
	for _, f := range fields(e.Data) {
		if f[0] != "coupon_id" && f[1] != "null" && f[1] != "" { // the subject has it
			words = append(words, f[0]+"="+f[1])
		}
	}
	return strings.Join(words, " ") + "\n"
}

// fields are the members of a JSON object, in their order, as words.
func fields(object []byte) [][2]string {
	dec := json.NewDecoder(bytes.NewReader(object))
	dec.UseNumber()
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil
	}
	var out [][2]string
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return out
		}
		var value any
		if err := dec.Decode(&value); err != nil {
			return out
		}
		word := "null"
		switch v := value.(type) {
		case nil:
		case string:
			word = v
			if strings.ContainsAny(v, " =\"") {
				word = fmt.Sprintf("%q", v)
			}
		default:
			b, err := json.Marshal(v)
			if err != nil {
				return out
			}
			word = string(b)
		}
		out = append(out, [2]string{shown(fmt.Sprint(name)), shown(word)})
	}
	return out
}

// compacted is a document without the space between its parts; what is none stays as it is.
func compacted(body []byte) []byte {
	var one bytes.Buffer
	if json.Compact(&one, body) != nil {
		return body
	}
	return one.Bytes()
}

func clip(b []byte) []byte { return b[:min(len(b), 200)] }
