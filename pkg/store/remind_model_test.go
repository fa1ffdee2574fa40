package store_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/planner"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// clock makes a store's one connection believe in an instant of the test's own.
type clock struct {
	s   *store.Store
	now time.Time
}

func newClock(t testing.TB, s *store.Store) *clock {
	t.Helper()
	pool := s.Pool()
	pool.SetMaxOpenConns(1)
	pool.SetConnMaxIdleTime(0)
	pool.SetConnMaxLifetime(0)
	return &clock{s: s, now: time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)}
}

// set makes it that instant, also after the connection was idle for too long.
func (c *clock) set(t require.TestingT, at time.Time) {
	c.now = at
	_, err := c.s.Pool().ExecContext(context.Background(), fmt.Sprintf("SET timestamp = %d.%03d", at.Unix(), at.Nanosecond()/1e6))
	require.NoError(t, err)
}

func (c *clock) pass(t require.TestingT, d time.Duration) { c.set(t, c.now.Add(d)) }

// reminders as a test wants them.
func remindAt(t require.TestingT, lead time.Duration, offsets ...string) coupon.Reminders {
	r := coupon.Reminders{Zone: time.UTC, Leads: map[string]time.Duration{}}
	var err error
	r.Offsets, err = coupon.ParseOffsets(offsets)
	require.NoError(t, err)
	for _, o := range offsets {
		r.Leads[o] = lead
	}
	return r
}

// listener takes what the planner publishes; every nth page it takes none of.
type listener struct {
	ids   map[string]int
	fails int
}

func (l *listener) Publish(_ context.Context, ms []broker.Message) []error {
	errs := make([]error, len(ms))
	for i, m := range ms {
		if l.fails > 0 && i >= len(ms)/2 {
			errs[i] = errors.New("broker away")
			continue
		}
		l.ids[m.ID]++
	}
	l.fails = max(0, l.fails-1)
	return errs
}

// dying is a planner's database whose answer to a move is lost at times: the pod that dies between confirm and cursor.
type dying struct {
	*store.Store
	deaths int
}

func (d *dying) MovePlan(ctx context.Context, plan, owner string, p coupon.PlanPlace, lease time.Duration) (bool, error) {
	if d.deaths > 0 {
		d.deaths--
		return false, errors.New("died")
	}
	return d.Store.MovePlan(ctx, plan, owner, p, lease)
}

const (
	modelLead  = time.Hour
	modelGuard = 4 * time.Minute
	modelLimit = 10 * time.Second
)

// remindModel is a fleet whose time the test moves.
type remindModel struct {
	d        testenv.Database
	s        *store.Store
	clock    *clock
	r        coupon.Reminders
	heard    *listener
	rows     *dying
	planners []*planner.Planner
	walked   time.Time
	template []uint64
}

func newRemindModel(t testing.TB, page int, offsets ...string) *remindModel {
	t.Helper()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	m := &remindModel{d: d, s: s, clock: newClock(t, s), r: remindAt(t, modelLead, offsets...), heard: &listener{ids: map[string]int{}}}
	m.rows = &dying{Store: s}
	m.clock.set(t, m.clock.now)
	codec, err := event.NewCodec("test")
	require.NoError(t, err)
	for _, owner := range []string{"a", "b"} {
		m.planners = append(m.planners, planner.New(
			planner.Config{Slice: time.Minute, Guard: modelGuard, Page: page, Poll: time.Second, Lease: time.Minute},
			planner.Deps{
				Rows: m.rows, Events: m.heard, Exchange: "e", Encoder: codec, Log: testenv.Log(t), Registry: prometheus.NewRegistry(),
				Owner: owner, Limit: modelLimit, Reminders: m.r,
			}))
	}
	require.NoError(t, s.SetHorizon(t.Context(), 0, modelGuard))
	require.NoError(t, s.SetReminders(t.Context(), m.r))
	for _, picks := range []coupon.Picks{"", coupon.PickNone, coupon.Picks(offsets[0])} {
		for _, precision := range []coupon.Precision{coupon.Exact, coupon.Relaxed} {
			m.template = append(m.template, create(t, s, func(t *coupon.Template) {
				t.Rule = coupon.Rule{Kind: coupon.RuleNever}
				t.Terms.Reminders, t.Terms.Precision, t.PerUser, t.Quota = picks, precision, 0, 0
			}))
		}
	}
	m.clock.pass(t, modelLimit+time.Second)
	m.walk(t, 0)
	return m
}

// walk lets one of the planners walk whatever is due, through the given number of faults.
func (m *remindModel) walk(t require.TestingT, who int) {
	m.clock.pass(t, 2*time.Millisecond) // the other's lease has run out
	for try := 0; ; try++ {
		m.clock.set(t, m.clock.now)
		_, err := m.planners[who].Remind(context.Background())
		if err == nil {
			break
		}
		require.Less(t, try, 20, "%v", err)
	}
	m.walked = m.clock.now
}

// open reports whether a coupon is there whose reminders have not all passed.
func (m *remindModel) open(t testing.TB) bool {
	t.Helper()
	return m.d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 1 AND expires_at > ? AND expires_at < '9999-01-01'`, m.clock.now.Add(40*time.Minute)) > 0
}

// drain takes the reminders out of the outbox, as the relay does.
func (m *remindModel) drain(t testing.TB) {
	t.Helper()
	rows, err := m.d.SQL.QueryContext(t.Context(), `SELECT msg_id FROM outbox WHERE routing_key = 'coupon.expiring'`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var id string
		require.NoError(t, rows.Scan(&id))
		m.heard.ids[id]++
	}
	require.NoError(t, rows.Err())
	m.d.Exec(t, `DELETE FROM outbox`)
}

// step is a row of a coupon's history.
type pastStep struct {
	version  uint32
	from, to coupon.Status
	at, ends time.Time
	moved    bool
}

func (m *remindModel) past(t testing.TB, id uint64) []pastStep {
	t.Helper()
	rows, err := m.d.SQL.QueryContext(t.Context(), `SELECT version, from_status, to_status, at, expires_at, previous IS NOT NULL FROM coupon_history WHERE coupon_id = ? ORDER BY version`, id)
	require.NoError(t, err)
	defer rows.Close()
	var out []pastStep
	for rows.Next() {
		var p pastStep
		require.NoError(t, rows.Scan(&p.version, &p.from, &p.to, &p.at, &p.ends, &p.moved))
		out = append(out, p)
	}
	require.NoError(t, rows.Err())
	return out
}

// owed is the plain specification. A reminder at an offset must be told of if the coupon was unused just before its
// instant, with the end that it tells of; and it may be told of if it was so at any time before. A late one is owed exactly
// when an order gives the coupon back, half an hour and more before the end: of the latest offset that passed while the order
// held it, locked and then used.
func owed(past []pastStep, id uint64, r coupon.Reminders, picks coupon.Picks) (must, may map[string]bool) {
	must, may = map[string]bool{}, map[string]bool{}
	var since time.Time // of the present state
	for i, p := range past {
		held := since
		redeemed := p.from == coupon.Locked && p.to == coupon.Used // held on
		if i == 0 || p.from != p.to && !redeemed {
			since = p.at
		}
		last := i+1 < len(past) && past[i+1].at.Equal(p.at) // a state that its transaction left again
		if p.to != coupon.Unused || coupon.IsNever(p.ends) || last {
			continue
		}
		until := coupon.Never
		if i+1 < len(past) {
			until = past[i+1].at
		}
		var late string
		var lateAt time.Time
		for _, o := range r.Offsets {
			if !picks.Has(o.Name) {
				continue
			}
			at := o.NotifyAt(p.ends, r.Zone)
			name := coupon.ExpiringID(id, p.ends, o.Name)
			if p.at.Before(at) {
				may[name] = true
				if !until.Before(at) {
					must[name] = true
				}
			} else if (p.from == coupon.Locked || p.from == coupon.Used) && !at.Before(held) && at.After(lateAt) {
				late, lateAt = name, at
			}
		}
		if late != "" && p.ends.Sub(p.at) >= coupon.LateLeast {
			must[late+":"+strconv.FormatUint(uint64(p.version), 10)] = true
		}
	}
	maps.Copy(may, must)
	return must, may
}

// enough histories for one run of the test: each walks the plans some twenty times.
const enough = 30

// end draws an end: anywhere, or where what the verbs tell of meets what the planner comes upon.
func (m *remindModel) end(r *rapid.T) time.Time {
	now := m.clock.now.Truncate(time.Second)
	if rapid.Bool().Draw(r, "anywhere") {
		return now.Add(time.Duration(rapid.IntRange(1, 300).Draw(r, "end")) * time.Minute)
	}
	o := rapid.SampledFrom(m.r.Offsets).Draw(r, "near")
	from := rapid.SampledFrom([]int{-20, 0, 20, 40, 60, 230}).Draw(r, "from") // about slice and guard
	return now.Add(m.r.Ahead(o) + time.Duration(from+rapid.IntRange(0, 19).Draw(r, "seconds"))*time.Second)
}

// Whatever happens to coupons and whenever the planner walks, dies or meets a broker that is away: what verbs and planner
// tell of together is what is owed.
func TestRemindersAreThoseOwed(t *testing.T) {
	t.Parallel()
	m := newRemindModel(t, 3, "-2h", "-40m")
	key, histories, failing := 0, 0, false
	rapid.Check(t, func(r *rapid.T) {
		if histories == enough && !failing {
			return
		}
		defer func() { failing = failing || r.Failed() }()
		picks := map[uint64]coupon.Picks{}
		templates := []coupon.Picks{"", coupon.PickNone, "-2h"}
		var ids []uint64
		m.clock.set(r, m.clock.now)
		if rapid.Bool().Draw(r, "other lead") {
			m.retune(t, r)
		}
		for range rapid.IntRange(1, 8).Draw(r, "coupons") {
			key++
			m.clock.pass(r, time.Duration(rapid.IntRange(0, 100).Draw(r, "between"))*time.Second)
			template := rapid.IntRange(0, len(m.template)-1).Draw(r, "template")
			out, err := m.s.Issue(t.Context(), []coupon.Grant{{
				Key: strconv.Itoa(key), TemplateID: m.template[template], UserID: "u", EventID: "e", ExpiresAt: m.end(r),
			}})
			require.NoError(r, err)
			require.Empty(r, out[0].Refused, out[0].Detail)
			ids = append(ids, out[0].CouponID)
			picks[out[0].CouponID] = templates[template/2]
			if rapid.Bool().Draw(r, "commits late") {
				m.inFlight(t, r, out[0].CouponID)
				m.clock.set(r, m.clock.now)
			}
		}
		for range rapid.IntRange(1, 8).Draw(r, "steps") {
			m.clock.pass(r, time.Duration(rapid.IntRange(1, 50*60_000).Draw(r, "pause"))*time.Millisecond)
			m.rows.deaths, m.heard.fails = rapid.IntRange(0, 2).Draw(r, "deaths"), rapid.IntRange(0, 2).Draw(r, "fails")
			act := func() { m.act(t, r, ids) }
			if rapid.Bool().Draw(r, "commits late") {
				act = func() { m.actLate(t, r, ids) }
			}
			act()
			// A walk at least as often as the lead, less slice and spread.
			if m.clock.now.Sub(m.walked) > 0 {
				m.walk(r, rapid.IntRange(0, 1).Draw(r, "who"))
			}
		}
		for m.open(t) {
			m.clock.pass(r, 48*time.Minute)
			m.walk(r, 0)
		}
		m.drain(t)
		got := map[string]bool{}
		for id := range m.heard.ids {
			got[id] = true
		}
		clear(m.heard.ids)
		for _, id := range ids {
			past := m.past(t, id)
			must, may := owed(past, id, m.r, picks[id])
			mine := slices.DeleteFunc(slices.Sorted(maps.Keys(got)), func(e string) bool { return !strings.HasPrefix(e, strconv.FormatUint(id, 10)+":") })
			for e := range must {
				require.Contains(r, mine, e, "%+v", past)
			}
			for _, e := range mine {
				require.Contains(r, may, e, "%+v", past)
				delete(got, e)
			}
		}
		require.Empty(r, got)
		m.d.Exec(t, `DELETE FROM coupon`) // those whose end was taken away would be walked for ever
		histories++
	})
}

// actLate lets a verb's transaction be in flight while a planner walks: of what it changes the planner sees nothing.
func (m *remindModel) actLate(t testing.TB, r *rapid.T, ids []uint64) {
	versions := func() int64 { return m.d.Int(t, `SELECT COALESCE(SUM(version), 0) FROM coupon`) }
	before := versions()
	if id := m.act(t, r, ids); versions() != before {
		m.inFlight(t, r, id)
	}
}

func (m *remindModel) inFlight(t testing.TB, r *rapid.T, id uint64) {
	m.hidden(t, id, func() {
		m.clock.pass(r, time.Duration(rapid.IntRange(1, 9_000).Draw(r, "in flight"))*time.Millisecond)
		m.walk(r, rapid.IntRange(0, 1).Draw(r, "who"))
	})
}

// hidden keeps a coupon from whoever reads meanwhile.
func (m *remindModel) hidden(t testing.TB, id uint64, meanwhile func()) {
	t.Helper()
	m.d.Exec(t, `UPDATE coupon SET status = status + 100 WHERE id = ?`, id)
	meanwhile()
	m.d.Exec(t, `UPDATE coupon SET status = status - 100 WHERE id = ?`, id)
}

// retune gives the fleet another lead. After a shorter one the planner has walked further than verbs reach by now.
func (m *remindModel) retune(t testing.TB, r *rapid.T) {
	lead := modelLead
	if m.r.Leads[m.r.Offsets[0].Name] == modelLead {
		lead *= 2
	}
	m.r = remindAt(r, lead, m.r.Offsets[0].Name, m.r.Offsets[1].Name)
	require.NoError(r, m.s.SetReminders(t.Context(), m.r))
	m.clock.pass(r, modelLimit)
	m.walk(r, 0)
}

func (m *remindModel) act(t testing.TB, r *rapid.T, ids []uint64) uint64 {
	id := rapid.SampledFrom(ids).Draw(r, "id")
	verb := rapid.SampledFrom([]string{"lock", "lock", "release", "redeem", "refund", "extend", "trigger"}).Draw(r, "verb")
	o := ask(coupon.VerbLock, rapid.SampledFrom([]string{"a", "b"}).Draw(r, "order"), id)
	m.clock.set(r, m.clock.now)
	switch verb {
	case "trigger":
		_, _, err := m.s.ExpireBatch(t.Context(), triggersFor(int(id), 1, coupon.OriginLadder), always)
		require.NoError(r, err)
		return id
	case "lock":
		o.LockFor = time.Duration(rapid.IntRange(1, 180).Draw(r, "for")) * time.Minute
	case "release":
		o.Verb, o.LockFor = coupon.VerbRelease, 0
	case "redeem":
		o.Verb, o.LockFor = coupon.VerbRedeem, 0
	case "refund":
		o.Verb, o.LockFor = coupon.VerbRefund, 0
	case "extend":
		o = ask(coupon.VerbExtend, "", id)
		o.EndsAt = m.end(r)
		if rapid.IntRange(1, 5).Draw(r, "never") == 1 {
			o.EndsAt = coupon.Never
		}
	}
	_, _, err := m.s.Act(t.Context(), o)
	require.NoError(r, err)
	return id
}
