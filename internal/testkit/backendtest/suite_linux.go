// Package backendtest is the conformance suite for all backends. It checks the contract in package
// backend on the real kernel, in network namespaces, with real packets. It does not know how a
// backend works inside.
package backendtest

import (
	"testing"

	"github.com/lenonet/leno/backend"
)

// Suite selects what to run and describes the backend's features.
type Suite struct {
	Type    backend.Type
	Options string // the network's options as JSON; "" is none

	// LeasesOnly: the backend touches nothing and carries nothing.
	LeasesOnly bool
	// IPv6Underlay: hosts reach each other over IPv6 only. Otherwise they have both families, IPv4
	// first.
	IPv6Underlay bool

	// Crowd is the number of peers of a test with many, which are slow to set up. 0: no such test.
	Crowd int

	// WiderPaths: some peers are reached without encapsulation, so that packets above the MTU pass
	// too.
	WiderPaths bool

	// Partners are the backends that networks are switched from and to. None: no such tests.
	Partners []Partner

	// Dump returns what the backend keeps for its peers outside the kernel's tables, in a form that is the same for the
	// same state. It is nil if there is nothing.
	Dump func(b backend.Backend) string

	// Bad derives peers that must be skipped from a usable one, keyed by a distinctive part of the
	// reason. Peers of another backend are always tested.
	Bad func(good backend.Peer) map[string]backend.Peer
}

// Run runs the suite, its cases beside each other. It needs root.
func Run(t *testing.T, s Suite) {
	t.Helper()
	cases := []struct {
		name string
		run  func(*testing.T, Suite)
		when bool
	}{
		{"advertise is stable", testAdvertise, true},
		{"apply, and again without a write", testApply, true},
		{"peers that cannot be used are skipped by name", testSkips, true},
		{"packets to a peer with a smaller MTU fit", testSmallerMTU, !s.LeasesOnly},
		{"the option mtu", testMTU, !s.LeasesOnly},
		{"foreign routes are untouched", testForeign, true},
		{"the zero state leaves nothing", testZero, true},
		{"states in any order", testAnyOrder, true},
		{"changed and removed peers", testPeerChanges, !s.LeasesOnly},
		{"leftovers of an earlier process are pruned", testLeftovers, !s.LeasesOnly},
		{"close leaves the datapath", testClose, !s.LeasesOnly},
		{"lost routes are repaired", testLostRoutes, !s.LeasesOnly},
		{"replaced routes are repaired", testReplacedRoutes, !s.LeasesOnly},
		{"a partial state only adds", testPartial, !s.LeasesOnly},
		{"packets", testPackets, !s.LeasesOnly},
		{"packets to a host that came back as another", testPacketsAfterChange, !s.LeasesOnly},
		{"a host without IPv6", testIPv6Disabled, !s.LeasesOnly && !s.IPv6Underlay},
		{"many peers that lose everything", testCrowd, s.Crowd > 0},
		{"two backends carry one network", testTwo, len(s.Partners) > 0},
		{"routes that another backend left", testLeft, len(s.Partners) > 0},
		{"two devices of one network", testTwoDevices, len(s.Partners) > 0 && s.Type.Device},
		{"device", testDevice, s.Type.Device},
		{"deleted device is recreated", testDeviceDeleted, s.Type.Device},
		{"device of another program", testForeignDevice, s.Type.Device},
	}
	for _, c := range cases {
		if c.when {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, s)
			})
		}
	}
}
