package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// again says whether to try once more after the attempt of this number, and how long to wait before.
func (c *Client) again(err error, attempt int) (time.Duration, bool) {
	if attempt >= c.cfg.Attempts {
		return 0, false
	}
	// Full jitter over the upper half: callers that failed together do not come back together.
	wait := c.cfg.MaxWait
	if shift := attempt - 1; shift < 20 && c.cfg.Backoff<<shift < wait {
		wait = c.cfg.Backoff << shift
	}
	wait = wait/2 + rand.N(wait/2+1)
	var broken *transportError
	if errors.As(err, &broken) {
		return wait, true
	}
	var e *Error
	if !errors.As(err, &e) {
		return 0, false
	}
	switch e.Status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusGatewayTimeout:
	case http.StatusServiceUnavailable:
		if e.RetryAfter == 0 {
			return 0, false // whoever said it did not say that it passes
		}
	case http.StatusConflict:
		if e.Code != CodeInProgress { // of our own attempt before
			return 0, false
		}
	default:
		return 0, false
	}
	return max(wait, min(e.RetryAfter, c.cfg.MaxWait)), true
}

// retryAfter reads the header: seconds, or a date of HTTP.
func retryAfter(value string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(max(n, 1)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), time.Millisecond)
	}
	return 0
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
