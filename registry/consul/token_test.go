package consul

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// leastPrivilege returns the policy that the documentation gives for an agent. Creating a network also needs the right
// to write below networks/.
func leastPrivilege(s *store, node string) string {
	return `
key_prefix "` + s.prefix + `/leases/"  { policy = "write" }
key_prefix "` + s.prefix + `/changes/" { policy = "write" }
key_prefix "` + s.prefix + `/"         { policy = "read" }
session    "` + node + `"             { policy = "write" }
service    "leno"                     { policy = "write" }
agent      "` + node + `"             { policy = "read" }
`
}

func nodeOf(t *testing.T, s *store) string {
	t.Helper()
	name, err := s.open(t).NodeName(testContext(t))
	if err != nil || name == "" {
		t.Fatalf("node name %q, %v", name, err)
	}
	return name
}

func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	node := nodeOf(t, s)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	secret, _ := s.newToken(t, leastPrivilege(s, node))
	c := s.open(t, func(conf *Config) { conf.Token = secret })
	ctx := testContext(t)

	if name, err := c.NodeName(ctx); err != nil || name != node {
		t.Errorf("node name %q, %v", name, err)
	}
	if _, err := c.Network(ctx, n.Name); err != nil {
		t.Error(err)
	}
	l := acquire(t, c, n, 0)
	second := acquire(t, c, n, 1)
	for name, err := range map[string]error{
		"renew":     c.Renew(ctx, l),
		"release":   c.Release(ctx, l),
		"revoke":    c.Revoke(ctx, n.Name, second.Subnet()),
		"announce":  c.Announce(ctx, registry.Service{Name: "leno", ID: "leno-test"}, registry.Verdict{Status: "passing"}),
		"withdraw":  c.Withdraw(ctx, registry.Service{Name: "leno", ID: "leno-test"}),
		"networks":  errOf(c.WatchNetworks(ctx, 0)),
		"leases":    errOf(c.WatchLeases(ctx, n, 0)),
		"reserved":  errOf(c.WatchReservations(ctx, n, 0)),
		"reacquire": errOf2(c.Acquire(ctx, n, claim(0))),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"put network":    c.PutNetwork(ctx, network("other", "10.6.0.0/16")),
		"delete network": c.DeleteNetwork(ctx, n.Name),
		"put deletion":   c.PutDeletion(ctx, registry.Deletion{Network: "other", Time: time.Now()}),
		"reserve":        c.AddReservation(ctx, n, registry.Reservation{Subnet: n.Plan.Subnets(9)[0], Node: "x"}, true),
	} {
		t.Run(name, func(t *testing.T) { wantIs(t, err, registry.ErrDenied) })
	}
}

// TestReserveWithoutLeases: a token that may not read leases can reserve a subnet only by force, because another host may
// hold it.
func TestReserveWithoutLeases(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	l := acquire(t, s.open(t), n, 0)
	rules := `key_prefix "` + s.prefix + `/reservations/" { policy = "write" }`
	secret, policy := s.newToken(t, rules)
	c := s.open(t, func(conf *Config) { conf.Token = secret })
	for name, subnet := range map[string]netip.Prefix{"a held subnet": l.Subnet(), "a free one": n.Plan.Subnets(l.Slot + 1)[0]} {
		err := c.AddReservation(testContext(t), n, registry.Reservation{Subnet: subnet, Node: "x"}, false)
		if !errors.Is(err, registry.ErrDenied) || !strings.Contains(err.Error(), s.prefix+"/leases/default/") {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.setRules(t, policy, rules+` key_prefix "`+s.prefix+`/leases/" { policy = "list" }`)
	c = s.open(t, func(conf *Config) { conf.Token = secret })
	wantIs(t, c.AddReservation(testContext(t), n, registry.Reservation{Subnet: l.Subnet(), Node: "x"}, false), registry.ErrHeld)
}

// TestNetworkWithoutMarkers: a token that may not create the marker and the watermark of a new network cannot define it,
// but can change it. Without a marker, an empty list of leases could be a lost one.
func TestNetworkWithoutMarkers(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, lacking := range []string{"leases", "changes"} {
		t.Run(lacking, func(t *testing.T) {
			var rules string
			for _, folder := range []string{"networks", "reservations", "leases", "changes"} {
				policy := "write"
				if folder == lacking {
					policy = "read"
				}
				rules += fmt.Sprintf("key_prefix %q { policy = %q }\n", s.prefix+"/"+folder+"/", policy)
			}
			secret, _ := s.newToken(t, rules)
			c := s.open(t, func(conf *Config) { conf.Token = secret })
			n := network("of-"+lacking, "10.5.0.0/16")
			kept := registry.Reservation{Subnet: n.Plan.Subnets(9)[0], Node: "x"}
			for _, kept := range [][]registry.Reservation{nil, {kept}} {
				err := c.PutNetwork(testContext(t), n, kept...)
				if !errors.Is(err, registry.ErrDenied) || !strings.Contains(err.Error(), s.prefix+"/"+lacking+"/of-"+lacking) {
					t.Errorf("%v", err)
				}
			}
			for _, folder := range []string{"networks/", "reservations/" + n.Name} {
				left := slices.DeleteFunc(s.Keys(t, s.prefix+"/"+folder), func(key string) bool { return !strings.Contains(key, n.Name) })
				if len(left) > 0 {
					t.Errorf("%v", left)
				}
			}
			n = putNetwork(t, s, n.Name, "10.5.0.0/16")
			if err := c.PutNetwork(testContext(t), n); err != nil {
				t.Errorf("a network that exists: %v", err)
			}
		})
	}
}

// TestReleaseWithoutSession: a token that may not write the session can release the lease; the session ends by itself.
func TestReleaseWithoutSession(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	l := acquire(t, s.open(t), n, 0)
	secret, _ := s.newToken(t, `key_prefix "`+s.prefix+`/leases/" { policy = "write" } key_prefix "`+s.prefix+`/changes/" { policy = "write" }`)
	if err := s.open(t, func(conf *Config) { conf.Token = secret }).Release(testContext(t), l); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := s.Get(t, s.open(t).kv.keys.Lease(n.Name, l.Subnet())); ok || !slices.Contains(s.sessions(t, n.Name), l.Session) {
		t.Errorf("the record is there: %t, sessions %q", ok, s.sessions(t, n.Name))
	}
}

func TestDeniedEverywhere(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	root := s.open(t)
	ctx := testContext(t)
	l := acquire(t, root, n, 0)
	if err := root.AddReservation(ctx, n, registry.Reservation{Subnet: n.Plan.Subnets(9)[0], Node: "x"}, true); err != nil {
		t.Fatal(err)
	}
	// The empty token is Consul's anonymous token: neither ours nor the default token of the Consul agent that gets the
	// request.
	for name, r := range map[string]registry.Registry{"anonymous": root.As(""), "unknown": root.As("5f6a3c9e-0000-4000-8000-000000000002")} {
		t.Run(name, func(t *testing.T) {
			lapsed := l
			lapsed.Session = ""
			for what, err := range map[string]error{
				"network":            errOf2(r.Network(ctx, n.Name)),
				"put network":        r.PutNetwork(ctx, network("other", "10.6.0.0/16")),
				"delete network":     r.DeleteNetwork(ctx, n.Name),
				"put deletion":       r.PutDeletion(ctx, registry.Deletion{Network: "other", Time: time.Now()}),
				"acquire":            errOf2(r.Acquire(ctx, n, claim(1))),
				"renew":              r.Renew(ctx, l),
				"release":            r.Release(ctx, l),
				"revoke":             r.Revoke(ctx, n.Name, l.Subnet()),
				"expire":             r.Expire(ctx, lapsed),
				"watch networks":     errOf(r.WatchNetworks(ctx, 0)),
				"watch leases":       errOf(r.WatchLeases(ctx, n, 0)),
				"watch lease":        errOf(r.WatchLease(ctx, n, l.Subnet(), 0)),
				"reservations":       errOf(r.WatchReservations(ctx, n, 0)),
				"add reservation":    r.AddReservation(ctx, n, registry.Reservation{Subnet: n.Plan.Subnets(8)[0], Node: "y"}, false),
				"remove reservation": r.RemoveReservation(ctx, n.Name, n.Plan.Subnets(9)[0]),
			} {
				t.Run(what, func(t *testing.T) { wantIs(t, err, registry.ErrDenied) })
			}
			if name == "anonymous" { // for which Consul returns an empty list instead of 403
				wantIs(t, errOf(r.WatchLeases(ctx, n, 0)), registry.ErrUncertain)
				wantIs(t, errOf(r.WatchNetworks(ctx, 0)), registry.ErrUncertain)
			}
		})
	}
	if _, session, ok := s.Get(t, s.open(t).kv.keys.Lease(n.Name, l.Subnet())); !ok || session != l.Session {
		t.Errorf("record there %v, held by %q", ok, session)
	}
}

// TestDefaultTokenIsNotLent: without a token header the Consul agent would use
// its own default token for the request.
func TestDefaultTokenIsNotLent(t *testing.T) {
	server := newServer(t, "")
	if _, err := server.admin.Agent().UpdateDefaultACLToken(rootToken, nil); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONSUL_HTTP_TOKEN", rootToken)
	c := server.client(t, "leno", func(conf *Config) { conf.Token = "" })
	ctx := testContext(t)
	if err := c.PutNetwork(ctx, network("default", "10.5.0.0/16")); err != nil {
		t.Fatal(err)
	}
	_, err := c.As("").Network(ctx, "default")
	wantIs(t, err, registry.ErrDenied)
	_, err = c.As("").As(rootToken).Network(ctx, "default")
	if err != nil {
		t.Error(err)
	}
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	file := filepath.Join(t.TempDir(), "token")
	write := func(secret string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := s.open(t, func(conf *Config) { conf.Token, conf.TokenFile = "", file })
	ctx := testContext(t)

	_, err := c.Network(ctx, n.Name)
	wantIs(t, err, registry.ErrDenied, os.ErrNotExist)
	write("")
	_, err = c.Network(ctx, n.Name)
	wantIs(t, err, registry.ErrDenied)

	reader, _ := s.newToken(t, `key_prefix "`+s.prefix+`/" { policy = "read" }`)
	write(reader)
	if _, err := c.Network(ctx, n.Name); err != nil {
		t.Fatal(err)
	}
	_, err = c.Acquire(ctx, n, claim(0))
	wantIs(t, err, registry.ErrDenied)

	writer, _ := s.newToken(t, leastPrivilege(s, nodeOf(t, s)))
	write(writer) // read again on 403, and the request repeated with its body
	l := acquire(t, c, n, 0)

	write(reader)
	take, _, err := c.PrepareToken(ctx, registry.Credentials{TokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	take()
	wantIs(t, c.Release(ctx, l), registry.ErrDenied)
	write(writer) // read again when a transaction is denied, which is not a 403
	if err := c.Release(ctx, l); err != nil {
		t.Fatal(err)
	}

	// When the file is missing, the token stays.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	_, _, err = c.PrepareToken(ctx, registry.Credentials{TokenFile: file})
	wantIs(t, err, os.ErrNotExist)
	if _, err := c.Network(ctx, n.Name); err != nil {
		t.Error(err)
	}
	// Another token, another file, and back again.
	if take, _, err = c.PrepareToken(ctx, registry.Credentials{Token: reader}); err != nil {
		t.Fatal(err)
	}
	if err := errOf2(c.Acquire(ctx, n, claim(0))); err != nil {
		t.Errorf("a token that was only prepared is in use: %v", err)
	}
	take()
	wantIs(t, errOf2(c.Acquire(ctx, n, claim(1))), registry.ErrDenied)
	write("two words")
	_, _, err = c.PrepareToken(ctx, registry.Credentials{TokenFile: file})
	wantIs(t, err, registry.ErrDenied)
	write(writer)
	if take, _, err = c.PrepareToken(ctx, registry.Credentials{TokenFile: file}); err != nil {
		t.Fatal(err)
	}
	take()
	if err := errOf2(c.Acquire(ctx, n, claim(1))); err != nil {
		t.Error(err)
	}
}

// TestTokenDeleted: a revoked token causes 403 for reads too.
func TestTokenDeleted(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	secret, _ := s.newToken(t, leastPrivilege(s, nodeOf(t, s)))
	c := s.open(t, func(conf *Config) { conf.Token = secret })
	acquire(t, c, n, 0)
	self, _, err := s.admin.ACL().TokenReadSelf(&api.QueryOptions{Token: secret})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.admin.ACL().TokenDelete(self.AccessorID, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token is refused", func() bool {
		_, _, err = c.WatchLeases(testContext(t), n, 0)
		return err != nil
	})
	wantIs(t, err, registry.ErrDenied)
}
