package rig

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Program is a process to run: one of the workers.
type Program struct {
	Name string   // unique in the fleet: names its log and ports file
	Path string   // of the executable
	Args []string // besides -ports-file, which the fleet gives
	Env  []string // the whole environment
	Log  string   // file that takes what it prints; empty: one of the fleet's own, <dir>/<name>.log
}

// Fleet runs real processes, each in a session of its own so that a terminal's Ctrl-C reaches only us, and signals
// nothing but its own children. What they print goes to <dir>/<name>.log, across restarts. Safe for concurrent use.
type Fleet struct {
	dir      string
	pids     string
	programs []Program
	died     chan error

	mu      sync.Mutex
	running map[string]*process
}

// process is one life of a program.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it was reaped
	meant bool          // its end was asked for; guarded by Fleet.mu
}

const (
	readyPoll = 50 * time.Millisecond
	stopGrace = 20 * time.Second // from SIGTERM to SIGKILL
	tailLines = 25
	tailBytes = 16 << 10
)

// NewFleet keeps logs and ports files in dir, and the pid of each program that runs in the file <pids><name>.pid (see
// WritePid), so that somebody else can end what we left running. Both must exist as directories. Nothing is started.
func NewFleet(dir, pids string, programs ...Program) *Fleet {
	return &Fleet{dir: dir, pids: pids, programs: programs, died: make(chan error, 16), running: make(map[string]*process)}
}

// Died tells of processes that ended without being asked to, with the last lines they printed.
func (f *Fleet) Died() <-chan error { return f.died }

// Ended tells of a process that ended without being asked to, if one has; it does not wait.
func (f *Fleet) Ended() error {
	select {
	case err := <-f.died:
		return err
	default:
		return nil
	}
}

// Start starts every program and waits until all of them say that they are ready. If one does not, those started
// keep running until Stop.
func (f *Fleet) Start(ctx context.Context) error {
	names := f.names()
	for _, name := range names {
		if err := f.launch(ctx, name); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := f.WaitReady(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Add brings another program, not yet started, or tells how one is to be started from now on.
func (f *Fleet) Add(p Program) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.programs {
		if f.programs[i].Name == p.Name {
			f.programs[i] = p
			return
		}
	}
	f.programs = append(f.programs, p)
}

// StartOne starts a program that is not running and waits until it is ready.
func (f *Fleet) StartOne(ctx context.Context, name string) error {
	if err := f.launch(ctx, name); err != nil {
		return err
	}
	return f.WaitReady(ctx, name)
}

// Launch starts a program that is not running and does not wait for it.
func (f *Fleet) Launch(ctx context.Context, name string) error { return f.launch(ctx, name) }

// Running reports whether a program runs, be it paused.
func (f *Fleet) Running(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running[name] != nil
}

// Program tells how one is started.
func (f *Fleet) Program(name string) (Program, error) { return f.program(name) }

func (f *Fleet) program(name string) (Program, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.programs {
		if p.Name == name {
			return p, nil
		}
	}
	return Program{}, fmt.Errorf("no program %q in the fleet", name)
}

func (f *Fleet) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make([]string, len(f.programs))
	for i, p := range f.programs {
		names[i] = p.Name
	}
	return names
}

func (f *Fleet) portsFile(name string) string { return filepath.Join(f.dir, name+".ports.json") }

// LogFile is where a program's output goes.
func (f *Fleet) LogFile(name string) string { return filepath.Join(f.dir, name+".log") }

// PidFile is where a program's pid is noted while it runs.
func (f *Fleet) PidFile(name string) string { return f.pids + name + ".pid" }

func (f *Fleet) launch(ctx context.Context, name string) error {
	p, err := f.program(name)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[name] != nil {
		return fmt.Errorf("%s runs already", name)
	}
	if err := os.Remove(f.portsFile(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	log, err := os.OpenFile(cmp.Or(p.Log, f.LogFile(name)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	defer log.Close() //nolint:errcheck // the child has its own
	args := append([]string{"-ports-file", f.portsFile(name)}, p.Args...)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), p.Path, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.Env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	life := &process{cmd: cmd, ended: make(chan struct{})}
	f.running[name] = life
	noted := WritePid(f.PidFile(name), cmd.Process.Pid)
	go f.reap(name, life)
	return noted
}

// reap waits for the process's end. Its owner is whoever waits for process.ended: every stop and kill does.
func (f *Fleet) reap(name string, life *process) {
	err := life.cmd.Wait()
	f.mu.Lock()
	meant := life.meant
	if f.running[name] == life {
		delete(f.running, name)
		_ = os.Remove(f.PidFile(name)) // a stale one is recognised as such
	}
	f.mu.Unlock()
	if !meant {
		if err == nil {
			err = errors.New("exit status 0")
		}
		select {
		case f.died <- fmt.Errorf("%s ended unexpectedly: %w\n%s", name, err, f.Tail(name)):
		default: // told often enough
		}
	}
	close(life.ended)
}

// WaitReady waits until the program's /readyz answers 200, or ctx ends, or the program does.
func (f *Fleet) WaitReady(ctx context.Context, name string) error {
	f.mu.Lock()
	life := f.running[name]
	f.mu.Unlock()
	if life == nil {
		return fmt.Errorf("%s ended before it was ready:\n%s", name, f.Tail(name))
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	last := errors.New("no ports file yet")
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (%w)\n%s", name, last, context.Cause(ctx), f.Tail(name))
		case <-life.ended:
			return fmt.Errorf("%s ended before it was ready:\n%s", name, f.Tail(name))
		case <-tick.C:
		}
		if last = f.askReady(ctx, client, name); last == nil {
			return nil
		}
	}
}

func (f *Fleet) askReady(ctx context.Context, client *http.Client, name string) error {
	ports, err := f.Ports(name)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(ports["admin"])+"/readyz", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	if err := res.Body.Close(); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz answered %s", res.Status)
	}
	return nil
}

// Ports gives the ports that the program listens on, by name.
func (f *Fleet) Ports(name string) (map[string]int, error) {
	body, err := os.ReadFile(f.portsFile(name))
	if err != nil {
		return nil, fmt.Errorf("ports of %s: %w", name, err)
	}
	var ports map[string]int
	if err := json.Unmarshal(body, &ports); err != nil {
		return nil, fmt.Errorf("ports of %s: %w", name, err)
	}
	if ports["admin"] == 0 {
		return nil, fmt.Errorf("ports of %s: no admin port in %s", name, body)
	}
	return ports, nil
}

// Kill sends SIGKILL and waits until the process is gone.
func (f *Fleet) Kill(name string) error {
	life, err := f.signal(name, syscall.SIGKILL)
	if err != nil {
		return err
	}
	<-life.ended // the kernel sees to it
	return nil
}

// Pause sends SIGSTOP: the process stands still until Resume.
func (f *Fleet) Pause(name string) error { return f.tell(name, syscall.SIGSTOP) }

// Resume sends SIGCONT.
func (f *Fleet) Resume(name string) error { return f.tell(name, syscall.SIGCONT) }

// tell signals a process that is to live on.
func (f *Fleet) tell(name string, sig syscall.Signal) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	life := f.running[name]
	if life == nil {
		return fmt.Errorf("%s is not running", name)
	}
	if err := life.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal to %s: %w", name, err)
	}
	return nil
}

// StopOne sends SIGTERM and waits; after a grace of 20 s, or when ctx ends, SIGKILL, which is then an error.
func (f *Fleet) StopOne(ctx context.Context, name string) error {
	life, err := f.signal(name, syscall.SIGTERM)
	if err != nil {
		return err
	}
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-life.ended:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return errors.Join(fmt.Errorf("%s did not end within its grace and was killed:\n%s", name, f.Tail(name)), f.Kill(name))
}

// Stop ends whatever runs, the last started first.
func (f *Fleet) Stop(ctx context.Context) error {
	var errs []error
	for _, name := range slices.Backward(f.names()) {
		f.mu.Lock()
		_, runs := f.running[name]
		f.mu.Unlock()
		if runs {
			errs = append(errs, f.StopOne(ctx, name))
		}
	}
	return errors.Join(errs...)
}

func (f *Fleet) signal(name string, sig syscall.Signal) (*process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	life := f.running[name]
	if life == nil {
		return nil, fmt.Errorf("%s is not running", name)
	}
	life.meant = true
	if err := life.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, fmt.Errorf("signal to %s: %w", name, err)
	}
	return life, nil
}

// Tail gives the last lines that the program printed.
func (f *Fleet) Tail(name string) string {
	file, err := os.Open(f.LogFile(name))
	if err != nil {
		return ""
	}
	defer file.Close() //nolint:errcheck // only read
	if info, err := file.Stat(); err == nil && info.Size() > tailBytes {
		_, _ = file.Seek(-tailBytes, 2)
	}
	body := make([]byte, tailBytes)
	n, _ := file.Read(body)
	lines := strings.Split(strings.TrimRight(string(body[:n]), "\n"), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-tailLines):], "\n  ")
}
