package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/profile"
	"github.com/lapsehq/lapse/pkg/store"
)

type userCommand struct {
	Export userExport `cmd:"" help:"Print everything that is stored of a user, as JSON, addresses included."`
	Erase  userErase  `cmd:"" help:"Remove what is known of a user and what they were told. Coupons stay."`
	Optout userOptOut `cmd:"" help:"Note that a user does not want notices of a channel and kind, or wants them again."`
}

// What operators do to users, in their log.
const (
	deedUserExport = "user.export"
	deedUserOptOut = "user.optout"
)

// userArg is whom it is about.
type userArg struct {
	User string `arg:"" placeholder:"USER" help:"The user's id."`
}

func (u userArg) check() error {
	if u.User == "" {
		return errors.New("USER: must not be empty")
	}
	if reason := wrongText(u.User); reason != "" {
		return fmt.Errorf("USER: %s, got %q", reason, clipped(u.User))
	}
	return nil
}

type userExport struct {
	userArg `embed:""`

	By byFlags `embed:""`
}

// Help says what comes out, and what does not.
func (c *userExport) Help() string {
	return `Prints one JSON document: the user's addresses, opened with the keys of profile.addresses, and the rows of each table. That it was done, by
whom and why goes into the operators' log. What other systems hold (RabbitMQ, providers, logs of yours) is not in it: see docs/privacy.md.`
}

// Run exports.
func (c *userExport) Run(ctx context.Context, s *system) error {
	if err := errors.Join(c.check(), c.By.check(s)); err != nil {
		return err
	}
	cfg, err := s.settings(keyInstallation)
	if err != nil {
		return err
	}
	book, err := profile.NewBook(cfg.Profile.Addresses)
	if err != nil {
		return fmt.Errorf("profile.%w", err)
	}
	return s.withStore(ctx, func(db *store.Store) error {
		if err := db.RecordDeed(ctx, store.Deed{Actor: c.By.Actor, Reason: c.By.Reason, Action: deedUserExport, Subject: c.User}); err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		now, err := db.Now(ctx)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		known, err := db.Profiles(ctx, []string{c.User})
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		p := known[c.User]
		out := bufio.NewWriter(s.stdout)
		d := document{w: out}
		d.begin(c.User, now, addressesOf(book, &p))
		if err := db.ExportUser(ctx, c.User, d.row); err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		d.end()
		if err := out.Flush(); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return nil
	})
}

// addressesOf is what the export says of addresses: them, nothing, or why they cannot be opened.
func addressesOf(book *profile.Book, p *coupon.Profile) any {
	a, err := book.Addresses(p)
	switch {
	case err != nil:
		return map[string]string{"sealed_with": p.Key, "error": err.Error()}
	case len(p.Sealed) == 0:
		return nil
	}
	return a
}

// document writes the export as it is read: a user may have any number of coupons. A failing writer is told by its Flush.
type document struct {
	w    *bufio.Writer
	rows int
}

func (d *document) begin(user string, now time.Time, addresses any) {
	d.text("{\n  \"user_id\": ")
	d.value(user)
	d.text(",\n  \"exported_at\": ")
	d.value(instant(now))
	d.text(",\n  \"addresses\": ")
	d.value(addresses)
	d.text(",\n  \"rows\": [")
}

// row writes a row with its columns in their order.
func (d *document) row(r coupon.UserRecord) error {
	if d.rows++; d.rows > 1 {
		d.text(",")
	}
	d.text("\n    {\"table\": ")
	d.value(r.Table)
	d.text(", \"row\": {")
	for i, name := range r.Names {
		if i > 0 {
			d.text(", ")
		}
		d.value(name)
		d.text(": ")
		d.value(columnJSON(name, r.Values[i]))
	}
	d.text("}}")
	return nil
}

func (d *document) end() { d.text("\n  ]\n}\n") }

func (d *document) text(s string) { _, _ = io.WriteString(d.w, s) }

func (d *document) value(v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		raw = []byte("null") // cannot be: the values are plain
	}
	_, _ = d.w.Write(raw)
}

// columnJSON is a value as everything of lapsectl prints it: ids as strings, instants in UTC.
func columnJSON(name string, v any) any {
	switch v := v.(type) {
	case time.Time:
		if coupon.IsNever(v) {
			return nil
		}
		return instant(v)
	case int64:
		if name == "id" || strings.HasSuffix(name, "_id") {
			return strconv.FormatInt(v, 10)
		}
	}
	return v
}

type userErase struct {
	userArg `embed:""`

	Yes  bool    `help:"Do it. It cannot be undone."`
	By   byFlags `embed:""`
	JSON bool    `name:"json" help:"Print JSON."`
}

// Help says what goes, and what stays.
func (c *userErase) Help() string {
	return `Removes the profile with its addresses, decisions on channels, notices and the inbox, as the event user.deleted does, and refuses what was
told of the user up to now. It stays that they were erased, so that nobody tells them of coupons that are still there: coupons, their
history and quotas keep the user's id, since they are money. Who goes on sending events of the user makes them known again: erase at the
source first. Safe to repeat.`
}

// Run erases.
func (c *userErase) Run(ctx context.Context, s *system) error {
	err := errors.Join(c.check(), c.By.check(s))
	if !c.Yes {
		err = errors.Join(err, errors.New("--yes: must be given, since this cannot be undone"))
	}
	if err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		e, err := db.EraseUser(ctx, c.User, c.By.Actor, c.By.Reason)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		if c.JSON {
			return s.printJSON(e)
		}
		return s.print(fmt.Sprintf("erased: the profile of %s, %d windows of notices, %d rows of the inbox\n", shown(c.User), e.Windows, e.Inbox))
	})
}

type userOptOut struct {
	userArg `embed:""`

	Channel string  `default:"*" placeholder:"CHANNEL" help:"inbox, popup, email, sms, push, log, or * for all of them (default)."`
	Kind    string  `default:"*" placeholder:"KIND" help:"expiring, expired, or * for both (default)."`
	Again   bool    `help:"They want them again."`
	By      byFlags `embed:""`
	JSON    bool    `name:"json" help:"Print JSON."`
}

// optOutJSON is a decision as --json prints it.
type optOutJSON struct {
	UserID  string `json:"user_id"`
	Channel string `json:"channel"`
	Kind    string `json:"kind"`
	Out     bool   `json:"out"`
	At      string `json:"at"`
}

// Run notes the decision.
func (c *userOptOut) Run(ctx context.Context, s *system) error {
	o := coupon.OptOut{Channel: coupon.Channel(c.Channel), Kind: coupon.NoticeKind(c.Kind), Out: !c.Again, Source: "operator", At: time.Now()}
	err := errors.Join(c.check(), c.By.check(s))
	if fault := o.Validate(); fault != nil {
		err = errors.Join(err, fmt.Errorf("--%w", fault))
	}
	if err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		if o.At, err = db.Now(ctx); err != nil {
			return err
		}
		x := optOutJSON{UserID: c.User, Channel: c.Channel, Kind: c.Kind, Out: o.Out, At: instant(o.At)}
		err := db.RecordDeed(ctx, store.Deed{Actor: c.By.Actor, Reason: c.By.Reason, Action: deedUserOptOut, Subject: c.User, Detail: x})
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		if err := db.OptOut(ctx, c.User, o); err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		if c.JSON {
			return s.printJSON(x)
		}
		word := "not any more"
		if c.Again {
			word = "again"
		}
		return s.print(fmt.Sprintf("%s wants notices of channel %s and kind %s %s\n", shown(c.User), c.Channel, c.Kind, word))
	})
}
