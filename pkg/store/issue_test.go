package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// weekly is a template whose coupons live for a week.
func weekly() coupon.Template {
	return coupon.Template{
		Name: "weekly", Rule: coupon.Rule{Kind: coupon.RuleAfter, After: "168h"},
		Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact},
		Actor: "test", Reason: "test",
	}
}

func create(t testing.TB, s *store.Store, change func(*coupon.Template)) uint64 {
	t.Helper()
	template := weekly()
	if change != nil {
		change(&template)
	}
	id, err := s.CreateTemplate(t.Context(), template)
	require.NoError(t, err)
	return id
}

func grant(template uint64, user, key string) coupon.Grant {
	return coupon.Grant{Issuer: "shop", Key: key, TemplateID: template, UserID: user, BatchID: "b", EventID: "e-" + key}
}

func issueOne(t testing.TB, s *store.Store, g coupon.Grant) coupon.Granted {
	t.Helper()
	answers, err := s.Issue(t.Context(), []coupon.Grant{g})
	require.NoError(t, err)
	require.Len(t, answers, 1)
	return answers[0]
}

// inParallel runs n calls at once and waits for them.
func inParallel(n int, call func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			call(i)
		})
	}
	close(start)
	wg.Wait()
}

// consistent checks what must hold after any history of issuing: every coupon has its first history row, its key and
// its issued event, and the stock counts them.
func consistent(t testing.TB, db testenv.Database) {
	t.Helper()
	coupons := db.Int(t, `SELECT COUNT(*) FROM coupon`)
	require.Equal(t, coupons, db.Int(t, `SELECT COUNT(*) FROM coupon c JOIN coupon_history h ON h.coupon_id = c.id
		WHERE h.version = 1 AND h.from_status = 0 AND h.to_status = 1 AND h.cause = 'grant' AND h.at = c.granted_at
		AND h.due_at = c.due_at AND h.expires_at = c.expires_at`))
	require.Equal(t, coupons, db.Int(t, `SELECT COUNT(*) FROM coupon_history`))
	require.Equal(t, coupons, db.Int(t, `SELECT COUNT(*) FROM coupon c JOIN grant_key k ON k.coupon_id = c.id`))
	require.Equal(t, coupons, db.Int(t, `SELECT COUNT(*) FROM grant_key`))
	require.Equal(t, coupons, db.Int(t, `SELECT COUNT(*) FROM outbox o JOIN coupon c ON c.id = o.coupon_id
		WHERE o.lane = 1 AND o.routing_key = 'coupon.issued' AND o.part = c.id % 16`))
	require.Equal(t, coupons, db.Int(t, `SELECT SUM(taken) FROM template_stock`))
	require.Zero(t, db.Int(t, `SELECT COUNT(*) FROM user_quota q WHERE q.taken <>
		(SELECT COUNT(*) FROM coupon c WHERE c.template_id = q.template_id AND c.user_id = q.user_id)`))
}

func TestIssueWritesACouponWithAllThatBelongsToIt(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, nil)
	before, err := s.Now(t.Context())
	require.NoError(t, err)

	wake := s.OutboxWritten()
	g := grant(template, "用户 ", "k") // a trailing space counts
	g.Trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	answer := issueOne(t, s, g)
	require.Empty(t, answer.Refused)
	require.NotZero(t, answer.CouponID)
	<-wake

	after, err := s.Now(t.Context())
	require.NoError(t, err)
	consistent(t, db)
	var user, trace string
	var from, until, due, granted time.Time
	require.NoError(t, db.SQL.QueryRowContext(t.Context(), `SELECT user_id, valid_from, expires_at, due_at, granted_at FROM coupon
		WHERE id = ? AND status = 1 AND version = 1 AND revision = 1 AND batch_id = 'b'`, answer.CouponID).
		Scan(&user, &from, &until, &due, &granted))
	require.Equal(t, "用户 ", user)
	require.False(t, granted.Before(before) || granted.After(after), "granted by the database's clock")
	require.Equal(t, granted, from)
	require.Equal(t, coupon.CeilSecond(granted.Add(168*time.Hour)), until)
	require.Equal(t, until, answer.ExpiresAt)
	require.Equal(t, until, due)
	require.NoError(t, db.SQL.QueryRowContext(t.Context(), `SELECT trace FROM coupon_history`).Scan(&trace))
	require.Equal(t, g.Trace, trace)

	var deliver time.Time
	var kind, class, id string
	require.NoError(t, db.SQL.QueryRowContext(t.Context(), `SELECT deliver_at, routing_key, class, msg_id FROM outbox WHERE lane = 0`).
		Scan(&deliver, &kind, &class, &id))
	require.Equal(t, []any{due, "expire", "x", coupon.TriggerID('v', answer.CouponID, 1)}, []any{deliver, kind, class, id})
}

func TestIssueQuotaHoldsUnderParallelGrants(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	stores := []*store.Store{db.Store(t), db.Store(t)}
	template := create(t, stores[0], func(c *coupon.Template) { c.Quota = 10 })

	var granted, exhausted atomic.Int64
	inParallel(64, func(i int) {
		n := strconv.Itoa(i)
		answers, err := stores[i%2].Issue(t.Context(), []coupon.Grant{grant(template, "u"+n, "k"+n)})
		if err != nil {
			t.Error(err)
			return
		}
		switch answers[0].Refused {
		case "":
			granted.Add(1)
		case coupon.CodeQuotaExhausted:
			exhausted.Add(1)
		default:
			t.Errorf("refused: %s", answers[0].Refused)
		}
	})
	require.Equal(t, []int64{10, 54}, []int64{granted.Load(), exhausted.Load()})
	require.EqualValues(t, 10, db.Int(t, `SELECT COUNT(*) FROM coupon`))
	require.EqualValues(t, 54, db.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.refused'`))
	consistent(t, db)
}

func TestIssueGrantsAsManyOfABatchAsFit(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, func(c *coupon.Template) { c.Quota = 10 })
	var grants []coupon.Grant
	for i := range 25 {
		grants = append(grants, grant(template, "u", fmt.Sprintf("k%02d", 99-i)))
	}
	answers, err := s.Issue(t.Context(), grants)
	require.NoError(t, err)
	for i, a := range answers {
		require.Equal(t, i < 10, a.Refused == "", "the first ones succeed: %d", i)
	}
	consistent(t, db)
}

func TestIssueParallelBatchesFillAQuotaExactly(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	stores := []*store.Store{db.Store(t), db.Store(t)}
	template := create(t, stores[0], func(c *coupon.Template) { c.Quota, c.PerUser = 130, 4 })
	var granted atomic.Int64
	inParallel(8, func(i int) {
		var grants []coupon.Grant
		for n := range 40 {
			grants = append(grants, grant(template, fmt.Sprintf("u%d", (n*7+i)%50), fmt.Sprintf("k%d.%d", i, n)))
		}
		answers, err := stores[i%2].Issue(t.Context(), grants)
		if err != nil {
			t.Error(err)
			return
		}
		for _, a := range answers {
			if a.Refused == "" {
				granted.Add(1)
			}
		}
	})
	require.EqualValues(t, 130, granted.Load())
	require.EqualValues(t, 130, db.Int(t, `SELECT COUNT(*) FROM coupon`))
	consistent(t, db)
}

func TestIssueUserLimitHoldsUnderParallelGrants(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	stores := []*store.Store{db.Store(t), db.Store(t)}
	template := create(t, stores[0], func(c *coupon.Template) { c.PerUser = 3 })
	var granted atomic.Int64
	inParallel(32, func(i int) {
		n := strconv.Itoa(i)
		answers, err := stores[i%2].Issue(t.Context(), []coupon.Grant{grant(template, "greedy", "k"+n), grant(template, "u"+n, "o"+n)})
		if err != nil {
			t.Error(err)
			return
		}
		if answers[0].Refused == "" {
			granted.Add(1)
		} else if answers[0].Refused != coupon.CodeUserLimit {
			t.Errorf("refused: %s", answers[0].Refused)
		}
		if answers[1].Refused != "" {
			t.Errorf("another user: %s", answers[1].Refused)
		}
	})
	require.EqualValues(t, 3, granted.Load())
	consistent(t, db)
}

func TestIssueSameKeyInParallelGivesOneCouponAndEqualAnswers(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	stores := []*store.Store{db.Store(t), db.Store(t)}
	// The last one of the stock: whoever comes second must not hear that it is taken.
	template := create(t, stores[0], func(c *coupon.Template) { c.Quota, c.PerUser = 1, 1 })
	answers := make([]coupon.Granted, 32)
	inParallel(len(answers), func(i int) {
		got, err := stores[i%2].Issue(t.Context(), []coupon.Grant{grant(template, "u", "k")})
		if err != nil {
			t.Error(err)
			return
		}
		answers[i] = got[0]
	})
	first := 0
	for _, a := range answers {
		require.Empty(t, a.Refused)
		require.Equal(t, answers[0].CouponID, a.CouponID)
		require.Equal(t, answers[0].ExpiresAt, a.ExpiresAt)
		if !a.Repeated {
			first++
		}
	}
	require.Equal(t, 1, first)
	require.EqualValues(t, 1, db.Int(t, `SELECT COUNT(*) FROM coupon`))
	consistent(t, db)
}

func TestIssueOverlappingBatchesInAnyOrder(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	stores := []*store.Store{db.Store(t), db.Store(t)}
	template := create(t, stores[0], func(c *coupon.Template) { c.Quota, c.PerUser = 150, 10 })
	var mu sync.Mutex
	ids := make(map[string]map[uint64]bool)
	inParallel(10, func(i int) {
		var grants []coupon.Grant
		for _, n := range rand.New(rand.NewPCG(uint64(i), 1)).Perm(100) {
			grants = append(grants, grant(template, fmt.Sprintf("u%d", n%20), fmt.Sprintf("k%d", n)))
		}
		answers, err := stores[i%2].Issue(t.Context(), grants)
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for j, a := range answers {
			if a.Refused != "" {
				t.Errorf("refused: %s", a.Refused)
			}
			if ids[grants[j].Key] == nil {
				ids[grants[j].Key] = make(map[uint64]bool)
			}
			ids[grants[j].Key][a.CouponID] = true
		}
	})
	require.Len(t, ids, 100)
	for key, got := range ids {
		require.Len(t, got, 1, key)
	}
	require.EqualValues(t, 100, db.Int(t, `SELECT COUNT(*) FROM coupon`))
	consistent(t, db)
}

func TestIssueAnswersOfABatchAreThoseOfOneAfterTheOther(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	open := create(t, s, nil)
	single := create(t, s, func(c *coupon.Template) { c.Quota = 1 })
	once := create(t, s, func(c *coupon.Template) { c.PerUser = 1 })
	stopped := create(t, s, nil)
	db.Exec(t, `UPDATE template_stock SET stopped = 1 WHERE template_id = ?`, stopped)
	ended := create(t, s, func(c *coupon.Template) { c.Rule = coupon.Rule{Kind: coupon.RuleFixed, At: "2020-01-01T00:00:00Z"} })
	far := create(t, s, func(c *coupon.Template) { c.Rule = coupon.Rule{Kind: coupon.RuleFixed, At: "2099-01-01T00:00:00Z"} })
	issueOne(t, s, grant(open, "u0", "before"))

	other := grant(open, "u1", "a")
	other.BatchID = "another"
	long := grant(open, strings.Repeat("u", 129), "long")
	notUTF8 := grant(open, "u\xff", "utf8")
	elsewhere := grant(open, "u1", "a")
	elsewhere.Issuer = "other shop"
	grants := []coupon.Grant{
		grant(open, "u1", "a"),
		grant(open, "u1", "a"), // the same again
		other,                  // the same key for something else
		elsewhere,              // another issuer's key
		grant(open, "u0", "before"),
		grant(open, "u2", "before"),
		grant(single, "u1", "s1"),
		grant(single, "u2", "s2"), // none left
		grant(open, "u2", "s2"),   // a refused key is free
		grant(once, "u1", "o1"),
		grant(once, "u1", "o2"),
		grant(stopped, "u1", "t"),
		grant(4711, "u1", "n"),
		grant(0, "u1", "z"),
		grant(ended, "u1", "e"),
		grant(far, "u1", "f"),
		long,
		notUTF8,
		grant(open, "", "nobody"),
		grant(open, "u", ""),
	}
	want := []struct {
		code     coupon.Code
		repeated bool
		detail   string
	}{
		{},
		{repeated: true},
		{code: coupon.CodeKeyConflict, detail: "grant_key"},
		{},
		{repeated: true},
		{code: coupon.CodeKeyConflict, detail: "grant_key"},
		{},
		{code: coupon.CodeQuotaExhausted, detail: "quota of 1"},
		{},
		{},
		{code: coupon.CodeUserLimit, detail: "at most 1"},
		{code: coupon.CodeTemplateStopped, detail: "template_id"},
		{code: coupon.CodeTemplateNotFound, detail: "4711"},
		{code: coupon.CodeInvalid, detail: "template_id"},
		{code: coupon.CodeAlreadyEnded, detail: "2020-01-01T00:00:00Z"},
		{code: coupon.CodeInvalid, detail: "expires_at: must lie within 3653 days"},
		{code: coupon.CodeInvalid, detail: "user_id: must have 1 to 128 bytes, got 129"},
		{code: coupon.CodeInvalid, detail: "user_id: must be UTF-8"},
		{code: coupon.CodeInvalid, detail: "user_id: must have 1 to 128 bytes, got 0"},
		{code: coupon.CodeInvalid, detail: "grant_key"},
	}
	answers, err := s.Issue(t.Context(), grants)
	require.NoError(t, err)
	require.Len(t, answers, len(want))
	refused := 0
	for i, w := range want {
		require.Equal(t, w.code, answers[i].Refused, "%d: %s", i, answers[i].Detail)
		require.Equal(t, w.repeated, answers[i].Repeated, "%d", i)
		require.Contains(t, answers[i].Detail, w.detail)
		require.Equal(t, w.code == "", answers[i].CouponID != 0, "%d", i)
		if w.code != "" {
			refused++
		}
	}
	require.Equal(t, answers[0].CouponID, answers[1].CouponID)
	require.NotEqual(t, answers[0].CouponID, answers[3].CouponID)
	require.EqualValues(t, refused, db.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.refused'`))
	consistent(t, db)
}

func TestIssueTellsARefusal(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	g := grant(99, "u", "k")
	require.Equal(t, coupon.CodeTemplateNotFound, issueOne(t, s, g).Refused)

	var lane, part int
	var couponID uint64
	var id string
	var body []byte
	require.NoError(t, db.SQL.QueryRowContext(t.Context(), `SELECT lane, part, coupon_id, msg_id, body FROM outbox`).
		Scan(&lane, &part, &couponID, &id, &body))
	require.Equal(t, store.LaneEvent, lane)
	require.Less(t, part, coupon.Partitions)
	require.Zero(t, couponID)
	require.Contains(t, id, ":e-k:refused")
	var cloud struct {
		Type string
		Data struct {
			Key  string `json:"grant_key"`
			Code string `json:"code"`
		}
	}
	require.NoError(t, json.Unmarshal(body, &cloud))
	require.Equal(t, []string{"coupon.refused.v1", "k", "template_not_found"}, []string{cloud.Type, cloud.Data.Key, cloud.Data.Code})

	// The refusal is not remembered: with the template there, the same grant succeeds.
	db.Exec(t, `ALTER TABLE template_stock AUTO_INCREMENT = 99`)
	require.EqualValues(t, 99, create(t, s, nil))
	require.Empty(t, issueOne(t, s, g).Refused)
}

func TestIssueRepeatsItsFirstAnswer(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, func(c *coupon.Template) { c.Quota, c.PerUser = 1, 1 })
	first := issueOne(t, s, grant(template, "u", "k"))
	rows := db.Int(t, `SELECT COUNT(*) FROM outbox`)
	// Since then the coupon was extended and the template stopped.
	db.Exec(t, `UPDATE coupon SET expires_at = '2040-01-01', due_at = '2040-01-01', version = 2`)
	db.Exec(t, `UPDATE template_stock SET stopped = 1`)
	again := issueOne(t, db.Store(t), grant(template, "u", "k"))
	require.True(t, again.Repeated)
	first.Repeated = true
	require.Equal(t, first, again)
	require.Equal(t, rows, db.Int(t, `SELECT COUNT(*) FROM outbox`), "nothing new to tell")
}

func TestIssueResolvesEnds(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	shanghai, err := time.LoadLocation("Asia/Shanghai")
	require.NoError(t, err)
	newYork, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	year := now.Year() + 1
	// A day that has 25 hours in New York: the first Sunday of November.
	fall := time.Date(year, 11, 1, 0, 0, 0, 0, newYork)
	for fall.Weekday() != time.Sunday {
		fall = fall.AddDate(0, 0, 1)
	}
	for _, c := range []struct {
		name string
		rule coupon.Rule
		want time.Time
	}{
		{"never", coupon.Rule{Kind: coupon.RuleNever}, coupon.Never},
		{"fixed with a fraction", coupon.Rule{Kind: coupon.RuleFixed, At: fmt.Sprintf("%d-10-31T23:59:59.001+08:00", year)}, time.Date(year, 10, 31, 16, 0, 0, 0, time.UTC)},
		{"end of 31 October in Shanghai", coupon.Rule{Kind: coupon.RuleEndOfDay, Date: fmt.Sprintf("%d-10-31", year), Zone: "Asia/Shanghai"}, time.Date(year, 10, 31, 16, 0, 0, 0, time.UTC)},
		{"end of a day of 25 hours", coupon.Rule{Kind: coupon.RuleEndOfDay, Date: fall.Format(time.DateOnly), Zone: "America/New_York"}, fall.AddDate(0, 0, 1)},
		{"end of the 7th day after", coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 7, Zone: "Asia/Shanghai"}, func() time.Time {
			y, m, d := now.In(shanghai).Date()
			return time.Date(y, m, d+8, 0, 0, 0, 0, shanghai)
		}()},
		{"the longest by days", coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 3653, Zone: "Pacific/Apia"}, time.Time{}},
		{"the longest by duration", coupon.Rule{Kind: coupon.RuleAfter, After: coupon.MaxLife.String()}, time.Time{}},
	} {
		template := create(t, s, func(tpl *coupon.Template) { tpl.Rule = c.rule })
		answer := issueOne(t, s, grant(template, "u", c.name))
		require.Empty(t, answer.Refused, "%s: %s", c.name, answer.Detail)
		if !c.want.IsZero() {
			require.Equal(t, c.want.UTC(), answer.ExpiresAt, c.name)
		}
	}
	consistent(t, db)
	require.EqualValues(t, 1, db.Int(t, `SELECT COUNT(*) FROM coupon WHERE expires_at = '9999-12-31' AND due_at = '9999-12-31'`))
	require.EqualValues(t, 6, db.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0`), "without an end there is nothing to ring for")
}

func TestIssueChecksAskedInstants(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, nil)
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	hour := now.Add(time.Hour).Truncate(time.Second)
	for i, c := range []struct {
		from, until time.Time
		code        coupon.Code
		end         time.Time
	}{
		{until: hour, end: hour},
		{until: hour.Add(time.Nanosecond), end: hour.Add(time.Second)},
		{until: coupon.Never, end: coupon.Never},
		{until: coupon.Never.Add(time.Hour), end: coupon.Never},
		{until: now.Add(-time.Second), code: coupon.CodeAlreadyEnded},
		{until: now.Add(coupon.MaxLife - time.Second), end: coupon.CeilSecond(now.Add(coupon.MaxLife - time.Second))},
		{until: now.Add(coupon.MaxLife + time.Minute), code: coupon.CodeInvalid},
		{from: hour, until: hour, code: coupon.CodeInvalid},
		{from: hour.Add(time.Minute), until: hour, code: coupon.CodeInvalid},
		{from: hour.Add(-time.Minute), until: hour, end: hour},
		{from: now.Add(-time.Hour), until: hour, end: hour},
		{from: time.Unix(-1, 0), until: hour, code: coupon.CodeInvalid},
		{from: coupon.Never, until: coupon.Never, code: coupon.CodeInvalid},
		{from: hour, until: coupon.Never, end: coupon.Never},
	} {
		g := grant(template, "u", strconv.Itoa(i))
		g.ValidFrom, g.ExpiresAt = c.from, c.until
		answer := issueOne(t, s, g)
		require.Equal(t, c.code, answer.Refused, "%d: %s", i, answer.Detail)
		require.Equal(t, c.end, answer.ExpiresAt, "%d", i)
	}
	require.EqualValues(t, 2, db.Int(t, `SELECT COUNT(*) FROM coupon WHERE valid_from IN (?, ?)`, hour, hour.Add(-time.Minute)))
	consistent(t, db)
}

func TestIssueContentIsWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, nil)
	shanghai, err := time.LoadLocation("Asia/Shanghai")
	require.NoError(t, err)
	end := time.Now().Add(time.Hour).Truncate(time.Second)
	g := grant(template, "u", "k")
	g.ExpiresAt = end
	first := issueOne(t, s, g)
	g.ExpiresAt, g.EventID, g.Trace = end.In(shanghai), "another delivery", "another trace"
	require.Equal(t, first.CouponID, issueOne(t, s, g).CouponID, "the same instant in another zone, another message")
	for name, change := range map[string]func(*coupon.Grant){
		"template":   func(g *coupon.Grant) { g.TemplateID++ },
		"user":       func(g *coupon.Grant) { g.UserID = "v" },
		"batch":      func(g *coupon.Grant) { g.BatchID = "" },
		"user+batch": func(g *coupon.Grant) { g.UserID, g.BatchID = "ub", "" },
		"from":       func(g *coupon.Grant) { g.ValidFrom = end.Add(-time.Minute) },
		"until":      func(g *coupon.Grant) { g.ExpiresAt = end.Add(time.Second) },
		"by rule":    func(g *coupon.Grant) { g.ExpiresAt = time.Time{} },
		"never":      func(g *coupon.Grant) { g.ExpiresAt = coupon.Never },
	} {
		changed := g
		change(&changed)
		require.Equal(t, coupon.CodeKeyConflict, issueOne(t, s, changed).Refused, name)
	}
}

func TestIssueRollsBackWholly(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, func(c *coupon.Template) { c.Quota, c.PerUser = 100, 5 })
	db.Exec(t, `ALTER TABLE coupon_history ADD CONSTRAINT impossible CHECK (trace <> 'impossible')`)
	grants := make([]coupon.Grant, 50)
	for i := range grants {
		grants[i] = grant(template, "u"+strconv.Itoa(i), "k"+strconv.Itoa(i))
	}
	grants[17].Trace = "impossible"
	grants[18].TemplateID = 4711 // its refusal is not told either
	_, err := s.Issue(t.Context(), grants)
	require.ErrorIs(t, err, coupon.ErrIntegrity)
	for _, table := range []string{"coupon", "coupon_history", "grant_key", "outbox", "user_quota"} {
		require.Zero(t, db.Int(t, `SELECT COUNT(*) FROM `+table), table)
	}
	require.Zero(t, db.Int(t, `SELECT SUM(taken) FROM template_stock`))

	answers, err := s.Issue(t.Context(), append(grants[:17:17], grants[19:]...))
	require.NoError(t, err)
	require.Len(t, answers, 48)
	consistent(t, db)
}

func TestIssueTriggersWithinReachOnly(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, func(c *coupon.Template) { c.Terms.Precision = coupon.Relaxed })
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	setting := func(name string, ms int64) {
		db.Exec(t, `REPLACE INTO setting (name, value, updated_at) VALUES (?, ?, UTC_TIMESTAMP(3))`, name, strconv.FormatInt(ms, 10))
	}
	setting("horizon", (time.Hour).Milliseconds())
	setting("guard", (10 * time.Minute).Milliseconds())
	triggers := func(key string, until time.Time) int64 {
		g := grant(template, "u", key)
		g.ExpiresAt = until
		answer := issueOne(t, s, g)
		require.Empty(t, answer.Refused)
		return db.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = ? AND class = 'r'`, answer.CouponID)
	}
	require.EqualValues(t, 1, triggers("near", now.Add(69*time.Minute)))
	require.EqualValues(t, 0, triggers("far", now.Add(72*time.Minute)))
	require.EqualValues(t, 0, triggers("never", coupon.Never))
	setting("frontier", now.Add(3*time.Hour).UnixMilli())
	require.EqualValues(t, 1, triggers("walked", now.Add(3*time.Hour+9*time.Minute)))
	require.EqualValues(t, 0, triggers("not walked", now.Add(3*time.Hour+11*time.Minute)))
	setting("horizon", 0)
	require.EqualValues(t, 1, triggers("unlimited", now.Add(8760*time.Hour)))
	require.EqualValues(t, 0, triggers("never, unlimited", coupon.Never))
}

func TestIssueFollowsTheTemplate(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, func(c *coupon.Template) { c.Quota = 1 })
	issueOne(t, s, grant(template, "u", "1"))
	require.Equal(t, coupon.CodeQuotaExhausted, issueOne(t, s, grant(template, "u", "2")).Refused)
	next := weekly()
	next.ID, next.Revision, next.Quota, next.Rule = template, 1, 3, coupon.Rule{Kind: coupon.RuleNever}
	_, err := s.ReviseTemplate(t.Context(), next)
	require.NoError(t, err)
	require.Equal(t, coupon.Never, issueOne(t, s, grant(template, "u", "2")).ExpiresAt)
	require.EqualValues(t, 1, db.Int(t, `SELECT COUNT(*) FROM coupon WHERE revision = 1 AND expires_at < '9999-12-31'`))
	require.EqualValues(t, 1, db.Int(t, `SELECT COUNT(*) FROM coupon WHERE revision = 2`))
}

func TestIssueWithIdsInSteps(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, nil)
	grants := make([]coupon.Grant, 700)
	for i := range grants {
		grants[i] = grant(template, "u"+strconv.Itoa(i), "k"+strconv.Itoa(i))
	}
	answers, err := s.IssueStepped(t.Context(), 3, grants)
	require.NoError(t, err)
	for i, a := range answers {
		var user string
		require.NoError(t, db.SQL.QueryRowContext(t.Context(), `SELECT user_id FROM coupon WHERE id = ?`, a.CouponID).Scan(&user))
		require.Equal(t, grants[i].UserID, user)
	}
	consistent(t, db)
}

func TestIssueParallelBatchesKeepIdsAndUsersTogether(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, nil)
	inParallel(8, func(i int) {
		for round := range 5 {
			grants := make([]coupon.Grant, 1+(i*37+round*61)%400)
			for n := range grants {
				key := fmt.Sprintf("%d.%d.%d", i, round, n)
				grants[n] = grant(template, key, key)
			}
			if _, err := s.Issue(t.Context(), grants); err != nil {
				t.Error(err)
			}
		}
	})
	require.Zero(t, db.Int(t, `SELECT COUNT(*) FROM grant_key k JOIN coupon c ON c.id = k.coupon_id WHERE c.user_id <> k.grant_key`))
	consistent(t, db)
}

func TestIssueRefusesTooManyAtOnce(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	_, err := s.Issue(t.Context(), make([]coupon.Grant, store.MaxGrants+1))
	require.ErrorContains(t, err, "at most 1000 grants at once, got 1001")
	answers, err := s.Issue(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, answers)
}

// BenchmarkIssue: 2 workers, batches of 500 of one template, all effects written.
func BenchmarkIssue(b *testing.B) {
	for _, c := range []struct {
		name    string
		perUser int64
	}{{"plain", 0}, {"per_user", 5}} {
		b.Run(c.name, func(b *testing.B) {
			db := testenv.NewDatabase(b)
			s := db.Store(b)
			template := create(b, s, func(t *coupon.Template) { t.Quota, t.PerUser = 1<<40, c.perUser })
			const batch, workers = 500, 2
			ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
			defer cancel()
			var next atomic.Int64
			b.ResetTimer()
			start := time.Now()
			inParallel(workers, func(int) {
				for {
					n := next.Add(1)
					if n > int64(b.N) {
						return
					}
					grants := make([]coupon.Grant, batch)
					for i := range grants {
						key := fmt.Sprintf("%d.%d", n, i)
						grants[i] = grant(template, "user-"+key, key)
					}
					if _, err := s.Issue(ctx, grants); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N*batch)/time.Since(start).Seconds(), "grants/s")
		})
	}
}
