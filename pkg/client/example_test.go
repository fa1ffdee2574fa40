package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
)

// A checkout: the coupon is locked when the order is placed, kept while payment is slow, used up when the order is paid, and given
// back when payment fails.
func Example_checkout() {
	lapse := httptest.NewServer(http.HandlerFunc(played)) // yours is http://lapse:8080
	defer lapse.Close()
	c, err := client.New(client.Config{URL: lapse.URL, Token: "the token of scope order", Actor: "checkout", Timeout: 2 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()

	ask := client.Order{UserID: "user-7", CouponIDs: []string{"42"}, LockFor: 30 * time.Minute}
	_, err = c.Lock(ctx, "order-1", ask)
	switch {
	case client.IsCode(err, client.CodeLockedByOther):
		fmt.Println("another order of yours holds this coupon")
		return
	case client.IsCode(err, client.CodeExpired, client.CodeAlreadyUsed, client.CodeVoided):
		fmt.Println("this coupon can no longer be used")
		return
	case err != nil:
		fmt.Println("no coupon for now:", err)
		return
	}
	fmt.Println("locked")

	// A bank transfer takes days.
	ask.LockFor = 72 * time.Hour
	if _, err := c.Renew(ctx, "order-1", ask); err != nil {
		fmt.Println(err)
	}

	// Payment came in. Lapse may be away just then: repeat until there is an answer, it is the same every time.
	done, err := c.Redeem(ctx, "order-1", ask)
	switch {
	case err == nil:
		fmt.Println("redeemed:", done.Coupons[0].State)
	case client.Uncertain(err):
		fmt.Println("ask again later, from a queue of your own")
	default:
		var refused *client.Error
		if errors.As(err, &refused) {
			fmt.Println("paid without the coupon:", refused.Code)
		}
	}

	// Another order, whose payment fails.
	_, err = c.Release(ctx, "order-2", client.Order{CouponIDs: []string{"43"}})
	fmt.Println("released:", err == nil || client.IsCode(err, client.CodeNotLocked))

	// Output:
	// locked
	// redeemed: used
	// released: true
}

// played answers as Lapse would.
func played(w http.ResponseWriter, r *http.Request) {
	states := map[string]string{
		"/v1/orders/order-1/lock": "locked", "/v1/orders/order-1/renew": "locked", "/v1/orders/order-1/redeem": "used",
		"/v1/orders/order-2/release": "unused",
	}
	_, _ = io.WriteString(w, `{"coupons":[{"coupon_id":"42","state":"`+states[r.URL.Path]+`"}]}`)
}
