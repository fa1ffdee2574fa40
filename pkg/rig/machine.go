package rig

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Machine is what everything runs on, servers and workers together.
type Machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	MemoryMiB int    `json:"memory_mib"`
	System    string `json:"system"`
}

// ThisMachine is as Linux describes it; what it does not say is left empty.
func ThisMachine() Machine {
	m := Machine{CPU: strings.TrimSpace(field("/proc/cpuinfo", "model name")), Cores: runtime.NumCPU(), System: runtime.GOOS}
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
