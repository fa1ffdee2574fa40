package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/console"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/expiry"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/parked"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/status"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const (
	reader   = "a reader's token"
	operator = "an operator's token"
	issuer   = "an issuer's token"
)

// site is a console on real servers.
type site struct {
	*testing.T
	db        testenv.Database
	store     *store.Store
	ladder    *ladder.Ladder
	client    *broker.Client
	publisher *broker.Publisher
	page      *console.Console
	url       string
	http      *http.Client
}

func newSite(t *testing.T, change ...func(*console.Config)) *site {
	t.Helper()
	s := &site{T: t, db: testenv.NewDatabase(t)}
	s.store = s.db.Store(t)
	prefix := testenv.Prefix(t)
	lc := ladder.DefaultConfig()
	lc.Prefix = prefix
	var err error
	s.ladder, err = ladder.New(lc)
	require.NoError(t, err)
	bc := broker.DefaultConfig()
	bc.URL = secret.New(os.Getenv("LAPSE__BROKER__URL"))
	s.client, err = broker.New(bc, broker.Options{Role: "console", Plan: ladder.Plan{}})
	require.NoError(t, err)
	s.publisher = s.client.NewPublisher()
	codec, err := event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	cfg := console.DefaultConfig()
	cfg.Every, cfg.Burst = time.Second, 1000
	for _, f := range change {
		f(&cfg)
	}
	s.page, err = console.New(cfg, console.Deps{
		Store: s.store, Publisher: s.publisher, Ready: s.publisher.Ready, Log: zap.NewNop(), Now: time.Now,
		Desk: parked.Desk{DB: s.store, Client: s.client, Ladder: s.ladder, Codec: codec},
		Tokens: []api.Token{
			{Name: "looker", Hash: api.HashToken(reader), Scopes: []string{"read"}},
			{Name: "desk", Hash: api.HashToken(operator), Scopes: []string{"read", "ops"}},
			{Name: "shop", Hash: api.HashToken(issuer), Scopes: []string{"issue", "order"}},
		},
		Queues:       func(ctx context.Context) status.Broker { return status.Queues(ctx, s.client, s.ladder.Plan()) },
		Installation: status.Config{Installation: testenv.Installation, Mechanism: "ladder", Sweep: expiry.DefaultConfig().Sweep},
	})
	require.NoError(t, err)
	server := httptest.NewServer(s.page)
	transport := &http.Transport{DisableKeepAlives: true}
	s.url, s.http = server.URL, &http.Client{Transport: transport, Timeout: time.Minute}
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- s.page.Run(running) }()
	go func() { ended <- s.publisher.Run(running) }()
	t.Cleanup(func() {
		server.Close()
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	})
	return s
}

// ask gives status, headers and body of an answer.
func (s *site) ask(method, path, token, body string) (int, http.Header, []byte) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), method, s.url+console.Path+path, strings.NewReader(body))
	require.NoError(s, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := s.http.Do(req)
	require.NoError(s, err)
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	require.NoError(s, err)
	return res.StatusCode, res.Header, out
}

// get gives the answer to a question that succeeds.
func get[T any](s *site, path string) (out T) {
	s.Helper()
	code, _, body := s.ask(http.MethodGet, "api/"+path, operator, "")
	require.Equal(s, http.StatusOK, code, string(body))
	require.NoError(s, json.Unmarshal(body, &out))
	return out
}

func (s *site) template(name string) uint64 {
	s.Helper()
	id, err := s.store.CreateTemplate(s.Context(), coupon.Template{
		Name: name, Rule: coupon.Rule{Kind: coupon.RuleNever}, Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact}.Defaults(),
		Actor: "a", Reason: "r",
	})
	require.NoError(s, err)
	return id
}

func (s *site) grant(template uint64, user string, end time.Time) uint64 {
	s.Helper()
	out, err := s.store.Issue(s.Context(), []coupon.Grant{{
		Issuer: "shop", Key: fmt.Sprintf("%d:%d", template, time.Now().UnixNano()), TemplateID: template, UserID: user, ExpiresAt: end,
	}})
	require.NoError(s, err)
	require.Empty(s, out[0].Refused)
	return out[0].CouponID
}
