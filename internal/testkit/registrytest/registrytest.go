// Package registrytest is the conformance suite of the registry contract: what an agent can rely on with any store. It
// defines the behaviour, not how a store implements it, beyond the public key layout.
package registrytest

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lenonet/leno/registry"
)

// Store is one new, empty store, with the operations outside the contract that the suite needs to play operators, dying
// hosts and other programs. Keys are whole. Values are as package registry writes them; a store that embeds them in
// another format does so here too. Methods end the test when they fail.
type Store interface {
	// Open returns a client as another host would have it: it shares nothing with earlier clients except the store.
	Open(t testing.TB) registry.Registry
	// Key returns the key of a record from its parts in the layout PREFIX/leases/NETWORK/SUBNET and so on, without the
	// prefix. A subnet is in the form of registry.SubnetKey. The marker of a network's leases is leases/NETWORK/_.
	Key(parts ...string) string
	// LeaseKey returns the key of a lease.
	LeaseKey(n registry.Network, slot uint64) string
	// Token returns a token with all rights, for Registry.As, or any text where the store checks no tokens.
	Token() string
	// EndSession ends a session at once, as its expiry would: its records stay and lapse. Real expiry takes at least 20
	// s in Consul.
	EndSession(t testing.TB, session string)
	// Put writes a value without the registry. It takes no lock and keeps an existing one.
	Put(t testing.TB, key string, value []byte)
	// Delete removes a key without the registry; an absent key is no error.
	Delete(t testing.TB, key string)
	// Get returns a value and the session that holds it ("" for none).
	Get(t testing.TB, key string) (value []byte, session string, ok bool)
	// Keys returns the keys of all records whose parts begin with these, sorted: see Key.
	Keys(t testing.TB, parts ...string) []string
}

var groups = []struct {
	name  string
	tests []test
}{
	{"Networks", networkTests},
	{"Acquire", acquireTests},
	{"Identity", identityTests},
	{"Holding", holdingTests},
	{"Hold", holdTests},
	{"Watch", watchTests},
	{"Malformed", malformedTests},
	{"Unusable", unusableTests},
	{"Race", raceTests},
	{"Families", familyTests},
	{"Reservations", reservationTests},
	{"Kept", keptTests},
	{"Lost", lostTests},
}

// Run runs the suite. It calls newStore once per subtest with the subtest's t. The subtests run in parallel, so each
// store must be independent of the others (in Consul, another prefix is enough).
func Run(t *testing.T, newStore func(t *testing.T) Store) {
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			for _, tt := range group.tests {
				t.Run(tt.name, func(t *testing.T) {
					t.Parallel()
					tt.run(&suite{T: t, store: newStore(t)})
				})
			}
		})
	}
}

type test struct {
	name string
	run  func(s *suite)
}

// patience limits every wait of the suite; only a failure takes that long.
const patience = 3 * time.Minute

// pause is how long a call that must block is observed.
const pause = 200 * time.Millisecond

// suite is one subtest with its store and helpers.
type suite struct {
	*testing.T
	store Store
}

func (s *suite) open() registry.Registry { return s.store.Open(s.T) }

func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	s.Cleanup(cancel)
	return ctx
}

func (s *suite) key(parts ...string) string {
	return s.store.Key(parts...)
}

func (s *suite) leaseKey(n registry.Network, slot uint64) string {
	return s.store.LeaseKey(n, slot)
}

// leaseKeys returns the keys of all leases of a network.
func (s *suite) leaseKeys(n registry.Network) []string {
	s.Helper()
	marker := s.key("leases", n.Name, "_")
	return slices.DeleteFunc(s.store.Keys(s.T, "leases", n.Name), func(key string) bool { return key == marker })
}

func (s *suite) reservationKey(n registry.Network, slot uint64) string {
	return s.key("reservations", n.Name, registry.SubnetKey(n.Plan.Subnets(slot)[0]))
}

func (s *suite) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) wantErr(err, want error, texts ...string) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Fatalf("got error %v, want one that is %q", err, want)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			s.Errorf("error %q does not name %q", err, text)
		}
	}
}

func (s *suite) equal(what string, got, want any) {
	s.Helper()
	if d := cmp.Diff(want, got, compare...); d != "" {
		s.Fatalf("%s: -want +got\n%s", what, d)
	}
}

var compare = []cmp.Option{
	cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b registry.Backend) bool { return a.Equal(b) }),
}

// plan returns a normalized plan with a pool for each prefix; the default range leaves out the first subnet of each.
func (s *suite) plan(prefixes ...string) registry.Plan {
	s.Helper()
	var p registry.Plan
	for _, prefix := range prefixes {
		p = append(p, registry.Pool{Prefix: netip.MustParsePrefix(prefix)})
	}
	p, err := p.Normalize()
	s.ok(err)
	return p
}

// small has three slots, 1 to 3; wide has 255.
const (
	small = "10.7.0.0/22"
	wide  = "10.5.0.0/16"
)

func (s *suite) definition(name string, prefixes ...string) registry.Network {
	s.Helper()
	return registry.Network{Name: name, Plan: s.plan(prefixes...), Backend: s.backend(`{"vni":1,"port":8472}`)}
}

func (s *suite) backend(options string) registry.Backend {
	s.Helper()
	b, err := registry.NewBackend("vxlan", json.RawMessage(options))
	s.ok(err)
	return b
}

// network defines a network and reads it back.
func (s *suite) network(name string, prefixes ...string) registry.Network {
	s.Helper()
	r := s.open()
	s.ok(r.PutNetwork(s.ctx(), s.definition(name, prefixes...)))
	n, err := r.Network(s.ctx(), name)
	s.ok(err)
	return n
}

// claim returns the claim of host i: node host-aa, id id-aa and address 192.0.2.1 for host 0.
func (s *suite) claim(i int) registry.Claim {
	id := string(rune('a' + i/26%26))
	id += string(rune('a' + i%26))
	return registry.Claim{
		Node:      "host-" + id,
		NodeID:    "id-" + id,
		PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})},
		MTU:       1450,
		Backend:   s.backend(`{"vtep_mac":"0a:58:00:00:00:` + id2hex(i) + `"}`),
		TTL:       10 * time.Minute, // no test takes so long
		Hold:      time.Hour,
	}
}

func id2hex(i int) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[i>>4&15], digits[i&15]})
}

// acquire claims a lease and checks it against the claim and the store.
func (s *suite) acquire(r registry.Registry, n registry.Network, c registry.Claim) registry.Lease {
	s.Helper()
	l, err := r.Acquire(s.ctx(), n, c)
	s.ok(err)
	s.checkLease(n, c, l)
	return l
}

// checkLease checks a lease against its claim and against the record in the store.
func (s *suite) checkLease(n registry.Network, c registry.Claim, l registry.Lease) {
	s.Helper()
	want := registry.Lease{Network: n.Name, Slot: l.Slot, Subnets: n.Plan.Subnets(l.Slot), Node: c.Node, NodeID: c.NodeID,
		PublicIPs: c.PublicIPs, MTU: c.MTU, Backend: c.Backend,
		Session: l.Session, CreateIndex: l.CreateIndex, ModifyIndex: l.ModifyIndex}
	s.equal("lease", l, want)
	if !l.Held() || l.CreateIndex == 0 || l.ModifyIndex < l.CreateIndex {
		s.Fatalf("session %q, create index %d, modify index %d", l.Session, l.CreateIndex, l.ModifyIndex)
	}
	value, session, ok := s.store.Get(s.T, s.leaseKey(n, l.Slot))
	if !ok || session != l.Session {
		s.Fatalf("record of %s: there %v, session %q, want %q", l.Subnet(), ok, session, l.Session)
	}
	stored, err := registry.ParseLease(n, registry.SubnetKey(l.Subnet()), value)
	s.ok(err)
	if !stored.SameValue(l) {
		s.Fatalf("stored %s, returned %+v", value, l)
	}
}

// stays checks that a lease's record exists and is held by its session.
func (s *suite) stays(n registry.Network, l registry.Lease) {
	s.Helper()
	if _, session, ok := s.store.Get(s.T, s.leaseKey(n, l.Slot)); !ok || session != l.Session {
		s.Fatalf("record of %s: there %v, session %q, want %q", l.Subnet(), ok, session, l.Session)
	}
}

func (s *suite) gone(key string) {
	s.Helper()
	if value, _, ok := s.store.Get(s.T, key); ok {
		s.Fatalf("%s is still there: %s", key, value)
	}
}

// watchUntil watches a network's leases until want accepts them.
func (s *suite) watchUntil(r registry.Registry, n registry.Network, what string, want func(registry.LeaseSet) bool) (registry.LeaseSet, uint64) {
	s.Helper()
	ctx := s.ctx()
	var set registry.LeaseSet
	var after uint64
	for {
		got, index, err := r.WatchLeases(ctx, n, after)
		if err != nil {
			s.Fatalf("waiting for %s: %v; last seen %+v", what, err, set)
		}
		if index == 0 {
			s.Fatal("index 0 would make the next watch not block")
		}
		if set, after = got, index; want(set) {
			return set, after
		}
	}
}

// lapsed returns the lease of a slot once a client has seen that its session ended.
func (s *suite) lapsed(r registry.Registry, n registry.Network, slot uint64) registry.Lease {
	s.Helper()
	var lease registry.Lease
	s.watchUntil(r, n, "a lapsed lease", func(set registry.LeaseSet) bool {
		lease, _ = find(set, slot)
		return lease.ModifyIndex != 0 && !lease.Held()
	})
	return lease
}

func find(set registry.LeaseSet, slot uint64) (registry.Lease, bool) {
	i := slices.IndexFunc(set.Leases, func(l registry.Lease) bool { return l.Slot == slot })
	if i < 0 {
		return registry.Lease{}, false
	}
	return set.Leases[i], true
}

func slots(leases []registry.Lease) []uint64 {
	var out []uint64
	for _, l := range leases {
		out = append(out, l.Slot)
	}
	return out
}

func badKeys(bad []registry.BadRecord) []string {
	var out []string
	for _, b := range bad {
		out = append(out, b.Key)
	}
	slices.Sort(out)
	return out
}

// blocks checks that call, given an index since which nothing has changed, blocks until its context ends and then
// returns the context's error.
func (s *suite) blocks(what string, call func(ctx context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), pause)
	defer cancel()
	err := call(ctx)
	if ctx.Err() == nil {
		s.Fatalf("%s did not block: returned %v", what, err)
	}
	s.wantErr(err, context.DeadlineExceeded)

	ctx, cancel = context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	cancel()
	select {
	case err := <-done:
		s.wantErr(err, context.Canceled)
	case <-time.After(patience):
		s.Fatalf("%s ignores a cancelled context", what)
	}
}
