package text_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice/text"
)

var update = flag.Bool("update", false, "write the golden files")

// goldenCase is a notice as somebody in Shanghai gets it.
func goldenCase(t *testing.T, kind coupon.NoticeKind, offset string, count int) (now time.Time, d text.Data) {
	t.Helper()
	day := time.Date(2026, 11, 1, 0, 0, 0, 0, zone(t, "Asia/Shanghai"))
	d = text.Data{Kind: kind, Offset: offset, Items: count, Zone: day.Location()}
	for i := range min(count, coupon.MembersShown) {
		end := day.Add(time.Duration(9+3*i) * time.Hour)
		if end.After(day.Add(24 * time.Hour)) {
			end = day.Add(24 * time.Hour)
		}
		d.Members = append(d.Members, coupon.Member{CouponID: uint64(i + 1), ExpiresAt: end, Value: int64(500 * (i + 1)), Currency: "CNY"})
	}
	d.EndsAt, d.LastEnd = d.Members[0].ExpiresAt, d.Members[len(d.Members)-1].ExpiresAt
	d.Totals = []coupon.Amount{{Minor: int64(count) * 1000, Currency: "CNY"}}
	if count == 2 {
		d.Members[1].Value, d.Members[1].Currency = 990, "USD"
		d.Totals = []coupon.Amount{{Minor: 500, Currency: "CNY"}, {Minor: 990, Currency: "USD"}}
	}
	now = d.EndsAt.Add(40 * time.Minute)
	if kind == coupon.NoticeExpiring {
		o, err := coupon.ParseOffset(offset)
		require.NoError(t, err)
		now = o.NotifyAt(d.EndsAt, d.Zone)
	}
	return now, d
}

// TestGolden: every kind, offset, locale and number, in files that are read when a text changes.
func TestGolden(t *testing.T) {
	t.Parallel()
	texts := newTexts(t)
	for _, locale := range text.Locales() {
		for kind, offsets := range map[coupon.NoticeKind][]string{
			coupon.NoticeExpiring: {"-7d", "-3d", "-1d", "-1d@20:00", "-6h", "-30m"}, coupon.NoticeExpired: {""},
		} {
			type said struct {
				coupon.NoticeText
				Params map[string]string `json:"params"`
			}
			got := make(map[string]said)
			for _, offset := range offsets {
				for _, count := range []int{1, 2, 3, 5, 11, 1000} {
					now, d := goldenCase(t, kind, offset, count)
					d.Locale, d.Page = locale, true
					r, err := texts.Render(now, d)
					require.NoError(t, err)
					require.Equal(t, locale, r.Locale)
					name := fmt.Sprintf("%s %04d", offset, count)
					if offset == "-1d" || (offset == "" && (count == 1 || count == 1000)) {
						golden(t, fmt.Sprintf("%s/%s-%d.html", locale, kind, count), r.HTML)
					}
					got[name] = said{r.Text, r.Params}
				}
			}
			body, err := json.MarshalIndent(got, "", "  ")
			require.NoError(t, err)
			golden(t, fmt.Sprintf("%s/%s.json", locale, kind), string(body)+"\n")
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", filepath.FromSlash(name))
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o750))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, name)
}
