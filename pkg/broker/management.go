package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lapsehq/lapse/pkg/ladder"
)

const maxManagementAnswer = 64 << 20 // bytes

// PolicyError says that a policy makes the broker drop or release messages of ours
// early. Waiting messages would be lost or early without a trace.
type PolicyError struct {
	Policy string // with "operator policy" before the name if it is one
	Queue  string
	Key    string // expires, max-length, max-length-bytes, message-ttl
	Value  string
}

func (e *PolicyError) Error() string {
	return fmt.Sprintf("%s sets %s to %s on queue %s: messages would be lost or early", e.Policy, e.Key, e.Value, e.Queue)
}

type policy struct {
	Name       string         `json:"name"`
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Priority   int            `json:"priority"`
	Definition map[string]any `json:"definition"`
}

// CheckPolicies asks the management API whether a policy in force sets
// expires, max-length, max-length-bytes or a lower message-ttl on a queue of
// the plan: a *PolicyError for each. Without a management URL it does nothing.
func (c *Client) CheckPolicies(ctx context.Context, plan ladder.Plan) error {
	if c.cfg.ManagementURL.Reveal() == "" {
		return nil
	}
	var errs []error
	for _, kind := range []struct{ path, word string }{{"policies", "policy"}, {"operator-policies", "operator policy"}} {
		var list []policy
		if err := c.manage(ctx, "/api/"+kind.path+"/"+url.PathEscape(c.vhost()), &list); err != nil {
			return fmt.Errorf("reading the policies of the broker: %w", err)
		}
		errs = append(errs, judge(kind.word, list, plan.Queues))
	}
	return errors.Join(errs...)
}

// judge finds, for each queue, the policy in force (the matching one of the
// highest priority) and says what is wrong with it.
func judge(word string, list []policy, queues []ladder.Queue) error {
	type compiled struct {
		policy
		match *regexp.Regexp
	}
	var (
		errs     []error
		policies []compiled
	)
	for _, p := range list {
		switch p.ApplyTo {
		case "exchanges", "streams", "classic_queues":
			continue
		}
		match, err := regexp.Compile(p.Pattern)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: cannot tell which queues its pattern %q means: %w", word, p.Name, p.Pattern, err))
			continue
		}
		policies = append(policies, compiled{p, match})
	}
	for _, q := range queues {
		var inForce *compiled
		for i := range policies {
			p := &policies[i]
			if p.match.MatchString(q.Name) && (inForce == nil || p.Priority > inForce.Priority) {
				inForce = p
			}
		}
		if inForce == nil {
			continue
		}
		for _, key := range []string{"expires", "max-length", "max-length-bytes", "message-ttl"} {
			v, set := inForce.Definition[key]
			if !set || (key == "message-ttl" && harmless(v, q)) {
				continue
			}
			errs = append(errs, &PolicyError{Policy: word + " " + inForce.Name, Queue: q.Name, Key: key, Value: fmt.Sprint(v)})
		}
	}
	return errors.Join(errs...)
}

// harmless: the lower of policy and queue TTL holds.
func harmless(v any, q ladder.Queue) bool {
	ms, ok := v.(float64)
	return ok && q.TTL > 0 && ms >= float64(q.TTL.Milliseconds())
}

// verifyBindings compares with the vhost's list of bindings.
func (c *Client) verifyBindings(ctx context.Context, plan ladder.Plan) error {
	there, err := c.bindings(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, b := range plan.Bindings {
		if !there[b] {
			errs = append(errs, &MissingError{Kind: "binding", Name: Describe(b)})
		}
	}
	return errors.Join(errs...)
}

// bindings are those of the vhost.
func (c *Client) bindings(ctx context.Context) (map[ladder.Binding]bool, error) {
	var list []struct {
		Source      string `json:"source"`
		Destination string `json:"destination"`
		Type        string `json:"destination_type"`
		Key         string `json:"routing_key"`
	}
	if err := c.manage(ctx, "/api/bindings/"+url.PathEscape(c.vhost()), &list); err != nil {
		return nil, fmt.Errorf("reading the bindings of the broker: %w", err)
	}
	there := make(map[ladder.Binding]bool, len(list))
	for _, b := range list {
		there[ladder.Binding{Source: b.Source, Destination: b.Destination, ToExchange: b.Type == "exchange", Key: b.Key}] = true
	}
	return there, nil
}

func (c *Client) vhost() string {
	if c.cfg.Vhost != "" {
		return c.cfg.Vhost
	}
	now, err := c.cfg.URL.Current()
	if err != nil {
		now = c.cfg.URL // the vhost will hardly be another
	}
	uri, err := amqp.ParseURI(now.Reveal())
	if err != nil { // Validate has let it pass
		return "/"
	}
	return uri.Vhost
}

func (c *Client) manage(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	now, err := c.cfg.ManagementURL.Current()
	if err != nil {
		return fmt.Errorf("management_url: %w", err)
	}
	base, err := url.Parse(now.Reveal())
	if err != nil {
		return errors.New("management_url cannot be read")
	}
	user := base.User
	base.User = nil // or errors would show the password
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	if base.Scheme == "https" {
		if transport.TLSClientConfig, err = c.cfg.TLS.Client(base.Hostname()); err != nil {
			return fmt.Errorf("tls.%w", err)
		}
	}
	hosts := c.cfg.ManagementAddresses
	if len(hosts) == 0 {
		hosts = []string{base.Host}
	}
	var away []error
	for _, host := range hosts {
		base.Host = host
		at, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout/time.Duration(len(hosts)))
		reached, err := get(at, transport, base, user, path, into)
		cancel()
		if reached || err == nil {
			return err
		}
		away = append(away, err)
	}
	return errors.Join(away...)
}

// get reads one answer. reached is false if nobody was there to give it.
func get(ctx context.Context, transport *http.Transport, base *url.URL, user *url.Userinfo, path string, into any) (reached bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base.String(), "/")+path, nil)
	if err != nil {
		return true, err
	}
	if user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = res.Body.Close() }()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return true, fmt.Errorf("the management API refuses the user of management_url, its password, or its lack of a tag: GET %s: %s", path, res.Status)
	default:
		return true, fmt.Errorf("GET %s: %s", path, res.Status)
	}
	return true, json.NewDecoder(io.LimitReader(res.Body, maxManagementAnswer)).Decode(into)
}
