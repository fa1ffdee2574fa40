package verify

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// shop is an installation and its customers: the client of its API and an ear for its events.
type shop struct {
	*demo.Installation
	api    *client.Client
	ears   *ears
	t      *tally
	url    string // of the API
	secret string // the token with every scope
	weak   string // a token that may only read
	root   func(do func(*sql.DB) error) error
}

// opening changes what a shop is opened with.
type opening struct {
	ladder func(*ladder.Config)
	env    func(worker string) map[string]string
	logs   string            // added to the name of a failed section's logs
	hear   func(audit.Event) // every event, besides the shop's own ears; nil: nobody
	deaf   bool              // nobody listens: for more coupons than ears can keep. Now is then this process's clock
	// password is what a worker's accounts in both servers have; nil: by chance
	password func(worker string) string
}

const (
	apiConns   = 256 // connections of the client at most
	apiTimeout = 40 * time.Second
)

// open opens a shop for a section, lets it do its work, and removes everything. A worker that dies by itself ends it at once.
func (w *checkout) open(ctx context.Context, t *tally, o opening, do func(ctx context.Context, s *shop) error) (err error) {
	s := &shop{ears: newEars(), t: t, root: w.cfg.asRoot}
	if s.secret, err = secretToken(); err != nil {
		return err
	}
	if s.weak, err = secretToken(); err != nil {
		return err
	}
	w.cfg.View.Step("a database, queues, publisher and expirer")
	s.Installation, err = demo.Install(ctx, demo.InstallationConfig{
		Stack: w.cfg.Stack, Bin: w.cfg.Bin, Ladder: o.ladder, Password: o.password, Deaf: o.deaf,
		Hear: func(e audit.Event) {
			s.ears.hear(e)
			if o.hear != nil {
				o.hear(e)
			}
		},
		Env: func(worker string) map[string]string {
			vars := make(map[string]string)
			if worker == demo.Publisher {
				maps.Copy(vars, s.apiEnv())
			}
			if o.env != nil {
				maps.Copy(vars, o.env(worker))
			}
			return vars
		},
	})
	return w.attend(ctx, t, s, o.logs, err, func(ctx context.Context) error {
		if err := s.dial(); err != nil {
			return err
		}
		defer s.api.Close()
		return do(ctx, s)
	})
}

// attend lets do its work in what was installed, and removes everything. A worker that dies by itself ends it at once.
func (w *checkout) attend(ctx context.Context, t *tally, s *shop, logs string, installed error, do func(context.Context) error) (err error) {
	made := len(t.checks)
	defer func() {
		to := ""
		if (err != nil || missed(t.checks[made:])) && ctx.Err() == nil {
			to = "verify-" + t.section + logs
		}
		kept, rerr := s.Remove(ctx, to)
		if kept != "" {
			w.cfg.View.Step("logs of the workers: " + kept)
		}
		err = errors.Join(err, rerr)
	}()
	if installed != nil {
		return installed
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case err := <-s.Fleet().Died():
			cancel(err)
		case <-working.Done():
		}
	}()
	err = do(working)
	if err != nil && working.Err() != nil {
		err = context.Cause(working)
	}
	cancel(nil)
	<-watched
	return err
}

func missed(checks []Check) bool {
	return slices.ContainsFunc(checks, func(c Check) bool { return !c.OK })
}

func secretToken() (string, error) {
	b := make([]byte, 24)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("a token: %w", err)
	}
	return hex.EncodeToString(b), nil
}

func hashed(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// apiEnv tells the publisher where to serve and whom.
func (s *shop) apiEnv() map[string]string {
	return map[string]string{
		"LAPSE__API__ADDRESS": "127.0.0.1:0",
		"LAPSE__API__TOKENS": fmt.Sprintf(`[{name: verify, hash: %s, scopes: [issue, order, read, ops]}, {name: reader, hash: %s, scopes: [read]}]`,
			hashed(s.secret), hashed(s.weak)),
		"LAPSE__API__LIMITS__ISSUE__PER_SECOND": "0", // what is measured is the database's work, not the brake
		"LAPSE__API__LIMITS__READ__PER_SECOND":  "0",
		"LAPSE__API__LIMITS__OPS__PER_SECOND":   "0",
		"LAPSE__LOG__LEVEL":                     "warn",
	}
}

// dial makes a client of the API where the publisher serves it now.
func (s *shop) dial() (err error) {
	if s.api != nil {
		s.api.Close()
	}
	s.url, s.api, err = s.clientOf(demo.Publisher)
	return err
}

func (s *shop) clientOf(publisher string) (url string, api *client.Client, err error) {
	ports, err := s.Fleet().Ports(publisher)
	if err != nil {
		return "", nil, err
	}
	if ports["api"] == 0 {
		return "", nil, errors.New("the ports file of " + publisher + " names no api")
	}
	url = "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(ports["api"]))
	api, err = client.New(client.Config{
		URL: url, Token: s.secret, Actor: "verify", Attempts: 8, Timeout: apiTimeout,
		Transport: &http.Transport{MaxConnsPerHost: apiConns, MaxIdleConnsPerHost: apiConns, MaxIdleConns: apiConns, IdleConnTimeout: time.Minute},
	})
	return url, api, err
}

// template makes one whose coupons end when each grant says, else as the rule says; nil: a day later.
func (s *shop) template(ctx context.Context, change func(*client.Terms)) (string, error) {
	terms := client.Terms{
		Name: s.t.section, Rule: client.Rule{Kind: "after", After: "24h"}, Value: 500, Currency: "CNY", Precision: "exact", Reason: "verify",
	}
	if change != nil {
		change(&terms)
	}
	t, err := s.api.CreateTemplate(ctx, terms)
	if err != nil {
		return "", err
	}
	return t.TemplateID, nil
}

// grant grants n coupons, each described by describe, and gives their ids in order.
func (s *shop) grant(ctx context.Context, template string, n int, describe func(i int, g *client.Grant)) ([]string, error) {
	ids := make([]string, 0, n)
	for len(ids) < n {
		batch := make([]client.Grant, min(client.MaxGrants, n-len(ids)))
		for k := range batch {
			i := len(ids) + k
			batch[k] = client.Grant{GrantKey: fmt.Sprintf("%s-%s-%06d", s.t.section, template, i), TemplateID: template, UserID: userOf(i)}
			describe(i, &batch[k])
		}
		results, err := s.api.Grants(ctx, batch...)
		if err != nil {
			return nil, err
		}
		for _, r := range results {
			if r.CouponID == "" {
				return nil, fmt.Errorf("grant %s was refused: %s %s", r.GrantKey, r.Code, r.Detail)
			}
			ids = append(ids, r.CouponID)
		}
	}
	return ids, nil
}

func userOf(i int) string { return fmt.Sprintf("user-%06d", i) }

// soon is a whole second, d from now on the database's clock or a little more.
func (s *shop) soon(d time.Duration) time.Time {
	return s.Now().Add(d).Truncate(time.Second).Add(time.Second).UTC()
}

// fate is how a coupon ended.
type fate struct {
	status  int
	cause   string
	at      time.Time // of the first transition to expired
	ends    time.Time
	expired int // transitions to expired
	used    int // transitions to used
}

const fatesQuery = `SELECT c.id, c.status, c.expires_at, h.to_status, h.cause, h.at FROM coupon c
	LEFT JOIN coupon_history h ON h.coupon_id = c.id AND h.to_status IN (3, 4) ORDER BY c.id, h.version`

// fates reads how every coupon of the shop ended.
func (s *shop) fates(ctx context.Context) (map[string]*fate, error) {
	tx, err := s.DB().BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("reading fates: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it only reads
	out := make(map[string]*fate)
	err = each(ctx, tx, fatesQuery, func(r *sql.Rows) error {
		var id string
		var status int
		var ends time.Time
		var to sql.NullInt64
		var cause sql.NullString
		var at sql.NullTime
		if err := r.Scan(&id, &status, &ends, &to, &cause, &at); err != nil {
			return err
		}
		f := out[id]
		if f == nil {
			f = &fate{status: status, ends: ends}
			out[id] = f
		}
		switch to.Int64 {
		case statusUsed:
			f.used++
		case statusExpired:
			if f.expired == 0 {
				f.cause, f.at = cause.String, at.Time
			}
			f.expired++
		}
		return nil
	})
	return out, err
}

// fateTally counts how coupons ended.
type fateTally struct {
	expired  int // that are
	early    int // before their end
	doubled  int // more than once
	swept    int // by the sweep
	lateness []time.Duration
}

// tallyOf counts fates; timed, unless nil, says whose lateness counts.
func tallyOf(fates map[string]*fate, timed func(*fate) bool) (t fateTally) {
	for _, c := range fates {
		if c.status == statusExpired {
			t.expired++
		}
		if c.cause == "sweep" {
			t.swept++
		}
		if c.expired > 1 {
			t.doubled++
		}
		if c.expired == 0 {
			continue
		}
		if c.at.Before(c.ends) {
			t.early++
		}
		if timed == nil || timed(c) {
			t.lateness = append(t.lateness, c.at.Sub(c.ends))
		}
	}
	return t
}

// wants says what holds of coupons that all end, and how late they were.
func (t fateTally) wants(to *tally) {
	want(to, "early", t.early, Equal, 0)
	want(to, "doubled", t.doubled, Equal, 0)
	told(to, "lateness_p50_ms", int(late(t.lateness, 50)))
	told(to, "lateness_max_ms", int(late(t.lateness, 100)))
	told(to, "by_the_sweep", t.swept)
}

// The numbers of the states, as the audit has them.
const (
	statusUnused  = 1
	statusLocked  = 2
	statusUsed    = 3
	statusExpired = 4
)

// settled waits until so many coupons are in one of two states, or limit has passed after the instant.
func (s *shop) settled(ctx context.Context, n int, last time.Time, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, max(0, last.Sub(s.Now()))+limit)
	defer cancel()
	err := until(ctx, func() (bool, error) {
		have, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE status IN (3, 4)")
		return have >= n, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // the checks will say what is amiss
	}
	return err
}

// late is the percentile of what is given, in milliseconds; of nothing, more than any bound.
func late(ds []time.Duration, percent int) float64 {
	if len(ds) == 0 {
		return math.MaxInt32
	}
	slices.Sort(ds)
	i := max(0, (len(ds)*percent+99)/100-1)
	return float64(ds[i].Microseconds()) / second
}

func templateID(template string) (id uint64, err error) {
	if _, err := fmt.Sscan(template, &id); err != nil {
		return 0, fmt.Errorf("a template's id: %w", err)
	}
	return id, nil
}
