package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Words that a person types: what is taken is within its bounds and means what it says, and what is not is told what it must be.
func FuzzWords(f *testing.F) {
	for _, seed := range []string{
		"", "2/3", "0/1", "4/3", "1/18446744073709551616", "5000CNY", "5000 CNY", "5000cny", "-1CNY", "9999999999999999999CNY", "sms", "sms:expiring", "*:*", "sms:", ":",
		"500/s", "500", "NaN", "Inf", "1e3", "0.5", "2026-11-30", "2026-13-01", "2026-11-30T12:00:00+08:00", "9999-12-31T00:00:00Z", "1969-12-31T23:59:59.999Z", "42", "042",
	} {
		f.Add(seed)
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		require.ErrorContains(t, err, "must be")
	}
	f.Fuzz(func(t *testing.T, text string) {
		if of, rest, err := parseShard(text); err == nil {
			require.True(t, of >= 1 && of <= mostShards && rest < of)
		} else {
			must(t, err)
		}
		if sum, err := parseSum(text); err == nil {
			require.True(t, sum.Minor >= 0 && len(sum.Currency) == 3)
			again, err := parseSum(fmt.Sprint(sum.Minor, sum.Currency))
			require.NoError(t, err)
			require.Equal(t, sum, again)
		} else {
			must(t, err)
		}
		if o, err := parseOptOut(text); err == nil {
			require.True(t, o.Out && o.Channel != "" && o.Kind != "")
			require.True(t, text == string(o.Channel)+":"+string(o.Kind) || text == string(o.Channel) && o.Kind == coupon.AllKinds)
		} else {
			must(t, err)
		}
		if n, err := parseRate(text, 10_000); err == nil {
			require.True(t, text == "" && n == 0 || n >= 1 && n <= 10_000)
		} else {
			must(t, err)
		}
		if day, err := parseDay("from", text); err == nil {
			require.True(t, text == "" || day.Format(time.DateOnly) == text)
		} else {
			must(t, err)
		}
		if at, reason := parseInstant(text); reason == "" {
			require.True(t, at.Year() >= 1970 && at.Before(coupon.Never))
		} else {
			require.True(t, strings.HasPrefix(reason, "must be"), reason)
		}
		if id, err := parseID("id", text); err == nil {
			require.NotZero(t, id)
		} else {
			require.ErrorContains(t, err, "id")
		}
	})
}

// A state file that an earlier run left, and settings that were kept: what is read is whole, and what is not names the file.
func FuzzFiles(f *testing.F) {
	for _, seed := range []string{
		`{"version":1,"sha256":"ab","options":"o","run":"r","rows":3}`, `{"version":2,"run":"r"}`, `{"version":1,"rows":-1,"run":"r"}`, "", "null",
		"export LAPSE__A='b'\\''c'\n# no\nLAPSE__B=\"c\\\"d\"\nOTHER=1\n", "LAPSE__A\n", "\x00", strings.Repeat("x", 70_000),
	} {
		f.Add([]byte(seed))
	}
	file := filepath.Join(f.TempDir(), "file")
	f.Fuzz(func(t *testing.T, content []byte) {
		require.NoError(t, os.WriteFile(file, content, 0o600))
		if st, found, err := readState(file); err == nil {
			require.True(t, found && st.Run != "" && st.Rows >= 0 && st.Rejects >= 0)
			require.NoError(t, st.write(file))
			again, _, err := readState(file)
			require.NoError(t, err)
			require.Equal(t, st, again)
		} else {
			require.ErrorContains(t, err, file)
		}
		require.NoError(t, os.WriteFile(file, content, 0o600))
		environ, err := readKept(file)
		if err != nil {
			require.ErrorContains(t, err, file)
			return
		}
		for _, variable := range environ {
			require.True(t, strings.HasPrefix(variable, envPrefix) && strings.Contains(variable, "="), variable)
		}
	})
}
