package client

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Answers come from Lapse, or from whatever stands in between: what is no problem of Lapse's is told as it came, shortened, and no answer
// makes a client wait longer than it wants to.
func FuzzReadError(f *testing.F) {
	for _, seed := range []string{
		`{"code":"expired","state":"expired","coupon_id":"42","coupons":[{"coupon_id":"42","code":"expired","state":"expired"}]}`, `{"code":1}`, "<html>502</html>", "", "null",
		"[]", `{"errors":[{"location":"body.user_id","message":"m","value":"v"}]}`, "\xff", strings.Repeat("x", 1000), `{"retry":`,
	} {
		f.Add(409, []byte(seed), "1")
		f.Add(503, []byte(seed), "Mon, 30 Nov 2026 12:00:00 GMT")
	}
	f.Add(429, []byte("{}"), "-1")
	f.Add(429, []byte("{}"), "99999999999999999999")
	now := time.Date(2026, 11, 30, 11, 59, 0, 0, time.UTC)
	c, err := New(Config{URL: "http://lapse"})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, status int, body []byte, retry string) {
		res := &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {retry}, "X-Request-Id": {"r"}}}
		e := readError(res, body, now)
		require.Equal(t, status, e.Status)
		require.Equal(t, "r", e.RequestID)
		require.GreaterOrEqual(t, e.RetryAfter, time.Duration(0))
		require.Contains(t, e.Error(), "lapse answered")
		require.Equal(t, e.Code != "", IsCode(e, e.Code) && e.Code != "")
		require.Equal(t, status >= 500 || e.Code == CodeInProgress || e.Code == CodeTimeout, Uncertain(e))
		wait, again := c.again(e, 1)
		require.LessOrEqual(t, wait, c.cfg.MaxWait)
		if status == http.StatusServiceUnavailable && e.RetryAfter == 0 || status == http.StatusBadRequest {
			require.False(t, again)
		}
		_, again = c.again(e, c.cfg.Attempts)
		require.False(t, again)
	})
}
