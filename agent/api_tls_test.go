package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// An authority is a CA that signs certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key}
	a.cert = a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}, &key.PublicKey)
	return a
}

func (a *authority) sign(c *x509.Certificate, key *ecdsa.PublicKey) *x509.Certificate {
	a.t.Helper()
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return out
}

// issue returns a certificate for this host, valid for servers and clients, and its key, both in PEM.
func (a *authority) issue(name string) (cert, key []byte) {
	a.t.Helper()
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, &pair.PublicKey)
	der, err := x509.MarshalECPrivateKey(pair)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// TestTLS: the listener presents its certificate and asks the client for one. A reload replaces the certificate and the
// authority, unless a file cannot be used.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	h := newHost(t, memory.New(), "a").real()
	h.config.HTTP.Address = "127.0.0.1:0"
	cert, key := ours.issue("first")
	h.config.HTTP.TLS.CertFile, h.config.HTTP.TLS.KeyFile = write("cert.pem", cert), write("key.pem", key)
	h.config.HTTP.TLS.CAFile = write("ca.pem", ours.pem())
	h.start().ready()
	address := h.listensOn()

	ask := func(of *authority, shows ...tls.Certificate) (served string, err error) {
		conf := &tls.Config{RootCAs: of.pool(), Certificates: shows, VerifyConnection: func(s tls.ConnectionState) error {
			served = s.PeerCertificates[0].Subject.CommonName
			return nil
		}}
		c, err := api.New(api.Config{Address: "https://" + address, TLS: conf})
		if err != nil {
			return "", err
		}
		defer c.Close()
		_, err = c.Self(t.Context())
		return served, err
	}
	pair := func(of *authority) tls.Certificate {
		t.Helper()
		p, err := tls.X509KeyPair(of.issue("client"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if served, err := ask(ours, pair(ours)); err != nil || served != "first" {
		t.Errorf("a client with our certificate: %q, %v", served, err)
	}
	for name, shows := range map[string][]tls.Certificate{"without a certificate": nil, "with another's": {pair(theirs)}} {
		if _, err := ask(ours, shows...); err == nil || !strings.Contains(err.Error(), "certificate") && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("a client %s: %v", name, err)
		}
	}
	plain, err := http.Get("http://" + address + "/healthz")
	must(t, err)
	if _ = plain.Body.Close(); plain.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP: %d", plain.StatusCode)
	}

	cert, key = theirs.issue("second")
	write("key.pem", key) // the key of another certificate
	if err := h.agent.Reload(t.Context(), h.config); err == nil || !strings.Contains(err.Error(), h.config.HTTP.TLS.KeyFile+" does not match cert_file "+h.config.HTTP.TLS.CertFile) {
		t.Errorf("a key that is not the certificate's: %v", err)
	}
	write("ca.pem", []byte("nothing"))
	write("cert.pem", cert)
	if err := h.agent.Reload(t.Context(), h.config); err == nil || !strings.Contains(err.Error(), "ca_file") {
		t.Errorf("an authority file without a certificate: %v", err)
	}
	must(t, os.Remove(filepath.Join(dir, "ca.pem")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "ca.pem"), 0o600))
	if err := h.agent.Reload(t.Context(), h.config); err == nil || !strings.Contains(err.Error(), "ca.pem: is not a regular file") {
		t.Errorf("an authority file that blocks: %v", err)
	}
	must(t, os.Remove(filepath.Join(dir, "ca.pem")))
	if served, err := ask(ours, pair(ours)); err != nil || served != "first" {
		t.Errorf("after reloads that were refused: %q, %v", served, err)
	}
	write("ca.pem", theirs.pem())
	if err := h.agent.Reload(t.Context(), h.config); err != nil {
		t.Fatal(err)
	}
	if served, err := ask(theirs, pair(theirs)); err != nil || served != "second" {
		t.Errorf("after a reload: %q, %v", served, err)
	}
	if _, err := ask(theirs, pair(ours)); err == nil {
		t.Error("a client with a certificate of the former authority is accepted")
	}
}
