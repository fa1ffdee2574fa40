package config_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type level struct {
	Name string        `koanf:"name"`
	Unit time.Duration `koanf:"unit"`
}

type inner struct {
	Declare bool `koanf:"declare"`
}

type section struct {
	URL       secret.String     `koanf:"url"`
	Addresses []string          `koanf:"addresses"`
	Batch     int               `koanf:"batch"`
	Small     int8              `koanf:"small"`
	Count     uint              `koanf:"count"`
	Ratio     float64           `koanf:"ratio"`
	Linger    time.Duration     `koanf:"linger"`
	Horizon   time.Duration     `koanf:"horizon"`
	Levels    []level           `koanf:"levels"`
	Labels    map[string]string `koanf:"labels"`
	Topology  inner             `koanf:"topology"`
	Now       func() time.Time  // no tag: not a setting
}

func (s section) Validate() error {
	var errs []error
	if s.Batch < 1 || s.Batch > 1000 {
		errs = append(errs, fmt.Errorf("batch: must be between 1 and 1000, got %d", s.Batch))
	}
	if s.URL.Empty() {
		errs = append(errs, errors.New("url: must be given"))
	}
	for i, l := range s.Levels {
		if l.Unit <= 0 {
			errs = append(errs, fmt.Errorf("levels[%d].unit: must be above 0, got %s", i, l.Unit))
		}
	}

	return errors.Join(errs...)
}

type shared struct {
	Name string `koanf:"name"`
}

type root struct {
	shared `koanf:",squash"` // unexported on purpose: not a setting
	Shared `koanf:",squash"`
	Broker section `koanf:"broker"`
	Spare  section `koanf:"spare"`
}

// Shared is what a root embeds.
type Shared struct {
	Installation string `koanf:"installation"`
}

func (r *root) Validate() error {
	if r.Installation == "" {
		return errors.New("installation: must be set")
	}

	return nil
}

func defaults() root {
	s := section{URL: secret.New("amqp://u:p@h/v"), Batch: 500, Linger: 20 * time.Millisecond, Levels: []level{{"s", time.Second}}}
	s.Topology.Declare = true

	return root{Shared: Shared{Installation: "shop"}, Broker: s, Spare: s}
}

func load(yaml string, environ ...string) (root, []string, error) {
	return config.Load(defaults(), config.Sources{File: "w.yaml", YAML: []byte(yaml), Environ: environ})
}

func TestLayers(t *testing.T) {
	got, warnings, err := load(`
installation: main
broker:
  url: amqp://file
  batch: 10
  small: -7
  count: 7
  ratio: 0.5
  linger: 1d12h
  addresses: [a:1, b:2]
  levels:
    - {name: m, unit: 1m}
    - {name: s, unit: 1s}
  labels: {team: one}
  topology:
    declare: false
spare:
`, "LAPSE__BROKER__BATCH=20", "LAPSE__BROKER__ADDRESSES=c:3, d:4", "LAPSE__SPARE__HORIZON=72h",
		"LAPSE__SPARE__LEVELS=[{name: h, unit: 1h}]", "LAPSE__SPARE__LABELS={a: b}", "LAPSE__SPARE__ADDRESSES=",
		"LAPSE_PUBLISHER_SERVICE_HOST=10.0.0.1", "PATH=/bin", "LAPSE=1")
	require.NoError(t, err)
	require.Equal(t, []string{"LAPSE_PUBLISHER_SERVICE_HOST is not read: settings have the form LAPSE__SECTION__KEY"}, warnings)

	want := defaults()
	want.Installation = "main"
	want.Broker = section{
		URL: secret.New("amqp://file"), Batch: 20, Small: -7, Count: 7, Ratio: 0.5, Linger: 36 * time.Hour,
		Addresses: []string{"c:3", "d:4"}, Levels: []level{{"m", time.Minute}, {"s", time.Second}},
		Labels: map[string]string{"team": "one"},
	}
	want.Spare.Horizon = 72 * time.Hour
	want.Spare.Levels = []level{{"h", time.Hour}}
	want.Spare.Labels = map[string]string{"a": "b"}
	want.Spare.Addresses = []string{}
	require.Equal(t, want, got)
}

func TestEmptySources(t *testing.T) {
	for _, yaml := range []string{"", "\n", "# nothing\n", "---\n", "broker:\nspare: {}\n"} {
		got, warnings, err := load(yaml)
		require.NoError(t, err, yaml)
		require.Empty(t, warnings)
		require.Equal(t, defaults(), got)
	}
}

// TestEveryFaultAtOnce: one answer names them all, with path, reason and source, and no secret.
func TestEveryFaultAtOnce(t *testing.T) {
	_, _, err := load(`
installation: ""
brokr: {url: x}
broker:
  url: "[redacted]"
  batch: 0
  bacth: 3
  linger: 30
  levels:
    - {name: m, unit: 0s}
    - {name: s, unit: soon, digits: 3}
  topology: yes
spare.batch: 3
spare:
  url: 12
  small: 200
  count: -1
  ratio: .nan
  addresses: {a: b}
  labels: [a]
  topology: {declare: maybe}
`, "LAPSE__SPARE__BATCH=many", "LAPSE__SPARE=x", "LAPSE__spare__batch=1", "LAPSE__SPARE__UNKNOWN=hunter2", "LAPSE__=1")
	var e *config.Error
	require.ErrorAs(t, err, &e)
	want := []string{
		"broker.bacth: is not a setting; did you mean broker.batch? (w.yaml)",
		"broker.topology: is a section, not a value (w.yaml)",
		"brokr: is not a setting; did you mean broker? (w.yaml)",
		"spare.batch: is one name with a dot in it; write the sections one below the other (w.yaml)",
		"spare: is a section, not a value (LAPSE__SPARE)",
		": is not a setting (LAPSE__)",
		"spare.unknown: is not a setting (LAPSE__SPARE__UNKNOWN)",
		"spare.batch: is not a setting: names of variables are in capitals (LAPSE__spare__batch)",
		"broker.url: is the text [redacted], which only stands for a secret: give the secret itself (w.yaml)",
		`broker.linger: must be a duration such as 500ms, 30s, 1h30m or 30d, got "30" (w.yaml)`,
		`broker.levels[1].unit: must be a duration such as 500ms, 30s, 1h30m or 30d, got "soon" (w.yaml)`,
		"broker.levels[1].digits: is not a setting (w.yaml)",
		"spare.url: must be text, in quotes (w.yaml)",
		"spare.addresses: must be a list (w.yaml)",
		`spare.batch: must be a whole number, got "many" (LAPSE__SPARE__BATCH)`,
		`spare.small: must be a whole number, got "200" (w.yaml)`,
		`spare.count: must be a whole number from 0, got "-1" (w.yaml)`,
		`spare.ratio: must be a number, got "NaN" (w.yaml)`,
		"spare.labels: must be a map with names as keys (w.yaml)",
		`spare.topology.declare: must be true or false, got "maybe" (w.yaml)`,
		"broker.batch: must be between 1 and 1000, got 0 (w.yaml)",
		"installation: must be set (w.yaml)",
	}
	got := make([]string, 0, len(e.Faults))
	for _, f := range e.Faults {
		got = append(got, f.String())
	}
	for i, w := range want {
		want[i] = strings.TrimPrefix(w, ": ")
	}
	require.ElementsMatch(t, want, got)
	require.Contains(t, err.Error(), fmt.Sprintf("%d faults in the configuration:\n  ", len(want)))
	require.NotContains(t, err.Error(), "hunter2")
}

func TestBrokenFiles(t *testing.T) {
	for name, test := range map[string]struct{ yaml, want string }{
		"not yaml":       {"a: [", "1 fault in the configuration:"},
		"no map":         {"- a\n", "cannot unmarshal"},
		"twice":          {"installation: a\ninstallation: b\n", "already defined"},
		"two documents":  {"installation: a\n---\ninstallation: b\n", "more than one document"},
		"not UTF-8":      {"installation: \"\xff\"\n", "not UTF-8"},
		"no value":       {"broker: {batch: }\n", "broker.batch: has no value"},
		"wrong depth":    {"broker: {batch: {a: 1}}\n", "broker.batch: must be a whole number"},
		"date for text":  {"installation: 2026-01-01\n", "installation: must be text, in quotes"},
		"fraction":       {"broker: {batch: 1.5}\n", "broker.batch: must be a whole number"},
		"large number":   {"broker: {batch: 99999999999999999999}\n", "broker.batch: must be a whole number"},
		"long duration":  {"broker: {linger: 200000000000d}\n", "broker.linger: must be a duration"},
		"word elsewhere": {"broker: {linger: unlimited}\n", "broker.linger: must be a duration"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := load(test.yaml)
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, "w.yaml")
		})
	}
}

func TestHorizon(t *testing.T) {
	got, _, err := load("broker: {horizon: unlimited}\nspare: {horizon: 3d}\n")
	require.NoError(t, err)
	require.Zero(t, got.Broker.Horizon)
	require.Equal(t, 72*time.Hour, got.Spare.Horizon)
	_, _, err = load("broker: {horizon: never}\n")
	require.ErrorContains(t, err, "or unlimited")
}

func TestSecretFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))

		return file
	}
	file, empty := write("url", "amqp://from-file\n"), write("empty", "\n")

	got, _, err := load("broker: {url_file: " + file + "}\n")
	require.NoError(t, err)
	require.Equal(t, "amqp://from-file", got.Broker.URL.Reveal())

	got, _, err = load("broker: {url: amqp://plain}\n", "LAPSE__BROKER__URL_FILE="+file)
	require.NoError(t, err)
	require.Equal(t, "amqp://from-file", got.Broker.URL.Reveal(), "the environment wins in whichever form")
	got, _, err = load("broker: {url_file: "+file+"}\n", "LAPSE__BROKER__URL=amqp://env")
	require.NoError(t, err)
	require.Equal(t, "amqp://env", got.Broker.URL.Reveal())

	for yaml, want := range map[string]string{
		"broker: {url: a, url_file: " + file + "}":                               "broker.url_file: and broker.url are both set",
		"broker: {url_file: " + empty + "}":                                      "is empty",
		"broker: {url_file: " + filepath.Join(dir, "no") + "}":                   "no such file",
		"broker: {url_file: 3}":                                                  "must be the name of a file",
		"broker: {batch_file: " + file + "}":                                     "broker.batch_file: is not a setting",
		"broker: {url_file: " + write("large", strings.Repeat("x", 70000)) + "}": "more than 65536 bytes",
	} {
		_, _, err = load(yaml)
		require.ErrorContains(t, err, want)
	}
}

func TestReadSources(t *testing.T) {
	src, err := config.ReadSources("", []string{"A=b"})
	require.NoError(t, err)
	require.Equal(t, config.Sources{Environ: []string{"A=b"}}, src)
	_, err = config.ReadSources(filepath.Join(t.TempDir(), "absent.yaml"), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestPrint(t *testing.T) {
	cfg := defaults()
	cfg.Broker.Linger = 90 * time.Minute
	cfg.Broker.Labels = map[string]string{"b": "no", "a": "1"}
	cfg.Broker.Addresses = []string{"h:1"}
	cfg.Spare = section{Linger: 400 * 24 * time.Hour}
	var out bytes.Buffer
	require.NoError(t, config.Print(&out, cfg))
	require.Equal(t, `installation: shop
broker:
  url: '[redacted]'
  addresses:
    - h:1
  batch: 500
  small: 0
  count: 0
  ratio: 0
  linger: 1h30m
  horizon: unlimited
  levels:
    - {name: s, unit: 1s}
  labels:
    a: "1"
    b: "no"
  topology:
    declare: true
spare:
  url: ""
  addresses: []
  batch: 0
  small: 0
  count: 0
  ratio: 0
  linger: 400d
  horizon: unlimited
  levels: []
  labels: {}
  topology:
    declare: false
`, out.String())
}

// TestPrintedIsRead: what is printed means the same when it is read, but for the secrets, which it refuses.
func TestPrintedIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := defaults()
		text := rapid.StringMatching(`[ -~]{0,12}|true|12|null|~|0x1|1e3|2026-01-01|中文`)
		cfg.Installation = "i" + text.Draw(t, "installation")
		cfg.Broker.Addresses = rapid.SliceOf(text).Draw(t, "addresses")
		cfg.Broker.Batch = rapid.IntRange(1, 1000).Draw(t, "batch")
		cfg.Broker.Ratio = rapid.Float64().Draw(t, "ratio")
		cfg.Broker.Linger = time.Duration(rapid.Int64().Draw(t, "linger"))
		cfg.Broker.Horizon = time.Duration(rapid.Int64Range(0, 1<<62).Draw(t, "horizon"))
		cfg.Broker.Labels = rapid.MapOf(rapid.StringMatching(`[a-z.1]{1,5}`), text).Draw(t, "labels")
		var out bytes.Buffer
		require.NoError(t, config.Print(&out, cfg))
		_, _, err := load(out.String())
		require.ErrorContains(t, err, "broker.url")
		got, _, err := load(strings.ReplaceAll(out.String(), "[redacted]", "amqp://u:p@h/v"))
		require.NoError(t, err, out.String())
		require.Equal(t, cfg.Installation, got.Installation)
		require.Equal(t, cfg.Broker, got.Broker)
	})
}

// FuzzLoad: no file and no variable makes the loader panic, and what it accepts is valid.
func FuzzLoad(f *testing.F) {
	f.Add([]byte("installation: a\nbroker: {batch: 3, levels: [{name: s, unit: 1s}]}\n"), "LAPSE__BROKER__LINGER", "3d1h")
	f.Add([]byte("broker: {1: 2, ~: 3, labels: {a: {b: c}}}\n"), "LAPSE__BROKER__LABELS", "{a: [}")
	f.Add([]byte("a: &a [*a]\n"), "LAPSE__BROKER__LEVELS", "[{name: &x [1], unit: *x}]")
	f.Fuzz(func(t *testing.T, yaml []byte, name, value string) {
		if bytes.Contains(yaml, []byte("_file")) || strings.Contains(strings.ToLower(name), "_file") {
			return // not to read whatever the fuzzer names
		}
		cfg, _, err := config.Load(defaults(), config.Sources{File: "w.yaml", YAML: yaml, Environ: []string{name + "=" + value}})
		var e *config.Error
		switch {
		case errors.As(err, &e):
			require.NotEmpty(t, e.Faults)
		default:
			require.NoError(t, err)
			require.NoError(t, cfg.Broker.Validate())
			require.NoError(t, config.Print(&bytes.Buffer{}, cfg))
		}
	})
}
