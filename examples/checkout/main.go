// Command checkout walks one order of one coupon through a running Lapse: lock, renew, redeem or release, and refund.
//
//	go run ./examples/checkout -url http://localhost:8080 -user user-7 -coupon 42 -order A-1001 [-fail] [-refund]
//
// The token, with the scopes order and read, is in LAPSE_TOKEN.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Getenv("LAPSE_TOKEN"), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "checkout:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, token string, out io.Writer) error {
	flags := flag.NewFlagSet("checkout", flag.ContinueOnError)
	url := flags.String("url", "http://localhost:8080", "where Lapse serves its API")
	user, coupon, order := flags.String("user", "", "whose coupon"), flags.String("coupon", "", "its id"), flags.String("order", "", "the order's id")
	fail, refund := flags.Bool("fail", false, "payment fails"), flags.Bool("refund", false, "the paid order is refunded")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil // it was told
	} else if err != nil {
		return err
	}
	lapse, err := client.New(client.Config{URL: *url, Token: token, Actor: "example", Timeout: 2 * time.Second})
	if err != nil {
		return err
	}
	defer lapse.Close()
	say := func(what string, done client.Acted, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		c := done.Coupons[0]
		_, err = fmt.Fprintf(out, "%-8s coupon %s is %s (repeated: %t)\n", what, c.CouponID, c.State, c.Repeated)
		return err
	}

	ask := client.Order{UserID: *user, CouponIDs: []string{*coupon}, LockFor: 30 * time.Minute}
	locked, err := lapse.Lock(ctx, *order, ask)
	var refused *client.Error
	if errors.As(err, &refused) && refused.State != "" {
		return fmt.Errorf("the order is placed without its coupon, which is %s (%s)", refused.State, refused.Code)
	}
	if err := say("lock", locked, err); err != nil {
		return err
	}
	ask.LockFor = time.Hour // payment takes longer
	renewed, err := lapse.Renew(ctx, *order, ask)
	if err := say("renew", renewed, err); err != nil {
		return err
	}
	if *fail {
		released, err := lapse.Release(ctx, *order, ask)
		return say("release", released, err)
	}
	used, err := lapse.Redeem(ctx, *order, ask)
	for client.Uncertain(err) && ctx.Err() == nil { // the same call until there is an answer
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
			used, err = lapse.Redeem(ctx, *order, ask)
		}
	}
	if err := say("redeem", used, err); err != nil || !*refund {
		return err
	}
	back, err := lapse.Refund(ctx, *order, ask)
	return say("refund", back, err)
}
