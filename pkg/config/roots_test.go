package config_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// given is what an operator must give: there is no default for it.
func given() []string {
	return []string{"LAPSE__INSTALLATION=test", "LAPSE__BROKER__URL=amqp://u:hunter2@h/lapse", "LAPSE__DATABASE__PASSWORD=hunter2"}
}

// TestShippedFiles: every file under configs/ that is ours is loaded, by the worker it is for, and by nothing else than itself
// and the addresses.
func TestShippedFiles(t *testing.T) {
	loaders := map[string]func(config.Sources) error{
		"publisher.yaml": loaderOf(config.DefaultPublisher()),
		"expirer.yaml":   loaderOf(config.DefaultExpirer()),
		"notifier.yaml":  loaderOf(config.DefaultNotifier()),
	}
	files, err := filepath.Glob("../../configs/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, len(loaders))
	for _, file := range files {
		src, err := config.ReadSources(file, given())
		require.NoError(t, err)
		require.Contains(t, loaders, filepath.Base(file))
		require.NoError(t, loaders[filepath.Base(file)](src), file)
	}
}

func loaderOf[T any](defaults T) func(config.Sources) error {
	return func(src config.Sources) error {
		_, _, err := config.Load(defaults, src)

		return err
	}
}

func TestDefaultsNeedOnlyWhatIsGiven(t *testing.T) {
	for _, load := range []func(config.Sources) error{
		loaderOf(config.DefaultPublisher()), loaderOf(config.DefaultExpirer()), loaderOf(config.DefaultNotifier()),
	} {
		require.NoError(t, load(config.Sources{Environ: given()}))
		err := load(config.Sources{})
		require.ErrorContains(t, err, "installation: must be set")
		require.ErrorContains(t, err, "broker.url: must be given")
	}
}

// TestEveryFieldIsASetting: a field that was forgotten its tag could never be set.
func TestEveryFieldIsASetting(t *testing.T) {
	for _, root := range []any{config.Publisher{}, config.Expirer{}, config.Notifier{}} {
		requireTags(t, reflect.TypeOf(root))
	}
}

func requireTags(t *testing.T, typ reflect.Type) {
	t.Helper()
	for f := range typ.Fields() {
		if !f.IsExported() || f.Type.Kind() == reflect.Func || f.Type.Kind() == reflect.Interface {
			continue
		}
		require.NotEmpty(t, f.Tag.Get("koanf"), "%s.%s", typ, f.Name)
		if f.Type.Kind() == reflect.Struct {
			requireTags(t, f.Type)
		}
	}
}

func TestPrefixIsOneSetting(t *testing.T) {
	cfg, _, err := config.Load(config.DefaultExpirer(), config.Sources{Environ: append(given(), "LAPSE__PREFIX=shop")})
	require.NoError(t, err)
	require.Equal(t, "shop", cfg.Ladder.Prefix)
	_, _, err = config.Load(config.DefaultExpirer(), config.Sources{Environ: append(given(), "LAPSE__PREFIX=a.b", "LAPSE__LADDER__PREFIX=c")})
	require.ErrorContains(t, err, "\n  prefix: must match")
	require.ErrorContains(t, err, "(LAPSE__PREFIX)")
	require.ErrorContains(t, err, "ladder.prefix: is not a setting")
}

func start(t *testing.T, environ []string, args ...string) (cfg config.Expirer, f config.Flags, code int, run bool, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cfg, f, _, code, run = config.Start(t.Context(), telemetry.NewBuild("expirer", "v1.2.3"), config.DefaultExpirer(),
		config.Process{Args: args, Environ: environ, Stdout: &out, Stderr: &errs})

	return cfg, f, code, run, out.String(), errs.String()
}

func TestFlags(t *testing.T) {
	_, _, code, run, out, _ := start(t, nil, "-version")
	require.Equal(t, config.ExitOK, code)
	require.False(t, run)
	require.True(t, strings.HasPrefix(out, "expirer v1.2.3 ("), out)

	_, _, code, _, _, errs := start(t, nil, "-validate")
	require.Equal(t, config.ExitFailure, code)
	require.Contains(t, errs, "2 faults in the configuration:")

	_, _, code, run, out, errs = start(t, append(given(), "LAPSE_FOO=1"), "-validate", "-config", "../../configs/expirer.yaml")
	require.Equal(t, config.ExitOK, code, errs)
	require.False(t, run)
	require.Equal(t, "the configuration is valid\n", out)
	require.Contains(t, errs, "warning: LAPSE_FOO")

	_, _, code, _, out, errs = start(t, given(), "-print-config")
	require.Equal(t, config.ExitOK, code, errs)
	require.Contains(t, out, "installation: test\nprefix: lapse\n")
	require.Contains(t, out, "password: '[redacted]'")
	require.NotContains(t, out, "hunter2")

	cfg, f, code, run, _, _ := start(t, given(), "-ports-file", "p.json")
	require.True(t, run)
	require.Equal(t, config.ExitOK, code)
	require.Equal(t, "p.json", f.PortsFile)
	require.Equal(t, "test", cfg.Installation)
	require.Equal(t, ":9102", cfg.AdminAddress())

	_, _, code, run, _, errs = start(t, nil)
	require.False(t, run, "an invalid configuration does not run")
	require.Equal(t, config.ExitFailure, code)
	require.Contains(t, errs, "broker.url")

	for _, args := range [][]string{{"-nonsense"}, {"stray"}} {
		_, _, code, run, _, errs = start(t, given(), args...)
		require.False(t, run)
		require.Equal(t, config.ExitUsage, code)
		require.Contains(t, errs, strings.TrimPrefix(args[0], "-"))
	}
	_, _, code, _, _, errs = start(t, nil, "-h")
	require.Equal(t, config.ExitOK, code)
	require.Contains(t, errs, "-healthcheck")
	_, _, code, _, _, errs = start(t, nil, "-config", "absent.yaml")
	require.Equal(t, config.ExitFailure, code)
	require.Contains(t, errs, "absent.yaml")
}

func TestHealthcheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ports.json")
	environ := append(given(), "LAPSE__ADMIN__ADDRESS=127.0.0.1:0")
	admin := telemetry.NewAdmin(telemetry.AdminConfig{Address: "127.0.0.1:0", CheckTimeout: time.Second}, prometheus.NewRegistry(), zaptest.NewLogger(t))
	require.NoError(t, admin.Start(t.Context()))
	require.NoError(t, telemetry.WritePorts(file, map[string]int{"admin": admin.Port()}))
	_, _, code, run, _, errs := start(t, environ, "-healthcheck", "-ports-file", file)
	require.False(t, run)
	require.Equal(t, config.ExitOK, code, errs)

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	require.NoError(t, admin.Stop(ctx))
	_, _, code, _, _, errs = start(t, environ, "-healthcheck", "-ports-file", file)
	require.Equal(t, config.ExitFailure, code)
	require.Contains(t, errs, "/livez")
	require.NoError(t, os.Remove(file))
}

// A line too many in a file must not let anybody end real coupons.
func TestSandboxModeIsForSandboxes(t *testing.T) {
	load := func(more ...string) error {
		return loaderOf(config.DefaultPublisher())(config.Sources{Environ: append(given(), append(more, "LAPSE__API__SANDBOX=true")...)})
	}
	require.ErrorContains(t, load(), `api.sandbox: is for an installation with "sandbox" in its prefix and in database.name; prefix is "lapse"`)
	require.ErrorContains(t, load("LAPSE__PREFIX=lapse-sandbox"), `database.name is "lapse"`)
	require.ErrorContains(t, load("LAPSE__DATABASE__NAME=lapse_sandbox"), `prefix is "lapse"`)
	require.NoError(t, load("LAPSE__PREFIX=lapse-sandbox", "LAPSE__DATABASE__NAME=lapse_sandbox"))
}
