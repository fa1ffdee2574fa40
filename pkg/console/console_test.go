package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/console"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/parked"
	"github.com/lapsehq/lapse/pkg/status"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestOnlyWhoMayIsAnswered(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.grant(s.template("t"), "u", time.Now().Add(time.Hour))
	for _, q := range []string{
		"session", "status", "forecast?span=60m", "templates", "coupon?id=" + strconv.FormatUint(id, 10), "user?id=u",
	} {
		for token, want := range map[string]int{"": 401, "nobody's": 401, issuer: 403, reader: 200, operator: 200} {
			code, h, body := s.ask(http.MethodGet, "api/"+q, token, "")
			require.Equal(t, want, code, "%s by %q: %s", q, token, body)
			require.Equal(t, "no-store", h.Get("Cache-Control"))
			if want != 200 {
				require.Equal(t, "application/problem+json", h.Get("Content-Type"))
			}
		}
	}
	for token, want := range map[string]int{"": 401, issuer: 403, reader: 403} {
		code, _, _ := s.ask(http.MethodGet, "api/parked", token, "")
		require.Equal(t, want, code)
		code, _, _ = s.ask(http.MethodPost, "api/parked/replay", token, `{"refs":["a"],"actor":"x","reason":"y"}`)
		require.Equal(t, want, code)
	}
	for _, path := range []string{"api/nothing", "api/parked/replay", "nothing", "static/app.js", "../livez"} {
		code, _, _ := s.ask(http.MethodGet, path, operator, "")
		require.Contains(t, []int{404, 405, 301, 307}, code, path)
	}
	code, _, _ := s.ask(http.MethodPost, "api/status", operator, "{}")
	require.Equal(t, http.StatusNotFound, code)
}

func TestATokenThatAsksTooOften(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *console.Config) { c.PerSecond, c.Burst = 1, 10 })
	codes := map[int]int{}
	for range 20 {
		code, h, _ := s.ask(http.MethodGet, "api/session", reader, "")
		codes[code]++
		if code == http.StatusTooManyRequests {
			require.NotEmpty(t, h.Get("Retry-After"))
		}
	}
	require.Positive(t, codes[http.StatusTooManyRequests])
	require.GreaterOrEqual(t, codes[http.StatusOK], 10)
	code, _, _ := s.ask(http.MethodGet, "api/session", operator, "")
	require.Equal(t, http.StatusOK, code, "another's is not the same")
}

// Whatever stands in a question, the answer says what is wrong with it, as JSON, and is no fault of ours.
func TestOddQuestions(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, id := range []string{"", "0", "-1", "+1", "01", "1e3", "1 OR 1=1", "1;DROP TABLE coupon", "18446744073709551616", "１", "\x00", "\xff", "1\n", strings.Repeat("9", 4000)} {
		code, h, body := s.ask(http.MethodGet, "api/coupon?id="+url.QueryEscape(id), reader, "")
		require.Equal(t, http.StatusBadRequest, code, "%q: %s", id, body)
		require.Equal(t, "application/problem+json", h.Get("Content-Type"))
		require.True(t, json.Valid(body))
	}
	code, _, _ := s.ask(http.MethodGet, "api/coupon?id=18446744073709551615", reader, "")
	require.Equal(t, http.StatusNotFound, code)
	code, _, _ = s.ask(http.MethodGet, "api/coupon?id=1&id=2", reader, "")
	require.Equal(t, http.StatusBadRequest, code)
	code, _, _ = s.ask(http.MethodGet, "api/coupon?id=%zz", reader, "")
	require.Equal(t, http.StatusBadRequest, code)

	template := s.template(`<img src=x onerror=alert(1)> "T" 'x' 優惠`)
	for _, user := range []string{`<script>alert(1)</script>`, `u' OR '1'='1`, `u%`, `用户-1`, `a b`, `\`, strings.Repeat("é", 64)} {
		id := s.grant(template, user, time.Now().Add(time.Hour))
		code, h, body := s.ask(http.MethodGet, "api/user?id="+url.QueryEscape(user), reader, "")
		require.Equal(t, http.StatusOK, code, "%q: %s", user, body)
		require.Equal(t, "application/json", h.Get("Content-Type"))
		require.NotContains(t, string(body), "<", "no markup even if somebody took it for a page")
		var x struct {
			UserID  string `json:"user_id"`
			Coupons []struct {
				CouponID string `json:"coupon_id"`
			} `json:"coupons"`
		}
		require.NoError(t, json.Unmarshal(body, &x))
		require.Equal(t, user, x.UserID)
		require.Len(t, x.Coupons, 1, "%q", user)
		require.Equal(t, strconv.FormatUint(id, 10), x.Coupons[0].CouponID)
	}
	for _, q := range []string{
		"user?id=", "user?id=%ff", "user?id=%00", "user?id=" + strings.Repeat("u", 129), "user?id=u&after=nonsense", "user", "forecast", "forecast?span=1h",
		"midnight?at=x", "midnight?at=0", "midnight?at=99999999999999", "midnight?at=" + strconv.FormatInt(time.Now().Unix()/900*900+1, 10),
	} {
		code, _, body := s.ask(http.MethodGet, "api/"+q, reader, "")
		require.Equal(t, http.StatusBadRequest, code, "%s: %s", q, body)
	}
}

type stated struct {
	Status status.Status `json:"status"`
	Notes  []status.Note `json:"notes"`
	Due    int           `json:"due"`
	Past   []struct {
		At int64 `json:"at"`
	} `json:"past"`
}

type forecasted struct {
	Forecast status.Forecast `json:"forecast"`
}

func TestFiguresAreTheDatabases(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template("autumn")
	midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	for i := range 7 {
		s.grant(template, "u", midnight)
		s.grant(template, fmt.Sprint("v", i), midnight.Add(time.Duration(i+2)*24*time.Hour))
	}
	locked := s.grant(template, "w", midnight)
	acted := func(o coupon.Order) {
		_, out, err := s.store.Act(t.Context(), o)
		require.NoError(t, err)
		require.Empty(t, out[0].Refused)
	}
	acted(coupon.Order{Verb: coupon.VerbLock, OrderID: "o-1", UserID: "w", CouponIDs: []uint64{locked}, LockFor: 30 * time.Minute})
	gone := s.grant(template, "x", midnight)
	acted(coupon.Order{Verb: coupon.VerbVoid, CouponIDs: []uint64{gone}, Actor: "amy", Reason: "fraud"})
	_, err := s.store.Pause(t.Context(), coupon.Pause{Brake: coupon.BrakeExpiry, Scope: coupon.PauseTemplate, ID: fmt.Sprint(template)}, "amy", "wrong end")
	require.NoError(t, err)

	day := get[forecasted](s, "forecast?span=30d").Forecast
	require.Equal(t, s.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 1`), day.Unused)
	require.EqualValues(t, 1, day.Locked)
	require.Equal(t, map[string]int64{"CNY": 15 * 500}, day.Value)
	require.True(t, day.Complete)
	night := get[forecasted](s, "midnight?at="+strconv.FormatInt(midnight.Unix(), 10)).Forecast
	require.EqualValues(t, 7, night.Unused)
	require.EqualValues(t, 1, night.Locked)
	require.Equal(t, map[string]int64{"CNY": 8 * 500}, night.Value)

	x := get[stated](s, "status")
	require.EqualValues(t, 1, x.Status.Locks.Locked)
	require.Len(t, x.Status.Paused, 1)
	require.Equal(t, "amy", x.Status.Paused[0].Actor)
	require.Len(t, x.Notes, len(x.Status.Attention))
	require.Equal(t, s.db.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0`), x.Status.Outbox[0].Rows)

	var seen struct {
		Why   console.Why `json:"why"`
		Steps []api.Step  `json:"steps"`
	}
	seen = get[struct {
		Why   console.Why `json:"why"`
		Steps []api.Step  `json:"steps"`
	}](s, "coupon?id="+strconv.FormatUint(gone, 10))
	require.Equal(t, console.WhyVoided, seen.Why.Code)
	require.Equal(t, "fraud", seen.Why.Reason)
	require.Len(t, seen.Steps, 2)
	seen = get[struct {
		Why   console.Why `json:"why"`
		Steps []api.Step  `json:"steps"`
	}](s, "coupon?id="+strconv.FormatUint(locked, 10))
	require.Equal(t, "o-1", seen.Why.Order)
}

// Replaying names who and why, and is done once.
func TestReplay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx := t.Context()
	code, _, body := s.ask(http.MethodGet, "api/parked", operator, "")
	require.Equal(t, http.StatusServiceUnavailable, code, string(body))
	plan := s.ladder.Plan()
	ours := ladder.Plan{}
	for _, q := range plan.Queues {
		if q.Name == s.ladder.Parked() || q.Name == s.ladder.Unroutable() || q.Name == s.ladder.Issuance() {
			ours.Queues = append(ours.Queues, q)
		}
	}
	for _, e := range plan.Exchanges {
		if e.Name == s.ladder.ParkExchange() || e.Name == s.ladder.Issuance() {
			ours.Exchanges = append(ours.Exchanges, e)
		}
	}
	for _, b := range plan.Bindings {
		if b.Source == s.ladder.ParkExchange() || b.Source == s.ladder.Issuance() {
			ours.Bindings = append(ours.Bindings, b)
		}
	}
	require.NoError(t, s.client.Declare(ctx, ours))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, s.client.Delete(ctx, ours))
	})
	testenv.Wait(t, "the publisher", func() bool { return s.publisher.Ready() == nil })
	for i := range 3 {
		d := broker.Delivery{Queue: s.ladder.Issuance(), MessageID: fmt.Sprint("grant-", i), Key: event.KeyGrant, Body: []byte("not json")}
		require.NoError(t, s.publisher.Publish(ctx, []broker.Message{d.Parked(s.ladder.ParkExchange(), fmt.Sprintf("malformed: body %d", i))})[0])
	}
	s.db.Exec(t, `INSERT INTO outbox_parked (id, lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, reason, parked_at)
		VALUES (7,1,3,9,'9:2:expired','coupon.expired',' ',NULL,'{}','','returned',UTC_TIMESTAMP(3))`)
	type set struct {
		Found  int            `json:"found"`
		Counts []parked.Count `json:"counts"`
		Items  []parked.Item  `json:"items"`
	}
	var x set
	testenv.Wait(t, "what was parked", func() bool {
		code, _, body := s.ask(http.MethodGet, "api/parked", operator, "")
		return code == http.StatusOK && json.Unmarshal(body, &x) == nil && x.Found == 4
	})
	require.Equal(t, parked.Count{Place: parked.Queue, Origin: s.ladder.Issuance(), Reason: "malformed: body #", N: 3}, x.Counts[0])
	var refs []string
	for _, p := range x.Items {
		if p.MessageID != "grant-2" {
			refs = append(refs, p.Ref)
		}
	}
	require.Len(t, refs, 3)

	ask := func(v any) (int, []byte) {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		code, _, body := s.ask(http.MethodPost, "api/parked/replay", operator, string(text))
		return code, body
	}
	type in map[string]any
	for _, bad := range []in{
		{},
		{"refs": refs},
		{"refs": refs, "actor": "ann"},
		{"refs": refs, "reason": "r"},
		{"refs": []string{}, "actor": "ann", "reason": "r"},
		{"refs": refs, "actor": "a\nb", "reason": "r"},
		{"refs": refs, "actor": strings.Repeat("a", 200), "reason": "r"},
		{"refs": refs, "actor": "ann", "reason": strings.Repeat("r", 300)},
		{"refs": []string{strings.Repeat("x", 40)}, "actor": "a", "reason": "r"},
		{"refs": refs, "actor": "ann", "reason": "r", "all": true},
	} {
		code, body := ask(bad)
		require.Equal(t, http.StatusBadRequest, code, "%v: %s", bad, body)
	}
	require.Zero(t, s.db.Int(t, `SELECT COUNT(*) FROM operator_log`))

	code, body = ask(in{"refs": refs, "actor": "安妮", "reason": "the table is back"})
	require.Equal(t, http.StatusOK, code, string(body))
	require.True(t, bytes.Contains(body, []byte(`"replayed":3`)), string(body))
	for range 2 {
		d, ok, err := s.client.Get(ctx, s.ladder.Issuance())
		require.NoError(t, err)
		require.True(t, ok)
		require.NotContains(t, d.Headers, broker.HeaderReason)
	}
	require.EqualValues(t, 1, s.db.Int(t, `SELECT COUNT(*) FROM outbox WHERE msg_id = '9:2:expired'`))
	require.EqualValues(t, 2, s.db.Int(t, `SELECT COUNT(*) FROM operator_log WHERE actor = 'desk/安妮' AND reason = 'the table is back' AND action = 'parked.replay'`))
	code, body = ask(in{"refs": refs, "actor": "ann", "reason": "once more"})
	require.Equal(t, http.StatusOK, code)
	require.True(t, bytes.Contains(body, []byte(`"replayed":0`)), string(body))
	require.Equal(t, 1, get[set](s, "parked").Found, "the one that was not chosen stays")
}
