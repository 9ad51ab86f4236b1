package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync/atomic"

	"github.com/lenonet/leno/agent/config"
)

// certificates are what the listener shows and what it asks of clients. They may be replaced while it listens: each
// connection has those that were in force when it came, which is why no session is resumed.
type certificates struct {
	current atomic.Pointer[tls.Config] // nil for plain HTTP
}

// secure returns the listener, with TLS if there are certificates.
func (c *certificates) secure(l net.Listener) net.Listener {
	if c.current.Load() == nil {
		return l
	}
	return tls.NewListener(l, &tls.Config{
		MinVersion:             tls.VersionTLS12,
		SessionTicketsDisabled: true,
		GetConfigForClient:     func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil },
	})
}

// readCertificates returns nil if no certificate is configured.
func readCertificates(ctx context.Context, t config.TLS) (*tls.Config, error) {
	if t.CertFile == "" {
		return nil, nil
	}
	pair, authorities, wrong := t.Read(ctx)
	var errs []error
	for _, option := range slices.Sorted(maps.Keys(wrong)) {
		errs = append(errs, fmt.Errorf("http.tls.%s: %w", option, wrong[option]))
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
