package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver that asks the database for its version
)

// printEnvironment says what the tests run on.
func printEnvironment(out io.Writer) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, _ = fmt.Fprintf(out, "on   %s %s/%s, %d CPUs, TZ=%s; database %s; RabbitMQ %s; seed %s\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), os.Getenv("TZ"),
		databaseVersion(ctx), brokerVersion(ctx), os.Getenv("TEST_SEED"))
}

func databaseVersion(ctx context.Context) string {
	db, err := sql.Open("mysql", os.Getenv("TEST_MYSQL_DSN"))
	if err != nil {
		return "unknown"
	}
	defer db.Close() //nolint:errcheck // read only
	var version, zone string
	if err := db.QueryRowContext(ctx, "SELECT VERSION(), @@global.time_zone").Scan(&version, &zone); err != nil {
		return "not reachable"
	}

	return version + " at " + zone
}

func brokerVersion(ctx context.Context) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, os.Getenv("TEST_MANAGEMENT_URL")+"/api/overview", nil)
	if err != nil {
		return "unknown"
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "not reachable"
	}
	defer res.Body.Close() //nolint:errcheck // read only
	var overview struct {
		Version string `json:"rabbitmq_version"`
	}
	if err := json.NewDecoder(res.Body).Decode(&overview); err != nil || overview.Version == "" {
		return "not readable"
	}

	return overview.Version
}
