package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

type templateCommand struct {
	Create templateCreate `cmd:"" help:"Create a template."`
	Revise templateRevise `cmd:"" help:"Change a template for coupons to come; those issued keep their revision."`
	List   templateList   `cmd:"" help:"List the templates."`
	Show   templateShow   `cmd:"" help:"Show a template."`
}

// ruleFlags say when coupons end; one of them.
type ruleFlags struct {
	After     string `placeholder:"168h" help:"Coupons end so long after their grant."`
	Until     string `placeholder:"TIME" help:"Coupons end at this instant: RFC 3339 with a zone."`
	EndOfDay  string `placeholder:"DATE" help:"Coupons end with this day (YYYY-MM-DD) in --zone."`
	DaysAfter *int   `placeholder:"N" help:"Coupons end with the Nth day after their grant in --zone; 0: with the day of the grant."`
	Never     bool   `help:"Coupons have no end."`
	Zone      string `placeholder:"ZONE" help:"Time zone of --end-of-day and --days-after, such as Asia/Shanghai."`
}

// rule gives the rule that the flags mean; given is false if there are none.
func (f ruleFlags) rule() (r coupon.Rule, given bool, err error) {
	n := 0
	take := func(set bool, rule coupon.Rule) {
		if set {
			r, n = rule, n+1
		}
	}
	take(f.After != "", coupon.Rule{Kind: coupon.RuleAfter, After: f.After})
	take(f.Until != "", coupon.Rule{Kind: coupon.RuleFixed, At: f.Until})
	take(f.EndOfDay != "", coupon.Rule{Kind: coupon.RuleEndOfDay, Date: f.EndOfDay, Zone: f.Zone})
	if f.DaysAfter != nil {
		take(true, coupon.Rule{Kind: coupon.RuleDaysAfter, Days: *f.DaysAfter, Zone: f.Zone})
	}
	take(f.Never, coupon.Rule{Kind: coupon.RuleNever})
	switch {
	case n > 1:
		return r, true, errors.New("give one of --after, --until, --end-of-day, --days-after and --never, not several")
	case n == 0 && f.Zone != "":
		return r, false, errors.New("--zone goes with --end-of-day or --days-after")
	case n == 1 && f.Zone != "" && r.Zone == "":
		return r, true, errors.New("--zone goes with --end-of-day or --days-after, not with the others")
	}
	return r, n == 1, nil
}

// byFlags say who and why.
type byFlags struct {
	Reason string `required:"" help:"Why; kept with what is done."`
	Actor  string `help:"Who ($USER, or the account that runs this)."`
}

func (f *byFlags) check(s *system) error {
	if f.Actor == "" {
		f.Actor, _ = s.lookup("USER")
	}
	if f.Actor == "" { // a container has no $USER
		f.Actor = s.account
	}
	var errs []error
	if f.Reason == "" {
		errs = append(errs, errors.New(`--reason: must not be empty, got ""`))
	}
	if f.Actor == "" {
		errs = append(errs, errors.New(`--actor: must not be empty, got "" (neither $USER nor the account has a name)`))
	}
	return errors.Join(errs...)
}

type templateCreate struct {
	Name      string     `required:"" help:"What people call it."`
	Value     int64      `required:"" help:"What a coupon is worth, in minor units: 500 is 5.00."`
	Currency  string     `required:"" placeholder:"CNY" help:"ISO 4217."`
	Rule      ruleFlags  `embed:""`
	Precision string     `default:"exact" help:"How exactly the end is to be kept: exact, standard or relaxed."`
	Quota     int64      `help:"How many coupons it issues at most; 0: any number."`
	PerUser   int64      `help:"How many one user gets at most; 0: any number."`
	Terms     termsFlags `embed:""`
	By        byFlags    `embed:""`
	JSON      bool       `name:"json" help:"Print JSON."`
}

// Run creates the template and prints its id.
func (c *templateCreate) Run(ctx context.Context, s *system) error {
	rule, given, err := c.Rule.rule()
	if err == nil && !given {
		err = errors.New("when coupons end is missing: give --after, --until, --end-of-day, --days-after or --never")
	}
	if err := errors.Join(err, c.By.check(s)); err != nil {
		return err
	}
	t := coupon.Template{
		Name: c.Name, Rule: rule, Quota: c.Quota, PerUser: c.PerUser, Actor: c.By.Actor, Reason: c.By.Reason,
		Terms: coupon.Terms{Value: c.Value, Currency: c.Currency, Precision: coupon.Precision(c.Precision)},
	}
	c.Terms.apply(&t.Terms)
	if err := t.Validate(); err != nil {
		return err //nolint:wrapcheck // names every field
	}
	return s.withStore(ctx, func(db *store.Store) error {
		id, err := db.CreateTemplate(ctx, t)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		return s.stored(ctx, db, id, c.JSON, "created")
	})
}

type templateRevise struct {
	ID        string     `arg:"" help:"The template's id."`
	Revision  uint32     `required:"" placeholder:"N" help:"The revision that this one replaces, so that nobody's change is lost."`
	Name      *string    `help:"What people call it."`
	Value     *int64     `help:"What a coupon is worth, in minor units."`
	Currency  *string    `placeholder:"CNY" help:"ISO 4217."`
	Rule      ruleFlags  `embed:""`
	Precision *string    `help:"exact, standard or relaxed."`
	Quota     *int64     `help:"How many coupons it issues at most, those issued included; 0: any number."`
	PerUser   *int64     `help:"How many one user gets at most; 0: any number."`
	Terms     termsFlags `embed:""`
	By        byFlags    `embed:""`
	JSON      bool       `name:"json" help:"Print JSON."`
}

// Help tells of what is left out.
func (c *templateRevise) Help() string { return "What is not given stays as it is." }

// Run stores the next revision.
func (c *templateRevise) Run(ctx context.Context, s *system) error {
	id, err := parseID("template", c.ID)
	rule, ruled, ruleErr := c.Rule.rule()
	if err := errors.Join(err, ruleErr, c.By.check(s)); err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		t, err := db.Template(ctx, id)
		if errors.Is(err, coupon.ErrNotFound) {
			return s.miss("there is no template %d", id)
		}
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		if t.Revision != c.Revision {
			return s.miss("template %d has revision %d now, not %d: look at it (lapsectl template show %d) and revise that", id, t.Revision, c.Revision, id)
		}
		set(&t.Name, c.Name)
		set(&t.Terms.Value, c.Value)
		set(&t.Terms.Currency, c.Currency)
		set(&t.Quota, c.Quota)
		set(&t.PerUser, c.PerUser)
		c.Terms.apply(&t.Terms)
		if c.Precision != nil {
			t.Terms.Precision = coupon.Precision(*c.Precision)
		}
		if ruled {
			t.Rule = rule
		}
		t.Actor, t.Reason = c.By.Actor, c.By.Reason
		_, err = db.ReviseTemplate(ctx, t)
		if errors.Is(err, coupon.ErrConflict) {
			return s.miss("template %d was revised by somebody else in this moment: look at it (lapsectl template show %d) and revise that", id, id)
		}
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		return s.stored(ctx, db, id, c.JSON, "revised")
	})
}

func set[T any](field *T, given *T) {
	if given != nil {
		*field = *given
	}
}

// stored prints what is in the database now.
func (s *system) stored(ctx context.Context, db *store.Store, id uint64, asJSON bool, what string) error {
	t, err := db.Template(ctx, id)
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	if asJSON {
		return s.printJSON(templateOf(t))
	}
	return s.print(fmt.Sprintf("template %d %s, revision %d: %s\n", id, what, t.Revision, ruleText(t.Rule)))
}

type templateList struct {
	From  string `default:"1" placeholder:"ID" help:"Begin with this id."`
	Limit int    `default:"100" help:"How many at most, up to 1000."`
	JSON  bool   `name:"json" help:"Print JSON."`
}

const maxTemplates = 1000

// Run lists templates in the order of their ids.
func (c *templateList) Run(ctx context.Context, s *system) error {
	from, err := parseID("--from", c.From)
	if c.Limit < 1 || c.Limit > maxTemplates {
		err = errors.Join(err, fmt.Errorf("--limit: must be between 1 and %d, got %d", maxTemplates, c.Limit))
	}
	if err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		ts, err := db.Templates(ctx, from, c.Limit)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		if c.JSON {
			out := make([]templateJSON, len(ts))
			for i := range ts {
				out[i] = templateOf(ts[i])
			}
			return s.printJSON(out)
		}
		t := table{{"ID", "REVISION", "NAME", "VALUE", "ENDS", "PRECISION", "ISSUED", "PER USER", "STATE"}}
		for i := range ts {
			x := templateOf(ts[i])
			t = append(t, []string{
				x.ID, fmt.Sprint(x.Revision), x.Name, money(x.Value, x.Currency), ruleText(ts[i].Rule), x.Precision,
				fmt.Sprintf("%d of %s", x.Issued, limit(x.Quota)), limit(x.PerUser), x.State,
			})
		}
		return s.print(t.String())
	})
}

type templateShow struct {
	ID   string `arg:"" help:"The template's id."`
	JSON bool   `name:"json" help:"Print JSON."`
}

// Run shows the revision that issues now.
func (c *templateShow) Run(ctx context.Context, s *system) error {
	id, err := parseID("template", c.ID)
	if err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		t, err := db.Template(ctx, id)
		if errors.Is(err, coupon.ErrNotFound) {
			return s.miss("there is no template %d", id)
		}
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		x := templateOf(t)
		if c.JSON {
			return s.printJSON(x)
		}
		return s.print(table{
			{"template", fmt.Sprintf("%s, revision %d", x.ID, x.Revision)},
			{"name", x.Name},
			{"value", money(x.Value, x.Currency)},
			{"offer", offerText(t.Terms)},
			{"ends", ruleText(t.Rule)},
			{"late payment", fmt.Sprintf("%s, a lock reaches at most %s past the end", t.Terms.LatePay, t.Terms.LateWindow)},
			{"quota back", string(t.Terms.QuotaBack)},
			{"precision", x.Precision},
			{"reminders", remindersText(t.Terms.Reminders)},
			{"issued", fmt.Sprintf("%d of %s; per user %s", x.Issued, limit(x.Quota), limit(x.PerUser))},
			{"state", x.State},
			{"revised", fmt.Sprintf("%s by %s: %s", x.CreatedAt, x.Actor, x.Reason)},
		}.String())
	})
}

// templateJSON is a template as --json prints it.
type templateJSON struct {
	ID        string      `json:"id"`
	Revision  uint32      `json:"revision"`
	Name      string      `json:"name"`
	Value     int64       `json:"value"` // minor units
	Currency  string      `json:"currency"`
	Rule      coupon.Rule `json:"rule"`
	Precision string      `json:"precision"`
	Terms     termsJSON   `json:"terms"`
	Quota     int64       `json:"quota"`    // 0: unlimited
	PerUser   int64       `json:"per_user"` // 0: unlimited
	Issued    int64       `json:"issued"`
	State     string      `json:"state"` // issuing, stopped
	CreatedAt string      `json:"created_at"`
	Actor     string      `json:"actor"`
	Reason    string      `json:"reason"`
}

func templateOf(t coupon.Template) templateJSON {
	state := "issuing"
	if t.Stopped {
		state = "stopped"
	}
	return templateJSON{
		ID: strconv.FormatUint(t.ID, 10), Revision: t.Revision, Name: t.Name, Value: t.Terms.Value, Currency: t.Terms.Currency,
		Rule: t.Rule, Precision: string(t.Terms.Precision), Terms: termsOf(t.Terms), Quota: t.Quota, PerUser: t.PerUser, Issued: t.Taken, State: state,
		CreatedAt: instant(t.CreatedAt), Actor: t.Actor, Reason: t.Reason,
	}
}

// ruleText is a rule for people.
func ruleText(r coupon.Rule) string {
	switch r.Kind {
	case coupon.RuleNever:
		return "never"
	case coupon.RuleFixed:
		return "at " + r.At
	case coupon.RuleAfter:
		return r.After + " after the grant"
	case coupon.RuleEndOfDay:
		return "end of " + r.Date + ", " + r.Zone
	case coupon.RuleDaysAfter:
		return fmt.Sprintf("end of day %d after the grant, %s", r.Days, r.Zone)
	default:
		return string(r.Kind)
	}
}

func money(value int64, currency string) string {
	return fmt.Sprintf("%d %s (minor units)", value, currency)
}

func limit(n int64) string {
	if n == 0 {
		return "unlimited"
	}
	return strconv.FormatInt(n, 10)
}
