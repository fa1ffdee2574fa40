package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/lapsehq/lapse/pkg/adopt"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/operation"
	"github.com/lapsehq/lapse/pkg/store"
)

// overFlags name the import.
type overFlags struct {
	Name string `arg:"" help:"The import, by the name that its mapping gives it."`
	Rate string `default:"0" placeholder:"N/s" help:"At most so many coupons a second; 0: no bound."`
	byFlags
	JSON bool `name:"json" help:"Print JSON."`
}

type importCutOver struct {
	overFlags
	Notices bool `help:"Tell of reminders that are about due."`
}

// Help says what must have been done before.
func (c *importCutOver) Help() string {
	return `From its beginning on the coupons are Lapse's: they expire, verbs move them, readers show them, events tell of it. Stop the old job, and
import what has changed there last, before: docs/migrate.md. What has ended and was not imported as over expires now. Interrupted, or killed, the same command goes on.`
}

type importBackOut struct {
	overFlags
	File string `required:"" placeholder:"FILE" help:"Append the coupons that were moved here meanwhile to this file, as JSON lines: the other system does not know of that."`
}

// Help says what remains to be done.
func (c *importBackOut) Help() string {
	return `The other system owns the coupons again; here they are observed, as before the cut-over. What was locked, used, moved or voided here meanwhile
stays as it is here, and is listed for whoever takes it over there. Interrupted, or killed, the same command goes on.`
}

// overJSON is what --json prints.
type overJSON struct {
	Name    string `json:"name"`
	Observe bool   `json:"observe"`
	Coupons int64  `json:"coupons"` // changed to that
	Moved   int    `json:"moved_here,omitempty"`
	TookMS  int64  `json:"took_ms"`
}

// backJSON is a coupon that the other system must be told of.
type backJSON struct {
	ExternalID string `json:"external_id"`
	CouponID   string `json:"coupon_id"`
	State      string `json:"state"`
	OrderID    string `json:"order_id"`
	ExpiresAt  string `json:"expires_at"`
	LockUntil  string `json:"lock_until"`
	UsedAt     string `json:"used_at"`
	ExpiredAt  string `json:"expired_at"`
}

func backOf(c *coupon.ImportMoved) backJSON {
	return backJSON{
		ExternalID: c.Key, CouponID: fmt.Sprint(c.ID), State: c.Status.String(), OrderID: c.OrderID, ExpiresAt: instantOrNever(c.ExpiresAt),
		LockUntil: instant(c.LockUntil), UsedAt: instant(c.UsedAt), ExpiredAt: instant(c.ExpiredAt),
	}
}

// Run cuts over.
func (c *importCutOver) Run(ctx context.Context, s *system) error {
	return c.run(ctx, s, false, func(ctx context.Context, im *adopt.Import) (*operation.Work, coupon.ImportProgress, int, error) {
		w, p, err := im.Over(ctx, c.Name, c.Notices)
		return w, p, 0, err //nolint:wrapcheck // says what it does
	})
}

// Run backs out.
func (c *importBackOut) Run(ctx context.Context, s *system) error {
	return c.run(ctx, s, true, func(ctx context.Context, im *adopt.Import) (*operation.Work, coupon.ImportProgress, int, error) {
		var out *os.File
		n := 0
		w, p, err := im.Back(ctx, c.Name, func(cs []coupon.ImportMoved) error {
			lines := make([]backJSON, len(cs))
			for i := range cs {
				lines[i] = backOf(&cs[i])
			}
			n += len(lines)
			return appendLines(&out, c.File, lines)
		})
		if out != nil {
			err = errors.Join(err, out.Close())
		}
		return w, p, n, err
	})
}

func (f *overFlags) run(ctx context.Context, s *system, observe bool, walk func(context.Context, *adopt.Import) (*operation.Work, coupon.ImportProgress, int, error)) error {
	config := adopt.DefaultConfig()
	config.Rate = 0
	errs := []error{f.check(s)}
	if f.Rate != "0" {
		rate, err := parseRate(f.Rate, operation.MaxRate)
		config.Rate, errs = rate, append(errs, err)
	}
	if _, err := s.settings(keyInstallation); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		began := time.Now()
		if err := db.SetImportMode(ctx, f.Name, observe); err != nil {
			return fmt.Errorf("import %s: %w", f.Name, err)
		}
		kind, word := adopt.KindOver, "real"
		if observe {
			kind, word = adopt.KindBack, "observed"
		}
		deed := store.Deed{Actor: f.Actor, Reason: f.Reason, Action: kind, Subject: f.Name, Detail: map[string]any{}}
		if err := db.RecordDeed(ctx, deed); err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		bar := newProgress(s, "coupons", 0, 0)
		im, err := adopt.New(config, "lapsectl-"+uuid.NewString(), db, func(p coupon.ImportProgress, _ []adopt.Told) { bar.set(p.Rows) })
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		_, p, moved, err := walk(ctx, im)
		deed.Action, deed.Detail = kind+".done", map[string]any{"finished": p.Done && err == nil, "coupons": p.Rows, "moved_here": moved}
		if told := db.RecordDeed(context.WithoutCancel(ctx), deed); err == nil {
			err = told
		}
		if err != nil {
			return fmt.Errorf("%w; %s coupons are %s, the same command goes on", err, grouped(int(p.Rows)), word)
		}
		x := overJSON{Name: f.Name, Observe: observe, Coupons: p.Rows, Moved: moved, TookMS: time.Since(began).Milliseconds()}
		if f.JSON {
			return s.printJSON(x)
		}
		text := fmt.Sprintf("import %s: %s coupons are %s now\n", f.Name, grouped(int(p.Rows)), word)
		if moved > 0 {
			text += fmt.Sprintf("%s coupons were moved here meanwhile: they are listed, the other system does not know of it\n", grouped(moved))
		}
		return s.print(text)
	})
}
