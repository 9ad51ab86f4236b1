package trace

import (
	"net/netip"

	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend/kernel"
)

// Facts are what is known of a path on one host.
type Facts struct {
	Path
	Node string

	From, To *Container // the ends that are containers of this host, nil for others

	Sent      Sending // from the source, if it is here
	Switches  string  // why the kernel does not forward, "" if it does or need not
	Conntrack forwarding.Connections

	Rules Rules

	Route   *Lookup // of the packets, if only the source is here
	Back    *Lookup // of the answers, if only the destination is here
	Outer   *Lookup // of the tunnel's packets to the other host
	Refused []doctor.Refusal

	Probe    *api.PeerProbe // of the other host, nil if it was not probed
	Findings []api.Finding  // about it
	ProbeErr error
}

// A Container is what is known of a container of this host, and of the device that connects it.
type Container struct {
	Address netip.Addr
	Err     error // why the namespaces of this host could not all be searched

	Namespace string   // that has the address: "/run/netns/web"; "" if none was found
	Process   string   // that the namespace is of, if known
	Others    []string // other namespaces of this host that have it, too
	Link      Link     // in the container
	Route     Lookup   // in the container, to the other end

	Port     Link         // the host's end of the container's link
	Bridge   Link         // the device that the port belongs to, the port itself if it is in no bridge
	Gateway  []netip.Addr // the host's addresses on that device
	Delivery Lookup       // this host's route to the container, with its entry for the container's address
	Ping     Sending      // from this host
}

// A Link is the state of a device.
type Link struct {
	Name    string // "" if there is none
	Up      bool
	Carrier bool
	Master  string // the bridge that it is a port of, "" for none
	MAC     string
	MTU     int
}

// A Lookup is the kernel's answer to the question for a route.
type Lookup struct {
	To netip.Addr
	kernel.FoundRoute
	Err       error // why the kernel refuses the packets
	Device    Link
	Neighbour Neighbour // the next hop, zero for none
}

// A Neighbour is an entry of the kernel's table of neighbours.
type Neighbour struct {
	Address netip.Addr
	State   string // reachable, stale, failed, incomplete, …; "" if there is no entry
	MAC     string
}

// isSilent reports whether nothing answered for the address.
func (n Neighbour) isSilent() bool { return n.State == "failed" || n.State == "incomplete" }

// A Sending is what became of packets.
type Sending struct {
	What           string // "5 ICMP echo requests of 64 bytes"; "" if none were sent
	Sent, Answered int
	Full           int    // bytes of full-size packets, 0 if none were sent
	FullAnswered   bool   //
	IsRefused      bool   // by the destination, where no program has the port, or by a rule on the way
	Reason         string // an error that came back, or why none were sent
}

// Rules are the rules that drop packets on a host.
type Rules struct {
	Drops  []foreign.Obstacle // that certainly drop the packets, as first ones of a connection
	Counts []foreign.Count    // that dropped packets, or answers to them, while some were sent
	Err    error              // why not all rules could be read
}
