package compare

import (
	"context"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/compare/report"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/rig"
)

const (
	sampleEvery = 100 * time.Millisecond
	mebibyte    = 1 << 20
)

// meter reads what processes have used.
type meter struct {
	ask map[string]func() (rig.Usage, error) // by party

	mu   sync.Mutex
	peak map[string]float64 // MiB
}

// usage of a party: of all its processes together.
type usage struct {
	cpu time.Duration
	mib float64
}

type reading struct {
	at time.Time
	by map[string]usage
}

// meter of the workers that run, and of the servers whose processes are this machine's: what runs in containers is left out.
func (s *site) meter(mechanism string) (*meter, error) {
	m := &meter{ask: map[string]func() (rig.Usage, error){"workers": s.workersUsage}, peak: make(map[string]float64)}
	for party, server := range map[string]string{"broker": "rabbitmq", "database": "database", "redis": "redis"} {
		if party == "redis" && mechanism != config.MechanismZSet {
			continue
		}
		_, here, err := s.cfg.Stack.ServerUsage(server)
		if err != nil {
			return nil, err
		}
		if here {
			m.ask[party] = func() (rig.Usage, error) {
				u, _, err := s.cfg.Stack.ServerUsage(server)
				return u, err
			}
		}
	}
	return m, nil
}

func (s *site) workersUsage() (sum rig.Usage, err error) {
	for _, w := range workers() {
		u, err := s.Fleet().Usage(w)
		if err != nil {
			return sum, err
		}
		sum.CPU += u.CPU
		sum.Resident += u.Resident
	}
	return sum, nil
}

func (m *meter) read() (reading, error) {
	r := reading{at: time.Now(), by: make(map[string]usage)}
	for party, ask := range m.ask {
		u, err := ask()
		if err != nil {
			return r, err
		}
		r.by[party] = usage{u.CPU, float64(u.Resident) / mebibyte}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for party, u := range r.by {
		m.peak[party] = max(m.peak[party], u.mib)
	}
	return r, nil
}

// forget the peaks so far.
func (m *meter) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.peak)
}

// watch reads again and again, for the peaks, until ctx ends.
func (m *meter) watch(ctx context.Context) error {
	turn := time.NewTicker(sampleEvery)
	defer turn.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-turn.C:
		}
		if _, err := m.read(); err != nil {
			return err
		}
	}
}

// costs of n coupons, from four readings.
func (m *meter) costs(n int, begun, waiting, waited, done reading) map[string]report.Cost {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string]report.Cost, len(m.ask))
	for party := range m.ask {
		cpu := func(from, to reading) float64 { return (to.by[party].cpu - from.by[party].cpu).Seconds() }
		c := report.Cost{
			AcceptCPU:  report.Per100k(cpu(begun, waiting), n),
			DueCPU:     report.Per100k(cpu(waited, done), n),
			WaitingMiB: report.Per100k(max(0, waited.by[party].mib-begun.by[party].mib), n),
			PeakMiB:    report.Round(m.peak[party], 1),
			GrownMiB:   report.Round(max(0, m.peak[party]-begun.by[party].mib), 1),
		}
		if span := waited.at.Sub(waiting.at); span >= waitLeast {
			c.WaitCores = report.Round(cpu(waiting, waited)/span.Seconds(), 3)
		}
		out[party] = c
	}
	return out
}
