package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const mebibyte = 1 << 20

// figures reads what everything that runs has taken up by now, by name.
func (s *shop) figures(ctx context.Context, stack rig.Stack) (map[string]float64, error) {
	out := make(map[string]float64)
	for _, worker := range []string{demo.Publisher, demo.Expirer, demo.Notifier} {
		if err := s.ofWorker(ctx, worker, out); err != nil {
			return nil, err
		}
	}
	return out, errors.Join(ofBroker(ctx, stack, out), s.ofDatabase(ctx, out))
}

func (s *shop) ofWorker(ctx context.Context, worker string, out map[string]float64) error {
	u, err := s.Fleet().Usage(worker)
	if err != nil {
		return err
	}
	out[worker+".resident_mib"] = float64(u.Resident) / mebibyte
	for figure, name := range map[string]string{"goroutines": "go_goroutines", "fds": "process_open_fds"} {
		n, err := metricOf(ctx, s.Fleet(), worker, name)
		if err != nil {
			return err
		}
		out[worker+"."+figure] = float64(n)
	}
	return nil
}

func ofBroker(ctx context.Context, stack rig.Stack, out map[string]float64) error {
	var overview struct {
		Totals struct {
			Connections int `json:"connections"`
			Channels    int `json:"channels"`
		} `json:"object_totals"`
	}
	if err := stack.Get(ctx, "/api/overview", &overview); err != nil {
		return err
	}
	out["broker.connections"], out["broker.channels"] = float64(overview.Totals.Connections), float64(overview.Totals.Channels)
	disk, err := stack.BrokerDisk()
	if err != nil {
		return err
	}
	out["broker.disk_mib"] = float64(disk) / mebibyte
	u, here, err := stack.ServerUsage("rabbitmq")
	if err == nil && here {
		out["broker.resident_mib"] = float64(u.Resident) / mebibyte
	}
	return err
}

// ofDatabase: how far the purge of old versions is behind (InnoDB's history list) shows transactions that stay open.
func (s *shop) ofDatabase(ctx context.Context, out map[string]float64) error {
	rows, err := countIn(ctx, s.DB(), outboxQuery)
	if err != nil {
		return err
	}
	oldest, err := oldestOf(ctx, s.DB())
	if err != nil {
		return err
	}
	out["outbox.rows"], out["outbox.oldest_ms"] = float64(rows), float64(max(oldest[0], oldest[1]))
	return s.root(func(db *sql.DB) error {
		const (
			lag         = "SELECT CAST(COUNT AS SIGNED) FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
			connections = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB LIKE 'lapse%'"
		)
		for name, query := range map[string]string{"database.purge_lag": lag, "database.connections": connections} {
			var n int64
			if err := db.QueryRowContext(ctx, query).Scan(&n); err != nil {
				return fmt.Errorf("reading %s: %w", name, err)
			}
			out[name] = float64(n)
		}
		return nil
	})
}
