package etcd

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/lenonet/leno/internal/testkit/waiting"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/replica"
)

// viewed is a network with leases, and what a client knows of them.
type viewed struct {
	conn *connection
	n    registry.Network
	tree *tree
}

// newViewed returns a network with the lease of a host that runs leno and that of one that runs flannel.
func newViewed(t *testing.T, backend string) *viewed {
	t.Helper()
	v := &viewed{n: network(t, "10.5.0.0/16")}
	v.conn = newConnection(newServers(Config{Prefix: "/coreos.com/network", Network: v.n.Name}, user{}), nil)
	v.n.Backend = registry.Backend{Type: "vxlan", Object: []byte(backend)}
	keys := v.conn.keys
	v.tree = replica.NewTree(1, 10, []*record{
		{key: keys.marker(v.n.Name), created: 5, modified: 5},
		{key: keys.leases(v.n.Name) + "10.5.20.0-24", value: fmt.Appendf(nil, `{"PublicIP":"192.0.2.20","BackendType":"vxlan",`+
			`"BackendData":{"VtepMAC":"c6:d2:32:6f:8f:44"}}`), lease: 9, created: 6, modified: 6},
		v.lease(t, 1500, 7),
	})
	return v
}

// lease returns a version of the lease of the host that runs leno.
func (v *viewed) lease(t *testing.T, mtu int, modified uint64) *record {
	t.Helper()
	a := &acquisition{conn: v.conn, network: v.n, claim: claim(1)}
	a.claim.MTU, a.claim.PublicIPs = mtu, []netip.Addr{netip.MustParseAddr("192.0.2.10")}
	l, value, err := a.record(10)
	if err != nil {
		t.Fatal(err)
	}
	return &record{key: v.conn.keys.lease(v.n.Name, l.Subnets), value: value, lease: 8, created: 6, modified: modified}
}

func (v *viewed) compare(t *testing.T) (registry.LeaseSet, uint64) {
	t.Helper()
	set, index, _, err := v.conn.views.leases(v.n.Name).Compare(v.tree, v.n, reader{v.conn.keys, v.n}, belief.Options{Settle: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return set, index
}

// TestReplacedValuesAreForgotten: nothing keeps a version of a lease that a later one has replaced.
func TestReplacedValuesAreForgotten(t *testing.T) {
	t.Parallel()
	v := newViewed(t, `{"type":"vxlan","vni":1}`)
	_, before := v.compare(t)
	var left []weak.Pointer[record]
	for i := range 3 {
		changed := v.lease(t, 1400+i, v.tree.Revision+1)
		left = append(left, weak.Make(v.tree.Get(changed.key)))
		v.tree = v.tree.Apply(replica.Change[*record]{Key: changed.key, Revision: changed.modified, Record: changed})
		set, index := v.compare(t)
		if index == before || len(set.Leases) != 2 || set.Leases[0].MTU != 1400+i {
			t.Errorf("index %d before and %d now: %+v", before, index, set)
		}
		before = index
	}
	waiting.Until(t, "the replaced versions are freed", func() bool {
		runtime.GC()
		return !slices.ContainsFunc(left, func(p weak.Pointer[record]) bool { return p.Value() != nil })
	})
	runtime.KeepAlive(v)
}

// TestVersionsAfterAnotherDefinition: leases that mean something else under another definition of the network have
// another index, and the same index under the same definition.
func TestVersionsAfterAnotherDefinition(t *testing.T) {
	t.Parallel()
	v := newViewed(t, `{"type":"vxlan","vni":1}`)
	seen := map[uint64]string{}
	set, index := v.compare(t)
	check := func(what string, isOther bool) {
		t.Helper()
		before := index
		if set, index = v.compare(t); (index != before) != isOther {
			t.Errorf("%s: index %d before and %d now: %+v", what, before, index, set)
		}
		checkIndex(t, seen, index, set)
	}
	check("the same", false)
	v.n.Backend.Object = []byte(`{"type":"vxlan","vni":1,"port":4789}`)
	check("another port, which the host with flannel has", true)
	check("the same again", false)
	v.n.Epoch = registry.Epoch{Number: 2}
	check("another epoch", true)
	v.n.Plan, _ = registry.Plan{{Prefix: netip.MustParsePrefix("10.4.0.0/15"), SubnetLen: 24}}.Normalize()
	check("another pool, in which the subnets have other slots", true)
	if len(set.Leases) != 2 || set.Leases[0].Slot != 266 {
		t.Errorf("%+v", set)
	}
	v.n.Plan, _ = registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 25}}.Normalize()
	check("a pool in which the subnets are none", true)
	if len(set.Leases) != 0 || len(set.Bad) != 2 {
		t.Errorf("%+v", set)
	}
}

// TestMissingAfterAnotherPlan: a lost lease is shown after a change of the plan, too, although another host's subnet has
// the slot there that its own had before.
func TestMissingAfterAnotherPlan(t *testing.T) {
	t.Parallel()
	v := newViewed(t, `{"type":"vxlan","vni":1}`)
	v.compare(t)
	flannel := v.tree.Get(v.conn.keys.leases(v.n.Name) + "10.5.20.0-24")
	v.tree = replica.NewTree(1, 20, []*record{v.tree.Get(v.conn.keys.marker(v.n.Name)), flannel})
	v.tree.SetBack++
	if set, _ := v.compare(t); len(set.Leases) != 2 || set.Leases[0].Slot != 10 || !set.Leases[0].Missing {
		t.Fatalf("%+v", set)
	}
	v.n.Plan, _ = registry.Plan{{Prefix: netip.MustParsePrefix("10.4.0.0/15"), SubnetLen: 24}}.Normalize()
	other := *flannel
	other.key, other.created, other.modified = v.conn.keys.leases(v.n.Name)+"10.4.10.0-24", 21, 21
	v.tree = v.tree.Apply(replica.Change[*record]{Key: other.key, Revision: 21, Record: &other})
	set, _ := v.compare(t)
	var got []string
	for _, l := range set.Leases {
		got = append(got, fmt.Sprint(l.Subnet(), " ", l.Missing))
	}
	slices.Sort(got)
	if want := []string{"10.4.10.0/24 false", "10.5.10.0/24 true", "10.5.20.0/24 false"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// parsing is a reader that counts the records that it parses.
type parsing struct {
	reader
	records *int
}

func (p parsing) Parse(h held) *belief.Record {
	*p.records++
	return p.reader.Parse(h)
}

// TestOneChangeParsesOneLease: a client that follows the leases parses those that have changed, and no others.
func TestOneChangeParsesOneLease(t *testing.T) {
	t.Parallel()
	v := newViewed(t, `{"type":"vxlan","vni":1}`)
	for i, want := range []int{2, 1, 1, 0} {
		parsed := 0
		read := parsing{reader{v.conn.keys, v.n}, &parsed}
		if _, _, _, err := v.conn.views.leases(v.n.Name).Compare(v.tree, v.n, read, belief.Options{Settle: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if parsed != want {
			t.Errorf("after change %d: %d records were parsed, want %d", i, parsed, want)
		}
		if i < 2 {
			changed := v.lease(t, 1400+i, v.tree.Revision+1)
			v.tree = v.tree.Apply(replica.Change[*record]{Key: changed.key, Revision: changed.modified, Record: changed})
		}
	}
}
