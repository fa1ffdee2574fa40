package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
)

// Machine is what everything ran on, servers and subjects together.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int    `json:"memory_mib"`
	System string `json:"system"`
	Go     string `json:"go"`
}

func machine() Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	m.CPU = strings.TrimSpace(field("/proc/cpuinfo", "model name"))
	if kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(field("/proc/meminfo", "MemTotal")), " kB")); err == nil {
		m.Memory = kb / 1024
	}
	m.System = strings.Trim(field("/etc/os-release", "PRETTY_NAME"), `" `)
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.System += ", Linux " + strings.TrimSpace(string(kernel))
	}
	return m
}

// field is the first value of a name in a file of lines such as "name: value" or "name=value".
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

// freeBytes of the file system that a directory is on.
func freeBytes(dir string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, errors.Join(errors.New("asking how much disk is free"), err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// commit that this checkout is at.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// versions of the servers and of the rivals.
func (b *bench) versions(ctx context.Context) (map[string]string, error) {
	v, err := b.cfg.Stack.Versions(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]string{"broker": v.Broker, "database": v.Database}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			switch dep.Path {
			case "github.com/hibiken/asynq", "github.com/redis/go-redis/v9", "github.com/rabbitmq/amqp091-go", "github.com/go-sql-driver/mysql":
				out[dep.Path] = dep.Version
			}
		}
	}
	rdb, err := b.redis()
	if err != nil {
		return out, nil //nolint:nilerr // the scenarios that need it will say so
	}
	defer rdb.Close() //nolint:errcheck // it was only read
	if info, err := rdb.Info(ctx, "server").Result(); err == nil {
		for line := range strings.Lines(info) {
			if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
				out["redis"] = "Redis " + strings.TrimSpace(v)
			}
		}
	}
	return out, nil
}

// settings of the servers that say how durable they are.
func (b *bench) settings(ctx context.Context) (map[string]string, error) {
	out := make(map[string]string)
	db, err := openDB(b.cfg.Stack.DSN.Reveal(), 1)
	if err != nil {
		return nil, err
	}
	defer db.Close() //nolint:errcheck // it was only read
	for _, name := range []string{"sync_binlog", "innodb_flush_log_at_trx_commit", "log_bin", "innodb_buffer_pool_size", "innodb_doublewrite", "binlog_format"} {
		var v string
		if err := db.QueryRowContext(ctx, "SELECT @@GLOBAL."+name).Scan(&v); err == nil {
			out["database "+name] = v
		}
	}
	out["broker queues"] = "quorum, at-least-once dead-lettering; persistent messages, publisher confirms"
	rdb, err := b.redis()
	if err != nil {
		return out, nil //nolint:nilerr // the scenarios that need it will say so
	}
	defer rdb.Close() //nolint:errcheck // it was only read
	for _, name := range []string{"appendonly", "appendfsync"} {
		if v, err := rdb.ConfigGet(ctx, name).Result(); err == nil {
			out["redis "+name] = v[name]
		}
	}
	return out, nil
}
