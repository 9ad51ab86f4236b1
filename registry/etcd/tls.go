package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lenonet/leno/registry/conns"
)

// TLS are the files for connections to https endpoints. Every new connection reads them again, so a certificate that
// was renewed is used without a restart.
type TLS struct {
	CAFile     string // of the authorities that may have issued the servers' certificates; "" for the system's
	CertFile   string // the client's certificate, "" for none
	KeyFile    string
	ServerName string // in the servers' certificates; "" for the host of the endpoint
}

func (t TLS) load() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s has no certificate in PEM format", t.CAFile)
		}
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file and key_file: %w", err)
		}
		if end := cert.Leaf.NotAfter; time.Now().After(end) { // a server would only close the connection
			return nil, fmt.Errorf("cert_file %s expired at %s", t.CertFile, end.Format(time.RFC3339))
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

// connectionCredentials note each connection, and read the files of TLS for it. A dial function could note connections
// as well, but gRPC connects through the proxy of the environment only without one.
type connectionCredentials struct {
	credentials.TransportCredentials // for connections without TLS, and what gRPC asks of those with TLS

	open   *conns.Set
	files  *TLS                   // nil without TLS
	failed *atomic.Pointer[error] // why the last connection with TLS failed, nil if it did not
}

// credentials returns the credentials for connections.
func (s *servers) credentials() credentials.TransportCredentials {
	out := connectionCredentials{insecure.NewCredentials(), s.conf.open, nil, &s.tlsFailed}
	if s.conf.secure() {
		out.TransportCredentials, out.files = credentials.NewTLS(nil), &s.conf.TLS
	}
	return out
}

func (c connectionCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (
	secured net.Conn, info credentials.AuthInfo, err error) {
	c.open.Add(conn)
	if c.files == nil {
		return c.TransportCredentials.ClientHandshake(ctx, authority, conn)
	}
	conf, err := c.files.load()
	if err == nil {
		secured, info, err = credentials.NewTLS(conf).ClientHandshake(ctx, authority, conn)
	}
	c.failed.Store(nil)
	if err != nil {
		c.failed.Store(&err)
	}
	return secured, info, err
}

func (c connectionCredentials) Clone() credentials.TransportCredentials { return c }
