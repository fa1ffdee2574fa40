package receive

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// Authority is a certificate authority of its own, made in memory, with one certificate for localhost and 127.0.0.1.
type Authority struct {
	pem  []byte
	leaf tls.Certificate
}

// NewAuthority makes one, valid for a day around now.
func NewAuthority(now time.Time) (*Authority, error) {
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(24 * time.Hour), BasicConstraintsValid: true,
		}
	}
	root := template(1, "lapse rig authority")
	root.IsCA, root.KeyUsage = true, x509.KeyUsageCertSign
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the authority's key: %w", err)
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, &rootKey.PublicKey, rootKey)
	if err != nil {
		return nil, fmt.Errorf("making the authority's certificate: %w", err)
	}

	server := template(2, "localhost")
	server.KeyUsage, server.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	server.DNSNames, server.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the server's key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, server, root, &key.PublicKey, rootKey)
	if err != nil {
		return nil, fmt.Errorf("making the server's certificate: %w", err)
	}
	return &Authority{
		pem:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER}),
		leaf: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
	}, nil
}

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte { return a.pem }

// WriteFile writes the authority's certificate for a client's ca_file.
func (a *Authority) WriteFile(path string) error {
	if err := os.WriteFile(path, a.pem, 0o600); err != nil {
		return fmt.Errorf("writing the authority's certificate: %w", err)
	}
	return nil
}

func (a *Authority) server() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{a.leaf}, MinVersion: tls.VersionTLS12}
}
