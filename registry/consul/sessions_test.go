package consul

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

func TestSession(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	l := acquire(t, s.open(t), n, 0)
	entry, _, err := s.admin.Session().Info(l.Session, nil)
	if err != nil || entry == nil {
		t.Fatal(entry, err)
	}
	if entry.Name != s.prefix+"/default/host-0" || entry.Behavior != "release" || entry.TTL != claim(0).TTL.String() ||
		entry.LockDelay != time.Millisecond || len(entry.NodeChecks) != 0 || len(entry.ServiceChecks) != 0 {
		t.Errorf("session %+v", entry)
	}
}

func TestTTLOutOfRange(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	for _, ttl := range []time.Duration{0, 9 * time.Second, 25 * time.Hour} {
		c := claim(0)
		c.TTL = ttl
		_, err := s.open(t).Acquire(testContext(t), n, c)
		wantIs(t, err, registry.ErrInvalid)
	}
}

func TestNoSessionLeaks(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.7.0.0/22") // three slots
	var leases []registry.Lease
	for i := range 3 {
		leases = append(leases, acquire(t, s.open(t), n, i))
	}
	_, err := s.open(t).Acquire(testContext(t), n, claim(3))
	wantIs(t, err, registry.ErrNetworkFull)
	same := claim(4)
	same.Node = "host-1"
	_, err = s.open(t).Acquire(testContext(t), n, same)
	wantIs(t, err, registry.ErrDuplicateNode)
	if got := s.sessions(t, "default"); len(got) != 3 {
		t.Errorf("%d sessions for three leases", len(got))
	}

	// A claim that loses three races, because the proxy refuses its transactions, and fails then.
	var refused atomic.Int32
	addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.URL.Path == "/v1/txn" {
			if refused.Add(1) > 3 {
				w.WriteHeader(http.StatusForbidden)
				_, _ = io.WriteString(w, "Permission denied")
				return
			}
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"Errors":[{"OpIndex":0,"What":"key exists"}]}`)
			return
		}
		pass.ServeHTTP(w, r)
	})
	if err := s.open(t).Release(testContext(t), leases[2]); err != nil {
		t.Fatal(err)
	}
	_, err = s.open(t, func(c *Config) { c.Address = addr }).Acquire(testContext(t), n, claim(2))
	wantIs(t, err, registry.ErrDenied)
	if got := s.sessions(t, "default"); len(got) != 2 {
		t.Errorf("%d sessions for two leases", len(got))
	}
}

func TestNoSessionLeaksWhenCancelled(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	ctx, cancel := context.WithCancel(testContext(t))
	addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.URL.Path == "/v1/txn" {
			_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not see the client go
			cancel()
			<-r.Context().Done()
			return
		}
		pass.ServeHTTP(w, r)
	})
	_, err := s.open(t, func(c *Config) { c.Address = addr }).Acquire(ctx, n, claim(0))
	wantIs(t, err, context.Canceled)
	if got := s.sessions(t, "default"); len(got) != 0 {
		t.Errorf("sessions %v", got)
	}
}

// TestTTLChanged: the lock is transferred to a session with the new TTL without being released.
func TestTTLChanged(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	c := s.open(t)
	l := acquire(t, c, n, 0)
	longer := claim(0)
	longer.TTL, longer.Session = 20*time.Minute, l.Session
	again, err := c.Acquire(testContext(t), n, longer)
	if err != nil {
		t.Fatal(err)
	}
	if again.Slot != l.Slot || again.CreateIndex != l.CreateIndex || again.Session == l.Session {
		t.Fatalf("was %+v, is %+v", l, again)
	}
	if got := s.sessions(t, "default"); !slices.Equal(got, []string{again.Session}) {
		t.Errorf("sessions %v, want %s", got, again.Session)
	}
	entry, _, err := s.admin.Session().Info(again.Session, nil)
	if err != nil || entry.TTL != "20m0s" {
		t.Errorf("session %+v, %v", entry, err)
	}
}

// TestOutcomeUnknown: the answer to the transaction is lost, and the transaction took place, or did not, or takes place
// later. There is never a second record or session.
func TestOutcomeUnknown(t *testing.T) {
	t.Parallel()
	for name, hook := range map[string]func(w http.ResponseWriter, r *http.Request, pass http.Handler){
		"took place": func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			pass.ServeHTTP(discard{}, r)
			http.Error(w, "rpc error: i/o timeout", 500)
		},
		"did not": func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			http.Error(w, "No cluster leader", 500)
		},
		"connection lost": func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			pass.ServeHTTP(discard{}, r)
			panic(http.ErrAbortHandler)
		},
	} {
		for _, update := range []bool{false, true} {
			t.Run(name+map[bool]string{false: " for a new lease", true: " for new attributes"}[update], func(t *testing.T) {
				t.Parallel()
				s := newStore(t)
				n := putNetwork(t, s, "default", "10.5.0.0/16")
				c := claim(0)
				if update {
					c.Session = acquire(t, s.open(t), n, 0).Session
					c.MTU = 1400
				}
				var troubled atomic.Bool
				addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
					if r.URL.Path == "/v1/txn" && !troubled.Swap(true) {
						hook(w, r, pass)
						return
					}
					pass.ServeHTTP(w, r)
				})
				l, err := s.open(t, func(c *Config) { c.Address = addr }).Acquire(testContext(t), n, c)
				if err != nil {
					t.Fatal(err)
				}
				only(t, s, n, l)
				if l.MTU != c.MTU || !troubled.Load() {
					t.Errorf("got %+v", l)
				}
			})
		}
	}
	t.Run("takes place once the next slot is chosen", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		n := putNetwork(t, s, "default", "10.5.0.0/16")
		var txns atomic.Int64
		var late *http.Request
		var body []byte
		addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			if r.URL.Path != "/v1/txn" {
				pass.ServeHTTP(w, r)
				return
			}
			switch txns.Add(1) {
			case 1:
				body, _ = io.ReadAll(r.Body)
				late = r.Clone(context.Background())
				http.Error(w, "rpc error: i/o timeout", 500)
				return
			case 2:
				late.Body = io.NopCloser(bytes.NewReader(body))
				answer := httptest.NewRecorder()
				pass.ServeHTTP(answer, late)
				if answer.Code != http.StatusConflict {
					t.Errorf("the late transaction was answered %d: %s", answer.Code, answer.Body)
				}
			}
			pass.ServeHTTP(w, r)
		})
		l, err := s.open(t, func(c *Config) { c.Address = addr }).Acquire(testContext(t), n, claim(0))
		if err != nil {
			t.Fatal(err)
		}
		only(t, s, n, l)
	})
}

// only checks that l is the only record of the network and its session the only session.
func only(t *testing.T, s *store, n registry.Network, l registry.Lease) {
	t.Helper()
	set, _, err := s.open(t).WatchLeases(testContext(t), n, 0)
	if err != nil || len(set.Leases) != 1 || set.Leases[0].Slot != l.Slot || set.Leases[0].Session != l.Session || !set.Leases[0].SameValue(l) {
		t.Errorf("leases %+v, %v, want only %+v", set.Leases, err, l)
	}
	if got := s.sessions(t, n.Name); !slices.Equal(got, []string{l.Session}) {
		t.Errorf("sessions %v, want only %s", got, l.Session)
	}
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}

// TestSecondRecord: whatever left a second record, the next renewal removes it, if the session of the host holds it or none.
func TestSecondRecord(t *testing.T) {
	t.Parallel()
	for _, sameSession := range []bool{true, false} {
		s := newStore(t)
		n := putNetwork(t, s, "default", "10.5.0.0/16")
		c := claim(0)
		c.Prefer = n.Plan.Subnets(10)[0]
		l, err := s.open(t).Acquire(testContext(t), n, c)
		if err != nil {
			t.Fatal(err)
		}
		other := l
		other.Slot, other.Subnets = 20, n.Plan.Subnets(20)
		value, err := registry.FormatLease(other)
		if err != nil {
			t.Fatal(err)
		}
		session := l.Session
		if !sameSession {
			if session, err = s.open(t).sessions.Create(testContext(t), n.Name, c); err != nil {
				t.Fatal(err)
			}
		}
		pair := &api.KVPair{Key: s.prefix + "/leases/default/10.5.20.0-24", Value: value, Session: session}
		if ok, _, err := s.admin.KV().Acquire(pair, nil); !ok || err != nil {
			t.Fatal(ok, err)
		}
		c.Session = l.Session
		host := s.open(t)
		again, err := host.Acquire(testContext(t), n, c)
		if err != nil || again.Slot != l.Slot {
			t.Fatalf("got %+v, %v", again, err)
		}
		if !sameSession {
			s.EndSession(t, session)
		}
		if _, _, err := host.WatchLeases(testContext(t), n, 0); err != nil {
			t.Fatal(err)
		}
		if err := host.Renew(testContext(t), again); err != nil {
			t.Fatal(err)
		}
		only(t, s, n, l)
	}
}

// TestReleaseLapsed: a host that leaves after its session ended removes its record, unless another host has it.
func TestReleaseLapsed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	c := s.open(t)
	key := func(l registry.Lease) string { return c.kv.keys.Lease(n.Name, l.Subnet()) }
	l := acquire(t, c, n, 0)
	s.EndSession(t, l.Session)
	if err := c.Release(testContext(t), l); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := s.Get(t, key(l)); ok {
		t.Error("the lapsed record stayed")
	}
	l = acquire(t, c, n, 0)
	s.EndSession(t, l.Session)
	value, err := registry.FormatLease(registry.Lease{Subnets: l.Subnets, Node: "host-1", NodeID: "id-1", PublicIPs: l.PublicIPs, MTU: 1450, Backend: l.Backend})
	if err != nil {
		t.Fatal(err)
	}
	s.Put(t, key(l), value)
	if err := c.Release(testContext(t), l); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := s.Get(t, key(l)); !ok {
		t.Error("another host's lapsed record was deleted")
	}
}

// TestLocalAgentLeaves: a graceful stop of the host's Consul client agent
// destroys its sessions. The record stays, and the host gets it back.
func TestLocalAgentLeaves(t *testing.T) {
	t.Parallel()
	server := common.get(t)
	s := &store{server: server, prefix: testPrefix()}
	local, err := configureServer(t.TempDir(), `retry_join = ["`+server.serf+`"]  leave_on_terminate = true`, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := local.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := local.process.Stop(); err != nil { // the common server forgets it
			t.Error(err)
		}
	})
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	c := local.client(t, s.prefix)
	l := acquire(t, c, n, 0)
	watcher := s.open(t)
	_, index := follow(t, watcher, n, 0, []uint64{l.Slot}, nil)

	if err := local.process.Stop(); err != nil { // gracefully
		t.Fatal(err)
	}
	eventually(t, "the agent has left", func() bool { return hasLeft(t, server, local) })
	for lapsed := false; !lapsed; {
		var set registry.LeaseSet
		set, index, err = watcher.WatchLeases(testContext(t), n, index)
		if err != nil || len(set.Leases) != 1 {
			t.Fatalf("peers see %v, %v", slots(set), err)
		}
		lapsed = !set.Leases[0].Held()
	}
	wantIs(t, c.Renew(testContext(t), l), registry.ErrUnavailable)
	if err := local.start(); err != nil {
		t.Fatal(err)
	}
	wantIs(t, c.Renew(testContext(t), l), registry.ErrLeaseLost)
	again := claim(0)
	again.Session = l.Session
	back, err := c.Acquire(testContext(t), n, again)
	if err != nil || back.Slot != l.Slot || back.CreateIndex != l.CreateIndex {
		t.Fatalf("was %+v, is %+v, %v", l, back, err)
	}
}

// hasLeft reports whether a server knows that an agent has left. A busy machine may not tell it within the 15 seconds that
// Consul gives an agent to leave. Then the agent has failed, and is made to leave.
func hasLeft(t *testing.T, s, agent *server) bool {
	t.Helper()
	members, err := s.admin.Agent().Members(false)
	if err != nil {
		t.Fatal(err)
	}
	const left, failed = 3, 4
	for _, m := range members {
		if net.JoinHostPort(m.Addr, strconv.Itoa(int(m.Port))) != agent.serf {
			continue
		}
		if m.Status == failed {
			if err := s.admin.Agent().ForceLeave(m.Name); err != nil {
				t.Fatal(err)
			}
		}
		return m.Status == left
	}
	return true // and is forgotten
}

// TestReservedMeanwhile: a slot that is reserved for another host between the choice and the claim is released again.
func TestReservedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/28")
	var once sync.Once
	var taken string
	addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.URL.Path == "/v1/txn" {
			once.Do(func() {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				taken = string(regexp.MustCompile(`leases/default/([0-9.-]+)`).FindSubmatch(body)[1])
				subnet, err := registry.ParseSubnetKey(taken)
				if err == nil {
					err = s.open(t).AddReservation(r.Context(), n, registry.Reservation{Subnet: subnet, Node: "another"}, false)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		pass.ServeHTTP(w, r)
	})
	c := s.open(t, func(c *Config) { c.Address = addr })
	l := acquire(t, c, n, 1)
	if registry.SubnetKey(l.Subnet()) == taken {
		t.Errorf("took %s, which was reserved", taken)
	}
	if keys := s.Keys(t, s.prefix+"/leases/default/"); len(keys) != 2 {
		t.Errorf("got %v, want the marker and one lease", keys)
	}
}
