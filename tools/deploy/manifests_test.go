package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// release is what a rendered chart consists of.
type release struct {
	deployments []*appsv1.Deployment
	jobs        []*batchv1.Job
	configs     []*corev1.ConfigMap
	secrets     []*corev1.Secret
	services    []*corev1.Service
	accounts    []*corev1.ServiceAccount
	budgets     []*policyv1.PodDisruptionBudget
	policies    []*networkingv1.NetworkPolicy
	monitors    []*monitoring.ServiceMonitor
	rules       []*monitoring.PrometheusRule
	scaled      []scaledObject
	auths       []triggerAuthentication
}

type scaledObject struct {
	Metadata metav1.ObjectMeta
	Spec     struct {
		ScaleTargetRef struct{ Name string }
		Triggers       []struct {
			Type              string
			Metadata          map[string]string
			AuthenticationRef struct{ Name string }
		}
	}
}

type triggerAuthentication struct {
	Metadata metav1.ObjectMeta
	Spec     struct {
		SecretTargetRef []struct{ Parameter, Name, Key string }
	}
}

// manifests decodes as strictly as an API server that is asked to: no field that the type does not have, none twice.
func manifests(t *testing.T, file string) release {
	t.Helper()
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, monitoring.AddToScheme,
	} {
		require.NoError(t, add(types))
	}
	decoder := serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDeserializer()
	var out release
	names := map[string]bool{}
	for _, doc := range documents(t, file) {
		var head struct {
			metav1.TypeMeta
			Metadata metav1.ObjectMeta
		}
		require.NoError(t, yaml.Unmarshal([]byte(doc), &head), doc)
		require.Empty(t, utilvalidation.IsDNS1123Subdomain(head.Metadata.Name), head.Metadata.Name)
		require.Empty(t, metavalidation.ValidateLabels(head.Metadata.Labels, field.NewPath("labels")))
		require.Empty(t, head.Metadata.Namespace, "the release says where")
		id := head.Kind + " " + head.Metadata.Name
		require.False(t, names[id], "%s is there twice", id)
		names[id] = true
		if strings.HasPrefix(head.APIVersion, "keda.sh/") {
			out.keda(t, head.Kind, doc)

			continue
		}
		object, _, err := decoder.Decode([]byte(doc), nil, nil)
		require.NoError(t, err, doc)
		out.add(t, object)
	}

	return out
}

func (r *release) add(t *testing.T, object runtime.Object) {
	t.Helper()
	switch o := object.(type) {
	case *appsv1.Deployment:
		r.deployments = append(r.deployments, o)
	case *batchv1.Job:
		r.jobs = append(r.jobs, o)
	case *corev1.ConfigMap:
		r.configs = append(r.configs, o)
	case *corev1.Secret:
		r.secrets = append(r.secrets, o)
	case *corev1.Service:
		require.Empty(t, utilvalidation.IsDNS1035Label(o.Name))
		r.services = append(r.services, o)
	case *corev1.ServiceAccount:
		r.accounts = append(r.accounts, o)
	case *policyv1.PodDisruptionBudget:
		r.budgets = append(r.budgets, o)
	case *networkingv1.NetworkPolicy:
		r.policies = append(r.policies, o)
	case *monitoring.ServiceMonitor:
		r.monitors = append(r.monitors, o)
	case *monitoring.PrometheusRule:
		r.rules = append(r.rules, o)
	default:
		t.Fatalf("nobody looks at a %T", o)
	}
}

// keda holds a document against KEDA's CRD as an API server does: types and bounds, and no field that would be pruned.
func (r *release) keda(t *testing.T, kind, doc string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata/keda", "keda.sh_"+strings.ToLower(kind)+"s.yaml"))
	require.NoError(t, err)
	var crd apiextensionsv1.CustomResourceDefinition
	require.NoError(t, yaml.Unmarshal(content, &crd))
	require.Equal(t, "v1alpha1", crd.Spec.Versions[0].Name)
	var props apiextensions.JSONSchemaProps
	require.NoError(t, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil))
	var object map[string]any
	require.NoError(t, yaml.UnmarshalStrict([]byte(doc), &object))

	validator, _, err := validation.NewSchemaValidator(&props)
	require.NoError(t, err)
	require.Empty(t, validation.ValidateCustomResource(nil, object, validator))
	structural, err := schema.NewStructural(&props)
	require.NoError(t, err)
	unknown := pruning.PruneWithOptions(runtime.DeepCopyJSON(object), structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	require.Empty(t, unknown, kind)

	u := unstructured.Unstructured{Object: object}
	plain, err := u.MarshalJSON()
	require.NoError(t, err)
	switch kind {
	case "ScaledObject":
		r.scaled = append(r.scaled, scaledObject{})
		require.NoError(t, json.Unmarshal(plain, &r.scaled[len(r.scaled)-1]))
	case "TriggerAuthentication":
		r.auths = append(r.auths, triggerAuthentication{})
		require.NoError(t, json.Unmarshal(plain, &r.auths[len(r.auths)-1]))
	default:
		t.Fatalf("nobody looks at a %s", kind)
	}
}
