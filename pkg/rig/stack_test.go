package rig_test

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/secret"
)

const foreignPassword = "p4ssw0rd"

// described is an environment as scripts/stack env prints it; nothing listens there.
func described() map[string]string {
	return map[string]string{
		"STACK_DIR":            "/nowhere/.stack",
		"STACK_PORT_BASE":      "100",
		"STACK_TOKEN":          "abc",
		"TEST_AMQP_URL":        "amqp://lapse:" + foreignPassword + "@127.0.0.1:772/lapse",
		"TEST_MANAGEMENT_URL":  "http://lapse:" + foreignPassword + "@127.0.0.1:773",
		"TEST_MYSQL_DSN":       "lapse:" + foreignPassword + "@tcp(127.0.0.1:406)/lapse",
		"STACK_MYSQL_ROOT_DSN": "root:" + foreignPassword + "@tcp(127.0.0.1:406)/",
	}
}

func lookup(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func running(t *testing.T) (rig.Stack, context.Context) {
	t.Helper()
	s, err := rig.LoadStack(os.LookupEnv)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return s, ctx
}

func TestLoadStackNamesEverythingThatIsMissing(t *testing.T) {
	t.Parallel()
	vars := described()
	delete(vars, "STACK_TOKEN")
	vars["TEST_MYSQL_DSN"] = ""
	_, err := rig.LoadStack(lookup(vars))
	require.EqualError(t, err, `not set: STACK_TOKEN, TEST_MYSQL_DSN; run: scripts/stack up; eval "$(scripts/stack env)"`)
}

func TestLoadStackRefusesMalformedVariables(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"STACK_PORT_BASE":      "many",
		"TEST_AMQP_URL":        "amqp://lapse:" + foreignPassword + "@host/\x7f",
		"TEST_MANAGEMENT_URL":  "127.0.0.1",
		"TEST_MYSQL_DSN":       "lapse:" + foreignPassword + "@unix(/tmp/x.sock)/lapse",
		"STACK_MYSQL_ROOT_DSN": foreignPassword,
	} {
		vars := described()
		vars[name] = value
		_, err := rig.LoadStack(lookup(vars))
		require.ErrorContains(t, err, name)
		require.NotContains(t, err.Error(), foreignPassword)
	}
}

func TestCheckRefusesForeignAddressesByName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ change, address string }{
		"TEST_AMQP_URL":        {"amqp://lapse:" + foreignPassword + "@192.0.2.1:772/lapse", "192.0.2.1:772"},
		"TEST_MANAGEMENT_URL":  {"http://lapse:" + foreignPassword + "@broker.example:773", "broker.example:773"},
		"TEST_MYSQL_DSN":       {"lapse:" + foreignPassword + "@tcp(192.0.2.2:406)/lapse", "192.0.2.2:406"},
		"STACK_MYSQL_ROOT_DSN": {"root:" + foreignPassword + "@tcp(127.0.0.1:407)/", "127.0.0.1:407"},
	} {
		vars := described()
		vars[name] = c.change
		s, err := rig.LoadStack(lookup(vars))
		require.NoError(t, err)
		err = s.Check(t.Context())
		require.ErrorIs(t, err, rig.ErrForeign)
		require.ErrorContains(t, err, c.address)
		require.NotContains(t, err.Error(), foreignPassword)
	}
}

func TestCheckRefusesAnAMQPPortOutsideTheStack(t *testing.T) {
	t.Parallel()
	vars := described()
	vars["TEST_AMQP_URL"] = "amqp://lapse:x@127.0.0.1:5672/lapse"
	s, err := rig.LoadStack(lookup(vars))
	require.NoError(t, err)
	err = s.Check(t.Context())
	require.ErrorIs(t, err, rig.ErrForeign)
	require.ErrorContains(t, err, "127.0.0.1:5672")
}

func TestCheckRefusesABrokerWithoutOurToken(t *testing.T) {
	t.Parallel()
	for status, body := range map[int]string{
		http.StatusOK:           `{"name":"lapse","description":"Default virtual host"}`,
		http.StatusUnauthorized: `{"error":"not_authorised"}`,
		http.StatusNotFound:     `{"error":"Object Not Found"}`,
	} {
		foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(foreign.Close)
		vars := described()
		vars["TEST_MANAGEMENT_URL"] = strings.Replace(foreign.URL, "http://", "http://lapse:"+foreignPassword+"@", 1)
		s, err := rig.LoadStack(lookup(vars))
		require.NoError(t, err)
		err = s.Check(t.Context())
		require.ErrorIs(t, err, rig.ErrForeign)
		require.ErrorContains(t, err, foreign.Listener.Addr().String())
		require.NotContains(t, err.Error(), foreignPassword)
	}
}

func TestCheckSaysWhenTheStackIsDown(t *testing.T) {
	t.Parallel()
	s, err := rig.LoadStack(lookup(described()))
	require.NoError(t, err)
	err = s.Check(t.Context())
	require.ErrorContains(t, err, "127.0.0.1:773")
	require.NotErrorIs(t, err, rig.ErrForeign)
	require.NotContains(t, err.Error(), foreignPassword)
}

func TestCheckLetsThisCheckoutsServersPass(t *testing.T) {
	t.Parallel()
	s, ctx := running(t)
	require.NoError(t, s.Check(ctx))
	v, err := s.Versions(ctx)
	require.NoError(t, err)
	require.Regexp(t, `^RabbitMQ \d+\.\d+\.\d+$`, v.Broker)
	require.Regexp(t, `^(MySQL|MariaDB) \d+\.\d+\.\d+$`, v.Database)
}

func TestCheckRefusesOurServersUnderAnotherToken(t *testing.T) {
	t.Parallel()
	s, ctx := running(t)
	s.Token = secret.New("of another checkout")
	err := s.Check(ctx)
	require.ErrorIs(t, err, rig.ErrForeign)
	require.ErrorContains(t, err, "broker at 127.0.0.1:")
}

func TestCheckRefusesADatabaseWithoutOurToken(t *testing.T) {
	t.Parallel()
	s, ctx := running(t)
	// The right server and user, a database without the stack's table.
	s.DSN = secret.New(strings.TrimSuffix(s.DSN.Reveal(), "/lapse") + "/information_schema")
	err := s.Check(ctx)
	require.ErrorIs(t, err, rig.ErrForeign)
	require.ErrorContains(t, err, "database at 127.0.0.1:")
}

// checkout lays out a directory whose scripts/stack is the given shell script. Its tests do not run in parallel: a
// fork elsewhere while the script is being written would make it busy.
func checkout(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "scripts"), 0o700))
	path := filepath.Join(dir, "scripts", "stack")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700))
	return dir
}

func TestServersAreStoppedByTheCheckoutsOwnScript(t *testing.T) {
	dir := checkout(t, `echo "$*" >>"$0.calls"`)
	s := rig.Stack{Dir: filepath.Join(dir, ".stack")}
	for _, call := range []func(context.Context) error{
		s.KillBroker, s.StartBroker, s.RestartBroker, s.KillDatabase, s.StartDatabase, s.RestartDatabase,
	} {
		require.NoError(t, call(t.Context()))
	}
	calls, err := os.ReadFile(filepath.Join(dir, "scripts", "stack.calls"))
	require.NoError(t, err)
	require.Equal(t, "kill rabbitmq\nstart rabbitmq\nrestart rabbitmq\nkill database\nstart database\nrestart database\n", string(calls))
}

func TestTheScriptIsCalledForTheStacksPorts(t *testing.T) {
	t.Setenv("STACK_PORT_BASE", "35000") // as in a shell that was set for another stack
	t.Setenv("LAPSE_DATABASE_DSN", "another")
	dir := checkout(t, `echo "$STACK_PORT_BASE ${LAPSE_DATABASE_DSN-none}" >>"$0.calls"`)
	s := rig.Stack{Dir: filepath.Join(dir, ".stack"), PortBase: 22000}
	require.NoError(t, s.StartRedis(t.Context()))
	require.NoError(t, s.BrokerCtl(t.Context(), "status"))
	calls, err := os.ReadFile(filepath.Join(dir, "scripts", "stack.calls"))
	require.NoError(t, err)
	require.Equal(t, "22000 none\n22000 none\n", string(calls))
}

func TestAFailingScriptIsQuoted(t *testing.T) {
	s := rig.Stack{Dir: filepath.Join(checkout(t, "echo 'stack: rabbitmq is not running' >&2; exit 1"), ".stack")}
	require.EqualError(t, s.KillBroker(t.Context()), "scripts/stack kill rabbitmq: exit status 1: stack: rabbitmq is not running")
}

func TestReadStackAsksTheCheckout(t *testing.T) {
	vars := described()
	var script strings.Builder
	for name := range maps.Keys(vars) {
		script.WriteString("echo \"export " + name + "='" + vars[name] + "'\"\n")
	}
	want, err := rig.LoadStack(lookup(vars))
	require.NoError(t, err)
	got, err := rig.ReadStack(t.Context(), checkout(t, script.String()))
	require.NoError(t, err)
	require.Equal(t, want, got)
}
