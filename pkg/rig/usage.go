package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process has used of the machine.
type Usage struct {
	CPU      time.Duration // of all its threads since it was started, to a hundredth of a second
	Resident int64         // bytes
	Peak     int64         // the most that was resident
}

// Usage of one program of the fleet that runs.
func (f *Fleet) Usage(name string) (Usage, error) {
	f.mu.Lock()
	life := f.running[name]
	f.mu.Unlock()
	if life == nil {
		return Usage{}, fmt.Errorf("usage of %s: it does not run", name)
	}
	return usageOf(life.cmd.Process.Pid)
}

// ServerUsage is of a server of the stack: rabbitmq, database or redis. here is false if it does not run, or not as a process of this
// machine's.
func (s Stack) ServerUsage(server string) (u Usage, here bool, err error) {
	pid, alive, err := readPid(filepath.Join(s.Dir, "run", server+".pid"))
	if err != nil || !alive {
		return Usage{}, false, err
	}
	u, err = usageOf(pid)
	return u, true, err
}

// BrokerDisk is how many bytes the broker's nodes have on disk; 0 where they are not directories of the stack's.
func (s Stack) BrokerDisk() (bytes int64, err error) {
	dirs, err := filepath.Glob(filepath.Join(s.Dir, "rabbitmq*", "mnesia"))
	if err != nil {
		return 0, fmt.Errorf("the broker's disk: %w", err)
	}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
			var info fs.FileInfo
			if err == nil {
				info, err = entry.Info()
			}
			switch {
			case errors.Is(err, fs.ErrNotExist): // it comes and goes while we look
				return nil
			case err != nil:
				return err
			case info.Mode().IsRegular():
				bytes += info.Size()
			}
			return nil
		})
		if err != nil {
			return 0, fmt.Errorf("the broker's disk: %w", err)
		}
	}
	return bytes, nil
}

func usageOf(pid int) (Usage, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	status, also := os.ReadFile(dir + "/status")
	if err := errors.Join(err, also); err != nil {
		return Usage{}, fmt.Errorf("what a process uses: %w", err)
	}
	u, err := usageIn(string(stat), string(status))
	if err != nil {
		return Usage{}, fmt.Errorf("what a process uses: %w", err)
	}
	return u, nil
}

var memoryLine = regexp.MustCompile(`(?m)^(VmRSS|VmHWM):\s+(\d+) kB$`)

// usageIn the texts of /proc/PID/stat and status, see proc(5).
func usageIn(stat, status string) (u Usage, err error) {
	// Fields after the command's name, which may hold anything, begin with the third; the 14th and 15th are user and system time,
	// in hundredths of a second on every Linux.
	const (
		user, system = 11, 12
		tick         = 10 * time.Millisecond
	)
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	memory := memoryLine.FindAllStringSubmatch(status, -1)
	if len(fields) <= system || len(memory) != 2 {
		return u, errors.New("/proc says it in a way that is not known")
	}
	for _, field := range fields[user : system+1] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return u, err
		}
		u.CPU += time.Duration(n) * tick
	}
	for _, m := range memory {
		kb, err := strconv.ParseInt(m[2], 10, 64)
		if err != nil {
			return u, err
		}
		if m[1] == "VmRSS" {
			u.Resident = kb << 10
		} else {
			u.Peak = kb << 10
		}
	}
	return u, nil
}
