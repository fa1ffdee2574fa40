package policy_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice/policy"
)

// drawHours gives quiet hours, often ones that the clocks' changes fall into.
func drawHours(t *rapid.T, label string) string {
	if rapid.IntRange(0, 9).Draw(t, label+" off") == 0 {
		return policy.Never
	}
	minute := rapid.OneOf(rapid.SampledFrom([]int{0, 30, 60, 90, 120, 150, 180, 480, 1260, 1320, 1439}), rapid.IntRange(0, 24*60-1))
	for {
		from, to := minute.Draw(t, label+" from"), minute.Draw(t, label+" to")
		text := clockText(from) + "-" + clockText(to)
		if _, err := policy.ParseHours(text); err == nil {
			return text
		}
	}
}

func clockText(minute int) string {
	return time.Time{}.Add(time.Duration(minute) * time.Minute).Format("15:04")
}

// drawInstant is any of some years, and often close to where the zone's clocks change.
func drawInstant(t *rapid.T, zone *time.Location) time.Time {
	at := time.Unix(rapid.Int64Range(1_700_000_000, 2_100_000_000).Draw(t, "second"), 0)
	if _, changes := at.In(zone).ZoneBounds(); !changes.IsZero() && rapid.Bool().Draw(t, "at a change") {
		at = changes
	}
	return at.Add(time.Duration(rapid.Int64Range(-172_800_000, 172_800_000).Draw(t, "off by")) * time.Millisecond).UTC()
}

// isQuiet is told by the text of the clock alone, so that it shares nothing with what it checks.
func isQuiet(hours string, at time.Time, zone *time.Location) bool {
	if hours == policy.Never || hours == "" {
		return false
	}
	clock := at.In(zone).Format("15:04")
	from, to := hours[:5], hours[6:]
	if from < to {
		return from <= clock && clock < to
	}
	return from <= clock || clock < to
}

func drawConfig(t *rapid.T) policy.Config {
	c := policy.DefaultConfig()
	c.Quiet = map[string]string{}
	for _, ch := range []string{"sms", "push", "email"} {
		c.Quiet[ch] = drawHours(t, ch)
	}
	c.Margin = rapid.SampledFrom([]time.Duration{time.Minute, 15 * time.Minute, 6 * time.Hour}).Draw(t, "margin")
	c.Late.Send = rapid.Bool().Draw(t, "late send")
	if rapid.Bool().Draw(t, "own rules") {
		c.Rules = drawRules(t)
	}
	return c
}

func drawRules(t *rapid.T) []policy.Rule {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) policy.Rule {
		r := policy.Rule{Kinds: []string{rapid.SampledFrom([]string{"expiring", "expired"}).Draw(t, "kind")}}
		if r.Kinds[0] == "expiring" && rapid.Bool().Draw(t, "by offset") {
			r.Offsets = []string{rapid.SampledFrom([]string{"-3d", "-1d", "-30m"}).Draw(t, "offset")}
		}
		if rapid.Bool().Draw(t, "by worth") {
			r.MinValue, r.Currency = rapid.Int64Range(1, 10_000).Draw(t, "worth"), rapid.SampledFrom([]string{"CNY", "USD"}).Draw(t, "currency")
		}
		if rapid.Bool().Draw(t, "by template") {
			r.Templates = rapid.SliceOfN(rapid.Uint64Range(1, 6), 1, 3).Draw(t, "templates")
		}
		chs := rapid.Permutation(coupon.Channels()).Draw(t, "channels")
		open := true
		for _, ch := range chs[:rapid.IntRange(1, len(chs)).Draw(t, "how many")] {
			switch {
			case ch == coupon.ChannelPopup && r.Kinds[0] == "expired":
			case open:
				r.Channels, open = append(r.Channels, string(ch)), false
			case rapid.Bool().Draw(t, "same route"):
				r.Channels[len(r.Channels)-1] += ">" + string(ch)
			default:
				r.Channels = append(r.Channels, string(ch))
			}
		}
		if len(r.Channels) == 0 {
			r.Channels = []string{"inbox"}
		}
		return r
	}), 0, 6).Draw(t, "rules")
}

func drawProfile(t *rapid.T, zone *time.Location, now time.Time) coupon.Profile {
	p := coupon.Profile{UserID: "u", Zone: zone.String()}
	past := func(label string) (at time.Time) {
		if rapid.Bool().Draw(t, label) {
			at = now.Add(-time.Duration(rapid.IntRange(0, 60*24).Draw(t, label+" hours")) * time.Hour)
		}
		return at
	}
	p.ActiveAt, p.ProfileAt = past("active"), past("profile")
	if rapid.IntRange(0, 9).Draw(t, "erased") == 0 {
		p.ErasedAt = now.Add(-time.Hour)
	}
	if rapid.IntRange(0, 3).Draw(t, "opt-out") == 0 {
		p.OptOuts = []coupon.OptOut{{
			Channel: rapid.SampledFrom(append(coupon.Channels(), coupon.AllChannels)).Draw(t, "from"),
			Kind:    rapid.SampledFrom([]coupon.NoticeKind{coupon.NoticeExpiring, coupon.NoticeExpired, coupon.AllKinds}).Draw(t, "of"), Out: true,
		}}
	}
	return p
}

func drawClosed(t *rapid.T, zone *time.Location) (now time.Time, c *coupon.Closed) {
	end := drawInstant(t, zone).Truncate(time.Second)
	c = &coupon.Closed{WindowID: 1, UserID: "u", Items: rapid.IntRange(0, 3).Draw(t, "items"), EndsAt: end, LastEnd: end}
	c.Of = slices.Compact(slices.Sorted(slices.Values(rapid.SliceOfN(rapid.Uint64Range(1, 6), 0, 3).Draw(t, "of"))))
	if c.Items > 0 {
		c.Totals = []coupon.Amount{{Minor: rapid.Int64Range(0, 20_000).Draw(t, "worth"), Currency: rapid.SampledFrom([]string{"CNY", "USD"}).Draw(t, "of")}}
	} else {
		c.Reason = rapid.SampledFrom([]string{"", coupon.ReasonChanged, coupon.ReasonSkipped}).Draw(t, "why none")
	}
	if rapid.Bool().Draw(t, "reminder") {
		c.Kind, c.Offset = coupon.NoticeExpiring, rapid.SampledFrom([]string{"-3d", "-1d", "-30m", "-1d@10:00"}).Draw(t, "offset")
		o, err := coupon.ParseOffset(c.Offset)
		require.NoError(t, err)
		c.NotifyAt, c.Late = o.NotifyAt(end, zone), rapid.IntRange(0, 4).Draw(t, "late") == 0
		now = end.Add(-time.Duration(rapid.Int64Range(-1, int64(5*24*time.Hour/time.Millisecond)).Draw(t, "before the end")) * time.Millisecond)
	} else {
		c.Kind = coupon.NoticeExpired
		now = end.Add(time.Duration(rapid.Int64Range(0, int64(26*time.Hour/time.Millisecond)).Draw(t, "after the end")) * time.Millisecond)
	}
	c.Profile = drawProfile(t, zone, now)
	return now, c
}

// TestDecisions is what must hold of every decision, whatever the zone, the rules and the instant.
func TestDecisions(t *testing.T) {
	t.Parallel()
	all, names := zones(t)
	rapid.Check(t, func(t *rapid.T) {
		zone := all[rapid.SampledFrom(names).Draw(t, "zone")]
		config := drawConfig(t)
		configured := rapid.Permutation(coupon.Channels()).Draw(t, "configured")
		configured = configured[:rapid.IntRange(1, len(configured)).Draw(t, "of them")]
		p, err := policy.New(config, configured)
		require.NoError(t, err)
		now, c := drawClosed(t, zone)

		d := p.Decide(now, c)
		require.Equal(t, d, p.Decide(now, c), "a decision is a function")
		require.NotEmpty(t, d.Notices)
		require.Nil(t, d.AtRisk)
		holdsOfEach(t, config, now, c, d, configured)
		agreesWithExplain(t, p, now, c, d)

		closeAt := p.CloseAt(c.Kind, c.Offset, c.NotifyAt, c.EndsAt, &c.Profile)
		require.False(t, closeAt.After(c.NotifyAt))
		if c.Kind == coupon.NoticeExpiring && !now.After(closeAt) {
			least := c.NotifyAt
			for _, n := range d.Notices {
				if n.State == coupon.NoticePending && n.SendAt.Before(least) {
					least = n.SendAt
				}
			}
			require.False(t, least.Before(closeAt), "no channel wants to send before membership is fixed")
		}
	})
}

// holdsOfEach checks the notices one by one, and that each channel of the rule comes once.
func holdsOfEach(t *rapid.T, config policy.Config, now time.Time, c *coupon.Closed, d coupon.Decided, configured []coupon.Channel) {
	zone, err := time.LoadLocation(c.Profile.Zone)
	require.NoError(t, err)
	var seen []coupon.Channel
	for _, n := range d.Notices {
		seen = append(append(seen, n.Channel), n.Next...)
		if n.State == coupon.NoticeSuppressed {
			require.NotEmpty(t, n.Reason)
			require.Empty(t, n.Next)
			continue
		}
		require.Equal(t, coupon.NoticePending, n.State)
		require.Empty(t, n.Reason)
		require.Zero(t, c.Profile.ErasedAt)
		require.Positive(t, c.Items)
		require.True(t, n.SendAt.Before(n.NotAfter), "%s: sent at %s, of no use from %s on", n.Channel, n.SendAt, n.NotAfter)
		require.False(t, n.SendAt.Before(now), "%s: sent before now", n.Channel)
		require.False(t, isQuiet(config.Quiet[string(n.Channel)], n.SendAt, zone), "%s at %s", n.Channel, n.SendAt.In(zone))
		wanted := now
		if c.Kind == coupon.NoticeExpiring {
			require.True(t, n.NotAfter.Equal(c.EndsAt))
			if c.NotifyAt.After(now) {
				wanted = c.NotifyAt
			}
		} else {
			require.True(t, n.NotAfter.Equal(c.EndsAt.Add(config.Stale)))
		}
		quiet := isQuiet(config.Quiet[string(n.Channel)], wanted, zone)
		if !quiet {
			require.True(t, n.SendAt.Equal(wanted), "%s: nothing keeps it from %s", n.Channel, wanted)
		}
		if n.SendAt.After(wanted) { // moved later: no permitted instant between
			nothingFreeBetween(t, config.Quiet[string(n.Channel)], zone, now, n.SendAt)
		}
		for _, ch := range append([]coupon.Channel{n.Channel}, n.Next...) {
			require.True(t, c.Profile.Wants(ch, c.Kind))
			if ch == coupon.ChannelSMS && !c.Profile.ActiveAt.IsZero() {
				require.Less(t, now.Sub(c.Profile.ActiveAt), config.Inactive)
			}
		}
	}
	for _, ch := range seen {
		require.True(t, slices.Contains(configured, ch) || (len(seen) == 1 && ch == coupon.ChannelInbox), "%s is not configured", ch)
	}
	slices.Sort(seen)
	require.Equal(t, slices.Compact(slices.Clone(seen)), seen, "a channel comes once")
	require.Equal(t, wantChannels(config, c, configured), seen, "and none is left out")
}

// wantChannels is the first matching rule, written down again.
func wantChannels(config policy.Config, c *coupon.Closed, configured []coupon.Channel) []coupon.Channel {
	rule := policy.Rule{Channels: []string{"inbox"}}
	for _, r := range config.Rules {
		worth := int64(0)
		for _, a := range c.Totals {
			if a.Currency == r.Currency {
				worth = a.Minor
			}
		}
		if r.Kinds[0] == string(c.Kind) && (r.Offsets == nil || r.Offsets[0] == c.Offset) && worth >= r.MinValue &&
			(len(r.Templates) == 0 || slices.ContainsFunc(c.Of, func(id uint64) bool { return slices.Contains(r.Templates, id) })) {
			rule = r
			break
		}
	}
	var out []coupon.Channel
	for _, ch := range coupon.Channels() {
		if slices.Contains(configured, ch) && slices.ContainsFunc(rule.Channels, func(route string) bool {
			return slices.Contains(splitRoute(route), string(ch))
		}) {
			out = append(out, ch)
		}
	}
	if len(out) == 0 {
		out = []coupon.Channel{coupon.ChannelInbox}
	}
	slices.Sort(out)
	return out
}

// nothingFreeBetween steps through the time between, exclusive of the end.
func nothingFreeBetween(t *rapid.T, hours string, zone *time.Location, from, to time.Time) {
	for x := from; x.Before(to); x = x.Truncate(time.Minute).Add(time.Minute) {
		require.True(t, isQuiet(hours, x, zone), "%s was free, and it went at %s", x.In(zone), to.In(zone))
	}
}

func agreesWithExplain(t *rapid.T, p *policy.Policy, now time.Time, c *coupon.Closed, d coupon.Decided) {
	i := 0
	for _, e := range p.Explain(now, c) {
		if e.Plan == policy.PlanOff || e.Plan == policy.PlanFallback {
			continue
		}
		n := d.Notices[i]
		i++
		require.Equal(t, n.Channel, e.Channel)
		require.Equal(t, n.State == coupon.NoticePending, e.Plan == policy.PlanSend)
		require.Equal(t, n.Reason, e.Reason)
		if e.Plan == policy.PlanSend {
			require.Equal(t, n.SendAt, e.SendAt)
			require.Equal(t, n.Next, e.Next)
		}
	}
	require.Len(t, d.Notices, i)
}

// TestEarlierGoesBeforeTheQuietHours: a reminder that moves earlier goes in the last permitted stretch, the margin before its end or
// at its beginning, and it does move if that has not passed.
func TestEarlierGoesBeforeTheQuietHours(t *testing.T) {
	t.Parallel()
	all, names := zones(t)
	rapid.Check(t, func(t *rapid.T) {
		zone := all[rapid.SampledFrom(names).Draw(t, "zone")]
		config := policy.DefaultConfig()
		hours := drawHours(t, "sms")
		config.Quiet = map[string]string{"sms": hours}
		config.Margin = rapid.SampledFrom([]time.Duration{time.Minute, 15 * time.Minute, 2 * time.Hour}).Draw(t, "margin")
		config.Rules = []policy.Rule{{Channels: []string{"sms"}}}
		p, err := policy.New(config, []coupon.Channel{coupon.ChannelSMS})
		require.NoError(t, err)
		notify := drawInstant(t, zone)
		c := &coupon.Closed{
			Kind: coupon.NoticeExpiring, Offset: "-1d", Items: 1, NotifyAt: notify, EndsAt: notify.Add(24 * time.Hour).Truncate(time.Second),
			Profile: coupon.Profile{Zone: zone.String()},
		}
		n := p.Decide(notify.Add(-5*24*time.Hour), c).Notices[0]
		require.Equal(t, coupon.NoticePending, n.State)
		require.False(t, n.SendAt.After(notify), "early enough, it never moves later")
		if !isQuiet(hours, notify, zone) {
			require.True(t, n.SendAt.Equal(notify))
			return
		}
		// Back from notify: quiet without a break until the beginning b; then permitted back to the instant, of margin length at most.
		b := notify
		for x := notify; isQuiet(hours, x, zone); x = x.Add(-1).Truncate(time.Minute) {
			b = x
		}
		require.True(t, n.SendAt.Before(b))
		require.LessOrEqual(t, b.Sub(n.SendAt), config.Margin)
		for x := n.SendAt; x.Before(b); x = x.Truncate(time.Minute).Add(time.Minute) {
			require.False(t, isQuiet(hours, x, zone), "%s lies between and is quiet", x.In(zone))
		}
	})
}

// TestTheLastStep: Allowed gives now, a later permitted instant before the end, or a reason.
func TestTheLastStep(t *testing.T) {
	t.Parallel()
	all, names := zones(t)
	rapid.Check(t, func(t *rapid.T) {
		zone := all[rapid.SampledFrom(names).Draw(t, "zone")]
		config := drawConfig(t)
		p, err := policy.New(config, coupon.Channels())
		require.NoError(t, err)
		now := drawInstant(t, zone)
		prof := drawProfile(t, zone, now)
		notAfter := now.Add(time.Duration(rapid.Int64Range(-1, 200_000).Draw(t, "left")) * time.Second)
		ch := rapid.SampledFrom(coupon.Channels()).Draw(t, "channel")
		got, reason := p.Allowed(now, ch, coupon.NoticeExpiring, notAfter, &prof)
		hours := config.Quiet[string(ch)]
		if reason != "" {
			require.Zero(t, got)
			if reason == coupon.ReasonQuiet {
				nothingFreeBetween(t, hours, zone, now, notAfter)
			}
			return
		}
		require.True(t, got.Before(notAfter))
		require.False(t, isQuiet(hours, got, zone))
		nothingFreeBetween(t, hours, zone, now, got)
		require.Equal(t, !isQuiet(hours, now, zone), got.Equal(now))
	})
}
