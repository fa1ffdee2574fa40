package verify

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/rig/demo"
	"github.com/lapsehq/lapse/pkg/rig/receive"
)

const (
	shortest    = 10 // what is shorter may stand somewhere by chance
	toldWithin  = time.Minute
	pageLimit   = 16 << 20
	mailUser    = "lapse-mail"
	userOfKinds = 3 // users, each with every address
)

// leaks looks for secrets that were planted, as they are and in base64.
type leaks struct {
	w       *deploy
	needles map[string]string // what it is → the secret
	places  int
	bytes   int
	found   map[string]int // what, and where
}

// plant makes a secret that nothing else contains.
func (l *leaks) plant(what string) (string, error) {
	s, err := secretToken()
	if err != nil {
		return "", err
	}
	l.needles[what] = "pl4nted" + s
	return l.needles[what], nil
}

// know adds a secret that somebody else made.
func (l *leaks) know(what, text string) {
	if len(text) >= shortest {
		l.needles[what] = text
	}
}

// knowStack adds the passwords of the stack itself: everything is done with them that is done before a worker has an account.
func (l *leaks) knowStack() {
	for what, raw := range map[string]string{"broker's": l.w.cfg.Stack.AMQPURL.Reveal(), "management API's": l.w.cfg.Stack.ManagementURL.Reveal()} {
		if u, err := url.Parse(raw); err == nil {
			password, _ := u.User.Password()
			l.know("the stack: "+what, password)
		}
	}
	for what, raw := range map[string]string{"database's": l.w.cfg.Stack.DSN.Reveal(), "database root's": l.w.cfg.Stack.RootDSN.Reveal()} {
		if c, err := mysql.ParseDSN(raw); err == nil {
			l.know("the stack: "+what, c.Passwd)
		}
	}
}

// look searches a text. What is found is named, and not shown.
func (l *leaks) look(where string, text []byte) {
	l.places++
	l.bytes += len(text)
	for what, secret := range l.needles {
		n := bytes.Count(text, []byte(secret)) + bytes.Count(text, []byte(base64.StdEncoding.EncodeToString([]byte(secret))))
		if n > 0 {
			l.found[what+" in "+where] += n
		}
	}
}

func (l *leaks) judge(t *tally) {
	hits := 0
	for _, what := range slices.Sorted(maps.Keys(l.found)) {
		l.w.cfg.View.Step(fmt.Sprintf("shown %d times: %s", l.found[what], what))
		hits += l.found[what]
	}
	want(t, "secrets_planted", len(l.needles), AtLeast, 15)
	want(t, "places_searched", l.places, AtLeast, 80)
	want(t, "bytes_searched", l.bytes, AtLeast, 100_000)
	want(t, "secrets_shown", hits, Equal, 0)
}

// secrets plants recognisable secrets, lets a fleet work with them and be refused for them, and looks for them in all that it says.
func (w *deploy) secrets(ctx context.Context, t *tally) error {
	l := &leaks{w: w, needles: make(map[string]string), found: make(map[string]int)}
	o, err := l.posting()
	if err != nil {
		return err
	}
	return (&notices{checkout: w.checkout}).openPost(ctx, t, o, func(ctx context.Context, p *post) error {
		l.know("api: the token", p.secret)
		l.know("api: the reader's token", p.weak)
		l.know("notice.gateway.key, api.providers", providerSecret)
		l.knowStack()
		if err := l.work(ctx, p); err != nil {
			return err
		}
		w.cfg.View.Step("the same programs with what is wrong")
		if err := l.refused(ctx, p.shop); err != nil {
			return err
		}
		l.judge(t)
		return nil
	})
}

// posting plants what a fleet works with.
func (l *leaks) posting() (posting, error) {
	secrets := make(map[string]string)
	for _, what := range []string{
		demo.Publisher, demo.Expirer, demo.Notifier, "notice.email.password", "notice.email.unsubscribe_key", "notice.gateway.sms.token",
		"notice.gateway.push.token",
	} {
		var err error
		if secrets[what], err = l.plant(what); err != nil {
			return posting{}, err
		}
	}
	raw, err := secretToken()
	if err != nil {
		return posting{}, err
	}
	key := base64.StdEncoding.EncodeToString([]byte(raw[:32]))
	l.know("profile.addresses.keys", key)
	debug := map[string]string{"LAPSE__LOG__LEVEL": "debug"}
	return posting{
		rules:     `[{"channels":["inbox","sms","push","email"]}]`,
		password:  func(worker string) string { return secrets[worker] },
		mail:      receive.MailConfig{User: mailUser, Password: secrets["notice.email.password"]},
		publisher: debug, expirer: debug,
		notifier: map[string]string{
			"LAPSE__LOG__LEVEL":                      "debug",
			"LAPSE__NOTICE__EMAIL__USERNAME":         mailUser,
			"LAPSE__NOTICE__EMAIL__PASSWORD":         secrets["notice.email.password"],
			"LAPSE__NOTICE__EMAIL__UNSUBSCRIBE":      "https://" + mailDomain + "/u?n={notice_id}&u={user_id}&s={sign}",
			"LAPSE__NOTICE__EMAIL__UNSUBSCRIBE_KEY":  secrets["notice.email.unsubscribe_key"],
			"LAPSE__NOTICE__GATEWAY__SMS__TOKEN":     secrets["notice.gateway.sms.token"],
			"LAPSE__NOTICE__GATEWAY__PUSH__TOKEN":    secrets["notice.gateway.push.token"],
			"LAPSE__PROFILE__ADDRESSES__KEYS":        fmt.Sprintf(`{"k1":%q}`, key),
			"LAPSE__NOTICE__LIMITS__EMAIL__DEADLINE": "5s",
		},
	}, nil
}

// work lets coupons end and users be told, with providers that refuse at first, and callers that are refused.
func (l *leaks) work(ctx context.Context, p *post) error {
	l.w.cfg.View.Step("a fleet works, at debug level, and providers refuse it at first")
	if err := p.notifiers(ctx, 1); err != nil {
		return err
	}
	people := make([]person, userOfKinds)
	for i := range people {
		id := userOf(i)
		people[i] = person{id: id, locale: "en", zone: "UTC", email: id + "@example.com", phone: fmt.Sprintf("+86139%08d", i), push: "token-" + id}
	}
	if err := p.profiles(ctx, people); err != nil {
		return err
	}
	p.push.Fault(receive.Fault{Act: receive.ActCode, Code: http.StatusInternalServerError, Text: "no", Times: 1})
	p.sms.Fault(receive.Fault{Act: receive.ActCode, Code: http.StatusUnauthorized, Text: "who are you", Times: 1})
	p.mail.Fault(receive.Fault{Act: receive.ActCode, Stage: receive.StageAuth, Code: 535, Text: "5.7.8 no", Times: 1})
	template, err := p.template(ctx, nil)
	if err != nil {
		return err
	}
	at := p.soon(3 * time.Second)
	if _, err := p.grant(ctx, template, 10*userOfKinds, func(i int, g *client.Grant) { g.UserID, g.ExpiresAt = userOf(i%userOfKinds), &at }); err != nil {
		return err
	}
	if err := p.Publish(ctx, broker.Message{Exchange: p.Ladder().Issuance(), Key: "coupon.grant", ID: "nonsense", Body: []byte("no event")}); err != nil {
		return err
	}
	if err := l.callers(ctx, p.shop); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, toldWithin)
	defer cancel()
	err = until(limit, func() (bool, error) {
		pushed, _ := p.push.Total()
		texted, _ := p.sms.Total()
		return pushed > 1 && texted > 1 && len(p.mail.Letters()) > 0, nil
	})
	if err != nil && ctx.Err() != nil {
		return err
	}
	l.arrived(p)
	return l.read(ctx, p)
}

// arrived looks at what came, which is also how it is known that the secrets were good for something.
func (l *leaks) arrived(p *post) {
	letters, logins := p.mail.Letters(), 0
	for _, a := range letters {
		if a.User == mailUser {
			logins++
		}
		l.look("a letter", []byte(fmt.Sprint(a.Header, a.Subject, a.Text, a.HTML)))
	}
	signed := 0
	for _, a := range slices.Concat(p.push.Arrivals(), p.sms.Arrivals()) {
		if strings.HasPrefix(a.Header.Get("Authorization"), "Bearer pl4nted") {
			signed++
		}
		l.look("a message to a provider", a.Body)
	}
	_, unsigned := p.push.Total()
	want(p.t, "letters_with_login", logins, AtLeast, 1)
	want(p.t, "messages_with_token_and_signature", signed, AtLeast, 2)
	want(p.t, "messages_unsigned", unsigned, Equal, 0)
}

// callers ask the API with what is wrong, and with tokens that are.
func (l *leaks) callers(ctx context.Context, s *shop) error {
	wrong, err := l.plant("api: a token that is refused")
	if err != nil {
		return err
	}
	refused := 0
	for _, token := range []string{"", wrong, s.weak, s.secret} {
		for _, ask := range [][3]string{
			{http.MethodPost, "/v1/grants", `{"grants":[{"grant_key":7}]}`},
			{http.MethodPost, "/v1/orders/o1/lock", `{"coupon_ids":["1"],"user_id":"nobody"}`},
			{http.MethodPost, "/v1/orders/o1/lock", "not JSON"},
			{http.MethodGet, "/v1/coupons/none", ""},
			{http.MethodGet, "/v1/nothing/there", ""},
			{http.MethodPost, "/v1/receipts", `{"receipts":[]}`},
		} {
			code, text, err := page(ctx, s.url+ask[1], ask[0], token, ask[2])
			if err != nil {
				return err
			}
			if code >= http.StatusBadRequest {
				refused++
			}
			l.look("an answer of "+ask[0]+" "+ask[1], text)
		}
	}
	want(s.t, "calls_refused", refused, Equal, 24)
	return nil
}

// adminPages are what the admin port may be asked for; the last two are not there.
func adminPages() []string {
	return []string{"/livez", "/readyz", "/metrics", "/", "/debug/pprof/cmdline"}
}

// read looks at all pages and logs of the fleet, which is stopped for that.
func (l *leaks) read(ctx context.Context, p *post) error {
	workers := []string{demo.Publisher, demo.Expirer, notifierName(1)}
	for _, worker := range workers {
		ports, err := p.Fleet().Ports(worker)
		if err != nil {
			return err
		}
		if err := l.admin(ctx, worker, ports["admin"]); err != nil {
			return err
		}
	}
	debug := 0
	for _, worker := range workers {
		if err := p.Fleet().StopOne(ctx, worker); err != nil {
			return err
		}
		log, err := os.ReadFile(p.Fleet().LogFile(worker))
		if err != nil {
			return fmt.Errorf("reading a log: %w", err)
		}
		debug += bytes.Count(log, []byte(`"level":"debug"`))
		l.look("the log of "+worker, log)
	}
	want(p.t, "debug_lines", debug, AtLeast, 1)
	return nil
}

func (l *leaks) admin(ctx context.Context, worker string, port int) error {
	for _, path := range adminPages() {
		_, text, err := page(ctx, "http://"+loopback(port)+path, http.MethodGet, "", "")
		if err != nil {
			return err
		}
		l.look(path+" of "+worker, text)
	}
	return nil
}

// page asks for one and gives all that was answered, headers included.
func page(ctx context.Context, address, method, token, body string) (code int, text []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return 0, nil, fmt.Errorf("asking for a page: %w", err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: apiTimeout}).Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("asking for a page: %w", err)
	}
	text, err = io.ReadAll(io.LimitReader(res.Body, pageLimit))
	if err := errors.Join(err, res.Body.Close()); err != nil {
		return 0, nil, fmt.Errorf("reading a page: %w", err)
	}
	return res.StatusCode, append(text, fmt.Sprint(res.Header)...), nil
}
