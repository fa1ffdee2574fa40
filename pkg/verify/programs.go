package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	programLimit = 30 * time.Second
	lapsectl     = "lapsectl"
)

// badCall is a call of a program that must be refused, and what its answer must say: field, value, reason.
type badCall struct {
	program string
	args    []string
	env     []string
	code    int
	says    []string
	reads   string // a file, written by the program, that belongs to the answer
}

// callBadly calls the programs as people do, against the running installation, with what is wrong.
func (w *walk) callBadly(ctx context.Context, s *demo.Stage) (o outcome, err error) {
	dir, err := os.MkdirTemp("", "lapse-verify-")
	if err != nil {
		return o, fmt.Errorf("a directory for files: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	calls, err := badCalls(s, dir)
	if err != nil {
		return o, err
	}
	for _, c := range calls {
		o.sent++
		name := c.program + " " + strings.Join(c.args, " ")
		answer, code, err := w.call(ctx, s, dir, c)
		if err != nil {
			return o, err
		}
		if code != c.code {
			o.answered++
			o.misses = append(o.misses, fmt.Sprintf("%s: exit code %d, want %d: %s", name, code, c.code, answer))
			continue
		}
		o.judge(name, answer, c.says)
	}
	return o, nil
}

// call gives everything that the program said, and its exit code.
func (w *walk) call(ctx context.Context, s *demo.Stage, dir string, c badCall) (answer string, code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(w.cfg.Bin, c.program), c.args...)
	cmd.Dir, cmd.Env = dir, append(s.Env(), c.env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		return "", 0, fmt.Errorf("calling %s: %w", c.program, errors.Join(err, ctx.Err()))
	}
	answer = string(out)
	if c.reads != "" {
		body, err := os.ReadFile(c.reads)
		if err != nil {
			return answer, cmd.ProcessState.ExitCode(), nil // what is missing will be missed
		}
		answer += string(body)
	}
	return answer, cmd.ProcessState.ExitCode(), nil
}

func badCalls(s *demo.Stage, dir string) ([]badCall, error) {
	csv, jsonl := filepath.Join(dir, "rows.csv"), filepath.Join(dir, "rows.jsonl")
	rejects := func(name string) string { return filepath.Join(dir, name+".rejects") }
	template := fmt.Sprint(s.Template())
	for name, body := range map[string]string{
		csv: "template_id,user_id,grant_key,expires_at\n" +
			"zero,u1,k1,\n" + template + ",,k2,\n" + template + ",u3,k3,tomorrow\n" + template + ",u4,k4,2020-01-01\n",
		jsonl: `{"template_id":"` + template + `","user_id":7,"grant_key":"k1"}` + "\n" +
			`{"template_id":"` + template + `","user_id":"u2","grant_key":"k2","colour":"red"}` + "\n" + `{"template_id":` + "\n",
	} {
		if err := os.WriteFile(name, []byte(body), 0o600); err != nil {
			return nil, fmt.Errorf("a file of bad rows: %w", err)
		}
	}
	config := filepath.Join(dir, "worker.yaml")
	if err := os.WriteFile(config, []byte("delay:\n  mechanism: clock\nladder:\n  shards: 99\n  colour: red\n"), 0o600); err != nil {
		return nil, fmt.Errorf("a bad configuration: %w", err)
	}
	faults := []string{
		"LAPSE__INSTALLATION=Not So", "LAPSE__PREFIX=9lives", "LAPSE__DATABASE__MAX_OPEN=0", "LAPSE__DATABASE__DIAL_TIMEOUT=soon", "LAPSE__NOSUCH__KEY=1",
	}
	named := []string{
		"installation", `"Not So"`, "prefix", `"9lives"`, "database.max_open", "got 0", "database.dial_timeout", "soon", "nosuch",
		"delay.mechanism", `"clock"`, "ladder.shards", "got 99", "colour",
	}
	create := []string{"template", "create", "--name=bad", "--value=500", "--currency=CNY", "--reason=bad", "--actor=verify"}
	calls := []badCall{
		{lapsectl, []string{"grant", "--template=0", "--user=u"}, nil, 2, []string{"--template", `"0"`, "whole number from 1 on"}, ""},
		{lapsectl, []string{"grant", "--template=" + template, "--user=u", "--expires-at=tomorrow"}, nil, 2, []string{"--expires-at", `"tomorrow"`}, ""},
		{lapsectl, []string{"grant", "--template=" + template, "--user=u", "--key=a\nb"}, nil, 2, []string{"--key", `a\nb`}, ""},
		{lapsectl, []string{"grant", "--template=" + template, "--user=u", "--count=0"}, nil, 2, []string{"--count", "0"}, ""},
		{lapsectl, append(create, "--never", "--precision=fuzzy"), nil, 2, []string{"precision", `"fuzzy"`, "exact, standard or relaxed"}, ""},
		{lapsectl, append(create, "--after=0s"), nil, 2, []string{"after", "0s", "above 0"}, ""},
		{lapsectl, append(create, "--never", "--quota=-1"), nil, 2, []string{"quota", "-1", "0 (unlimited) or more"}, ""},
		{lapsectl, []string{"explain", "seven"}, nil, 2, []string{"seven", "whole number from 1 on"}, ""},
		{
			lapsectl,
			[]string{"grant", "--file=" + csv, "--batch=bad", "--rejects=" + rejects("csv")},
			nil, 1,
			[]string{`"template_id"`, `"zero"`, `"user_id"`, `"expires_at"`, `"tomorrow"`, `"2020-01-01"`, `"line":2`, `"line":5`, `"reason"`},
			rejects("csv"),
		},
		{
			lapsectl,
			[]string{"grant", "--file=" + jsonl, "--batch=bad", "--rejects=" + rejects("jsonl")},
			nil, 1,
			[]string{`"user_id"`, `"7"`, `colour`, `"line":1`, `"line":2`, `"line":3`, `"reason"`},
			rejects("jsonl"),
		},
	}
	for _, worker := range []string{demo.Publisher, demo.Expirer, demo.Notifier} {
		calls = append(calls, badCall{worker, []string{"-validate", "-config", config}, faults, 1, named, ""})
	}
	return calls, nil
}
