package console

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/rig/demo"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

var update = flag.Bool("update", false, "write the pictures in docs/img")

const (
	root     = "../.."
	operator = "operators-token-of-the-test"
	reader   = "readers-token-of-the-test"
	shop     = "Asia/Shanghai"    // whose zone the page tells times in
	viewer   = "America/New_York" // where the browser is
	patience = 2 * time.Minute
)

// scene is a running installation with coupons in all states, and a browser that looks at it.
type scene struct {
	*testing.T
	inst  *demo.Installation
	store *store.Store
	url   string

	templates []uint64
	usable    uint64 // a coupon of ann's
	voided    uint64
	locked    uint64
}

func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", "./cmd/publisher", "./cmd/expirer", "./cmd/notifier")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return dir
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	token := func(name, value, scopes string) string {
		return fmt.Sprintf("{name: %s, hash: %s, scopes: [%s]}", name, api.HashToken(value), scopes)
	}
	var err error
	s.inst, err = demo.Install(ctx, demo.InstallationConfig{
		Stack: testenv.Servers(t), Bin: build(t), Deaf: true, Workers: []string{demo.Publisher, demo.Expirer, demo.Notifier},
		Env: func(worker string) map[string]string {
			if worker != demo.Publisher {
				return nil
			}
			return map[string]string{
				"LAPSE__API__TOKENS":    "[" + token("desk", operator, "read, ops") + ", " + token("looker", reader, "read") + "]",
				"LAPSE__CONSOLE__EVERY": "1s", "LAPSE__CONSOLE__ZONE": shop,
			}
		},
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		logs := ""
		if t.Failed() {
			logs = t.ArtifactDir()
		}
		_, err := s.inst.Remove(ctx, logs)
		require.NoError(t, err)
	})
	require.NoError(t, err)
	ports, err := s.inst.Fleet().Ports(demo.Publisher)
	require.NoError(t, err)
	s.url = fmt.Sprintf("http://127.0.0.1:%d/console/", ports["admin"])
	s.openStore(ctx)
	s.seed()
	return s
}

func (s *scene) openStore(ctx context.Context) {
	s.Helper()
	dsn, err := mysql.ParseDSN(s.inst.DSN())
	require.NoError(s, err)
	c := store.DefaultConfig()
	c.Address, c.User, c.Password, c.Name, c.Migrate, c.MaxOpen = dsn.Addr, dsn.User, secret.New(dsn.Passwd), dsn.DBName, "verify", 4
	s.store, err = store.Open(ctx, c, s.inst.Codec(), zap.NewNop(), prometheus.NewRegistry())
	require.NoError(s, err)
	s.Cleanup(func() { require.NoError(s, s.store.Close()) })
}

// number reads one by plain SQL.
func (s *scene) number(query string, args ...any) int64 {
	s.Helper()
	var n int64
	require.NoError(s, s.inst.DB().QueryRowContext(s.Context(), query, args...).Scan(&n))
	return n
}

// midnight is the next one in the shop's zone.
func (s *scene) midnight() time.Time {
	s.Helper()
	place, err := time.LoadLocation(shop)
	require.NoError(s, err)
	y, m, d := time.Now().In(place).Date()
	return time.Date(y, m, d+1, 0, 0, 0, 0, place)
}

func (s *scene) grant(template uint64, user string, ends ...time.Time) (ids []uint64) {
	s.Helper()
	var grants []coupon.Grant
	for i, end := range ends {
		grants = append(grants, coupon.Grant{
			Issuer: "shop", Key: fmt.Sprintf("%s:%d:%d:%d", user, template, i, time.Now().UnixNano()), TemplateID: template,
			UserID: strings.ReplaceAll(user, "#", fmt.Sprint(i%97)), BatchID: "autumn", ExpiresAt: end,
		})
	}
	for len(grants) > 0 {
		n := min(500, len(grants))
		out, err := s.store.Issue(s.Context(), grants[:n])
		require.NoError(s, err)
		for _, g := range out {
			require.Empty(s, g.Refused)
			ids = append(ids, g.CouponID)
		}
		grants = grants[n:]
	}
	return ids
}

func (s *scene) act(o coupon.Order) {
	s.Helper()
	_, out, err := s.store.Act(s.Context(), o)
	require.NoError(s, err)
	for _, a := range out {
		require.Empty(s, a.Refused)
	}
}

func times(n int, end func(i int) time.Time) (ends []time.Time) {
	for i := range n {
		ends = append(ends, end(i))
	}
	return ends
}

// seed makes a day of a shop: what ends soon, tonight, this month; what is locked, used, withdrawn, expired, parked and paused.
func (s *scene) seed() {
	s.Helper()
	now, night := time.Now(), s.midnight()
	for _, x := range []struct {
		name  string
		value int64
		offer coupon.Offer
	}{
		{"双十一满 100 减 5", 500, coupon.Offer{}},
		{"New customers: ¥20 off", 2000, coupon.Offer{}},
		{"An eighth off shoes", 0, coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 1250, Cap: 5000}},
		{"会员日 Members' day", 1500, coupon.Offer{}},
	} {
		id, err := s.store.CreateTemplate(s.Context(), coupon.Template{
			Name: x.name, Rule: coupon.Rule{Kind: coupon.RuleNever}, Actor: "amy", Reason: "autumn",
			Terms: coupon.Terms{Value: x.value, Currency: "CNY", Precision: coupon.Exact, Offer: x.offer}.Defaults(),
		})
		require.NoError(s, err)
		s.templates = append(s.templates, id)
	}
	t := s.templates
	require.NoError(s, s.store.StopTemplate(s.Context(), t[1], true, "amy", "sold out"))
	require.NoError(s, s.store.StopTemplate(s.Context(), t[1], false, "amy", "more came"))
	s.grant(t[0], "user-#", times(1200, func(int) time.Time { return night })...)
	s.grant(t[1], "user-#", times(900, func(i int) time.Time { return now.Add(10*time.Minute + time.Duration(i*i%86000)*time.Second) })...)
	month := s.grant(t[2], "user-#", times(1500, func(i int) time.Time { return now.Add(time.Duration(26+(i*i*7)%650) * time.Hour) })...)
	s.grant(t[3], "user-#", times(240, func(i int) time.Time { return now.Add(10*time.Minute + time.Duration(i%48)*time.Minute) })...)
	short := s.grant(t[3], "user-#", times(300, func(i int) time.Time { return time.Now().Add(4*time.Second + time.Duration(i)*40*time.Millisecond) })...)
	require.Len(s, short, 300)

	ann := s.grant(t[0], "ann", night, night, night, now.Add(72*time.Hour), now.Add(72*time.Hour))
	s.usable, s.locked, s.voided = ann[0], ann[1], ann[2]
	s.act(coupon.Order{Verb: coupon.VerbLock, OrderID: "order-1001", UserID: "ann", CouponIDs: []uint64{s.locked}, LockFor: 30 * time.Minute})
	s.act(coupon.Order{Verb: coupon.VerbVoid, CouponIDs: []uint64{s.voided}, Actor: "amy", Reason: "bought with a stolen card"})
	for i := range 4 {
		order := fmt.Sprintf("order-%d", 2000+i)
		s.act(coupon.Order{Verb: coupon.VerbLock, OrderID: order, CouponIDs: month[i*10 : i*10+10], LockFor: 30 * time.Minute})
		if i > 0 {
			s.act(coupon.Order{Verb: coupon.VerbRedeem, OrderID: order, UserID: s.ownerOf(month[i*10]), CouponIDs: month[i*10 : i*10+1], Each: true})
		}
	}
	_, err := s.store.Pause(s.Context(), coupon.Pause{Brake: coupon.BrakeNotices, Scope: coupon.PauseChannel, ID: "sms"}, "amy", "the provider is being moved")
	require.NoError(s, err)
	s.park()
	testenv.Wait(s, "what ended is expired, and counted", func() bool {
		return s.number(`SELECT COUNT(*) FROM coupon WHERE status = 4`) == 300 &&
			s.number(`SELECT COALESCE(SUM(granted + locked + released + used + expired + voided), 0) FROM template_stats`) == s.number(`SELECT COUNT(*) FROM coupon_history`) &&
			s.number(`SELECT COUNT(*) FROM outbox`) == 0
	})
}

func (s *scene) ownerOf(id uint64) string {
	s.Helper()
	c, _, err := s.store.Coupon(s.Context(), id)
	require.NoError(s, err)
	return c.UserID
}

// park sets messages aside.
func (s *scene) park() {
	s.Helper()
	l := s.inst.Ladder()
	for i := range 3 {
		d := broker.Delivery{Queue: l.Issuance(), MessageID: fmt.Sprint("grant-", i), Key: event.KeyGrant, Body: []byte("not json")}
		require.NoError(s, s.inst.Publish(s.Context(), d.Parked(l.ParkExchange(), fmt.Sprintf("malformed: body at byte %d", i))))
	}
	_, err := s.inst.DB().ExecContext(s.Context(), `INSERT INTO outbox_parked (id, lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, reason, parked_at)
		VALUES (7,1,3,?,?,'coupon.expired',' ',NULL,'{}','','returned: no queue takes it',UTC_TIMESTAMP(3))`, s.usable, fmt.Sprintf("%d:2:expired", s.usable))
	require.NoError(s, err)
}

// browser is one tab.
type browser struct {
	*scene
	ctx context.Context //nolint:containedctx // the tab's life

	mu     sync.Mutex
	faults []string // what the page complains of
}

// open opens a tab of a size. Whatever the page complains of fails the test at its end.
func (s *scene) open(width, height int64, dark bool) *browser {
	s.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.UserDataDir(s.TempDir()), chromedp.Flag("lang", "en-US"))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	alloc, stop := chromedp.NewExecAllocator(s.Context(), options...)
	s.Cleanup(stop)
	tab, end := chromedp.NewContext(alloc)
	s.Cleanup(end)
	b := &browser{scene: s, ctx: tab}
	require.NoError(s, chromedp.Listen(tab, b.hear))
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.do(
		call(log.Enable, cdp.Empty{}),
		call(emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: viewer}),
		call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1}),
		call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}}),
		chromedp.Navigate(s.url), chromedp.WaitVisible(chromedp.CSS("#token")))
	s.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Empty(s, b.faults, "the page complains of nothing")
	})
	return b
}

// call is a command of the protocol.
func call[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

// hear notes what the page complains of.
func (b *browser) hear(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := ev.(type) {
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, fmt.Sprintf("%+v", e.ExceptionDetails))
	case *log.EventEntryAdded:
		if e.Entry.Source != log.EntrySourceNetwork && (e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning) {
			b.faults = append(b.faults, e.Entry.Text)
		}
	}
}

// expect takes the complaint that was provoked away.
func (b *browser) expect(text string) {
	b.Helper()
	testenv.Wait(b, "the browser to complain of "+text, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		before := len(b.faults)
		b.faults = slices.DeleteFunc(b.faults, func(f string) bool { return strings.Contains(f, text) })
		return len(b.faults) < before
	})
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	require.NoError(b, chromedp.Do(ctx, actions...))
}

// js gives what an expression is worth; promises are waited for.
func js[T any](b *browser, expression string) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(b, err, expression)
	return out
}

// until waits until an expression is true.
func (b *browser) until(what, expression string) {
	b.Helper()
	testenv.Wait(b, what, func() bool { return js[bool](b, "Boolean("+expression+")") })
}

func (b *browser) text(selector string) string {
	b.Helper()
	return js[string](b, fmt.Sprintf("(document.querySelector(%q) || {textContent: ''}).textContent", selector))
}

func (b *browser) signIn(token string) {
	b.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), token+"\r"), chromedp.WaitVisible(chromedp.CSS("#page")))
	b.until("the figures", "document.querySelector('#tile-due dd') && document.querySelector('#fact-unused dd') && document.querySelector('#midnight-n') && document.querySelector('[data-template]')")
}

// picture writes one of the docs' pictures, of the whole page.
func (b *browser) picture(name string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	require.NoError(b, err)
	require.NotEmpty(b, png)
	if *update {
		dir := filepath.Join(root, "docs", "img")
		require.NoError(b, os.MkdirAll(dir, 0o755))
		require.NoError(b, os.WriteFile(filepath.Join(dir, name), png, 0o644))
	}
}
