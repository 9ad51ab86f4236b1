// Package etcdtest starts real etcd servers on loopback for tests: clusters that tests may kill, pause and restore from
// a snapshot, and one server that the tests of a package share. It does not know what leno stores in etcd.
//
// The servers may be of etcd 3.4 or newer. They end with the test that started them, even if its process is killed.
package etcdtest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/lenonet/leno/internal/testkit/programs"
)

// The user that has all rights on servers with Options.Auth.
const (
	RootUser     = "root"
	RootPassword = "root-password"
)

// reconnect is how a client connects again to a member that was away.
var reconnect = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// patience limits every wait of this package; only a failure takes that long.
const patience = 3 * time.Minute

// Options describes a cluster. The zero value is one server of the newest etcd, without TLS and authentication.
type Options struct {
	// Program is the path of etcd. "" stands for programs.Etcd. OldProgram returns another one.
	Program string
	// Members is the number of servers, 1 if it is 0.
	Members int
	// Auth enables authentication. RootUser has all rights, and AddUser creates other users.
	Auth bool
	// TLS makes the servers require TLS with a client certificate, such as Server.CertFile. Traffic between the
	// members is not encrypted.
	TLS bool
}

// Server is a cluster of one or more etcd servers on loopback addresses. Methods end the test when they fail. One
// goroutine at a time may call them.
//
// Stop, Restart, Pause, Resume and RestoreSnapshot disturb all users of the servers. They panic for a server from
// Shared.
type Server struct {
	// CAFile, CertFile and KeyFile are the paths of PEM files that a TLS client needs: the authority that issued the
	// servers' certificates, and a client certificate with its key. The common name of the certificate is not a user
	// of etcd. All are "" without Options.TLS.
	CAFile, CertFile, KeyFile string

	options  Options
	tb       testing.TB // the test that started the server, nil if it is shared
	dir      string
	members  []*member
	restores int // how often the servers were restored from a snapshot
	pki      *authority
	tls      *tls.Config // of clients, nil without Options.TLS
	http     *http.Client
}

// OldProgram returns the path of an older etcd, such as 3.4 of Debian bookworm, for Options.Program.
func OldProgram(tb testing.TB) string {
	tb.Helper()
	path, err := programs.OldEtcd.Find()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Start starts a cluster and blocks until all members serve requests. The cluster ends with the test.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	s, err := start(tb.TempDir(), o)
	if err != nil {
		tb.Fatal(err)
	}
	s.tb = tb
	tb.Cleanup(s.kill)
	return s
}

func start(dir string, o Options) (*Server, error) {
	if o.Program == "" {
		var err error
		if o.Program, err = programs.Etcd.Find(); err != nil {
			return nil, err
		}
	}
	o.Members = max(o.Members, 1)
	s := &Server{options: o, dir: dir}
	if o.TLS {
		if err := s.setUpTLS(); err != nil {
			return nil, err
		}
	}
	s.http = &http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{TLSClientConfig: s.tls, DisableKeepAlives: true},
	}
	if err := s.bootstrap(); err != nil {
		return nil, err
	}
	if o.Auth {
		if err := s.enableAuth(); err != nil {
			s.kill()
			return nil, fmt.Errorf("enable authentication: %w", err)
		}
	}
	return s, nil
}

// bootstrap starts a new cluster at free ports.
func (s *Server) bootstrap() error {
	if err := s.newMembers(); err != nil {
		return err
	}
	if err := s.startAll(); err != nil {
		s.kill()
		return err
	}
	return nil
}

// startAll starts all members and blocks until all of them serve requests.
func (s *Server) startAll() error {
	for _, m := range s.members {
		if err := m.start(s.options.Program, s.args(m)); err != nil {
			return err
		}
	}
	for _, m := range s.members {
		if err := m.awaitReady(s.http); err != nil {
			return err
		}
	}
	return nil
}

// args returns the arguments of a member. All flags exist since etcd 3.4.
func (s *Server) args(m *member) []string {
	args := []string{
		"--name=" + m.name,
		"--data-dir=" + m.data,
		"--listen-client-urls=" + m.clientURL,
		"--advertise-client-urls=" + m.clientURL,
		"--listen-peer-urls=" + m.peerURL,
		"--initial-advertise-peer-urls=" + m.peerURL,
		"--initial-cluster=" + s.initialCluster(),
		"--initial-cluster-token=" + clusterToken,
		"--logger=zap",
		"--log-level=warn",
		"--bcrypt-cost=4", // the least: each client with a password costs one hash
		"--unsafe-no-fsync",
	}
	if s.options.TLS {
		args = append(args,
			"--cert-file="+filepath.Join(s.dir, serverCert),
			"--key-file="+filepath.Join(s.dir, serverKey),
			"--trusted-ca-file="+s.CAFile,
			"--client-cert-auth",
		)
	}
	return args
}

// initialCluster returns the members as etcd's flag has them: "m0=http://127.0.0.1:40001,m1=http://127.0.0.1:40003".
func (s *Server) initialCluster() string {
	var out []string
	for _, m := range s.members {
		out = append(out, m.name+"="+m.peerURL)
	}
	return strings.Join(out, ",")
}

// Endpoints returns the client URLs of the members in their order, for example "http://127.0.0.1:40001". They stay the
// same when members restart or are restored.
func (s *Server) Endpoints() []string {
	var out []string
	for _, m := range s.members {
		out = append(out, m.clientURL)
	}
	return out
}

// Client returns a client of all members that has all rights. It is closed at the end of the test. The changes are made
// to its configuration, for example to use another user.
func (s *Server) Client(tb testing.TB, change ...func(*clientv3.Config)) *clientv3.Client {
	tb.Helper()
	c, err := s.newClient(s.options.Auth, change...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *Server) newClient(asRoot bool, change ...func(*clientv3.Config)) (*clientv3.Client, error) {
	conf := clientv3.Config{
		Endpoints:   s.Endpoints(),
		DialTimeout: 10 * time.Second,
		TLS:         s.tls,
		// By default, gRPC waits up to two minutes before it connects again to a member that was away.
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 3 * time.Second})},
	}
	if asRoot {
		conf.Username, conf.Password = RootUser, RootPassword
	}
	for _, f := range change {
		f(&conf)
	}
	return clientv3.New(conf)
}

// Stop kills a member with SIGKILL. Its data stays for Restart. If the member was the leader of several, a write that
// another member had already sent to it is lost, and fails after about 7 seconds with rpctypes.ErrTimeout or
// ErrTimeoutDueToLeaderFail.
func (s *Server) Stop(member int) {
	s.owner()
	s.members[member].kill()
}

// Restart starts a member at its old address with its old data, after killing it if it runs. It blocks until the member
// serves requests. While fewer than a majority of the members run, none can: then Restart returns at once.
func (s *Server) Restart(member int) {
	tb := s.owner()
	tb.Helper()
	if err := s.restart(s.members[member]); err != nil {
		tb.Fatal(err)
	}
}

// restart starts a member that was killed.
func (s *Server) restart(m *member) error {
	m.kill()
	if err := m.start(s.options.Program, s.args(m)); err != nil || !s.hasMajority() {
		return err
	}
	return m.awaitReady(s.http)
}

func (s *Server) hasMajority() bool {
	running := 0
	for _, m := range s.members {
		if m.isRunning() {
			running++
		}
	}
	return running > len(s.members)/2
}

// Pause stops a member with SIGSTOP: its connections stay open, and nothing is answered.
func (s *Server) Pause(member int) {
	tb := s.owner()
	tb.Helper()
	if err := s.members[member].pause(); err != nil {
		tb.Fatal(err)
	}
}

// Resume continues a paused member.
func (s *Server) Resume(member int) {
	tb := s.owner()
	tb.Helper()
	if err := s.members[member].resume(); err != nil {
		tb.Fatal(err)
	}
}

// Compact discards the history before the revision, and blocks until the members have applied that. A watch that starts
// at an earlier revision then fails with ErrCompacted.
func (s *Server) Compact(tb testing.TB, rev int64) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := s.Client(tb).Compact(ctx, rev, clientv3.WithCompactPhysical()); err != nil {
		tb.Fatalf("compact revision %d: %v", rev, err)
	}
}

// owner returns the test that may disturb the server.
func (s *Server) owner() testing.TB {
	if s.tb == nil {
		panic("etcdtest: a test must not stop, pause or restore the server that it shares with other tests")
	}
	return s.tb
}

// kill ends all members.
func (s *Server) kill() {
	for _, m := range s.members {
		m.kill()
	}
}
