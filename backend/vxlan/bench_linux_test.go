package vxlan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/backendtest"
)

// BenchmarkApply applies many peers to a new kernel namespace, then again when nothing is left to
// do.
func BenchmarkApply(b *testing.B) {
	for _, peers := range []int{1000, 5000} {
		for _, families := range []int{1, 2} {
			name := fmt.Sprintf("peers=%d/families=%d", peers, families)
			b.Run(name+"/fresh", func(b *testing.B) { benchmark(b, peers, families, true) })
			b.Run(name+"/unchanged", func(b *testing.B) { benchmark(b, peers, families, false) })
		}
	}
}

func BenchmarkIdle(b *testing.B) {
	for name, options := range map[string]string{"plain": `{}`, "direct routing": `{"direct_routing":true}`} {
		b.Run(name, func(b *testing.B) {
			backendtest.Idle(b, backendtest.Suite{Type: Type(), Options: options})
		})
	}
}

func benchmark(b *testing.B, peers, families int, fresh bool) {
	ns := newNS(b)
	s := manyPeers(peers, families)
	s.Underlay.Index = ns.Index("eth0")
	v, err := Type().New(backend.Config{Network: "test", Link: "leno-test", Pools: pools[:families]})
	if err != nil {
		b.Fatal(err)
	}
	defer v.Close()
	apply := func(s backend.State) {
		if _, err := v.Apply(b.Context(), s); err != nil {
			b.Fatal(err)
		}
	}
	ns.Do(func() {
		if !fresh {
			apply(s)
		}
		for b.Loop() {
			if fresh {
				b.StopTimer()
				apply(backend.State{})
				b.StartTimer()
			}
			apply(s)
		}
	})
}

// manyPeers returns a state with n peers from 10.0.0.0/8 and fd00::/32.
func manyPeers(n, families int) backend.State {
	s := state("192.0.2.1")
	s.Subnets = []netip.Prefix{netip.MustParsePrefix("10.5.0.0/28"), netip.MustParsePrefix("fd00:5:0:ffff::/64")}[:families]
	for i := range n {
		p := backend.Peer{
			Node: fmt.Sprint("host-", i), Backend: Name,
			PublicIPs:  []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(3 + i>>8), byte(i)})},
			Attributes: json.RawMessage(fmt.Sprintf(`{"vni":1,"port":8472,"vtep_mac":"0a:58:00:01:%02x:%02x"}`, i>>8, i&255)),
			Subnets: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte((i + 1) >> 4), byte((i + 1) << 4)}), 28),
				netip.MustParsePrefix(fmt.Sprintf("fd00:5:0:%x::/64", i)),
			}[:families],
		}
		s.Peers = append(s.Peers, p)
	}
	return s
}
