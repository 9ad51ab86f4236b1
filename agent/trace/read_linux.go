package trace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend/kernel"
)

// reader reads facts in the network namespace of the calling thread.
type reader struct {
	Path
	nl *netlink.Handle
}

// read gathers the facts of a path. What cannot be read is marked as unknown.
func read(ctx context.Context, p Path) (Facts, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return Facts{}, fmt.Errorf("open netlink: %w", err)
	}
	defer handle.Close()
	for _, end := range []*End{&p.Source, &p.Destination} {
		if end.IsHere && end.Container {
			route, err := kernel.LookUpRoute(handle, kernel.RouteQuery{Dst: end.Address})
			end.Container = err != nil || !route.Local
		}
	}
	r, f := reader{p, handle}, Facts{Path: p}
	before, rulesErr := foreign.ReadRuleset(ctx)
	if p.Source.IsHere && p.Source.Container {
		f.From = r.container(ctx, p.Source.Address, p.Destination.Address)
		f.Sent = Sending{Reason: "no namespace with " + p.Source.Address.String() + " can be entered"}
		if path := f.From.Namespace; path != "" {
			f.Sent = r.send(ctx, path, f.From.Link.MTU)
			f.From.Route = r.containerRoute(path, p.Source.Address, p.Destination.Address) // with the state of the next hop
		}
	} else if p.Source.IsHere {
		f.Sent = r.send(ctx, "", p.Network.Local.MTU)
	}
	if p.Destination.IsHere && p.Destination.Container {
		f.To = r.container(ctx, p.Destination.Address, p.Source.Address)
	}
	r.lookUp(&f)
	f.Rules = r.rules(ctx, f, before, rulesErr)
	f.Conntrack = forwarding.ReadConnections()
	f.Switches = r.switches(f)
	r.probePeer(ctx, &f)
	return f, ctx.Err()
}

// lookUp asks the kernel for the routes of the packets, of their answers and of those of the tunnel.
func (r reader) lookUp(f *Facts) {
	source, destination := r.Source, r.Destination
	route := func(to, from End, c *Container) *Lookup {
		switch {
		case c == nil:
			return r.route(kernel.RouteQuery{Dst: to.Address, Src: from.Address})
		case c.Bridge.Name == "": // the kernel routes packets of others only if they arrive by a device
			return r.route(kernel.RouteQuery{Dst: to.Address})
		}
		return r.route(kernel.RouteQuery{Dst: to.Address, Src: from.Address, In: c.Bridge.Name})
	}
	if source.IsHere && !destination.IsHere {
		f.Route = route(destination, source, f.From)
		if f.From != nil {
			r.addRefusal(f, f.From.Bridge.Name)
		}
	}
	if destination.IsHere && !source.IsHere {
		f.Back = route(source, destination, f.To)
		if links := r.Network.Links; len(links) == 1 { // of several, the packets arrive by one that is not known
			r.addRefusal(f, links[0])
		}
	}
	peer := r.peer()
	if peer == nil {
		return
	}
	query := kernel.RouteQuery{Dst: peer.Endpoint.Addr().Unmap()}
	if !query.Dst.IsValid() {
		for _, a := range peer.PublicIPs {
			if !query.Dst.IsValid() || r.ownAddress(a.Is4()).IsValid() && !r.ownAddress(query.Dst.Is4()).IsValid() {
				query.Dst = a
			}
		}
	}
	if query.Dst.IsValid() {
		query.Src = r.ownAddress(query.Dst.Is4())
		f.Outer = r.route(query)
	}
}

// ownAddress returns this host's own underlay address of a family, zero for none.
func (r reader) ownAddress(v4 bool) netip.Addr {
	own := r.Network.Local.Underlay.Own
	if len(own) == 0 {
		own = r.Network.Local.Underlay.Addresses
	}
	for _, a := range own {
		if a.IsValid() && a.Is4() == v4 {
			return a
		}
	}
	return netip.Addr{}
}

// addRefusal adds what the reverse path filter of a device does with the packets.
func (r reader) addRefusal(f *Facts, link string) {
	if refusal, refused := doctor.FindRefusal(r.Source.Address, r.Destination.Address, link); refused {
		f.Refused = append(f.Refused, refusal)
	}
}

// route asks for a route and its next hop.
func (r reader) route(q kernel.RouteQuery) *Lookup { return lookUp(r.nl, q) }

// lookUp asks for a route and its next hop in the namespace of a handle.
func lookUp(nl *netlink.Handle, q kernel.RouteQuery) *Lookup {
	found, err := kernel.LookUpRoute(nl, q)
	out := &Lookup{To: q.Dst, FoundRoute: found, Err: err}
	if err != nil || found.Link == "" {
		return out
	}
	out.Device = readLink(nl, found.Link)
	hop := found.Via
	if !hop.IsValid() {
		hop = q.Dst
	}
	out.Neighbour = readNeighbour(nl, found.Link, hop)
	return out
}

// readLink returns the state of a device.
func readLink(nl *netlink.Handle, name string) Link {
	l, err := nl.LinkByName(name)
	if err != nil {
		return Link{}
	}
	return linkOf(nl, l)
}

func linkOf(nl *netlink.Handle, l netlink.Link) Link {
	a := l.Attrs()
	out := Link{Name: a.Name, Up: a.RawFlags&unix.IFF_UP != 0, Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
		MAC: a.HardwareAddr.String(), MTU: a.MTU}
	if a.MasterIndex != 0 {
		if master, err := nl.LinkByIndex(a.MasterIndex); err == nil {
			out.Master = master.Attrs().Name
		}
	}
	return out
}

// readNeighbour returns the entry of an address.
func readNeighbour(nl *netlink.Handle, link string, addr netip.Addr) Neighbour {
	out := Neighbour{Address: addr}
	l, err := nl.LinkByName(link)
	if err != nil || l.Attrs().RawFlags&unix.IFF_NOARP != 0 {
		return out
	}
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	list, err := nl.NeighList(l.Attrs().Index, family)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return out
	}
	for _, n := range list {
		if a, ok := netip.AddrFromSlice(n.IP); ok && a.Unmap() == addr {
			out.MAC, out.State = n.HardwareAddr.String(), neighbourState(n.State)
		}
	}
	return out
}

// neighbourState returns the name of a state, as `ip neigh` shows it.
func neighbourState(state int) string {
	for _, s := range []struct {
		flag int
		name string
	}{
		{netlink.NUD_FAILED, "failed"}, {netlink.NUD_INCOMPLETE, "incomplete"}, {netlink.NUD_REACHABLE, "reachable"},
		{netlink.NUD_STALE, "stale"}, {netlink.NUD_DELAY, "delay"}, {netlink.NUD_PROBE, "probe"},
		{netlink.NUD_PERMANENT, "permanent"}, {netlink.NUD_NOARP, "noarp"},
	} {
		if state&s.flag != 0 {
			return s.name
		}
	}
	return ""
}

// rules returns the rules that drop the packets on this host.
func (r reader) rules(ctx context.Context, f Facts, before foreign.Ruleset, err error) Rules {
	n := r.Network
	packet := foreign.Packet{
		Src: r.Source.Address, Dst: r.Destination.Address, Protocol: r.Protocol, Port: r.Port,
		Path: foreign.OverlayPath{Links: n.Links, Network: firewall.Network{
			Name: n.Name, Pools: n.Pools, Subnets: n.Local.Subnets, IPMasq: n.IPMasq, Forward: n.Forward}},
	}
	far := ""
	if len(n.Links) > 0 {
		far = n.Links[0]
	}
	if f.From != nil {
		packet.In = f.From.Bridge.Name
	} else if !r.Source.IsHere {
		packet.In = far
	}
	if f.To != nil {
		packet.Out = f.To.Bridge.Name
	} else if !r.Destination.IsHere {
		if packet.Out = far; f.Route != nil && f.Route.Err == nil {
			packet.Out = f.Route.Link
		}
	}
	out := Rules{Drops: before.Drops(packet), Err: err}
	if packet.In == packet.Out {
		out.Drops = nil // a bridge passes them on, unless br_netfilter is loaded
	}
	if f.Sent.Sent == 0 {
		return out
	}
	after, err := foreign.ReadRuleset(ctx)
	out.Err = errors.Join(out.Err, err)
	out.Counts = append(after.DroppedSince(before, packet), after.DroppedSince(before, packet.Answer())...)
	return out
}

// switches returns why the kernel does not forward the packets, "" if it does.
func (r reader) switches(f Facts) string {
	var links []string
	for _, c := range []*Container{f.From, f.To} {
		if c != nil && c.Bridge.Name != "" {
			links = append(links, c.Bridge.Name)
		}
	}
	if len(links) == 0 || r.Source.IsHere && r.Destination.IsHere {
		return ""
	}
	subnet := netip.PrefixFrom(r.Source.Address, r.Source.Address.BitLen())
	state, err := new(forwarding.Switch).Ensure(subnet, append(links, r.Network.Links...), false)
	if err != nil || len(state.Off) == 0 {
		return ""
	}
	return strings.Join(state.Off, ", ")
}

// probePeer tests the path between the hosts.
func (r reader) probePeer(ctx context.Context, f *Facts) {
	peer := r.peer()
	if peer == nil || r.Network.Probe == nil {
		return
	}
	out, err := r.Network.Probe(ctx, peer.Node)
	f.ProbeErr = err
	if i := slices.IndexFunc(out.Peers, func(p api.PeerProbe) bool { return p.Node == peer.Node }); i >= 0 {
		f.Probe, f.Findings = &out.Peers[i], out.Findings
	}
}

// addresses returns the addresses of a device in the namespace of a handle.
func addresses(nl *netlink.Handle, link string) (out []netip.Addr) {
	l, err := nl.LinkByName(link)
	if err != nil {
		return nil
	}
	list, _ := nl.AddrList(l, netlink.FAMILY_ALL) // less is known without it
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			out = append(out, addr.Unmap())
		}
	}
	return out
}
