package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/internal/testkit/etcdtest"
	"github.com/lenonet/leno/registry"
)

// Servers with authentication for all tests that do not harm their server.
var (
	withAuth    = etcdtest.Shared{Options: etcdtest.Options{Auth: true}}
	oldWithAuth = etcdtest.Shared{Options: etcdtest.Options{Auth: true, Program: oldProgram}}
)

// eachWithAuth runs a test with the newest and with the old etcd. The store has a user of its own with all rights below
// its prefix, and one who can only read it.
func eachWithAuth(t *testing.T, test func(t *testing.T, s *store, user, reader account)) {
	t.Parallel()
	for name, shared := range map[string]*etcdtest.Shared{"new": &withAuth, "old": &oldWithAuth} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "old" {
				etcdtest.OldProgram(t) // or fail
			}
			server := shared.Get(t)
			s := newStore(t, server)
			id := s.keys.prefix[strings.LastIndexByte(s.keys.prefix, '/')+1:]
			user, reader := account{"host-" + id, "secret"}, account{"reader-" + id, "quiet"}
			server.AddUser(t, user.name, user.password, etcdtest.Right{
				Key:    s.keys.root(),
				Prefix: true,
				Access: etcdtest.ReadWrite,
			})
			server.AddUser(t, reader.name, reader.password, etcdtest.Right{Key: s.keys.root(), Prefix: true})
			test(t, s, user, reader)
		})
	}
}

type account struct{ name, password string }

func (a account) config(c *Config) { c.Username, c.Password = a.name, a.password }
func (a account) token() string    { return a.name + ":" + a.password }

// TestOrdinaryUser: a host needs no rights beyond the prefix.
func TestOrdinaryUser(t *testing.T) {
	eachWithAuth(t, func(t *testing.T, s *store, user, reader account) {
		ctx := testContext(t)
		c := s.open(t, user.config)
		n := network(t, "10.5.0.0/16")
		if err := c.PutNetwork(ctx, n); err != nil {
			t.Fatal(err)
		}
		if err := c.Probe(ctx); err != nil {
			t.Fatal(err)
		}
		l := acquire(t, c, n, claimOn(n, 1, 10))
		second := acquire(t, c, n, claimOn(n, 2, 20))
		_, index := follow(t, c, n, 0, []string{"10", "20"})
		if err := c.Renew(ctx, l); err != nil {
			t.Error(err)
		}
		acquire(t, c, n, again(claim(1), l))
		reservation := registry.Reservation{Network: n.Name, Subnet: n.Plan.Subnets(30)[0], Node: "host-3"}
		if err := c.AddReservation(ctx, n, reservation, false); err != nil {
			t.Error(err)
		}
		if err := c.RemoveReservation(ctx, n.Name, reservation.Subnet); err != nil {
			t.Error(err)
		}
		if err := c.Revoke(ctx, n.Name, second.Subnet()); err != nil {
			t.Error(err)
		}
		follow(t, c, n, index, []string{"10"})
		s.empty(t)
		holders, err := c.Holders(ctx, n.Name) // the sessions of hosts 1 and 2, whose keys are lost
		if err != nil || len(holders) != 2 {
			t.Errorf("%+v, %v", holders, err)
		}
		_, err = s.open(t, user.config).Acquire(ctx, n, claim(3))
		wantErr(t, err, registry.ErrLeasesLost)
		if err := c.Release(ctx, l); err != nil {
			t.Error(err)
		}
		if err := c.PutNetwork(ctx, n); err != nil {
			t.Error(err)
		}
		if err := c.DeleteNetwork(ctx, n.Name); err != nil {
			t.Error(err)
		}
	})
}

// TestReader: the user of an API caller who may only read.
func TestReader(t *testing.T) {
	eachWithAuth(t, func(t *testing.T, s *store, user, reader account) {
		ctx := testContext(t)
		c := s.open(t, user.config)
		n := network(t, "10.5.0.0/16")
		if err := c.PutNetwork(ctx, n); err != nil {
			t.Fatal(err)
		}
		l := acquire(t, c, n, claimOn(n, 1, 10))
		r := c.As(reader.token())
		if got, err := r.Network(ctx, n.Name); err != nil || got.Name != n.Name {
			t.Errorf("%+v, %v", got, err)
		}
		if set, _, err := r.WatchLeases(ctx, n, 0); err != nil || len(set.Leases) != 1 {
			t.Errorf("%+v, %v", set, err)
		}
		if _, _, err := r.WatchReservations(ctx, n, 0); err != nil {
			t.Error(err)
		}
		if holders, err := r.Holders(ctx, n.Name); err != nil || len(holders) != 1 {
			t.Errorf("%+v, %v", holders, err)
		}
		reservation := registry.Reservation{Network: n.Name, Subnet: n.Plan.Subnets(30)[0], Node: "host-3"}
		n2 := n
		n2.Name = "other"
		for who, as := range map[string]registry.Registry{
			"the reader":          r,
			"anonymous":           c.As(""),
			"a wrong password":    c.As(reader.name + ":wrong"),
			"no password":         c.As(reader.name),
			"an unknown user":     c.As("stranger:quiet"),
			"a password too many": c.As(reader.token() + ":x"),
		} {
			_, acquired := as.Acquire(ctx, n, claim(2))
			for what, err := range map[string]error{
				"PutNetwork":        as.PutNetwork(ctx, n2),
				"DeleteNetwork":     as.DeleteNetwork(ctx, n.Name),
				"Acquire":           acquired,
				"Revoke":            as.Revoke(ctx, n.Name, l.Subnet()),
				"AddReservation":    as.AddReservation(ctx, n, reservation, false),
				"RemoveReservation": as.RemoveReservation(ctx, n.Name, reservation.Subnet),
			} {
				if !errors.Is(err, registry.ErrDenied) {
					t.Errorf("%s, %s: %v", who, what, err)
				}
			}
			if who == "the reader" {
				continue
			}
			_, err := as.Network(ctx, n.Name)
			wantErr(t, err, registry.ErrDenied)
			_, _, err = as.WatchLeases(ctx, n, 0)
			wantErr(t, err, registry.ErrDenied)
			_, _, err = as.WatchNetworks(ctx, 0)
			wantErr(t, err, registry.ErrDenied)
			_, err = as.Holders(ctx, n.Name)
			wantErr(t, err, registry.ErrDenied)
		}
		follow(t, c, n, 0, []string{"10"})
	})
}

// TestSameUser: an API caller with the agent's own user shares its connection, also if both have none.
func TestSameUser(t *testing.T) {
	t.Parallel()
	c := New(Config{})
	defer c.Close()
	shares := func(token string) bool { return c.As(token).(*Client).own == c.own }
	check := func(want string, tokens map[string]bool) {
		t.Helper()
		for token, same := range tokens {
			if shares(token) != same {
				t.Errorf("%s: the token %q shares the connection: %t", want, token, !same)
			}
		}
	}
	check("anonymous agent", map[string]bool{"": true, "host": true, "host:": true, "host:secret": false})
	c.SetUser("host", "secret")
	check("agent with a user", map[string]bool{"": false, "host": false, "host:secret": true, "host:other": false})
}

// TestWrongPassword: an agent with a wrong password, and one whose password is changed while it runs.
func TestWrongPassword(t *testing.T) {
	eachWithAuth(t, func(t *testing.T, s *store, user, reader account) {
		ctx := testContext(t)
		wrong := s.open(t, account{user.name, "wrong"}.config)
		wantErr(t, wrong.Probe(ctx), registry.ErrDenied)
		_, _, err := wrong.WatchNetworks(ctx, 0)
		wantErr(t, err, registry.ErrDenied)
		anonymous := s.open(t)
		wantErr(t, anonymous.Probe(ctx), registry.ErrDenied)

		c := s.open(t, user.config)
		n := network(t, "10.5.0.0/16")
		if err := c.PutNetwork(ctx, n); err != nil {
			t.Fatal(err)
		}
		l := acquire(t, c, n, claimOn(n, 1, 10))
		follow(t, c, n, 0, []string{"10"})
		if _, err := s.admin.UserChangePassword(ctx, user.name, "other"); err != nil {
			t.Fatal(err)
		}
		wantErr(t, c.Probe(ctx), registry.ErrDenied)
		wantErr(t, c.Renew(ctx, l), registry.ErrDenied)
		_, err = c.Acquire(ctx, n, again(claim(1), l))
		wantErr(t, err, registry.ErrDenied)
		_, _, err = c.WatchLeases(ctx, n, 0)
		wantErr(t, err, registry.ErrDenied)
		if _, err := s.admin.UserChangePassword(ctx, user.name, user.password); err != nil {
			t.Fatal(err)
		}
		if err := c.Renew(ctx, l); err != nil {
			t.Error(err)
		}
		acquire(t, c, n, again(claim(1), l))
		follow(t, c, n, 0, []string{"10"})
	})
}

// TestRoleRevoked: a user who loses the role while the agent runs, and gets it again.
func TestRoleRevoked(t *testing.T) {
	eachWithAuth(t, func(t *testing.T, s *store, user, reader account) {
		ctx := testContext(t)
		c, host := s.open(t, user.config), s.open(t, user.config)
		c.own.mirror.Idle = 20 * time.Millisecond // the next call reads everything again
		n := network(t, "10.5.0.0/16")
		if err := c.PutNetwork(ctx, n); err != nil {
			t.Fatal(err)
		}
		l := acquire(t, host, n, claimOn(n, 1, 10))
		follow(t, c, n, 0, []string{"10"})
		awaitNotFollowing(t, c)
		if _, err := s.admin.UserRevokeRole(ctx, user.name, user.name); err != nil {
			t.Fatal(err)
		}
		for _, after := range []uint64{registry.Known, 0} {
			_, _, err := c.WatchLeases(ctx, n, after)
			wantErr(t, err, registry.ErrDenied)
		}
		_, _, err := c.WatchNetworks(ctx, 0)
		wantErr(t, err, registry.ErrDenied)
		_, _, err = c.WatchLease(ctx, n, l.Subnet(), 0)
		wantErr(t, err, registry.ErrDenied)
		_, err = host.Acquire(ctx, n, again(claim(1), l))
		wantErr(t, err, registry.ErrDenied)
		_, err = c.Acquire(ctx, n, claim(2))
		wantErr(t, err, registry.ErrDenied)
		wantErr(t, c.Probe(ctx), registry.ErrDenied)
		if err := host.Renew(ctx, l); err != nil {
			wantErr(t, err, registry.ErrDenied)
		}
		if _, err := s.admin.UserGrantRole(ctx, user.name, user.name); err != nil {
			t.Fatal(err)
		}
		set, _ := follow(t, c, n, registry.Known, []string{"10"}, 10)
		if set.SetBack != 0 {
			t.Errorf("set back %d times", set.SetBack)
		}
		if err := host.Renew(ctx, l); err != nil {
			t.Error(err)
		}
		acquire(t, host, n, again(claim(1), l))
	})
}

// TestWatchRefused: a server that refuses a watch gives the reason only as a text.
func TestWatchRefused(t *testing.T) {
	eachWithAuth(t, func(t *testing.T, s *store, user, reader account) {
		ctx := testContext(t)
		c := s.open(t, user.config)
		if err := c.PutNetwork(ctx, network(t, "10.5.0.0/16")); err != nil {
			t.Fatal(err)
		}
		api, err := c.own.client(ctx)
		if err != nil {
			t.Fatal(err)
		}
		resp := <-api.Watch(ctx, "/elsewhere/", clientv3.WithPrefix())
		if resp.Err() == nil {
			t.Fatalf("%+v", resp)
		}
		wantErr(t, classifyWatch(ctx, resp.Err()), registry.ErrDenied)
	})
}

// TestTLS: servers that require client certificates.
func TestTLS(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t, etcdtest.Options{TLS: true, Auth: true})
	s := newStore(t, server)
	server.AddUser(t, "host", "secret", etcdtest.Right{Key: s.keys.root(), Prefix: true, Access: etcdtest.ReadWrite})
	withCert := func(certFile, keyFile string) TLS {
		return TLS{CAFile: server.CAFile, CertFile: certFile, KeyFile: keyFile}
	}
	byPassword := func(c *Config) {
		c.TLS, c.Username, c.Password = withCert(server.CertFile, server.KeyFile), "host", "secret"
	}
	byCertificate := func(c *Config) { c.TLS = withCert(server.IssueCert(t, "host")) }
	n := network(t, "10.5.0.0/16")
	for i, change := range []func(*Config){byPassword, byCertificate} {
		c := s.open(t, change)
		if i == 0 {
			if err := c.PutNetwork(testContext(t), n); err != nil {
				t.Fatal(err)
			}
		}
		l := acquire(t, c, n, claimOn(n, i+1, uint64(i+1)))
		follow(t, c, n, 0, []string{"1", "2"}[:i+1])
		if err := c.Renew(testContext(t), l); err != nil {
			t.Error(err)
		}
	}
	for name, change := range map[string]func(*Config){
		"no certificate":        func(c *Config) { c.TLS = TLS{CAFile: server.CAFile} },
		"unknown authority":     func(c *Config) { byPassword(c); c.TLS.CAFile = "" },
		"no TLS":                func(c *Config) { c.Endpoints = []string{strings.Replace(s.endpoints[0], "https", "http", 1)} },
		"anonymous with a cert": func(c *Config) { c.TLS = withCert(server.IssueCert(t, "stranger")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := registry.ErrUnavailable
			if name == "anonymous with a cert" {
				want = registry.ErrDenied
			}
			c := s.open(t, change)
			c.own.timeout = time.Second
			wantErr(t, c.Probe(testContext(t)), want)
			if name == "unknown authority" {
				retry(t, func(ctx context.Context) error { // a handshake may take longer than the request waits
					err := c.Probe(ctx)
					if err != nil && strings.Contains(err.Error(), "certificate signed by unknown authority") {
						return nil
					}
					return fmt.Errorf("the error does not name the reason: %w", err)
				})
			}
		})
	}
}

// TestCertificateIsNotLent: callers have the rights of a user that etcd has checked, and never those of the client's
// certificate.
func TestCertificateIsNotLent(t *testing.T) {
	t.Parallel()
	for _, auth := range []bool{true, false} {
		t.Run(fmt.Sprintf("authentication %t", auth), func(t *testing.T) {
			t.Parallel()
			s, server := ownStore(t, etcdtest.Options{TLS: true, Auth: auth})
			if auth {
				right := etcdtest.Right{Key: s.keys.root(), Prefix: true, Access: etcdtest.ReadWrite}
				server.AddUser(t, "host", "secret", right)
				server.AddUser(t, "admin", "secret", right)
			}
			certFile, keyFile := server.IssueCert(t, "host")
			c := s.open(t, func(c *Config) { c.TLS = TLS{CAFile: server.CAFile, CertFile: certFile, KeyFile: keyFile} })
			n := network(t, "10.5.0.0/16")
			if err := c.PutNetwork(testContext(t), n); err != nil {
				t.Fatal(err)
			}
			for _, token := range []string{"", ":", "host", "host:", "stranger:x", "host:wrong", ":secret"} {
				as := c.As(token)
				_, err := as.Network(testContext(t), n.Name)
				wantErr(t, err, registry.ErrDenied)
				_, _, err = as.WatchLeases(testContext(t), n, 0)
				wantErr(t, err, registry.ErrDenied)
				wantErr(t, as.DeleteNetwork(testContext(t), n.Name), registry.ErrDenied)
			}
			for _, token := range []string{"host:secret", "admin:secret"} {
				_, err := c.As(token).Network(testContext(t), n.Name)
				if auth && err != nil || !auth && !errors.Is(err, registry.ErrDenied) {
					t.Errorf("%s: %v", token, err)
				}
			}
		})
	}
}

// TestCertificateExpired: a client whose certificate expires keeps its connection, but gets no other one before there is a
// new certificate in the same files.
func TestCertificateExpired(t *testing.T) {
	t.Parallel()
	s, server := ownStore(t, etcdtest.Options{TLS: true})
	const lifetime = 6 * time.Second // enough to connect
	certFile, keyFile := server.IssueCertFor(t, "host", lifetime)
	expired := time.Now().Add(lifetime + time.Second)
	c := s.open(t, func(c *Config) { c.TLS = TLS{CAFile: server.CAFile, CertFile: certFile, KeyFile: keyFile} })
	n := network(t, "10.5.0.0/16")
	if err := c.PutNetwork(testContext(t), n); err != nil {
		t.Fatal(err)
	}
	l := acquire(t, c, n, claimOn(n, 1, 10))
	follow(t, c, n, 0, []string{"10"})
	time.Sleep(time.Until(expired))
	if err := c.Renew(testContext(t), l); err != nil {
		t.Errorf("over the connection from before: %v", err)
	}
	server.Restart(0)
	deadline := time.Now().Add(patience)
	for reason := ""; !strings.Contains(reason, certFile+" expired at"); time.Sleep(10 * time.Millisecond) {
		err := c.Renew(testContext(t), l)
		wantErr(t, err, registry.ErrUnavailable)
		if reason = err.Error(); time.Now().After(deadline) {
			t.Fatal(err)
		}
		_, _, err = c.WatchLeases(testContext(t), n, 0)
		wantErr(t, err, registry.ErrUnavailable)
	}
	newCert, newKey := server.IssueCert(t, "host")
	for from, to := range map[string]string{newCert: certFile, newKey: keyFile} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	retry(t, func(ctx context.Context) error { return c.Renew(ctx, l) })
	reach(t, c, n, []string{"10"}, 10)
}

// TestTokenLost: a server that was restarted does not know the tokens of its users any more.
func TestTokenLost(t *testing.T) {
	t.Parallel()
	for name, program := range map[string]string{"new": "", "old": etcdtest.OldProgram(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, server := ownStore(t, etcdtest.Options{Program: program, Auth: true})
			server.AddUser(t, "host", "secret", etcdtest.Right{Key: s.keys.root(), Prefix: true, Access: etcdtest.ReadWrite})
			c := s.open(t, account{"host", "secret"}.config)
			n := network(t, "10.5.0.0/16")
			if err := c.PutNetwork(testContext(t), n); err != nil {
				t.Fatal(err)
			}
			l := acquire(t, c, n, claimOn(n, 1, 10))
			follow(t, c, n, 0, []string{"10"})
			server.Restart(0)
			retry(t, func(ctx context.Context) error { return c.Renew(ctx, l) })
			_, index := reach(t, c, n, []string{"10"}, 10)
			acquire(t, c, n, claimOn(n, 2, 20))
			follow(t, c, n, index, []string{"10", "20"})
		})
	}
}

// TestAuthEnabledLater: a server whose authentication is enabled while the agent runs.
func TestAuthEnabledLater(t *testing.T) {
	t.Parallel()
	s, server := ownStore(t, etcdtest.Options{Auth: true})
	server.AddUser(t, "host", "secret", etcdtest.Right{Key: s.keys.root(), Prefix: true, Access: etcdtest.ReadWrite})
	if _, err := s.admin.AuthDisable(testContext(t)); err != nil {
		t.Fatal(err)
	}
	c := s.open(t, account{"host", "secret"}.config)
	n := network(t, "10.5.0.0/16")
	if err := c.PutNetwork(testContext(t), n); err != nil {
		t.Fatal(err)
	}
	l := acquire(t, c, n, claimOn(n, 1, 10))
	if _, err := s.admin.AuthEnable(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := c.Renew(testContext(t), l); err != nil {
		t.Error(err)
	}
	acquire(t, c, n, again(claim(1), l))
	follow(t, c, n, 0, []string{"10"})
}

// TestUserChanged: another user is used without a restart, also by calls that wait.
func TestUserChanged(t *testing.T) {
	eachWithAuth(t, func(t *testing.T, s *store, user, reader account) {
		ctx := testContext(t)
		c := s.open(t, user.config)
		n := network(t, "10.5.0.0/16")
		if err := c.PutNetwork(ctx, n); err != nil {
			t.Fatal(err)
		}
		l := acquire(t, c, n, claimOn(n, 1, 10))
		_, index := follow(t, c, n, 0, []string{"10"})
		use := func(a account) { c.SetUser(a.name, a.password) }
		use(account{})
		wantErr(t, c.Probe(ctx), registry.ErrDenied)
		use(account{user.name, "wrong"})
		wantErr(t, c.Probe(ctx), registry.ErrDenied)
		use(reader)
		if err := c.Probe(ctx); err != nil {
			t.Error(err)
		}
		_, err := c.Acquire(ctx, n, claim(2))
		wantErr(t, err, registry.ErrDenied)
		use(user)
		if err := c.Renew(ctx, l); err != nil {
			t.Error(err)
		}
		acquire(t, c, n, claimOn(n, 2, 20))
		follow(t, c, n, index, []string{"10", "20"}, 10)
	})
}
