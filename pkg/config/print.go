package config

import (
	"encoding"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/lapsehq/lapse/pkg/secret"
)

// Print writes cfg as YAML in the order of its fields, secrets redacted, derived keys left out. A field whose tag says shown:"hex" is redacted
// if it is anything else.
func Print(w io.Writer, cfg any) error {
	v := reflect.New(reflect.TypeOf(cfg)).Elem()
	v.Set(reflect.ValueOf(cfg))
	hidden := map[string]string{}
	if h, ok := v.Addr().Interface().(hider); ok {
		hidden = h.Hidden()
	}
	node, err := structNode(v, "", hidden)
	if err != nil {
		return fmt.Errorf("printing the configuration: %w", err)
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(node); err != nil {
		return fmt.Errorf("printing the configuration: %w", err)
	}
	if err := enc.Close(); err != nil {
		return fmt.Errorf("printing the configuration: %w", err)
	}

	return nil
}

func structNode(v reflect.Value, path string, hidden map[string]string) (*yaml.Node, error) {
	out := &yaml.Node{Kind: yaml.MappingNode}
	var failed error
	fieldsOf(v.Type(), func(name string, f reflect.StructField, squash bool) {
		at, field := join(path, name), v.FieldByIndex(f.Index)
		if _, ok := hidden[at]; ok && !squash {
			return
		}
		if squash {
			at = path
		}
		node, err := valueNode(field, name, at, hidden)
		if f.Tag.Get("shown") == "hex" && strings.Trim(field.String(), "0123456789abcdefABCDEF") != "" {
			node, err = textNode(secret.Redacted) // somebody may have put there what the hash is of
		}
		switch {
		case err != nil:
			failed = err
		case squash:
			out.Content = append(out.Content, node.Content...)
		default:
			out.Content = append(out.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, node)
		}
	})

	return out, failed
}

func valueNode(v reflect.Value, name, path string, hidden map[string]string) (*yaml.Node, error) {
	if m, ok := v.Addr().Interface().(encoding.TextMarshaler); ok {
		text, err := m.MarshalText()
		if err != nil {
			return nil, err
		}

		return textNode(string(text))
	}
	if v.Type() == durationType {
		if word := zeroWords[name]; word != "" && v.Int() == 0 {
			return textNode(word)
		}

		return textNode(formatDuration(time.Duration(v.Int())))
	}
	switch v.Kind() {
	case reflect.Struct:
		return structNode(v, path, hidden)
	case reflect.String:
		return textNode(v.String())
	case reflect.Slice:
		return listNode(v, name, path, hidden)
	case reflect.Map:
		return mapNode(v, name, path, hidden)
	default: // numbers and truth values
		node := &yaml.Node{}

		return node, node.Encode(v.Interface())
	}
}

// textNode quotes where YAML (1.1 or 1.2) would read something else than text.
func textNode(text string) (*yaml.Node, error) {
	node := &yaml.Node{}

	return node, node.Encode(text)
}

func listNode(v reflect.Value, name, path string, hidden map[string]string) (*yaml.Node, error) {
	out := &yaml.Node{Kind: yaml.SequenceNode}
	if v.Len() == 0 {
		out.Style = yaml.FlowStyle
	}
	for i := range v.Len() {
		node, err := valueNode(v.Index(i), name, path, hidden)
		if err != nil {
			return nil, err
		}
		if node.Kind == yaml.MappingNode {
			node.Style = yaml.FlowStyle
		}
		out.Content = append(out.Content, node)
	}

	return out, nil
}

func mapNode(v reflect.Value, name, path string, hidden map[string]string) (*yaml.Node, error) {
	out := &yaml.Node{Kind: yaml.MappingNode}
	if v.Len() == 0 {
		out.Style = yaml.FlowStyle
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		item := reflect.New(v.Type().Elem()).Elem() // members of a map have no address
		item.Set(v.MapIndex(k))
		node, err := valueNode(item, name, join(path, k.String()), hidden)
		if err != nil {
			return nil, err
		}
		label, err := textNode(k.String())
		if err != nil {
			return nil, err
		}
		out.Content = append(out.Content, label, node)
	}

	return out, nil
}
