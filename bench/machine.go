package main

import (
	"context"
	"errors"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/lapsehq/lapse/pkg/rig"
)

// Machine is what everything ran on, servers and subjects together.
type Machine struct {
	rig.Machine
	Go string `json:"go"`
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
	if v.Redis != "" {
		out["redis"] = v.Redis
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
