package wakeup_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/testenv"
	"github.com/lapsehq/lapse/pkg/wakeup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

type scene struct {
	*wakeup.Wakeup

	reg *prometheus.Registry
}

func newScene(t *testing.T, store wakeup.Store, change func(*wakeup.Config)) scene {
	t.Helper()
	c := wakeup.DefaultConfig()
	c.Offers = []wakeup.Offer{{Offer: coupon.OfferGrant, MinValue: 5000, Currency: "CNY"}, {Offer: coupon.OfferDiscount, MinValue: 1000, Currency: "CNY"}}
	if change != nil {
		change(&c)
	}
	s := scene{reg: prometheus.NewRegistry()}
	var err error
	s.Wakeup, err = wakeup.New(c, wakeup.Deps{
		Store: store, Zone: time.UTC, Log: zap.NewNop(), Registerer: s.reg,
	})
	require.NoError(t, err)
	return s
}

func (s scene) count(t *testing.T, result string) float64 {
	t.Helper()
	families, err := s.reg.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == result {
			return m.GetCounter().GetValue()
		}
	}
	require.FailNow(t, "no result "+result)
	return 0
}

func closed(change func(*coupon.Closed)) *coupon.Closed {
	c := &coupon.Closed{
		UserID: "u", Kind: coupon.NoticeExpiring, Offset: "-1d", Slot: "-1d/2026-11-03", Items: 3,
		Totals: []coupon.Amount{{Minor: 6000, Currency: "CNY"}}, EndsAt: now.Add(20 * time.Hour),
		Profile: coupon.Profile{UserID: "u", CartAt: now.Add(-time.Hour)},
	}
	if change != nil {
		change(c)
	}
	return c
}

func TestWhoIsAtRisk(t *testing.T) {
	w := newScene(t, nil, nil)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, tt := range map[string]struct {
		change func(*coupon.Closed)
		want   bool
	}{
		"a cart":         {nil, true},
		"browsed":        {func(c *coupon.Closed) { c.Profile.CartAt, c.Profile.BrowseAt = time.Time{}, ago(72*time.Hour) }, true},
		"too long ago":   {func(c *coupon.Closed) { c.Profile.CartAt = ago(72*time.Hour + time.Second) }, false},
		"only logged in": {func(c *coupon.Closed) { c.Profile.CartAt, c.Profile.LoginAt = time.Time{}, ago(time.Minute) }, false},
		"ordered before": {func(c *coupon.Closed) { c.Profile.OrderedAt = ago(2 * time.Hour) }, true},
		"ordered after":  {func(c *coupon.Closed) { c.Profile.OrderedAt = ago(30 * time.Minute) }, false},
		"ordered then":   {func(c *coupon.Closed) { c.Profile.OrderedAt = ago(time.Hour) }, false},
		"browsed after an order": {func(c *coupon.Closed) {
			c.Profile.OrderedAt, c.Profile.BrowseAt = ago(30*time.Minute), ago(time.Minute)
		}, true},
		"another offset": {func(c *coupon.Closed) { c.Offset = "-3d" }, false},
		"expired":        {func(c *coupon.Closed) { c.Kind = coupon.NoticeExpired }, false},
		"nothing left":   {func(c *coupon.Closed) { c.Items = 0 }, false},
		"late":           {func(c *coupon.Closed) { c.Late = true }, false},
		"ended":          {func(c *coupon.Closed) { c.EndsAt = now }, false},
		"erased":         {func(c *coupon.Closed) { c.Profile.ErasedAt = ago(time.Hour) }, false},
		"wants nothing":  {func(c *coupon.Closed) { c.Profile.OptOuts = []coupon.OptOut{{Channel: "*", Kind: "*", Out: true}} }, false},
		"wants no SMS":   {func(c *coupon.Closed) { c.Profile.OptOuts = []coupon.OptOut{{Channel: "sms", Kind: "*", Out: true}} }, true},
	} {
		d := w.More(now, closed(tt.change), coupon.Decided{Notices: []coupon.PlannedNotice{{Channel: coupon.ChannelInbox}}})
		require.Equal(t, tt.want, d.AtRisk != nil, name)
		require.Len(t, d.Notices, 1)
	}
	off := newScene(t, nil, func(c *wakeup.Config) { c.Offset = "" })
	require.Nil(t, off.More(now, closed(nil), coupon.Decided{}).AtRisk)
}

func TestWhatIsAtRisk(t *testing.T) {
	w := newScene(t, nil, nil)
	c := closed(nil)
	require.Equal(t, &coupon.AtRisk{
		UserID: "u", Day: "2026-11-03", EndsAt: c.EndsAt, Coupons: 3, Totals: c.Totals, CartedAt: c.Profile.CartAt, Offer: coupon.OfferGrant, At: now,
	}, w.More(now, c, coupon.Decided{}).AtRisk)
	for value, want := range map[int64]string{5000: "grant", 4999: "discount", 1000: "discount", 999: "banner", 0: "banner"} {
		c.Totals = []coupon.Amount{{Minor: 9999, Currency: "AUD"}, {Minor: value, Currency: "CNY"}}
		require.Equal(t, want, w.More(now, c, coupon.Decided{}).AtRisk.Offer)
	}
	// Without a day in the slot it is that of the end, where the user is.
	c.Slot, c.Profile.Zone, c.EndsAt = "", "Pacific/Kiritimati", time.Date(2026, 11, 2, 10, 0, 0, 0, time.UTC)
	require.Equal(t, "2026-11-02", w.More(now, c, coupon.Decided{}).AtRisk.Day, "midnight there belongs to the day before")
	c.EndsAt = c.EndsAt.Add(time.Second)
	require.Equal(t, "2026-11-03", w.More(now, c, coupon.Decided{}).AtRisk.Day)
}

func TestConfigNamesItsFaults(t *testing.T) {
	require.NoError(t, wakeup.DefaultConfig().Validate())
	c := wakeup.Config{Offset: "1d", Offers: []wakeup.Offer{{Offer: "car", MinValue: -1, Currency: "cny"}, {Offer: "banner", MinValue: 1}}, Template: 7}
	err := c.Validate()
	for _, field := range []string{
		"offset: ", "recent: ", "offers[0].offer: ", "offers[0].min_value: ", "offers[0].currency: ", "offers[1].currency: ", "template: ",
	} {
		require.ErrorContains(t, err, field)
	}
	require.NoError(t, wakeup.Config{Recent: time.Hour, Offers: []wakeup.Offer{{Offer: "grant"}}, Template: 7}.Validate())
}

func risk(change func(*coupon.AtRisk)) event.AtRisk {
	a := coupon.AtRisk{UserID: "u", Day: "2026-11-03", EndsAt: now.Add(20 * time.Hour), Coupons: 3, Offer: coupon.OfferGrant, At: now}
	if change != nil {
		change(&a)
	}
	return event.AtRisk{EventID: a.AtRiskID(), Source: "/lapse/test", AtRisk: a}
}

type issuer func([]coupon.Grant) ([]coupon.Granted, error)

func (f issuer) IssueOrHold(_ context.Context, g []coupon.Grant) ([]coupon.Granted, error) {
	return f(g)
}

func (issuer) Now(context.Context) (time.Time, error) { return now, nil }

func TestWhatIsGranted(t *testing.T) {
	var asked []coupon.Grant
	issue := issuer(func(gs []coupon.Grant) ([]coupon.Granted, error) {
		out := make([]coupon.Granted, len(gs))
		for i, g := range gs {
			if g.UserID == "impossible" {
				return nil, fmt.Errorf("row: %w", coupon.ErrIntegrity)
			}
			out[i] = coupon.Granted{CouponID: 1}
		}
		asked = append(asked, gs...)
		return out, nil
	})
	w := newScene(t, issue, func(c *wakeup.Config) { c.Template = 7 })
	long := strings.Repeat("长", 42)
	out, err := w.Handle(t.Context(), []event.AtRisk{
		risk(nil),
		risk(func(a *coupon.AtRisk) { a.Offer = coupon.OfferDiscount }),
		risk(func(a *coupon.AtRisk) { a.EndsAt = now }),
		risk(func(a *coupon.AtRisk) { a.UserID = "impossible" }),
		risk(func(a *coupon.AtRisk) { a.UserID = long }),
	})
	require.NoError(t, err)
	for i, o := range out {
		if i == 3 {
			require.NotEqual(t, broker.Ack(), o)
		} else {
			require.Equal(t, broker.Ack(), o)
		}
	}
	require.Len(t, asked, 2)
	require.Equal(t, coupon.Grant{Issuer: "lapse.wakeup", Key: "wakeup:u:2026-11-03", TemplateID: 7, UserID: "u", EventID: "u:2026-11-03:at_risk"}, asked[0])
	require.Equal(t, long, asked[1].UserID)
	require.LessOrEqual(t, len(asked[1].Key), coupon.MaxText)
	require.LessOrEqual(t, len(asked[1].EventID), 120)
	for result, n := range map[string]float64{"granted": 2, "parked": 1, "told": 1, "late": 1, "repeated": 0, "refused": 0} {
		require.InDelta(t, n, w.count(t, result), 0, result)
	}
	require.Equal(t, 7, testutil.CollectAndCount(w.reg))

	down := newScene(t, issuer(func([]coupon.Grant) ([]coupon.Granted, error) { return nil, coupon.ErrUnavailable }), func(c *wakeup.Config) { c.Template = 7 })
	_, err = down.Handle(t.Context(), []event.AtRisk{risk(nil)})
	require.ErrorIs(t, err, coupon.ErrUnavailable)
	require.NotErrorIs(t, err, coupon.ErrIntegrity)
}

// However often the events come, and to however many pods: one coupon for a user and a day, as many as the template has for a
// user and in all, and the campaign's stock is not touched.
func TestWakeUpGrantsOnce(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := func(name string, total, each int64) uint64 {
		id, err := s.CreateTemplate(t.Context(), coupon.Template{
			Name: name, Rule: coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 7, Zone: "UTC"},
			Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact}, Quota: total, PerUser: each,
		})
		require.NoError(t, err)
		return id
	}
	campaign, own := template("campaign", 100, 0), template("wake up", 4, 2)
	at, err := s.Now(t.Context())
	require.NoError(t, err)
	var batch []event.AtRisk
	for _, user := range []string{"a", "b", "c"} {
		for day := 1; day <= 3; day++ {
			for range 3 {
				batch = append(batch, risk(func(a *coupon.AtRisk) {
					a.UserID, a.Day, a.EndsAt = user, fmt.Sprintf("2026-11-0%d", day), at.Add(time.Hour)
				}))
			}
		}
	}
	done := make(chan error, 3)
	for range 3 {
		pod := newScene(t, db.Store(t), func(c *wakeup.Config) { c.Template = own })
		go func() {
			_, err := pod.Handle(t.Context(), batch)
			done <- err
		}()
	}
	for range 3 {
		require.NoError(t, <-done)
	}
	require.EqualValues(t, 4, db.Int(t, `SELECT COUNT(*) FROM coupon WHERE template_id = ?`, own))
	require.EqualValues(t, 4, db.Int(t, `SELECT taken FROM template_stock WHERE template_id = ?`, own))
	require.Zero(t, db.Int(t, `SELECT taken FROM template_stock WHERE template_id = ?`, campaign))
	require.LessOrEqual(t, db.Int(t, `SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM coupon GROUP BY user_id) x`), int64(2))
	require.EqualValues(t, 4, db.Int(t, `SELECT COUNT(DISTINCT grant_key) FROM grant_key WHERE issuer = ?`, wakeup.Issued))
}

// The whole way on a real database: what a user did, the window of a reminder that closes twice over, the event, the coupon.
func TestFromTheCartToTheCoupon(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	at, err := s.Now(t.Context())
	require.NoError(t, err)
	template := func(name string) uint64 {
		id, err := s.CreateTemplate(t.Context(), coupon.Template{
			Name: name, Rule: coupon.Rule{Kind: coupon.RuleAfter, After: "20h"},
			Terms: coupon.Terms{Value: 6000, Currency: "CNY", Precision: coupon.Exact},
		})
		require.NoError(t, err)
		return id
	}
	campaign, own := template("campaign"), template("wake up")
	require.NoError(t, s.ApplyUserEvents(t.Context(), []coupon.UserEvent{
		{UserID: "shopper", At: at.Add(-time.Hour), Activity: coupon.ActivityCart},
		{UserID: "buyer", At: at.Add(-time.Hour), Activity: coupon.ActivityCart},
		{UserID: "buyer", At: at.Add(-time.Minute), Activity: coupon.ActivityOrder},
	}))
	w := newScene(t, s, func(c *wakeup.Config) { c.Template = own })
	rules := coupon.WindowRules{Quiet: time.Millisecond, MaxAge: time.Second, MaxItems: 100}
	for _, user := range []string{"shopper", "buyer", "stranger"} {
		granted, err := s.Issue(t.Context(), []coupon.Grant{{Key: user, TemplateID: campaign, UserID: user}})
		require.NoError(t, err)
		ends := granted[0].ExpiresAt
		added, err := s.CollectNotices(t.Context(), rules, []coupon.NoticeItem{{
			EventID: coupon.ExpiringID(granted[0].CouponID, ends, "-1d"), Kind: coupon.NoticeExpiring, UserID: user, CouponID: granted[0].CouponID,
			TemplateID: campaign, Version: 1, ExpiresAt: ends, Value: 6000, Currency: "CNY",
			Offset: "-1d", Slot: "-1d/" + ends.Format(time.DateOnly), NotifyAt: at, CloseAt: at,
		}})
		require.NoError(t, err)
		require.Equal(t, 1, added)
	}
	decide := func(now time.Time, c *coupon.Closed) coupon.Decided { return w.More(now, c, coupon.Decided{}) }
	risks := 0
	testenv.Wait(t, "the windows to close", func() bool {
		closing, err := s.CloseNotices(t.Context(), coupon.ClosePlan{Kind: coupon.NoticeExpiring, Rules: rules, Limit: 10, Lease: time.Minute, Decide: decide})
		require.NoError(t, err)
		risks += closing.AtRisk
		return db.Int(t, `SELECT COUNT(*) FROM notice_window WHERE closed_at IS NOT NULL`) == 3
	})
	require.Equal(t, 1, risks, "who has ordered since, and of whom nothing is known, are not told of")
	var body []byte
	require.NoError(t, db.SQL.QueryRowContext(t.Context(), `SELECT body FROM outbox WHERE routing_key = 'coupon.at_risk'`).Scan(&body))
	e, err := event.DecodeAtRisk(body)
	require.NoError(t, err)
	for range 3 {
		out, err := w.Handle(t.Context(), []event.AtRisk{e, e})
		require.NoError(t, err)
		require.Equal(t, []broker.Outcome{broker.Ack(), broker.Ack()}, out)
	}
	require.EqualValues(t, 1, db.Int(t, `SELECT COUNT(*) FROM coupon WHERE template_id = ? AND user_id = 'shopper'`, own))
	require.EqualValues(t, 1, db.Int(t, `SELECT COUNT(*) FROM coupon WHERE template_id = ?`, own))
	require.InDelta(t, 1, w.count(t, "granted"), 0)
	require.InDelta(t, 5, w.count(t, "repeated"), 0)
}
