// Package certs makes TLS configurations of files.
//
// Files are read when a connection is made, not when a process starts: whoever replaces them (a certificate that is renewed, an
// authority that is changed) restarts nothing. A client reads them for each connection, a server when it sees that they have
// changed, and goes on with the former ones while the new ones are of no use.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxFile is how much of a file is read, in bytes.
const maxFile = 1 << 20

// The values of min_version.
const (
	TLS12 = "1.2"
	TLS13 = "1.3"
)

// Config says whom a client trusts over TLS, and who it is itself. The zero value trusts the system's authorities.
type Config struct {
	// CAFile has the certificates, in PEM, that are trusted in place of the system's. Default empty.
	CAFile string `koanf:"ca_file"`
	// CertFile and KeyFile are the client's own certificate and key, in PEM, for servers that ask for one. Default empty.
	CertFile string `koanf:"cert_file"`
	KeyFile  string `koanf:"key_file"`
	// ServerName is what the server's certificate must be good for. Default empty: the host that is connected to.
	ServerName string `koanf:"server_name"`
	// MinVersion is 1.2 or 1.3. Default empty: 1.2.
	MinVersion string `koanf:"min_version"`
}

// Validate reports every fault, each beginning with the field's name. The files are not looked at.
func (c Config) Validate() error {
	var errs []error
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, fmt.Errorf("cert_file: must be set exactly if key_file is, got %q and %q", c.CertFile, c.KeyFile))
	}
	return errors.Join(append(errs, checkVersion(c.MinVersion))...)
}

// Below puts a section's name before the fields that errors of Validate begin with.
func Below(section string, err error) error {
	if err == nil {
		return nil
	}
	var errs []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		errs = append(errs, errors.New(section+"."+line))
	}
	return errors.Join(errs...)
}

func checkVersion(v string) error {
	if v != "" && v != TLS12 && v != TLS13 {
		return fmt.Errorf("min_version: must be %s or %s, got %q", TLS12, TLS13, v)
	}
	return nil
}

func version(v string) uint16 {
	if v == TLS13 {
		return tls.VersionTLS13
	}
	return tls.VersionTLS12
}

// Client reads the files and gives the configuration for one connection to host, a name or an address without a port. Errors
// begin with the field's name.
func (c Config) Client(host string) (*tls.Config, error) {
	conf := &tls.Config{MinVersion: version(c.MinVersion), ServerName: host}
	if c.ServerName != "" {
		conf.ServerName = c.ServerName
	}
	var err error
	if c.CAFile != "" {
		if conf.RootCAs, err = pool(c.CAFile); err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
	}
	if c.CertFile != "" {
		cert, err := pair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, err
		}
		// Not Certificates: of these the library sends none, in silence, if the server names other authorities than ours, and the
		// server's complaint would then be that there is no certificate.
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return conf, nil
}

func pool(file string) (*x509.CertPool, error) {
	text, err := read(file)
	if err != nil {
		return nil, err
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return p, nil
}

// pair reads a certificate and its key. Errors show nothing of the key.
func pair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := read(certFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cert_file: %w", err)
	}
	key, err := read(keyFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("key_file: %w", err)
	}
	p, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cert_file, key_file: %s and %s: %w", certFile, keyFile, err)
	}
	return p, nil
}

func read(file string) ([]byte, error) {
	f, err := os.Open(file) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err //nolint:wrapcheck // names the file
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	return text, errors.Join(err, f.Close())
}
