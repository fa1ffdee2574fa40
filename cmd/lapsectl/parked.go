package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/parked"
	"github.com/lapsehq/lapse/pkg/store"
)

type parkedCommand struct {
	List    parkedList    `cmd:"" help:"List what was set aside, with the reasons, and count it."`
	Show    parkedShow    `cmd:"" help:"Show one of them with its body."`
	Replay  parkedReplay  `cmd:"" help:"Send what was set aside to where it came from."`
	Discard parkedDiscard `cmd:"" help:"Delete what was set aside."`
	Log     parkedLog     `cmd:"" help:"Show who replayed and discarded what, and why."`
}

const (
	maxParked = 100_000
	bodyShown = 16 << 10
)

// parkedFilter chooses among what was set aside.
type parkedFilter struct {
	In        []string `default:"parked,unroutable,outbox" help:"Where to look: parked, unroutable, outbox."`
	Ref       []string `help:"These alone, as list names them."`
	Origin    string   `placeholder:"QUEUE" help:"What came from this queue."`
	ReasonHas string   `placeholder:"TEXT" help:"What has this text in the reason for which it was set aside."`
	Scan      int      `default:"10000" help:"Look through so many of each place at most."`
}

func (f *parkedFilter) check() error {
	var errs []error
	for _, in := range f.In {
		if !slices.Contains(parked.Places(), in) {
			errs = append(errs, fmt.Errorf("--in: must be parked, unroutable or outbox, got %q", in))
		}
	}
	if f.Scan < 1 || f.Scan > maxParked {
		errs = append(errs, fmt.Errorf("--scan: must be between 1 and %d, got %d", maxParked, f.Scan))
	}
	return errors.Join(errs...)
}

func (f *parkedFilter) filter() parked.Filter {
	return parked.Filter{In: f.In, Refs: f.Ref, Origin: f.Origin, ReasonHas: f.ReasonHas, Scan: f.Scan}
}

// narrow tells whether anything is chosen, so that nothing large happens by an oversight.
func (f *parkedFilter) narrow() bool { return len(f.Ref) > 0 || f.Origin != "" || f.ReasonHas != "" }

type (
	parkedItem = parked.Item  // as --json prints it
	countJSON  = parked.Count // likewise
)

// aside is what the commands work on.
type aside struct {
	s *system
	parked.Desk
}

func (s *system) withAside(ctx context.Context, f func(*aside) error) error {
	cfg, err := s.settings(keyInstallation, keyBroker)
	if err != nil {
		return err
	}
	codec, err := event.NewCodec(cfg.Installation)
	if err != nil {
		return err //nolint:wrapcheck // names the field
	}
	client, l, err := s.broker(cfg, func(l *ladder.Ladder) ladder.Plan {
		return part(l, l.Parked(), l.ParkExchange(), l.Unroutable())
	})
	if err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		return f(&aside{s: s, Desk: parked.Desk{DB: db, Client: client, Ladder: l, Codec: codec}})
	})
}

type parkedList struct {
	parkedFilter
	Limit int  `default:"50" help:"Show so many; all are counted."`
	JSON  bool `name:"json" help:"Print JSON."`
}

// Run lists. Exit code 1 if anything was set aside.
func (c *parkedList) Run(ctx context.Context, s *system) error {
	if err := c.check(); err != nil {
		return err
	}
	return s.withAside(ctx, func(a *aside) error {
		items := []parkedItem{}
		counts := map[countJSON]int{}
		n := 0
		filter := c.filter()
		seen, err := a.Pages(ctx, &filter, func(_ string, chosen []parkedItem) ([]bool, error) {
			for _, p := range chosen {
				n++
				counts[countJSON{Place: p.Place, Origin: p.Origin, Reason: parked.Alike(p.Reason)}]++
				if len(items) < c.Limit {
					p.Delivery = broker.Delivery{}
					items = append(items, p)
				}
			}
			return nil, nil
		})
		if err != nil {
			return err
		}
		list := parked.CountsOf(counts)
		if c.JSON {
			err = s.printJSON(map[string]any{"looked_through": seen, "found": n, "counts": list, "items": items})
		} else {
			err = s.print(asideText(list, items, n))
		}
		if err == nil && n > 0 {
			return s.miss("%d set aside", n)
		}
		return err
	})
}

func asideText(counts []countJSON, items []parkedItem, n int) string {
	if n == 0 {
		return "nothing was set aside\n"
	}
	c := table{{"N", "PLACE", "FROM", "REASON"}}
	for _, x := range counts {
		c = append(c, []string{strconv.Itoa(x.N), x.Place, x.Origin, x.Reason})
	}
	t := table{{"REF", "PLACE", "FROM", "MESSAGE", "KEY", "BYTES", "REASON"}}
	for _, p := range items {
		t = append(t, []string{p.Ref, p.Place, p.Origin, p.MessageID, p.Key, strconv.Itoa(p.Bytes), p.Reason})
	}
	text := c.String() + "\n" + t.String()
	if n > len(items) {
		text += fmt.Sprintf("… and %d more\n", n-len(items))
	}
	return text
}

type parkedShow struct {
	Ref  string `arg:"" help:"As list names it."`
	Scan int    `default:"10000" help:"Look through so many of each place at most."`
}

// Run shows one, as JSON.
func (c *parkedShow) Run(ctx context.Context, s *system) error {
	f := parkedFilter{In: parked.Places(), Ref: []string{c.Ref}, Scan: c.Scan}
	if err := f.check(); err != nil {
		return err
	}
	return s.withAside(ctx, func(a *aside) error {
		var found *parkedItem
		filter := f.filter()
		_, err := a.Pages(ctx, &filter, func(_ string, chosen []parkedItem) ([]bool, error) {
			found = &chosen[0]
			return nil, nil
		})
		switch {
		case err != nil:
			return err
		case found == nil:
			return s.miss("nothing that was set aside is called %s", c.Ref)
		}
		body := found.Delivery.Body
		text := string(body[:min(len(body), bodyShown)])
		if !utf8.ValidString(text) {
			text = strconv.Quote(text)
		}
		found.Body = &text
		return s.printJSON(found)
	})
}
