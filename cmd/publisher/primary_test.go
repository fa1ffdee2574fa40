package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/telemetry"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// The primary turns read-only and another server takes over, behind an address that leads new connections to it and leaves those
// there are where they are. The worker is not started again, is unready in between and says why, and every coupon that was answered
// for is there. Servers of the test's own: nobody else's turns read-only.
func TestAnotherServerBecomesThePrimary(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	first, second := ownDatabase(t, 1), ownDatabase(t, 2)
	grants, err := store.Grants(store.RolePublisher, "lapse", "publisher", "%")
	require.NoError(t, err)
	migrate, err := store.Grants(store.RoleMigrate, "lapse", "migrate", "%")
	require.NoError(t, err)
	statement := func(d *rig.Database, text string) {
		_, err := d.Root().ExecContext(ctx, text)
		require.NoError(t, err)
	}
	statement(first, "CREATE DATABASE lapse CHARACTER SET utf8mb4 COLLATE utf8mb4_bin; CREATE USER migrate@'%' IDENTIFIED BY 'm'; CREATE USER publisher@'%' IDENTIFIED BY 'p'")
	statement(first, strings.Join(migrate, ";"))
	schema := store.DefaultConfig()
	schema.Address, schema.User, schema.Password, schema.Name = first.Address, "migrate", secret.New("m"), "lapse"
	opened, err := store.OpenSchema(ctx, schema, testenv.Log(t))
	require.NoError(t, err)
	require.NoError(t, opened.Up(ctx))
	require.NoError(t, opened.Close())
	statement(first, strings.Join(grants, ";"))
	require.NoError(t, second.Follow(ctx, first))
	proxy, err := rig.NewProxy(first.Address)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })

	ports := filepath.Join(t.TempDir(), "ports.json")
	var log logs
	running, stop := context.WithCancel(t.Context())
	exit := make(chan int, 1)
	go func() {
		exit <- run(running, config.Process{Args: []string{"-ports-file", ports}, Stdout: io.Discard, Stderr: &log, Environ: []string{
			"LAPSE__INSTALLATION=test", "LAPSE__ADMIN__ADDRESS=127.0.0.1:0", "LAPSE__API__ADDRESS=127.0.0.1:0",
			"LAPSE__BROKER__URL=amqp://nobody:nothing@127.0.0.1:1/",
			"LAPSE__DATABASE__ADDRESS=" + proxy.Addr(), "LAPSE__DATABASE__USER=publisher", "LAPSE__DATABASE__PASSWORD=p", "LAPSE__DATABASE__NAME=lapse",
			"LAPSE__API__TOKENS=[{name: shop, hash: " + api.HashToken("s3cret") + ", scopes: [ops, issue]}]",
		}})
	}()
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Log(log.text())
		}
	})
	var at map[string]int
	testenv.Wait(t, "the API's port", func() bool {
		at, _ = telemetry.ReadPorts(ports)
		return at["api"] != 0
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	ask := func(method, port, path, body string) (int, string) {
		req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://127.0.0.1:%d%s", at[port], path), strings.NewReader(body))
		if err != nil {
			return 0, err.Error()
		}
		req.Header.Set("Authorization", "Bearer s3cret")
		res, err := client.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			return 0, err.Error()
		}
		return res.StatusCode, string(text)
	}
	ready := func() (bool, string) {
		status, body := ask(http.MethodGet, "admin", "/readyz", "")
		return status == http.StatusOK, body
	}
	status, body := ask(http.MethodPost, "api", "/v1/templates", `{"name":"t","rule":{"kind":"after","after":"1h"},"value":500,"currency":"CNY","reason":"r"}`)
	require.Equal(t, http.StatusCreated, status, body)
	var template struct {
		ID string `json:"template_id"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &template))

	// Four callers ask without a break, and note what they were promised.
	var (
		mu       sync.Mutex
		promised []string
		callers  sync.WaitGroup
	)
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(promised)
	}
	over := make(chan struct{})
	for n := range 4 {
		callers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-over:
					return
				default:
				}
				key := fmt.Sprintf("k-%d-%d", n, i)
				status, body := ask(http.MethodPost, "api", "/v1/grants", fmt.Sprintf(`{"grants":[{"grant_key":%q,"template_id":%q,"user_id":"u"}]}`, key, template.ID))
				if status == http.StatusOK && strings.Contains(body, `"granted"`) {
					mu.Lock()
					promised = append(promised, key)
					mu.Unlock()
				}
			}
		})
	}
	testenv.Wait(t, "grants before", func() bool { return count() > 20 })

	statement(first, "SET GLOBAL read_only = 1")
	testenv.Wait(t, "it says that the server is read-only", func() bool {
		ok, body := ready()
		return !ok && strings.Contains(body, "the server is read-only")
	})
	require.NoError(t, second.Promote(ctx, first))
	proxy.Aim(second.Address)
	testenv.Wait(t, "it is ready", func() bool { ok, _ := ready(); return ok })
	before := count()
	testenv.Wait(t, "grants after", func() bool { return count() > before+20 })
	close(over)
	callers.Wait()
	for _, key := range promised {
		var n int
		require.NoError(t, second.Root().QueryRowContext(ctx, "SELECT COUNT(*) FROM lapse.grant_key g JOIN lapse.coupon c ON c.id = g.coupon_id WHERE g.grant_key = ?", key).Scan(&n))
		require.Equal(t, 1, n, key)
	}
	stop()
	require.Zero(t, <-exit, "%s", log.text())
	require.Contains(t, log.text(), "the server is read-only")
}

func ownDatabase(t *testing.T, id int) *rig.Database {
	t.Helper()
	// Short: the path of a socket may have 107 bytes.
	dir, err := os.MkdirTemp("", "lapse-db-") //nolint:usetesting // t.TempDir's are too long
	require.NoError(t, err)
	d, err := rig.StartDatabase(t.Context(), dir, id)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.Stop())
		require.NoError(t, os.RemoveAll(dir))
	})
	return d
}
