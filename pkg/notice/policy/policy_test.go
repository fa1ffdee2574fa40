package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice/policy"
)

// told is a decision in short: "sms 2026-11-01T12:45:00Z >email", "push opt_out".
func told(d coupon.Decided) string {
	var out []string
	for _, n := range d.Notices {
		text := string(n.Channel) + " "
		if n.State == coupon.NoticeSuppressed {
			text += n.Reason
		} else {
			text += n.SendAt.Format(time.RFC3339)
		}
		for _, ch := range n.Next {
			text += " >" + string(ch)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func newPolicy(t *testing.T, c policy.Config, channels ...coupon.Channel) *policy.Policy {
	t.Helper()
	if channels == nil {
		channels = coupon.Channels()
	}
	p, err := policy.New(c, channels)
	require.NoError(t, err)
	return p
}

// shanghai is a reminder of a user there, of one coupon of 50 yuan that ends at the instant.
func shanghai(t *testing.T, offset, ends string) *coupon.Closed {
	t.Helper()
	o, err := coupon.ParseOffset(offset)
	require.NoError(t, err)
	end := at(t, ends)
	return &coupon.Closed{
		WindowID: 7, UserID: "u", Kind: coupon.NoticeExpiring, Offset: offset, Items: 1, Totals: []coupon.Amount{{Minor: 5000, Currency: "CNY"}},
		NotifyAt: o.NotifyAt(end, zone(t, "Asia/Shanghai")), EndsAt: end, LastEnd: end, Profile: coupon.Profile{UserID: "u", Zone: "Asia/Shanghai"},
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	p := newPolicy(t, policy.DefaultConfig())
	const ends, day = "2026-11-02T12:00:00+08:00", "2026-11-01T04:00:00Z"
	now := at(t, "2026-10-20T00:00:00Z")
	since := func(days int) time.Time { return now.Add(-time.Duration(days) * 24 * time.Hour) }
	for name, x := range map[string]struct {
		offset string
		change func(c *coupon.Closed)
		want   string
	}{
		"three days before":   {"-3d", nil, "inbox 2026-10-30T04:00:00Z"},
		"half an hour before": {"-30m", nil, "popup 2026-11-02T03:30:00Z"},
		"of worth":            {"-1d", nil, "inbox " + day + ", sms " + day + " >push >email"},
		"of less worth":       {"-1d", func(c *coupon.Closed) { c.Totals[0].Minor-- }, "inbox " + day + ", push " + day + " >email"},
		"of another currency": {"-1d", func(c *coupon.Closed) { c.Totals[0].Currency = "JPY" }, "inbox " + day + ", push " + day + " >email"},
		"one of two currencies": {"-1d", func(c *coupon.Closed) {
			c.Totals = append([]coupon.Amount{{Minor: 1, Currency: "AUD"}}, c.Totals...)
		}, "inbox " + day + ", sms " + day + " >push >email"},
		"no rule":              {"-2d", nil, "inbox 2026-10-31T04:00:00Z"},
		"not seen for 30 days": {"-1d", func(c *coupon.Closed) { c.Profile.ActiveAt = since(30) }, "inbox " + day + ", sms inactive, push " + day + " >email"},
		"seen 29 days ago":     {"-1d", func(c *coupon.Closed) { c.Profile.ActiveAt, c.Profile.ProfileAt = since(29), since(60) }, "inbox " + day + ", sms " + day + " >push >email"},
		"never seen, old profile": {
			"-1d", func(c *coupon.Closed) { c.Profile.ProfileAt = since(31) }, "inbox " + day + ", sms inactive, push " + day + " >email",
		},
		"never seen, new profile": {"-1d", func(c *coupon.Closed) { c.Profile.ProfileAt = since(1) }, "inbox " + day + ", sms " + day + " >push >email"},
		"a profile makes nobody active": {
			"-1d", func(c *coupon.Closed) { c.Profile.ActiveAt, c.Profile.ProfileAt = since(31), since(1) }, "inbox " + day + ", sms inactive, push " + day + " >email",
		},
		"no push": {"-1d", func(c *coupon.Closed) {
			c.Profile.OptOuts = []coupon.OptOut{{Channel: coupon.ChannelPush, Kind: coupon.AllKinds, Out: true}}
		}, "inbox " + day + ", sms " + day + " >email, push opt_out"},
		"no SMS of this kind": {"-1d", func(c *coupon.Closed) {
			c.Profile.OptOuts = []coupon.OptOut{{Channel: coupon.ChannelSMS, Kind: coupon.NoticeExpiring, Out: true}}
		}, "inbox " + day + ", sms opt_out, push " + day + " >email"},
		"no SMS of the other kind": {"-1d", func(c *coupon.Closed) {
			c.Profile.OptOuts = []coupon.OptOut{{Channel: coupon.ChannelSMS, Kind: coupon.NoticeExpired, Out: true}}
		}, "inbox " + day + ", sms " + day + " >push >email"},
		"nothing": {"-1d", func(c *coupon.Closed) {
			c.Profile.OptOuts = []coupon.OptOut{{Channel: coupon.AllChannels, Kind: coupon.AllKinds, Out: true}}
		}, "inbox opt_out, sms opt_out, push opt_out, email opt_out"},
		"erased":        {"-1d", func(c *coupon.Closed) { c.Profile.ErasedAt = since(1) }, "inbox erased, sms erased, push erased, email erased"},
		"nothing left":  {"-1d", func(c *coupon.Closed) { c.Items, c.Totals = 0, nil }, "inbox empty, push empty, email empty"},
		"all dropped":   {"-1d", func(c *coupon.Closed) { c.Items, c.Totals, c.Reason = 0, nil, "changed" }, "inbox changed, push changed, email changed"},
		"late":          {"-1d", func(c *coupon.Closed) { c.Late = true }, "inbox late, sms late, push late, email late"},
		"over already":  {"-1d", func(c *coupon.Closed) { c.EndsAt = since(1) }, "inbox too_late, sms too_late, push too_late, email too_late"},
		"ends just now": {"-1d", func(c *coupon.Closed) { c.EndsAt, c.NotifyAt = now, since(1) }, "inbox too_late, sms too_late, push too_late, email too_late"},
	} {
		c := shanghai(t, x.offset, ends)
		if x.change != nil {
			x.change(c)
		}
		require.Equal(t, x.want, told(p.Decide(now, c)), name)
	}
}

func TestQuietHoursMove(t *testing.T) {
	t.Parallel()
	c := policy.DefaultConfig()
	c.Rules = []policy.Rule{{Channels: []string{"sms", "inbox"}}}
	p := newPolicy(t, c)
	for _, x := range []struct{ name, now, ends, want string }{
		{"wanted by day", "2026-10-30T00:00:00Z", "2026-11-02T20:59:59+08:00", "sms 2026-11-01T12:59:59Z"},
		{"wanted at nine in the evening", "2026-10-30T00:00:00Z", "2026-11-02T21:00:00+08:00", "sms 2026-11-01T12:45:00Z"},
		{"wanted before eight in the morning", "2026-10-30T00:00:00Z", "2026-11-02T07:59:59+08:00", "sms 2026-10-31T12:45:00Z"},
		{"wanted at eight in the morning", "2026-10-30T00:00:00Z", "2026-11-02T08:00:00+08:00", "sms 2026-11-01T00:00:00Z"},
		{"within the margin, it goes at once", "2026-11-01T20:50:00+08:00", "2026-11-02T21:00:00+08:00", "sms 2026-11-01T12:50:00Z"},
		{"the evening has passed", "2026-11-01T21:00:00+08:00", "2026-11-02T21:00:00+08:00", "sms 2026-11-02T00:00:00Z"},
		{"the next morning is after the end", "2026-11-01T23:00:00+08:00", "2026-11-02T07:30:00+08:00", "sms quiet"},
		{"the next morning is the end", "2026-11-01T23:00:00+08:00", "2026-11-02T08:00:00+08:00", "sms quiet"},
		{"a second later there is one left", "2026-11-01T23:00:00+08:00", "2026-11-02T08:00:01+08:00", "sms 2026-11-02T00:00:00Z"},
	} {
		closed := shanghai(t, "-1d", x.ends)
		require.True(t, strings.HasPrefix(told(p.Decide(at(t, x.now), closed)), x.want+", inbox "), "%s: %s", x.name, told(p.Decide(at(t, x.now), closed)))
	}

	expired := &coupon.Closed{
		Kind: coupon.NoticeExpired, Items: 1, EndsAt: at(t, "2026-11-01T00:00:00+08:00"), Profile: coupon.Profile{Zone: "Asia/Shanghai"},
	}
	for now, want := range map[string]string{
		"2026-11-01T00:00:30+08:00": "sms 2026-11-01T00:00:00Z, inbox 2026-10-31T16:00:30Z",
		"2026-11-01T12:00:30+08:00": "sms 2026-11-01T04:00:30Z, inbox 2026-11-01T04:00:30Z",
		"2026-11-01T21:00:00+08:00": "sms quiet, inbox 2026-11-01T13:00:00Z", // eight o'clock is more than a day after the end
		"2026-11-02T00:00:00+08:00": "sms stale, inbox stale",
	} {
		require.Equal(t, want, told(p.Decide(at(t, now), expired)), now)
	}
	d := p.Decide(at(t, "2026-11-01T00:00:30+08:00"), expired)
	require.Equal(t, "2026-11-01T16:00:00Z", d.Notices[0].NotAfter.Format(time.RFC3339), "a day after the end")
	require.Empty(t, d.Notices[0].Next)
}

func TestClocksThatChange(t *testing.T) {
	t.Parallel()
	c := policy.DefaultConfig()
	c.Rules = []policy.Rule{{Channels: []string{"sms"}}}
	for _, x := range []struct{ zone, quiet, wanted, want string }{
		// New York, 1 November 2026: 02:00 becomes 01:00; 8 March: 02:00 becomes 03:00.
		{"America/New_York", "21:00-08:00", "2026-11-01T07:30:00-05:00", "2026-10-31T20:45:00-04:00"},
		{"America/New_York", "01:00-02:00", "2026-11-01T01:30:00-05:00", "2026-11-01T00:45:00-04:00"},    // quiet twice, without a break
		{"America/New_York", "01:30-02:30", "2026-11-01T01:45:00-05:00", "2026-11-01T01:15:00-05:00"},    // quiet, not quiet, quiet
		{"America/New_York", "02:00-03:00", "2026-03-08T03:00:00-04:00", "2026-03-08T03:00:00-04:00"},    // never there
		{"America/New_York", "02:30-04:00", "2026-03-08T03:10:00-04:00", "2026-03-08T01:45:00-05:00"},    // begins where the clocks land
		{"Australia/Lord_Howe", "02:00-03:00", "2026-10-04T02:45:00+11:00", "2026-10-04T01:45:00+10:30"}, // changes by half an hour
		{"Australia/Lord_Howe", "01:30-02:00", "2026-04-05T01:40:00+10:30", "2026-04-05T01:15:00+11:00"},
		{"Asia/Kathmandu", "21:00-08:00", "2026-06-01T07:00:00+05:45", "2026-05-31T20:45:00+05:45"},
		{"Pacific/Kiritimati", "21:00-08:00", "2026-06-01T07:00:00+14:00", "2026-05-31T20:45:00+14:00"},
		{"Africa/Cairo", "23:30-00:30", "2026-04-24T01:10:00+03:00", "2026-04-24T01:10:00+03:00"}, // midnight is jumped over
		{"America/Godthab", "21:00-08:00", "2026-03-29T01:00:00-01:00", "2026-03-28T20:45:00-02:00"},
	} {
		c.Quiet = map[string]string{"sms": x.quiet}
		p := newPolicy(t, c)
		closed := &coupon.Closed{
			Kind: coupon.NoticeExpiring, Offset: "-1d", Items: 1, NotifyAt: at(t, x.wanted), EndsAt: at(t, x.wanted).Add(24 * time.Hour),
			Profile: coupon.Profile{Zone: x.zone},
		}
		got := p.Decide(at(t, x.wanted).Add(-72*time.Hour), closed)
		require.Equal(t, x.want, got.Notices[0].SendAt.In(zone(t, x.zone)).Format(time.RFC3339), "%v", x)
		require.True(t, p.CloseAt(closed.Kind, "-1d", closed.NotifyAt, closed.EndsAt, &closed.Profile).Equal(got.Notices[0].SendAt))
	}
}

func TestClocksThatChangeMoveLater(t *testing.T) {
	t.Parallel()
	c := policy.DefaultConfig()
	for _, x := range []struct{ zone, quiet, now, want string }{
		{"America/New_York", "21:00-08:00", "2026-03-07T22:00:00-05:00", "2026-03-08T08:00:00-04:00"},
		{"America/New_York", "21:00-08:00", "2026-10-31T22:00:00-04:00", "2026-11-01T08:00:00-05:00"},
		{"America/New_York", "01:30-02:30", "2026-03-08T01:40:00-05:00", "2026-03-08T03:00:00-04:00"}, // half past two is jumped over
		{"America/New_York", "01:30-02:30", "2026-11-01T01:40:00-04:00", "2026-11-01T01:00:00-05:00"}, // permitted between
		{"America/New_York", "01:30-02:30", "2026-11-01T01:40:00-05:00", "2026-11-01T02:30:00-05:00"},
		{"Australia/Lord_Howe", "01:00-03:00", "2026-10-04T01:30:00+10:30", "2026-10-04T03:00:00+11:00"},
		{"Pacific/Apia", "21:00-08:00", "2026-06-01T23:00:00+13:00", "2026-06-02T08:00:00+13:00"},
		{"Pacific/Apia", "21:00-08:00", "2011-12-29T23:00:00-10:00", "2011-12-31T08:00:00+14:00"}, // a day that never was
	} {
		c.Quiet = map[string]string{"sms": x.quiet}
		now := at(t, x.now)
		got, reason := newPolicy(t, c).Allowed(now, coupon.ChannelSMS, coupon.NoticeExpired, now.Add(48*time.Hour), &coupon.Profile{Zone: x.zone})
		require.Empty(t, reason)
		require.Equal(t, x.want, got.In(zone(t, x.zone)).Format(time.RFC3339), "%v", x)
	}
}

func TestZoneOfAUser(t *testing.T) {
	t.Parallel()
	c := policy.DefaultConfig()
	c.Zone = "Asia/Tokyo"
	p := newPolicy(t, c)
	for name, want := range map[string]string{"": "Asia/Tokyo", "Europe/Paris": "Europe/Paris", "Mars/Olympus": "Asia/Tokyo", "Local": "Asia/Tokyo", "../etc/passwd": "Asia/Tokyo"} {
		for range 2 {
			require.Equal(t, want, p.Zone(&coupon.Profile{Zone: name}).String(), name)
		}
	}
	require.Equal(t, "Asia/Tokyo", p.Zone(nil).String())
	for i := range 2000 {
		require.Equal(t, "Asia/Tokyo", p.Zone(&coupon.Profile{Zone: strings.Repeat("x", i+1)}).String(), "whatever profiles say, what is kept is bounded")
	}
}

func TestLate(t *testing.T) {
	t.Parallel()
	c := policy.DefaultConfig()
	c.Late.Send = true
	p := newPolicy(t, c)
	closed := shanghai(t, "-3d", "2026-11-02T12:00:00+08:00")
	closed.Late = true
	require.Equal(t, "inbox 2026-11-02T01:59:59Z", told(p.Decide(at(t, "2026-11-02T09:59:59+08:00"), closed)))
	require.Equal(t, "inbox late", told(p.Decide(at(t, "2026-11-02T10:00:00+08:00"), closed)), "two hours are left, and not more")
}

func TestChannelsThatAreNotHere(t *testing.T) {
	t.Parallel()
	closed := shanghai(t, "-1d", "2026-11-02T12:00:00+08:00")
	now := at(t, "2026-10-20T00:00:00Z")
	p := newPolicy(t, policy.DefaultConfig(), coupon.ChannelInbox, coupon.ChannelEmail)
	require.Equal(t, "inbox 2026-11-01T04:00:00Z, email 2026-11-01T04:00:00Z", told(p.Decide(now, closed)))
	require.Equal(t, []coupon.Channel{"sms", "push", "popup", "log"}, p.Off())

	c := policy.DefaultConfig()
	c.Rules = []policy.Rule{{Channels: []string{"sms>push"}}}
	require.Equal(t, "inbox 2026-11-01T04:00:00Z", told(newPolicy(t, c, coupon.ChannelInbox, coupon.ChannelEmail).Decide(now, closed)), "a rule that leaves none")
	require.Equal(t, "inbox off", told(newPolicy(t, c, coupon.ChannelEmail).Decide(now, closed)), "not even the inbox")
	c.Rules = nil
	require.Equal(t, "inbox off", told(newPolicy(t, c, coupon.ChannelEmail).Decide(now, closed)))

	e := newPolicy(t, c, coupon.ChannelEmail).Explain(now, closed)[0]
	require.Equal(t, "suppress: not among the channels of this installation, and no other is left", string(e.Plan)+": "+e.Why())

	_, err := policy.New(c, nil)
	require.ErrorContains(t, err, "needs a channel")
}

// A template has channels of its own, which a digest with one of its coupons goes by.
func TestTemplates(t *testing.T) {
	t.Parallel()
	c := policy.DefaultConfig()
	c.Quiet = nil
	c.Rules = []policy.Rule{
		{Templates: []uint64{9, 7}, Channels: []string{"email"}},
		{Channels: []string{"push"}},
	}
	p, err := policy.New(c, coupon.Channels())
	require.NoError(t, err)
	now := at(t, "2026-10-20T00:00:00Z")
	for _, tc := range []struct {
		of   []uint64
		want coupon.Channel
	}{
		{nil, coupon.ChannelPush},
		{[]uint64{1, 8, 10}, coupon.ChannelPush},
		{[]uint64{1, 7, 10}, coupon.ChannelEmail},
		{[]uint64{9}, coupon.ChannelEmail},
	} {
		d := p.Decide(now, &coupon.Closed{Kind: coupon.NoticeExpired, Items: 3, Of: tc.of, EndsAt: now})
		require.Len(t, d.Notices, 1)
		require.Equal(t, tc.want, d.Notices[0].Channel, tc.of)
	}
}

func TestCloseAt(t *testing.T) {
	t.Parallel()
	p := newPolicy(t, policy.DefaultConfig())
	closeAt := func(offset, ends string, change func(*coupon.Profile)) string {
		c := shanghai(t, offset, ends)
		if change != nil {
			change(&c.Profile)
		}
		return p.CloseAt(c.Kind, offset, c.NotifyAt, c.EndsAt, &c.Profile).Format(time.RFC3339)
	}
	require.Equal(t, "2026-11-01T04:00:00Z", closeAt("-1d", "2026-11-02T12:00:00+08:00", nil), "by day")
	require.Equal(t, "2026-11-01T12:45:00Z", closeAt("-1d", "2026-11-02T21:30:00+08:00", nil), "for SMS, though it may be worth too little")
	require.Equal(t, "2026-11-01T13:30:00Z", closeAt("-1d", "2026-11-02T21:30:00+08:00", func(p *coupon.Profile) {
		p.OptOuts = []coupon.OptOut{{Channel: coupon.ChannelSMS, Kind: coupon.AllKinds, Out: true}}
	}), "push is not quiet yet")
	require.Equal(t, "2026-10-30T13:30:00Z", closeAt("-3d", "2026-11-02T21:30:00+08:00", nil), "the inbox is never quiet")
	require.Equal(t, "2026-11-02T13:00:00Z", closeAt("-30m", "2026-11-02T21:30:00+08:00", nil), "nor is the pop-up")
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	p := newPolicy(t, policy.DefaultConfig(), coupon.ChannelInbox, coupon.ChannelSMS)
	prof := &coupon.Profile{Zone: "Asia/Shanghai"}
	allowed := func(now string, ch coupon.Channel, notAfter string, prof *coupon.Profile) string {
		at, reason := p.Allowed(at(t, now), ch, coupon.NoticeExpiring, at(t, notAfter), prof)
		if reason != "" {
			require.Zero(t, at)
			return reason
		}
		return at.Format(time.RFC3339)
	}
	const end = "2026-11-02T12:00:00+08:00"
	require.Equal(t, "2026-11-01T04:00:00Z", allowed("2026-11-01T12:00:00+08:00", coupon.ChannelSMS, end, prof))
	require.Equal(t, "2026-11-02T00:00:00Z", allowed("2026-11-01T21:00:00+08:00", coupon.ChannelSMS, end, prof))
	require.Equal(t, "2026-11-01T13:00:00Z", allowed("2026-11-01T21:00:00+08:00", coupon.ChannelInbox, end, prof))
	require.Equal(t, coupon.ReasonQuiet, allowed("2026-11-01T21:00:00+08:00", coupon.ChannelSMS, "2026-11-02T08:00:00+08:00", prof))
	require.Equal(t, coupon.ReasonTooLate, allowed(end, coupon.ChannelInbox, end, prof))
	require.Equal(t, coupon.ReasonOff, allowed("2026-11-01T12:00:00+08:00", coupon.ChannelPush, end, prof))
	require.Equal(t, "2026-11-01T08:00:00Z", allowed("2026-11-01T12:00:00+08:00", coupon.ChannelSMS, "2026-11-02T00:00:00Z", nil), "in UTC by default")
	for reason, prof := range map[string]*coupon.Profile{
		coupon.ReasonErased:   {ErasedAt: at(t, end)},
		coupon.ReasonInactive: {ActiveAt: at(t, "2026-10-02T12:00:00+08:00")},
		coupon.ReasonOptOut:   {OptOuts: []coupon.OptOut{{Channel: coupon.ChannelSMS, Kind: coupon.AllKinds, Out: true}}},
	} {
		require.Equal(t, reason, allowed("2026-11-01T12:00:00+08:00", coupon.ChannelSMS, end, prof))
	}
	require.Equal(t, coupon.Cap{Day: 1, Week: 3}, p.Cap(coupon.ChannelSMS))
	require.Zero(t, p.Cap(coupon.ChannelInbox))
}

func TestExplain(t *testing.T) {
	t.Parallel()
	p := newPolicy(t, policy.DefaultConfig(), coupon.ChannelInbox, coupon.ChannelSMS, coupon.ChannelEmail)
	c := shanghai(t, "-1d", "2026-11-02T21:30:00+08:00")
	c.Profile.ActiveAt = at(t, "2026-09-01T00:00:00Z")
	es := p.Explain(at(t, "2026-10-20T00:00:00Z"), c)
	var got []string
	for _, e := range es {
		require.Equal(t, 1, e.Rule)
		require.Equal(t, "Asia/Shanghai", e.Zone.String())
		require.True(t, e.Wanted.Equal(c.NotifyAt))
		got = append(got, string(e.Channel)+" "+string(e.Plan)+" "+e.Reason)
	}
	require.Equal(t, []string{"inbox send ", "sms suppress inactive", "push off off", "email send "}, got)
	require.Equal(t, "the user was seen last at 2026-09-01 08:00:00 +08:00, and 30 days ago or more gets no SMS", es[1].Why())
	require.Equal(t, "not among the channels of this installation", es[2].Why())
	require.Equal(t, "21:00-08:00", es[1].Quiet.String())
	require.True(t, es[1].SeenAt.Equal(c.Profile.ActiveAt))
	require.Zero(t, es[0].Moved())

	c.Profile.ActiveAt = time.Time{}
	es = p.Explain(at(t, "2026-10-20T00:00:00Z"), c)
	require.Equal(t, policy.PlanSend, es[1].Plan)
	require.Equal(t, -1, es[1].Moved())
	require.Equal(t, []coupon.Channel{"email"}, es[1].Next)
	require.Equal(t, policy.PlanFallback, es[3].Plan)
	require.Equal(t, "at its hour, or at once if that has passed", es[0].Why())
	require.Equal(t, "earlier than 2026-11-01 21:30:00 +08:00, which is within the quiet hours 21:00-08:00 of Asia/Shanghai", es[1].Why())
	require.Equal(t, "if the channel before it in the rule fails", es[3].Why())

	why := func(now string, change func(*coupon.Closed)) string {
		c := shanghai(t, "-1d", "2026-11-02T21:30:00+08:00")
		change(c)
		e := p.Explain(at(t, now), c)[1]
		return string(e.Plan) + ": " + e.Why()
	}
	nothing := func(*coupon.Closed) {}
	const early = "2026-10-20T00:00:00Z"
	require.Equal(t, "send: not at 2026-11-01 22:00:00 +08:00: the quiet hours are 21:00-08:00 of Asia/Shanghai", why("2026-11-01T22:00:00+08:00", nothing))
	require.Equal(t, "suppress: the quiet hours 21:00-08:00 of Asia/Shanghai leave no hour before 2026-11-02 21:30:00 +08:00", why("2026-11-02T21:10:00+08:00", nothing))
	require.Equal(t, "suppress: of no use from 2026-11-02 21:30:00 +08:00 on", why("2026-11-02T21:30:00+08:00", nothing))
	require.Equal(t, "suppress: it joins a day whose notice has gone out", why(early, func(c *coupon.Closed) { c.Late = true }))
	require.Equal(t, "suppress: the user was erased", why(early, func(c *coupon.Closed) { c.Profile.ErasedAt = at(t, early) }))
	require.Equal(t, "suppress: no coupon is left to tell of", why(early, func(c *coupon.Closed) { c.Reason = coupon.ReasonChanged; c.Items = 0 }))
	require.Equal(t, "suppress: the user does not want it", why(early, func(c *coupon.Closed) {
		c.Profile.OptOuts = []coupon.OptOut{{Channel: coupon.ChannelSMS, Kind: coupon.AllKinds, Out: true}}
	}))

	c.Offset = "-2d"
	require.Equal(t, -1, p.Explain(at(t, "2026-10-20T00:00:00Z"), c)[0].Rule)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, policy.DefaultConfig().Validate())
	c := policy.Config{
		Zone: "Local", Quiet: map[string]string{"inbox": "21:00-08:00", "sms": "late"}, Caps: map[string]policy.Cap{"pigeon": {Day: -1, Week: 1001}},
		Inactive: time.Second, Late: policy.Late{Least: -1}, Stale: 1,
		Rules: []policy.Rule{
			{},
			{Kinds: []string{"soon"}, Offsets: []string{"1d"}, MinValue: -1, Channels: []string{"sms>sms", "dove", "popup"}},
			{MinValue: 1, Currency: "yuan", Channels: []string{"inbox"}},
			{Currency: "CNY", Channels: []string{"sms> push", "inbox>"}},
			{Kinds: []string{"expired"}, Offsets: []string{"-1d"}, Channels: []string{"inbox", "inbox"}},
			{Templates: []uint64{7, 0}, Channels: []string{"inbox"}},
			{Templates: make([]uint64, 1001), Channels: []string{"inbox"}},
		},
	}
	err := c.Validate()
	for _, fault := range []string{
		`zone: must be a name of the IANA database, such as Asia/Shanghai, got "Local"`,
		"rules[0].channels: must name one at least, got none",
		`rules[1].kinds[0]: must be of [expiring expired], got "soon"`,
		`rules[1].offsets[0]: must be like -3d, -30m or -1d@10:00, got "1d"`,
		"rules[1].min_value: must be at least 0, got -1",
		`rules[1].channels[0]: a rule names a channel once, got "sms" again`,
		`rules[1].channels[1]: must be of [inbox popup email sms push log], or a chain of them with >, got "dove"`,
		`rules[2].currency: must be three capital letters where min_value is given, got "yuan"`,
		`rules[3].currency: goes with min_value, got "CNY"`,
		`rules[3].channels[1]: must be of [inbox popup email sms push log], or a chain of them with >, got "inbox>"`,
		"rules[4].offsets: goes with kinds [expiring] alone, got kinds [expired]",
		`rules[4].channels[1]: a rule names a channel once, got "inbox" again`,
		"rules[5].templates[1]: must be a template's id, got 0",
		"rules[6].templates: must be at most 1000, got 1001",
		"quiet.inbox: must be of [sms push email]; the others disturb nobody",
		`quiet.sms: must be HH:MM-HH:MM, such as 21:00-08:00, or never: no two times in "late"`,
		"margin: must be between 1m0s and 6h0m0s, got 0s",
		"caps.pigeon: must be of [inbox popup email sms push log]",
		"caps.pigeon.day: must be between 0 and 1000, got -1",
		"caps.pigeon.week: must be between 0 and 1000, got 1001",
		"inactive: must be between 1h0m0s and ",
		"late.least: must be between 0s and ",
		"stale: must be between 1m0s and ",
	} {
		require.ErrorContains(t, err, fault)
	}
	require.NotContains(t, err.Error(), "rules[3].channels[0]", "blanks may be put around the mark")
	_, err = policy.New(c, coupon.Channels())
	require.ErrorContains(t, err, "policy config: ")

	c = policy.DefaultConfig()
	c.Rules = make([]policy.Rule, 65)
	require.ErrorContains(t, c.Validate(), "rules: must be at most 64, got 65")
	c = policy.DefaultConfig()
	c.Rules = append(c.Rules, policy.Rule{Kinds: []string{"expired"}, Channels: []string{"popup"}})
	require.ErrorContains(t, c.Validate(), "rules[5].channels[0]: popup goes with kinds [expiring] alone")
	c = policy.DefaultConfig()
	c.Inactive = 0
	p := newPolicy(t, c)
	closed := shanghai(t, "-1d", "2026-11-02T12:00:00+08:00")
	closed.Profile.ActiveAt = at(t, "2020-01-01T00:00:00Z")
	require.Contains(t, told(p.Decide(at(t, "2026-10-20T00:00:00Z"), closed)), "sms 2026-11-01T04:00:00Z", "switched off")
}
