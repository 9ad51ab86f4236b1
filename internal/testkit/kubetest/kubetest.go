// Package kubetest starts real API servers of Kubernetes for tests, by default on loopback and each with an etcd server
// of its own. No other component of Kubernetes runs: tests create Nodes themselves.
//
// The servers end with the test that started them, even if its process is killed.
package kubetest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/etcdtest"
	"github.com/lenonet/leno/internal/testkit/ports"
	"github.com/lenonet/leno/internal/testkit/process"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// Tokens of users. AdminToken has all rights. UserToken has those that Server.Allow grants.
const (
	AdminToken = "admin-token"
	UserToken  = "user-token"
)

// userName is the name of UserToken's user.
const userName = "user"

// Server is an API server. Methods end the test when they fail. One goroutine at a time may call them.
type Server struct {
	// Etcd is the server's storage, nil with Options.Etcd.
	Etcd *etcdtest.Server

	o       Options
	tb      testing.TB
	dir     string
	addr    netip.AddrPort
	http    *http.Client
	process *process.Process // nil while it does not run
}

// Options say where the server runs. The zero value is a free port on loopback.
type Options struct {
	Addr netip.AddrPort // the address to listen on
	Etcd string         // the URL of an etcd server to use as storage, "" to start one

	// Within calls a function on a thread in the network namespace of the server, and returns when the function has
	// returned. Dial connects from there. Both are nil for this process's own namespace.
	Within func(func() error) error
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// Start starts an API server on loopback and blocks until it is ready, which takes some seconds.
func Start(tb testing.TB) *Server {
	tb.Helper()
	return StartWith(tb, Options{})
}

// StartWith starts an API server and blocks until it is ready.
func StartWith(tb testing.TB, o Options) *Server {
	tb.Helper()
	s := &Server{
		o:    o,
		tb:   tb,
		dir:  tb.TempDir(),
		addr: o.Addr,
		http: &http.Client{
			Timeout: 10 * time.Second,
			Transport: &http.Transport{
				DialContext:       o.Dial,
				TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the server signs its certificate itself
				DisableKeepAlives: true,
			},
		},
	}
	if s.o.Etcd == "" {
		s.Etcd = etcdtest.Start(tb, etcdtest.Options{})
		s.o.Etcd = strings.Join(s.Etcd.Endpoints(), ",")
	}
	tb.Cleanup(s.Stop)
	if err := s.writeFiles(); err != nil {
		tb.Fatal(err)
	}
	if !s.addr.IsValid() {
		free, err := ports.Free(1)
		if err != nil {
			tb.Fatal(err)
		}
		s.addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(free[0]))
	}
	if err := s.run(); err != nil {
		tb.Fatal(err)
	}
	return s
}

// writeFiles writes the key and the tokens.
func (s *Server) writeFiles() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	tokens := fmt.Sprintf("%s,admin,1,\"system:masters\"\n%s,%s,2\n", AdminToken, UserToken, userName)
	return errors.Join(
		os.WriteFile(filepath.Join(s.dir, "key.pem"), pem.EncodeToMemory(block), 0o600),
		os.WriteFile(filepath.Join(s.dir, "tokens.csv"), []byte(tokens), 0o600),
	)
}

// URL returns the address of the server.
func (s *Server) URL() string { return "https://" + s.addr.String() }

// Kubeconfig writes a kubeconfig for a token, and returns its path.
func (s *Server) Kubeconfig(tb testing.TB, token string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, s.URL(), token)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// CAFile returns the path of the certificate that the server's certificate is verified with.
func (s *Server) CAFile() string { return filepath.Join(s.dir, "certs", "apiserver.crt") }

// run starts the process and waits until it is ready.
func (s *Server) run() error {
	program, err := programs.KubeAPIServer.Find()
	if err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(s.dir, name) }
	cmd := exec.Command(program,
		"--etcd-servers="+s.o.Etcd,
		"--service-account-issuer=https://x",
		"--service-account-key-file="+file("key.pem"),
		"--service-account-signing-key-file="+file("key.pem"),
		"--cert-dir="+file("certs"),
		"--token-auth-file="+file("tokens.csv"),
		"--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.96.0.0/24",
		"--disable-admission-plugins=ServiceAccount",
		"--bind-address="+s.addr.Addr().String(),
		"--advertise-address="+s.addr.Addr().String(),
		fmt.Sprintf("--secure-port=%d", s.addr.Port()),
	)
	cmd.Dir = s.dir
	if within := s.o.Within; within == nil {
		s.process, err = process.Start(cmd, file("log"))
	} else {
		s.process, err = process.StartOn(cmd, file("log"), func(start func(), ended <-chan struct{}) error {
			return within(func() error {
				start()
				<-ended
				return nil
			})
		})
	}
	if err != nil {
		return err
	}
	return s.process.WaitFor(context.Background(), "the API server", func(context.Context) error {
		_, err := s.request("GET", "/readyz", nil)
		return err
	})
}

// Stop kills the API server with SIGKILL, if it runs. The objects stay for Restart.
func (s *Server) Stop() {
	if s.process != nil {
		s.process.Kill()
		s.process = nil
	}
}

// Pause stops the API server with SIGSTOP: its connections stay open, and nothing is answered. Stop and Restart end it.
func (s *Server) Pause() {
	s.tb.Helper()
	if err := s.process.Pause(); err != nil {
		s.tb.Fatal(err)
	}
}

// Restart starts the API server at its old address, after killing it if it runs, and blocks until it is ready.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	if err := s.run(); err != nil {
		s.tb.Fatal(err)
	}
}
