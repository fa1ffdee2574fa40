package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/policy"
	"github.com/lapsehq/lapse/pkg/store"
)

type noticePolicy struct {
	User     string   `placeholder:"ID" help:"As this user is stored. Without it nothing is known of the user but what flags say, and no database is asked."`
	Kind     string   `enum:"expiring,expired" default:"expiring" help:"What is told: expiring or expired."`
	Offset   string   `placeholder:"OFFSET" help:"Of expiring: the reminder's offset, such as -1d."`
	Ends     string   `required:"" placeholder:"TIME" help:"When the coupons end: RFC 3339 with a zone."`
	Value    []string `placeholder:"SUM" help:"What they are worth together, in minor units of a currency: 5000CNY is 50.00. Again for another currency."`
	Template []uint64 `placeholder:"ID" help:"A template that they are of. Again for another."`
	Count    int      `default:"1" help:"How many coupons."`
	At       string   `placeholder:"TIME" help:"When it is decided. Now by default."`
	Zone     string   `placeholder:"ZONE" help:"The user's zone, whatever is stored."`
	Inactive bool     `help:"As if the user was not seen for as long as makes him inactive."`
	OptOut   []string `placeholder:"CHANNEL[:KIND]" help:"As if the user did not want this. Again for another."`
	Late     bool     `help:"As if the day's notice had gone out."`
	JSON     bool     `name:"json" help:"Print JSON."`
}

// Help says what it is.
func (c *noticePolicy) Help() string {
	return "A dry run: nothing is sent or recorded. It says by which rule of the configuration (notice.policy of --config) what would be sent when, and why not. " +
		"Caps are counted when a notice is about to be sent, and are not reckoned with here. Exit code 1: no channel would be used."
}

// Run decides, and explains.
func (c *noticePolicy) Run(ctx context.Context, s *system) error {
	closed, at, err := c.closed()
	if err != nil {
		return err
	}
	cfg, err := s.settings()
	if err != nil {
		return err
	}
	p, err := policy.New(cfg.Notice.Policy, cfg.Notice.Names())
	if err != nil {
		return fmt.Errorf("notice.policy: %w", err)
	}
	if at.IsZero() {
		at = time.Now()
	}
	if c.User != "" {
		err = s.withStore(ctx, func(db *store.Store) error {
			if c.At == "" {
				if at, err = db.Now(ctx); err != nil {
					return err //nolint:wrapcheck // says what it does
				}
			}
			known, err := db.Profiles(ctx, []string{c.User})
			closed.Profile = known[c.User]
			return err //nolint:wrapcheck // says what it does
		})
		if err != nil {
			return err
		}
	}
	at = at.UTC().Truncate(time.Millisecond)
	c.suppose(&closed.Profile, at, cfg.Notice.Policy.Inactive)
	if closed.Kind == coupon.NoticeExpiring {
		o, err := coupon.ParseOffset(c.Offset)
		if err != nil {
			return fmt.Errorf("--offset: %w", err)
		}
		closed.NotifyAt = o.NotifyAt(closed.EndsAt, p.Zone(&closed.Profile))
	}
	x := dryRunOf(p, &cfg.Notice.Config, at, closed)
	if c.JSON {
		err = s.printJSON(x)
	} else {
		err = s.print(x.text())
	}
	if err == nil && !slices.ContainsFunc(x.Channels, func(ch dryChannelJSON) bool { return ch.Plan == string(policy.PlanSend) }) {
		err = s.miss("no channel would be used")
	}
	return err
}

// closed is the window that the flags describe.
func (c *noticePolicy) closed() (*coupon.Closed, time.Time, error) {
	closed := &coupon.Closed{UserID: c.User, Kind: coupon.NoticeKind(c.Kind), Offset: c.Offset, Items: c.Count, Late: c.Late, Of: slices.Compact(slices.Sorted(slices.Values(c.Template)))}
	var errs []error
	instantOf := func(flag, text string) time.Time {
		at, reason := parseInstant(text)
		if reason != "" {
			errs = append(errs, fmt.Errorf("%s: %s, got %q", flag, reason, clipped(text)))
		}
		return at
	}
	var at time.Time
	if c.At != "" {
		at = instantOf("--at", c.At)
	}
	closed.EndsAt = instantOf("--ends", c.Ends)
	closed.LastEnd = closed.EndsAt
	for _, text := range c.Value {
		sum, err := parseSum(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("--value: %w", err))
		}
		closed.Totals = append(closed.Totals, sum)
	}
	if c.Count < 1 {
		errs = append(errs, fmt.Errorf("--count: must be 1 or more, got %d", c.Count))
	}
	switch _, err := coupon.ParseOffset(c.Offset); {
	case closed.Kind == coupon.NoticeExpiring && err != nil:
		errs = append(errs, fmt.Errorf("--offset: %w", err))
	case closed.Kind == coupon.NoticeExpired && c.Offset != "":
		errs = append(errs, fmt.Errorf("--offset: goes with --kind expiring, got %q", clipped(c.Offset)))
	}
	if _, err := time.LoadLocation(c.Zone); err != nil || c.Zone == "Local" {
		errs = append(errs, fmt.Errorf("--zone: must be a name of the IANA database, such as Asia/Shanghai, got %q", clipped(c.Zone)))
	}
	for _, text := range c.OptOut {
		if _, err := parseOptOut(text); err != nil {
			errs = append(errs, fmt.Errorf("--opt-out: %w", err))
		}
	}
	return closed, at, errors.Join(errs...)
}

// suppose sets what flags say over what is stored.
func (c *noticePolicy) suppose(p *coupon.Profile, at time.Time, inactive time.Duration) {
	p.UserID = c.User
	if c.Zone != "" {
		p.Zone = c.Zone
	}
	if c.Inactive {
		p.ActiveAt = at.Add(-inactive)
	}
	for _, text := range c.OptOut {
		if o, err := parseOptOut(text); err == nil { // closed has refused the others
			p.OptOuts = append(p.OptOuts, o)
		}
	}
}

func parseOptOut(text string) (coupon.OptOut, error) {
	channel, kind, named := strings.Cut(text, ":")
	o := coupon.OptOut{Channel: coupon.Channel(channel), Kind: coupon.NoticeKind(kind), Out: true}
	if !named {
		o.Kind = coupon.AllKinds
	}
	if !slices.Contains(append(coupon.Channels(), coupon.AllChannels), o.Channel) ||
		!slices.Contains([]coupon.NoticeKind{coupon.NoticeExpiring, coupon.NoticeExpired, coupon.AllKinds}, o.Kind) {
		return o, fmt.Errorf("must be a channel of %v or *, and perhaps a kind: sms:expiring, got %q", coupon.Channels(), clipped(text))
	}
	return o, nil
}

var sumPattern = regexp.MustCompile(`^([0-9]{1,18}) ?([A-Z]{3})$`)

// parseSum reads 5000CNY.
func parseSum(text string) (coupon.Amount, error) {
	m := sumPattern.FindStringSubmatch(text)
	if m == nil {
		return coupon.Amount{}, fmt.Errorf("must be whole minor units and a currency, such as 5000CNY, got %q", clipped(text))
	}
	minor, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return coupon.Amount{}, err //nolint:wrapcheck // cannot happen: 18 digits
	}
	return coupon.Amount{Minor: minor, Currency: m[2]}, nil
}

// dryRunJSON is what notice policy --json prints.
type dryRunJSON struct {
	At       string           `json:"at"`
	UserID   *string          `json:"user_id"`
	Zone     string           `json:"zone"`
	Known    bool             `json:"known"`   // something is stored of the user, or was given by flags
	SeenAt   *string          `json:"seen_at"` // null: not known
	Kind     string           `json:"kind"`
	Offset   *string          `json:"offset"`
	Items    int              `json:"items"`
	Totals   []coupon.Amount  `json:"totals"`
	EndsAt   string           `json:"ends_at"`
	NotifyAt *string          `json:"notify_at"`
	CloseAt  *string          `json:"close_at"` // when membership is fixed
	Late     bool             `json:"late"`
	Rule     *int             `json:"rule"` // index among notice.policy.rules; null: none matches
	Matches  string           `json:"rule_text"`
	Channels []dryChannelJSON `json:"channels"`
}

type dryChannelJSON struct {
	Channel  string   `json:"channel"`
	Route    int      `json:"route"`
	Plan     string   `json:"plan"` // send, fallback, suppress, off
	Reason   *string  `json:"reason"`
	SendAt   *string  `json:"send_at"`
	Local    *string  `json:"send_at_local"`
	NotAfter *string  `json:"not_after"`
	Quiet    *string  `json:"quiet"`
	Next     []string `json:"next_channels"`
	CapDay   int      `json:"cap_day"` // 0: no bound
	CapWeek  int      `json:"cap_week"`
	Why      string   `json:"why"`
}

// dryRunOf asks the policy.
func dryRunOf(p *policy.Policy, cfg *notice.Config, at time.Time, c *coupon.Closed) dryRunJSON {
	x := dryRunJSON{
		At: instant(at), UserID: orNull(c.UserID), Zone: p.Zone(&c.Profile).String(), Known: c.Profile.Zone != "" || !c.Profile.LastSeenAt.IsZero(),
		SeenAt: instantOrNil(c.Profile.ActiveAt), Kind: string(c.Kind), Offset: orNull(c.Offset), Items: c.Items, Totals: c.Totals,
		EndsAt: instant(c.EndsAt), NotifyAt: instantOrNil(c.NotifyAt), Late: c.Late, Channels: []dryChannelJSON{},
	}
	if x.Totals == nil {
		x.Totals = []coupon.Amount{}
	}
	if c.Kind == coupon.NoticeExpiring {
		x.CloseAt = instantOrNil(p.CloseAt(c.Kind, c.Offset, c.NotifyAt, c.EndsAt, &c.Profile))
	}
	for _, e := range p.Explain(at, c) {
		if x.Matches = "none matches: the inbox"; e.Rule >= 0 {
			x.Rule, x.Matches = &e.Rule, ruleMatches(e.Rule, cfg.Policy.Rules[e.Rule])
		}
		ch := dryChannelJSON{
			Channel: string(e.Channel), Route: e.Route, Plan: string(e.Plan), Reason: orNull(e.Reason), SendAt: instantOrNil(e.SendAt),
			NotAfter: instantOrNil(e.NotAfter), Next: []string{}, CapDay: e.Cap.Day, CapWeek: e.Cap.Week, Why: e.Why(),
		}
		if !e.SendAt.IsZero() {
			local := e.SendAt.In(e.Zone).Format("2006-01-02 15:04:05 -07:00")
			ch.Local = &local
		}
		if text := e.Quiet.String(); text != policy.Never {
			ch.Quiet = &text
		}
		for _, next := range e.Next {
			ch.Next = append(ch.Next, string(next))
		}
		x.Channels = append(x.Channels, ch)
	}
	return x
}

// ruleMatches is a rule in a line.
func ruleMatches(i int, r policy.Rule) string {
	parts := []string{"rules[" + strconv.Itoa(i) + "]"}
	if len(r.Kinds) > 0 {
		parts = append(parts, "of "+strings.Join(r.Kinds, ", "))
	}
	if len(r.Offsets) > 0 {
		parts = append(parts, "at "+strings.Join(r.Offsets, ", "))
	}
	if r.MinValue > 0 {
		parts = append(parts, "worth "+money(r.MinValue, r.Currency)+" or more")
	}
	if len(r.Templates) > 0 {
		parts = append(parts, "with a coupon of template "+strings.Trim(fmt.Sprint(r.Templates), "[]"))
	}
	return strings.Join(parts, " ") + ": " + strings.Join(r.Channels, ", ")
}

func (x dryRunJSON) text() string {
	user := "one of whom nothing is known"
	if x.UserID != nil {
		user = *x.UserID
		if !x.Known {
			user += ", of whom nothing is known"
		}
	}
	told := x.Kind
	if x.Offset != nil {
		told += " " + *x.Offset
	}
	if x.Late {
		told += ", late"
	}
	var worth []string
	for _, a := range x.Totals {
		worth = append(worth, money(a.Minor, a.Currency))
	}
	head := table{{"decided at", x.At}, {"user", user}, {"zone", x.Zone}}
	add := func(name string, text *string) {
		if text != nil {
			head = append(head, []string{name, *text})
		}
	}
	add("seen last", x.SeenAt)
	head = append(head, []string{"told of", fmt.Sprintf("%s, coupons: %d, worth %s", told, x.Items, dash(strings.Join(worth, ", ")))}, []string{"end", x.EndsAt})
	add("hour", x.NotifyAt)
	add("closes", x.CloseAt)
	head = append(head, []string{"rule", x.Matches})
	t := table{{"CHANNEL", "PLAN", "NOT BEFORE", "BY THE USER'S CLOCK", "AT MOST", "WHY"}}
	for _, ch := range x.Channels {
		plan := ch.Plan
		if ch.Reason != nil && *ch.Reason != plan {
			plan += ": " + *ch.Reason
		}
		if len(ch.Next) > 0 {
			plan += ", else " + strings.Join(ch.Next, ", ")
		}
		t = append(t, []string{ch.Channel, plan, dash(orEmpty(ch.SendAt)), dash(orEmpty(ch.Local)), capText(ch.CapDay, ch.CapWeek), ch.Why})
	}
	return head.String() + "\n" + t.String()
}

func capText(day, week int) string {
	var parts []string
	if day > 0 {
		parts = append(parts, strconv.Itoa(day)+" a day")
	}
	if week > 0 {
		parts = append(parts, strconv.Itoa(week)+" a week")
	}
	return dash(strings.Join(parts, ", "))
}
