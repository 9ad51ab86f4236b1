package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
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
func (c *certificates) load(ctx context.Context, t config.TLS) error {
	ctx, cancel := context.WithTimeout(ctx, config.ReadTimeout)
	defer cancel()
	read, err := readCertificates(ctx, t)
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
func readCertificates(ctx context.Context, t config.TLS) (*tls.Config, error) {
	if t.CertFile == "" {
		return nil, nil
	}
	pair, authorities, wrong := readTLS(ctx, t)
	var errs []error
	for _, option := range slices.Sorted(maps.Keys(wrong)) {
		errs = append(errs, inOption("http.tls."+option, wrong[option]))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	out := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	if authorities != nil {
		out.ClientCAs, out.ClientAuth = authorities, tls.RequireAndVerifyClientCert
	}
	return out, nil
}

// readTLS reads the files of a tls block, as far as they are set. wrong has an error
// for each option whose file cannot be used.
func readTLS(ctx context.Context, t config.TLS) (pair tls.Certificate, authorities *x509.CertPool, wrong map[string]error) {
	wrong = map[string]error{}
	read := func(option, path string) []byte {
		if path == "" {
			return nil
		}
		data, err := config.ReadFile(ctx, path)
		if err != nil {
			wrong[option] = err
		}
		return data
	}
	cert, key, ca := read("cert_file", t.CertFile), read("key_file", t.KeyFile), read("ca_file", t.CAFile)
	if t.CertFile != "" && t.KeyFile != "" && wrong["cert_file"] == nil && wrong["key_file"] == nil {
		var err error
		if pair, err = tls.X509KeyPair(cert, key); err != nil {
			wrong["key_file"] = fmt.Errorf("%s does not go with cert_file %s: %w", t.KeyFile, t.CertFile, err)
		}
	}
	if t.CAFile != "" && wrong["ca_file"] == nil {
		authorities = x509.NewCertPool()
		if !authorities.AppendCertsFromPEM(ca) {
			wrong["ca_file"] = fmt.Errorf("%s: no certificate in it", t.CAFile)
		}
	}
	return pair, authorities, wrong
}

// inOption names the option whose file an error is about.
func inOption(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

// prepareCertificates reads the files again: their names stay, their content need
// not.
func (a *Agent) prepareCertificates(ctx context.Context, now config.Config) (prepared, error) {
	read, err := readCertificates(ctx, now.HTTP.TLS)
	if err != nil || read == nil {
		return prepared{}, err
	}
	return prepared{take: func() { a.certificates.current.Store(read) }}, nil
}
