package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(w io.Writer, text string) { _, _ = io.WriteString(w, text) }

// server answers attempt n (from 1) by the handler, and notes what came.
type server struct {
	*httptest.Server
	mu   sync.Mutex
	keys []string
	seen []string
	body []string
}

func serve(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
		s.seen = append(s.seen, r.Method+" "+r.URL.EscapedPath()+" "+r.URL.RawQuery)
		s.body = append(s.body, string(body))
		n := len(s.keys)
		s.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) attempts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys)
}

func dial(t *testing.T, url string, more ...func(*client.Config)) *client.Client {
	t.Helper()
	cfg := client.Config{URL: url, Token: "s3cret", Actor: "web", Backoff: time.Millisecond, MaxWait: 5 * time.Millisecond, Timeout: 5 * time.Second}
	for _, change := range more {
		change(&cfg)
	}
	c, err := client.New(cfg)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

const locked = `{"now":"2026-11-29T10:00:00.123Z","coupons":[{"coupon_id":"7","state":"locked","order_id":"o-1","expires_at":null,"repeated":true}]}`

func problem(w http.ResponseWriter, status int, code string, more string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Request-Id", "req-9")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"type":"about:blank","title":"T","status":%d,"detail":"D","code":%q%s}`, status, code, more)
}

var order = client.Order{UserID: "u", CouponIDs: []string{"7"}, LockFor: 30 * time.Minute}

func TestACallCarriesWhatItMust(t *testing.T) {
	t.Parallel()
	var head http.Header
	s := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) { head = r.Header; write(w, locked) })
	c := dial(t, s.URL+"/", func(c *client.Config) { c.UserAgent = "shop/3" })
	got, err := c.Lock(t.Context(), "o/1 ü", order)
	require.NoError(t, err)
	require.Len(t, got.Coupons, 1)
	require.True(t, got.Coupons[0].Repeated)
	require.Nil(t, got.Coupons[0].ExpiresAt)
	require.Equal(t, client.Locked, got.Coupons[0].State)
	require.Equal(t, 123*time.Millisecond, time.Duration(got.Now.Nanosecond()))

	require.Equal(t, "POST /v1/orders/o%2F1%20%C3%BC/lock ", s.seen[0])
	require.JSONEq(t, `{"user_id":"u","coupon_ids":["7"],"lock_for":"30m0s"}`, s.body[0])
	require.Equal(t, "Bearer s3cret", head.Get("Authorization"))
	require.Equal(t, "web", head.Get("X-Actor"))
	require.Equal(t, "shop/3 lapse-go/1", head.Get("User-Agent"))
	require.Empty(t, head.Get("Idempotency-Key"), "an order is known by itself")

	_, err = c.Lock(t.Context(), "..", order)
	require.NoError(t, err)
	require.Equal(t, "POST /v1/orders/%2E%2E/lock ", s.seen[1])
	_, err = c.Lock(client.WithIdempotencyKey(t.Context(), "mine"), "o", order)
	require.NoError(t, err)
	require.Equal(t, "mine", s.keys[2])

	_, err = c.UserCoupons(t.Context(), "u", client.WalletQuery{State: client.Expired, Limit: 20, Page: "a+b"})
	require.NoError(t, err)
	require.Equal(t, "GET /v1/users/u/coupons limit=20&page_token=a%2Bb&state=expired", s.seen[3])
	require.Empty(t, s.keys[3], "a read needs none")

	for range 2 {
		_, err = c.Void(t.Context(), "7", "r", false)
		require.NoError(t, err)
	}
	require.Len(t, s.keys[4], 32)
	require.Len(t, s.keys[5], 32)
	require.NotEqual(t, s.keys[4], s.keys[5], "each call has its own key")
}

// What passes is tried again under the same key, with the same body; everything else is the caller's at once.
func TestOnlyWhatIsSafeIsTriedAgain(t *testing.T) {
	t.Parallel()
	cut := func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}
	for _, c := range []struct {
		name  string
		fail  func(w http.ResponseWriter, r *http.Request)
		again bool
	}{
		{"503 with Retry-After", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			problem(w, 503, "unavailable", "")
		}, true},
		{"503 of somebody in between", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, false},
		{"429", func(w http.ResponseWriter, _ *http.Request) { problem(w, 429, "rate_limited", "") }, true},
		{"502", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) }, true},
		{"504", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusGatewayTimeout) }, true},
		{"its own attempt is still at it", func(w http.ResponseWriter, _ *http.Request) { problem(w, 409, "in_progress", "") }, true},
		{"connection reset", func(w http.ResponseWriter, _ *http.Request) { cut(w) }, true},
		{"reset within the answer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			write(w, locked[:20])
			_ = http.NewResponseController(w).Flush()
			cut(w)
		}, true},
		{"garbage", func(w http.ResponseWriter, _ *http.Request) { write(w, "<html>hello") }, true},
		{"it hangs", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, true},
		{"500", func(w http.ResponseWriter, _ *http.Request) { problem(w, 500, "internal", "") }, false},
		{"a refusal", func(w http.ResponseWriter, _ *http.Request) { problem(w, 409, "locked_by_other_order", "") }, false},
		{"401", func(w http.ResponseWriter, _ *http.Request) { problem(w, 401, "unauthorized", "") }, false},
		{"422", func(w http.ResponseWriter, _ *http.Request) { problem(w, 422, "bad_request", "") }, false},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(n int, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					c.fail(w, r)
					return
				}
				write(w, locked)
			})
			cl := dial(t, s.URL, func(cfg *client.Config) { cfg.Timeout = 300 * time.Millisecond })
			_, err := cl.Void(t.Context(), "7", "r", false)
			if !c.again {
				require.Error(t, err)
				require.Equal(t, 1, s.attempts())
				return
			}
			require.NoError(t, err)
			require.Equal(t, 2, s.attempts())
			require.Equal(t, s.keys[0], s.keys[1])
			require.NotEmpty(t, s.keys[0])
			require.Equal(t, s.body[0], s.body[1])
		})
	}
}

func TestAttemptsEnd(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		problem(w, 503, "busy", "")
	})
	c := dial(t, s.URL, func(cfg *client.Config) { cfg.Attempts = 3 })
	_, err := c.Redeem(t.Context(), "o-1", order)
	require.Equal(t, 3, s.attempts())
	require.True(t, client.IsCode(err, client.CodeBusy))
	require.True(t, client.Uncertain(err))
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, time.Second, e.RetryAfter)
	require.NotContains(t, fmt.Sprintf("%v %+v %#v", c, c, c), "s3cret")
}

// The answer in hand is worth more than "deadline exceeded": with too little time for the wait the call ends at once.
func TestAContextBoundsTheWaits(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		problem(w, 503, "unavailable", "")
	})
	c := dial(t, s.URL, func(cfg *client.Config) { cfg.MaxWait = time.Hour })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := c.Coupon(ctx, "7")
	require.True(t, client.IsCode(err, client.CodeUnavailable))
	require.Equal(t, 1, s.attempts())
	require.NoError(t, ctx.Err())

	stopped := errors.New("shop closes")
	ctx, stop := context.WithCancelCause(t.Context())
	waiting := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		problem(w, 503, "busy", "")
		stop(stopped)
	})
	c = dial(t, waiting.URL, func(cfg *client.Config) { cfg.MaxWait = time.Hour })
	_, err = c.Coupon(ctx, "7")
	require.Error(t, err)
	require.Equal(t, 1, waiting.attempts())
}

func TestErrorsSayWhatTheStateIs(t *testing.T) {
	t.Parallel()
	s := serve(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			problem(w, 409, "locked_by_other_order", `,"state":"locked","coupon_id":"7","coupons":[
				{"coupon_id":"7","code":"locked_by_other_order","state":"locked","detail":"x"},{"coupon_id":"8","code":"","state":"unused"}]`)
			return
		}
		problem(w, 422, "bad_request", `,"errors":[{"message":"must be a string","location":"body.user_id","value":"7"}]`)
	})
	c := dial(t, s.URL)
	_, err := c.Lock(t.Context(), "o-1", order)
	require.True(t, client.IsCode(err, client.CodeExpired, client.CodeLockedByOther))
	require.False(t, client.IsCode(err, client.CodeExpired))
	require.False(t, client.Uncertain(err))
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, client.Error{
		Status: 409, Code: client.CodeLockedByOther, State: client.Locked, CouponID: "7", Title: "T", Detail: "D", RequestID: "req-9",
		Coupons: []client.Refusal{
			{CouponID: "7", Code: client.CodeLockedByOther, State: client.Locked, Detail: "x"}, {CouponID: "8", State: client.Unused},
		},
	}, *e)
	require.EqualError(t, err, "POST /v1/orders/o-1/lock: lapse answered 409 locked_by_other_order (locked): D [request req-9]")

	_, err = c.Lock(t.Context(), "o-1", order)
	require.ErrorAs(t, err, &e)
	require.Equal(t, []client.Fault{{Location: "body.user_id", Message: "must be a string", Value: "7"}}, e.Faults)
}

func TestWhatIsReadIsBounded(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		for range 100 {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
	})
	c := dial(t, s.URL, func(cfg *client.Config) { cfg.MaxAnswer = 1 << 20 })
	_, err := c.Coupon(t.Context(), "7")
	require.ErrorContains(t, err, "longer than 1048576 bytes")
	require.Equal(t, 1, s.attempts())

	var csv strings.Builder
	require.NoError(t, c.CouponsCSV(t.Context(), client.ListQuery{BatchID: "b"}, &csv))
	require.Equal(t, 100<<16, csv.Len())
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	var conns atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { problem(w, 404, "not_found", "") }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	c := dial(t, s.URL)
	for range 50 {
		_, err := c.Coupon(t.Context(), "7")
		require.True(t, client.IsCode(err, client.CodeNotFound))
	}
	require.EqualValues(t, 1, conns.Load())
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	c := dial(t, "http://"+l.Addr().String())
	_, err = c.Redeem(t.Context(), "o-1", order)
	require.ErrorContains(t, err, "POST /v1/orders/o-1/redeem: ")
	require.True(t, client.Uncertain(err))
}

func TestGrants(t *testing.T) {
	t.Parallel()
	s := serve(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		switch n {
		case 1:
			write(w, `{"results":[{"grant_key":"k","result":"granted","coupon_id":"9"}]}`)
		case 2:
			write(w, `{"results":[{"grant_key":"k","result":"refused","code":"quota_exhausted","detail":"100 of 100"}]}`)
		default:
			write(w, `{"results":[]}`)
		}
	})
	c := dial(t, s.URL)
	g := client.Grant{GrantKey: "k", TemplateID: "1", UserID: "u"}
	got, err := c.Grant(t.Context(), g)
	require.NoError(t, err)
	require.Equal(t, "9", got.CouponID)
	require.JSONEq(t, `{"grants":[{"grant_key":"k","template_id":"1","user_id":"u"}]}`, s.body[0])
	g.Never = true
	_, err = c.Grant(t.Context(), g)
	require.True(t, client.IsCode(err, client.CodeQuotaExhausted))
	require.JSONEq(t, `{"grants":[{"grant_key":"k","template_id":"1","user_id":"u","expires_at":null}]}`, s.body[1])
	_, err = c.Grant(t.Context(), g)
	require.ErrorContains(t, err, "asked for 1 grants, 0 answered")
}

func TestBadConfigurations(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "lapse:8080", "ftp://lapse", "http://", "http://u:p@lapse", "http://lapse?x=1", "http://la pse"} {
		_, err := client.New(client.Config{URL: url})
		require.Error(t, err, url)
	}
	_, err := client.New(client.Config{URL: "http://lapse", Token: "a\r\nX-Evil: 1"})
	require.Error(t, err)
}

// An answer may have more than the client knows, and null where there is nothing.
func TestAnswersMayGrow(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{
			"coupon_id": "9007199254740993", "state": "unused", "expires_at": nil, "order_id": nil, "batch_id": nil, "new": map[string]any{"a": 1},
		})
	})
	got, err := dial(t, s.URL).Coupon(t.Context(), "9007199254740993")
	require.NoError(t, err)
	require.Equal(t, "9007199254740993", got.CouponID)
}
