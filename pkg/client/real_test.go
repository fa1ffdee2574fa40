package client_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/notice/text"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// overReal is the API over a real database, and a client of it with every scope.
func overReal(t *testing.T) (*client.Client, testenv.Database) {
	t.Helper()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	cfg := api.DefaultConfig()
	cfg.Address = "127.0.0.1:0"
	cfg.Tokens = []api.Token{{Name: "shop", Hash: api.HashToken("s3cret"), Scopes: []string{"issue", "order", "read", "ops"}}}
	texts, err := text.New("en")
	require.NoError(t, err)
	a, err := api.New(cfg, api.Deps{
		Templates: s, Grants: s, Stats: s, Keys: s, Checkout: s, Coupons: s, Wallets: s, Notices: s, Texts: texts,
	}, testenv.Log(t).WithOptions(zap.IncreaseLevel(zap.WarnLevel)), prometheus.NewRegistry())
	require.NoError(t, err)
	require.NoError(t, a.Listen(t.Context()))
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
	return dial(t, "http://127.0.0.1:"+strconv.Itoa(a.Port())), db
}

// Every method is a route of the API, asks in its words and reads all of its answer.
func TestEveryMethodAgainstTheRealAPI(t *testing.T) {
	t.Parallel()
	c, _ := overReal(t)
	ctx := t.Context()
	tpl, err := c.CreateTemplate(ctx, client.Terms{
		Name: "spring", Rule: client.Rule{Kind: "days_after", Days: 7, Zone: "Asia/Shanghai"}, Value: 500, Currency: "CNY",
		Offer: &client.Offer{Kind: "amount", MinSpend: 1000}, LatePayPolicy: "strict", QuotaBack: "total", Quota: 100, PerUser: 10, Reason: "spring",
	})
	require.NoError(t, err)
	require.NotEmpty(t, tpl.TemplateID)
	require.EqualValues(t, 1, tpl.Revision)
	require.Equal(t, "spring", tpl.Name)
	require.Equal(t, "shop/web", tpl.Actor)
	require.Equal(t, "issuing", tpl.State)

	more := int64(600)
	revised, err := c.ReviseTemplate(ctx, tpl.TemplateID, client.TermsChange{Revision: 1, Value: &more, Reason: "dearer"})
	require.NoError(t, err)
	require.EqualValues(t, 2, revised.Revision)
	require.Equal(t, more, revised.Value)
	_, err = c.ReviseTemplate(ctx, tpl.TemplateID, client.TermsChange{Revision: 1, Value: &more, Reason: "again"})
	require.True(t, client.IsCode(err, client.CodeConflict), "%v", err)

	stopped, err := c.StopTemplate(ctx, tpl.TemplateID, "enough")
	require.NoError(t, err)
	require.Equal(t, "stopped", stopped.State)
	_, err = c.Grant(ctx, client.Grant{GrantKey: "k0", TemplateID: tpl.TemplateID, UserID: "u"})
	require.True(t, client.IsCode(err, client.CodeTemplateStopped), "%v", err)
	_, err = c.ResumeTemplate(ctx, tpl.TemplateID, "more")
	require.NoError(t, err)

	got, err := c.Grant(ctx, client.Grant{GrantKey: "k1", TemplateID: tpl.TemplateID, UserID: "u", BatchID: "b"})
	require.NoError(t, err)
	require.Equal(t, client.ResultGranted, got.Result)
	again, err := c.Grant(ctx, client.Grant{GrantKey: "k1", TemplateID: tpl.TemplateID, UserID: "u", BatchID: "b"})
	require.NoError(t, err)
	require.Equal(t, client.ResultRepeated, again.Result)
	require.Equal(t, got.CouponID, again.CouponID)
	_, err = c.Grant(ctx, client.Grant{GrantKey: "k1", TemplateID: tpl.TemplateID, UserID: "v", BatchID: "b"})
	require.True(t, client.IsCode(err, client.CodeKeyConflict), "%v", err)
	batch, err := c.Grants(ctx,
		client.Grant{GrantKey: "k2", TemplateID: tpl.TemplateID, UserID: "u", BatchID: "b", Never: true},
		client.Grant{GrantKey: "k3", TemplateID: "999", UserID: "u"},
	)
	require.NoError(t, err)
	require.Nil(t, batch[0].ExpiresAt)
	require.Equal(t, client.CodeTemplateNotFound, batch[1].Code)
	id, never := got.CouponID, batch[0].CouponID

	coupon, err := c.Coupon(ctx, id)
	require.NoError(t, err)
	require.Equal(t, client.Unused, coupon.State)
	require.Equal(t, more, coupon.Value)
	require.EqualValues(t, 1000, coupon.Offer.MinSpend)
	require.NotNil(t, coupon.ExpiresAt)
	byKey, err := c.CouponByGrantKey(ctx, "", "k2")
	require.NoError(t, err)
	require.Equal(t, never, byKey.CouponID)
	require.Nil(t, byKey.ExpiresAt)

	basket := client.Basket{Amount: 5000, Currency: "CNY"}
	valid, err := c.Validate(ctx, id, "u", "", &basket)
	require.NoError(t, err)
	require.True(t, valid.Usable)
	require.Equal(t, more, valid.Discount)
	best, err := c.Best(ctx, "u", basket)
	require.NoError(t, err)
	require.Equal(t, id, best.Best.Coupon.CouponID, "of equals the one that ends")
	require.Len(t, best.Others, 1)
	page, err := c.UserCoupons(ctx, "u", client.WalletQuery{State: client.Unused, Limit: 1})
	require.NoError(t, err)
	require.Len(t, page.Coupons, 1)
	page, err = c.UserCoupons(ctx, "u", client.WalletQuery{State: client.Unused, Limit: 1, Page: page.Next})
	require.NoError(t, err)
	require.Equal(t, never, page.Coupons[0].CouponID)
	sum, err := c.Summary(ctx, "u")
	require.NoError(t, err)
	require.Equal(t, 2, sum.Usable)
	require.Equal(t, []client.Money{{Amount: 2 * more, Currency: "CNY"}}, sum.Value)

	// Checkout.
	ask := client.Order{UserID: "u", CouponIDs: []string{id, never}, LockFor: 90 * time.Second}
	locked, err := c.Lock(ctx, "o/1", ask)
	require.NoError(t, err)
	require.Len(t, locked.Coupons, 2)
	require.Equal(t, "o/1", locked.Coupons[0].OrderID)
	require.WithinDuration(t, locked.Now.Add(90*time.Second), *locked.Coupons[0].LockUntil, time.Second)
	_, err = c.Lock(ctx, "o/2", ask)
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, client.CodeLockedByOther, refused.Code)
	require.Equal(t, client.Locked, refused.State)
	require.Equal(t, id, refused.CouponID)
	require.Len(t, refused.Coupons, 2)
	require.NotEmpty(t, refused.RequestID)
	ask.LockFor = time.Hour
	_, err = c.Renew(ctx, "o/1", ask)
	require.NoError(t, err)
	_, err = c.Release(ctx, "o/1", client.Order{CouponIDs: []string{never}})
	require.NoError(t, err)
	one := client.Order{UserID: "u", CouponIDs: []string{id}, LockFor: time.Hour} // one value serves every verb
	used, err := c.Redeem(ctx, "o/1", one)
	require.NoError(t, err)
	require.Equal(t, client.Used, used.Coupons[0].State)
	used, err = c.Redeem(ctx, "o/1", one)
	require.NoError(t, err)
	require.True(t, used.Coupons[0].Repeated)
	partial := one
	partial.Partial = true
	back, err := c.Refund(ctx, "o/1", partial)
	require.NoError(t, err)
	require.Equal(t, client.Used, back.Coupons[0].State)
	back, err = c.Refund(ctx, "o/1", one)
	require.NoError(t, err)
	require.Equal(t, client.Unused, back.Coupons[0].State)

	// Operators.
	end := time.Now().Add(48 * time.Hour).Truncate(time.Second)
	moved, err := c.Extend(ctx, id, &end, "a delay of ours")
	require.NoError(t, err)
	require.WithinDuration(t, end, *moved.ExpiresAt, 0)
	moved, err = c.Extend(ctx, id, nil, "for good")
	require.NoError(t, err)
	require.Nil(t, moved.ExpiresAt)
	voided, err := c.Void(ctx, never, "a mistake", false)
	require.NoError(t, err)
	require.Equal(t, client.Voided, voided.State)
	steps, err := c.Timeline(ctx, id)
	require.NoError(t, err)
	require.Len(t, steps, 7)
	require.Equal(t, "shop/web", steps[5].Actor)
	require.Equal(t, "a delay of ours", steps[5].Reason)
	require.NotNil(t, steps[5].Previous)
	list, err := c.Coupons(ctx, client.ListQuery{BatchID: "b"})
	require.NoError(t, err)
	require.Len(t, list.Coupons, 2)
	var out bytes.Buffer
	require.NoError(t, c.CouponsCSV(ctx, client.ListQuery{TemplateID: tpl.TemplateID}, &out))
	rows, err := csv.NewReader(&out).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 3)

	one1, err := c.Template(ctx, tpl.TemplateID)
	require.NoError(t, err)
	require.EqualValues(t, 2, one1.Issued)
	all, next, err := c.Templates(ctx, 10, "")
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Empty(t, next)
	_, err = c.TemplateStats(ctx, tpl.TemplateID, "2026-01-01", "2026-01-31")
	require.NoError(t, err)
	_, err = c.Forward(ctx, id, client.AheadEnd, time.Second)
	require.True(t, client.IsCode(err, client.CodeForbidden), "no sandbox: %v", err)
}

// A request whose answer is lost is done once: the second attempt has the same key and gets the first one's answer.
func TestAKeyIsOneEffect(t *testing.T) {
	t.Parallel()
	c, db := overReal(t)
	terms := client.Terms{Name: "t", Rule: client.Rule{Kind: "never"}, Value: 1, Currency: "CNY", Reason: "r"}
	ctx := client.WithIdempotencyKey(t.Context(), "only-once")
	first, err := c.CreateTemplate(ctx, terms)
	require.NoError(t, err)
	second, err := c.CreateTemplate(ctx, terms)
	require.NoError(t, err)
	require.Equal(t, first, second)
	terms.Value = 2
	_, err = c.CreateTemplate(ctx, terms)
	require.True(t, client.IsCode(err, client.CodeKeyReused), "%v", err)
	var n int
	require.NoError(t, db.SQL.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM coupon_template").Scan(&n))
	require.Equal(t, 1, n)
}

// Ids may hold anything that is text.
func TestOddIdsGoThrough(t *testing.T) {
	t.Parallel()
	c, _ := overReal(t)
	tpl, err := c.CreateTemplate(t.Context(), client.Terms{Name: "t", Rule: client.Rule{Kind: "never"}, Value: 1, Currency: "CNY", Reason: "r"})
	require.NoError(t, err)
	for i, odd := range []string{"a/b", "..", ".", "a b+c%2F", "用户 ü", "?x=1&y#z", `"quoted"`, "a;b,c"} {
		key := fmt.Sprintf("%s %d", odd, i)
		got, err := c.Grant(t.Context(), client.Grant{GrantKey: key, TemplateID: tpl.TemplateID, UserID: odd})
		require.NoError(t, err, odd)
		byKey, err := c.CouponByGrantKey(t.Context(), "", key)
		require.NoError(t, err, odd)
		require.Equal(t, got.CouponID, byKey.CouponID)
		_, err = c.Lock(t.Context(), odd, client.Order{UserID: odd, CouponIDs: []string{got.CouponID}, LockFor: time.Minute})
		require.NoError(t, err, odd)
		page, err := c.UserCoupons(t.Context(), odd, client.WalletQuery{})
		require.NoError(t, err, odd)
		require.Len(t, page.Coupons, 1)
		require.Equal(t, odd, page.Coupons[0].OrderID)
	}
}

func TestNoticesOverTheRealAPI(t *testing.T) {
	t.Parallel()
	c, db := overReal(t)
	ctx := t.Context()
	db.Exec(t, `INSERT INTO inbox (user_id,id,window_id,kind,display,items,texts,created_at,valid_until) VALUES
		('u/1',1,11,'expiring','',2,'{"en":{"title":"T","text":"x"},"zh-CN":{"title":"题","text":"文"}}',UTC_TIMESTAMP(3),'9999-12-31'),
		('u/1',2,12,'expired','',1,'{"en":{"title":"U","text":"x"}}',UTC_TIMESTAMP(3),'9999-12-31'),
		('u/1',3,13,'expiring','popup',1,'{"en":{"title":"P","text":"x"}}',UTC_TIMESTAMP(3),UTC_TIMESTAMP(3) + INTERVAL 1 HOUR)`)
	var all []client.Notice
	for q := (client.NoticesQuery{Locale: "zh", Limit: 1}); ; {
		page, err := c.Notices(ctx, "u/1", q)
		require.NoError(t, err)
		all = append(all, page.Notices...)
		if q.Page = page.Next; q.Page == "" {
			break
		}
	}
	require.Len(t, all, 2)
	require.Equal(t, []string{"2", "12-inbox", "expired", "inbox", "U"}, []string{all[0].ID, all[0].NoticeID, all[0].Kind, all[0].Display, all[0].Title})
	require.Equal(t, "题", all[1].Title)
	require.Nil(t, all[1].ReadAt)
	unread, err := c.UnreadNotices(ctx, "u/1")
	require.NoError(t, err)
	require.Equal(t, 2, unread)
	read, err := c.ReadNotices(ctx, "u/1", "2", "3")
	require.NoError(t, err)
	require.Equal(t, 1, read)
	read, err = c.ReadNoticesUpTo(ctx, "u/1", "2")
	require.NoError(t, err)
	require.Equal(t, 1, read)
	popups, err := c.TakePopups(client.WithIdempotencyKey(ctx, "k"), "u/1", "", 0)
	require.NoError(t, err)
	require.Len(t, popups, 1)
	require.NotNil(t, popups[0].ValidUntil)
	again, err := c.TakePopups(client.WithIdempotencyKey(ctx, "k"), "u/1", "", 0)
	require.NoError(t, err)
	require.Equal(t, popups, again)
	popups, err = c.TakePopups(ctx, "u/1", "en", 5)
	require.NoError(t, err)
	require.Empty(t, popups)
}
