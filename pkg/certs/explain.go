package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
)

// Explain says in words what is amiss with a connection that failed over TLS; empty if it did not fail over that.
func Explain(err error) string {
	var (
		unknown   x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		host      x509.HostnameError
		plaintext tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &unknown):
		return "its certificate is signed by an authority that is not trusted here (ca_file)"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate is not valid at this time: " + invalid.Detail
	case errors.As(err, &invalid):
		return "its certificate is not valid: " + invalid.Error()
	case errors.As(err, &host):
		return fmt.Sprintf("its certificate is not for %s (server_name)", host.Host)
	case errors.As(err, &plaintext):
		return "it does not speak TLS on this port"
	}
	if err == nil {
		return ""
	}
	_, text, remote := strings.Cut(err.Error(), "remote error: tls: ") // the library gives it no type
	if !remote {
		return ""
	}
	switch {
	case strings.Contains(text, "certificate required"), strings.Contains(text, "handshake failure"):
		return "it wants a certificate of the client and got none that it takes (cert_file, key_file)"
	case strings.Contains(text, "unknown certificate authority"), strings.Contains(text, "bad certificate"),
		strings.Contains(text, "unknown certificate"), strings.Contains(text, "expired certificate"), strings.Contains(text, "revoked certificate"):
		return "it refuses the client's certificate (cert_file, key_file): " + text
	default:
		return "the TLS handshake failed: " + text
	}
}
