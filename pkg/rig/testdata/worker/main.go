// Command worker stands in for one of the workers in tests of the fleet: it serves /readyz on a free port, after a
// while, and obeys WORKER_MODE.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() { os.Exit(run()) }

func run() int {
	ports := flag.String("ports-file", "", "")
	flag.Parse()
	mode := os.Getenv("WORKER_MODE")
	fmt.Println("hello from", os.Getenv("WORKER_NAME"))
	if mode == "fail" {
		fmt.Println("cannot start: so it is written")
		return 3
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1
	}
	started := time.Now()
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/die":
			os.Exit(4)
		case r.URL.Path != "/readyz" || time.Since(started) < 100*time.Millisecond:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	go func() { _ = server.Serve(l) }()
	body := fmt.Sprintf(`{"admin":%d}`, l.Addr().(*net.TCPAddr).Port)
	if err := os.WriteFile(*ports, []byte(body), 0o600); err != nil {
		return 1
	}
	<-ctx.Done()
	fmt.Println("goodbye")
	return 0
}
