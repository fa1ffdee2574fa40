// Package status tells what an installation is doing and what comes due, from the database and the broker alone: lapsectl prints it,
// and the console shows it.
//
// Invariants: nothing in it tells of a user or a coupon; every reading is bounded, by its context and by the rows it counts; a
// reading changes nothing.
package status

import (
	"fmt"
	"time"
)

// Status is the state of an installation as --json prints it.
type Status struct {
	at time.Time

	Now            string      `json:"now"` // of the database
	Installation   string      `json:"installation"`
	Mechanism      string      `json:"mechanism"`
	Healthy        bool        `json:"healthy"`
	Attention      []string    `json:"attention"` // what needs it, for a person
	Fleet          []Pod       `json:"fleet"`
	Broker         Broker      `json:"broker"`
	Rates          Rates       `json:"rates_per_second"` // over fifteen seconds
	DrainPerSecond float64     `json:"drain_per_second"` // what the fleet can do; 0: not known yet
	Stages         []Stage     `json:"stages"`           // over fifteen seconds
	Bottleneck     *Bottleneck `json:"bottleneck"`
	Lateness       Lateness    `json:"lateness"` // over a minute
	Overdue        Overdue     `json:"overdue"`
	Outbox         []Lane      `json:"outbox"`
	ParkedRows     int64       `json:"outbox_parked"`
	Locks          Locks       `json:"locks"`
	Sweep          Sweep       `json:"sweep"`
	Planner        Planner     `json:"planner"`
	Clock          Clocks      `json:"clock"`
	Paused         []Pause     `json:"paused"` // by operators
	Limits         []string    `json:"limits_exceeded"`
	// Notes is Attention for programs that speak other languages, one for one.
	Notes []Note `json:"-"`
}

// Note is one thing that needs attention: its code never changes its meaning, and its values stand in the order of the text's.
type Note struct {
	Code   string   `json:"code"`
	Values []string `json:"values"`
	Text   string   `json:"text"`
}

// Pod is a process, as it tells of itself.
type Pod struct {
	Pod      string `json:"pod"`
	Role     string `json:"role"`
	Version  string `json:"version"`
	Started  string `json:"started_at"`
	SilentMS int64  `json:"silent_ms"`
	Alive    bool   `json:"alive"`
}

// Broker is what is in the broker.
type Broker struct {
	Reachable bool    `json:"reachable"`
	Error     string  `json:"error,omitempty"`
	Waiting   int     `json:"waiting"` // in the ladder
	Missing   int     `json:"missing"` // queues
	Queues    []Queue `json:"queues"`
}

// Queue is a queue that is none of the ladder's.
type Queue struct {
	Role     string `json:"role"`
	Queue    string `json:"queue"`
	Messages int    `json:"messages"`
}

// Rates are per second.
type Rates struct {
	Issued    float64 `json:"issued"`
	Expired   float64 `json:"expired"`
	Published float64 `json:"published"`
	Notices   float64 `json:"notices"`
}

// Stage is how long a part of the work takes.
type Stage struct {
	Stage    string  `json:"stage"`
	Party    string  `json:"party"` // broker, database, provider; empty: it contains others
	Count    int64   `json:"count"`
	Failed   int64   `json:"failed"`
	MeanMS   float64 `json:"mean_ms"`
	MaxMS    float64 `json:"max_ms"`
	CalmMS   float64 `json:"calm_ms"`
	Slowness float64 `json:"slowness"` // mean over calm
}

// Bottleneck is who is slower than all others.
type Bottleneck struct {
	Party    string  `json:"party"`
	Stage    string  `json:"stage"`
	Slowness float64 `json:"slowness"`
}

// Reason is what made it the bottleneck.
func (b *Bottleneck) Reason() string {
	if b.Slowness >= failingFrom {
		return b.Stage + " fails more often than not"
	}
	return fmt.Sprintf("%s takes %.0f times as long as when all is calm", b.Stage, b.Slowness)
}

const failingFrom = 1000

// Lateness is how late coupons expired.
type Lateness struct {
	Expired int64   `json:"expired"`
	P50MS   float64 `json:"p50_ms"` // at most
	P99MS   float64 `json:"p99_ms"`
}

// Overdue are coupons that should have expired.
type Overdue struct {
	Coupons       int64   `json:"coupons"`
	OldestSeconds float64 `json:"oldest_seconds"`
}

// Lane is one kind of row of the outbox.
type Lane struct {
	Lane     string `json:"lane"`
	Rows     int64  `json:"rows"`
	OldestMS int64  `json:"oldest_ms"`
}

// Locks are coupons held by orders.
type Locks struct {
	Locked        int64   `json:"locked"`
	RunOut        int64   `json:"run_out"`
	OldestSeconds float64 `json:"oldest_seconds"`
}

// Sweep is what the sweep is at.
type Sweep struct {
	Modes     []string `json:"modes"`
	Recovered int64    `json:"recovered"` // over fifteen seconds
	Skipped   int64    `json:"skipped"`
}

// Planner is where the planner stands.
type Planner struct {
	HorizonSeconds float64 `json:"horizon_seconds"` // 0: unlimited
	Frontier       *string `json:"frontier"`
	Held           bool    `json:"held"`
	LagSeconds     float64 `json:"lag_seconds"`

	Reminders []RemindLag `json:"reminders"`
}

// RemindLag is where the planner stands at one offset.
type RemindLag struct {
	Offset     string  `json:"offset"`
	Frontier   *string `json:"frontier"` // null: its plan has not begun
	LagSeconds float64 `json:"lag_seconds"`
}

// Clocks are the clocks of the processes.
type Clocks struct {
	Processes int   `json:"processes"`
	Stopped   int   `json:"stopped"`
	WorstMS   int64 `json:"worst_offset_ms"`
}

// Pause is a brake that is on.
type Pause struct {
	What   string `json:"what"`
	Scope  string `json:"scope"` // template, batch, channel; empty: all of it
	ID     string `json:"id"`
	Since  string `json:"since"`
	Actor  string `json:"actor"` // empty: not known any more
	Reason string `json:"reason"`
}

// String names it for people.
func (p Pause) String() string {
	if p.Scope == "" {
		return p.What
	}
	return p.What + " of " + p.Scope + " " + p.ID
}
