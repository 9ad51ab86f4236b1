package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/lenonet/leno/registry/conns"
)

// TLS are the files for connections to https endpoints. Every new connection reads them again, so a certificate that was
// renewed is used without a restart.
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

// rememberingCredentials add each connection to a set. A dial function could do so as well, but gRPC connects through
// the proxy of the environment only without one.
type rememberingCredentials struct {
	credentials.TransportCredentials
	open *conns.Set
}

func (r rememberingCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	r.open.Add(conn)
	return r.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

func (r rememberingCredentials) Clone() credentials.TransportCredentials {
	return rememberingCredentials{r.TransportCredentials.Clone(), r.open}
}

// fileCredentials are the credentials of connections, read for each one.
type fileCredentials struct {
	files  TLS
	failed *atomic.Pointer[error] // why the last connection failed, nil if it did not
}

func (f fileCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (
	secured net.Conn, info credentials.AuthInfo, err error) {
	c, err := f.files.load()
	if err == nil {
		secured, info, err = credentials.NewTLS(c).ClientHandshake(ctx, authority, conn)
	}
	if err != nil {
		f.failed.Store(&err)
	} else {
		f.failed.Store(nil)
	}
	return secured, info, err
}

func (f fileCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

func (f fileCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (f fileCredentials) Clone() credentials.TransportCredentials { return f }

func (f fileCredentials) OverrideServerName(string) error { return errors.ErrUnsupported }
