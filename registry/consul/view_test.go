package consul

import (
	"bytes"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/internal/testkit/seed"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/keys"
)

const viewPrefix = "leno/leases/default/"

// leaseRecord returns the record of host i on a slot.
func leaseRecord(t *testing.T, n registry.Network, slot uint64, i int) []byte {
	t.Helper()
	c := claim(i)
	value, err := registry.FormatLease(registry.Lease{Subnets: n.Plan.Subnets(slot), Node: c.Node, NodeID: c.NodeID,
		PublicIPs: c.PublicIPs, MTU: c.MTU, Backend: c.Backend})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestViewFollowsValuesAndPlan: the parsed form of a record is reused only for exactly that value under exactly that
// plan, and the store's metadata is always current.
func TestViewFollowsValuesAndPlan(t *testing.T) {
	t.Parallel()
	n := network("default", "10.5.0.0/16")
	f := newTestFollower()
	key := viewPrefix + registry.SubnetKey(n.Plan.Subnets(7)[0])
	for _, tt := range []struct {
		name    string
		network registry.Network
		pair    api.KVPair
		node    string // "" for an unusable record
	}{
		{"first", n, api.KVPair{Value: leaseRecord(t, n, 7, 1), ModifyIndex: 1, Session: "s"}, "host-1"},
		{"again, lapsed", n, api.KVPair{Value: leaseRecord(t, n, 7, 1), ModifyIndex: 2}, "host-1"},
		{"another value", n, api.KVPair{Value: leaseRecord(t, n, 7, 2), ModifyIndex: 3, Session: "s"}, "host-2"},
		{"unusable", n, api.KVPair{Value: []byte("{"), ModifyIndex: 4, Session: "s"}, ""},
		{"mended", n, api.KVPair{Value: leaseRecord(t, n, 7, 2), ModifyIndex: 5, Session: "s"}, "host-2"},
		{"another plan", network("default", "10.6.0.0/16"), api.KVPair{Value: leaseRecord(t, n, 7, 2), ModifyIndex: 5, Session: "s"}, ""},
		{"the first plan", n, api.KVPair{Value: leaseRecord(t, n, 7, 2), ModifyIndex: 5, Session: "s"}, "host-2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.pair.Key = key
			f.use(tt.network)
			f.accept(f.newList(api.KVPairs{&tt.pair}, tt.pair.ModifyIndex))
			set := f.belief.Leases()
			if tt.node == "" {
				if len(set.Leases) != 0 || len(set.Bad) != 1 || set.Bad[0].Key != key {
					t.Fatalf("%+v", set)
				}
				return
			}
			if len(set.Leases) != 1 || len(set.Bad) != 0 {
				t.Fatalf("%+v", set)
			}
			if l := set.Leases[0]; l.Node != tt.node || l.ModifyIndex != tt.pair.ModifyIndex || l.Session != tt.pair.Session {
				t.Errorf("%+v", l)
			}
		})
	}
	f.accept(f.newList(nil, 9))
	if set := f.belief.Leases(); len(set.Leases)+len(set.Bad)+f.belief.Len() != 0 {
		t.Errorf("%+v and %d records are remembered that are gone", set, f.belief.Len())
	}
}

// TestViewKeepsUp: a tree that was updated step by step shows the same as a tree that was read at once.
func TestViewKeepsUp(t *testing.T) {
	t.Parallel()
	n := network("default", "10.5.0.0/16")
	for i := range 6 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			rnd := seed.Rand(t) // another sequence for each name
			f := newTestFollower()
			f.use(n)
			store := map[string]*api.KVPair{}
			version, index := uint64(0), uint64(0)
			for range 200 {
				index++
				slot := rnd.Uint64N(40) + 1
				name := registry.SubnetKey(n.Plan.Subnets(slot)[0])
				var value []byte
				switch rnd.IntN(6) {
				case 0:
					value = []byte(`{"version":1`)
				case 1, 2:
				default:
					value = leaseRecord(t, n, slot, rnd.IntN(60))
				}
				if value == nil {
					delete(store, viewPrefix+name)
				} else {
					pair := &api.KVPair{Key: viewPrefix + name, Value: value, Session: "s", CreateIndex: index, ModifyIndex: index}
					if old := store[pair.Key]; old != nil {
						pair.CreateIndex = old.CreateIndex
					}
					store[pair.Key] = pair
				}
				if rnd.IntN(10) == 0 || f.belief.Empty() {
					f.accept(f.newList(pairsOf(store), index))
				} else {
					changes := f.changesOf([]changelog.Change{{Subnet: name, Index: index, Value: value}})
					f.belief.Apply(changes, readOf(f, changes, store))
				}
				if rnd.IntN(4) != 0 {
					continue
				}
				fresh := newTestFollower()
				fresh.use(n)
				fresh.accept(fresh.newList(pairsOf(store), index))
				got, want := f.belief.Leases(), fresh.belief.Leases()
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}), cmpopts.IgnoreFields(registry.Lease{}, "Session")); diff != "" {
					t.Fatalf("at %d (-want +got):\n%s", index, diff)
				}
				if f.belief.Version() < version || f.belief.Version() > index {
					t.Fatalf("index %d after %d, Consul's is %d", f.belief.Version(), version, index)
				}
				version = f.belief.Version()
			}
		})
	}
}

// readOf returns the records that a follower must read before it applies changes.
func readOf(f *follower, changes []belief.Change, store map[string]*api.KVPair) map[string]*belief.Record {
	read := map[string]*belief.Record{}
	for key := range f.belief.Unproven(changes) {
		if read[key] = nil; store[key] != nil {
			read[key] = f.record(store[key])
		}
	}
	return read
}

// pairsOf returns a list as Consul does. The tree may keep it.
func pairsOf(store map[string]*api.KVPair) api.KVPairs {
	var out api.KVPairs
	for _, pair := range store {
		out = append(out, pair)
	}
	slices.SortFunc(out, func(a, b *api.KVPair) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// TestViewHoldsItsOwn: the parts of a record that a view keeps do not keep alive the list that the record came in.
func TestViewHoldsItsOwn(t *testing.T) {
	const leases, lists = 500, 100
	n := network("default", "10.0.0.0/8")
	values, names := make([][]byte, leases), make([]string, leases)
	for i := range leases {
		slot := uint64(i + 10)
		values[i], names[i] = leaseRecord(t, n, slot, i%200), viewPrefix+registry.SubnetKey(n.Plan.Subnets(slot)[0])
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	f := newTestFollower()
	f.use(n)
	size := len(bytes.Join(values, nil))
	modified := make([]uint64, leases)
	var before uint64
	for round := range lists {
		modified[round] = uint64(1000 + round) // one is locked again
		together := make([]byte, 0, size)
		pairs := api.KVPairs{{Key: viewPrefix + keys.Marker, CreateIndex: 1}}
		for i, value := range values {
			together = append(together, value...)
			pairs = append(pairs, &api.KVPair{
				Key: names[i], Value: together[len(together)-len(value):], CreateIndex: 1, ModifyIndex: max(1, modified[i]), Session: "x"})
		}
		f.accept(f.newList(pairs, uint64(1000+round)))
		f.belief.Leases()
		if round == 0 {
			before = heap()
		}
	}
	if after := heap(); after > before+uint64(10*size) {
		t.Errorf("the heap grew from %d to %d bytes over %d lists of %d bytes", before, after, lists, size)
	}
	runtime.KeepAlive(f)
}
