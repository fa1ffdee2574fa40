package text_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice/text"
)

func benchmarkData() (time.Time, text.Data) {
	now := time.Date(2026, 10, 31, 2, 0, 0, 0, time.UTC)
	d := text.Data{
		Kind: coupon.NoticeExpiring, Offset: "-1d", Items: 1000, EndsAt: now.Add(24 * time.Hour), LastEnd: now.Add(30 * time.Hour), Locale: "zh-CN", Page: true,
		Totals: []coupon.Amount{{Minor: 1_000_000, Currency: "CNY"}},
	}
	for i := range coupon.MembersShown {
		d.Members = append(d.Members, coupon.Member{ExpiresAt: d.EndsAt.Add(time.Duration(i) * time.Minute), Value: 1000, Currency: "CNY"})
	}
	return now, d
}

func BenchmarkRender(b *testing.B) {
	texts, err := text.New("en")
	require.NoError(b, err)
	now, d := benchmarkData()
	for b.Loop() {
		if _, err := texts.Render(now, d); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRenderAll(b *testing.B) {
	texts, err := text.New("en")
	require.NoError(b, err)
	now, d := benchmarkData()
	for b.Loop() {
		if _, err := texts.RenderAll(now, d); err != nil {
			b.Fatal(err)
		}
	}
}
