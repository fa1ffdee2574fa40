package pulse

import (
	"encoding/json"
	"fmt"
	"time"
)

// Report is what a process tells of itself.
type Report struct {
	Pod     string
	Role    string
	Version string
	Started time.Time
	Seen    time.Time // on the database's clock; zero in a report that is being made
	Mode    string    // of the sweep
	Stages  map[Stage]Timing
	Counts  map[string]int64 // of the last Window
	Late    Lateness         // of the last minute
}

// MaxRow is how many bytes a row may hold.
const MaxRow = 512

type podRow struct {
	Role    string           `json:"r"`
	Version string           `json:"v"`
	Started int64            `json:"s"` // milliseconds since 1970
	Mode    string           `json:"m,omitempty"`
	Counts  map[string]int64 `json:"c,omitempty"`
	Late    []int64          `json:"l,omitempty"` // without the zeros at the end
}

const (
	maxVersion = 40
	micros     = int64(time.Microsecond)
)

// Rows gives the two rows of a report: who and what was done, and the timings.
func (r *Report) Rows() (pod, stage string, err error) {
	late := r.Late[:]
	for len(late) > 0 && late[len(late)-1] == 0 {
		late = late[:len(late)-1]
	}
	p, err := json.Marshal(podRow{
		Role: r.Role, Version: r.Version[:min(len(r.Version), maxVersion)], Started: r.Started.UnixMilli(), Mode: r.Mode,
		Counts: r.Counts, Late: late,
	})
	if err != nil {
		return "", "", fmt.Errorf("report: %w", err)
	}
	timings := make(map[Stage][5]int64, len(r.Stages))
	for s, t := range r.Stages {
		timings[s] = [5]int64{t.Count, t.Failed, int64(t.Mean) / micros, int64(t.Max) / micros, int64(t.Calm) / micros}
	}
	t, err := json.Marshal(timings)
	if err != nil {
		return "", "", fmt.Errorf("report: %w", err)
	}
	if len(p) > MaxRow || len(t) > MaxRow {
		return "", "", fmt.Errorf("report: must be at most %d bytes a row, got %d and %d", MaxRow, len(p), len(t))
	}
	return string(p), string(t), nil
}

// ReadPod reads the first row; false if another release wrote it in another form.
func (r *Report) ReadPod(text string) bool {
	var row podRow
	if json.Unmarshal([]byte(text), &row) != nil || len(row.Late) > lateBuckets {
		return false
	}
	r.Role, r.Version, r.Mode, r.Counts = row.Role, row.Version, row.Mode, row.Counts
	r.Started = time.UnixMilli(row.Started).UTC()
	copy(r.Late[:], row.Late)
	return true
}

// ReadStages reads the second row; false if another release wrote it in another form.
func (r *Report) ReadStages(text string) bool {
	var timings map[Stage][5]int64
	if json.Unmarshal([]byte(text), &timings) != nil {
		return false
	}
	r.Stages = make(map[Stage]Timing, len(timings))
	for s, t := range timings {
		r.Stages[s] = Timing{
			Count: t[0], Failed: t[1], Mean: time.Duration(t[2] * micros), Max: time.Duration(t[3] * micros), Calm: time.Duration(t[4] * micros),
		}
	}
	return true
}

// Merge puts processes' reports together.
func Merge(rs []Report) (timings map[Stage]Timing, counts map[string]int64, late Lateness) {
	timings, counts = map[Stage]Timing{}, map[string]int64{}
	for i := range rs {
		for s, t := range rs[i].Stages {
			timings[s] = timings[s].add(t)
		}
		for what, n := range rs[i].Counts {
			counts[what] += n
		}
		late.Add(rs[i].Late)
	}
	return timings, counts, late
}
