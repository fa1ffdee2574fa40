package console

import (
	"fmt"
	"os"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// audit gives what readers of screens and people with weak eyes would stumble over.
func (b *browser) audit() []string {
	b.Helper()
	body, err := os.ReadFile("testdata/audit.js")
	require.NoError(b, err)
	return js[[]string](b, string(body))
}

func semantics(s *scene) {
	for _, dark := range []bool{false, true} {
		b := s.open(1280, 900, dark)
		require.Empty(s, b.audit(), "before somebody signed in, dark %t", dark)
		b.signIn(operator)
		b.do(chromedp.SendKeys(chromedp.CSS("#look-id"), fmt.Sprint(s.voided)+"\r"), chromedp.WaitVisible(chromedp.CSS("#timeline")))
		b.do(chromedp.Click(chromedp.CSS("#parked-look")), chromedp.WaitVisible(chromedp.CSS("#parked-replay")))
		for _, id := range []string{"forecast", "rates", "queues"} {
			b.do(chromedp.Click(chromedp.CSS("#"+id+"-toggle")), chromedp.WaitVisible(chromedp.CSS("#"+id+"-table table")))
		}
		require.Empty(s, b.audit(), "dark %t", dark)
		for _, chart := range []string{"forecast", "rates", "queues"} {
			require.NotEmpty(s, js[string](b, fmt.Sprintf(`document.querySelector('#%s-chart[role="img"]').getAttribute('aria-label')`, chart)))
		}
		require.LessOrEqual(s, js[int64](b, `document.querySelectorAll('[aria-live], [role="status"], [role="alert"]').length`), int64(4), "only what was asked for is read out")
	}
}

// phone: nothing is wider than the screen, and what is touched is large enough.
func phone(s *scene) {
	b := s.open(360, 740, true)
	b.signIn(operator)
	js[any](b, `(() => { const e = document.getElementById('language'); e.value = 'zh-CN'; e.dispatchEvent(new Event('change')); })()`)
	b.do(chromedp.SendKeys(chromedp.CSS("#look-id"), fmt.Sprint(s.locked)+"\r"), chromedp.WaitVisible(chromedp.CSS("#timeline")))
	require.LessOrEqual(s, js[int64](b, `document.documentElement.scrollWidth`), int64(360))
	require.Empty(s, js[[]string](b, `[...document.querySelectorAll('button:not(.link), select, input:not([type="radio"]):not([type="checkbox"])')].filter((e) => e.offsetParent && e.getBoundingClientRect().height < 36).map((e) => e.id || e.textContent)`))
	require.Empty(s, b.audit())
	b.until("the charts", `document.querySelectorAll('canvas').length === 3`)
	js[any](b, `document.activeElement.blur(); scrollTo(0, 0)`)
	b.picture("console-phone.png")
}
