package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/store"
)

type parkedCommand struct {
	List    parkedList    `cmd:"" help:"List what was set aside, with the reasons, and count it."`
	Show    parkedShow    `cmd:"" help:"Show one of them with its body."`
	Replay  parkedReplay  `cmd:"" help:"Send what was set aside to where it came from."`
	Discard parkedDiscard `cmd:"" help:"Delete what was set aside."`
	Log     parkedLog     `cmd:"" help:"Show who replayed and discarded what, and why."`
}

// Places where things are set aside.
const (
	placeParked     = "parked"     // the queue P.parked
	placeUnroutable = "unroutable" // the queue P.unroutable, which the expirer drains
	placeOutbox     = "outbox"     // rows that the broker refused
)

const (
	siftPage     = 100
	maxParked    = 100_000
	parkedLimit  = 10_000 // looked through by default
	deedRefs     = 50     // named in the record of a deed
	bodyShown    = 16 << 10
	refPrefixRow = "row-"
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
		if !slices.Contains([]string{placeParked, placeUnroutable, placeOutbox}, in) {
			errs = append(errs, fmt.Errorf("--in: must be parked, unroutable or outbox, got %q", in))
		}
	}
	if f.Scan < 1 || f.Scan > maxParked {
		errs = append(errs, fmt.Errorf("--scan: must be between 1 and %d, got %d", maxParked, f.Scan))
	}
	return errors.Join(errs...)
}

func (f *parkedFilter) takes(p parkedItem) bool {
	return (len(f.Ref) == 0 || slices.Contains(f.Ref, p.Ref)) &&
		(f.Origin == "" || p.Origin == f.Origin) && (f.ReasonHas == "" || strings.Contains(p.Reason, f.ReasonHas))
}

// narrow tells whether anything is chosen, so that nothing large happens by an oversight.
func (f *parkedFilter) narrow() bool { return len(f.Ref) > 0 || f.Origin != "" || f.ReasonHas != "" }

// parkedItem is one thing that was set aside, as --json prints it.
type parkedItem struct {
	Ref       string  `json:"ref"`
	Place     string  `json:"place"`
	Origin    string  `json:"origin"` // queue, or lane of the outbox; empty: not known
	Reason    string  `json:"reason"`
	MessageID string  `json:"message_id"`
	Key       string  `json:"key"`
	Bytes     int     `json:"bytes"`
	ParkedAt  *string `json:"parked_at"` // of outbox rows
	Body      *string `json:"body,omitempty"`

	row      uint64
	delivery broker.Delivery
}

// refOf names a message by what it is: the broker gives none.
func refOf(d broker.Delivery) string {
	h := sha256.New()
	for _, part := range []string{d.Queue, d.MessageID, d.Key} {
		_, _ = h.Write([]byte(strconv.Itoa(len(part)) + ":" + part)) // a hash takes everything
	}
	_, _ = h.Write(d.Body)
	return hex.EncodeToString(h.Sum(nil))[:12]
}

func itemOf(place string, d broker.Delivery) parkedItem {
	p := parkedItem{
		Ref: refOf(d), Place: place, MessageID: d.MessageID, Key: d.Key, Bytes: len(d.Body), delivery: d,
	}
	p.Origin, p.Reason = d.Aside()
	if p.Reason == "" && place == placeUnroutable {
		p.Reason = "no queue for its key"
	}
	return p
}

func rowItem(r store.ParkedRow) parkedItem {
	lane := "events"
	if r.Lane == coupon.LaneTrigger {
		lane = "triggers"
	}
	at := instant(r.ParkedAt)
	return parkedItem{
		Ref: refPrefixRow + strconv.FormatUint(r.ID, 10), Place: placeOutbox, Origin: lane, Reason: r.Reason, MessageID: r.MsgID,
		Key: r.Key, Bytes: len(r.Body), ParkedAt: &at, row: r.ID, delivery: broker.Delivery{Body: r.Body},
	}
}

// aside is what the commands work on.
type aside struct {
	s      *system
	db     *store.Store
	client *broker.Client
	ladder *ladder.Ladder
	codec  *event.Codec
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
		return f(&aside{s: s, db: db, client: client, ladder: l, codec: codec})
	})
}

// queues are the places that are queues, with their names.
func (a *aside) queues(in []string) map[string]string {
	all := map[string]string{placeParked: a.ladder.Parked(), placeUnroutable: a.ladder.Unroutable()}
	for place := range all {
		if !slices.Contains(in, place) {
			delete(all, place)
		}
	}
	return all
}

// pages hands every chosen thing to do, a page at a time; do answers which of them are dealt with, and those are gone.
// It gives how many things were looked through.
func (a *aside) pages(ctx context.Context, f *parkedFilter, do func(place string, chosen []parkedItem) (done []bool, err error)) (seen int, err error) {
	queues := a.queues(f.In)
	for _, place := range []string{placeParked, placeUnroutable} {
		queue, ok := queues[place]
		if !ok {
			continue
		}
		n, _, err := a.client.Sift(ctx, queue, f.Scan, siftPage, func(ds []broker.Delivery) ([]bool, error) {
			drop := make([]bool, len(ds))
			var chosen []parkedItem
			var at []int
			for i := range ds {
				if p := itemOf(place, ds[i]); f.takes(p) {
					chosen, at = append(chosen, p), append(at, i)
				}
			}
			if len(chosen) == 0 {
				return drop, nil
			}
			done, err := do(place, chosen)
			for k := range done {
				drop[at[k]] = done[k]
			}
			return drop, err
		})
		seen += n
		if err != nil {
			return seen, err //nolint:wrapcheck // names the queue
		}
	}
	if !slices.Contains(f.In, placeOutbox) {
		return seen, nil
	}
	n, err := a.rows(ctx, f, do)
	return seen + n, err
}

func (a *aside) rows(ctx context.Context, f *parkedFilter, do func(place string, chosen []parkedItem) ([]bool, error)) (seen int, err error) {
	var after uint64
	for seen < f.Scan {
		page, err := a.db.ParkedOutbox(ctx, after, min(siftPage, f.Scan-seen))
		if err != nil || len(page) == 0 {
			return seen, err //nolint:wrapcheck // named by the store
		}
		seen, after = seen+len(page), page[len(page)-1].ID
		var chosen []parkedItem
		for _, r := range page {
			if p := rowItem(r); f.takes(p) {
				chosen = append(chosen, p)
			}
		}
		if len(chosen) > 0 {
			if _, err := do(placeOutbox, chosen); err != nil {
				return seen, err
			}
		}
	}
	return seen, nil
}

type parkedList struct {
	parkedFilter
	Limit int  `default:"50" help:"Show so many; all are counted."`
	JSON  bool `name:"json" help:"Print JSON."`
}

// countJSON counts what is alike.
type countJSON struct {
	Place  string `json:"place"`
	Origin string `json:"origin"`
	Reason string `json:"reason"` // without its numbers
	N      int    `json:"n"`
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
		seen, err := a.pages(ctx, &c.parkedFilter, func(_ string, chosen []parkedItem) ([]bool, error) {
			for _, p := range chosen {
				n++
				counts[countJSON{Place: p.Place, Origin: p.Origin, Reason: alike(p.Reason)}]++
				if len(items) < c.Limit {
					p.delivery = broker.Delivery{}
					items = append(items, p)
				}
			}
			return nil, nil
		})
		if err != nil {
			return err
		}
		list := countsOf(counts)
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

// alike is a reason without its numbers, so that the same fault of many coupons counts as one.
func alike(reason string) string {
	var b strings.Builder
	digit := false
	for _, r := range reason {
		if r >= '0' && r <= '9' {
			if !digit {
				b.WriteByte('#')
			}
			digit = true
			continue
		}
		digit = false
		b.WriteRune(r)
	}
	return b.String()
}

func countsOf(counts map[countJSON]int) []countJSON {
	out := make([]countJSON, 0, len(counts))
	for k, n := range counts {
		k.N = n
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b countJSON) int {
		if a.N != b.N {
			return b.N - a.N
		}
		return strings.Compare(a.Place+a.Origin+a.Reason, b.Place+b.Origin+b.Reason)
	})
	return out
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
	f := parkedFilter{In: []string{placeParked, placeUnroutable, placeOutbox}, Ref: []string{c.Ref}, Scan: c.Scan}
	if err := f.check(); err != nil {
		return err
	}
	return s.withAside(ctx, func(a *aside) error {
		var found *parkedItem
		_, err := a.pages(ctx, &f, func(_ string, chosen []parkedItem) ([]bool, error) {
			found = &chosen[0]
			return nil, nil
		})
		switch {
		case err != nil:
			return err
		case found == nil:
			return s.miss("nothing that was set aside is called %s", c.Ref)
		}
		body := found.delivery.Body
		text := string(body[:min(len(body), bodyShown)])
		if !utf8.ValidString(text) {
			text = strconv.Quote(text)
		}
		found.Body = &text
		return s.printJSON(found)
	})
}
