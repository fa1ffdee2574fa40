package store_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
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

func TestIssueRefusesTooManyAtOnce(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	_, err := s.Issue(t.Context(), make([]coupon.Grant, store.MaxGrants+1))
	require.ErrorContains(t, err, "at most 1000 grants at once, got 1001")
	answers, err := s.Issue(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, answers)
}
