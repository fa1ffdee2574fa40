package certs

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// lookEvery is how old a server's look at its files may be. A connection after that looks again.
const lookEvery = time.Second

// ServerConfig says who a server is over TLS, and whether its clients must have certificates. The zero value is no TLS.
type ServerConfig struct {
	// CertFile and KeyFile are the server's certificate, with those between it and the authority, and its key, in PEM. Default
	// empty: no TLS.
	CertFile string `koanf:"cert_file"`
	KeyFile  string `koanf:"key_file"`
	// ClientCAFile has the authorities, in PEM, by one of which a client's certificate must be signed. Default empty: clients
	// need none.
	ClientCAFile string `koanf:"client_ca_file"`
	// MinVersion is 1.2 or 1.3. Default empty: 1.2.
	MinVersion string `koanf:"min_version"`
}

// Enabled reports whether there is to be TLS.
func (c ServerConfig) Enabled() bool { return c.CertFile != "" }

// Validate reports every fault, each beginning with the field's name. The files are not looked at.
func (c ServerConfig) Validate() error {
	var errs []error
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, fmt.Errorf("cert_file: must be set exactly if key_file is, got %q and %q", c.CertFile, c.KeyFile))
	}
	if c.ClientCAFile != "" && c.CertFile == "" {
		errs = append(errs, fmt.Errorf("client_ca_file: needs cert_file and key_file, got %q without", c.ClientCAFile))
	}
	return errors.Join(append(errs, checkVersion(c.MinVersion))...)
}

// Server reads its files again when they have changed. Safe for concurrent use.
type Server struct {
	cfg   ServerConfig
	now   func() time.Time
	tell  func(error)
	alpns []string

	mu     sync.Mutex
	looked time.Time
	seen   [3]mark
	conf   *tls.Config
}

// mark tells one content of a file from another.
type mark struct {
	size     int64
	modified time.Time
}

// NewServer reads the files; what is wrong with them now is its error. Later tell is told of each time that changed files were
// read: nil, or why the former ones are still in use. protocols are those of ALPN.
func NewServer(cfg ServerConfig, now func() time.Time, tell func(error), protocols ...string) (*Server, error) {
	s := &Server{cfg: cfg, now: now, tell: tell, alpns: protocols}
	s.looked, s.seen = now(), s.marks()
	var err error
	if s.conf, err = s.read(); err != nil {
		return nil, err
	}
	return s, nil
}

// TLS is the configuration to listen with.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: version(s.cfg.MinVersion), NextProtos: s.alpns,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current(), nil },
	}
}

func (s *Server) current() *tls.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if now.Sub(s.looked) < lookEvery {
		return s.conf
	}
	s.looked = now
	seen := s.marks()
	if seen == s.seen {
		return s.conf
	}
	s.seen = seen
	conf, err := s.read()
	if err == nil {
		s.conf = conf
	}
	s.tell(err)
	return s.conf
}

func (s *Server) marks() (ms [3]mark) {
	for i, file := range []string{s.cfg.CertFile, s.cfg.KeyFile, s.cfg.ClientCAFile} {
		if info, err := os.Stat(file); err == nil { // what is missing is seen to have changed
			ms[i] = mark{info.Size(), info.ModTime()}
		}
	}
	return ms
}

func (s *Server) read() (*tls.Config, error) {
	cert, err := pair(s.cfg.CertFile, s.cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{
		MinVersion: version(s.cfg.MinVersion), NextProtos: s.alpns,
		Certificates: []tls.Certificate{cert},
	}
	if s.cfg.ClientCAFile != "" {
		if conf.ClientCAs, err = pool(s.cfg.ClientCAFile); err != nil {
			return nil, fmt.Errorf("client_ca_file: %w", err)
		}
		conf.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return conf, nil
}
