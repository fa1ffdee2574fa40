package lapsetest_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/lapsetest"
)

// issue makes a template that ends so long after the grant, and gives coupons of it.
func issue(t testing.TB, s *lapsetest.Server, life, user string, n int) []string {
	t.Helper()
	tpl, err := s.Client().CreateTemplate(t.Context(), client.Terms{
		Name: "t", Rule: client.Rule{Kind: "after", After: life}, Value: 500, Currency: "CNY", Reason: "r",
	})
	require.NoError(t, err)
	ids := make([]string, n)
	for i := range ids {
		got, err := s.Client().Grant(t.Context(), client.Grant{GrantKey: fmt.Sprintf("%s-%s-%d", tpl.TemplateID, user, i), TemplateID: tpl.TemplateID, UserID: user})
		require.NoError(t, err)
		ids[i] = got.CouponID
	}
	return ids
}

func keys(events []lapsetest.Event) (out []string) {
	for _, e := range events {
		out = append(out, e.CouponID+" "+e.Key)
	}
	return out
}

func TestAdvanceGoesFromInstantToInstant(t *testing.T) {
	t.Parallel()
	s := lapsetest.New(t, lapsetest.Reminders(nil, "-1h"))
	start := s.Now()
	require.Equal(t, lapsetest.Start(), start)
	a, b := issue(t, s, "5h", "u", 1)[0], issue(t, s, "3h", "u", 1)[0]
	_, err := s.Client().Lock(t.Context(), "o", client.Order{UserID: "u", CouponIDs: []string{b}, LockFor: 150 * time.Minute})
	require.NoError(t, err)

	require.Empty(t, s.Advance(2*time.Hour), "the holder of a lock is not reminded")
	require.Empty(t, s.Advance(-time.Hour))
	require.Equal(t, start.Add(2*time.Hour), s.Now())
	events := s.AdvanceTo(start.Add(24 * time.Hour))
	require.Equal(t, []string{b + " coupon.released", b + " coupon.expired", a + " coupon.expiring", a + " coupon.expired"}, keys(events))
	for i, at := range []time.Duration{150 * time.Minute, 3 * time.Hour, 4 * time.Hour, 5 * time.Hour} {
		require.Equal(t, start.Add(at), events[i].Time, "each at its instant")
	}
	var expired struct {
		Lateness int64  `json:"lateness_ms"`
		Cause    string `json:"cause"`
	}
	require.NoError(t, events[1].Data(&expired))
	require.Zero(t, expired.Lateness)
	require.Equal(t, "ladder", expired.Cause)
	require.Len(t, s.Events(), 7, "issued, issued, locked, and those")
	got, err := s.Client().Coupon(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, client.Expired, got.StoredState)
}

func TestALockBeyondTheEndShields(t *testing.T) {
	t.Parallel()
	s := lapsetest.New(t, lapsetest.Reminders(time.UTC))
	id := issue(t, s, "10m", "u", 1)[0]
	_, err := s.Client().Lock(t.Context(), "o", client.Order{UserID: "u", CouponIDs: []string{id}, LockFor: time.Hour})
	require.NoError(t, err)
	require.Empty(t, s.Advance(20*time.Minute))
	require.Equal(t, []string{id + " coupon.expired"}, keys(s.Advance(time.Hour)))
}

func TestDeliverIsWhatTheFleetTakes(t *testing.T) {
	t.Parallel()
	s := lapsetest.New(t)
	ids := issue(t, s, "1h", "u", 2)
	codec, err := event.NewCodec("shop")
	require.NoError(t, err)
	body, err := codec.Grants("g-1", s.Now(), []coupon.Grant{{Key: "by-event", TemplateID: 1, UserID: "u"}, {Key: "none", TemplateID: 99, UserID: "u"}})
	require.NoError(t, err)
	require.NoError(t, s.Deliver(body))
	require.NoError(t, s.Deliver(body), "again changes nothing")
	_, err = s.Client().CouponByGrantKey(t.Context(), "", "by-event")
	require.NoError(t, err)

	c := s.Client()
	_, err = c.Lock(t.Context(), "o", client.Order{UserID: "u", CouponIDs: ids})
	require.NoError(t, err)
	order := func(typ, id string) error {
		_, body, err := codec.Order(event.Order{Type: typ, EventID: id, OrderID: "o", UserID: "u", CouponIDs: []uint64{1, 2}}, s.Now())
		require.NoError(t, err)
		return s.Deliver(body)
	}
	require.NoError(t, order(event.TypeOrderPaid, "1"))
	got, err := c.Coupon(t.Context(), ids[0])
	require.NoError(t, err)
	require.Equal(t, client.Used, got.State)
	require.NoError(t, order(event.TypeOrderRefunded, "2"))
	require.NoError(t, order(event.TypeOrderPaid, "3"), "late: it burns nothing")
	got, err = c.Coupon(t.Context(), ids[0])
	require.NoError(t, err)
	require.Equal(t, client.Unused, got.State)
	_, err = c.Lock(t.Context(), "o", client.Order{UserID: "u", CouponIDs: ids})
	require.True(t, client.IsCode(err, "order_refunded"), "%v", err)
	require.Error(t, s.Deliver([]byte(`{"specversion":"1.0","id":"1","source":"/shop","type":"order.lost.v1","data":{}}`)))
	require.Error(t, s.Deliver([]byte(`no JSON`)))

	types := map[string]int{}
	for _, e := range s.Events() {
		types[e.Type]++
	}
	require.Equal(t, map[string]int{
		"coupon.issued.v1": 3, "coupon.refused.v1": 2, "coupon.locked.v1": 2, "coupon.used.v1": 2, "coupon.refunded.v1": 2,
	}, types)
}

func TestPaidTooLateIsTold(t *testing.T) {
	t.Parallel()
	s := lapsetest.New(t, lapsetest.Reminders(nil))
	issue(t, s, "1h", "u", 1)
	s.Advance(2 * time.Hour)
	codec, err := event.NewCodec("shop")
	require.NoError(t, err)
	_, body, err := codec.Order(event.Order{Type: event.TypeOrderPaid, EventID: "1", OrderID: "o", CouponIDs: []uint64{1}}, s.Now())
	require.NoError(t, err)
	require.NoError(t, s.Deliver(body))
	all := s.Events()
	require.Equal(t, "coupon.redeem_refused.v1", all[len(all)-1].Type)
}

func TestOutageIsUnavailable(t *testing.T) {
	t.Parallel()
	s := lapsetest.New(t)
	id := issue(t, s, "1h", "u", 1)[0]
	impatient, err := client.New(client.Config{URL: s.URL, Token: lapsetest.Token, Attempts: 1})
	require.NoError(t, err)
	defer impatient.Close()
	s.Outage(true)
	for _, ask := range []func() error{
		func() error { _, err := impatient.Coupon(t.Context(), id); return err },
		func() error { _, err := impatient.Summary(t.Context(), "u"); return err },
		func() error {
			_, err := impatient.Lock(t.Context(), "o", client.Order{UserID: "u", CouponIDs: []string{id}})
			return err
		},
		func() error {
			_, err := impatient.Void(client.WithIdempotencyKey(t.Context(), "k"), id, "r", false)
			return err
		},
	} {
		require.True(t, client.IsCode(ask(), client.CodeUnavailable))
	}
	s.Outage(false)
	_, err = impatient.Void(client.WithIdempotencyKey(t.Context(), "k"), id, "r", false)
	require.NoError(t, err, "the key is free again")
}

func TestKeysAreForgottenAfterADay(t *testing.T) {
	t.Parallel()
	s := lapsetest.New(t)
	terms := client.Terms{Name: "t", Rule: client.Rule{Kind: "never"}, Value: 1, Currency: "CNY", Reason: "r"}
	make1 := func() string {
		tpl, err := s.Client().CreateTemplate(client.WithIdempotencyKey(t.Context(), "k"), terms)
		require.NoError(t, err)
		return tpl.TemplateID
	}
	first := make1()
	s.Advance(23 * time.Hour)
	require.Equal(t, first, make1())
	s.Advance(2 * time.Hour)
	require.NotEqual(t, first, make1())
}

func TestForwardByTheClient(t *testing.T) {
	t.Parallel()
	s := lapsetest.New(t)
	id := issue(t, s, "240h", "u", 1)[0]
	got, err := s.Client().Forward(t.Context(), id, client.AheadReminder, 1500*time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, s.Now().Add(2*time.Second), got.At, "rounded up")
	require.Equal(t, got.At.Add(3*24*time.Hour), *got.ExpiresAt)
	require.Equal(t, []string{id + " coupon.expiring"}, keys(s.AdvanceTo(got.At)))
	got, err = s.Client().Forward(t.Context(), id, client.AheadEnd, time.Second)
	require.NoError(t, err)
	require.Equal(t, []string{id + " coupon.expired"}, keys(s.AdvanceTo(got.At)))
	_, err = s.Client().Forward(t.Context(), id, client.AheadEnd, time.Second)
	require.True(t, client.IsCode(err, client.CodeExpired), "%v", err)
}

func TestOptions(t *testing.T) {
	t.Parallel()
	at := time.Date(2027, 12, 31, 23, 59, 59, 0, time.UTC)
	s := lapsetest.New(t, lapsetest.At(at), lapsetest.API(func(c *api.Config) { c.Page.Most, c.Page.Default = 3, 2 }))
	require.Equal(t, at, s.Now())
	issue(t, s, "1h", "u", 3)
	page, err := s.Client().UserCoupons(t.Context(), "u", client.WalletQuery{})
	require.NoError(t, err)
	require.Len(t, page.Coupons, 2)
	_, err = s.Client().UserCoupons(t.Context(), "u", client.WalletQuery{Limit: 4})
	require.True(t, client.IsCode(err, client.CodeBadRequest))
	issuer, err := client.New(client.Config{URL: s.URL, Token: lapsetest.TokenOf(api.ScopeIssue)})
	require.NoError(t, err)
	defer issuer.Close()
	_, err = issuer.Coupon(t.Context(), "1")
	require.True(t, client.IsCode(err, client.CodeForbidden))
}

// Many at once: nothing is granted beyond the quota, and nobody gets a coupon that another has locked.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s := lapsetest.New(t, lapsetest.API(unhurried))
	c := s.Client()
	tpl, err := c.CreateTemplate(t.Context(), client.Terms{
		Name: "t", Rule: client.Rule{Kind: "after", After: "1h"}, Value: 5, Currency: "CNY", Quota: 10, Reason: "r",
	})
	require.NoError(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	granted, locked := 0, 0
	for i := range 40 {
		wg.Go(func() {
			got, err := c.Grant(t.Context(), client.Grant{GrantKey: fmt.Sprint(i), TemplateID: tpl.TemplateID, UserID: "u"})
			mu.Lock()
			defer mu.Unlock()
			if err == nil && got.Result == client.ResultGranted {
				granted++
			}
		})
	}
	wg.Wait()
	require.Equal(t, 10, granted)
	for i := range 20 {
		wg.Go(func() {
			_, err := c.Lock(t.Context(), fmt.Sprint("o", i), client.Order{UserID: "u", CouponIDs: []string{"1"}})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				locked++
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, locked)
	stats, err := c.TemplateStats(t.Context(), tpl.TemplateID, "2026-03-02", "2026-03-02")
	require.NoError(t, err)
	require.EqualValues(t, 10, stats[0].Granted)
	require.EqualValues(t, 1, stats[0].Locked)
}
