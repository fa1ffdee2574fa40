package receive

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// Stage is a step of an SMTP conversation at which a fault may happen.
type Stage string

// The stages. "" is HTTP's.
const (
	StageGreet Stage = "greet" // the connection is taken; nothing was said. A code is the greeting
	StageTLS   Stage = "tls"   // the handshake: hang or cut
	StageHelo  Stage = "helo"
	StageAuth  Stage = "auth"
	StageMail  Stage = "mail"
	StageRcpt  Stage = "rcpt"
	StageData  Stage = "data" // the content is not read: it did not arrive
	StageDot   Stage = "dot"  // after the final dot: but for a code, the letter was taken
)

const (
	mailLimit   = 1 << 20
	mailTimeout = time.Minute
	keepDefault = 200_000
)

// errCut ends a conversation whose connection was reset on purpose.
var errCut = errors.New("cut")

// MailConfig says how a Mail server runs.
type MailConfig struct {
	Authority *Authority // nil: no TLS is offered
	Implicit  bool       // TLS from the first byte, instead of STARTTLS
	User      string     // if not empty, whoever does not log in so is refused
	Password  string
	UTF8      bool // SMTPUTF8 is offered
	Keep      int  // letters kept; more are counted alone. Default 200000
	Now       func() time.Time
}

// Mail is an SMTP server on a free loopback port. Its faults: hang, code, cut, slow, each at a stage. Safe for concurrent use.
type Mail struct {
	cfg    MailConfig
	server *smtp.Server
	doors  *doors
	faults faults
	owned  sync.WaitGroup
	stop   func() bool
	closed chan struct{}
	once   sync.Once

	mu       sync.Mutex
	letters  []Letter
	counts   map[string]int // taken, by Message-ID
	total    int
	refused  int
	sessions int
	bell     bell
}

// StartMail starts one. It runs until Close, or until ctx ends.
func StartMail(ctx context.Context, cfg MailConfig) (*Mail, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Keep == 0 {
		cfg.Keep = keepDefault
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for mail: %w", err)
	}
	m := &Mail{cfg: cfg, counts: make(map[string]int), bell: newBell(), closed: make(chan struct{})}
	m.faults.set(Fault{})
	m.doors = &doors{Listener: l, mail: m, open: make(map[net.Conn]struct{})}
	m.server = smtp.NewServer(smtp.BackendFunc(m.session))
	m.server.Domain, m.server.ErrorLog = "localhost", silent{}
	m.server.MaxMessageBytes, m.server.MaxRecipients = mailLimit, 10
	m.server.ReadTimeout, m.server.WriteTimeout = mailTimeout, mailTimeout
	m.server.EnableSMTPUTF8, m.server.AllowInsecureAuth = cfg.UTF8, cfg.Authority == nil
	listener := net.Listener(m.doors)
	if cfg.Authority != nil {
		conf := cfg.Authority.server()
		conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, m.pass(StageTLS, nil) }
		if cfg.Implicit {
			listener = tls.NewListener(m.doors, conf)
		} else {
			m.server.TLSConfig = conf
		}
	}
	m.owned.Go(func() { _ = m.server.Serve(listener) })     // ends when the listener is closed
	m.stop = context.AfterFunc(ctx, func() { _ = m.end() }) // nobody is there to be told
	return m, nil
}

// Addr is where it listens (host:port).
func (m *Mail) Addr() string { return m.doors.Addr().String() }

// Port is the number in it.
func (m *Mail) Port() int { return m.doors.Addr().(*net.TCPAddr).Port } //nolint:forcetypeassert // it listens on "tcp"

// Fault puts another fault in the place of the present one; the zero one ends it.
func (m *Mail) Fault(f Fault) { m.faults.set(f) }

// Close ends every conversation and waits for them.
func (m *Mail) Close() error {
	m.stop()
	err := m.end()
	m.owned.Wait()
	return err
}

func (m *Mail) end() error {
	var err error
	m.once.Do(func() {
		close(m.closed)
		m.doors.cut()
		ctx, cancel := context.WithTimeout(context.Background(), mailTimeout)
		defer cancel()
		err = m.server.Shutdown(ctx) // waits for the conversations, which have lost their connections
	})
	return err
}

// CutAll resets every connection, those that idle too.
func (m *Mail) CutAll() { m.doors.reset() }

// Connections is how many are open.
func (m *Mail) Connections() int {
	m.doors.mu.Lock()
	defer m.doors.mu.Unlock()
	return len(m.doors.open)
}

// Most is the greatest that Connections was.
func (m *Mail) Most() int {
	m.doors.mu.Lock()
	defer m.doors.mu.Unlock()
	return m.doors.most
}

// pass plays the fault of a stage, if there is one: nil means go on.
func (m *Mail) pass(stage Stage, c net.Conn) error {
	fault, over := m.faults.at(stage)
	return m.play(fault, over, c)
}

func (m *Mail) play(fault Fault, over <-chan struct{}, c net.Conn) error {
	switch fault.Act {
	case "":
		return nil
	case ActSlow:
		m.wait(over, fault.Delay)
		return nil
	case ActCode:
		return &smtp.SMTPError{Code: fault.Code, EnhancedCode: smtp.NoEnhancedCode, Message: fault.Text}
	case ActHang:
		m.wait(over, 0)
	default:
	}
	reset(c)
	return errCut
}

// wait lasts until the fault is over, the server is closed, or d has passed if it is not zero.
func (m *Mail) wait(over <-chan struct{}, d time.Duration) {
	var passed <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		passed = timer.C
	}
	select {
	case <-over:
	case <-m.closed:
	case <-passed:
	}
}

func (m *Mail) session(c *smtp.Conn) (smtp.Session, error) {
	if err := m.pass(StageHelo, c.Conn()); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions++
	_, secure := c.TLSConnectionState()
	return &session{mail: m, conn: c, letter: Letter{TLS: secure}}, nil
}

// session is one client's conversation after EHLO.
type session struct {
	mail   *Mail
	conn   *smtp.Conn
	user   string
	letter Letter
}

func (s *session) Reset() { s.letter = Letter{TLS: s.letter.TLS} }

func (*session) Logout() error { return nil }

func (s *session) AuthMechanisms() []string {
	if s.mail.cfg.User == "" {
		return nil
	}
	return []string{sasl.Plain}
}

func (s *session) Auth(string) (sasl.Server, error) {
	if err := s.mail.pass(StageAuth, s.conn.Conn()); err != nil {
		return nil, err
	}
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != s.mail.cfg.User || password != s.mail.cfg.Password {
			return smtp.ErrAuthFailed
		}
		s.user = user
		return nil
	}), nil
}

func (s *session) Mail(from string, opts *smtp.MailOptions) error {
	if s.user != s.mail.cfg.User {
		return smtp.ErrAuthRequired
	}
	if err := s.mail.pass(StageMail, s.conn.Conn()); err != nil {
		return err
	}
	s.letter.From, s.letter.User, s.letter.UTF8 = from, s.user, opts.UTF8
	return nil
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	if err := s.mail.pass(StageRcpt, s.conn.Conn()); err != nil {
		s.mail.refuse()
		return err
	}
	s.letter.To = append(s.letter.To, to)
	return nil
}

func (s *session) Data(r io.Reader) error {
	if err := s.mail.pass(StageData, s.conn.Conn()); err != nil {
		return err
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	letter := s.letter
	letter.At = s.mail.cfg.Now()
	if err := letter.parse(bytes.NewReader(raw)); err != nil {
		return &smtp.SMTPError{Code: 554, EnhancedCode: smtp.EnhancedCode{5, 6, 0}, Message: err.Error()}
	}
	fault, over := s.mail.faults.at(StageDot)
	if fault.Act == ActCode {
		s.mail.refuse()
	} else { // every other fault comes after the letter was taken
		s.mail.take(&letter)
	}
	return s.mail.play(fault, over, s.conn.Conn())
}

// silent drops what go-smtp has to say of clients that went away.
type silent struct{}

func (silent) Printf(string, ...any) {}

func (silent) Println(...any) {}
