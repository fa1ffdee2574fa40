package adopt

import (
	"context"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/operation"
)

// The ways in which what was observed stands to what the other system did.
const (
	DiffAgrees    = "agrees"         // both say that it ended, or that it has not
	DiffLate      = "not_expired"    // it ended here; there it still can be used
	DiffEarly     = "expired_early"  // there it expired before its end
	DiffUsedAfter = "used_after_end" // there it was used when it had ended here
	DiffUndecided = "undecided"      // there it expired at its end; here nothing has been decided yet
	DiffMoved     = "changed_there"  // it has changed there since it was imported: the next import takes that over
	DiffMissing   = "missing"        // it was not imported
	DiffHere      = "changed_here"   // it is real, and has been changed here
)

const (
	diffPatience = 2 * time.Minute        // how long the old job, or a decision, may take without being told of
	diffSlack    = 999 * time.Millisecond // of times without fractions
)

// Differs reports whether a kind is one that somebody should look at.
func Differs(kind string) bool {
	return slices.Contains([]string{DiffLate, DiffEarly, DiffUsedAfter, DiffUndecided, DiffMissing}, kind)
}

// Difference is a row whose two fates are not the same.
type Difference struct {
	Where   string `json:"where"`
	Key     string `json:"external_id"`
	Kind    string `json:"kind"`
	There   string `json:"there"`   // its state there now
	Ends    string `json:"ends"`    // its end, as it was imported
	Decided string `json:"decided"` // when its end was decided upon here; empty: it was not
	ByMS    int64  `json:"by_ms"`   // how far the two lie apart; 0: it is not known
	Coupon  uint64 `json:"-"`
}

// Diff is what a comparison found.
type Diff struct {
	Rows    int64
	Kinds   map[string]int64
	Late    []time.Duration // of the old job, of each coupon that it expired: from its end; if the mapping says when that was
	Refused int64
}

// Compare holds one row against its coupon, nil if there is none; now is the database's clock. It is pure.
func Compare(row *coupon.ImportRow, c *coupon.Imported, now time.Time) Difference {
	d := Difference{Key: row.Key, There: row.Status.String(), Kind: DiffAgrees}
	if c == nil {
		d.Kind = DiffMissing
		return d
	}
	d.Coupon = c.ID
	d.Ends = c.ExpiresAt.UTC().Format(time.RFC3339)
	if c.Decided {
		d.Decided = c.At.UTC().Format(time.RFC3339Nano)
	}
	ended := !c.ExpiresAt.After(now)
	over := c.Decided || c.Status == coupon.Expired
	switch {
	case c.Status != coupon.Unused && c.Status != coupon.Locked && c.Status == row.Status:
		return d // as it was imported, or as both came to it
	case !c.ExpiresAt.Equal(row.ExpiresAt):
		d.Kind = DiffMoved
	case row.Status == coupon.Expired && !ended:
		d.Kind, d.ByMS = DiffEarly, now.Sub(c.ExpiresAt).Milliseconds()
	case row.Status == coupon.Expired && !over:
		if now.Sub(c.ExpiresAt) > diffPatience {
			d.Kind, d.ByMS = DiffUndecided, now.Sub(c.ExpiresAt).Milliseconds()
		}
	case row.Status == coupon.Expired:
		if !row.ExpiredAt.IsZero() && row.ExpiredAt.Before(c.ExpiresAt.Add(-diffSlack)) {
			d.Kind, d.ByMS = DiffEarly, row.ExpiredAt.Sub(c.ExpiresAt).Milliseconds()
		}
	case row.Status == coupon.Used && !row.UsedAt.IsZero() && row.UsedAt.After(c.ExpiresAt.Add(diffSlack)) && c.Status != coupon.Locked:
		d.Kind, d.ByMS = DiffUsedAfter, row.UsedAt.Sub(c.ExpiresAt).Milliseconds()
	case row.Status == coupon.Unused && over:
		if late := now.Sub(c.ExpiresAt); late > diffPatience {
			d.Kind, d.ByMS = DiffLate, late.Milliseconds()
		}
	case row.Status != c.Status:
		d.Kind = DiffMoved
	case row.Hash() != c.Hash:
		d.Kind = DiffMoved
	}
	if d.Kind == DiffMoved && !c.Observed {
		d.Kind = DiffHere
	}
	return d
}

// Clock reads the database's clock.
type Clock interface {
	Now(ctx context.Context) (time.Time, error)
}

// Diff reads the source to its end and holds it against what was observed; tell is told of every difference, a page at a time.
func (im *Import) Diff(ctx context.Context, name string, m *Mapping, src Source, clock Clock, tell func(Diff, []Difference) error) (Diff, error) {
	sum := Diff{Kinds: map[string]int64{}}
	for end := false; !end; {
		p, err := im.read(ctx, m, src)
		if err != nil {
			return sum, err
		}
		end = p.end
		sum.Rows, sum.Refused = sum.Rows+int64(len(p.records)), sum.Refused+int64(len(p.told))
		found, err := im.diff(ctx, name, p, clock, &sum)
		if err != nil {
			return sum, err
		}
		if err := tell(sum, found); err != nil {
			return sum, err
		}
	}
	slices.Sort(sum.Late)
	return sum, nil
}

func (im *Import) diff(ctx context.Context, name string, p *page, clock Clock, sum *Diff) ([]Difference, error) {
	ctx, cancel := context.WithTimeout(ctx, operation.CallLimit)
	defer cancel()
	keys := make([]string, len(p.rows))
	for i := range p.rows {
		keys[i] = p.rows[i].Key
	}
	there, err := im.rows.Imported(ctx, name, keys)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what it does
	}
	now, err := clock.Now(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what it does
	}
	var found []Difference
	for i := range p.rows {
		row := &p.rows[i]
		var c *coupon.Imported
		if known, ok := there[row.Key]; ok {
			c = &known
		}
		d := Compare(row, c, now)
		d.Where = p.of[i].Where
		sum.Kinds[d.Kind]++
		if row.Status == coupon.Expired && !row.ExpiredAt.IsZero() && c != nil && c.Decided {
			sum.Late = append(sum.Late, row.ExpiredAt.Sub(c.ExpiresAt))
		}
		if d.Kind != DiffAgrees {
			found = append(found, d)
		}
	}
	return found, nil
}
