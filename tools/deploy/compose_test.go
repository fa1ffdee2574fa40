package deploy

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const trialEnv = "configs/compose/trial.env"

// project is the file as Compose reads it, its schema and references checked.
func project(t *testing.T, environ []string, envFile string, profiles ...string) *types.Project {
	t.Helper()
	opts := []cli.ProjectOptionsFn{
		cli.WithWorkingDirectory(root), cli.WithName("lapse"), cli.WithEnv(environ), cli.WithProfiles(profiles),
	}
	if envFile != "" {
		opts = append(opts, cli.WithEnvFiles(filepath.Join(root, envFile)), cli.WithDotEnv)
	}
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")}, opts...)
	require.NoError(t, err)
	p, err := options.LoadProject(context.WithoutCancel(t.Context()))
	require.NoError(t, err)

	return p
}

func whole(t *testing.T) *types.Project {
	t.Helper()

	return project(t, nil, trialEnv, "fleet", "observe", "redis")
}

// TestComposeProfiles: each profile starts what it says, and the stack (no profile) its two servers with what scripts/stack sets.
func TestComposeProfiles(t *testing.T) {
	t.Parallel()
	servers := []string{"database", "rabbitmq"}
	fleet := []string{"migrate", "publisher", "expirer", "notifier", "mail"}
	observe := []string{"prometheus", "alertmanager", "grafana", "mail"}
	for _, c := range []struct {
		profiles []string
		want     []string
	}{
		{nil, servers},
		{[]string{"fleet"}, slices.Concat(servers, fleet)},
		{[]string{"observe"}, slices.Concat(servers, observe)},
		{[]string{"redis"}, slices.Concat(servers, []string{"redis"})},
	} {
		require.ElementsMatch(t, c.want, slices.Collect(maps.Keys(project(t, nil, trialEnv, c.profiles...).Services)), c.profiles)
	}

	var set []string
	for _, m := range regexp.MustCompile(`"(STACK_\w+)=`).FindAllStringSubmatch(read(t, "scripts/lib/compose.sh"), -1) {
		set = append(set, m[1]+"=1234")
	}
	stack := project(t, set, "")
	require.ElementsMatch(t, servers, slices.Collect(maps.Keys(stack.Services)))
	require.Equal(t, "1234", *stack.Services["database"].Environment["MYSQL_PASSWORD"])
}

// TestComposeVariables: whatever the file asks for has a default or a value in trial.env, and trial.env has nothing that nobody asks for.
func TestComposeVariables(t *testing.T) {
	t.Parallel()
	given := map[string]bool{}
	for _, line := range lines(read(t, trialEnv)) {
		name, _, _ := strings.Cut(line, "=")
		given[name] = false
	}
	for _, m := range regexp.MustCompile(`\$\{([A-Z_]+)(:?[-?])?`).FindAllStringSubmatch(read(t, "docker-compose.yml"), -1) {
		if _, ok := given[m[1]]; ok {
			given[m[1]] = true

			continue
		}
		require.Contains(t, m[2], "-", "%s has neither a default nor a value in %s", m[1], trialEnv)
	}
	for name, used := range given {
		require.True(t, used, "nobody asks for %s", name)
	}
}

// TestComposeFiles: what is mounted is there, is not written to, and comes from this repository.
func TestComposeFiles(t *testing.T) {
	t.Parallel()
	p := whole(t)
	here, err := filepath.Abs(root)
	require.NoError(t, err)
	for name, s := range p.Services {
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				require.Contains(t, p.Volumes, v.Source, name)

				continue
			}
			require.True(t, strings.HasPrefix(v.Source, here+"/configs/"), "%s mounts %s", name, v.Source)
			require.True(t, v.ReadOnly, "%s may write to %s", name, v.Source)
			_, err := os.Stat(v.Source)
			require.NoError(t, err, name)
		}
	}
}

// TestComposePorts: published for this machine alone, each once, and each is one that the service opens.
func TestComposePorts(t *testing.T) {
	t.Parallel()
	opened := map[string][]int{
		"database": {3306}, "rabbitmq": {5672, 15672, 15692}, "redis": {6379},
		"mail": {8025}, "prometheus": {9090}, "alertmanager": {9093}, "grafana": {3000},
	}
	maps.Copy(opened, workers)
	taken := map[string]string{}
	for name, s := range whole(t).Services {
		for _, port := range s.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, name)
			require.Contains(t, opened[name], int(port.Target), name)
			require.Empty(t, taken[port.Published], "%s publishes %s, too", name, port.Published)
			taken[port.Published] = name
		}
	}
}

// TestComposeOrder: who needs something waits until it answers, and everything that stays says whether it does.
func TestComposeOrder(t *testing.T) {
	t.Parallel()
	p := whole(t)
	for name, s := range p.Services {
		if name == "migrate" {
			require.Nil(t, s.HealthCheck)
			require.Equal(t, types.ServiceConditionHealthy, s.DependsOn["database"].Condition)

			continue
		}
		require.NotNil(t, s.HealthCheck, "%s does not say whether it is well", name)
		require.NotEmpty(t, s.HealthCheck.Test, name)
		for on, d := range s.DependsOn {
			want := types.ServiceConditionHealthy
			if on == "migrate" {
				want = types.ServiceConditionCompletedSuccessfully
			}
			if s.NetworkMode == "service:"+on && d.Condition == types.ServiceConditionStarted {
				continue
			}
			require.Equal(t, want, d.Condition, "%s after %s", name, on)
		}
	}
	for worker := range workers {
		s := p.Services[worker]
		for _, on := range []string{"database", "rabbitmq", "migrate"} {
			require.Contains(t, s.DependsOn, on, worker)
		}
		require.Equal(t, types.HealthCheckTest{"CMD", worker, "-healthcheck"}, s.HealthCheck.Test)
		require.GreaterOrEqual(t, time.Duration(*s.StopGracePeriod), graceSeconds*time.Second, worker)
		require.True(t, s.ReadOnly, worker)
		require.Equal(t, []string{"ALL"}, s.CapDrop, worker)
	}
	require.Equal(t, 2, *p.Services["expirer"].Deploy.Replicas)
	require.Empty(t, p.Services["expirer"].Ports, "two of them cannot publish one port")
}

// TestComposeSettings: the workers take the settings that they are given, and find the servers by their names.
func TestComposeSettings(t *testing.T) {
	t.Parallel()
	p := whole(t)
	for _, name := range []string{"migrate", "publisher", "expirer", "notifier"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := p.Services[name]
			require.DirExists(t, filepath.Join(root, "cmd", s.Command[0]))
			require.Equal(t, "lapse:local", s.Image)
			var environ []string
			for k, v := range s.Environment {
				require.NotNil(t, v, "%s has no value", k)
				environ = append(environ, k+"="+*v)
			}
			if name == "migrate" {
				require.Equal(t, types.ShellCommand{"lapsectl", "migrate", "up"}, s.Command)
				migrates(t, environ)

				return
			}
			require.Equal(t, types.ShellCommand{name}, s.Command)
			var settings struct {
				Installation string
				Admin        struct{ Address string }
				Database     struct{ Address, Migrate string }
				Notice       struct {
					Channels []string
					Email    struct{ Host, TLS string }
				}
			}
			printed := settingsOf(t, name, environ)
			require.NoError(t, yaml.Unmarshal([]byte(printed), &settings))
			require.Equal(t, "compose", settings.Installation)
			require.Equal(t, "database:3306", settings.Database.Address)
			require.Equal(t, "verify", settings.Database.Migrate)
			require.Equal(t, fmt.Sprintf(":%d", workers[name][0]), settings.Admin.Address)
			if name == "notifier" {
				require.Contains(t, settings.Notice.Channels, "email")
				require.Equal(t, "service:mail", s.NetworkMode)
			}
			require.NotContains(t, printed, "trial-lapse")

			// Without trial.env nothing but passwords is missing: a person's own file need have no more.
			bare := project(t, []string{"STACK_DB_PASSWORD=x", "STACK_DB_ROOT_PASSWORD=x", "STACK_BROKER_PASSWORD=x"}, "", "fleet")
			require.Equal(t, "[]", defaulted(bare, "LAPSE__API__TOKENS"))
		})
	}
}

func defaulted(p *types.Project, variable string) string {
	for _, s := range p.Services {
		if v, ok := s.Environment[variable]; ok {
			return *v
		}
	}

	return ""
}

// TestComposeBuild: what the build is given, the Dockerfile asks for.
func TestComposeBuild(t *testing.T) {
	t.Parallel()
	p := project(t, []string{"REGISTRY=mirror.example", "GOPROXY=https://proxy.example"}, trialEnv, "fleet", "observe")
	asked := read(t, "Dockerfile")
	build := p.Services["publisher"].Build
	require.Equal(t, "mirror.example", *build.Args["REGISTRY"])
	require.Equal(t, "https://proxy.example", *build.Args["GOPROXY"])
	for arg := range build.Args {
		require.Regexp(t, `(?m)^ARG `+arg+`=`, asked)
	}
	for name, s := range p.Services {
		if s.Build == nil {
			require.True(t, strings.HasPrefix(s.Image, "mirror.example/"), "%s: %s", name, s.Image)
		}
		require.Regexp(t, `:[\w.-]+$`, s.Image, "%s has no version", name)
	}
}

// TestComposeIsObserved: Prometheus finds every worker and the broker where they listen, and Grafana Prometheus and the dashboards.
func TestComposeIsObserved(t *testing.T) {
	t.Parallel()
	p := whole(t)
	names := map[string]string{}
	for name, s := range p.Services {
		if !strings.HasPrefix(s.NetworkMode, "service:") { // else it has no name of its own
			names[name] = name
		}
		for _, network := range s.Networks {
			if network == nil {
				continue
			}
			for _, alias := range network.Aliases {
				names[alias] = name
			}
		}
	}
	require.Equal(t, "mail", names["notifier"])
	var prometheus struct {
		RuleFiles []string `yaml:"rule_files"`
		Alerting  struct {
			Alertmanagers []scrape `yaml:"alertmanagers"`
		} `yaml:"alerting"`
		Scrape []scrape `yaml:"scrape_configs"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "configs/prometheus/prometheus.yml")), &prometheus))
	seen := map[string]int{}
	for _, s := range append(prometheus.Scrape, prometheus.Alerting.Alertmanagers...) {
		for _, sd := range s.DNS {
			for _, name := range sd.Names {
				require.Contains(t, names, name)
				seen[name] = sd.Port
			}
		}
	}
	require.Equal(t, map[string]int{"publisher": 9101, "expirer": 9102, "notifier": 9103, "rabbitmq": 15692, "alertmanager": 9093}, seen)
	for _, glob := range prometheus.RuleFiles {
		found, err := filepath.Glob(filepath.Join(root, "configs/prometheus", glob))
		require.NoError(t, err)
		require.NotEmpty(t, found, glob)
	}

	var sources struct {
		Datasources []struct{ URL string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "configs/grafana/provisioning/datasources/prometheus.yaml")), &sources))
	require.Equal(t, "http://prometheus:9090", sources.Datasources[0].URL)
	var boards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "configs/grafana/provisioning/dashboards/lapse.yaml")), &boards))
	require.True(t, slices.ContainsFunc(p.Services["grafana"].Volumes, func(v types.ServiceVolumeConfig) bool {
		return v.Target == boards.Providers[0].Options.Path
	}))
}

type scrape struct {
	DNS []struct {
		Names []string
		Port  int
	} `yaml:"dns_sd_configs"`
}
