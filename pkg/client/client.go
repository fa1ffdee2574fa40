package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Config says where Lapse is and how patient the client is. Zero values are the defaults.
type Config struct {
	URL   string // such as http://lapse:8080; /v1 is added
	Token string // the bearer token
	Actor string // who acts, beside the token's name, in the coupon's history (X-Actor); may be empty

	Attempts  int           // of one call, the first included; default 4
	Backoff   time.Duration // before the second attempt, doubled for each further; default 100ms
	MaxWait   time.Duration // between two attempts, even if the server asks for more; default 5s
	Timeout   time.Duration // of one attempt; default 10s
	MaxAnswer int64         // bytes of an answer; default 16 MiB
	UserAgent string        // put before the client's own

	Transport http.RoundTripper // default: one of its own, with MaxConns connections kept
	MaxConns  int               // of the default transport; default 64
}

// Defaults and bounds.
const (
	defaultAttempts  = 4
	defaultBackoff   = 100 * time.Millisecond
	defaultMaxWait   = 5 * time.Second
	defaultTimeout   = 10 * time.Second
	defaultMaxAnswer = 16 << 20
	defaultMaxConns  = 64
	ownUserAgent     = "lapse-go/1"
	maxProblem       = 1 << 20 // bytes read of an answer that is no success
)

// Client calls the API. Safe for concurrent use.
type Client struct {
	cfg  Config
	base *url.URL
	http *http.Client
}

// New checks the configuration; it calls nobody.
func New(cfg Config) (*Client, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" || base.RawQuery != "" || base.User != nil {
		return nil, errors.New("lapse client: URL must be http:// or https:// with a host, without user or query")
	}
	if strings.ContainsAny(cfg.Token, "\r\n") || strings.ContainsAny(cfg.Actor, "\r\n") {
		return nil, errors.New("lapse client: Token and Actor must be one line")
	}
	base.Path = strings.TrimRight(base.Path, "/") + "/v1"
	or(&cfg.Attempts, defaultAttempts)
	or(&cfg.Backoff, defaultBackoff)
	or(&cfg.MaxWait, defaultMaxWait)
	or(&cfg.Timeout, defaultTimeout)
	or(&cfg.MaxAnswer, defaultMaxAnswer)
	or(&cfg.MaxConns, defaultMaxConns)
	cfg.UserAgent = strings.TrimSpace(cfg.UserAgent + " " + ownUserAgent)
	if cfg.Transport == nil {
		cfg.Transport = transport(cfg)
	}
	return &Client{cfg: cfg, base: base, http: &http.Client{
		Transport:     cfg.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func or[T int | int64 | time.Duration](value *T, preset T) {
	if *value <= 0 {
		*value = preset
	}
}

func transport(cfg Config) *http.Transport {
	const dial, idle = 3 * time.Second, 50 * time.Second
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dial, KeepAlive: idle}).DialContext,
		MaxIdleConns:          cfg.MaxConns,
		MaxIdleConnsPerHost:   cfg.MaxConns,
		IdleConnTimeout:       idle,
		TLSHandshakeTimeout:   dial,
		ResponseHeaderTimeout: cfg.Timeout,
		ForceAttemptHTTP2:     true,
	}
}

// Close closes the connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// String shows where it calls, never with what token.
func (c *Client) String() string { return "lapse client of " + c.base.String() }

// Format hides the token from every verb of fmt.
func (c *Client) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

type keyOfContext struct{}

// WithIdempotencyKey gives the mutations called with the context this key: at most one call for each key, the same again only to
// repeat it. The answer to it is kept for a day, and given again byte for byte. For a caller who must repeat a call after a
// restart of its own, of what the API would not know again.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyOfContext{}, key)
}

// call is one logical call.
type call struct {
	method  string
	path    []string // segments, escaped here
	query   url.Values
	body    any
	into    any                   // decoded from the answer
	stream  func(io.Reader) error // instead of into
	mutates bool
	known   bool // the API knows a repeat by itself
}

// do makes the call, repeated as far as that is safe.
func (c *Client) do(ctx context.Context, call call) error {
	body, err := encode(call.body)
	if err != nil {
		return fmt.Errorf("lapse client: %s %s: %w", call.method, strings.Join(call.path, "/"), err)
	}
	key := ""
	if call.mutates {
		if key, err = idempotencyKey(ctx, call.known); err != nil {
			return err
		}
	}
	for attempt := 1; ; attempt++ {
		err = c.attempt(ctx, call, body, key)
		if err == nil {
			return nil
		}
		wait, again := c.again(err, attempt)
		if !again || ctx.Err() != nil {
			break
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
			break // the answer in hand says more than "deadline exceeded"
		}
		if werr := pause(ctx, wait); werr != nil {
			err = fmt.Errorf("%w; then %w", err, werr)
			break
		}
	}
	return fmt.Errorf("%s %s: %w", call.method, c.at(call).Path, err)
}

func encode(body any) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// idempotencyKey is the caller's, else a random one, else none: the API knows an order's verbs again by order and coupon and
// grants by their keys, and a key beside that would cost its database two further transactions a call.
func idempotencyKey(ctx context.Context, known bool) (string, error) {
	if key, _ := ctx.Value(keyOfContext{}).(string); key != "" || known {
		return key, nil
	}
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("lapse client: a random key: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// at is the call's address. Every segment is escaped, so that an id can hold a slash.
func (c *Client) at(call call) *url.URL {
	segments := make([]string, len(call.path))
	for i, s := range call.path {
		segments[i] = url.PathEscape(s)
		if s == "." || s == ".." { // else cleaned away on the way
			segments[i] = strings.ReplaceAll(s, ".", "%2E")
		}
	}
	u := *c.base
	u.RawPath = u.EscapedPath() + "/" + strings.Join(segments, "/")
	u.Path += "/" + strings.Join(call.path, "/")
	u.RawQuery = call.query.Encode()
	return &u
}

// attempt asks once.
func (c *Client) attempt(ctx context.Context, call call, body []byte, key string) error {
	if call.stream == nil { // a stream takes its time; the caller's context bounds it
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.Timeout)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, call.method, c.at(call).String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	req.Header.Set("Accept", "application/json, application/problem+json")
	if call.stream != nil {
		req.Header.Set("Accept", "*/*")
	}
	if call.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range map[string]string{"Authorization": bearer(c.cfg.Token), "X-Actor": c.cfg.Actor, "Idempotency-Key": key} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	res, err := c.http.Do(req)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // do names the address
		}
		return &transportError{err}
	}
	defer func() { finish(res.Body); _ = res.Body.Close() }() // read only: nothing to lose
	if res.StatusCode < 200 || res.StatusCode > 299 {
		problem, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
		if err != nil {
			return &transportError{fmt.Errorf("reading the answer %d: %w", res.StatusCode, err)}
		}
		return readError(res, problem, time.Now())
	}
	return c.read(res, call)
}

func bearer(token string) string {
	if token == "" {
		return ""
	}
	return "Bearer " + token
}

func (c *Client) read(res *http.Response, call call) error {
	if call.stream != nil {
		return call.stream(res.Body) // no second attempt: part of it is with the caller already
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, c.cfg.MaxAnswer+1))
	switch {
	case err != nil:
		return &transportError{fmt.Errorf("reading the answer: %w", err)}
	case int64(len(body)) > c.cfg.MaxAnswer:
		return fmt.Errorf("the answer is longer than %d bytes", c.cfg.MaxAnswer)
	case call.into == nil:
		return nil
	}
	if err := json.Unmarshal(body, call.into); err != nil {
		return &transportError{fmt.Errorf("the answer is not Lapse's: %w", err)}
	}
	return nil
}

// finish reads a little of what is left, so that the connection can be used again.
func finish(body io.Reader) {
	const rest = 64 << 10
	_, _ = io.CopyN(io.Discard, body, rest)
}
