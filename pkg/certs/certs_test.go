package certs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/certs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{t, cert, key}
}

func (a *authority) file(path string) string {
	require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o600))
	return path
}

// pair writes <path>.pem and <path>.key, for 127.0.0.1 and the name.
func (a *authority) pair(path, name string, until time.Duration) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(until),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(a.t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	require.NoError(a.t, os.WriteFile(path+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(a.t, os.WriteFile(path+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
}

// serve answers each connection with the name of the client's certificate.
func serve(t *testing.T, conf *tls.Config) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", conf)
	require.NoError(t, err)
	var owned sync.WaitGroup
	owned.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			owned.Go(func() {
				defer c.Close()
				conn := c.(*tls.Conn)
				if conn.Handshake() != nil {
					return
				}
				name := "nobody"
				if peers := conn.ConnectionState().PeerCertificates; len(peers) > 0 {
					name = peers[0].Subject.CommonName
				}
				_, _ = io.WriteString(conn, name)
			})
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		owned.Wait()
	})
	return l.Addr().String()
}

// call gives what the server answers and whose certificate it showed.
func call(c certs.Config, address string) (answer, server string, err error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", "", err
	}
	conf, err := c.Client(host)
	if err != nil {
		return "", "", err
	}
	conn, err := tls.Dial("tcp", address, conf)
	if err != nil {
		return "", "", err
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	return string(text), conn.ConnectionState().PeerCertificates[0].Subject.CommonName, err
}

// Certificates and authorities are replaced on both sides, and nothing is started again.
func TestFilesAreReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	old, fresh := newAuthority(t, "old"), newAuthority(t, "fresh")
	old.pair(at("server"), "server-1", time.Hour)
	old.pair(at("client"), "client-1", time.Hour)
	old.file(at("ca.pem"))
	var (
		mu   sync.Mutex
		now  = time.Now()
		told []error
	)
	server, err := certs.NewServer(certs.ServerConfig{CertFile: at("server.pem"), KeyFile: at("server.key"), ClientCAFile: at("ca.pem")},
		func() time.Time { mu.Lock(); defer mu.Unlock(); return now },
		func(err error) { mu.Lock(); defer mu.Unlock(); told = append(told, err) }, "http/1.1")
	require.NoError(t, err)
	later := func() { mu.Lock(); defer mu.Unlock(); now = now.Add(2 * time.Second) }
	address := serve(t, server.TLS())
	client := certs.Config{CAFile: at("ca.pem"), CertFile: at("client.pem"), KeyFile: at("client.key")}

	answer, shown, err := call(client, address)
	require.NoError(t, err)
	require.Equal(t, [2]string{"client-1", "server-1"}, [2]string{answer, shown})

	fresh.pair(at("server"), "server-two", time.Hour)
	fresh.pair(at("client"), "client-two", time.Hour)
	fresh.file(at("ca.pem"))
	later()
	answer, shown, err = call(client, address)
	require.NoError(t, err)
	require.Equal(t, [2]string{"client-two", "server-two"}, [2]string{answer, shown})
	require.Equal(t, []error{nil}, told)

	// A server goes on with what it has while the new is of no use.
	require.NoError(t, os.WriteFile(at("server.key"), []byte("half a k"), 0o600))
	later()
	_, shown, err = call(client, address)
	require.NoError(t, err)
	require.Equal(t, "server-two", shown)
	require.ErrorContains(t, errors.Join(told...), "cert_file, key_file: ")
}

func TestExplain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	ours.pair(at("server"), "server", time.Hour)
	ours.pair(at("stale"), "server", -time.Minute)
	ours.pair(at("client"), "client", time.Hour)
	theirs.pair(at("stranger"), "stranger", time.Hour)
	ours.file(at("ca.pem"))
	theirs.file(at("other.pem"))
	listen := func(c certs.ServerConfig) string {
		s, err := certs.NewServer(c, time.Now, func(error) {})
		require.NoError(t, err)
		return serve(t, s.TLS())
	}
	open := listen(certs.ServerConfig{CertFile: at("server.pem"), KeyFile: at("server.key")})
	mutual := listen(certs.ServerConfig{CertFile: at("server.pem"), KeyFile: at("server.key"), ClientCAFile: at("ca.pem")})
	stale := listen(certs.ServerConfig{CertFile: at("stale.pem"), KeyFile: at("stale.key")})
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var owned sync.WaitGroup
	owned.Go(func() {
		for {
			c, err := plain.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "220 hello\r\n")
			_ = c.Close()
		}
	})
	defer owned.Wait()
	defer plain.Close()
	for _, tt := range []struct {
		name    string
		client  certs.Config
		address string
		want    string
	}{
		{"trusted", certs.Config{CAFile: at("ca.pem")}, open, ""},
		{"mutual", certs.Config{CAFile: at("ca.pem"), CertFile: at("client.pem"), KeyFile: at("client.key")}, mutual, ""},
		{"another authority", certs.Config{CAFile: at("other.pem")}, open, "its certificate is signed by an authority that is not trusted here (ca_file)"},
		{"another name", certs.Config{CAFile: at("ca.pem"), ServerName: "other.example"}, open, "its certificate is not for other.example (server_name)"},
		{"expired", certs.Config{CAFile: at("ca.pem")}, stale, "its certificate is not valid at this time"},
		{"no certificate", certs.Config{CAFile: at("ca.pem")}, mutual, "it wants a certificate of the client and got none that it takes (cert_file, key_file)"},
		{"a stranger's", certs.Config{CAFile: at("ca.pem"), CertFile: at("stranger.pem"), KeyFile: at("stranger.key")}, mutual, "it refuses the client's certificate (cert_file, key_file)"},
		{"a stranger's, TLS 1.3", certs.Config{CAFile: at("ca.pem"), CertFile: at("stranger.pem"), KeyFile: at("stranger.key"), MinVersion: certs.TLS13}, mutual, "it refuses the client's certificate"},
		{"no TLS", certs.Config{CAFile: at("ca.pem")}, plain.Addr().String(), "it does not speak TLS on this port"},
	} {
		_, _, err := call(tt.client, tt.address)
		if tt.want == "" {
			require.NoError(t, err, tt.name)
			continue
		}
		require.ErrorContains(t, errors.New(certs.Explain(err)), tt.want, "%s: %v", tt.name, err)
	}
	require.Empty(t, certs.Explain(nil))
	require.Empty(t, certs.Explain(io.EOF))
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	require.NoError(t, certs.Config{}.Validate())
	require.NoError(t, certs.ServerConfig{}.Validate())
	require.EqualError(t, certs.Config{CertFile: "c", MinVersion: "1.1"}.Validate(),
		`cert_file: must be set exactly if key_file is, got "c" and ""`+"\n"+`min_version: must be 1.2 or 1.3, got "1.1"`)
	require.EqualError(t, certs.Below("tls", certs.ServerConfig{ClientCAFile: "a", KeyFile: "k"}.Validate()),
		`tls.cert_file: must be set exactly if key_file is, got "" and "k"`+"\n"+`tls.client_ca_file: needs cert_file and key_file, got "a" without`)
	_, err := certs.Config{CAFile: "/nowhere/ca.pem"}.Client("h")
	require.ErrorContains(t, err, "ca_file: open /nowhere/ca.pem")
	conf, err := certs.Config{ServerName: "n", MinVersion: certs.TLS13}.Client("h")
	require.NoError(t, err)
	require.Equal(t, "n", conf.ServerName)
	require.Equal(t, uint16(tls.VersionTLS13), conf.MinVersion)
}
