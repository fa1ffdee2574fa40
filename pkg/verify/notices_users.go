package verify

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig/demo"
	"github.com/lapsehq/lapse/pkg/rig/receive"
)

const usersRules = `[{"kinds":["expiring"],"channels":["inbox","push>email"]},{"channels":["inbox"]}]`

// Addresses that must be found nowhere but at the receivers.
const (
	plantedMail  = "planted-address"
	plantedPhone = "+8613812345678"
	plantedPush  = "planted-device-token"
)

// usersKnown follows what is known of users: who has opted out, whose push did not arrive, who was about to buy, who is erased.
func (w *notices) usersKnown(ctx context.Context, t *tally) error {
	o := posting{rules: usersRules}
	return w.openPost(ctx, t, o, func(ctx context.Context, p *post) error {
		template, err := p.template(ctx, func(terms *client.Terms) { terms.Rule.After = "2400h" })
		if err != nil {
			return err
		}
		stock, err := p.template(ctx, func(terms *client.Terms) {
			terms.Name, terms.Quota, terms.PerUser = "wake-up", 10, 1
		})
		if err != nil {
			return err
		}
		p.env["LAPSE__WAKEUP__TEMPLATE"], p.env["LAPSE__WAKEUP__OFFERS"] = stock, `[{"offer":"grant"}]`
		if err := p.notifiers(ctx, 2); err != nil {
			return err
		}
		hour := p.soon(45 * time.Second)
		names := []string{"reached", "opted-out", "undelivered", "about-to-buy", "bought", "erased"}
		people := make([]person, len(names))
		for i, name := range names {
			people[i] = person{
				id: name, zone: morning(hour), locale: "zh-CN", phone: plantedPhone,
				email: plantedMail + "-" + name + "@example.com", push: plantedPush + "-" + name,
			}
		}
		if err := p.profiles(ctx, people); err != nil {
			return err
		}
		if err := p.tellOf(ctx); err != nil {
			return err
		}
		_, err = p.grant(ctx, template, len(names), func(i int, g *client.Grant) {
			end := hour.Add(day)
			g.UserID, g.ExpiresAt = names[i], &end
		})
		if err != nil {
			return err
		}
		w.cfg.View.Step("the hour comes")
		if err := lifecycle.Sleep(ctx, hour.Add(5*time.Second).Sub(p.Now())); err != nil {
			return err
		}
		if err := p.settledAll(ctx, time.Minute); err != nil {
			return err
		}
		if err := p.undelivered(ctx); err != nil {
			return err
		}
		if err := p.judgeUsers(ctx, stock); err != nil {
			return err
		}
		return p.judgePrivacy(ctx)
	})
}

// tellOf says what the users did and decided.
func (p *post) tellOf(ctx context.Context) error {
	now := p.Now()
	for _, seen := range []struct {
		what, user string
		ago        time.Duration
	}{
		{"cart", "about-to-buy", time.Hour},
		{"cart", "bought", 2 * time.Hour},
		{"order", "bought", time.Hour},
	} {
		if err := p.seen(ctx, seen.what, seen.user, now.Add(-seen.ago)); err != nil {
			return err
		}
	}
	err := p.receipts().Post(ctx, "/v1/optouts", map[string]any{"optouts": []map[string]any{
		{"user_id": "opted-out", "channel": "push", "out": true, "at": now.UTC().Format(time.RFC3339)},
		{"user_id": "opted-out", "channel": "email", "out": true, "at": now.UTC().Format(time.RFC3339)},
	}})
	if err != nil {
		return err
	}
	m, err := p.userEvent("deleted", 0, map[string]any{"user_id": "erased", "at": now.UTC().Format(time.RFC3339Nano)})
	if err != nil {
		return err
	}
	if err := p.Publish(ctx, m); err != nil {
		return err
	}
	return p.counted(ctx, "erased", "SELECT COUNT(*) FROM user_profile WHERE deleted_at IS NOT NULL", 1, time.Minute)
}

func (p *post) receipts() receive.Receipts {
	return receive.Receipts{URL: p.url, KeyID: providerKey, Key: providerSecret, Now: p.Now}
}

// undelivered lets the provider say that a push did not arrive, twice, and waits for the e-mail in its place.
func (p *post) undelivered(ctx context.Context) error {
	p.w.cfg.View.Step("a receipt says that a push did not arrive")
	id := ""
	for _, a := range p.push.Arrivals() {
		if a.UserID == "undelivered" {
			id = a.NoticeID
		}
	}
	for range 2 {
		err := p.receipts().Post(ctx, "/v1/receipts", map[string]any{"receipts": []map[string]any{
			{"notice_id": id, "status": "failed", "reason": "device_unknown", "at": p.Now().UTC().Format(time.RFC3339)},
		}})
		if err != nil {
			return err
		}
	}
	if err := lifecycle.Sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	return p.settledAll(ctx, time.Minute)
}

func (p *post) judgeUsers(ctx context.Context, stock string) error {
	t := p.t
	letters := make(map[string]int)
	for _, l := range p.mail.Letters() {
		letters[strings.Join(l.To, ",")]++
	}
	want(t, "letters", len(p.mail.Letters()), Equal, 1)
	want(t, "letter_in_place_of_the_push", letters[plantedMail+"-undelivered@example.com"], Equal, 1)
	pushed := make(map[string]int)
	chinese := 0
	for _, a := range p.push.Arrivals() {
		pushed[a.UserID]++
		if a.Locale == "zh-CN" {
			chinese++
		}
	}
	for user, n := range map[string]int{"reached": 1, "opted-out": 0, "undelivered": 1, "about-to-buy": 1, "bought": 1, "erased": 0} {
		want(t, "push_of_"+user, pushed[user], Equal, n)
	}
	want(t, "push_in_chinese", chinese, Equal, 4)
	for name, query := range map[string]string{
		"opt_outs_recorded":       "SELECT COUNT(*) FROM notice WHERE user_id = 'opted-out' AND state = 'suppressed' AND reason = 'opt_out'",
		"push_recorded_as_failed": "SELECT COUNT(*) FROM notice WHERE user_id = 'undelivered' AND channel = 'push' AND state = 'failed'",
	} {
		n, err := countIn(ctx, p.DB(), query)
		if err != nil {
			return err
		}
		want(t, name, n, AtLeast, 1)
	}
	granted, err := countIn(ctx, p.DB(), "SELECT COUNT(*) FROM coupon WHERE template_id = ?", stock)
	if err != nil {
		return err
	}
	want(t, "wake_up_grants", granted, Equal, 1)
	his, err := countIn(ctx, p.DB(), "SELECT COUNT(*) FROM coupon WHERE template_id = ? AND user_id = 'about-to-buy'", stock)
	if err != nil {
		return err
	}
	want(t, "wake_up_grants_of_who_was_about_to_buy", his, Equal, 1)
	return nil
}

// judgePrivacy looks for the planted addresses in logs, metrics and every column that holds text.
func (p *post) judgePrivacy(ctx context.Context) error {
	needles := []string{plantedMail, plantedPhone, plantedPhone[1:], plantedPush}
	found := 0
	for _, worker := range []string{demo.Publisher, demo.Expirer, notifierName(1), notifierName(2)} {
		log, err := os.ReadFile(p.Fleet().LogFile(worker))
		if err != nil {
			return fmt.Errorf("reading a log: %w", err)
		}
		metrics, err := p.metrics(ctx, worker)
		if err != nil {
			return err
		}
		for _, needle := range needles {
			found += bytes.Count(log, []byte(needle)) + bytes.Count(metrics, []byte(needle))
		}
	}
	want(p.t, "addresses_in_logs_and_metrics", found, Equal, 0)
	var columns [][2]string
	err := p.read(ctx, `SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE()
		AND DATA_TYPE IN ('char','varchar','binary','varbinary','blob','text','longtext','mediumtext','json')`, func(r *sql.Rows) error {
		var c [2]string
		err := r.Scan(&c[0], &c[1])
		columns = append(columns, c)
		return err
	})
	if err != nil {
		return err
	}
	stored := 0
	for _, c := range columns {
		for _, needle := range needles {
			n, err := countIn(ctx, p.DB(), "SELECT COUNT(*) FROM `"+c[0]+"` WHERE INSTR(`"+c[1]+"`, ?) > 0", []byte(needle))
			if err != nil {
				return err
			}
			stored += n
		}
	}
	want(p.t, "columns_searched", len(columns), AtLeast, 50)
	want(p.t, "addresses_in_the_database", stored, Equal, 0)
	sealed, err := countIn(ctx, p.DB(), "SELECT COUNT(*) FROM user_profile WHERE addresses <> ''")
	if err != nil {
		return err
	}
	want(p.t, "sealed_addresses", sealed, Equal, 5)
	return nil
}

func (p *post) metrics(ctx context.Context, worker string) ([]byte, error) {
	ports, err := p.Fleet().Ports(worker)
	if err != nil {
		return nil, err
	}
	at := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(ports["admin"])) + "/metrics"
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, fmt.Errorf("asking for metrics: %w", err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking for metrics: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err != nil {
		return nil, fmt.Errorf("reading metrics: %w", err)
	}
	return body, nil
}
