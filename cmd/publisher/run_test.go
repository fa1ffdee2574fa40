package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/telemetry"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTheAPIDoesNotNeedTheBroker: with no broker there at all, the publisher is ready, writes its ports, grants, and
// redeems; told to stop, it stops.
func TestTheAPIDoesNotNeedTheBroker(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	ports := filepath.Join(t.TempDir(), "ports.json")
	var log logs
	ctx, stop := context.WithCancel(t.Context())
	exit := make(chan int, 1)
	go func() {
		exit <- run(ctx, config.Process{Args: []string{"-ports-file", ports}, Stdout: io.Discard, Stderr: &log, Environ: []string{
			"LAPSE__INSTALLATION=test", "LAPSE__ADMIN__ADDRESS=127.0.0.1:0", "LAPSE__API__ADDRESS=127.0.0.1:0",
			"LAPSE__BROKER__URL=amqp://nobody:nothing@127.0.0.1:1/", "LAPSE__BROKER__MANAGEMENT_URL=http://127.0.0.1:1/",
			"LAPSE__DATABASE__ADDRESS=" + db.Config.Address, "LAPSE__DATABASE__USER=" + db.Config.User,
			"LAPSE__DATABASE__PASSWORD=" + db.Config.Password.Reveal(), "LAPSE__DATABASE__NAME=" + db.Config.Name, "LAPSE__DATABASE__MIGRATE=auto",
			"LAPSE__API__TOKENS=[{name: shop, hash: " + api.HashToken("s3cret") + ", scopes: [ops, issue, order]}]",
		}})
	}()
	var at map[string]int
	testenv.Wait(t, "the API's port", func() bool {
		at, _ = telemetry.ReadPorts(ports)
		return at["api"] != 0
	})
	require.NotZero(t, at["admin"])
	transport := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	ask := func(method, url, body string) (int, map[string]any) {
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer s3cret")
		res, err := client.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		var out map[string]any
		require.NoError(t, json.NewDecoder(res.Body).Decode(&out))
		return res.StatusCode, out
	}
	testenv.Wait(t, "it is ready", func() bool {
		status, _ := ask(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", at["admin"]), "")
		return status == http.StatusOK
	})
	v1 := fmt.Sprintf("http://127.0.0.1:%d/v1", at["api"])
	status, template := ask(http.MethodPost, v1+"/templates", `{"name":"t","rule":{"kind":"after","after":"1h"},"value":500,"currency":"CNY","reason":"r"}`)
	require.Equal(t, http.StatusCreated, status, template)
	status, granted := ask(http.MethodPost, v1+"/grants", fmt.Sprintf(`{"grants":[{"grant_key":"k","template_id":%q,"user_id":"u"}]}`, template["template_id"]))
	require.Equal(t, http.StatusOK, status, granted)
	id := granted["results"].([]any)[0].(map[string]any)["coupon_id"]
	status, redeemed := ask(http.MethodPost, v1+"/orders/o/redeem", fmt.Sprintf(`{"user_id":"u","coupon_ids":[%q]}`, id))
	require.Equal(t, http.StatusOK, status, redeemed)

	stop()
	require.Zero(t, <-exit, "%s", log.text())
	require.NotContains(t, log.text(), "s3cret")
}

type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logs) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
