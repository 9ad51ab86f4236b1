package probe

import "testing"

// healthy is what a probe of a peer tells when all is well.
var healthy = map[string]string{
	"vxlan": `
overlay 10.5.2.0 2/2 2/2 largest 1450 of 1450, echo reply
overlay fd00:5:0:2:: 2/2 2/2 largest 1450 of 1450, echo reply
underlay 192.0.2.2 2/2 2/2 largest 1500 of 1500, echo reply`,
	"udp": `
overlay 10.5.2.0 2/2 2/2 largest 1472 of 1472, echo reply
overlay fd00:5:0:2:: 2/2 2/2 largest 1472 of 1472, echo reply
underlay 192.0.2.2 2/2 2/2 largest 1500 of 1500, echo reply`,
	// Before there is a bridge for containers, the peer's kernel has no such address,
	// and says so once.
	"host-gw": `
overlay 10.5.2.1 0/0 1/1 largest 1500 of 1500, host unreachable from 192.0.2.2
overlay fd00:5:0:2::1 0/0 1/1 largest 1500 of 1500, no route from 2001:db8::2
underlay 192.0.2.2 2/2 2/2 largest 1500 of 1500, echo reply
underlay 2001:db8::2 2/2 2/2 largest 1500 of 1500, echo reply`,
}

func TestHealthy(t *testing.T) {
	t.Parallel()
	for kind, want := range healthy {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind)
			for range 3 { // also when the kernel sends no more errors for a while
				is(t, a.probe(b, brief()), true, want)
			}
		})
	}
}
