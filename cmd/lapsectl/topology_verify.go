package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/secret"
)

// noBroker is an address for a client that only knows names.
func noBroker() secret.String { return secret.New("amqp://localhost/") }

type topologyVerify struct {
	StuckAfter time.Duration `default:"60s" help:"How long dead letters may stand still; 0: do not look. Waited for only if some are under way."`
	JSON       bool          `name:"json" help:"Print JSON."`
}

// Help says what can be seen.
func (c *topologyVerify) Help() string {
	return `With broker.management_url everything is compared; without it only names and arguments. Nothing is changed.`
}

// verifyJSON is what --json prints.
type verifyJSON struct {
	Clean    bool          `json:"clean"`
	Findings []findingJSON `json:"findings"`
	Unseen   []string      `json:"unseen"` // what could not be looked at
}

type findingJSON struct {
	Kind   string `json:"kind"`
	Object string `json:"object"`
	Name   string `json:"name"`
	Detail string `json:"detail"`
}

const stuckLongest = time.Hour

// Run verifies.
func (c *topologyVerify) Run(ctx context.Context, s *system) error {
	if c.StuckAfter < 0 || c.StuckAfter > stuckLongest {
		return fmt.Errorf("--stuck-after: must be between 0s and %s, got %s", stuckLongest, c.StuckAfter)
	}
	t, err := s.topology(true)
	if err != nil {
		return err
	}
	looking, cancel := context.WithTimeout(ctx, inspectLimit+c.StuckAfter)
	defer cancel()
	in, err := t.client.Inspect(looking, t.plan, t.prefix)
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	if c.StuckAfter > 0 && slices.ContainsFunc(in.Queues, func(q broker.QueueState) bool { return q.Held() > 0 }) {
		s.note("some dead letters are under way; looking for %s whether they move", c.StuckAfter)
		stuck, err := t.client.Stuck(looking, t.prefix, c.StuckAfter)
		if err != nil {
			return fmt.Errorf("look for queues that are stuck: %w", err)
		}
		in.Findings = append(in.Findings, stuck...)
	}
	x := verifyJSON{Clean: len(in.Findings) == 0, Findings: []findingJSON{}, Unseen: append([]string{}, in.Unseen...)}
	for _, f := range in.Findings {
		x.Findings = append(x.Findings, findingJSON{string(f.Kind), f.Object, f.Name, f.Detail})
	}
	slices.SortStableFunc(x.Findings, func(a, b findingJSON) int { return strings.Compare(a.Kind+"\x00"+a.Name, b.Kind+"\x00"+b.Name) })
	if c.JSON {
		err = s.printJSON(x)
	} else {
		err = s.print(x.text())
	}
	if err == nil && !x.Clean {
		return s.miss("%d findings", len(x.Findings))
	}
	return err
}

func (x verifyJSON) text() string {
	var b strings.Builder
	if x.Clean {
		b.WriteString("everything is as it should be\n")
	} else {
		rows := table{{"FINDING", "OBJECT", "NAME", "DETAIL"}}
		for _, f := range x.Findings {
			rows = append(rows, []string{f.Kind, f.Object, f.Name, f.Detail})
		}
		b.WriteString(rows.String())
	}
	for _, what := range x.Unseen {
		b.WriteString("not looked at: " + what + "\n")
	}
	return b.String()
}
