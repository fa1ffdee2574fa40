package reconcile_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/reconcile"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func always(time.Time) error { return nil }

// shop is a database with templates and coupons in every state.
type shop struct {
	testenv.Database
	*store.Store
	templates []uint64
}

func newShop(t testing.TB, d testenv.Database, s *store.Store) *shop {
	t.Helper()
	sh := &shop{Database: d, Store: s}
	for _, back := range []coupon.QuotaBack{coupon.QuotaBackNone, coupon.QuotaBackTotal, coupon.QuotaBackTotalAndUser} {
		sh.create(t, back)
	}
	return sh
}

func (s *shop) create(t testing.TB, back coupon.QuotaBack) uint64 {
	t.Helper()
	x := coupon.Template{
		Name: "t", Rule: coupon.Rule{Kind: coupon.RuleAfter, After: "1h"},
		Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact, QuotaBack: back}, Quota: 100_000, PerUser: 1000, Actor: "test",
	}
	x.Terms = x.Terms.Defaults()
	id, err := s.CreateTemplate(t.Context(), x)
	require.NoError(t, err)
	s.templates = append(s.templates, id)
	return id
}

// issue grants n coupons of a template to five users.
func (s *shop) issue(ctx context.Context, template uint64, key string, n int) ([]uint64, error) {
	var grants []coupon.Grant
	for i := range n {
		grants = append(grants, coupon.Grant{Issuer: "shop", Key: fmt.Sprintf("%s.%d", key, i), TemplateID: template, UserID: fmt.Sprintf("u%d", i%5), EventID: "e"})
	}
	out, err := s.Issue(ctx, grants)
	var ids []uint64
	for _, g := range out {
		ids = append(ids, g.CouponID)
	}
	return ids, err
}

func (s *shop) act(ctx context.Context, verb coupon.Verb, order string, id uint64) error {
	o := coupon.Order{Verb: verb, OrderID: order, CouponIDs: []uint64{id}, Actor: "test", Reason: "test"}
	switch verb {
	case coupon.VerbLock, coupon.VerbRenew:
		o.LockFor = time.Hour
	case coupon.VerbVoid:
		o.OrderID, o.BreakLock = "", true
	case coupon.VerbReinstate:
		o.OrderID, o.EndsAt = "", time.Now().UTC().Add(3*time.Hour).Truncate(time.Second)
	case coupon.VerbRedeem, coupon.VerbRelease, coupon.VerbRefund, coupon.VerbExtend:
	}
	_, _, err := s.Act(ctx, o)
	return err
}

// live lets coupons live in every way there is.
func (s *shop) live(t testing.TB, ids []uint64) {
	t.Helper()
	for i, id := range ids {
		order := fmt.Sprintf("o%d", id)
		for _, verb := range [][]coupon.Verb{
			nil,
			{coupon.VerbLock},
			{coupon.VerbLock, coupon.VerbRedeem},
			{coupon.VerbRedeem, coupon.VerbRefund},
			{coupon.VerbVoid},
			{coupon.VerbLock, coupon.VerbRelease},
			{coupon.VerbRedeem},
		}[i%7] {
			require.NoError(t, s.act(t.Context(), verb, order, id))
		}
	}
}

// past makes the end of coupons, or of their locks, an hour ago, in their history too.
func (s *shop) past(t testing.TB, ids ...uint64) {
	t.Helper()
	for _, id := range ids {
		s.Exec(t, `UPDATE coupon SET valid_from = valid_from - INTERVAL 1 DAY, expires_at = expires_at - INTERVAL 2 HOUR, due_at = due_at - INTERVAL 2 HOUR,
			lock_until = lock_until - INTERVAL 2 HOUR WHERE id = ?`, id)
		s.Exec(t, `UPDATE coupon_history h JOIN coupon c ON c.id = h.coupon_id SET h.expires_at = c.expires_at, h.due_at = c.due_at WHERE c.id = ?`, id)
	}
}

func (s *shop) expire(t testing.TB, ids ...uint64) {
	t.Helper()
	s.past(t, ids...)
	for _, id := range ids {
		_, _, err := s.ExpireBatch(t.Context(), []coupon.Trigger{{Kind: coupon.KindExpire, CouponID: id, At: time.Now(), Origin: coupon.OriginLadder}}, always)
		require.NoError(t, err)
	}
}

// settleBooks folds, counts and sends everything.
func (s *shop) settleBooks(t testing.TB) {
	t.Helper()
	for more := true; more; {
		var err error
		_, more, err = s.FoldQuota(t.Context(), 100)
		require.NoError(t, err)
	}
	for done := false; !done; {
		var err error
		_, done, err = s.SeedStats(t.Context(), 500)
		require.NoError(t, err)
	}
	s.Exec(t, `DELETE FROM outbox`)
}

// archive moves finished coupons, however young.
func (s *shop) archive(t testing.TB, n int) {
	t.Helper()
	page, err := s.FinishedPage(t.Context(), coupon.Used, time.Now().Add(time.Hour), coupon.Cursor{}, n)
	require.NoError(t, err)
	res, err := s.ArchiveBatch(t.Context(), page.Old)
	require.NoError(t, err)
	require.Positive(t, res.Moved)
}

func config(change func(*reconcile.Config)) reconcile.Config {
	c := reconcile.DefaultConfig()
	c.Settled, c.Range = 0, 37
	if change != nil {
		change(&c)
	}
	return c
}

func (s *shop) reconcile(t testing.TB, a reconcile.Ask) *reconcile.Report {
	t.Helper()
	rep, err := reconcile.Reconcile(t.Context(), config(nil), s.Store, a)
	require.NoError(t, err)
	return rep
}

// counts gives how many findings there are of each kind, and those that were repaired.
func counts(rep *reconcile.Report) map[coupon.FindingKind][2]int64 {
	out := make(map[coupon.FindingKind][2]int64)
	for _, k := range rep.Kinds {
		out[k.Kind] = [2]int64{k.Count, k.Repaired}
	}
	return out
}

func text(rep *reconcile.Report) string {
	var b strings.Builder
	for _, k := range rep.Kinds {
		for _, f := range k.Shown {
			fmt.Fprintf(&b, "%s | %s | %s | %s\n", f.Kind, f.Subject, f.Expected, f.Found)
		}
	}
	return b.String()
}

// full gives a shop whose books are in order, with ids of each template's coupons.
func full(t testing.TB) (*shop, [][]uint64) {
	t.Helper()
	d := testenv.NewDatabase(t)
	s := newShop(t, d, d.Store(t))
	var ids [][]uint64
	for i, template := range s.templates {
		of, err := s.issue(t.Context(), template, fmt.Sprintf("k%d", i), 60)
		require.NoError(t, err)
		s.live(t, of)
		s.expire(t, of[7], of[14], of[21])
		ids = append(ids, of)
	}
	s.settleBooks(t)
	s.archive(t, 20)
	return s, ids
}
