package consul

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/transport"
)

// moment is how long a client waits for an answer that does not arrive.
const moment = 100 * time.Millisecond

// through makes a client connect through the proxy.
func through(f *faulty) func(*Config) {
	return func(c *Config) { c.Address, c.Wait = f.addr(), moment }
}

// fixture is the state that the calls of calls work on.
type fixture struct {
	*store
	network              registry.Network
	held, other, lapsed  registry.Lease
	watched, watchedOwn  uint64 // indexes
	reserved, unreserved registry.Reservation
}

func newFixture(t *testing.T, c *Client) *fixture {
	t.Helper()
	s := newStore(t)
	s.prefix = c.kv.conf.KVPrefix
	f := &fixture{store: s, network: putNetwork(t, s, "default", "10.5.0.0/16")}
	direct := s.open(t)
	for i, l := range []*registry.Lease{&f.held, &f.other, &f.lapsed} {
		var err error
		if *l, err = direct.Acquire(testContext(t), f.network, f.claim(i)); err != nil {
			t.Fatal(err)
		}
	}
	s.EndSession(t, f.lapsed.Session)
	set, index, err := direct.WatchLeases(testContext(t), f.network, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range set.Leases {
		if l.Slot == f.lapsed.Slot {
			f.lapsed = l
		}
	}
	f.watched, f.watchedOwn = index, f.held.ModifyIndex
	f.reserved = registry.Reservation{Subnet: f.network.Plan.Subnets(200)[0], Node: "host-200"}
	f.unreserved = registry.Reservation{Subnet: f.network.Plan.Subnets(201)[0], Node: "host-201"}
	if err := direct.AddReservation(testContext(t), f.network, f.reserved, false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.WatchLeases(testContext(t), f.network, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.WatchNetworks(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	return f
}

// claim returns a claim of host i for its own slot.
func (f *fixture) claim(i int) registry.Claim {
	c := claim(i)
	c.Prefer = f.network.Plan.Subnets(uint64(10 + i))[0]
	return c
}

// call is one call of a registry method on a fixture.
type call struct {
	name   string
	do     func(ctx context.Context, c *Client, f *fixture) error
	again  error // an error that a repeated call may return if the first one took place
	writes bool
	blocks bool // it blocks until a change
	status bool // it needs only the status of the answer
}

// service returns the fixture's own service.
func (f *fixture) service() registry.Service {
	return registry.Service{Name: "leno", ID: strings.ReplaceAll(f.prefix, "/", "-")}
}

func calls() []call {
	return []call{
		{name: "Probe", do: func(ctx context.Context, c *Client, _ *fixture) error { return c.Probe(ctx) }},
		{name: "NodeName", do: func(ctx context.Context, c *Client, _ *fixture) error { return errOf2(c.NodeName(ctx)) }},
		{name: "Network", do: func(ctx context.Context, c *Client, f *fixture) error { return errOf2(c.Network(ctx, f.network.Name)) }},
		{name: "WatchNetworks", do: func(ctx context.Context, c *Client, _ *fixture) error { return errOf(c.WatchNetworks(ctx, 0)) }},
		{name: "WatchLeases", do: func(ctx context.Context, c *Client, f *fixture) error { return errOf(c.WatchLeases(ctx, f.network, 0)) }},
		{name: "WatchLeases after", blocks: true, do: func(ctx context.Context, c *Client, f *fixture) error {
			return errOf(c.WatchLeases(ctx, f.network, f.watched))
		}},
		{name: "WatchLease", do: func(ctx context.Context, c *Client, f *fixture) error {
			return errOf(c.WatchLease(ctx, f.network, f.held.Subnet(), 0))
		}},
		{name: "WatchLease after", blocks: true, do: func(ctx context.Context, c *Client, f *fixture) error {
			return errOf(c.WatchLease(ctx, f.network, f.held.Subnet(), f.watchedOwn))
		}},
		{name: "WatchReservations", do: func(ctx context.Context, c *Client, f *fixture) error {
			return errOf(c.WatchReservations(ctx, f.network, 0))
		}},
		{name: "Renew", writes: true, do: func(ctx context.Context, c *Client, f *fixture) error { return c.Renew(ctx, f.held) }},
		{name: "PutNetwork", writes: true, do: func(ctx context.Context, c *Client, _ *fixture) error {
			return c.PutNetwork(ctx, network("new", "10.9.0.0/16"))
		},
			again: registry.ErrNetworkExists},
		{name: "DeleteNetwork", writes: true, do: func(ctx context.Context, c *Client, _ *fixture) error { return c.DeleteNetwork(ctx, "new") },
			again: registry.ErrNetworkNotFound},
		{name: "PutDeletion", writes: true, do: func(ctx context.Context, c *Client, _ *fixture) error {
			return c.PutDeletion(ctx, registry.Deletion{Network: "gone", Time: time.Now()})
		}, again: registry.ErrConflict},
		{name: "Acquire", writes: true, do: func(ctx context.Context, c *Client, f *fixture) error {
			return errOf2(c.Acquire(ctx, f.network, f.claim(5)))
		}},
		{name: "AddReservation", writes: true, do: func(ctx context.Context, c *Client, f *fixture) error {
			return c.AddReservation(ctx, f.network, f.unreserved, false)
		}},
		{name: "RemoveReservation", writes: true, do: func(ctx context.Context, c *Client, f *fixture) error {
			return c.RemoveReservation(ctx, f.network.Name, f.reserved.Subnet)
		}, again: registry.ErrReservationNotFound},
		{name: "Expire", writes: true, do: func(ctx context.Context, c *Client, f *fixture) error { return c.Expire(ctx, f.lapsed) }, again: registry.ErrConflict},
		{name: "Revoke", writes: true, do: func(ctx context.Context, c *Client, f *fixture) error {
			return c.Revoke(ctx, f.network.Name, f.other.Subnet())
		}, again: registry.ErrLeaseNotFound},
		{name: "Release", writes: true, do: func(ctx context.Context, c *Client, f *fixture) error { return c.Release(ctx, f.held) }},
		{name: "Announce", writes: true, do: func(ctx context.Context, c *Client, f *fixture) error {
			return c.Announce(ctx, f.service(), registry.Verdict{Status: "passing"})
		}},
		{name: "Duplicates", do: func(ctx context.Context, c *Client, f *fixture) error {
			_, err := c.Duplicates(ctx, f.service(), "node_id")
			return err
		}},
		{name: "Withdraw", writes: true, status: true, do: func(ctx context.Context, c *Client, f *fixture) error { return c.Withdraw(ctx, f.service()) }},
	}
}

// TestFaults: with any fault, every call returns ErrUnavailable or ErrDenied within limited time, and the next call
// works.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		fault  fault
		gate   int
		fresh  bool // no connection is open yet
		silent bool // only a time limit ends the call
		within bool // the answer has begun
		want   error
	}{
		{name: "no leader", fault: answer(500, "No cluster leader"), want: registry.ErrUnavailable},
		{name: "leader lost", fault: answer(500, "rpc error making call: leadership lost while committing log"), want: registry.ErrUnavailable},
		{name: "write rate limit", fault: answer(503, "rate limit exceeded, try again later or against a different server"), want: registry.ErrUnavailable},
		{name: "read rate limit", fault: answer(429, "rate limit exceeded, try again later"), want: registry.ErrUnavailable},
		{name: "too many connections", fault: answer(429, ""), want: registry.ErrUnavailable},
		{name: "denied", fault: answer(403, "Permission denied: token with AccessorID 'x' lacks permission"), want: registry.ErrDenied},
		{name: "token gone", fault: answer(403, "rpc error making call: ACL not found"), want: registry.ErrDenied},
		{name: "bad gateway", fault: answer(502, "<html>"), want: registry.ErrUnavailable},
		{name: "an answer that is not Consul's", fault: foreign, want: registry.ErrUnavailable},
		{name: "reset within the answer", fault: reset, within: true, want: registry.ErrUnavailable},
		{name: "no answer", fault: noAnswer, silent: true, want: registry.ErrUnavailable},
		{name: "connection refused", gate: gateShut, want: registry.ErrUnavailable},
		{name: "connections gone silent", gate: gateSilent, silent: true, want: registry.ErrUnavailable},
		{name: "connection that never answers", gate: gateSilent, silent: true, fresh: true, want: registry.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			proxy := newFaulty(t, common.get(t))
			c := common.get(t).client(t, testPrefix(), through(proxy))
			f := newFixture(t, c)
			for _, call := range calls() {
				if tt.fresh {
					_ = c.Close()
				}
				proxy.harm(tt.fault, nil)
				proxy.gate.set(tt.gate)
				before, _ := proxy.count()
				if tt.silent {
					c.kv.Timeout = moment
				}
				ctx, cancel := context.WithTimeout(t.Context(), testPatience)
				err := call.do(ctx, c, f)
				if !errors.Is(err, tt.want) && (!call.status || !tt.within) {
					t.Errorf("%s: %v, want %v", call.name, err, tt.want)
				}
				if ctx.Err() != nil {
					t.Errorf("%s took all the time there was", call.name)
				}
				cancel()
				if after, _ := proxy.count(); after-before > 2 {
					t.Errorf("%s made %d requests", call.name, after-before)
				}
				proxy.gate.set(gateOpen)
				proxy.harm(nil, nil)
				c.kv.Timeout = transport.DefaultTimeout
				if call.blocks {
					continue
				}
				// A request without an answer may still reach the server.
				if err := call.do(testContext(t), c, f); err != nil && (!tt.silent || call.again == nil || !errors.Is(err, call.again)) {
					t.Errorf("%s afterwards: %v", call.name, err)
				}
			}
		})
	}
}

// TestConnectionLostWhileWaiting: a blocking query ends with its connection, and soon after its wait time when the
// connection falls silent.
func TestConnectionLostWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]int{"reset": gateShut, "silent": gateSilent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := newFaulty(t, common.get(t))
			c := common.get(t).client(t, testPrefix(), through(proxy), func(c *Config) { c.Wait, c.Timeout = 2*time.Second, 3*time.Second })
			f := newFixture(t, c)
			ended := make(chan error, 3)
			before, _ := proxy.count()
			for _, watch := range []func() error{
				func() error { return errOf(c.WatchLeases(testContext(t), f.network, f.watched)) },
				func() error { return errOf(c.WatchLease(testContext(t), f.network, f.held.Subnet(), f.watchedOwn)) },
				func() error {
					_, index, err := c.WatchNetworks(testContext(t), 0)
					if err == nil {
						_, _, err = c.WatchNetworks(testContext(t), index)
					}
					return err
				},
			} {
				go func() { ended <- watch() }()
			}
			eventually(t, "all to wait", func() bool { n, _ := proxy.count(); return n >= before+4 })
			proxy.gate.set(state)
			for range 3 {
				wantIs(t, <-ended, registry.ErrUnavailable)
			}
		})
	}
}

// TestNetworksOfAnEmptiedStore: a marker that is created between the list of networks and the read of the marker does
// not mean that the token may not read the list.
func TestNetworksOfAnEmptiedStore(t *testing.T) {
	t.Parallel()
	proxy := newFaulty(t, common.get(t))
	prefix := testPrefix()
	c, other := common.get(t).client(t, prefix, through(proxy)), common.get(t).client(t, prefix)
	proxy.harm(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		pass.ServeHTTP(w, r)
		proxy.harm(nil, nil)
		if err := other.PutNetwork(testContext(t), network("default", "10.5.0.0/16")); err != nil {
			t.Error(err)
		}
	}, func(r *http.Request) bool { return r.URL.Query().Has("recurse") })
	set, index, err := c.WatchNetworks(testContext(t), 0)
	if err != nil || len(set.Networks) != 1 {
		t.Errorf("%+v, %v", set, err)
	}
	if _, again, err := other.WatchNetworks(testContext(t), 0); err != nil || again != index {
		t.Errorf("index %d, another client has %d, %v", index, again, err)
	}
}

// TestLeaderWithoutItsLog: until it has applied its log, a new leader answers reads that are not consistent as if there
// were no records.
func TestLeaderWithoutItsLog(t *testing.T) {
	t.Parallel()
	proxy := newFaulty(t, common.get(t))
	c := common.get(t).client(t, testPrefix(), through(proxy))
	f := newFixture(t, c)
	proxy.harm(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.Header().Set("X-Consul-Index", "1")
		w.Header().Set("X-Consul-Knownleader", "true")
		w.Header().Set("X-Consul-Lastcontact", "0")
		w.WriteHeader(http.StatusNotFound)
	}, func(r *http.Request) bool { return !r.URL.Query().Has("consistent") && r.URL.Path != "/v1/txn" })
	ctx := testContext(t)
	if n, err := c.Network(ctx, f.network.Name); err != nil || n.ModifyIndex != f.network.ModifyIndex {
		t.Errorf("network %+v, %v", n, err)
	}
	if l, _, err := c.WatchLease(ctx, f.network, f.held.Subnet(), 0); err != nil || l.Session != f.held.Session {
		t.Errorf("lease %+v, %v", l, err)
	}
	if err := c.Renew(ctx, f.held); err == nil || errors.Is(err, registry.ErrLeaseLost) {
		t.Errorf("renewed: %v", err)
	}
	if set, _, err := c.WatchLeases(ctx, f.network, 0); err == nil && len(set.Leases) != 3 {
		t.Errorf("leases %v", slots(set))
	}
	if set, _, err := c.WatchNetworks(ctx, 0); err == nil && len(set.Networks) != 1 {
		t.Errorf("networks %v", set)
	}
	if err := c.Probe(ctx); err != nil {
		t.Error(err)
	}
	if l, err := c.Acquire(ctx, f.network, f.claim(0)); err == nil && l.Slot != f.held.Slot {
		t.Errorf("acquired %+v", l)
	}
	proxy.harm(nil, nil)
	if err := c.Renew(ctx, f.held); err != nil {
		t.Error(err)
	}
	f.consistent(t, "a leader without its log", "")
}

// mutates reports whether a request changes the store.
func mutates(r *http.Request) bool {
	return r.Method == http.MethodPut || r.Method == http.MethodDelete
}

// nth matches the nth of the requests that change the store.
func nth(n int) func(*http.Request) bool {
	seen := 0
	return func(r *http.Request) bool {
		if !mutates(r) {
			return false
		}
		seen++
		return seen == n
	}
}

// TestAnswerLost loses the answer to each write of each call, after the write took place. The call reports success, or
// that the outcome is unknown. When it is repeated, it finds its own result, without duplicates or leftovers.
func TestAnswerLost(t *testing.T) {
	t.Parallel()
	for name, instead := range map[string]fault{
		"time-out":                       noAnswer,
		"leader lost":                    answer(500, "rpc error making call: leadership lost while committing log"),
		"rate limit":                     answer(503, "rate limit exceeded"),
		"reset":                          reset,
		"an answer that is not Consul's": foreign,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := newFaulty(t, common.get(t))
			for _, call := range calls() {
				if !call.writes {
					continue
				}
				for n, met := 1, true; met; n++ {
					// Its sessions end with the subtest: every claim lists those of all.
					t.Run(fmt.Sprintf("%s %d", call.name, n), func(t *testing.T) {
						for { // until the answer was lost to the call
							var again bool
							if met, again = loseAnswer(t, proxy, call, n, instead, name == "time-out"); !again {
								return
							}
						}
					})
				}
			}
		})
	}
}

// loseAnswer loses the answer to the nth write of a call. It reports whether the call made so many, and whether the call
// was given up earlier, because something else took long.
func loseAnswer(t *testing.T, proxy *faulty, call call, n int, instead fault, silent bool) (met, again bool) {
	t.Helper()
	c := common.get(t).client(t, testPrefix(), through(proxy))
	f := newFixture(t, c)
	if call.name == "DeleteNetwork" {
		putNetwork(t, f.store, "new", "10.9.0.0/16")
	}
	if silent {
		c.kv.Timeout = moment
	}
	proxy.harm(after(instead), nth(n))
	err := call.do(testContext(t), c, f)
	_, count := proxy.count()
	proxy.harm(nil, nil)
	c.kv.Timeout = transport.DefaultTimeout
	if count == 0 && silent && errors.Is(err, registry.ErrUnavailable) {
		return false, true
	}
	what := fmt.Sprintf("%s, answer %d lost", call.name, n)
	if err != nil && !errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("%s: %v", what, err)
	}
	if err := call.do(testContext(t), c, f); err != nil && (call.again == nil || !errors.Is(err, call.again)) {
		t.Errorf("%s, again: %v", what, err)
	}
	f.consistent(t, what, call.name)
	return count > 0, false
}

// TestLateWrite: a claim that reaches Consul long after its host gave it up and took another slot must not take effect.
func TestLateWrite(t *testing.T) {
	t.Parallel()
	proxy := newFaulty(t, common.get(t))
	c := common.get(t).client(t, testPrefix(), through(proxy))
	f := newFixture(t, c)
	late := make(chan struct{})
	answers := make(chan *httptest.ResponseRecorder, 1)
	claims := 0
	proxy.harm(func(_ http.ResponseWriter, r *http.Request, pass http.Handler) {
		body, _ := io.ReadAll(r.Body)
		again := r.Clone(context.WithoutCancel(r.Context()))
		again.Body = io.NopCloser(bytes.NewReader(body))
		<-r.Context().Done()
		<-late
		answer := httptest.NewRecorder()
		pass.ServeHTTP(answer, again)
		answers <- answer
	}, func(r *http.Request) bool { // the first claim
		if r.URL.Path == "/v1/txn" {
			claims++
		}
		return r.URL.Path == "/v1/txn" && claims == 1
	})
	c.kv.Timeout = 10 * time.Second // long enough for all other requests on a busy machine
	claim := f.claim(5)
	claim.Prefer = netip.Prefix{} // any slot: a different one each time
	lease, err := c.Acquire(testContext(t), f.network, claim)
	if err != nil {
		t.Fatal(err)
	}
	close(late)
	if got := <-answers; got.Code != http.StatusConflict || !strings.Contains(got.Body.String(), "invalid session") {
		t.Errorf("the late claim: %d %s", got.Code, got.Body)
	}
	c.kv.Timeout = transport.DefaultTimeout
	f.consistent(t, "late write", "Acquire")
	if err := c.Renew(testContext(t), lease); err != nil {
		t.Error(err)
	}
}

// consistent checks the content of the store after the call was made once or twice.
func (f *fixture) consistent(t *testing.T, what, call string) {
	t.Helper()
	byHost := map[string][]registry.Lease{}
	set, _, err := f.open(t).WatchLeases(testContext(t), f.network, 0)
	if err != nil || len(set.Bad) > 0 {
		t.Fatalf("%s: %v, %v", what, set.Bad, err)
	}
	holding := map[string]bool{}
	for _, l := range set.Leases {
		byHost[l.Node] = append(byHost[l.Node], l)
		holding[l.Session] = true
	}
	want := map[string]int{"host-0": 1, "host-1": 1, "host-2": 1}
	switch call {
	case "Acquire":
		want["host-5"] = 1
	case "Expire":
		delete(want, "host-2")
	case "Revoke":
		delete(want, "host-1")
	case "Release":
		delete(want, "host-0")
	}
	for host, leases := range byHost {
		if len(leases) != want[host] {
			t.Errorf("%s: %d leases of %s", what, len(leases), host)
		}
		if host == "host-5" && !leases[0].Held() {
			t.Errorf("%s: the lease is not held", what)
		}
		delete(want, host)
	}
	if len(want) > 0 {
		t.Errorf("%s: no leases of %v", what, want)
	}
	// A session whose creation was not answered has no known id by which to destroy it. It holds nothing, and ends by
	// itself.
	entries, _, err := f.admin.Session().List(nil)
	if err != nil {
		t.Fatal(err)
	}
	sessions := f.sessions(t, "default")
	stray := 0
	for _, e := range entries {
		if slices.Contains(sessions, e.ID) && !holding[e.ID] {
			stray++
			if e.TTL != claim(0).TTL.String() {
				t.Errorf("%s: a session of ttl %q is left over", what, e.TTL)
			}
		}
	}
	if most := map[string]int{"Acquire": 1, "Revoke": 1, "Release": 1}[call]; stray > most {
		t.Errorf("%s: %d sessions that hold nothing", what, stray)
	}
}
