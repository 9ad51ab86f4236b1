package doctor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// overlaps judges pools that share addresses. The finding is about the network that waits.
func (v *verdict) overlaps() {
	const tried = "compare the pools of the networks on this host"
	all := v.facts.Networks
	for i, n := range all {
		for _, o := range all[:i] {
			if n.Checks.Network.Status == api.Passing {
				n, o = o, n
			}
			for _, p := range n.Pools {
				if j := slices.IndexFunc(o.Pools, p.Overlaps); j >= 0 {
					v.add(fault(CheckOverlap, n.Name, "", tried,
						fmt.Sprintf("%s of network %s and %s of network %s share addresses, and the one that came later waits", p, n.Name,
							o.Pools[j], o.Name),
						"give one of them another pool (`leno network plan` shows what that does), or leave it out on this host"))
				}
			}
		}
	}
}

// network judges one network, causes first.
func (v *verdict) network(n Network) {
	before := len(v.list)
	v.routes(n)
	v.identity(n)
	v.definition(n)
	v.lease(n)
	v.device(n)
	v.record(n)
	if n.Device.Wanted || n.Backend == "host-gw" {
		v.forwarding(n)
		v.rules(n)
		v.ways(n)
	}
	for _, c := range n.Checks.Others {
		if c.Reason == health.Starting && slices.ContainsFunc(v.list[before:],
			func(f api.Finding) bool { return f.Status == api.FindingFault }) {
			continue // it waits until that fault is repaired
		}
		v.unwell(n.Name, c)
	}
	if len(v.list) == before {
		v.add(well(CheckNetwork, n.Name, "looked at its state", "nothing to tell"))
	}
}

// routes judges the host's own routes that win over leno's or are hidden by them.
func (v *verdict) routes(n Network) {
	const tried = "compare the host's own routes with the pools"
	if n.Backend == "alloc" {
		return // which leaves routes to others
	}
	if n.RoutesErr != nil {
		v.add(unknown(CheckOverlap, n.Name, tried, n.RoutesErr.Error(), ""))
		return
	}
	bad := false
	var flannels []string // devices
	for _, r := range n.Routes {
		i := slices.IndexFunc(n.Pools, r.Dst.Overlaps)
		switch {
		case i < 0, r.Serves:
			continue
		case r.Flannel, n.isLikeHostGW(r):
			flannels = append(flannels, r.Link)
			continue
		case r.Dst.Bits() < n.Pools[i].Bits(), r.Dst.Bits() == n.Pools[i].Bits() && !r.Connected:
			continue // leno's longer routes win, and that route is wanted for the rest of the pool
		}
		bad = true
		saw, peer := fmt.Sprintf("the route to %s over %s lies in the pool %s", r.Dst, r.Link, n.Pools[i]), ""
		for _, p := range n.Peers {
			if slices.ContainsFunc(p.Subnets, r.Dst.Overlaps) {
				saw, peer = saw+", where "+p.Node+" has its subnet", p.Node
			}
		}
		v.add(fault(CheckOverlap, n.Name, peer, tried, saw,
			fmt.Sprintf("move what is there to other addresses (`ip route show %s`), or keep leno out of them: min and max in "+
				"the network's plan, or another pool", r.Dst)))
	}
	if links := slices.Compact(slices.Sorted(slices.Values(flannels))); len(links) > 0 {
		bad = true
		v.add(warning(CheckOverlap, n.Name, "", tried, fmt.Sprintf("routes in the pool lead over %s as those of flannel do",
			and(links)),
			"this is normal while flanneld runs here. When the host has moved to leno, stop flanneld and remove what it has left: "+
				"its devices (`ip link del flannel.1`) or, with host-gw, its routes. On the same etcd, `leno flannel adopt` hands "+
				"them to leno"))
	}
	if !bad && len(n.Pools) > 0 && !v.found(n.Name, CheckOverlap) {
		v.add(well(CheckOverlap, n.Name, tried, "nothing else is in %s", joined(n.Pools)))
	}
}

// isLikeHostGW reports whether a route leads to the whole subnet of a host over that host, as those of flannel's
// host-gw do.
func (n Network) isLikeHostGW(r Route) bool {
	return r.Gateway.IsValid() && r.Link == n.Underlay.Interface && slices.ContainsFunc(n.Subnets,
		func(own netip.Prefix) bool {
			return own.Bits() == r.Dst.Bits() && own.Addr().Is4() == r.Dst.Addr().Is4()
		})
}

// identity judges whether other hosts use this host's identity, and whether the address it publishes leads to it.
// Findings from the paths about this come with the paths.
func (v *verdict) identity(n Network) {
	const tried = "compare the leases of all hosts"
	c := n.Checks.Conflict
	if c.Status != api.Critical {
		return
	}
	if strings.Contains(c.Reason, registry.ErrDuplicateAddress.Error()) {
		v.add(fault(CheckPublicIP, n.Name, "", tried, c.Reason,
			"give each host its own: underlay.public_ip, or underlay.interfaces, on the one that has a wrong address. "+
				"Behind one NAT, with the backend wireguard, give each host its own port: underlay.public_ports"))
		return
	}
	v.add(fault(CheckConflict, n.Name, "", tried, c.Reason,
		"give each host its own name (node_name) and state directory (data_dir): on a machine that was cloned remove "+
			"node-id and start the agent again"))
}

func (v *verdict) definition(n Network) {
	for _, part := range []struct {
		check string
		of    api.Check
		by    []string // checks whose findings explain it
		do    string
	}{
		{CheckNetwork, n.Checks.Network, []string{CheckOverlap, CheckConsul, CheckEtcd, CheckKubernetes, CheckACL}, ""},
		{CheckUnderlay, n.Checks.Underlay, nil, "bring the interface and its address back (`ip -brief address`), " +
			"or select another one with the underlay block of the configuration and `leno reload`"},
	} {
		before := len(v.list)
		if part.of.Status != "" && !v.found(n.Name, part.by...) {
			part.of.Name = part.check
			v.unwell(n.Name, part.of)
		}
		for i := range v.list[before:] {
			v.list[before+i].Do = cmp.Or(v.list[before+i].Do, part.do)
		}
	}
}

// lease judges whether the lease is held and its session alive.
func (v *verdict) lease(n Network) {
	const tried = "read this host's lease and its session"
	l, c := n.Lease, n.Checks.Lease
	if v.facts.Alone != nil {
		v.leaseAlone(n)
		return
	}
	explained := v.found(n.Name, CheckConflict, CheckPublicIP, CheckNetwork, CheckUnderlay, CheckOverlap)
	silent := l.Now.Sub(l.Renewed).Round(time.Second)
	store := textOf(v.facts.Store.Kind)
	again := fmt.Sprintf("the agent takes it again by itself as soon as %s lets it; "+
		"containers keep working until another host gets the subnet", store.name)
	switch {
	case l.Held && l.RecordErr == nil && l.Record == nil:
		v.add(fault(CheckLease, n.Name, "", tried, fmt.Sprintf("the record of %s is gone: it was deleted or revoked",
			l.Mine.Subnet()), again))
	case l.Held && l.Record != nil && !l.Record.Held():
		v.add(fault(CheckLease, n.Name, "", tried, fmt.Sprintf("%s is held no more: its session %s has ended",
			l.Mine.Subnet(), l.Mine.Session), again))
	case l.Held && l.Record != nil && l.Record.Session != l.Mine.Session:
		v.add(fault(CheckLease, n.Name, "", tried, fmt.Sprintf("%s is held by %s with session %s, not by this host's %s",
			l.Mine.Subnet(), l.Record.Node, l.Record.Session, l.Mine.Session),
			again+"; `leno lease show` tells who has it"))
	case l.Held && l.RecordErr != nil && !l.Renewed.IsZero() && silent > 2*l.TTL:
		v.add(fault(CheckLease, n.Name, "", tried,
			fmt.Sprintf("not renewed for %s, and a session lives twice lease.ttl (%s): by now it is lost, and other hosts see "+
				"the lease of %s as lapsed", silent, l.TTL, l.Mine.Subnet()),
			fmt.Sprintf("bring %s back for this host; %s", store.name, again)))
	case l.Held && l.RecordErr != nil && v.found("", store.check, CheckACL):
		saw := fmt.Sprintf("renewed %s ago; %s keeps it for twice lease.ttl (%s) after that", silent, store.name, l.TTL)
		v.add(warning(CheckLease, n.Name, "", tried, saw, ""))
	case c.Status != api.Passing && c.Status != "" && !explained:
		c.Name = CheckLease
		v.unwell(n.Name, c)
	case l.Held && l.RecordErr != nil:
		v.add(unknown(CheckLease, n.Name, tried, l.RecordErr.Error(), ""))
	case l.Held:
		v.add(well(CheckLease, n.Name, tried, "%s is held, renewed %s ago", l.Mine.Subnet(), silent))
	}
}

// leaseAlone judges the store's lease of a host whose agent does not answer.
func (v *verdict) leaseAlone(n Network) {
	const tried = "read the lease that the last agent of this host had"
	l := n.Lease
	switch {
	case l.RecordErr != nil:
		v.add(unknown(CheckLease, n.Name, tried, l.RecordErr.Error(), ""))
	case len(n.Subnets) == 0:
	case l.Record == nil:
		saw := fmt.Sprintf("the record of %s is not in the store: an agent takes the subnet again if no other host has it",
			n.Subnets[0])
		v.add(warning(CheckLease, n.Name, "", tried, saw, "start the agent"))
	case !l.Record.Held():
		v.add(warning(CheckLease, n.Name, "", tried,
			fmt.Sprintf("%s is held no more, its session has ended: other hosts remove it lease.hold after that", n.Subnets[0]),
			"start the agent"))
	default:
		v.add(well(CheckLease, n.Name, tried, "%s is still held for this host", n.Subnets[0]))
	}
}

// device judges the network's device and everything that depends on it.
func (v *verdict) device(n Network) {
	const tried = "look at the device and ask the agent for what it last did to it"
	if n.Checks.Routes.Status != "" {
		v.unwell(n.Name, n.Checks.Routes)
	}
	c := n.Checks.Device
	saw, do := advice.Split(c.Reason)
	switch {
	case !n.Device.Wanted && n.Backend == "alloc":
		return
	case n.Device.TUN != nil:
		v.add(fault(CheckModule, n.Name, "", "open /dev/net/tun, through which the agent gets packets", n.Device.TUN.Error(),
			advice.To(advice.Datapath, n.Device.TUN)))
	case n.Device.Module != nil:
		v.add(fault(CheckModule, n.Name, "", "look for the kernel module that the backend needs", n.Device.Module.Error(),
			advice.To(advice.Datapath, n.Device.Module)))
	case c.Status == api.Critical && strings.Contains(c.Reason, backend.ErrNoSuchKind.Error()):
		v.add(fault(CheckModule, n.Name, "", "make the device "+n.Link, saw, do))
	case c.Status == api.Critical && !v.found("", CheckRights):
		v.add(fault(CheckDevice, n.Name, "", tried, saw, do))
	case c.Status == api.Critical:
	case n.Device.Err != nil:
		v.add(unknown(CheckDevice, n.Name, tried, n.Device.Err.Error(), ""))
	case n.Device.Wanted && n.Lease.Held && !n.Device.Exists:
		v.add(fault(CheckDevice, n.Name, "", tried, n.Link+" is not there",
			"the agent makes it again; when it does not, its log says why"))
	case n.Device.Wanted && n.Device.Exists && !n.Device.Up:
		v.add(fault(CheckDevice, n.Name, "", tried, n.Link+" is down",
			"the agent sets it up again; find out who took it down (NetworkManager, systemd-networkd)"))
	case c.Status == api.Warning:
		v.add(warning(CheckDevice, n.Name, "", tried, saw, do))
	case n.Device.Wanted && n.Device.Exists && v.facts.Alone != nil && n.Device.Kind == "tuntap":
		v.add(warning(CheckDevice, n.Name, "", tried, n.Link+" stands, and its packets wait for an agent: they are lost",
			"start the agent"))
	case n.Device.Wanted && n.Device.Exists:
		saw := fmt.Sprintf("%s is up, MTU %d", n.Link, n.Device.MTU)
		v.add(well(CheckDevice, n.Name, tried, "%s", strings.Join(append([]string{saw}, n.Notes...), "; ")))
	}
}

// record compares what the other hosts read about this host with the facts.
func (v *verdict) record(n Network) {
	const tried = "compare this host's lease record with its device and underlay"
	r := n.Lease.Record
	if r == nil || !n.Lease.Held && v.facts.Alone == nil {
		return
	}
	var wrong []string
	v.misled = false
	say := func(what string, record, here any) {
		wrong = append(wrong, fmt.Sprintf("%s: the record says %v, here it is %v", what, record, here))
	}
	if n.Backend != "" && r.Backend.Type != n.Backend {
		say("backend", r.Backend.Type, n.Backend)
	}
	if d := n.Device; d.Exists {
		var attributes struct {
			MAC string `json:"vtep_mac"`
			Key string `json:"public_key"`
		}
		_ = json.Unmarshal(r.Backend.Object, &attributes) // what it lacks is not compared
		if attributes.MAC != "" && d.MAC != "" && attributes.MAC != d.MAC {
			say("address of "+n.Link+" (VTEP MAC)", attributes.MAC, d.MAC)
			v.misled = true
		}
		if attributes.Key != "" && d.Key != "" && attributes.Key != d.Key {
			say("public key of "+n.Link, attributes.Key, d.Key)
			v.misled = true
		}
		if r.MTU != d.MTU {
			say("MTU of "+n.Link, r.MTU, d.MTU)
		}
	}
	public := n.Underlay.Public
	if len(public) > 0 && !slices.Equal(r.PublicIPs, public) {
		say("public address", joined(r.PublicIPs), joined(public))
	}
	switch {
	case len(wrong) > 0:
		v.add(fault(CheckRecord, n.Name, "", tried, strings.Join(wrong, "; "),
			"other hosts send by the record. A running agent writes it again and repairs the device: see why it does not "+
				fmt.Sprintf("(its lease, its rights in %s, `leno monitor`), or start it", textOf(v.facts.Store.Kind).name)))
	default:
		v.add(well(CheckRecord, n.Name, tried, "they agree"))
	}
}

func (v *verdict) forwarding(n Network) {
	const tried = "read the kernel's switches for forwarding"
	if n.ForwardingErr != nil {
		v.add(unknown(CheckForwarding, n.Name, tried, n.ForwardingErr.Error(), ""))
		return
	}
	var off []string
	fine := true
	for _, s := range n.Forwarding {
		wrong, todo := s.Problem(n.Forward)
		switch {
		case s.CostsRoutes():
			v.add(fault(CheckForwarding, n.Name, "", tried, wrong, todo))
		case len(s.Advertised) > 0:
			v.add(warning(CheckForwarding, n.Name, "", tried, wrong, todo))
		default:
			off = append(off, s.Off...)
		}
		fine = fine && wrong == ""
	}
	switch {
	case len(off) > 0:
		v.add(fault(CheckForwarding, n.Name, "", tried,
			and(off)+" is 0: packets of containers for other hosts are dropped here",
			fmt.Sprintf("sysctl -w %s=1, and put it into /etc/sysctl.d; with forward = true in the network's block leno "+
				"switches it on where it may", off[0])))
	case fine:
		v.add(well(CheckForwarding, n.Name, tried, "on"))
	}
}

// mostPartial is how many rules that drop only some packets get a finding each.
const mostPartial = 5

// rules judges the rules of other programs that block containers' packets.
func (v *verdict) rules(n Network) {
	const tried = "read all firewall rules of this host"
	partial := 0
	for _, o := range n.Obstacles {
		more := ""
		if o.More > 0 {
			more = fmt.Sprintf(" (and %d like it)", o.More)
		}
		f := fault(CheckRules, n.Name, "", tried, fmt.Sprintf("%s: %q%s: %s", o.Where, o.Rule, more, o.Effect), o.Advice)
		if o.Partial {
			f.Status = api.FindingWarning
			if partial++; partial > mostPartial {
				partial += o.More
				continue
			}
		}
		v.add(f)
	}
	if partial > mostPartial {
		v.add(warning(CheckRules, n.Name, "", tried, fmt.Sprintf("%d rules more drop some packets between containers",
			partial-mostPartial), "they may be intended; see `iptables-save` and `nft list ruleset`"))
	}
	switch {
	case len(n.Obstacles) > 0:
	case n.RulesErr != nil:
		v.add(unknown(CheckRules, n.Name, tried, n.RulesErr.Error(), ""))
	default:
		v.add(well(CheckRules, n.Name, tried, "none is known to be in the way of containers"))
	}
}

// gone reports whether the store has no such lease.
func gone(err error) bool {
	return errors.Is(err, registry.ErrLeaseNotFound) || errors.Is(err, registry.ErrLeaseRevoked)
}

// Recorded stores the result of reading the record.
func (l *Lease) Recorded(record registry.Lease, err error) {
	switch {
	case err == nil:
		l.Record = &record
	case !gone(err):
		l.RecordErr = err
	}
}

// inAny returns the first prefix that contains the address, and whether there is one.
func inAny(list []netip.Prefix, a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return list[i], true
}
