package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// played answers as Lapse would; redeem as it is told.
func played(t *testing.T, redeem http.HandlerFunc) string {
	t.Helper()
	states := map[string]string{"lock": "locked", "renew": "locked", "redeem": "used", "release": "unused", "refund": "unused"}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verb, ok := strings.CutPrefix(r.URL.Path, "/v1/orders/A-1001/")
		if verb == "redeem" && redeem != nil {
			redeem(w, r)
			return
		}
		if !ok || r.Header.Get("Authorization") != "Bearer s3cret" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, `{"coupons":[{"coupon_id":"42","state":"`+states[verb]+`"}]}`)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestCheckout(t *testing.T) {
	t.Parallel()
	url := played(t, nil)
	for flags, last := range map[string]string{"": "redeem   coupon 42 is used", "-fail": "release  coupon 42 is unused", "-refund": "refund   coupon 42 is unused"} {
		var out bytes.Buffer
		args := append([]string{"-url", url, "-user", "user-7", "-coupon", "42", "-order", "A-1001"}, strings.Fields(flags)...)
		require.NoError(t, run(t.Context(), args, "s3cret", &out))
		require.Contains(t, out.String(), last)
	}
}

// TestNoAnswer: whether it was done is asked again, and not in a hurry.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	url := played(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	require.Error(t, run(ctx, []string{"-url", url, "-user", "user-7", "-coupon", "42", "-order", "A-1001"}, "s3cret", io.Discard))
	require.EqualValues(t, 1, asked.Load())
}
