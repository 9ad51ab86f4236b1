package datapath

import (
	"net/netip"
	"slices"
)

// A KernelState is what the kernel has of a network's datapath when an agent starts.
type KernelState struct {
	Routes  int          // leno's routes in the network's pools, without those that refuse packets
	Refuses bool         // one of leno's routes refuses packets to subnets that no peer has
	Device  bool         // a device with the network's name exists
	Addrs   []netip.Addr // on the device
	Up      bool         // the device is administratively up
	Carrier bool         // the kernel or a process takes the device's packets
}

// IsEmpty reports whether the kernel has nothing of the datapath.
func (s KernelState) IsEmpty() bool { return !s.Device && s.Routes == 0 && !s.Refuses }

// A Standing is what happens to packets while no agent runs.
type Standing int

// The values of Standing.
const (
	NothingStands Standing = iota
	PacketsFlow            // the kernel forwards them without a process
	PacketsWait            // they are lost until a process reads the device
)

// Standing returns what happens to packets of a host with these subnets. A device without an address in each of them
// was created for other subnets, or by another program. If there is no device but a route that refuses packets, the
// device was removed during this boot and is created again.
func (s KernelState) Standing(subnets []netip.Prefix) Standing {
	isUncovered := func(subnet netip.Prefix) bool { return !slices.ContainsFunc(s.Addrs, subnet.Contains) }
	switch {
	case len(subnets) == 0:
		return NothingStands
	case !s.Device && s.Routes > 0:
		return PacketsFlow
	case !s.Device && s.Refuses:
		return PacketsWait
	case !s.Device || !s.Up || slices.ContainsFunc(subnets, isUncovered):
		return NothingStands
	case s.Carrier:
		return PacketsFlow
	}
	return PacketsWait
}

// StandingOf returns what happens to packets of a host with these subnets if its network is carried over the devices of
// which states are: that of the current backend first and, during a switch, that of the next one. Packets wait if they
// wait for either, because peers can be reached over one and send over the other.
func StandingOf(subnets []netip.Prefix, states ...KernelState) Standing {
	out := NothingStands
	for i, s := range states {
		// Routes without a device are judged with the current backend: the next one may not have created its device yet.
		if i == 0 || s.Device || out != NothingStands {
			out = max(out, s.Standing(subnets))
		}
	}
	return out
}
