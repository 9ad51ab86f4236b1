package hostgw

import (
	"fmt"
	"testing"

	"github.com/lenonet/leno/internal/testkit/backendtest"
)

// TestFlannelHosts checks packets to and from a host that runs flannel, which has a route through
// the public address of each lease.
func TestFlannelHosts(t *testing.T) {
	t.Parallel()
	routes := func(verb string) func(backendtest.FlannelHost) {
		return func(h backendtest.FlannelHost) {
			for _, subnet := range h.Peer.Subnets {
				via, ok := h.Peer.PublicIP(subnet.Addr())
				if !ok {
					h.T.Fatalf("%s has no public address for %s", h.Peer.Node, subnet)
				}
				h.NS.Sh(fmt.Sprintf("ip route %s %s via %s dev %s", verb, subnet, via, h.Underlay))
			}
		}
	}
	backendtest.RunFlannel(t, backendtest.Suite{Type: Type()}, backendtest.Flannel{
		Pools: 2, MTUs: []int{1500, 1500},
		Attributes: func(int) string { return `{}` },
		Start:      routes("replace"),
		Stop:       routes("del"),
		Conflict:   "put route 10.5.2.0/24",
	})
}
