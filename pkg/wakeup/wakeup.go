package wakeup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

// Store grants coupons in one transaction: one answer for each, in order. coupon.ErrIntegrity says that one of them cannot be
// stored at all. Now is the database's clock.
type Store interface {
	// IssueOrHold grants; what an operator has paused is kept and granted later.
	IssueOrHold(ctx context.Context, grants []coupon.Grant) ([]coupon.Granted, error)
	Now(ctx context.Context) (time.Time, error)
}

// Issued is the issuer of the grants.
const Issued = "lapse.wakeup"

const (
	maxGrants = 200 // in one transaction
	// maxEventID is the longest id that the answer to a refused grant takes up.
	maxEventID = 120
)

// Deps is what a wake-up works with.
type Deps struct {
	Store      Store
	Zone       *time.Location // of users whose zone is not known
	Log        *zap.Logger
	Registerer prometheus.Registerer
}

// Wakeup decides who is at risk, and grants. Safe for concurrent use.
type Wakeup struct {
	Deps

	config  Config
	metrics *metrics
}

// New makes a wake-up.
func New(c Config, d Deps) (*Wakeup, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("wakeup config: %w", err)
	}
	return &Wakeup{Deps: d, config: c, metrics: newMetrics(d.Registerer)}, nil
}

// More adds the user at risk to what was decided of a closed window. It is pure.
func (w *Wakeup) More(now time.Time, c *coupon.Closed, d coupon.Decided) coupon.Decided {
	if w.atRisk(now, c) {
		d.AtRisk = &coupon.AtRisk{
			UserID: c.UserID, Day: w.day(c), EndsAt: c.EndsAt, Coupons: c.Items, Totals: c.Totals,
			BrowsedAt: c.Profile.BrowseAt, CartedAt: c.Profile.CartAt, Offer: w.config.offer(c.Totals), At: now,
		}
	}
	return d
}

func (w *Wakeup) atRisk(now time.Time, c *coupon.Closed) bool {
	p := &c.Profile
	last := p.BrowseAt
	if p.CartAt.After(last) {
		last = p.CartAt
	}
	switch {
	case w.config.Offset == "", c.Kind != coupon.NoticeExpiring, c.Offset != w.config.Offset, c.Late, c.Items == 0:
		return false
	case !c.EndsAt.After(now), !p.ErasedAt.IsZero(), !p.Wants(coupon.AllChannels, coupon.AllKinds):
		return false
	}
	return !last.IsZero() && now.Sub(last) <= w.config.Recent && last.After(p.OrderedAt)
}

// day is the local day of the end: that of the window, which was told apart by it.
func (w *Wakeup) day(c *coupon.Closed) string {
	if _, day, ok := strings.Cut(c.Slot, "/"); ok {
		if _, err := time.Parse(time.DateOnly, day); err == nil {
			return day
		}
	}
	return coupon.LastDay(c.EndsAt, c.Profile.Location(w.Zone)).Format(time.DateOnly)
}

// Handle answers coupon.at_risk events of this installation. An error means that nothing can be done now: what was granted before it
// is found again by its key.
func (w *Wakeup) Handle(ctx context.Context, batch []event.AtRisk) ([]broker.Outcome, error) {
	out := make([]broker.Outcome, len(batch))
	var asked []int // events
	for i := range batch {
		out[i] = broker.Ack()
		if w.config.Template == 0 || batch[i].Offer != coupon.OfferGrant {
			w.metrics.count(resultTold)
			continue
		}
		asked = append(asked, i)
	}
	if len(asked) == 0 {
		return out, nil
	}
	now, err := w.Store.Now(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	var grants []coupon.Grant
	var of []int // the event of each
	for _, i := range asked {
		if !batch[i].EndsAt.After(now) {
			w.metrics.count(resultLate)
			continue
		}
		grants, of = append(grants, w.grant(&batch[i])), append(of, i)
	}
	for at := 0; at < len(grants); at += maxGrants {
		end := min(at+maxGrants, len(grants))
		err := w.issue(ctx, grants[at:end], func(k int, reason error) {
			w.metrics.count(resultParked)
			w.Log.Warn("at_risk event parked: its grant cannot be stored")
			out[of[at+k]] = broker.Park(reason.Error())
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// grant is the same for every delivery of the event, and for every event of that user and day.
func (w *Wakeup) grant(e *event.AtRisk) coupon.Grant {
	return coupon.Grant{
		Issuer: Issued, Key: GrantKey(e.UserID, e.Day), TemplateID: w.config.Template, UserID: e.UserID,
		EventID: within(e.EventID, maxEventID), Trace: e.Trace,
	}
}

// GrantKey is wakeup:<user>:<day>, with a hash of a user's id that is too long for that.
func GrantKey(user, day string) string {
	return "wakeup:" + within(user, coupon.MaxText-len("wakeup::")-len(day)) + ":" + day
}

// within is the text, or a hash of one that is longer than most bytes.
func within(text string, most int) string {
	if len(text) <= most {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// issue grants what can be stored. A batch that the database refuses is halved until the bad grant is alone.
func (w *Wakeup) issue(ctx context.Context, grants []coupon.Grant, cannot func(k int, reason error)) error {
	answers, err := w.Store.IssueOrHold(ctx, grants)
	switch {
	case err == nil:
		for i := range answers {
			w.metrics.count(resultOf(&answers[i]))
		}
		return nil
	case !errors.Is(err, coupon.ErrIntegrity):
		return fmt.Errorf("wake up %d users: %w", len(grants), err)
	case len(grants) == 1:
		cannot(0, err)
		return nil
	}
	half := len(grants) / 2
	if err := w.issue(ctx, grants[:half], cannot); err != nil {
		return err
	}
	return w.issue(ctx, grants[half:], func(k int, reason error) { cannot(half+k, reason) })
}

func resultOf(g *coupon.Granted) string {
	switch {
	case g.Refused != "":
		return resultRefused
	case g.Held:
		return resultHeld
	case g.Repeated:
		return resultRepeated
	}
	return resultGranted
}
