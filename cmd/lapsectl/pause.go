package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/status"
	"github.com/lapsehq/lapse/pkg/store"
)

// brakeFlags say what is paused.
type brakeFlags struct {
	What     string `arg:"" enum:"expiry,notices,issuance" help:"expiry, notices or issuance."`
	Template string `xor:"scope" placeholder:"ID" help:"Only of this template's coupons (expiry, issuance)."`
	Batch    string `xor:"scope" placeholder:"ID" help:"Only of this batch's coupons (expiry, issuance)."`
	Channel  string `xor:"scope" placeholder:"NAME" help:"Only by this channel (notices)."`
	byFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// pause is what the flags say.
func (f *brakeFlags) pause() (coupon.Pause, error) {
	p := coupon.Pause{Brake: coupon.Brake(f.What)}
	switch {
	case f.Template != "":
		p.Scope, p.ID = coupon.PauseTemplate, f.Template
	case f.Batch != "":
		p.Scope, p.ID = coupon.PauseBatch, f.Batch
	case f.Channel != "":
		p.Scope, p.ID = coupon.PauseChannel, f.Channel
	}
	if err := p.Validate(); err != nil {
		return p, fmt.Errorf("--%w", err)
	}
	return p, nil
}

type pauseCommand struct{ brakeFlags }

// Help says what each brake stops, and what goes on.
func (c *pauseCommand) Help() string {
	return `In force in all workers within two seconds, until "lapsectl resume"; kept in the database, so restarts do not end it.
expiry: no coupon is moved past its end, whoever rings for it. Readers show the truth all the same: what has ended is shown as expired
and cannot be used. Locks run out and go back before the end as ever. issuance: grants by events wait, grants by HTTP are answered 503
with the code "paused". notices: they are gathered and kept, and none is sent.`
}

// pausedJSON is what --json prints.
type pausedJSON struct {
	What    string  `json:"what"`
	Scope   string  `json:"scope"`
	ID      string  `json:"id"`
	Changed bool    `json:"changed"`
	Paused  bool    `json:"paused"`
	Since   *string `json:"since"` // null: it is not paused
	// Of a resume: what has piled up.
	Overdue       *int64   `json:"overdue,omitempty"` // coupons past their due instant, up to 10 000
	OldestSeconds *float64 `json:"oldest_seconds,omitempty"`
	HeldGrants    *int64   `json:"held_grants,omitempty"`
}

// Run puts the brake on.
func (c *pauseCommand) Run(ctx context.Context, s *system) error {
	return c.change(ctx, s, (*store.Store).Pause, func(_ *store.Store, p coupon.Pause, x *pausedJSON) (string, error) {
		if !x.Changed {
			return p.String() + " is paused already, since " + *x.Since, nil
		}
		return p.String() + " is paused, in all workers within 2 s", nil
	})
}

type resumeCommand struct{ brakeFlags }

// Help says how what has piled up is caught up with.
func (c *resumeCommand) Help() string {
	return `What has piled up is caught up with, and nothing is lost: after a pause of all of expiry the triggers that wait in the queues, after one by
template or batch the sweep, at full rate whatever the hour. How late coupons were is in the lateness of "lapsectl status" and of
lapse_expiry_lateness_seconds, and in each coupon's history.`
}

// Run takes the brake off.
func (c *resumeCommand) Run(ctx context.Context, s *system) error {
	return c.change(ctx, s, (*store.Store).Resume, func(db *store.Store, p coupon.Pause, x *pausedJSON) (string, error) {
		if !x.Changed {
			return p.String() + " is not paused", nil
		}
		text := p.String() + " goes on"
		switch p.Brake {
		case coupon.BrakeExpiry:
			n, oldest, err := db.Overdue(ctx, 0)
			if err != nil {
				return "", err //nolint:wrapcheck // says what it does
			}
			old := oldest.Seconds()
			x.Overdue, x.OldestSeconds = &n, &old
			text += fmt.Sprintf(": %s coupons are past their due instant, the oldest by %s", capped(n, 10_000), oldest.Round(time.Second))
		case coupon.BrakeIssuance:
			n, err := db.HeldGrants(ctx, statusCount)
			if err != nil {
				return "", err //nolint:wrapcheck // says what it does
			}
			x.HeldGrants = &n
			text += fmt.Sprintf(": %s grants were held, beside those that wait in the broker", capped(n, statusCount))
		case coupon.BrakeNotices:
		}
		return text, nil
	})
}

func (f *brakeFlags) change(ctx context.Context, s *system, do func(db *store.Store, ctx context.Context, p coupon.Pause, actor, reason string) (bool, error),
	tell func(db *store.Store, p coupon.Pause, x *pausedJSON) (string, error),
) error {
	p, err := f.pause()
	if err != nil {
		return err
	}
	if err := f.check(s); err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		if p.Scope == coupon.PauseTemplate {
			if err := templateThere(ctx, db, p.ID); err != nil {
				return err
			}
		}
		changed, err := do(db, ctx, p, f.Actor, f.Reason)
		if err != nil {
			return err
		}
		ps, err := db.Pauses(ctx)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		since, on := ps.Since(p.Brake)[p]
		x := pausedJSON{What: f.What, Scope: string(p.Scope), ID: p.ID, Changed: changed, Paused: on, Since: instantOrNil(since)}
		text, err := tell(db, p, &x)
		switch {
		case err != nil:
			return err
		case f.JSON:
			err = s.printJSON(x)
		default:
			err = s.print(text + "\n")
		}
		if err == nil && !changed {
			return errMiss
		}
		return err
	})
}

// templateThere refuses a template that there is not: a slip of the finger would pause nothing.
func templateThere(ctx context.Context, db *store.Store, id string) error {
	n, err := parseID("--template", id)
	if err != nil {
		return err
	}
	if _, err := db.Template(ctx, n); err != nil {
		return fmt.Errorf("--template: %s: %w", id, err)
	}
	return nil
}

// pauseJSON is a pause as status prints it.
type pauseJSON = status.Pause

func (x statusScreen) paused() string {
	if len(x.Paused) == 0 {
		return "nothing"
	}
	parts := make([]string, len(x.Paused))
	for i, p := range x.Paused {
		parts[i] = fmt.Sprintf("%s since %s by %s (%s)", p, p.Since, p.Actor, p.Reason)
	}
	return strings.Join(parts, "; ")
}
