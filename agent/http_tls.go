package agent

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"github.com/lenonet/leno/agent/config"
)

// certificates are what the listener shows and what it asks of clients. They may
// be replaced while it listens: each connection has those in force when it came,
// which is why no session is resumed.
type certificates struct {
	current atomic.Pointer[tls.Config] // nil for plain HTTP
}

// load reads the files and puts them in force.
func (c *certificates) load(t config.TLS) error {
	read, err := readCertificates(t)
	if err == nil {
		c.current.Store(read)
	}
	return err
}

// secure is the listener, with TLS if there are certificates.
func (c *certificates) secure(l net.Listener) net.Listener {
	if c.current.Load() == nil {
		return l
	}
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil }})
}

// readCertificates is nil without a certificate.
func readCertificates(t config.TLS) (*tls.Config, error) {
	if t.CertFile == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("http.tls: %w", err)
	}
	out := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	if t.CAFile == "" {
		return out, nil
	}
	data, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("http.tls: ca_file: %w", err)
	}
	out.ClientCAs, out.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !out.ClientCAs.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("http.tls: ca_file: %s: %w", t.CAFile, errors.New("no certificate in it"))
	}
	return out, nil
}

// prepareCertificates reads the files again: their names stay, their content need
// not.
func (a *Agent) prepareCertificates(_, now config.Config) (prepared, error) {
	read, err := readCertificates(now.HTTP.TLS)
	if err != nil || read == nil {
		return prepared{}, err
	}
	return prepared{take: func() { a.certificates.current.Store(read) }}, nil
}
