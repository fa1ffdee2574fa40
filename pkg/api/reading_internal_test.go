package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/language"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// requireFault: a refusal is a 400 that names where the fault is.
func requireFault(t *testing.T, p *Problem, location string) {
	t.Helper()
	require.Equal(t, http.StatusBadRequest, p.Status)
	require.NotEmpty(t, p.Errors)
	require.Equal(t, location, p.Errors[0].Location)
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, seed := range []string{"", "k", " ", "a b", "é", "\x7f", "~!", strings.Repeat("k", maxKey), strings.Repeat("k", maxKey+1), "\x00"} {
		f.Add(seed, "")
		f.Add(seed, "k")
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		h := http.Header{"Idempotency-Key": {one}}
		if two != "" {
			h["Idempotency-Key"] = append(h["Idempotency-Key"], two)
		}
		visible := len(one) >= 1 && len(one) <= maxKey && strings.IndexFunc(one, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
		k, p := keyOf(h, &route{mutates: true})
		if p != nil {
			requireFault(t, p, "header.Idempotency-Key")
			require.False(t, visible && two == "")
			return
		}
		require.True(t, visible && two == "")
		require.Equal(t, one, k.text)
		k, p = keyOf(h, &route{})
		require.True(t, k == nil && p == nil, "what changes nothing needs no key")
	})
}

// What is carried on as a trace is what the tracer takes for one, unchanged.
func FuzzTrace(f *testing.F) {
	for _, seed := range []string{
		"", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-ff", "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		require.Equal(t, telemetry.Traceparent(text) != "", validTrace(text))
	})
}

// profiles knows one user's language.
type profiles struct {
	Notices
	locale string
}

func (p profiles) Profiles(context.Context, []string) (map[string]coupon.Profile, error) {
	return map[string]coupon.Profile{"u": {Locale: p.locale}}, nil
}

// Whatever a browser sends as its languages is no reason for a refusal; a locale in the query is taken as it is, if it is one.
func FuzzLanguages(f *testing.F) {
	for _, seed := range []string{"", "zh-CN", "zh-CN,zh;q=0.9,en;q=0.8", "*", "de;q=2", "en;;", "x-klingon", "i-default", "\xff", strings.Repeat("a-", 40), "zh_CN"} {
		f.Add(seed, "")
		f.Add("", seed)
	}
	f.Fuzz(func(t *testing.T, locale, accept string) {
		a := &API{deps: Deps{Notices: profiles{locale: "fr"}}}
		prefer, err := a.languages(t.Context(), "u", locale, accept)
		if _, wrong := language.Parse(locale); locale != "" && wrong != nil {
			require.ErrorContains(t, err, "locale")
			return
		}
		require.NoError(t, err)
		require.NotEmpty(t, prefer)
		if locale != "" {
			require.Equal(t, []string{locale}, prefer)
			return
		}
		for _, tag := range prefer {
			_, err := language.Parse(tag)
			require.NoError(t, err, "%q of %q", tag, accept)
		}
	})
}

// Ids, durations and instants: what is taken is written again as the same, and what is not is named.
func FuzzValues(f *testing.F) {
	for _, seed := range []string{
		"1", "0", "01", "+1", "18446744073709551615", "18446744073709551616", "30m", "1ns", "-1s", "168h", "168h0m1ns", "null", `"2030-01-01T00:00:00Z"`,
		`"1969-12-31T23:59:59Z"`, `"9999-12-30T23:59:59.999999999Z"`, `"2030-01-01T00:00:00+24:00"`, `"2030-02-30T00:00:00Z"`, "1", `"\u0032"`, " ", "{}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := parseID("path.id", text); err == nil {
			require.NotZero(t, id)
			require.Equal(t, text, strconv.FormatUint(id, 10))
		} else {
			requireFault(t, asProblem(t, err), "path.id")
		}
		if d, err := parseLockFor(text); err == nil {
			require.True(t, d >= time.Second && d <= coupon.MaxLock, "%s", d)
		} else {
			requireFault(t, asProblem(t, err), "body.lock_for")
		}
		var at Instant
		if !json.Valid([]byte(text)) || json.Unmarshal([]byte(text), &at) != nil {
			return
		}
		require.True(t, at.Given)
		require.True(t, at.At.Year() >= 1970 && !at.At.After(coupon.Never), "%s", at.At)
		shown, err := json.Marshal(instant(at.At))
		require.NoError(t, err)
		var again Instant
		require.NoError(t, json.Unmarshal(shown, &again))
		require.True(t, at.At.Equal(again.At), "%s is shown as %s", text, shown)
	})
}

func asProblem(t *testing.T, err error) *Problem {
	t.Helper()
	var p *Problem
	require.ErrorAs(t, err, &p)
	return p
}
