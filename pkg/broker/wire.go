package broker

import (
	"bufio"
	"net"
	"sync"
	"time"
)

const (
	wireBuffer   = 256 << 10 // bytes that may wait to be written
	wireRead     = 64 << 10
	closingGrace = time.Second // for the last bytes of a closing connection
)

// wire is the socket as amqp091-go sees it. It writes from a goroutine of its
// own, so that the many small frames of a burst become few system calls, and
// under a deadline of its own, so that a peer that stops reading costs at most
// the write timeout: then the socket is closed and everybody waiting gets an
// error. At most wireBuffer bytes (and one frame) wait.
type wire struct {
	net.Conn
	r       *bufio.Reader
	timeout time.Duration
	done    chan struct{} // the writing goroutine has ended

	mu          sync.Mutex
	work, space *sync.Cond
	buf, spare  []byte
	closing     bool
	err         error
}

func newWire(conn net.Conn, timeout time.Duration) *wire {
	w := &wire{Conn: conn, r: bufio.NewReaderSize(conn, wireRead), timeout: timeout, done: make(chan struct{})}
	w.work, w.space = sync.NewCond(&w.mu), sync.NewCond(&w.mu)
	go w.flush()
	return w
}

func (w *wire) Read(p []byte) (int, error) { return w.r.Read(p) }

// Write queues p. An error of an earlier write shows here.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.buf) >= wireBuffer && w.err == nil && !w.closing {
		w.space.Wait()
	}
	if w.err != nil {
		return 0, w.err
	}
	if w.closing {
		return 0, net.ErrClosed
	}
	w.buf = append(w.buf, p...)
	w.work.Signal()
	return len(p), nil
}

func (w *wire) flush() {
	defer close(w.done)
	for {
		out := w.next()
		if out == nil {
			return
		}
		if _, err := w.Conn.Write(out); err != nil {
			w.fail(err)
			return
		}
		w.mu.Lock()
		w.spare = out
		w.mu.Unlock()
	}
}

// next waits for bytes to write; nil = none will come.
func (w *wire) next() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.buf) == 0 && !w.closing && w.err == nil {
		w.work.Wait()
	}
	if w.err != nil || len(w.buf) == 0 {
		return nil
	}
	out := w.buf
	w.buf, w.spare = w.spare[:0], nil
	w.space.Broadcast()
	limit := w.timeout
	if w.closing {
		limit = min(limit, closingGrace)
	}
	// Set under the lock, or it could undo the shorter deadline of Close.
	_ = w.Conn.SetWriteDeadline(time.Now().Add(limit))
	return out
}

func (w *wire) fail(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.work.Broadcast()
	w.space.Broadcast()
	w.mu.Unlock()
	_ = w.Conn.Close()
}

// abort ends the connection at once, whatever it is doing.
func (w *wire) abort() { w.fail(net.ErrClosed) }

// Close writes what is queued, for at most closingGrace, then closes.
func (w *wire) Close() error {
	w.mu.Lock()
	w.closing = true
	_ = w.Conn.SetWriteDeadline(time.Now().Add(min(w.timeout, closingGrace)))
	w.work.Broadcast()
	w.space.Broadcast()
	w.mu.Unlock()
	<-w.done
	return w.Conn.Close()
}
