package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const closeTimeout = 2 * time.Second

// session is one connection. It is never repaired: when it ends, its owner
// opens another.
type session struct {
	conn    *amqp.Connection
	wire    *wire
	address string
	done    chan struct{} // closed when the connection has ended; err is then set
	err     error

	isBlocked atomic.Bool // blocked is not empty

	mu      sync.Mutex
	killed  error         // why we ended it ourselves
	blocked string        // the broker's reason while it blocks the connection
	changed chan struct{} // closed and replaced whenever blocked changes
}

// watch is the session's only listener to connection events; it ends with the
// connection.
func (s *session) watch(closed chan *amqp.Error, blocked chan amqp.Blocking) {
	defer close(s.done)
	for {
		select {
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			s.setBlocked(b)
		case e := <-closed:
			s.mu.Lock()
			switch {
			case s.killed != nil:
				s.err = s.killed
			case e != nil:
				s.err = e
			default:
				s.err = errors.New("connection closed")
			}
			s.mu.Unlock()
			return
		}
	}
}

func (s *session) setBlocked(b amqp.Blocking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = ""
	if b.Active {
		s.blocked = "blocked by the broker"
		if b.Reason != "" {
			s.blocked = b.Reason
		}
	}
	s.isBlocked.Store(s.blocked != "")
	close(s.changed)
	s.changed = make(chan struct{})
}

// state says why the connection is blocked (empty: it is not) and gives a
// channel that is closed at the next change.
func (s *session) state() (reason string, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocked, s.changed
}

func (s *session) alive() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// kill ends the connection at once; whatever waits on it gets an error.
func (s *session) kill(why error) {
	s.mu.Lock()
	if s.killed == nil {
		s.killed = why
	}
	s.mu.Unlock()
	s.wire.abort()
}

// close says goodbye, for at most closeTimeout, and waits until all that
// belongs to the connection has ended.
func (s *session) close() {
	t := time.AfterFunc(closeTimeout, s.wire.abort)
	defer t.Stop()
	_ = s.conn.CloseDeadline(time.Now().Add(closeTimeout)) // an error means it was gone already
	<-s.done
	<-s.wire.done
}

// within runs one request to the broker. The library's calls know no context,
// so the connection is killed when ctx or the time limit ends first.
func (s *session) within(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		s.kill(fmt.Errorf("broker did not answer in time: %w", ctx.Err()))
	})
	err := f()
	if !stop() {
		return fmt.Errorf("broker did not answer in time: %w", ctx.Err())
	}
	return err
}
