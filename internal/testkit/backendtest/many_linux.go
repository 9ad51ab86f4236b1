package backendtest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// crowd is a host with many peers, of both families, all on its layer 2.
type crowd struct {
	t     *testing.T
	ns    *nstest.NS
	b     backend.Backend
	state backend.State
}

func newCrowd(t *testing.T, s Suite, peers int) *crowd {
	t.Helper()
	c := &crowd{t: t, ns: nstest.New(t)}
	nstest.Join(
		nstest.Joint{NS: c.ns, Link: underlay, Addrs: []string{"172.20.0.1/16", "2001:db8::1/64"}},
		nstest.Joint{NS: nstest.New(t), Link: underlay})
	public := func(n int) []netip.Addr {
		return []netip.Addr{netip.AddrFrom4([4]byte{172, 20, byte(n >> 8), byte(n)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", n))}
	}
	options, err := s.Type.Normalize(json.RawMessage(s.Options))
	if err != nil {
		t.Fatal(err)
	}
	pools := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:5::/48")}
	dir := t.TempDir()
	open := func(node string) backend.Backend {
		b, err := s.Type.New(backend.Config{Network: "test", Link: linkName, NodeID: node, DataDir: filepath.Join(dir, node), Pools: pools,
			Options: options, Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	at := backend.Underlay{Interface: underlay, Index: c.ns.Index(underlay), MTU: 1500, Addrs: public(1)}
	advertise := func(b backend.Backend) (adv backend.Advertisement) {
		c.ns.Do(func() {
			if adv, err = b.Advertise(at); err != nil {
				t.Fatal(err)
			}
		})
		return adv
	}
	own := func(n int) []netip.Prefix {
		return []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0}), 24),
			netip.MustParsePrefix(fmt.Sprintf("fd00:5:0:%x::/64", n)),
		}
	}
	c.b = open("node-1")
	t.Cleanup(func() {
		if err := c.b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	c.state = backend.State{Subnets: own(1), MTU: advertise(c.b).MTU, Underlay: at}
	for n := 2; n < peers+2; n++ {
		node := fmt.Sprint("node-", n)
		b := open(node)
		c.state.Peers = append(c.state.Peers, backend.Peer{Node: node, Subnets: own(n), PublicIPs: public(n),
			Backend: s.Type.Name, Attributes: advertise(b).Attributes})
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *crowd) apply() (r backend.Report) {
	c.t.Helper()
	var err error
	c.ns.Do(func() { r, err = c.b.Apply(c.t.Context(), c.state) })
	if err != nil {
		c.t.Fatalf("apply: %v", err)
	}
	if r.Peers != len(c.state.Peers) {
		c.t.Fatalf("%d peers in place: %+v", r.Peers, r.Skipped[:min(3, len(r.Skipped))])
	}
	return r
}

// testCrowd checks that anything removed from many peers is completely restored, by not much more than a write for each
// lost entry, and that an Apply that finds everything in place writes nothing.
func testCrowd(t *testing.T, s Suite) {
	c := newCrowd(t, s, s.Crowd)
	c.apply()
	dump := func() string {
		script := "ip route show proto 108; ip -6 route show proto 108"
		if s.Type.Device {
			script += "; ip neigh show nud permanent dev " + linkName + "; ip -6 neigh show nud permanent dev " + linkName +
				"; bridge fdb show dev " + linkName + " || true"
		}
		return c.ns.Sh("{ " + script + "; } | sed 's/ linkdown//' | sort")
	}
	want := dump()
	const routes = "ip route flush proto 108; ip -6 route flush proto 108"
	faults := []string{routes}
	if s.Type.Device {
		faults = append(faults,
			fmt.Sprintf("%s; ip neigh flush nud permanent dev %[2]s; ip -6 neigh flush nud permanent dev %[2]s; bridge fdb flush dev %[2]s 2>/dev/null || true", routes, linkName),
			"ip link set "+linkName+" down", "ip addr flush dev "+linkName, "ip link del "+linkName)
	}
	for _, fault := range faults {
		c.ns.Sh(fault)
		if dump() == want {
			t.Errorf("%s: does nothing", fault)
		}
		r := c.apply()
		if r.Writes == 0 || len(r.Repaired) == 0 {
			t.Errorf("%s: report %+v", fault, r)
		}
		if got := dump(); got != want {
			t.Errorf("%s: not as before: %d bytes, before %d", fault, len(got), len(want))
		}
		t.Logf("%.60s: %v, %d writes", fault, r.Repaired, r.Writes)
		// A peer outside of the kernel's tables is one more, and what belongs to the device a few.
		if most := strings.Count(want, "\n") + s.Crowd + 20; r.Writes > most {
			t.Errorf("%s: %d writes, more than %d", fault, r.Writes, most)
		}
		if r := c.apply(); r.Writes != 0 || len(r.Repaired) != 0 {
			t.Errorf("%s: the next look wrote: %+v", fault, r)
		}
	}
}
