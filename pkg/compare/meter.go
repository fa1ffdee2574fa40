package compare

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/pkg/compare/report"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/rig"
)

const (
	sampleEvery = 100 * time.Millisecond
	tick        = 10 * time.Millisecond // of the kernel's accounts; the same on every Linux
	mebibyte    = 1 << 20
)

// meter reads what processes have used, from /proc.
type meter struct {
	pids map[string][]int // by party

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
	m := &meter{pids: make(map[string][]int), peak: make(map[string]float64)}
	for _, w := range workers() {
		pid, err := s.Fleet().Pid(w)
		if err != nil {
			return nil, err
		}
		m.pids["workers"] = append(m.pids["workers"], pid)
	}
	for party, server := range map[string]string{"broker": "rabbitmq", "database": "database", "redis": "redis"} {
		if party == "redis" && mechanism != config.MechanismZSet {
			continue
		}
		pid, err := s.cfg.Stack.Pid(server)
		if err != nil {
			return nil, err
		}
		if pid > 0 {
			m.pids[party] = []int{pid}
		}
	}
	return m, nil
}

func (m *meter) read() (reading, error) {
	r := reading{at: time.Now(), by: make(map[string]usage)}
	for party, pids := range m.pids {
		var sum usage
		for _, pid := range pids {
			u, err := usageOf(pid)
			if err != nil {
				return r, err
			}
			sum.cpu += u.cpu
			sum.mib += u.mib
		}
		r.by[party] = sum
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
	out := make(map[string]report.Cost, len(m.pids))
	for party := range m.pids {
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

// usageOf a process so far.
func usageOf(pid int) (usage, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return usage{}, fmt.Errorf("what a process uses: %w", err)
	}
	memory, err := os.ReadFile(dir + "/statm")
	if err != nil {
		return usage{}, fmt.Errorf("what a process uses: %w", err)
	}
	return usageIn(string(stat), string(memory))
}

// usageIn the texts of /proc/PID/stat and statm.
func usageIn(stat, memory string) (usage, error) {
	// Fields after the command's name, which may hold anything, begin with the third; the 14th and 15th are user and system time.
	const user, system, resident = 11, 12, 1
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	pages := strings.Fields(memory)
	if len(fields) <= system || len(pages) <= resident {
		return usage{}, errors.New("what a process uses: /proc says it in a way that is not known")
	}
	u, err := strconv.ParseInt(fields[user], 10, 64)
	s, err2 := strconv.ParseInt(fields[system], 10, 64)
	r, err3 := strconv.ParseInt(pages[resident], 10, 64)
	if err := errors.Join(err, err2, err3); err != nil {
		return usage{}, fmt.Errorf("what a process uses: %w", err)
	}
	return usage{cpu: time.Duration(u+s) * tick, mib: float64(r) * float64(os.Getpagesize()) / mebibyte}, nil
}

// machine that everything runs on.
func machine() report.Machine {
	m := report.Machine{Cores: runtime.NumCPU(), CPU: strings.TrimSpace(field("/proc/cpuinfo", "model name")), System: runtime.GOOS}
	if kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(field("/proc/meminfo", "MemTotal")), " kB")); err == nil {
		m.MemoryMiB = kb / 1024
	}
	if name := strings.Trim(field("/etc/os-release", "PRETTY_NAME"), `" `); name != "" {
		m.System = name
	}
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.System += ", Linux " + strings.TrimSpace(string(kernel))
	}
	return m
}

// field is the first value of a name in a file of lines such as "name: value" or "name=value"; empty if there is none.
func field(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // it was only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok {
			if at := strings.IndexAny(rest, ":="); at >= 0 {
				return rest[at+1:]
			}
		}
	}
	return ""
}

// redisVersion is what the stack's Redis says it is.
func redisVersion(ctx context.Context, stack rig.Stack) (string, error) {
	options, err := redis.ParseURL(stack.RedisURL.Reveal())
	if err != nil {
		return "", errors.New("TEST_REDIS_URL is malformed")
	}
	client := redis.NewClient(options)
	info, err := client.Info(ctx, "server").Result()
	if err := errors.Join(err, client.Close()); err != nil {
		return "", fmt.Errorf("asking Redis for its version: %w", err)
	}
	for text := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(text, "redis_version:"); ok {
			return "Redis " + strings.TrimSpace(v), nil
		}
	}
	return "Redis", nil
}
