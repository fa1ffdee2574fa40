package event

import (
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// The samples are those that the tests hold against code and schemas, so what is printed is what is sent.
//
//go:embed testdata/*.json
var samples embed.FS

// Sample is a valid event, as it is on the wire.
type Sample struct {
	Name string // what is special about it, such as expired-from-lock
	Type string // such as coupon.expired.v1
	ID   string
	Body []byte
}

// Samples gives the samples of a type in the order of their names: of an event in or out. Empty for a type that there is not.
func Samples(typ string) ([]Sample, error) {
	all, err := allSamples()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s Sample) bool { return s.Type != typ }), nil
}

// OutSamples gives the samples of all events of ours.
func OutSamples() ([]Sample, error) {
	all, err := allSamples()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s Sample) bool { return !slices.Contains(OutTypes(), s.Type) }), nil
}

func allSamples() ([]Sample, error) {
	entries, err := samples.ReadDir("testdata")
	if err != nil {
		return nil, fmt.Errorf("samples: %w", err)
	}
	var out []Sample
	for _, e := range entries {
		body, err := samples.ReadFile(path.Join("testdata", e.Name()))
		if err != nil {
			return nil, fmt.Errorf("samples: %w", err)
		}
		var head struct {
			Spec string `json:"specversion"`
			ID   string `json:"id"`
			Type string `json:"type"`
		}
		if json.Unmarshal(body, &head) != nil || head.Spec == "" || head.Type == TypeHeartbeat {
			continue // data alone, a trigger, or between workers
		}
		out = append(out, Sample{Name: strings.TrimSuffix(e.Name(), ".json"), Type: head.Type, ID: head.ID, Body: body})
	}
	return out, nil
}
