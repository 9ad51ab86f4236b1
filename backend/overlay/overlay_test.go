package overlay_test

import (
	"net/netip"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/overlay"
	"github.com/lenonet/leno/backend/reconcile"
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// TestRoutes completes the routes of a network with a peer of smaller MTU, a peer that is reached over the underlay, and
// a peer whose subnet belongs to another backend.
func TestRoutes(t *testing.T) {
	const device, underlay = 7, 2
	small := backend.Peer{Subnets: prefixes("10.5.2.0/24", "fd00:5:0:2::/64"), MTU: 1297}
	moved := backend.Peer{Subnets: prefixes("10.5.4.0/24")}
	routes := map[kernel.RouteKey]kernel.Route{
		{Dst: netip.MustParsePrefix("10.5.3.0/24")}: {Link: underlay, Via: netip.MustParseAddr("192.0.2.3")},
	}
	overlay.AddPeer(routes, device, small.Subnets)
	overlay.AddPeer(routes, device, moved.Subnets)
	routes = overlay.CompleteRoutes(routes, prefixes("10.5.0.0/16", "fd00:5::/48"), backend.State{
		MTU: 1440, Peers: []backend.Peer{small, moved}, Elsewhere: prefixes("10.5.4.0/24", "fd00:5::/48"),
		Underlay: backend.Underlay{Index: underlay, MTU: 1500},
	}, 1440, 16)
	const want = `10.5.0.0/16 metric 16777216 unreachable
10.5.2.0/24 link 7 mtu 1296
10.5.3.0/24 via 192.0.2.3 link 2 mtu 1440
fd00:5:0:2::/64 via fd00:5:0:2:: link 7 onlink mtu 1296
`
	if got := reconcile.Dump(routes, kernel.CompareRoutes); got != want {
		t.Errorf("routes\n%swant\n%s", got, want)
	}
}
