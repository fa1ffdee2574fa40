package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/secret"
)

const planted = "pl4nted"

// plant puts a text of its own into every secret, in lists and maps too, and counts them.
func plant(v reflect.Value, n *int) {
	switch {
	case v.Type() == reflect.TypeFor[secret.String]():
		*n++
		v.Set(reflect.ValueOf(secret.New(fmt.Sprintf("%s-%d://u:%s@h", planted, *n, planted))))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				plant(v.Field(i), n)
			}
		}
	case v.Kind() == reflect.Map && v.Type().Elem() == reflect.TypeFor[secret.String]():
		*n++
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k1").Convert(v.Type().Key()), reflect.ValueOf(secret.New(planted)))
	}
}

// A token where its hash should be is not shown, neither as a fault nor beside it.
func TestATokenInThePlaceOfItsHashIsNotShown(t *testing.T) {
	t.Parallel()
	c := config.DefaultPublisher()
	c.API.Tokens = []api.Token{{Name: "shop", Hash: planted, Scopes: []string{"read"}}, {Name: "crm", Hash: strings.Repeat("0a", 32)}}
	var out bytes.Buffer
	require.NoError(t, config.Print(&out, c))
	require.NotContains(t, out.String()+fmt.Sprint(c.API.Validate()), planted)
	require.Contains(t, out.String(), strings.Repeat("0a", 32))
}

// Whatever is secret in a worker's configuration is not shown: by -print-config, by fmt, as JSON, nor by what is said of its faults.
func TestPlantedSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	publisher, expirer, notifier := config.DefaultPublisher(), config.DefaultExpirer(), config.DefaultNotifier()
	for _, root := range []any{&publisher, &expirer, &notifier} {
		v, n := reflect.ValueOf(root).Elem(), 0
		plant(v, &n)
		require.GreaterOrEqual(t, n, 3, "broker, its management, database")
		var out bytes.Buffer
		require.NoError(t, config.Print(&out, v.Interface()))
		require.Contains(t, out.String(), secret.Redacted)
		asJSON, err := json.Marshal(v.Interface())
		require.NoError(t, err)
		shown := []string{out.String(), string(asJSON), fmt.Sprintf("%v %+v %#v", v.Interface(), v.Interface(), v.Interface())}
		for i := range v.NumField() {
			if f, ok := v.Field(i).Interface().(interface{ Validate() error }); ok {
				shown = append(shown, fmt.Sprint(f.Validate()))
			}
		}
		for _, s := range shown {
			require.NotContains(t, s, planted)
		}
	}
}
