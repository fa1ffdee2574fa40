// Package parked looks through what was set aside, and brings it back: messages that could not be handled (the queue P.parked), that
// found no route (P.unroutable), and outbox rows that the broker refused. lapsectl and the console use it.
//
// Invariants: what is replayed is sent and confirmed, then written into the operators' log, and only then taken out: an end in
// between makes it come twice, which every consumer bears, and never makes it vanish. Nothing is moved without an actor and a reason.
package parked

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/store"
)

// Places where things are set aside.
const (
	Queue      = "parked"     // the queue P.parked
	Unroutable = "unroutable" // the queue P.unroutable, which the expirer drains
	Outbox     = "outbox"     // rows that the broker refused
)

// Places lists them all.
func Places() []string { return []string{Queue, Unroutable, Outbox} }

const (
	page         = 100
	deedRefs     = 50 // named in the record of a deed
	refPrefixRow = "row-"
)

// Filter chooses among what was set aside.
type Filter struct {
	In        []string // places
	Refs      []string // these alone; empty: all
	Origin    string   // the queue that it came from; empty: any
	ReasonHas string
	Scan      int // so many of each place are looked through at most
}

// Takes tells whether it is chosen.
func (f *Filter) Takes(p Item) bool {
	return (len(f.Refs) == 0 || slices.Contains(f.Refs, p.Ref)) &&
		(f.Origin == "" || p.Origin == f.Origin) && (f.ReasonHas == "" || strings.Contains(p.Reason, f.ReasonHas))
}

// Item is one thing that was set aside.
type Item struct {
	Ref       string  `json:"ref"`
	Place     string  `json:"place"`
	Origin    string  `json:"origin"` // queue, or lane of the outbox; empty: not known
	Reason    string  `json:"reason"`
	MessageID string  `json:"message_id"`
	Key       string  `json:"key"`
	Bytes     int     `json:"bytes"`
	ParkedAt  *string `json:"parked_at"` // of outbox rows
	Body      *string `json:"body,omitempty"`

	Row      uint64          `json:"-"` // of the outbox
	Delivery broker.Delivery `json:"-"`
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

func itemOf(place string, d broker.Delivery) Item {
	p := Item{
		Ref: refOf(d), Place: place, MessageID: d.MessageID, Key: d.Key, Bytes: len(d.Body), Delivery: d,
	}
	p.Origin, p.Reason = d.Aside()
	if p.Reason == "" && place == Unroutable {
		p.Reason = "no queue for its key"
	}
	return p
}

func rowItem(r store.ParkedRow) Item {
	lane := "events"
	if r.Lane == coupon.LaneTrigger {
		lane = "triggers"
	}
	at := r.ParkedAt.UTC().Format("2006-01-02T15:04:05.000Z")
	return Item{
		Ref: refPrefixRow + strconv.FormatUint(r.ID, 10), Place: Outbox, Origin: lane, Reason: r.Reason, MessageID: r.MsgID,
		Key: r.Key, Bytes: len(r.Body), ParkedAt: &at, Row: r.ID, Delivery: broker.Delivery{Body: r.Body},
	}
}

// Desk is where it is looked through. Client needs P.parked and P.unroutable to be there.
type Desk struct {
	DB     *store.Store
	Client *broker.Client
	Ladder *ladder.Ladder
	Codec  *event.Codec
}

// queues are the places that are queues, with their names.
func (d *Desk) queues(in []string) map[string]string {
	all := map[string]string{Queue: d.Ladder.Parked(), Unroutable: d.Ladder.Unroutable()}
	for place := range all {
		if !slices.Contains(in, place) {
			delete(all, place)
		}
	}
	return all
}

// Pages hands every chosen thing to do, a page at a time; do answers which of them are dealt with, and those are gone.
// It gives how many things were looked through.
func (d *Desk) Pages(ctx context.Context, f *Filter, do func(place string, chosen []Item) (done []bool, err error)) (seen int, err error) {
	queues := d.queues(f.In)
	for _, place := range []string{Queue, Unroutable} {
		queue, ok := queues[place]
		if !ok {
			continue
		}
		n, _, err := d.Client.Sift(ctx, queue, f.Scan, page, func(ds []broker.Delivery) ([]bool, error) {
			drop := make([]bool, len(ds))
			var chosen []Item
			var at []int
			for i := range ds {
				if p := itemOf(place, ds[i]); f.Takes(p) {
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
	if !slices.Contains(f.In, Outbox) {
		return seen, nil
	}
	n, err := d.rows(ctx, f, do)
	return seen + n, err
}

func (d *Desk) rows(ctx context.Context, f *Filter, do func(place string, chosen []Item) ([]bool, error)) (seen int, err error) {
	var after uint64
	for seen < f.Scan {
		rows, err := d.DB.ParkedOutbox(ctx, after, min(page, f.Scan-seen))
		if err != nil || len(rows) == 0 {
			return seen, err //nolint:wrapcheck // named by the store
		}
		seen, after = seen+len(rows), rows[len(rows)-1].ID
		var chosen []Item
		for _, r := range rows {
			if p := rowItem(r); f.Takes(p) {
				chosen = append(chosen, p)
			}
		}
		if len(chosen) > 0 {
			if _, err := do(Outbox, chosen); err != nil {
				return seen, err
			}
		}
	}
	return seen, nil
}

// Count counts what is alike.
type Count struct {
	Place  string `json:"place"`
	Origin string `json:"origin"`
	Reason string `json:"reason"` // without its numbers
	N      int    `json:"n"`
}

// Alike is a reason without its numbers, so that the same fault of many coupons counts as one.
func Alike(reason string) string {
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

// CountsOf puts the most frequent first.
func CountsOf(counts map[Count]int) []Count {
	out := make([]Count, 0, len(counts))
	for k, n := range counts {
		k.N = n
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b Count) int {
		if a.N != b.N {
			return b.N - a.N
		}
		return strings.Compare(a.Place+a.Origin+a.Reason, b.Place+b.Origin+b.Reason)
	})
	return out
}
