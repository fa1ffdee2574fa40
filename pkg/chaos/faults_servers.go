package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	ctlLimit   = 30 * time.Second
	startLimit = 2 * time.Minute
	askLimit   = 3 * time.Second
)

// bounded gives what starts a server its time, whatever became of the run.
func bounded(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
		defer cancel()
		return do(ctx)
	}
}

func brokerStop(ctx context.Context, s *site, _ Strike) (func(context.Context) error, string, error) {
	return bounded(s.stack.StartBroker), "", s.stack.StopBroker(ctx)
}

func brokerKill(ctx context.Context, s *site, _ Strike) (func(context.Context) error, string, error) {
	return bounded(s.stack.StartBroker), "", s.stack.KillBroker(ctx)
}

func databaseStop(ctx context.Context, s *site, _ Strike) (func(context.Context) error, string, error) {
	return bounded(s.stack.StartDatabase), "", s.stack.StopDatabase(ctx)
}

func databaseKill(ctx context.Context, s *site, _ Strike) (func(context.Context) error, string, error) {
	return bounded(s.stack.StartDatabase), "", s.stack.KillDatabase(ctx)
}

// alarm sets one of the broker's limits and puts it back.
func alarm(verb, value, back string) func(context.Context, *site, Strike) (func(context.Context) error, string, error) {
	return func(ctx context.Context, s *site, _ Strike) (func(context.Context) error, string, error) {
		undo := func(ctx context.Context) error {
			return s.whileUp(ctx, func() error { return s.stack.BrokerCtl(ctx, verb, back) })
		}
		return undo, "", s.stack.BrokerCtl(ctx, verb, value)
	}
}

func memoryAlarm(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	return alarm("set_vm_memory_high_watermark", "0", "0.4")(ctx, s, k)
}

func diskAlarm(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	return alarm("set_disk_free_limit", "100000GB", "2GB")(ctx, s, k)
}

func (s *site) vhost() string {
	u, err := url.Parse(s.stack.AMQPURL.Reveal())
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(u.Path, "/")
}

func brokerLimit(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	path := "/api/vhost-limits/" + url.PathEscape(s.vhost()) + "/max-connections"
	undo := func(ctx context.Context) error {
		return s.whileUp(ctx, func() error { return s.stack.Delete(ctx, path) })
	}
	if err := s.stack.Put(ctx, path, map[string]int{"value": 1}); err != nil {
		return undo, "", err
	}
	n := s.proxies[k.Target+"/broker"].cut()
	return undo, fmt.Sprintf("%d connections cut", n), nil
}

func databaseLimit(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	set := func(ctx context.Context, n int) error {
		ctx, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		if _, err := s.root.ExecContext(ctx, fmt.Sprintf("SET GLOBAL max_connections = %d", n)); err != nil {
			return fmt.Errorf("connections of the database: %w", err)
		}
		return nil
	}
	const least, usual = 10, 400 // MariaDB takes no less
	undo := func(ctx context.Context) error {
		return s.whileUp(ctx, func() error { return set(ctx, usual) })
	}
	if err := set(ctx, least); err != nil {
		return undo, "", err
	}
	n := s.proxies[k.Target+"/database"].cut()
	return undo, fmt.Sprintf("%d connections cut", n), nil
}

// consumerCancel deletes a due queue, so that the broker cancels its consumers; the workers declare it again, and the sweep finds what
// it held.
func consumerCancel(ctx context.Context, s *site, _ Strike) (func(context.Context) error, string, error) {
	queue := s.ladder().DueExact()
	if err := s.stack.Delete(ctx, "/api/queues/"+url.PathEscape(s.vhost())+"/"+url.PathEscape(queue)); err != nil {
		return nil, "", err
	}
	undo := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		client, err := s.installation.Client()
		if err != nil {
			return err
		}
		for {
			err := client.Verify(ctx, s.ladder().Plan())
			if err == nil {
				return nil
			}
			if serr := lifecycle.Sleep(ctx, time.Second); serr != nil {
				return errors.Join(fmt.Errorf("nobody declared %s again: %w", queue, err), serr)
			}
		}
	}
	return undo, "", nil
}

// whileUp tries until it succeeds or the limit is over: another lane may have stopped the server.
func (s *site) whileUp(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	for {
		err := do()
		if err == nil {
			return nil
		}
		if serr := lifecycle.Sleep(ctx, time.Second); serr != nil {
			return errors.Join(err, serr)
		}
	}
}
