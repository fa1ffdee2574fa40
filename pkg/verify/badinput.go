package verify

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// badInput sends what is wrong to every entrance of a running installation, and counts all rows before and after.
func (w *walk) badInput(ctx context.Context, t *tally) error {
	var messages, programs outcome
	var changed map[string]int
	cfg := w.base(t, fewCoupons, 8*time.Second)
	cfg.Waiting, cfg.Allow.Refusals = 0, true
	cfg.During = func(ctx context.Context, s *demo.Stage) error {
		// Coupons that expire meanwhile change rows, too.
		if err := expired(ctx, s, fewCoupons); err != nil {
			return err
		}
		before, err := rowCounts(ctx, s.DB())
		if err != nil {
			return err
		}
		if messages, err = sendBad(ctx, s); err != nil {
			return err
		}
		if programs, err = w.callBadly(ctx, s); err != nil {
			return err
		}
		after, err := rowCounts(ctx, s.DB())
		if err != nil {
			return err
		}
		changed = make(map[string]int)
		for table, n := range after {
			if n != before[table] {
				changed[table] = n - before[table]
			}
		}
		return w.mixed(ctx, s)
	}
	r, err := w.run(ctx, cfg)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		outcome
	}{{"messages", messages}, {"programs", programs}} {
		for _, miss := range part.misses {
			cfg.View.Step("amiss: " + miss)
		}
		want(t, part.name+"_sent", part.sent, AtLeast, 1)
		want(t, part.name+"_answered", part.answered, Equal, part.sent)
		want(t, part.name+"_with_field_value_reason", part.right, Equal, part.sent)
	}
	for _, table := range slices.Sorted(maps.Keys(changed)) {
		cfg.View.Step(fmt.Sprintf("amiss: table %s has %+d rows", table, changed[table]))
	}
	want(t, "tables_changed", len(changed), Equal, 0)
	want(t, "good_members_granted", r.Report.Waiting, Equal, goodMembers)
	walked(t, "", &r.Report, r.Failures)
	want(t, "notices", r.Report.Notices, Equal, r.Report.Users)
	return nil
}

// outcome of sending what is wrong.
type outcome struct {
	sent, answered, right int
	misses                []string
}

// judge holds an answer against what it must say.
func (o *outcome) judge(name, answer string, says []string) {
	o.answered++
	for _, part := range says {
		if !strings.Contains(answer, part) {
			o.misses = append(o.misses, fmt.Sprintf("%s: the answer does not say %q: %s", name, part, answer))
			return
		}
	}
	o.right++
}

func expired(ctx context.Context, s *demo.Stage, n int) error {
	limit, cancel := context.WithTimeout(ctx, s.Last().Sub(s.Now())+drainFor)
	defer cancel()
	err := until(limit, func() (bool, error) {
		have, err := countIn(limit, s.DB(), expiredQuery)
		return have >= n, err
	})
	if err != nil {
		return fmt.Errorf("waiting for the ends: %w", err)
	}
	// The notices of the same coupons close after the last end.
	return drained(ctx, s.DB())
}

// rowCounts counts the rows of what a bad grant could have half-written.
func rowCounts(ctx context.Context, db *sql.DB) (map[string]int, error) {
	counts := make(map[string]int)
	for _, table := range []string{"coupon", "coupon_history", "grant_key", "user_quota", "coupon_template", "template_stock", "outbox_parked"} {
		n, err := countIn(ctx, db, "SELECT COUNT(*) FROM "+table)
		if err != nil {
			return nil, err
		}
		counts[table] = n
	}
	n, err := countIn(ctx, db, "SELECT COALESCE(SUM(taken), 0) FROM template_stock")
	counts["template_stock.taken"] = n
	return counts, err
}

// answers are what came back, by message id.
type answers struct {
	mu sync.Mutex
	by map[string]string
}

func (a *answers) put(id, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.by[id] = text
}

func (a *answers) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.by)
}

// sendBad publishes bad messages and gathers what was parked, with its reason, and what was refused, with its event.
func sendBad(ctx context.Context, s *demo.Stage) (outcome, error) {
	cases := badMessages(s)
	got := &answers{by: make(map[string]string)}
	client, err := s.Client()
	if err != nil {
		return outcome{}, err
	}
	tailing, stop := context.WithCancel(ctx)
	bound, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- client.Tail(tailing, s.Ladder().Events(), []string{event.KeyRefused}, func() { close(bound) }, func(d broker.Delivery) error {
			var e struct {
				Data struct {
					EventID string `json:"event_id"`
				} `json:"data"`
			}
			if err := json.Unmarshal(d.Body, &e); err != nil {
				return fmt.Errorf("a refused event: %w", err)
			}
			got.put(e.Data.EventID, string(d.Body))
			return nil
		})
	}()
	defer func() { stop(); <-ended }() //nolint:errcheck // it ends because it is stopped
	select {
	case <-bound:
	case err := <-ended:
		ended <- err
		return outcome{}, err
	}
	messages := make([]broker.Message, len(cases))
	for i, c := range cases {
		messages[i] = c.message
	}
	if err := s.Publish(ctx, messages...); err != nil {
		return outcome{}, err
	}
	limit, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	err = until(limit, func() (bool, error) {
		_, err := client.Take(limit, s.Ladder().Parked(), len(cases), func(d broker.Delivery) error {
			reason, _ := d.Headers[broker.HeaderReason].(string)
			got.put(d.MessageID, reason)
			return nil
		})
		return got.len() >= len(cases), err
	})
	if err != nil && (ctx.Err() != nil || limit.Err() == nil) {
		return outcome{}, err
	}
	o := outcome{sent: len(cases)}
	for _, c := range cases {
		got.mu.Lock()
		answer, ok := got.by[c.message.ID]
		got.mu.Unlock()
		if !ok {
			o.misses = append(o.misses, c.name+": no answer")
			continue
		}
		o.judge(c.name, answer, c.says)
	}
	return o, nil
}

// badMessage is a message that must be parked or refused, and what the answer must say: field, value, reason.
type badMessage struct {
	name    string
	message broker.Message
	says    []string
}

func badMessages(s *demo.Stage) []badMessage {
	template := fmt.Sprint(s.Template())
	past := s.Now().Add(-time.Hour).Truncate(time.Second).Format(time.RFC3339)
	long := strings.Repeat("x", 129)
	grant := func(fields string) string {
		return `{"grant_key":"bad","template_id":"` + template + `","user_id":"bad"` + fields + `}`
	}
	cloud := func(attributes, data string) string {
		return `{"specversion":"1.0","source":"/verify",` + attributes + `"data":` + data + `}`
	}
	var cases []badMessage
	add := func(exchange, key, body string, says ...string) {
		id := fmt.Sprintf("bad-%02d", len(cases)+1)
		cases = append(cases, badMessage{
			name:    body[:min(len(body), 60)],
			message: broker.Message{Exchange: exchange, Key: key, ID: id, Body: []byte(body), Mandatory: true},
			says:    says,
		})
	}
	for _, c := range [][]string{
		{`{"grant_key":"bad`, "malformed", "byte"},
		{`[1]`, "body", "[1]", "must be a JSON object"},
		{cloud(`"id":"bad-type","type":"coupon.gift.v1",`, grant("")), "type", "coupon.gift.v1"},
		{cloud(`"id":"bad-version","type":"coupon.grant.v2",`, grant("")), "type", "coupon.grant.v2"},
		{`{"template_id":"` + template + `","user_id":"bad"}`, "grant_key", "is required"},
		{`{"grant_key":7,"template_id":"` + template + `","user_id":"bad"}`, "grant_key", "must be a string", "7"},
		{`{"grant_key":"` + long + `","template_id":"` + template + `","user_id":"bad"}`, "grant_key", "at most 128 bytes", "xxx"},
		{`{"grant_key":"a\u0000b","template_id":"` + template + `","user_id":"bad"}`, "grant_key", "control characters", `a\u0000b`},
		{`{"grant_key":"bad","template_id":"0","user_id":"bad"}`, "template_id", "positive decimal integer", `"0"`},
		{`{"grant_key":"bad","template_id":"seven","user_id":"bad"}`, "template_id", "positive decimal integer", `"seven"`},
		{`{"grant_key":"bad","template_id":"` + template + `","user_id":""}`, "user_id", "must not be empty", `""`},
		{`{"grant_key":"","template_id":"x","user_id":9}`, "grant_key", "template_id", `"x"`, "user_id", "9"},
		{grant(`,"batch_id":["b"]`), "batch_id", "must be a string", `["b"]`},
		{grant(`,"expires_at":"tomorrow"`), "expires_at", "RFC 3339 with a zone", `"tomorrow"`},
		{grant(`,"expires_at":1893456000`), "expires_at", "RFC 3339 with a zone", "1893456000"},
		{grant(`,"valid_from":"2026-11-01T00:00:00"`), "valid_from", "RFC 3339 with a zone", `"2026-11-01T00:00:00"`},
		{`{"grants":"all"}`, "grants", "must be an array", `"all"`},
		{`{"grants":[]}`, "grants", "between 1 and 1000 members"},
		{`{"grants":[7]}`, "grants[0]", "must be a JSON object", "7"},
		{`{"grants":[` + grant(`,"expires_at":""`) + `,` + grant(`,"issuer":{}`) + `]}`, "grants[0].expires_at", `""`, "grants[1].issuer", "{}"},
		{`{"grant_key":"bad-template","template_id":"4000000000","user_id":"bad"}`, "template_not_found", "template_id", "4000000000"},
		{`{"grant_key":"bad-past","template_id":"` + template + `","user_id":"bad","expires_at":"` + past + `"}`, "already_ended", "expires_at", past},
		{`{"grant_key":"bad-far","template_id":"` + template + `","user_id":"bad","expires_at":"2099-01-01T00:00:00Z"}`, "invalid", "expires_at", "2099-01-01T00:00:00Z"},
		{
			`{"grant_key":"demo-0000001","template_id":"` + template + `","user_id":"somebody else"}`,
			"grant_key_conflict", "grant_key", "known with other content",
		},
	} {
		add(s.Ladder().Issuance(), event.KeyGrant, c[0], c[1:]...)
	}
	due := s.Ladder().Route(0, ladder.Expire, ladder.Exact, 0)
	trigger := func(v, kind, id, at string) string {
		return fmt.Sprintf(`{"v":%s,"kind":%q,"coupon_id":%q,"at":%q,"id":"v1.1","origin":"ladder","attempt":0}`, v, kind, id, at)
	}
	for _, c := range [][]string{
		{`ring`, "not a trigger", "malformed"},
		{trigger("2", "expire", "1", past), "v", "must be 1", "2"},
		{trigger("1", "ring", "1", past), "kind", "expire or unlock", `"ring"`},
		{trigger("1", "expire", "0", past), "coupon_id", `"0"`},
		{trigger("1", "expire", "1", "now"), "at", "RFC 3339", `"now"`},
	} {
		add(due.Exchange, due.Key, c[0], c[1:]...)
	}
	return cases
}

const goodMembers = 2

// mixed sends an event of which one member is bad: the others are granted.
func (w *walk) mixed(ctx context.Context, s *demo.Stage) error {
	end := s.Now().Add(time.Hour).Truncate(time.Second)
	member := func(key, end string) string {
		return fmt.Sprintf(`{"grant_key":%q,"template_id":"%d","user_id":%q,"expires_at":%q}`, key, s.Template(), key, end)
	}
	asks := make([]audit.Ask, goodMembers)
	members := []string{member("mixed-bad", "soon")}
	for i := range asks {
		key := fmt.Sprintf("mixed-%d", i)
		asks[i] = audit.Ask{Key: key, User: key, End: end, Waiting: true}
		members = append(members, member(key, end.Format(time.RFC3339)))
	}
	s.Expect(asks...)
	err := s.Publish(ctx, broker.Message{
		Exchange: s.Ladder().Issuance(), Key: event.KeyGrant, ID: "mixed", Mandatory: true,
		Body: []byte(`{"grants":[` + strings.Join(members, ",") + `]}`),
	})
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	err = until(limit, func() (bool, error) {
		n, err := countIn(limit, s.DB(), "SELECT COUNT(*) FROM grant_key WHERE grant_key LIKE 'mixed-%'")
		return n >= goodMembers, err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil // the audit misses them
	}
	return err
}
