package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

const secretsAt = "/run/secrets/lapse"

// pods are the pods of the release by component.
func (r release) pods() map[string]corev1.PodTemplateSpec {
	out := map[string]corev1.PodTemplateSpec{}
	for _, d := range r.deployments {
		out[d.Labels["app.kubernetes.io/component"]] = d.Spec.Template
	}
	for _, j := range r.jobs {
		out[j.Labels["app.kubernetes.io/component"]] = j.Spec.Template
	}

	return out
}

// of gives the component whose pods are selected; it must be one.
func (r release) of(t *testing.T, selector map[string]string) string {
	t.Helper()
	var found []string
	for component, pod := range r.pods() {
		if labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
			found = append(found, component)
		}
	}
	require.Len(t, found, 1, selector)

	return found[0]
}

func eachCase(t *testing.T, f func(t *testing.T, file string, r release)) {
	t.Helper()
	for _, file := range []string{"defaults", "on", "off"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			f(t, file, manifests(t, file))
		})
	}
}

// TestWhatIsThere: every case has what it was asked for.
func TestWhatIsThere(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"defaults": "3 deployments, 1 jobs, 4 configs, 0 secrets, 4 services, 1 accounts, 3 budgets, 4 policies, 0 monitors, 0 rules, 0 scaled, 0 auths",
		"on":       "3 deployments, 1 jobs, 4 configs, 3 secrets, 4 services, 1 accounts, 3 budgets, 4 policies, 1 monitors, 1 rules, 2 scaled, 1 auths",
		"off":      "1 deployments, 0 jobs, 1 configs, 0 secrets, 1 services, 0 accounts, 0 budgets, 0 policies, 0 monitors, 0 rules, 0 scaled, 0 auths",
	}
	eachCase(t, func(t *testing.T, file string, r release) {
		t.Helper()
		require.Equal(t, want[file], fmt.Sprintf(
			"%d deployments, %d jobs, %d configs, %d secrets, %d services, %d accounts, %d budgets, %d policies, %d monitors, %d rules, %d scaled, %d auths",
			len(r.deployments), len(r.jobs), len(r.configs), len(r.secrets), len(r.services), len(r.accounts), len(r.budgets), len(r.policies),
			len(r.monitors), len(r.rules), len(r.scaled), len(r.auths)))
	})
}

// TestPods: nobody's user on a read-only root, no token, no service links, enough time to stop, and every mount has its source.
func TestPods(t *testing.T) {
	t.Parallel()
	eachCase(t, func(t *testing.T, file string, r release) {
		t.Helper()
		for component, template := range r.pods() {
			pod := template.Spec
			require.False(t, *pod.EnableServiceLinks)
			require.False(t, *pod.AutomountServiceAccountToken)
			require.True(t, *pod.SecurityContext.RunAsNonRoot)
			require.EqualValues(t, 65532, *pod.SecurityContext.RunAsUser)
			require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
			require.Len(t, pod.Containers, 1)
			c := pod.Containers[0]
			require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
			require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
			require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
			require.DirExists(t, filepath.Join(root, "cmd", c.Command[0]))
			for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				require.NotZero(t, c.Resources.Requests[resource], resource)
			}
			require.GreaterOrEqual(t, c.Resources.Limits.Memory().Value(), c.Resources.Requests.Memory().Value())
			if file == "on" {
				require.Equal(t, "mirror.example/lapse@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", c.Image)
				require.Equal(t, []corev1.LocalObjectReference{{Name: "mirror"}}, pod.ImagePullSecrets)
			} else {
				require.Equal(t, "ghcr.io/lapsehq/lapse:"+load(t).Metadata.AppVersion, c.Image)
			}
			mounted(t, file, r, component, pod)
			if component == "migrate" {
				continue
			}
			require.GreaterOrEqual(t, *pod.TerminationGracePeriodSeconds, int64(graceSeconds), component)
			ports := map[string]int{}
			for _, p := range c.Ports {
				ports[p.Name] = int(p.ContainerPort)
			}
			require.Equal(t, workers[component][0], ports["admin"])
			require.Equal(t, "/livez", c.LivenessProbe.HTTPGet.Path)
			require.Equal(t, "/readyz", c.ReadinessProbe.HTTPGet.Path)
			require.Equal(t, intstr.FromString("admin"), c.LivenessProbe.HTTPGet.Port)
			require.Equal(t, intstr.FromString("admin"), c.ReadinessProbe.HTTPGet.Port)
			// Each of the checks has admin.check_timeout.
			require.Greater(t, c.ReadinessProbe.TimeoutSeconds, int32(2))
		}
	})
}

func mounted(t *testing.T, file string, r release, component string, pod corev1.PodSpec) {
	t.Helper()
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v
		switch {
		case v.ConfigMap != nil:
			require.True(t, slices.ContainsFunc(r.configs, func(c *corev1.ConfigMap) bool { return c.Name == v.ConfigMap.Name }), v.ConfigMap.Name)
		case v.Name == "secrets":
			require.EqualValues(t, 0o440, *v.Secret.DefaultMode) // of the group 65532
			for _, item := range v.Secret.Items {
				r.keyOf(t, v.Secret.SecretName, item.Key)
			}
		default:
			require.Equal(t, "on publisher ca", file+" "+component+" "+v.Name)
		}
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		require.Contains(t, volumes, m.Name)
		require.True(t, m.ReadOnly)
	}
	for _, e := range pod.Containers[0].Env {
		if e.ValueFrom != nil {
			r.keyOf(t, e.ValueFrom.SecretKeyRef.Name, e.ValueFrom.SecretKeyRef.Key)
		}
	}
}

// keyOf gives what a Secret's key holds: the chart's own must have it, another's is taken at its word.
func (r release) keyOf(t *testing.T, secret, key string) string {
	t.Helper()
	for _, s := range r.secrets {
		if s.Name == secret {
			require.Contains(t, s.StringData, key)

			return s.StringData[key]
		}
	}
	require.Contains(t, []string{"lapse", "lapse-migrate"}, secret, "a Secret that nobody makes")

	return map[string]string{"broker-url": "amqp://lapse:planted-1@rabbitmq/shop", "database-password": "planted-3"}[key]
}

// TestSettings: each worker takes its file and variables as they are in its pod, and no secret is in a ConfigMap.
func TestSettings(t *testing.T) {
	t.Parallel()
	eachCase(t, func(t *testing.T, file string, r release) {
		t.Helper()
		for _, c := range r.configs {
			component := c.Labels["app.kubernetes.io/component"]
			pod := r.pods()[component].Spec
			require.Len(t, c.Data, 1)
			at, dir := "", t.TempDir()
			for _, v := range pod.Volumes {
				if v.Name != "secrets" {
					continue
				}
				for _, item := range v.Secret.Items {
					content := r.keyOf(t, v.Secret.SecretName, item.Key)
					require.NotEmpty(t, content, item.Key)
					require.NoError(t, os.WriteFile(filepath.Join(dir, item.Path), []byte(content+"\n"), 0o600))
				}
			}
			for name, content := range c.Data {
				require.NotContains(t, content, "planted-")
				at = filepath.Join(dir, name)
				require.Contains(t, pod.Containers[0].Args, "/etc/lapse/"+name)
				require.NoError(t, os.WriteFile(at, []byte(strings.ReplaceAll(content, secretsAt, dir)), 0o600))
			}
			var environ []string
			for _, e := range pod.Containers[0].Env {
				value := e.Value
				if e.ValueFrom != nil {
					value = r.keyOf(t, e.ValueFrom.SecretKeyRef.Name, e.ValueFrom.SecretKeyRef.Key)
				}
				environ = append(environ, e.Name+"="+value)
			}
			if component == "migrate" {
				require.Equal(t, []string{"migrate", "up", "--config"}, pod.Containers[0].Args[:3])
				migrates(t, environ, "--config", at)

				continue
			}
			printed := settingsOf(t, component, environ, "-config", at)
			require.NotContains(t, printed, "planted-")
			var settings struct {
				Installation, Prefix string
				Admin, API           struct{ Address string }
				Database             struct{ Address, Migrate, Password string }
				Broker               struct{ URL string }
			}
			require.NoError(t, yaml.Unmarshal([]byte(printed), &settings))
			require.Equal(t, "shop", settings.Installation)
			require.Equal(t, "verify", settings.Database.Migrate)
			require.Equal(t, fmt.Sprintf(":%d", workers[component][0]), settings.Admin.Address)
			require.Equal(t, "[redacted]", settings.Broker.URL)
			require.Equal(t, "[redacted]", settings.Database.Password)
			if component == "publisher" {
				require.Equal(t, ":8080", settings.API.Address)
			}
		}
	})
}

// TestSelectors: what selects pods selects those of one component, and names ports that they open.
func TestSelectors(t *testing.T) {
	t.Parallel()
	eachCase(t, func(t *testing.T, _ string, r release) {
		t.Helper()
		opened := func(component, port string) bool {
			return slices.ContainsFunc(r.pods()[component].Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == port })
		}
		for _, d := range r.deployments {
			require.Equal(t, d.Labels["app.kubernetes.io/component"], r.of(t, d.Spec.Selector.MatchLabels))
			for _, c := range d.Spec.Template.Spec.TopologySpreadConstraints {
				require.Equal(t, d.Spec.Selector.MatchLabels, c.LabelSelector.MatchLabels)
			}
		}
		for _, s := range r.services {
			for _, p := range s.Spec.Ports {
				require.True(t, opened(r.of(t, s.Spec.Selector), p.TargetPort.StrVal), "%s: %s", s.Name, p.Name)
			}
		}
		for _, b := range r.budgets {
			r.of(t, b.Spec.Selector.MatchLabels)
		}
		covered := map[string]bool{}
		for _, p := range r.policies {
			component := r.of(t, p.Spec.PodSelector.MatchLabels)
			covered[component] = true
			require.Equal(t, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}, p.Spec.PolicyTypes)
			for _, in := range p.Spec.Ingress {
				for _, port := range in.Ports {
					require.True(t, opened(component, port.Port.StrVal), "%s: %s", p.Name, port.Port)
				}
			}
		}
		if len(r.policies) > 0 {
			require.Len(t, covered, len(r.pods()))
		}
		for _, m := range r.monitors {
			var found []string
			for _, s := range r.services {
				if labels.SelectorFromSet(m.Spec.Selector.MatchLabels).Matches(labels.Set(s.Labels)) {
					require.Equal(t, m.Spec.Endpoints[0].Port, s.Spec.Ports[0].Name)
					require.True(t, s.Spec.PublishNotReadyAddresses, "metrics of what is not ready matter most")
					found = append(found, r.of(t, s.Spec.Selector))
				}
			}
			require.ElementsMatch(t, slices.Collect(maps.Keys(workers)), found)
			require.Equal(t, "/metrics", m.Spec.Endpoints[0].Path)
		}
	})
}

// TestTheDatabaseIsLetThrough on the port of its address, which is not always 3306.
func TestTheDatabaseIsLetThrough(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]int32{"defaults": 3306, "on": 3307} {
		for _, p := range manifests(t, file).policies {
			require.True(t, slices.ContainsFunc(p.Spec.Egress, func(e networkingv1.NetworkPolicyEgressRule) bool {
				return slices.ContainsFunc(e.Ports, func(port networkingv1.NetworkPolicyPort) bool { return port.Port.IntVal == want })
			}), p.Name)
		}
	}
}

// TestHooks: what the migration needs is there before it, and gone with it.
func TestHooks(t *testing.T) {
	t.Parallel()
	eachCase(t, func(t *testing.T, _ string, r release) {
		t.Helper()
		weights := map[string]string{}
		hook := func(m metav1.ObjectMeta, kind string) {
			if m.Labels["app.kubernetes.io/component"] != "migrate" || m.Annotations["helm.sh/hook"] == "" {
				require.Empty(t, m.Annotations["helm.sh/hook"])

				return
			}
			require.Equal(t, "pre-install,pre-upgrade", m.Annotations["helm.sh/hook"])
			require.Equal(t, "before-hook-creation,hook-succeeded", m.Annotations["helm.sh/hook-delete-policy"])
			weights[kind] = m.Annotations["helm.sh/hook-weight"]
		}
		for _, j := range r.jobs {
			hook(j.ObjectMeta, "job")
			require.Empty(t, j.Spec.Template.Spec.ServiceAccountName, "the release's own is not there yet")
			require.Equal(t, corev1.RestartPolicyNever, j.Spec.Template.Spec.RestartPolicy)
		}
		for _, c := range r.configs {
			hook(c.ObjectMeta, "config")
		}
		for _, d := range r.deployments {
			hook(d.ObjectMeta, "deployment")
		}
		if len(r.jobs) > 0 {
			require.Equal(t, map[string]string{"job": "0", "config": "-10"}, weights)
		}
	})
}

// TestMigrationBringsItsOwnSecret where the chart makes it, with what it needs and no more.
func TestMigrationBringsItsOwnSecret(t *testing.T) {
	t.Parallel()
	v := values(t, "on")
	v["migrate"] = map[string]any{}
	rendered, err := render(t, v)
	require.NoError(t, err)
	doc := rendered["lapse/templates/migrate.yaml"]
	require.Contains(t, doc, "kind: Secret")
	require.Contains(t, doc, "database-password: planted-3")
	require.NotContains(t, doc, "planted-1")
	require.NotContains(t, doc, "planted-4")
}

// TestAutoscaling: on what is due and on notices, never on what waits; the trigger's settings are KEDA's.
func TestAutoscaling(t *testing.T) {
	t.Parallel()
	r := manifests(t, "on")
	content, err := os.ReadFile("testdata/keda/scalers.json")
	require.NoError(t, err)
	var known struct {
		Scalers map[string][]struct {
			Name                     string
			Optional                 bool
			Default                  string
			MetadataVariableReadable bool
		}
	}
	require.NoError(t, json.Unmarshal(content, &known))
	queues := map[string][]string{}
	for _, s := range r.scaled {
		name := s.Spec.ScaleTargetRef.Name
		i := slices.IndexFunc(r.deployments, func(d *appsv1.Deployment) bool { return d.Name == name })
		require.GreaterOrEqual(t, i, 0, name)
		require.Nil(t, r.deployments[i].Spec.Replicas, "the chart and KEDA both say how many")
		for _, trigger := range s.Spec.Triggers {
			takes := map[string]bool{}
			for _, p := range known.Scalers[trigger.Type] {
				takes[p.Name] = p.MetadataVariableReadable
				if trigger.Type == "cron" {
					require.NotEmpty(t, trigger.Metadata[p.Name])
				}
			}
			require.NotEmpty(t, takes, trigger.Type)
			for key := range trigger.Metadata {
				require.True(t, takes[key], "%s takes no %s", trigger.Type, key)
			}
			if trigger.Type == "rabbitmq" {
				queues[r.deployments[i].Labels["app.kubernetes.io/component"]] = append(queues[r.deployments[i].Labels["app.kubernetes.io/component"]], trigger.Metadata["queueName"])
				require.Equal(t, "QueueLength", trigger.Metadata["mode"])
				require.Regexp(t, `^[0-9]+$`, trigger.Metadata["value"])
				if trigger.AuthenticationRef.Name == "shared" {
					continue
				}
				j := slices.IndexFunc(r.auths, func(a triggerAuthentication) bool { return a.Metadata.Name == trigger.AuthenticationRef.Name })
				require.GreaterOrEqual(t, j, 0)
				target := r.auths[j].Spec.SecretTargetRef[0]
				require.Equal(t, "host", target.Parameter)
				require.Equal(t, "amqp://lapse:planted-1@rabbitmq/shop", r.keyOf(t, target.Name, target.Key))
			}
		}
	}
	require.Equal(t, map[string][]string{
		"expirer": {"shop.due.expire.exact", "shop.due.expire.relaxed", "shop.due.unlock"}, "notifier": {"shop.notice"},
	}, queues)
	// The names are those of the topology.
	architecture := read(t, "docs/architecture.md")
	for _, names := range queues {
		for _, name := range names {
			require.Contains(t, architecture, `["lapse.`+strings.TrimPrefix(name, "shop.")+`"]`)
		}
	}
}

// TestRules: the groups are those of configs/prometheus; where nothing waits in the broker, without those of the ladder.
func TestRules(t *testing.T) {
	t.Parallel()
	var source monitoring.PrometheusRuleSpec
	require.NoError(t, yaml.UnmarshalStrict([]byte(read(t, "configs/prometheus/rules/lapse.yaml")), &source))
	require.NotEmpty(t, source.Groups)
	r := manifests(t, "on")
	require.Equal(t, source, r.rules[0].Spec)
	require.Equal(t, "prometheus", r.rules[0].Labels["release"])

	v := values(t, "off")
	v["prometheusRule"] = map[string]any{"enabled": true}
	rendered, err := render(t, v)
	require.NoError(t, err)
	require.NotContains(t, rendered["lapse/templates/monitoring.yaml"], "name: lapse-ladder")
	require.Contains(t, rendered["lapse/templates/monitoring.yaml"], "name: lapse-promise")
}
