package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
)

// A PathQuery names the packets for whose routes FindDetours asks.
type PathQuery struct {
	Subnets      []netip.Prefix // this host's, from which containers send
	Underlay     backend.Underlay
	Encapsulated bool // packets between hosts are sent to the peers' public addresses
	Peers        []backend.Peer
}

// A Detour is what the kernel does with packets to a peer instead of sending them by leno's route or over the underlay.
type Detour struct {
	Node  string
	Dst   netip.Addr      // that the kernel was asked about
	Outer bool            // Dst is the peer's public address; otherwise it is in the peer's subnet
	Link  string          // by which the packets leave; "" if the kernel refuses them
	Table int             // that has their route; 0 if a rule refuses them by itself
	Rule  *Rule           // that leads to the table; nil if none does but the kernel's own
	Route *RejectingRoute // of the main table that refuses them; nil for none
}

// A RejectingRoute is a route that refuses packets.
type RejectingRoute struct {
	Type string // "blackhole", "unreachable" or "prohibit"
	Dst  netip.Prefix
}

// String returns the route as `ip route` shows it: "blackhole 10.5.2.0/25".
func (r RejectingRoute) String() string { return r.Type + " " + r.Dst.String() }

// Err returns the error about a detour, with the command that ends it if a routing rule is the cause. scope says which
// other peers have one. pools are those of the network.
func (d Detour) Err(scope string, pools []netip.Prefix) error {
	fate := "leave by " + d.Link
	if d.Link == "" {
		fate = "are refused"
	}
	what := fmt.Sprintf("packets to %s of %s %s%s", d.Dst, d.Node, fate, scope)
	if d.Route != nil {
		return fmt.Errorf("%s: %w: `ip route del %s` removes it", what, backend.ErrForeignRoute, d.Route)
	}
	if d.Rule == nil {
		return fmt.Errorf("%s: %w, in table %d", what, backend.ErrForeignRoute, d.Table)
	}
	return fmt.Errorf("%s: %w, %d: %s; %s", what, backend.ErrDetour, d.Rule.Priority, d.Rule.Text, d.remedy(pools))
}

// remedy returns the command that makes the kernel use the main table before the rule of a detour, and the option with
// the same effect if there is one.
func (d Detour) remedy(pools []netip.Prefix) string {
	to, option, priority := d.Dst.String(), "", max(d.Rule.Priority-1, 0)
	if i := slices.IndexFunc(pools, func(p netip.Prefix) bool { return p.Contains(d.Dst) }); i >= 0 && !d.Outer {
		to = pools[i].String()
		if priority > 0 {
			option = fmt.Sprintf(" or routing_rule_priority = %d in the network's block", priority)
		}
	}
	command := "ip rule"
	if d.Dst.Is6() {
		command = "ip -6 rule"
	}
	return fmt.Sprintf("`%s add to %s lookup main priority %d`%s prevents that", command, to, priority, option)
}

// A Rule is a routing rule.
type Rule struct {
	Priority int
	Text     string // as `ip rule` shows it, without the priority: "from all lookup 52"
}

// FindDetours asks the kernel which routes packets to peers take, and returns at most one detour for each peer. It acts
// in the network namespace of the calling thread and needs no privileges.
func FindDetours(q PathQuery) ([]Detour, error) {
	handle, err := newHandle()
	if err != nil {
		return nil, fmt.Errorf("ask for the routes to peers: %w", err)
	}
	defer handle.Close()
	f := detourFinder{nl: handle, query: q}
	if f.sources, err = f.containers(); err != nil {
		return nil, fmt.Errorf("find the device of containers: %w", err)
	}
	var out []Detour
	for _, p := range q.Peers {
		found, err := f.find(p)
		if err != nil {
			return nil, fmt.Errorf("ask for the route to peer %s: %w", p.Node, err)
		}
		if found != nil {
			out = append(out, *found)
		}
	}
	return out, nil
}

type detourFinder struct {
	nl      *netlink.Handle
	query   PathQuery
	sources []flow // one for each of this host's subnets in which containers are known
}

// A flow is packets whose route depends on these values.
type flow struct {
	dst, src netip.Addr // src is zero if the kernel selects it
	link     int        // ifindex of the device that they arrive by, 0 if this host sends them
	name     string     // of that device, "lo" if this host sends them
	out      int        // ifindex of the device that they must leave by, 0 for any
}

// containers returns what packets of containers have in common, for each of this host's subnets that a device of
// another program has an address in.
func (f *detourFinder) containers() (out []flow, err error) {
	addrs, err := f.nl.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	for _, a := range addrs {
		own := ToAddr(a.IP)
		if !slices.ContainsFunc(f.query.Subnets, func(s netip.Prefix) bool {
			return s.Contains(own) && s.Contains(own.Next())
		}) {
			continue
		}
		link, err := f.nl.LinkByIndex(a.LinkIndex)
		if err != nil || link.Attrs().Flags&net.FlagLoopback != 0 {
			continue
		}
		if name := link.Attrs().Name; !strings.HasPrefix(name, backend.LinkPrefix) {
			out = append(out, flow{src: own.Next(), link: a.LinkIndex, name: name})
		}
	}
	return out, nil
}

// find returns a detour of packets to a peer, or nil if there is none.
func (f *detourFinder) find(p backend.Peer) (*Detour, error) {
	for _, subnet := range p.Subnets {
		if found, err := f.inner(p, subnet); found != nil || err != nil {
			return found, err
		}
	}
	if !f.query.Encapsulated || len(p.PublicIPs) == 0 || f.query.Underlay.VRF != 0 { // a VRF has tables of its own
		return nil, nil
	}
	return f.outer(p)
}

// inner returns the detour of packets to a peer's subnet.
func (f *detourFinder) inner(p backend.Peer, subnet netip.Prefix) (*Detour, error) {
	sent := flow{dst: subnet.Addr(), name: "lo"}
	flows := []flow{sent}
	for _, s := range f.sources {
		if s.src.Is4() == sent.dst.Is4() {
			s.dst = sent.dst
			flows = slices.Insert(flows, 0, s)
			break
		}
	}
	for _, fl := range flows {
		route, err := f.route(fl)
		if err != nil && fl.link != 0 {
			continue // it may also be refused for its source or because the device does not forward
		}
		d := Detour{Node: p.Node, Dst: fl.dst}
		if err != nil {
			return f.refused(d, fl, subnet.Bits(), err)
		}
		if isOwn(route, p, subnet) {
			continue
		}
		if d.Link = f.linkName(route.LinkIndex); !strings.HasPrefix(d.Link, backend.LinkPrefix) {
			return f.explain(d, fl, route.Table)
		}
	}
	return nil, nil
}

// isOwn reports whether a route to a peer's subnet is leno's or leads to the peer, or leno's was just removed.
func isOwn(route netlink.Route, p backend.Peer, subnet netip.Prefix) bool {
	switch {
	case route.Flags&unix.RTM_F_CLONED != 0: // Linux before 4.13 does not say which route it is
	case route.Protocol == Protocol:
	case slices.Contains(p.PublicIPs, ToAddr(route.Gw)):
	case route.Table == unix.RT_TABLE_MAIN && bits(route.Dst) < subnet.Bits():
	default:
		return false
	}
	return true
}

// outer returns the detour of packets to a peer's public address: a rule sends them into a tunnel that is not the
// underlay, or away from a longer route over the underlay. Another device may be intended, if the host has several
// uplinks.
func (f *detourFinder) outer(p backend.Peer) (*Detour, error) {
	fl := flow{dst: p.PublicIPs[0], name: "lo"}
	for _, own := range f.query.Underlay.Own {
		if own.IsValid() && own.Is4() == fl.dst.Is4() {
			fl.src = own
		}
	}
	d := Detour{Node: p.Node, Dst: fl.dst, Outer: true}
	route, err := f.route(fl)
	if err != nil {
		return f.refused(d, fl, 1, err)
	}
	if route.Table == unix.RT_TABLE_MAIN || route.LinkIndex == f.query.Underlay.Index {
		return nil, nil
	}
	link, err := f.nl.LinkByIndex(route.LinkIndex)
	if err != nil {
		return nil, nil // it was just removed
	}
	tunnel := link.Attrs().Flags&net.FlagPointToPoint != 0 && link.Attrs().EncapType != "ppp"
	fl.out = f.query.Underlay.Index
	over, err := f.route(fl)
	if longer := err == nil && bits(over.Dst) > bits(route.Dst); !tunnel && !longer {
		return nil, nil
	}
	d.Link = link.Attrs().Name
	return f.explain(d, fl, route.Table)
}

// route returns the entry of a routing table that decides about a flow.
func (f *detourFinder) route(fl flow) (netlink.Route, error) {
	o := &netlink.RouteGetOptions{FIBMatch: true, IifIndex: fl.link, OifIndex: fl.out}
	if fl.src.IsValid() {
		o.SrcAddr = fl.src.AsSlice()
	}
	routes, err := f.nl.RouteGetWithOptions(fl.dst.AsSlice(), o)
	if err == nil && len(routes) == 0 {
		err = unix.ENETUNREACH
	}
	if err != nil {
		return netlink.Route{}, err
	}
	return routes[0], nil
}

// explain adds the table and the rule that leads to it.
func (f *detourFinder) explain(d Detour, fl flow, table int) (*Detour, error) {
	rules, err := f.rules(fl)
	if err != nil {
		return nil, err
	}
	d.Table = table
	for _, r := range rules {
		if r.Table == table && !isKernelTable(table) {
			d.Rule = &Rule{r.Priority, ruleText(r)}
			break
		}
	}
	return &d, nil
}

// refused returns the detour of packets for which the kernel has no route, if a rule is the reason, or a route of the
// main table with a prefix of at least that many bits. Otherwise the cause is another one, which other checks report.
func (f *detourFinder) refused(d Detour, fl flow, bits int, cause error) (*Detour, error) {
	if !slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL},
		func(e error) bool { return errors.Is(cause, e) }) {
		return nil, nil
	}
	rules, err := f.rules(fl)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if r.Table == unix.RT_TABLE_MAIN {
			if d.Route, err = f.rejectingRoute(r.Family, fl.dst, bits); err != nil {
				return nil, err
			}
			if d.Route != nil {
				d.Table = r.Table
				return &d, nil
			}
		}
		rejects, err := f.rejects(r, fl.dst)
		if err != nil {
			return nil, err
		}
		if rejects {
			d.Table, d.Rule = r.Table, &Rule{r.Priority, ruleText(r)}
			return &d, nil
		}
	}
	return nil, nil
}

// vrfPriority is the priority of the rule that the kernel adds with the first VRF (FIB_RULE_PREF of l3mdev).
const vrfPriority = 1000

// rejects reports whether a rule refuses packets, by itself or by a route of its table.
func (f *detourFinder) rejects(r netlink.Rule, dst netip.Addr) (bool, error) {
	if r.Table == unix.RT_TABLE_UNSPEC {
		return r.Goto < 0 && r.Priority != vrfPriority, nil
	}
	if isKernelTable(r.Table) {
		return false, nil
	}
	routes, err := f.nl.RouteListFiltered(r.Family, &netlink.Route{Table: r.Table}, netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return false, err
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool {
		return RejectingType(r) != "" && covers(r.Dst, dst)
	}), nil
}

// rejectingRoute returns the route to an address that the kernel prefers in the main table if it refuses packets, is of
// another program and its prefix has at least that many bits; nil if not.
func (f *detourFinder) rejectingRoute(family int, dst netip.Addr, least int) (*RejectingRoute, error) {
	routes, err := f.nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	routes = slices.DeleteFunc(routes, func(r netlink.Route) bool { return bits(r.Dst) < least || !covers(r.Dst, dst) })
	if len(routes) == 0 {
		return nil, nil
	}
	preferred := slices.MaxFunc(routes, func(a, b netlink.Route) int {
		return cmp.Or(bits(a.Dst)-bits(b.Dst), b.Priority-a.Priority)
	})
	if kind := RejectingType(preferred); kind != "" && preferred.Protocol != Protocol {
		return &RejectingRoute{kind, ToPrefix(preferred.Dst)}, nil
	}
	return nil, nil
}

// RejectingType returns the type of a route that refuses packets, as `ip route` names it; "" for others.
func RejectingType(r netlink.Route) string {
	switch r.Type {
	case unix.RTN_BLACKHOLE:
		return "blackhole"
	case unix.RTN_UNREACHABLE:
		return "unreachable"
	case unix.RTN_PROHIBIT:
		return "prohibit"
	}
	return ""
}

// rules returns the rules that apply to a flow, in the order in which the kernel uses them.
func (f *detourFinder) rules(fl flow) ([]netlink.Rule, error) {
	family := netlink.FAMILY_V6
	if fl.dst.Is4() {
		family = netlink.FAMILY_V4
	}
	all, err := f.nl.RuleList(family)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	return slices.DeleteFunc(all, func(r netlink.Rule) bool { return !fl.matches(r) }), nil
}

// matches reports whether a rule applies to a flow that has no mark.
func (fl flow) matches(r netlink.Rule) bool {
	marked := r.Mark != 0 && (r.Mask == nil || r.Mark&*r.Mask != 0)
	fits := !marked && covers(r.Dst, fl.dst) && covers(r.Src, fl.src) && (r.IifName == "" || r.IifName == fl.name) &&
		r.OifName == "" && r.IPProto == 0 && r.Dport == nil && r.Sport == nil && r.Tos == 0 && r.TunID == 0
	return fits != r.Invert
}

// isKernelTable reports whether the kernel's own rules lead to a table.
func isKernelTable(table int) bool {
	return table == unix.RT_TABLE_MAIN || table == unix.RT_TABLE_LOCAL || table == unix.RT_TABLE_DEFAULT
}

func (f *detourFinder) linkName(index int) string {
	link, err := f.nl.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("the device with index %d", index)
	}
	return link.Attrs().Name
}

// covers reports whether a prefix of a rule or route, nil for any, contains an address.
func covers(prefix *net.IPNet, addr netip.Addr) bool {
	return prefix == nil || bits(prefix) == 0 || addr.IsValid() && prefix.Contains(addr.AsSlice())
}

func bits(prefix *net.IPNet) int {
	if prefix == nil {
		return 0
	}
	n, _ := prefix.Mask.Size()
	return n
}

// ruleText returns a rule as `ip rule` shows it, without its priority.
func ruleText(r netlink.Rule) string {
	var p phrase
	p.add(r.Invert, "not")
	p.add(r.Src == nil, "from all")
	p.add(r.Src != nil, "from %s", r.Src)
	p.add(r.Dst != nil, "to %s", r.Dst)
	if r.Mask != nil && *r.Mask != ^uint32(0) {
		p.add(true, "fwmark %#x/%#x", r.Mark, *r.Mask)
	} else {
		p.add(r.Mark != 0, "fwmark %#x", r.Mark)
	}
	p.add(r.IifName != "", "iif %s", r.IifName)
	p.add(r.Table != 0, "lookup %d", r.Table)
	p.add(r.SuppressPrefixlen >= 0, "suppress_prefixlength %d", r.SuppressPrefixlen)
	return p.String()
}
