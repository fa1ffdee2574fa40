package verify

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/rig/demo"
	"github.com/lapsehq/lapse/pkg/rig/receive"
)

// post is a shop with the far side of its channels: a mail server, and a provider's receiver each for SMS and push.
type post struct {
	*shop
	w    *notices
	mail *receive.Mail
	sms  *receive.Gateway
	push *receive.Gateway
	env  map[string]string // of notifiers
}

// posting changes what a post is opened with.
type posting struct {
	rules     string            // of notice.policy, as JSON
	notifier  map[string]string // further variables of the notifiers'
	publisher map[string]string
	expirer   map[string]string
	mail      receive.MailConfig // whom the mail server lets in; its authority is openPost's
	password  func(worker string) string
}

const (
	providerKey    = "verify-key-1"
	providerSecret = "verify-0123456789abcdef0123456789abcdef"
	mailDomain     = "lapse.example"
	everyChannel   = "inbox,popup,email,sms,push,log"
	noCaps         = `{"sms":{"day":0,"week":0},"push":{"day":0,"week":0},"email":{"day":0,"week":0}}`
	neverQuiet     = `{"sms":"never","push":"never","email":"never"}`
	manyCoupons    = 2000 // of one user at once
)

// openPost opens a shop that reminds a day before the end, receivers, and no notifier yet.
func (w *notices) openPost(ctx context.Context, t *tally, o posting, do func(ctx context.Context, p *post) error) (err error) {
	p := &post{w: w}
	authority, err := receive.NewAuthority(time.Now())
	if err != nil {
		return fmt.Errorf("an authority for the receivers: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Join(w.cfg.Stack.Dir, "run"), "verify-notices-")
	if err != nil {
		return fmt.Errorf("a place for the authority: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ca := filepath.Join(dir, "ca.pem")
	if err := authority.WriteFile(ca); err != nil {
		return fmt.Errorf("the authority's file: %w", err)
	}
	o.mail.Authority = authority
	if p.mail, err = receive.StartMail(ctx, o.mail); err != nil {
		return fmt.Errorf("a mail server: %w", err)
	}
	defer func() { err = errors.Join(err, p.mail.Close()) }()
	keys := map[string]string{providerKey: providerSecret}
	for _, g := range []**receive.Gateway{&p.sms, &p.push} {
		if *g, err = receive.StartGateway(ctx, receive.GatewayConfig{Authority: authority, Keys: keys}); err != nil {
			return fmt.Errorf("a provider's receiver: %w", err)
		}
		defer func() { err = errors.Join(err, (*g).Close()) }()
	}
	p.env = p.notifierEnv(ca, o)
	open := opening{password: o.password, env: func(worker string) map[string]string {
		if worker != demo.Publisher {
			return o.expirer
		}
		vars := map[string]string{
			"LAPSE__REMINDERS__OFFSETS": "-1d",
			"LAPSE__API__PROVIDERS":     fmt.Sprintf(`{%q:%q}`, providerKey, providerSecret),
		}
		maps.Copy(vars, o.publisher)
		return vars
	}}
	return w.open(ctx, t, open, func(ctx context.Context, s *shop) error {
		p.shop = s
		return do(ctx, p)
	})
}

func (p *post) notifierEnv(ca string, o posting) map[string]string {
	key := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	vars := map[string]string{
		"LAPSE__LOG__LEVEL":                 "info",
		"LAPSE__NOTICE__CHANNELS":           everyChannel,
		"LAPSE__NOTICE__QUIET":              "1s",
		"LAPSE__NOTICE__MAX_AGE":            "10s",
		"LAPSE__NOTICE__MAX_ITEMS":          strconv.Itoa(manyCoupons),
		"LAPSE__NOTICE__LEASE":              "15s",
		"LAPSE__NOTICE__POLICY__RULES":      o.rules,
		"LAPSE__NOTICE__POLICY__QUIET":      neverQuiet,
		"LAPSE__NOTICE__POLICY__CAPS":       noCaps,
		"LAPSE__NOTICE__POLICY__INACTIVE":   "0s",
		"LAPSE__PROFILE__ADDRESSES__ACTIVE": "k1",
		"LAPSE__PROFILE__ADDRESSES__KEYS":   fmt.Sprintf(`{"k1":%q}`, key),
		"LAPSE__NOTICE__EMAIL__HOST":        "127.0.0.1",
		"LAPSE__NOTICE__EMAIL__PORT":        strconv.Itoa(p.mail.Port()),
		"LAPSE__NOTICE__EMAIL__CA_FILE":     ca,
		"LAPSE__NOTICE__EMAIL__FROM":        "Shop <coupons@" + mailDomain + ">",
		"LAPSE__NOTICE__EMAIL__CONNECTIONS": strconv.Itoa(concurrency),
	}
	for name, g := range map[string]*receive.Gateway{"SMS": p.sms, "PUSH": p.push} {
		at := "LAPSE__NOTICE__GATEWAY__" + name + "__"
		vars[at+"URL"], vars[at+"CA_FILE"], vars[at+"KEY_ID"], vars[at+"KEY"] = g.URL(), ca, providerKey, providerSecret
	}
	for _, name := range []string{"EMAIL", "SMS", "PUSH"} {
		at := "LAPSE__NOTICE__LIMITS__" + name + "__"
		vars[at+"RATE"], vars[at+"CONCURRENCY"], vars[at+"DEADLINE"] = "0", strconv.Itoa(concurrency), "3s"
		vars[at+"BACKOFF"], vars[at+"BACKOFF_MAX"], vars[at+"OPEN_FOR"] = "500ms", "3s", "2s"
		vars[at+"TRIES"] = "1000"
	}
	maps.Copy(vars, o.notifier)
	return vars
}

const concurrency = 8 // sends at a time of each far channel and process

func notifierName(i int) string { return "notifier-" + strconv.Itoa(i) }

// notifiers starts so many.
func (p *post) notifiers(ctx context.Context, n int) error {
	for i := 1; i <= n; i++ {
		if err := p.Add(ctx, p.w.cfg.Bin, notifierName(i), demo.Notifier, p.env); err != nil {
			return err
		}
	}
	return nil
}

// person is what the shop tells of a user.
type person struct {
	id, locale, zone   string
	email, phone, push string
}

// profiles tells of users, and waits until they are known.
func (p *post) profiles(ctx context.Context, people []person) error {
	before, err := countIn(ctx, p.DB(), "SELECT COUNT(*) FROM user_profile WHERE profile_at IS NOT NULL")
	if err != nil {
		return err
	}
	ms := make([]broker.Message, len(people))
	for i, who := range people {
		data := map[string]any{
			"user_id": who.id, "locale": who.locale, "zone": who.zone, "at": p.Now().UTC().Format(time.RFC3339Nano),
			"addresses": map[string]string{"email": who.email, "phone": who.phone, "push": who.push},
		}
		if ms[i], err = p.userEvent("profile", i, data); err != nil {
			return err
		}
	}
	if err := p.send(ctx, ms); err != nil {
		return err
	}
	return p.counted(ctx, "profiles", "SELECT COUNT(*) FROM user_profile WHERE profile_at IS NOT NULL", before+len(people), 2*time.Minute)
}

// seen tells what a user was seen to do, and waits until that is known.
func (p *post) seen(ctx context.Context, what, user string, at time.Time) error {
	m, err := p.userEvent("activity", 0, map[string]any{"user_id": user, "kind": what, "at": at.UTC().Format(time.RFC3339Nano)})
	if err != nil {
		return err
	}
	if err := p.send(ctx, []broker.Message{m}); err != nil {
		return err
	}
	column := map[string]string{"browse": "browse_at", "cart": "cart_at", "order": "ordered_at", "login": "login_at"}[what]
	return p.counted(ctx, what, "SELECT COUNT(*) FROM user_profile WHERE user_id = ? AND "+column+" IS NOT NULL", 1, time.Minute, []byte(user))
}

func (p *post) userEvent(what string, i int, data any) (broker.Message, error) {
	body, err := json.Marshal(data)
	if err != nil {
		return broker.Message{}, fmt.Errorf("an event of a user: %w", err)
	}
	id := fmt.Sprintf("verify-%s-%d-%d", what, p.Now().UnixNano(), i)
	return broker.Message{
		Exchange: p.Ladder().Users(), Key: "user." + what, ID: id, Body: body, ContentType: "application/json", Mandatory: true,
	}, nil
}

func (p *post) send(ctx context.Context, ms []broker.Message) error {
	const batch = 1000
	for part := range slices.Chunk(ms, batch) {
		if err := p.Publish(ctx, part...); err != nil {
			return err
		}
	}
	return nil
}

// counted waits until the query gives n. If it does not within the limit, that is a fault of the run.
func (p *post) counted(ctx context.Context, what, query string, n int, limit time.Duration, args ...any) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	have := 0
	err := until(limited, func() (bool, error) {
		var err error
		have, err = countIn(limited, p.DB(), query, args...)
		return have >= n, err
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %d of %d after %s: %w", what, have, n, limit, err)
	}
	return err
}

// settledAll waits until every window is closed and every notice settled, or the limit is over; the checks then say what is amiss.
func (p *post) settledAll(ctx context.Context, limit time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := until(limited, func() (bool, error) {
		n, err := countIn(limited, p.DB(), `SELECT (SELECT COUNT(*) FROM notice_window WHERE closed_at IS NULL) +
			(SELECT COUNT(*) FROM notice WHERE state IN ('pending', 'sending'))`)
		return n == 0, err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil
	}
	return err
}

// states counts the notices of a channel by state, and how many are more than one of their user, kind, slot and channel.
func (p *post) states(ctx context.Context, channel string) (by map[string]int, err error) {
	by = make(map[string]int)
	err = p.read(ctx, `SELECT state, COUNT(*) FROM notice WHERE channel = ? GROUP BY state`, func(r *sql.Rows) error {
		var state string
		var n int
		if err := r.Scan(&state, &n); err != nil {
			return err
		}
		by[state] = n
		return nil
	}, channel)
	return by, err
}

func (p *post) read(ctx context.Context, query string, do func(*sql.Rows) error, args ...any) error {
	rows, err := p.DB().QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("reading notices: %w", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	for rows.Next() {
		if err := do(rows); err != nil {
			return fmt.Errorf("reading notices: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("reading notices: %w", err)
	}
	return nil
}

const moreThanOne = `SELECT COUNT(*) FROM (SELECT 1 FROM notice n JOIN notice_window w ON w.id = n.window_id WHERE w.late = 0
	GROUP BY n.user_id, n.kind, n.slot, n.channel HAVING COUNT(*) > 1) x`

// mailed counts letters by notice id.
func (p *post) mailed() map[string]int {
	out := make(map[string]int)
	for id, n := range p.mail.Counts() {
		notice, _, _ := strings.Cut(id, "@")
		out[notice] += n
	}
	return out
}

// arrived holds what came against what is recorded as sent: ids that came and are not recorded, those recorded that did not
// come, and repeats.
func (p *post) arrived(ctx context.Context, channel string, came map[string]int) (unknown, missing, repeats, unexplained int, err error) {
	attempts := make(map[string]int)
	err = p.read(ctx, `SELECT window_id, attempts, state FROM notice WHERE channel = ?`, func(r *sql.Rows) error {
		var window uint64
		var n int
		var state string
		if err := r.Scan(&window, &n, &state); err != nil {
			return err
		}
		id := strconv.FormatUint(window, 10) + "-" + channel
		attempts[id] = n
		if (state == "sent" || state == "delivered") && came[id] == 0 {
			missing++
		}
		return nil
	}, channel)
	for id, n := range came {
		tries, ok := attempts[id]
		if !ok {
			unknown++
		}
		if n > 1 {
			repeats += n - 1
			if n > tries {
				unexplained++
			}
		}
	}
	return unknown, missing, repeats, unexplained, err
}
