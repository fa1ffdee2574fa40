package ladder_test

import (
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/ladder"
)

func ExampleLadder_Route() {
	l, err := ladder.New(ladder.DefaultConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, delay := range []time.Duration{
		0,
		61 * time.Second,
		90*time.Minute + 250*time.Millisecond,
		97*24*time.Hour + 12*time.Hour + 59*time.Minute + 30*time.Second,
		500 * 24 * time.Hour,
	} {
		route := l.Route(delay, ladder.Expire, ladder.Exact, 7)
		fmt.Println(route.Exchange, route.Key, route.Expiration, route.Wait, route.Clamped)
	}
	// Output:
	// lapse.enter 00.00.00.00.00.expire.x.07 0s 0s false
	// lapse.enter 00.00.00.01.01.expire.x.07 0s 1m1s false
	// lapse.enter 00.00.01.30.01.expire.x.07 59m59.25s 1h30m0.25s false
	// lapse.enter 03.07.12.59.30.expire.x.07 0s 2340h59m30s false
	// lapse.enter 12.29.23.59.59.expire.x.07 0s 9359h59m59s true
}
