package coupon

import (
	"slices"
	"time"
)

// OptOutOf is what a decision is about.
type OptOutOf struct {
	Channel Channel
	Kind    NoticeKind
}

// Known is everything that events tell of one user. Each fact is kept with the instant of the event that told it, and the
// last by that instant holds, so that it does not matter in which order events come, or how often. The exception is a user who
// was deleted: what they do is taken up only after a profile has told that they are a user again.
type Known struct {
	Profile   // without OptOuts, ErasedAt and ActiveAt, which follow from the rest
	DeletedAt time.Time
	Decisions map[OptOutOf]OptOut
}

// Erased reports whether the user was deleted and is none again.
func (k *Known) Erased() bool { return !k.DeletedAt.IsZero() && !k.ProfileAt.After(k.DeletedAt) }

// Apply takes an event up. One of the future counts as of now, the database's clock: it must not shut out those that follow.
func (k *Known) Apply(e *UserEvent, now time.Time) {
	at := earliest(e.At, now)
	switch {
	case e.Deleted:
		k.delete(at)
	case e.Profile != nil:
		k.profile(e.Profile, at, now)
	case !k.Erased():
		if fact := k.activity(e.Activity); fact != nil && at.After(*fact) && at.After(k.DeletedAt) {
			*fact = at
		}
	}
}

// ApplyAll takes up events of the user that came together, in the order in which they came; but of profiles of the future, all of
// which count as of now, the last is to hold, as it would if they had not hurried ahead.
func (k *Known) ApplyAll(es []*UserEvent, now time.Time) {
	early := func(e *UserEvent) bool { return e.Profile != nil && e.At.After(now) }
	var ahead []*UserEvent
	for _, e := range es {
		if early(e) {
			ahead = append(ahead, e)
		}
	}
	slices.SortStableFunc(ahead, func(a, b *UserEvent) int { return b.At.Compare(a.At) })
	for _, e := range ahead {
		k.Apply(e, now)
	}
	for _, e := range es {
		if !early(e) {
			k.Apply(e, now)
		}
	}
}

func (k *Known) activity(kind ActivityKind) *time.Time {
	switch kind {
	case ActivityLogin:
		return &k.LoginAt
	case ActivityBrowse:
		return &k.BrowseAt
	case ActivityCart:
		return &k.CartAt
	case ActivityOrder:
		return &k.OrderedAt
	}
	return nil
}

func (k *Known) profile(p *ProfileChange, at, now time.Time) {
	if at.After(k.ProfileAt) && at.After(k.DeletedAt) {
		k.Locale, k.Zone, k.Sealed, k.Key, k.ProfileAt = p.Locale, p.Zone, p.Sealed, p.Key, at
	}
	for _, o := range p.OptOuts {
		k.Decide(o, now)
	}
}

// Decide takes up a decision, which has an instant of its own. Of two of one instant, no holds.
func (k *Known) Decide(o OptOut, now time.Time) {
	o.At = earliest(o.At, now)
	of := OptOutOf{o.Channel, o.Kind}
	last, decided := k.Decisions[of]
	if !o.At.After(k.DeletedAt) || decided && (o.At.Before(last.At) || o.At.Equal(last.At) && (last.Out || !o.Out)) {
		return
	}
	if k.Decisions == nil {
		k.Decisions = make(map[OptOutOf]OptOut)
	}
	k.Decisions[of] = o
}

// delete removes what was told up to the instant.
func (k *Known) delete(at time.Time) {
	if !at.After(k.DeletedAt) {
		return
	}
	k.DeletedAt = at
	if !k.ProfileAt.After(at) {
		k.Locale, k.Zone, k.Sealed, k.Key, k.ProfileAt = "", "", nil, "", time.Time{}
	}
	for _, fact := range []*time.Time{&k.LoginAt, &k.BrowseAt, &k.CartAt, &k.OrderedAt} {
		if k.Erased() || !fact.After(at) {
			*fact = time.Time{}
		}
	}
	for of, o := range k.Decisions {
		if !o.At.After(at) {
			delete(k.Decisions, of)
		}
	}
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
