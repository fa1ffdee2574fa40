package notice_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
)

var update = flag.Bool("update", false, "write the golden files")

func TestTextsGolden(t *testing.T) {
	t.Parallel()
	texts, err := notice.NewTexts("en")
	require.NoError(t, err)
	for _, kind := range []coupon.NoticeKind{coupon.NoticeExpired} {
		byCount := make(map[string]map[string]coupon.NoticeText)
		for _, n := range []int{1, 2, 3, 11, 500} {
			byCount[strconv.Itoa(n)], err = texts.Render(kind, n)
			require.NoError(t, err)
		}
		got, err := json.MarshalIndent(byCount, "", "  ")
		require.NoError(t, err)
		file := filepath.Join("testdata", string(kind)+".json")
		if *update {
			require.NoError(t, os.WriteFile(file, append(got, '\n'), 0o600))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got)+"\n")
	}
	_, err = texts.Render("unheard", 1)
	require.ErrorContains(t, err, "unheard")
}

func TestTextsMatch(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		locale string
		prefer []string
		want   string
	}{
		{"en", nil, "en"},
		{"en", []string{"zh-CN"}, "zh-CN"},
		{"en", []string{"zh"}, "zh-CN"},
		{"en", []string{"zh-Hans-SG"}, "zh-CN"},
		{"en", []string{"en-GB", "zh"}, "en"},
		{"en", []string{"fr", "zh"}, "zh-CN"},
		{"en", []string{"fr"}, "en"},
		{"zh-CN", []string{"fr"}, "zh-CN"},
		{"zh-CN", []string{"en-AU"}, "en"},
		{"zh-CN", []string{"???", ""}, "zh-CN"},
	} {
		texts, err := notice.NewTexts(x.locale)
		require.NoError(t, err)
		require.Equal(t, x.want, texts.Match(x.prefer...), "%v", x)
	}
	_, err := notice.NewTexts("fr")
	require.EqualError(t, err, `locale: must be of [en zh-CN], got "fr"`)
}

func TestTextsFallBack(t *testing.T) {
	t.Parallel()
	const good = `{{define "title"}}t{{end}}{{define "text"}}{{.Items}} {{plural .Items "one" "one" "few" "few" "many" "many" "other" "other"}}{{end}}`
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	texts, err := notice.TextsFrom(fstest.MapFS{
		"locales/en/expired.tmpl": file(good), "locales/ru/expired.tmpl": file(good), "locales/de/other.tmpl": file(good), "locales/en/other.tmpl": file(good),
	}, "de")
	require.NoError(t, err)
	rendered, err := texts.Render("expired", 22)
	require.NoError(t, err)
	require.Equal(t, "22 few", rendered["ru"].Text)
	require.Equal(t, "22 other", texts.Choose(rendered, "de-AT").Text, "no German text of this kind: the English one")
	require.Equal(t, "22 few", texts.Choose(rendered, "ru").Text)

	for name, files := range map[string]fstest.MapFS{
		"no template in en": {"locales/ru/expired.tmpl": file(good), "locales/en/other.tmpl": file(good)},
		"no word for":       {"locales/en/expired.tmpl": file(`{{define "title"}}{{plural .Items "one" "x"}}{{end}}{{define "text"}}{{end}}`)},
		"needs a word":      {"locales/en/expired.tmpl": file(`{{define "title"}}{{plural .Items "one"}}{{end}}{{define "text"}}{{end}}`)},
		"parse template":    {"locales/en/expired.tmpl": file(`{{define`)},
		"\"text\"":          {"locales/en/expired.tmpl": file(`{{define "title"}}{{end}}`)},
		"parse tag":         {"locales/e_!/expired.tmpl": file(good)},
	} {
		_, err := notice.TextsFrom(files, "en")
		require.ErrorContains(t, err, name)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, notice.DefaultConfig().Validate())
	c := notice.DefaultConfig()
	c.NotBefore = "2026-11-01T00:00:00+08:00"
	require.NoError(t, c.Validate())
	require.Equal(t, "2026-10-31T16:00:00Z", c.Rules().NotBefore.Format("2006-01-02T15:04:05Z07:00"))

	c = notice.Config{NotBefore: "midnight", Channels: []string{"inbox", "inbox", "pigeon"}, Locale: "fr", MaxItems: -1, PollMax: -1}
	err := c.Validate()
	for _, field := range []string{
		"consumer: ", "quiet: ", "max_age: ", "max_items: must be between 1 and 10000, got -1",
		`not_before: must be an RFC 3339 instant such as 2026-11-01T00:00:00+08:00, got "midnight"`,
		`channels: must be of [inbox log], got "pigeon"`, `channels: must name each once, got "inbox" again`,
		`locale: must be of [en zh-CN], got "fr"`, "batch: ", "lease: ", "poll_min: ", "poll_max: ",
	} {
		require.ErrorContains(t, err, field)
	}
	c = notice.DefaultConfig()
	c.Channels, c.MaxAge, c.Consumer.Batch = nil, time10, 901
	err = c.Validate()
	require.ErrorContains(t, err, "channels: must name one at least")
	require.ErrorContains(t, err, "max_age: must be at least quiet (30s), got 10s")
	require.ErrorContains(t, err, "consumer.batch: must be at most 900, got 901")
}
