package event_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/lapsehq/lapse/pkg/event"
)

// node walks a document by names.
func node(t *testing.T, doc any, path ...string) any {
	t.Helper()
	for _, name := range path {
		object, ok := doc.(map[string]any)
		require.True(t, ok, "%v: no object above %s", path, name)
		require.Contains(t, object, name, "%v", path)
		doc = object[name]
	}
	return doc
}

// resolve follows a reference within docs/asyncapi.yaml or to a file beside it.
func resolve(t *testing.T, doc any, ref string) any {
	t.Helper()
	file, pointer, _ := strings.Cut(ref, "#")
	if file != "" {
		raw, err := os.ReadFile(filepath.Join("../../docs", file))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(raw, &doc))
	}
	if pointer == "" {
		return doc
	}
	return node(t, doc, strings.Split(strings.TrimPrefix(pointer, "/"), "/")...)
}

func references(v any, found func(ref string)) {
	switch v := v.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			found(ref)
		}
		for _, member := range v {
			references(member, found)
		}
	case []any:
		for _, member := range v {
			references(member, found)
		}
	}
}

// docs/asyncapi.yaml has every event in and out, where it goes, and every schema.
func TestAsyncAPIHasEveryEvent(t *testing.T) {
	raw, err := os.ReadFile("../../docs/asyncapi.yaml")
	require.NoError(t, err)
	var doc map[string]any
	require.NoError(t, yaml.Unmarshal(raw, &doc))
	require.Equal(t, "3.0.0", doc["asyncapi"])
	references(doc, func(ref string) { require.NotNil(t, resolve(t, doc, ref), ref) })

	channelOf := map[string]string{event.TypeGrant: "issuance"}
	for _, typ := range event.OrderTypes() {
		channelOf[typ] = "orders"
	}
	for _, typ := range event.UserTypes() {
		channelOf[typ] = "users"
	}
	for _, typ := range event.OutTypes() {
		channelOf[typ] = "events"
	}
	messages, ok := node(t, doc, "components", "messages").(map[string]any)
	require.True(t, ok)
	require.Len(t, messages, len(channelOf))
	for name, m := range messages {
		typ, ok := node(t, m, "name").(string)
		require.True(t, ok)
		channel := channelOf[typ]
		require.NotEmpty(t, channel, typ)
		delete(channelOf, typ)
		require.Equal(t, "schema/"+typ+".json", node(t, m, "payload", "schema", "$ref"))
		require.Equal(t, event.ContentType, node(t, m, "contentType"))
		require.Equal(t, strings.TrimSuffix(typ, ".v1"), node(t, m, "x-routing-key"))
		require.Equal(t, "#/components/messages/"+name, node(t, doc, "channels", channel, "messages", name, "$ref"))
		require.Equal(t, "{prefix}."+channel, node(t, doc, "channels", channel, "address"))
	}
	require.Empty(t, channelOf)

	actions := map[string]any{}
	told := map[string]bool{}
	operations, ok := node(t, doc, "operations").(map[string]any)
	require.True(t, ok)
	for _, o := range operations {
		ref, ok := node(t, o, "channel", "$ref").(string)
		require.True(t, ok)
		actions[strings.TrimPrefix(ref, "#/channels/")] = node(t, o, "action")
		references(node(t, o, "messages"), func(m string) {
			require.True(t, strings.HasPrefix(m, ref+"/messages/"), m)
			told[m] = true
		})
	}
	require.Equal(t, map[string]any{"issuance": "receive", "orders": "receive", "users": "receive", "events": "send"}, actions)
	require.Len(t, told, len(messages))

	// Nothing in docs/schema is forgotten.
	files, err := filepath.Glob("../../docs/schema/*.v1.json")
	require.NoError(t, err)
	require.Len(t, files, len(messages))
	readme, err := os.ReadFile("../../docs/schema/README.md")
	require.NoError(t, err)
	for _, file := range files {
		require.Contains(t, string(raw), "schema/"+filepath.Base(file))
		require.Contains(t, string(readme), "`"+filepath.Base(file)+"`")
	}
}
