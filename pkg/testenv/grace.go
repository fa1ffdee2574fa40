package testenv

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// StopsWithinItsGrace runs a worker beside a database and no broker, and holds what it says of its stopping against the time that a
// cluster and docker-compose.yml give it before they kill it. more are variables.
func StopsWithinItsGrace(t *testing.T, worker string, run func(ctx context.Context, environ []string, stderr io.Writer) int, more ...string) {
	t.Helper()
	db := NewDatabase(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	read, write := io.Pipe()
	exit := make(chan int, 1)
	go func() {
		exit <- run(ctx, append([]string{
			"LAPSE__INSTALLATION=test", "LAPSE__ADMIN__ADDRESS=127.0.0.1:0", "LAPSE__BROKER__URL=amqp://nobody:nothing@127.0.0.1:1/",
			"LAPSE__DATABASE__ADDRESS=" + db.Config.Address, "LAPSE__DATABASE__USER=" + db.Config.User,
			"LAPSE__DATABASE__PASSWORD=" + db.Config.Password.Reveal(), "LAPSE__DATABASE__NAME=" + db.Config.Name, "LAPSE__DATABASE__MIGRATE=auto",
		}, more...), write)
		_ = write.Close()
	}()
	var within time.Duration
	for log := bufio.NewScanner(read); log.Scan(); {
		var entry struct {
			Msg         string `json:"msg"`
			StopsWithin string `json:"stops_within"`
		}
		require.NoError(t, json.Unmarshal(log.Bytes(), &entry), log.Text())
		if entry.Msg == "running" {
			var err error
			within, err = time.ParseDuration(entry.StopsWithin)
			require.NoError(t, err)
			stop()
		}
	}
	require.Zero(t, <-exit)
	require.NotZero(t, within, "%s never ran", worker)

	chart, compose := graces(t, worker)
	// Beside its parts: the admin port, the database's connections, and readiness that goes first.
	const beside = 15 * time.Second
	require.Less(t, within+beside, chart, "terminationGracePeriodSeconds in configs/helm/lapse/values.yaml")
	require.Less(t, within+beside, compose, "stop_grace_period in docker-compose.yml")
}

func graces(t *testing.T, worker string) (chart, compose time.Duration) {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	require.True(t, ok)
	root := filepath.Join(filepath.Dir(file), "../..")
	var values map[string]yaml.Node
	content, err := os.ReadFile(filepath.Join(root, "configs/helm/lapse/values.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(content, &values))
	var own struct {
		Seconds int `yaml:"terminationGracePeriodSeconds"`
	}
	node := values[worker]
	require.NoError(t, node.Decode(&own))
	var services struct {
		Worker struct {
			Grace time.Duration `yaml:"stop_grace_period"`
		} `yaml:"x-worker"`
	}
	content, err = os.ReadFile(filepath.Join(root, "docker-compose.yml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(content, &services))
	return time.Duration(own.Seconds) * time.Second, services.Worker.Grace
}
