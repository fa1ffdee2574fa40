package console

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/testenv"
)

// The parts go one after the other over one installation: each looks, and the last one changes.
func TestConsole(t *testing.T) {
	s := newScene(t)
	for _, part := range []struct {
		name string
		test func(*scene)
	}{
		{"figures equal SQL", figures},
		{"one screen, two clicks", twoClicks},
		{"zones", zones},
		{"keyboard alone", keyboard},
		{"language and colours", languageAndColours},
		{"readers of screens", semantics},
		{"phone", phone},
		{"hidden", hidden},
		{"who may", whoMay},
		{"set aside, and replayed", replay},
	} {
		ok := t.Run(part.name, func(t *testing.T) {
			c := *s
			c.T = t
			part.test(&c)
		})
		require.True(t, ok)
	}
}

var notDigits = regexp.MustCompile(`[^0-9]`)

func digits(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(notDigits.ReplaceAllString(text, ""), 10, 64)
	require.NoError(t, err, "%q", text)
	return n
}

func figures(s *scene) {
	b := s.open(1280, 900, false)
	b.signIn(operator)
	value := func(where string, args ...any) int64 {
		return s.number(`SELECT COALESCE(SUM(t.value), 0) FROM coupon c JOIN coupon_template t ON t.id = c.template_id AND t.revision = c.revision WHERE `+where, args...)
	}
	for span, end := range map[string]string{
		"60m": `DATE_FORMAT(UTC_TIMESTAMP(3), '%Y-%m-%d %H:%i:00') + INTERVAL 60 MINUTE`,
		"24h": `DATE_FORMAT(UTC_TIMESTAMP(3), '%Y-%m-%d %H:00:00') + INTERVAL 24 HOUR`,
		"30d": `DATE(UTC_TIMESTAMP(3)) + INTERVAL 30 DAY`,
	} {
		b.do(chromedp.Click(chromedp.CSS(fmt.Sprintf(`input[name="span"][value=%q]`, span))))
		words := map[string]string{"60m": "60 minutes", "24h": "24 hours", "30d": "30 days"}[span]
		testenv.Wait(s, "the forecast of "+span, func() bool {
			return strings.Contains(b.text("#fact-unused dt"), words) &&
				digits(s, b.text("#fact-unused dd")) == s.number(`SELECT COUNT(*) FROM coupon WHERE status = 1 AND due_at >= UTC_TIMESTAMP(3) AND due_at < `+end)
		})
		require.Equal(s, s.number(`SELECT COUNT(*) FROM coupon WHERE status = 2 AND due_at >= UTC_TIMESTAMP(3) AND due_at < `+end), digits(s, b.text("#fact-locked dd")), span)
		require.Equal(s, value(`status IN (1,2) AND due_at >= UTC_TIMESTAMP(3) AND due_at < `+end), digits(s, b.text("#fact-value dd")), span) // in minor units: two digits
	}
	night := s.midnight().UTC().Format("2006-01-02 15:04:05")
	require.Equal(s, s.number(`SELECT COUNT(*) FROM coupon WHERE status IN (1,2) AND due_at >= ? AND due_at < ? + INTERVAL 10 MINUTE`, night, night), digits(s, b.text("#midnight-n")))
	require.Contains(s, b.text("#midnight"), "GMT+8")

	for _, id := range s.templates {
		row := js[[]string](b, fmt.Sprintf(`[...document.querySelector('[data-template="%d"]').closest('tr').querySelectorAll('td')].map((c) => c.textContent)`, id))
		require.Len(s, row, 7)
		require.Equal(s, s.number(`SELECT COUNT(*) FROM coupon WHERE template_id = ?`, id), digits(s, row[1]), "granted of %d", id)
		for i, status := range []int{1, 2, 3, 4, 5} {
			require.Equal(s, s.number(`SELECT COUNT(*) FROM coupon WHERE template_id = ? AND status = ?`, id, status), digits(s, row[i+2]), "status %d of %d", status, id)
		}
	}
	worth := func(id uint64) string {
		return js[string](b, fmt.Sprintf(`document.querySelector('[data-template="%d"]').closest('tr').querySelector('td').textContent`, id))
	}
	require.Equal(s, "CN¥5.00", worth(s.templates[0]))
	require.Equal(s, "12.5% off, CN¥50.00 at most", worth(s.templates[2]), "a percentage is not worth 0.00")
	require.Contains(s, b.text("#pipeline"), fmt.Sprintf("%d, run out 0", s.number(`SELECT COUNT(*) FROM coupon WHERE status = 2`)))
	require.Equal(s, s.number(`SELECT COUNT(*) FROM outbox`), digits(s, b.text("#tile-outbox dd")))
	require.Contains(s, b.text("#parked-sum"), fmt.Sprintf("could not be handled: 3. Without a route: 0. Outbox rows that the broker refused: %d.", s.number(`SELECT COUNT(*) FROM outbox_parked`)))
	require.Contains(s, b.text("#paused"), "the provider is being moved")
	require.Contains(s, b.text("#paused"), `lapsectl resume notices --channel sms --reason "…"`)
	waiting := s.number(`SELECT COUNT(*) FROM coupon WHERE status IN (1,2)`)
	testenv.Wait(s, "all that will end waits in the ladder", func() bool { return digits(s, b.text("#tile-waiting dd")) >= waiting })
	require.Contains(s, b.text("#fleet"), "expirer")
	require.Contains(s, b.text("#attention-list"), "notices of channel sms is paused")
	b.do(chromedp.Click(chromedp.CSS("#forecast-toggle")), chromedp.WaitVisible(chromedp.CSS("#forecast-table table")))
	sum := int64(0)
	for _, cell := range js[[]string](b, `[...document.querySelectorAll('#forecast-table tbody td:nth-child(2)')].map((c) => c.textContent)`) {
		sum += digits(s, cell)
	}
	require.Equal(s, digits(s, b.text("#fact-unused dd")), sum, "the table says what the chart shows")
	b.do(chromedp.Click(chromedp.CSS("#forecast-toggle")), chromedp.Click(chromedp.CSS(`input[name="span"][value="24h"]`)))
	b.until("24 hours again", `document.querySelector('#fact-unused dt').textContent.includes('24 hours')`)
	b.do(chromedp.SendKeys(chromedp.CSS("#look-id"), fmt.Sprint(s.locked)+"\r"), chromedp.WaitVisible(chromedp.CSS("#timeline")))
	s.bustle(b)
	js[any](b, `document.activeElement.blur(); scrollTo(0, 0)`)
	b.picture("console-wide.png")
}

// bustle lets coupons come and go for some readings, so that there is something to draw.
func (s *scene) bustle(b *browser) {
	s.Helper()
	for i := range 15 {
		s.grant(s.templates[3], "user-#", times(40+30*(i%6), func(int) time.Time { return time.Now().Add(3 * time.Second) })...)
		before := b.text("#fresh")
		b.until("another reading", fmt.Sprintf(`document.querySelector('#fresh').textContent !== %q`, before))
	}
	require.NotZero(s, js[int64](b, `document.querySelectorAll('#rates-chart canvas').length`))
}

// Midnight is the shop's, wherever somebody looks from; without a shop's zone it is that of who looks.
func zones(s *scene) {
	b := s.open(1280, 900, false)
	b.signIn(reader)
	require.Contains(s, b.text("footer"), "Times are of the zone GMT+8, set by console.zone")
	for _, x := range []struct{ zone, now, midnight string }{
		{shop, "2026-12-01T01:00:00Z", "2026-12-01T16:00:00Z"},
		{shop, "2026-12-01T15:59:59Z", "2026-12-01T16:00:00Z"},
		{shop, "2026-12-01T16:00:00Z", "2026-12-02T16:00:00Z"},
		{"Asia/Kathmandu", "2026-12-01T00:00:00Z", "2026-12-01T18:15:00Z"},
		{"Pacific/Kiritimati", "2026-12-01T09:59:59Z", "2026-12-01T10:00:00Z"},
		{"America/New_York", "2026-11-01T04:30:00Z", "2026-11-02T05:00:00Z"}, // a day of 25 hours
		{"America/New_York", "2026-03-08T05:30:00Z", "2026-03-09T04:00:00Z"}, // of 23
		{"Africa/Cairo", "2026-04-23T20:00:00Z", "2026-04-23T22:00:00Z"},     // which begins at one
		{"", "2026-12-01T04:59:00Z", "2026-12-01T05:00:00Z"},                 // the viewer's
		{"Asia/Atlantis", "2026-12-01T04:59:00Z", "2026-12-01T05:00:00Z"},    // which this browser does not know
	} {
		got := js[int64](b, fmt.Sprintf(`import("./format.js").then((f) => { f.tellIn(%q); const at = f.midnight(new Date(%q)); f.tellIn(%q); return at; })`, x.zone, x.now, shop))
		require.Equal(s, x.midnight, time.Unix(got, 0).UTC().Format(time.RFC3339), "after %s in %q", x.now, x.zone)
	}
}

// Who has never seen it finds what expires at midnight on the screen, and two clicks tell why a coupon cannot be used.
func twoClicks(s *scene) {
	b := s.open(1280, 900, false)
	b.signIn(reader)
	require.True(s, js[bool](b, `(() => { const r = document.getElementById('midnight').getBoundingClientRect(); return r.top >= 0 && r.bottom <= innerHeight; })()`), "without scrolling")
	look := func(id any) string {
		b.do(chromedp.SetValue(chromedp.CSS("#look-id"), fmt.Sprint(id)), chromedp.Click(chromedp.CSS("#look-form button")))
		b.until("an answer", `document.querySelector('#look-answer').textContent && !document.querySelector('#look-answer').textContent.includes('…')`)
		return b.text("#look-answer")
	}
	require.Contains(s, look(s.voided), "It cannot be used: amy withdrew it at ")
	require.Contains(s, b.text("#look-answer"), "bought with a stolen card")
	require.Equal(s, int64(2), js[int64](b, `document.querySelectorAll('#timeline li').length`))
	require.Contains(s, look(s.locked), "Order order-1001 holds it until ")
	require.Contains(s, look(s.usable), "It can be used now, until ")
	require.Equal(s, "There is no coupon 999999999.", look(999999999))
	require.Equal(s, "There is no coupon 99999999999999999999.", look("99999999999999999999"), "larger than any id")
	require.Contains(s, look("12O4"), "A coupon's id is a number, and 12O4 is none.")
	require.Empty(s, b.text("#look-out"))
	observe := func(observed bool) {
		_, err := s.inst.DB().ExecContext(s.Context(), `UPDATE coupon SET observed = ? WHERE id = ?`, observed, s.usable)
		require.NoError(s, err)
	}
	observe(true)
	require.Contains(s, look(s.usable), "It cannot be used here: another system owns it")
	observe(false)

	b.do(chromedp.SetValue(chromedp.CSS("#look-kind"), "user"), chromedp.SetValue(chromedp.CSS("#look-id"), "ann"), chromedp.Click(chromedp.CSS("#look-form button")),
		chromedp.WaitVisible(chromedp.CSS("[data-coupon]")))
	require.Contains(s, b.text("#look-answer"), "ann has 3 usable coupons")
	require.Equal(s, int64(5), js[int64](b, `document.querySelectorAll('[data-coupon]').length`))
	b.do(chromedp.Click(chromedp.CSS(fmt.Sprintf(`[data-coupon="%d"]`, s.voided))), chromedp.WaitVisible(chromedp.CSS("#timeline")))
	require.Contains(s, b.text("#look-answer"), "amy withdrew it")
	b.do(chromedp.SetValue(chromedp.CSS("#look-kind"), "user"), chromedp.SetValue(chromedp.CSS("#look-id"), `<img src=x onerror="document.title='owned'">`), chromedp.Click(chromedp.CSS("#look-form button")))
	b.until("no such user", `document.querySelector('#look-answer').textContent.includes('has no coupons')`)
	require.Zero(s, js[int64](b, `document.querySelectorAll('#look-answer *').length`))
	require.Equal(s, "TypeError", js[string](b, `(() => { try { document.createElement('div').innerHTML = '<b>x</b>'; return ''; } catch (e) { return e.name; } })()`), "no markup from text")
	b.expect("TrustedHTML")
}

func keyboard(s *scene) {
	b := s.open(1280, 900, false)
	focus := func() string {
		return js[string](b, `document.activeElement.id || document.activeElement.name || document.activeElement.className`)
	}
	require.Equal(s, "token", focus())
	b.do(chromedp.KeyEvent(reader+"\r"), chromedp.WaitVisible(chromedp.CSS("#page")))
	tab := func(to string) {
		s.Helper()
		for range 12 {
			b.do(chromedp.KeyEvent(kb.Tab))
			if focus() == to {
				outline := js[string](b, `(() => { const e = document.activeElement.matches('.segments input') ? document.activeElement.nextElementSibling : document.activeElement; return getComputedStyle(e).outlineStyle; })()`)
				require.NotEqual(s, "none", outline, "the focus on %s is seen", to)
				return
			}
		}
		require.FailNow(s, "Tab does not reach "+to)
	}
	require.Equal(s, "main", focus())
	tab("look-kind")
	tab("look-id")
	b.do(chromedp.KeyEvent(fmt.Sprint(s.voided) + "\r"))
	b.until("the answer", `document.activeElement.id === 'look-answer' && document.querySelector('#timeline')`)
	tab("span")
	b.do(chromedp.KeyEvent(kb.ArrowRight))
	require.Equal(s, "30d", js[string](b, `document.querySelector('input[name="span"]:checked').value`))
	tab("forecast-toggle")
	b.do(chromedp.KeyEvent(kb.Enter))
	require.Equal(s, "true", js[string](b, `document.querySelector('#forecast-toggle').getAttribute('aria-expanded')`))
	tab("scroll")
}

func languageAndColours(s *scene) {
	b := s.open(1280, 900, false)
	b.signIn(reader)
	ground := func() string { return js[string](b, `getComputedStyle(document.body).backgroundColor`) }
	light := ground()
	choose := func(id, value string) {
		js[any](b, fmt.Sprintf(`(() => { const e = document.getElementById(%q); e.value = %q; e.dispatchEvent(new Event('change')); })()`, id, value))
	}
	choose("theme", "dark")
	require.NotEqual(s, light, ground())
	choose("language", "zh-CN")
	require.Equal(s, "zh-CN", js[string](b, `document.documentElement.lang`))
	require.Equal(s, "何时过期", b.text("#forecast-title"))
	require.Contains(s, b.text("#attention-list"), "暂停")
	b.do(chromedp.SendKeys(chromedp.CSS("#look-id"), fmt.Sprint(s.voided)+"\r"), chromedp.WaitVisible(chromedp.CSS("#timeline")))
	require.Contains(s, b.text("#look-answer"), "不能使用：amy 于 ")
	require.NotRegexp(s, `\{\d\}`, b.text("body"))
	b.do(chromedp.Reload(), chromedp.WaitVisible(chromedp.CSS("#page")))
	require.Equal(s, "zh-CN", js[string](b, `document.documentElement.lang`), "they are remembered, and so is who looks while the tab is open")
	require.NotEqual(s, light, ground())
	choose("theme", "light")
	choose("language", "en")
	require.Equal(s, light, ground())
	require.Equal(s, "What expires when", b.text("#forecast-title"))
}

// hidden: nothing is asked while nobody sees the page.
func hidden(s *scene) {
	b := s.open(1280, 900, false)
	b.signIn(reader)
	asked := `performance.getEntriesByType('resource').filter((e) => e.name.includes('/api/')).length`
	see := func(hidden bool) {
		js[any](b, fmt.Sprintf(`Object.defineProperty(document, 'hidden', {configurable: true, get: () => %t}); document.dispatchEvent(new Event('visibilitychange'))`, hidden))
	}
	see(true)
	quiet := js[[]int64](b, `new Promise((done) => setTimeout(() => { const before = `+asked+`; setTimeout(() => done([before, `+asked+`]), 2500); }, 1000))`)
	require.Equal(s, quiet[0], quiet[1])
	see(false)
	b.until("it goes on at once", asked+fmt.Sprintf(" > %d", quiet[1]))
}

func whoMay(s *scene) {
	b := s.open(1280, 900, false)
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), "nobody's\r"))
	b.until("it says no", `document.querySelector('#login-wrong').textContent === 'The token is not known.'`)
	require.False(s, js[bool](b, `Boolean(sessionStorage.getItem('lapse.token'))`))
	b.signIn(reader)
	require.True(s, js[bool](b, `document.querySelector('#parked-look').hidden`), "to look through what was set aside is for operators")
	require.Contains(s, b.text("#parked-out"), "scope ops")
	require.Empty(s, js[string](b, `document.cookie`))
	require.Nil(s, js[any](b, `localStorage.getItem('lapse.token')`))
	b.do(chromedp.Click(chromedp.CSS("#leave")), chromedp.WaitVisible(chromedp.CSS("#token")))
	require.False(s, js[bool](b, `Boolean(sessionStorage.getItem('lapse.token'))`))
	require.Empty(s, b.text("#look-answer"))
}

func replay(s *scene) {
	b := s.open(1280, 900, false)
	b.signIn(operator)
	b.do(chromedp.Click(chromedp.CSS("#parked-look")), chromedp.WaitVisible(chromedp.CSS("#parked-replay")))
	require.Equal(s, int64(4), js[int64](b, `document.querySelectorAll('#parked-out input[data-ref]').length`))
	require.True(s, js[bool](b, `document.querySelector('#parked-replay').disabled`), "nothing is chosen")
	b.do(chromedp.Click(chromedp.CSS(`#parked-out input[data-ref="row-7"]`)), chromedp.Click(chromedp.CSS("#parked-replay")), chromedp.WaitVisible(chromedp.CSS("#replay")))
	require.Contains(s, b.text("#replay-text"), "Chosen: 1.")
	b.do(chromedp.Click(chromedp.CSS("#replay-go")))
	require.True(s, js[bool](b, `document.querySelector('#replay').open`), "it asks who and why")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until("it can be thought better of", `!document.querySelector('#replay').open`)
	require.EqualValues(s, 1, s.number(`SELECT COUNT(*) FROM outbox_parked`))

	b.do(chromedp.Click(chromedp.CSS("#parked-all")), chromedp.Click(chromedp.CSS("#parked-replay")), chromedp.WaitVisible(chromedp.CSS("#replay")),
		chromedp.SendKeys(chromedp.CSS("#replay-actor"), "安妮"), chromedp.SendKeys(chromedp.CSS("#replay-reason"), "the consumer is mended\r"))
	b.until("it is done", `document.querySelector('#parked-result').textContent === '4 of 4 were sent to where they came from.'`)
	require.Zero(s, s.number(`SELECT COUNT(*) FROM outbox_parked`))
	require.EqualValues(s, 2, s.number(`SELECT COUNT(*) FROM operator_log WHERE action = 'parked.replay' AND actor = 'desk/安妮' AND reason = 'the consumer is mended'`))
	// The three grants go to the publisher, the row's event, which has no body, to those who count it and tell of it: none can be read.
	testenv.Wait(s, "what cannot be read is parked again by the workers", func() bool {
		b.do(chromedp.Click(chromedp.CSS("#parked-look")))
		return js[int64](b, `document.querySelectorAll('#parked-out input[data-ref]').length`) == 5
	})
}
