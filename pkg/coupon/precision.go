package coupon

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"
)

// Precision is a template's promise of how close to its end a coupon is processed (requirement R19). What a reader sees
// is exact always: the promise concerns the stored state, the event and the notice.
type Precision string

// The precision classes and what they promise.
const (
	Exact    Precision = "exact"    // within a second, while no second holds more than the fleet drains in one
	Standard Precision = "standard" // within a minute
	Relaxed  Precision = "relaxed"  // within ten minutes
)

// Precisions lists the classes.
func Precisions() []Precision { return []Precision{Exact, Standard, Relaxed} }

// Class is the letter of the precision in a routing key: 'x' for exact, 'r' for the others.
func (p Precision) Class() byte {
	if p == Exact {
		return 'x'
	}
	return 'r'
}

// Valid reports whether p is one of the three classes.
func (p Precision) Valid() bool { return slices.Contains(Precisions(), p) }

// Promise is how long after its end a coupon of the class is processed at the latest, unless the fleet is behind.
func (p Precision) Promise() time.Duration {
	switch p {
	case Standard:
		return time.Minute
	case Relaxed:
		return 10 * time.Minute
	case Exact:
		return time.Second
	default:
		return time.Second
	}
}

// Slots is over how many seconds, from the end on, coupons of the class are spread. What is left of the promise is for
// the processing itself.
func (p Precision) Slots() int {
	switch p {
	case Standard:
		return 50
	case Relaxed:
		return 540
	case Exact:
		return 1
	default:
		return 1
	}
}

// DueAt is when a coupon that ends at expiresAt is processed: the end plus its offset, a whole number of seconds below
// p.Slots() that depends on the seed alone. The seed is what the coupon is known by before it has an id: issuer and grant
// key. Never stays Never.
//
// The offset belongs to the coupon for life: a verb that moves the end moves the due instant with it (due_at − expires_at
// stays), so DueAt is asked once, at the grant.
func DueAt(expiresAt time.Time, p Precision, seed ...string) time.Time {
	slots := p.Slots()
	if slots == 1 || IsNever(expiresAt) {
		return expiresAt
	}
	b := make([]byte, 0, 300)
	for _, s := range seed {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s))) // no two seeds run together
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	slot := binary.BigEndian.Uint64(sum[:8]) % uint64(slots)
	return expiresAt.Add(time.Duration(slot) * time.Second)
}
