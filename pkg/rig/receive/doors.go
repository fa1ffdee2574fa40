package receive

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
)

// doors is the listener: it knows the connections, and plays the faults before the greeting.
type doors struct {
	net.Listener
	mail *Mail

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	most   int // of them at a time
	closed bool
}

// door is a connection that is forgotten when it closes.
type door struct {
	net.Conn
	doors *doors
}

func (d *door) Close() error {
	d.doors.mu.Lock()
	delete(d.doors.open, d)
	d.doors.mu.Unlock()
	return d.Conn.Close()
}

func (d *doors) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn := &door{Conn: c, doors: d}
		d.mu.Lock()
		d.open[conn] = struct{}{}
		d.most = max(d.most, len(d.open))
		closed := d.closed
		d.mu.Unlock()
		fault, over := d.mail.faults.at(StageGreet)
		switch {
		case closed:
			reset(conn)
		case fault.Act == "":
			return conn, nil
		case fault.Act == ActHang:
			d.mail.owned.Go(func() {
				d.mail.wait(over, 0)
				reset(conn)
			})
		case fault.Act == ActSlow:
			d.mail.wait(over, fault.Delay)
			return conn, nil
		case fault.Act == ActCode:
			_, _ = fmt.Fprintf(conn, "%d %s\r\n", fault.Code, fault.Text)
			_ = conn.Close()
		default:
			reset(conn)
		}
	}
}

// reset cuts the connections that are open.
func (d *doors) reset() {
	d.mu.Lock()
	open := make([]net.Conn, 0, len(d.open))
	for c := range d.open {
		open = append(open, c)
	}
	d.mu.Unlock()
	for _, c := range open {
		reset(c)
	}
}

// cut resets them, and those to come.
func (d *doors) cut() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.reset()
}

// reset closes a connection without an orderly goodbye, that of TLS neither.
func reset(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if d, ok := c.(*door); ok {
		if t, ok := d.Conn.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
	}
	if c != nil {
		_ = c.Close()
	}
}
