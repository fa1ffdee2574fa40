package event_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

var update = flag.Bool("update", false, "write the golden samples anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func codec(t require.TestingT) *event.Codec {
	c, err := event.NewCodec("test")
	require.NoError(t, err)
	return c
}

// schema compiles a document of docs/schema with its formats asserted.
func schema(t require.TestingT, name string) *jsonschema.Schema {
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	files, err := filepath.Glob("../../docs/schema/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		require.NoError(t, err)
		require.NoError(t, c.AddResource(doc.(map[string]any)["$id"].(string), doc))
	}
	s, err := c.Compile("https://github.com/lapsehq/lapse/docs/schema/" + name + ".json")
	require.NoError(t, err)
	return s
}

func validate(s *jsonschema.Schema, body []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name+".json")
	if *update {
		require.NoError(t, os.WriteFile(file, append(bytes.Clone(got), '\n'), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(bytes.TrimSuffix(want, []byte("\n"))), string(got))
}

func sample(t require.TestingT, name string) []byte {
	raw, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	require.NoError(t, err)
	return bytes.TrimSpace(raw)
}

var (
	granted = time.Date(2026, 10, 1, 8, 30, 0, 120_000_000, time.UTC)
	ends    = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
)

func transition(change func(*coupon.Transition)) coupon.Transition {
	t := coupon.Transition{
		CouponID: 4711, Version: 1, To: coupon.Unused, Cause: coupon.CauseGrant,
		UserID: "user-81", BatchID: "autumn", GrantKey: "autumn:user-81:1", Issuer: "shop",
		Terms:     coupon.Terms{TemplateID: 7, Revision: 2, Value: 1500, Currency: "CNY", Precision: coupon.Exact},
		ValidFrom: granted, ExpiresAt: ends, DueAt: ends, At: granted, Trace: trace,
	}
	if change != nil {
		change(&t)
	}
	return t
}

func toExpired(t *coupon.Transition) {
	t.Version, t.From, t.To, t.Cause = 2, coupon.Unused, coupon.Expired, coupon.CauseLadder
	t.At = ends.Add(187 * time.Millisecond)
	t.GrantKey, t.Issuer = "", ""
}

// byOrder makes a transition an order's, with its lock.
func byOrder(t *coupon.Transition) {
	t.Cause, t.OrderID, t.LockUntil = coupon.CauseOrder, "order-9", granted.Add(30*time.Minute)
	t.GrantKey, t.Issuer = "", ""
}

// data is the data of an event, for a look inside.
func data(t require.TestingT, body []byte) map[string]any {
	var e struct{ Data map[string]any }
	require.NoError(t, json.Unmarshal(body, &e))
	return e.Data
}
