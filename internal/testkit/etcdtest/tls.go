package etcdtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The files of the servers' certificate, in the directory of the cluster.
const (
	serverCert = "server.pem"
	serverKey  = "server-key.pem"
)

// authority is a certificate authority.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// setUpTLS creates the authority and the certificates of the servers and the client.
func (s *Server) setUpTLS() error {
	var err error
	s.CAFile = filepath.Join(s.dir, "ca.pem")
	if s.pki, err = newAuthority(s.CAFile); err != nil {
		return err
	}
	// The servers' certificate is a client certificate too, because etcd's HTTP gateway connects to its own server with
	// it. The gateway works only if the certificate has no common name, which would be a user.
	err = s.pki.issue(filepath.Join(s.dir, serverCert), filepath.Join(s.dir, serverKey), &x509.Certificate{
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	if err != nil {
		return err
	}
	if s.CertFile, s.KeyFile, err = s.issueClient("leno-test", day); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.pki.certificate)
	s.tls = &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12}
	return nil
}

// IssueCert creates a client certificate for a server with Options.TLS, and returns the paths of the PEM files of the
// certificate and its key. With Options.Auth, a client without a password is the user that the common name names.
func (s *Server) IssueCert(tb testing.TB, commonName string) (certFile, keyFile string) {
	tb.Helper()
	return s.IssueCertFor(tb, commonName, day)
}

// IssueCertFor is IssueCert for a certificate that expires after a time.
func (s *Server) IssueCertFor(tb testing.TB, commonName string, lifetime time.Duration) (certFile, keyFile string) {
	tb.Helper()
	if s.pki == nil {
		tb.Fatal("etcdtest: certificates need Options.TLS")
	}
	certFile, keyFile, err := s.issueClient(commonName, lifetime)
	if err != nil {
		tb.Fatal(err)
	}
	return certFile, keyFile
}

// day is how long certificates are valid.
const day = 24 * time.Hour

func (s *Server) issueClient(commonName string, lifetime time.Duration) (certFile, keyFile string, err error) {
	dir, err := os.MkdirTemp(s.dir, "client-")
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(dir, "client.pem"), filepath.Join(dir, "client-key.pem")
	return certFile, keyFile, s.pki.issue(certFile, keyFile, &x509.Certificate{
		Subject:     pkix.Name{CommonName: commonName},
		NotAfter:    time.Now().Add(lifetime),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// newAuthority creates an authority and writes its certificate to the path.
func newAuthority(path string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{key: key}
	a.certificate = &x509.Certificate{
		Subject:               pkix.Name{CommonName: "leno test authority"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := a.sign(a.certificate, key)
	if err != nil {
		return nil, err
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return a, writePEM(path, "CERTIFICATE", der)
}

// issue creates a key and a certificate for it from the template, and writes both.
func (a *authority) issue(certFile, keyFile string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := a.sign(template, key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(writePEM(certFile, "CERTIFICATE", der), writePEM(keyFile, "PRIVATE KEY", secret))
}

func (a *authority) sign(template *x509.Certificate, key crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(day)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("create certificate: %w", err)
	}
	return der, nil
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
