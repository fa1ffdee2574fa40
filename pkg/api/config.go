package api

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"time"

	"golang.org/x/text/language"

	"github.com/lapsehq/lapse/pkg/certs"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/secret"
)

// Scope is what a token may do.
type Scope string

// The scopes.
const (
	ScopeIssue Scope = "issue" // grant coupons
	ScopeOrder Scope = "order" // lock, renew, redeem, release, refund
	ScopeRead  Scope = "read"  // wallets, coupons, grants
	ScopeOps   Scope = "ops"   // templates, lists, extend, void
)

// Scopes lists them all.
func Scopes() []Scope { return []Scope{ScopeIssue, ScopeOrder, ScopeRead, ScopeOps} }

// laneProviders is what providers have instead of a scope: no token has it.
const laneProviders Scope = "providers"

// lanes are the scopes and what providers have: each has its own limits.
func lanes() []Scope { return append(Scopes(), laneProviders) }

const minSecret = 16 // bytes of a provider's

// Config of the API.
type Config struct {
	// Address to listen on, "host:port"; an empty host means all interfaces, port 0 a free one. Empty: no API. Default :8080.
	Address string `koanf:"address"`
	// TLS has the server's certificate, and whether clients must have one. Default none: TLS is somebody else's in front of it.
	TLS certs.ServerConfig `koanf:"tls"`
	// Tokens are who may ask for what. None by default: every request is refused.
	Tokens []Token `koanf:"tokens"`
	// Providers are the keys by which gateways for SMS and push sign receipts and opt-outs: name to secret, of 16 bytes at
	// least. Two of a provider while it changes its secret. None by default: every receipt is refused.
	Providers map[string]secret.String `koanf:"providers"`
	// Locale of the texts for readers of notices whose language there is not, or is not known. Default en.
	Locale string `koanf:"locale"`
	// Limits of each scope, and of the providers.
	Limits LimitsConfig `koanf:"limits"`
	// RequestTimeout bounds a request's work, from its headers to its answer. Default 10s.
	RequestTimeout time.Duration `koanf:"request_timeout"`
	// QueueTimeout is how long a request may wait for others of its scope before it is refused as busy. Default 2s.
	QueueTimeout time.Duration `koanf:"queue_timeout"`
	// MaxBody is the largest request body, in bytes. Default 1048576.
	MaxBody int64 `koanf:"max_body"`
	// Page bounds the lists.
	Page PageConfig `koanf:"page"`
	// Gather says how single grants are put together.
	Gather GatherConfig `koanf:"gather"`
	// KeepKeys is how long the answer to an Idempotency-Key is kept. Default 24h.
	KeepKeys time.Duration `koanf:"keep_keys"`
	// Sandbox lets whoever has the scope ops bring the ends of coupons, locks and reminders forward (docs/sandbox.md), for
	// integrators to try things with. Default false: those requests are refused. The publisher takes it only for an installation
	// whose prefix and database say that they are a sandbox's.
	Sandbox bool `koanf:"sandbox"`
}

// Token is a caller. Only the hash of its secret is configured: lapsectl token makes both.
type Token struct {
	// Name of the caller, in history (as actor), in the access log, and as the owner of its idempotency keys. It may stand
	// twice, with different hashes, while a caller changes its secret.
	Name string `koanf:"name"`
	// Hash is the SHA-256 of the secret, in hexadecimal. Anything else may be the secret itself, and is not shown.
	Hash string `koanf:"hash" shown:"hex"`
	// Scopes are any of issue, order, read, ops.
	Scopes []string `koanf:"scopes"`
	// Issuer of the token's grants. Empty: each grant may name its own.
	Issuer string `koanf:"issuer"`
}

// LimitsConfig has the limits of each scope.
type LimitsConfig struct {
	Issue LimitConfig `koanf:"issue"`
	Order LimitConfig `koanf:"order"`
	Read  LimitConfig `koanf:"read"`
	Ops   LimitConfig `koanf:"ops"`
	// Providers: of each key, for receipts and opt-outs.
	Providers LimitConfig `koanf:"providers"`
}

// LimitConfig bounds the requests of one scope.
type LimitConfig struct {
	// PerSecond is the rate of each token; 0: no limit of rate.
	PerSecond float64 `koanf:"per_second"`
	// Burst is how many requests may come at once.
	Burst int `koanf:"burst"`
	// Concurrent is how many requests of all tokens work at the same time: each may take one connection of the database.
	// The sum over the scopes must leave database.max_open some connections for what works beside the API. Transactions that
	// commit together share their writes to disk, so few at a time are slower than many.
	Concurrent int `koanf:"concurrent"`
	// Waiting is how many more may wait for that.
	Waiting int `koanf:"waiting"`
}

// PageConfig bounds the lists.
type PageConfig struct {
	// Default is the number of members of a page if the request does not say. Default 50.
	Default int `koanf:"default"`
	// Most is the greatest number that a request may ask for. Default 200.
	Most int `koanf:"most"`
}

// GatherConfig says how requests for a single grant are put into one transaction.
type GatherConfig struct {
	// Linger is how long the first of them waits for others. Default 5ms.
	Linger time.Duration `koanf:"linger"`
	// Most of them make one transaction. Default 200.
	Most int `koanf:"most"`
	// Waiting is how many may wait at the same time; more are refused as busy. Default 10000.
	Waiting int `koanf:"waiting"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		Address: ":8080", Locale: "en",
		Limits: LimitsConfig{
			Issue:     LimitConfig{PerSecond: 2000, Burst: 4000, Concurrent: 3, Waiting: 500},
			Order:     LimitConfig{Concurrent: 20, Waiting: 2000},
			Read:      LimitConfig{PerSecond: 1000, Burst: 2000, Concurrent: 4, Waiting: 1000},
			Ops:       LimitConfig{PerSecond: 50, Burst: 100, Concurrent: 2, Waiting: 50},
			Providers: LimitConfig{PerSecond: 200, Burst: 400, Concurrent: 2, Waiting: 100},
		},
		RequestTimeout: 10 * time.Second, QueueTimeout: 2 * time.Second, MaxBody: 1 << 20,
		Page:     PageConfig{Default: 50, Most: 200},
		Gather:   GatherConfig{Linger: 5 * time.Millisecond, Most: 200, Waiting: 10_000},
		KeepKeys: 24 * time.Hour,
	}
}

// Connections is how many of the database's connections the API may take at once.
func (c Config) Connections() int {
	n := 0
	for _, s := range lanes() {
		n += c.Limits.of(s).Concurrent
	}
	return n
}

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,39}$`)

// Validate reports every fault, each beginning with its field's name.
func (c Config) Validate() error {
	if c.Address == "" {
		return nil
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, port, err := net.SplitHostPort(c.Address); err != nil {
		bad("address: must be host:port, or empty for no API, got %q", c.Address)
	} else if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		bad("address: the port must be between 0 and 65535, got %q", c.Address)
	}
	errs = append(errs, certs.Below("tls", c.TLS.Validate()))
	errs = append(errs, c.validateTokens()...)
	for key, s := range c.Providers {
		if !namePattern.MatchString(key) {
			bad("providers: a key's name must be 1 to 40 of a-z, 0-9, dot, dash and underscore, got %q", key)
		}
		if n := len(s.Reveal()); n < minSecret {
			bad("providers.%s: the secret must have at least %d bytes, has %d", key, minSecret, n)
		}
	}
	if _, err := language.Parse(c.Locale); err != nil {
		bad("locale: must be a BCP 47 tag, such as zh-CN, got %q", c.Locale)
	}
	for _, s := range lanes() {
		l, at := c.Limits.of(s), "limits."+string(s)
		if !(l.PerSecond >= 0 && l.PerSecond <= 1e6) {
			bad("%s.per_second: must be between 0 (no limit) and 1000000, got %v", at, l.PerSecond)
		}
		if l.PerSecond > 0 && (l.Burst < 1 || l.Burst > 1_000_000) {
			bad("%s.burst: must be between 1 and 1000000, got %d", at, l.Burst)
		}
		if l.Concurrent < 1 || l.Concurrent > 1000 {
			bad("%s.concurrent: must be between 1 and 1000, got %d", at, l.Concurrent)
		}
		if l.Waiting < 0 || l.Waiting > 100_000 {
			bad("%s.waiting: must be between 0 and 100000, got %d", at, l.Waiting)
		}
	}
	between := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			bad("%s: must be between %s and %s, got %s", field, low, high, v)
		}
	}
	between("request_timeout", c.RequestTimeout, 100*time.Millisecond, time.Minute)
	between("queue_timeout", c.QueueTimeout, 10*time.Millisecond, time.Minute)
	between("keep_keys", c.KeepKeys, time.Hour, 30*24*time.Hour)
	if c.MaxBody < 1<<10 || c.MaxBody > 16<<20 {
		bad("max_body: must be between 1024 and 16777216, got %d", c.MaxBody)
	}
	if c.Page.Most < 1 || c.Page.Most > 1000 {
		bad("page.most: must be between 1 and 1000, got %d", c.Page.Most)
	}
	if c.Page.Default < 1 || c.Page.Default > c.Page.Most {
		bad("page.default: must be between 1 and page.most (%d), got %d", c.Page.Most, c.Page.Default)
	}
	between("gather.linger", c.Gather.Linger, 0, 100*time.Millisecond)
	if c.Gather.Most < 1 || c.Gather.Most > maxGrants {
		bad("gather.most: must be between 1 and %d, got %d", maxGrants, c.Gather.Most)
	}
	if c.Gather.Waiting < c.Gather.Most || c.Gather.Waiting > 1_000_000 {
		bad("gather.waiting: must be between gather.most (%d) and 1000000, got %d", c.Gather.Most, c.Gather.Waiting)
	}
	return errors.Join(errs...)
}

func (c Config) validateTokens() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	hashes, first := map[string]int{}, map[string]int{}
	for i, t := range c.Tokens {
		at := fmt.Sprintf("tokens[%d]", i)
		if !namePattern.MatchString(t.Name) {
			bad("%s.name: must be 1 to 40 of a-z, 0-9, dot, dash and underscore, got %q", at, t.Name)
		}
		if sum, err := hex.DecodeString(t.Hash); err != nil || len(sum) != hashSize {
			// What stands here may be the secret itself, by mistake.
			bad("%s.hash: must be the SHA-256 of the secret in 64 hexadecimal digits, got %d characters", at, len(t.Hash))
		} else if k, twice := hashes[string(sum)]; twice {
			bad("%s.hash: is that of tokens[%d] too", at, k)
		} else {
			hashes[string(sum)] = i
		}
		if len(t.Scopes) == 0 {
			bad("%s.scopes: must be some of %v", at, Scopes())
		}
		for _, s := range t.Scopes {
			if !slices.Contains(Scopes(), Scope(s)) {
				bad("%s.scopes: must be some of %v, got %q", at, Scopes(), s)
			}
		}
		if len(t.Issuer) > coupon.MaxText || !printable(t.Issuer) {
			bad("%s.issuer: must have at most %d bytes of UTF-8 without control characters, got %q", at, coupon.MaxText, t.Issuer)
		}
		k, again := first[t.Name]
		if !again {
			first[t.Name] = i
		} else if o := c.Tokens[k]; o.Issuer != t.Issuer || !slices.Equal(o.Scopes, t.Scopes) {
			bad("%s: has the name of tokens[%d], but not its scopes and issuer", at, k)
		}
	}
	return errs
}

func (l LimitsConfig) of(s Scope) LimitConfig {
	switch s {
	case ScopeIssue:
		return l.Issue
	case ScopeOrder:
		return l.Order
	case ScopeRead:
		return l.Read
	case ScopeOps:
		return l.Ops
	case laneProviders:
		return l.Providers
	default:
		return LimitConfig{}
	}
}
