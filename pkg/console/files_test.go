package console_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// vendored are the files of others, as their release has them.
func vendored() map[string]string {
	return map[string]string{
		"vendor/uplot-1.6.32/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
		"vendor/uplot-1.6.32/uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
		"vendor/uplot-1.6.32/LICENSE":           "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
	}
}

var (
	inline  = regexp.MustCompile(`(?is)<script(?:\s+(?:src="[^"]+"|type="module"|defer))*\s*>\s*[^<\s]|<style|\sstyle=|\son[a-z]+=|javascript:`)
	asks    = regexp.MustCompile(`(?:src|href)="([^"#]+)"`)
	imports = regexp.MustCompile(`from "\./([a-z]+\.js)"`)
	markup  = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|setAttribute\("style`)
)

func TestThePageAsksNothingOfOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	code, h, body := s.ask(http.MethodGet, "", "", "")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "text/html; charset=utf-8", h.Get("Content-Type"))
	policy := h.Get("Content-Security-Policy")
	for _, want := range []string{
		"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'",
		"base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'",
	} {
		require.Contains(t, policy, want)
	}
	require.NotContains(t, policy, "unsafe")
	require.NotContains(t, policy, "http")
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	} {
		require.Equal(t, want, h.Get(name))
	}
	require.NotRegexp(t, inline, string(body))
	files := map[string]bool{}
	for _, m := range asks.FindAllStringSubmatch(string(body), -1) {
		files[m[1]] = true
	}
	require.Contains(t, files, "app.js")
	for {
		n := len(files)
		for name := range files {
			require.NotContains(t, name, ":", "from here alone")
			code, h, body := s.ask(http.MethodGet, name, "", "")
			require.Equal(t, http.StatusOK, code, name)
			require.Equal(t, policy, h.Get("Content-Security-Policy"), name)
			if strings.HasSuffix(name, ".js") {
				require.Equal(t, "text/javascript; charset=utf-8", h.Get("Content-Type"))
				require.NotRegexp(t, markup, string(body), name)
			}
			for _, m := range imports.FindAllStringSubmatch(string(body), -1) {
				files[m[1]] = true
			}
		}
		if len(files) == n {
			break
		}
	}
	require.Len(t, files, 16, "%v", files)
	require.NotEmpty(t, h.Get("ETag"))
}

func TestWhatOthersWroteIsUnchanged(t *testing.T) {
	t.Parallel()
	for name, want := range vendored() {
		body, err := os.ReadFile(filepath.Join("static", name))
		require.NoError(t, err)
		sum := sha256.Sum256(body)
		require.Equal(t, want, hex.EncodeToString(sum[:]), name)
	}
	license, err := os.ReadFile("static/vendor/uplot-1.6.32/LICENSE")
	require.NoError(t, err)
	require.Contains(t, string(license), "Leon Sorokin")
}

var (
	entry  = regexp.MustCompile(`"([a-z0-9_.]+)": "((?:[^"\\]|\\.)*)"`)
	values = regexp.MustCompile(`\{\d\}`)
)

// Both languages say the same things, of the same values.
func TestWordsOfBothLanguages(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("static/words.js")
	require.NoError(t, err)
	text := string(body)
	en, zh, ok := strings.Cut(text, "const zh = {")
	require.True(t, ok)
	read := func(text string) map[string]string {
		words := map[string]string{}
		for _, m := range entry.FindAllStringSubmatch(text, -1) {
			require.NotContains(t, words, m[1], "said twice")
			words[m[1]] = m[2]
		}
		return words
	}
	english, chinese := read(en), read(zh)
	for key, word := range english {
		require.Contains(t, chinese, key)
		a, b := map[string]bool{}, map[string]bool{}
		for _, v := range values.FindAllString(word, -1) {
			a[v] = true
		}
		for _, v := range values.FindAllString(chinese[key], -1) {
			b[v] = true
		}
		require.Equal(t, a, b, key)
	}
	for key := range chinese {
		if !strings.HasPrefix(key, "note.") { // the publisher says those in English
			require.Contains(t, english, key)
		}
	}
	page, err := os.ReadFile("static/index.html")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`data-(?:t|placeholder)="([^"]+)"`).FindAllStringSubmatch(string(page), -1) {
		require.Contains(t, english, m[1])
	}
}

// Whatever needs attention can be said in Chinese.
func TestEveryNoteHasItsWords(t *testing.T) {
	t.Parallel()
	judge, err := os.ReadFile("../status/judge.go")
	require.NoError(t, err)
	words, err := os.ReadFile("static/words.js")
	require.NoError(t, err)
	codes := regexp.MustCompile(`add\("([a-z_]+)", "`).FindAllStringSubmatch(string(judge), -1)
	require.Greater(t, len(codes), 15)
	for _, m := range codes {
		require.Contains(t, string(words), `"note.`+m[1]+`": "`)
	}
}
