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

// judgeOverlaps judges pools that share addresses. The finding is about the network that waits.
func (v *verdict) judgeOverlaps() {
	const tried = "compare the pools of the networks on this host"
	all := v.facts.Networks
	for i, n := range all {
		for _, o := range all[:i] {
			if n.Checks.Network.Status == api.Passing {
				n, o = o, n
			}
			for _, p := range n.Pools {
				if j := slices.IndexFunc(o.Pools, p.Overlaps); j >= 0 {
					v.add(newFault(CheckOverlap, n.Name, "", tried,
						fmt.Sprintf("%s of network %s and %s of network %s share addresses: the later network waits", p, n.Name,
							o.Pools[j], o.Name),
						"give one of them another pool (`leno network plan` shows what that does), or leave it out on this host"))
				}
			}
		}
	}
}

// judgeNetwork judges one network, causes first.
func (v *verdict) judgeNetwork(n Network) {
	before := len(v.list)
	v.judgeRoutes(n)
	v.judgeIdentity(n)
	v.judgeDefinition(n)
	v.judgeLease(n)
	v.judgeDevice(n)
	v.judgeRecord(n)
	if n.Device.Wanted || n.Backend == "host-gw" {
		v.judgeForwarding(n)
		v.judgeRules(n)
		v.judgePaths(n)
	}
	for _, c := range n.Checks.Others {
		if c.Reason == health.Starting && slices.ContainsFunc(v.list[before:],
			func(f api.Finding) bool { return f.Status == api.FindingFault }) {
			continue // it waits until that fault is repaired
		}
		v.addCheck(n.Name, c)
	}
	if len(v.list) == before {
		v.add(newOK(CheckNetwork, n.Name, "check its state", "no problem found"))
	}
}

// judgeRoutes judges the host's own routes that win over leno's or are hidden by them.
func (v *verdict) judgeRoutes(n Network) {
	const tried = "compare the host's own routes with the pools"
	if n.Backend == "alloc" {
		return // which leaves routes to others
	}
	if n.RoutesErr != nil {
		v.add(newUnknown(CheckOverlap, n.Name, tried, n.RoutesErr.Error(), ""))
		return
	}
	bad := false
	for _, p := range n.Pools {
		if registry.IsPublic(p) {
			bad = true
			v.add(newWarning(CheckOverlap, n.Name, "", "compare the pools with public address space",
				fmt.Sprintf("pool %s contains public addresses, which this host cannot reach", p),
				"if they are not your own, define a network with a private pool, move the containers to it, and delete this one"))
		}
	}
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
		case r.Refuses != "" && !slices.ContainsFunc(n.Peers, r.takesPacketsTo):
			continue // as programs make them for all that has no longer route
		}
		bad = true
		text := fmt.Sprintf("the route to %s over %s", r.Dst, r.Link)
		remove := fmt.Sprintf("`ip route del %s dev %s`", r.Dst, r.Link)
		if r.Refuses != "" {
			text = fmt.Sprintf("the route %s %s, which refuses packets,", r.Refuses, r.Dst)
			remove = fmt.Sprintf("`ip route del %s %s`", r.Refuses, r.Dst)
		}
		saw, peer := fmt.Sprintf("%s lies in the pool %s", text, n.Pools[i]), ""
		for _, p := range n.Peers {
			if slices.ContainsFunc(p.Subnets, r.Dst.Overlaps) {
				saw, peer = saw+", where "+p.Node+" has its subnet", p.Node
			}
		}
		do := "move what is there to other addresses, or keep leno out of them: min and max in the network's plan, or " +
			"another pool"
		if !r.Connected {
			do = fmt.Sprintf("remove the route if nothing needs it (%s); else ", remove) + do
		}
		v.add(newFault(CheckOverlap, n.Name, peer, tried, saw, do))
	}
	if links := slices.Compact(slices.Sorted(slices.Values(flannels))); len(links) > 0 {
		bad = true
		v.add(newWarning(CheckOverlap, n.Name, "", tried, fmt.Sprintf("routes in the pool lead over %s as those of "+
			"flannel do",
			joinWords(links)),
			"this is normal while flanneld runs here. When the host has moved to leno, stop flanneld and remove what it has "+
				"left: its devices (`ip link del flannel.1`) or, with host-gw, its routes. On the same etcd, `leno flannel adopt` "+
				"hands them to leno"))
	}
	if !bad && len(n.Pools) > 0 && !v.hasFault(n.Name, CheckOverlap) {
		v.add(newOK(CheckOverlap, n.Name, tried, "no other route leads into %s", joinStrings(n.Pools)))
	}
}

// takesPacketsTo reports whether the kernel prefers the route to leno's route to a peer.
func (r Route) takesPacketsTo(p Peer) bool {
	return slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return registry.Contains(s, r.Dst) })
}

// isLikeHostGW reports whether a route leads to the whole subnet of a host over that host, as those of flannel's
// host-gw do.
func (n Network) isLikeHostGW(r Route) bool {
	return r.Gateway.IsValid() && r.Link == n.Underlay.Interface && slices.ContainsFunc(n.Subnets,
		func(own netip.Prefix) bool {
			return own.Bits() == r.Dst.Bits() && own.Addr().Is4() == r.Dst.Addr().Is4()
		})
}

// judgeIdentity judges whether other hosts use this host's identity, and whether the address it publishes leads to it.
// Findings from the paths about this come with the paths.
func (v *verdict) judgeIdentity(n Network) {
	const tried = "compare the leases of all hosts"
	c := n.Checks.Conflict
	if c.Status != api.Critical {
		return
	}
	if strings.Contains(c.Reason, registry.ErrDuplicateAddress.Error()) {
		v.add(newFault(CheckPublicIP, n.Name, "", tried, c.Reason,
			"give each host its own: underlay.public_ip, or underlay.interfaces, on the one that has a wrong address. "+
				"Behind one NAT, with the backend wireguard, give each host its own port: underlay.public_ports"))
		return
	}
	do := fmt.Sprintf("give each host its own name (node_name). On a machine that was cloned, stop the agent, remove the "+
		"state of the original with `rm -r %s`, and start it again", cmp.Or(v.facts.DataDir, "DATA_DIR"))
	if v.facts.Store.lacksOwnNode() {
		v.list = slices.DeleteFunc(v.list, func(f api.Finding) bool {
			return f.Check == CheckACL && f.Status == api.FindingFault
		})
		do += " with a token of its own"
	}
	v.add(newFault(CheckConflict, n.Name, "", tried, c.Reason, do))
}

// lacksOwnNode reports whether the token lacks only rights to the host's node in Consul, as the token of another host
// does.
func (s Store) lacksOwnNode() (lacks bool) {
	for _, r := range s.Rights {
		isOfNode := strings.HasPrefix(r.Rule, `session "`) || strings.HasPrefix(r.Rule, `agent "`)
		switch {
		case !r.Granted && !isOfNode:
			return false
		case !r.Granted:
			lacks = true
		}
	}
	return lacks
}

func (v *verdict) judgeDefinition(n Network) {
	for _, part := range []struct {
		check string
		of    api.Check
		by    []string // checks whose findings explain it
		do    string
	}{
		{CheckNetwork, n.Checks.Network, []string{CheckOverlap, CheckConsul, CheckEtcd, CheckKubernetes, CheckACL}, ""},
		{CheckUnderlay, n.Checks.Underlay, nil, "do what it says; if the interface or its address is missing, restore it " +
			"(`ip -brief address`), or select another one with the underlay block of the configuration and `leno reload`"},
	} {
		before := len(v.list)
		if part.of.Status != "" && !v.hasFault(n.Name, part.by...) {
			part.of.Name = part.check
			v.addCheck(n.Name, part.of)
		}
		for i := range v.list[before:] {
			v.list[before+i].Do = cmp.Or(v.list[before+i].Do, part.do)
		}
	}
}

// judgeLease judges whether the lease is held and its session alive.
func (v *verdict) judgeLease(n Network) {
	const tried = "read this host's lease and its session"
	l, c := n.Lease, n.Checks.Lease
	if v.facts.Offline != nil {
		v.judgeOfflineLease(n)
		return
	}
	explained := v.hasFault(n.Name, CheckConflict, CheckPublicIP, CheckNetwork, CheckUnderlay, CheckOverlap)
	silent := l.Now.Sub(l.Renewed).Round(time.Second)
	store := textOf(v.facts.Store.Kind)
	again := fmt.Sprintf("the agent claims it again as soon as %s allows it; "+
		"containers keep working until another host gets the subnet", store.name)
	cause := ""
	if refused, remedy := splitRemedy(c); remedy != "" {
		cause, again = "; "+refused, remedy
	}
	switch {
	case l.Held && l.RecordErr == nil && l.Record == nil:
		v.add(newFault(CheckLease, n.Name, "", tried, fmt.Sprintf("the record of %s is gone: it was deleted or revoked%s",
			l.Own.Subnet(), cause), again))
	case l.Held && l.Record != nil && !l.Record.Held():
		v.add(newFault(CheckLease, n.Name, "", tried, fmt.Sprintf("%s is no longer held: its session %s has ended%s",
			l.Own.Subnet(), l.Own.Session, cause), again))
	case l.Held && l.Record != nil && l.Record.Session != l.Own.Session:
		v.add(newFault(CheckLease, n.Name, "", tried, fmt.Sprintf("%s is held by %s with session %s, not by this host's %s",
			l.Own.Subnet(), l.Record.Node, l.Record.Session, l.Own.Session),
			again+"; `leno lease show` names its host"))
	case l.Held && l.RecordErr != nil && !l.Renewed.IsZero() && silent > 2*l.TTL:
		v.add(newFault(CheckLease, n.Name, "", tried,
			fmt.Sprintf("not renewed for %s, and a session lives twice lease.ttl (%s): by now it is lost, and other hosts see "+
				"the lease of %s as lapsed", silent, l.TTL, l.Own.Subnet()),
			fmt.Sprintf("make %s reachable from this host; %s", store.name, again)))
	case l.Held && l.RecordErr != nil && v.hasFault("", store.check, CheckACL):
		saw := fmt.Sprintf("renewed %s ago; %s keeps it for twice lease.ttl (%s) after that", silent, store.name, l.TTL)
		v.add(newWarning(CheckLease, n.Name, "", tried, saw, ""))
	case c.Status != api.Passing && c.Status != "" && !explained:
		c.Name = CheckLease
		v.addCheck(n.Name, c)
	case l.Held && l.RecordErr != nil:
		v.add(newUnknown(CheckLease, n.Name, tried, l.RecordErr.Error(), ""))
	case l.Held:
		v.add(newOK(CheckLease, n.Name, tried, "%s is held, renewed %s ago", l.Own.Subnet(), silent))
	}
}

// judgeOfflineLease judges the store's lease of a host whose agent does not answer.
func (v *verdict) judgeOfflineLease(n Network) {
	const tried = "read the lease that the last agent of this host had"
	l := n.Lease
	switch {
	case l.RecordErr != nil:
		v.add(newUnknown(CheckLease, n.Name, tried, l.RecordErr.Error(), ""))
	case len(n.Subnets) == 0:
	case l.Record == nil:
		saw := fmt.Sprintf("the record of %s is not in the store: an agent takes the subnet again if no other host has it",
			n.Subnets[0])
		v.add(newWarning(CheckLease, n.Name, "", tried, saw, "start the agent"))
	case !l.Record.Held():
		v.add(newWarning(CheckLease, n.Name, "", tried,
			fmt.Sprintf("%s is no longer held, its session has ended: other hosts remove the lease after lease.hold",
				n.Subnets[0]),
			"start the agent"))
	default:
		v.add(newOK(CheckLease, n.Name, tried, "%s is still held for this host", n.Subnets[0]))
	}
}

// judgeDevice judges the network's device and everything that depends on it.
func (v *verdict) judgeDevice(n Network) {
	const tried = "read the device, and ask the agent for its last result"
	if n.Checks.Routes.Status != "" {
		v.addCheck(n.Name, n.Checks.Routes)
	}
	c := n.Checks.Device
	saw, do := advice.Split(c.Reason)
	switch {
	case !n.Device.Wanted && n.Backend == "alloc":
		return
	case n.Device.TUN != nil:
		v.add(newFault(CheckModule, n.Name, "", "open /dev/net/tun, through which the agent gets packets",
			n.Device.TUN.Error(),
			advice.To(advice.Datapath, n.Device.TUN)))
	case n.Device.Module != nil:
		v.add(newFault(CheckModule, n.Name, "", "look for the kernel module that the backend needs", n.Device.Module.Error(),
			advice.To(advice.Datapath, n.Device.Module)))
	case c.Status == api.Critical && strings.Contains(c.Reason, backend.ErrNoSuchKind.Error()):
		v.add(newFault(CheckModule, n.Name, "", "make the device "+n.Link, saw, do))
	case c.Status == api.Critical && !v.hasFault("", CheckRights):
		v.add(newFault(CheckDevice, n.Name, "", tried, saw, do))
	case c.Status == api.Critical:
	case n.Device.Err != nil:
		v.add(newUnknown(CheckDevice, n.Name, tried, n.Device.Err.Error(), ""))
	case n.Device.Wanted && n.Lease.Held && !n.Device.Exists:
		v.add(newFault(CheckDevice, n.Name, "", tried, n.Link+" does not exist",
			"the agent creates it again; if it does not, its log says why"))
	case n.Device.Wanted && n.Device.Exists && !n.Device.Up:
		v.add(newFault(CheckDevice, n.Name, "", tried, n.Link+" is down",
			"the agent sets it up again; find out which program took it down (NetworkManager, systemd-networkd)"))
	case c.Status == api.Warning:
		v.add(newWarning(CheckDevice, n.Name, "", tried, saw, do))
	case n.Device.Wanted && n.Device.Exists && v.facts.Offline != nil && n.Device.Kind == "tuntap":
		v.add(newWarning(CheckDevice, n.Name, "", tried, n.Link+" exists, but no agent reads its packets: they are lost",
			"start the agent"))
	case n.Device.Wanted && n.Device.Exists:
		saw := fmt.Sprintf("%s is up, MTU %d", n.Link, n.Device.MTU)
		v.add(newOK(CheckDevice, n.Name, tried, "%s", strings.Join(append([]string{saw}, n.Notes...), "; ")))
	}
}

// judgeRecord compares what the other hosts read about this host with the facts.
func (v *verdict) judgeRecord(n Network) {
	const tried = "compare this host's lease record with its device and underlay"
	r := n.Lease.Record
	if r == nil || !n.Lease.Held && v.facts.Offline == nil {
		return
	}
	var wrong []string
	v.staleRecord = false
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
			v.staleRecord = true
		}
		if attributes.Key != "" && d.Key != "" && attributes.Key != d.Key {
			say("public key of "+n.Link, attributes.Key, d.Key)
			v.staleRecord = true
		}
		if r.MTU != d.MTU {
			say("MTU of "+n.Link, r.MTU, d.MTU)
		}
	}
	public := n.Underlay.Public
	if len(public) > 0 && !slices.Equal(r.PublicIPs, public) {
		say("public address", joinStrings(r.PublicIPs), joinStrings(public))
	}
	if len(wrong) == 0 {
		v.add(newOK(CheckRecord, n.Name, tried, "the record matches the device and the underlay"))
		return
	}
	v.add(newFault(CheckRecord, n.Name, "", tried, strings.Join(wrong, "; "),
		"other hosts send to the addresses in the record. A running agent corrects both: find out why it does not "+
			fmt.Sprintf("(its lease, its rights in %s, `leno monitor`), or start it", textOf(v.facts.Store.Kind).name)))
}

func (v *verdict) judgeForwarding(n Network) {
	const tried = "read the kernel's switches for forwarding"
	if n.ForwardingErr != nil {
		v.add(newUnknown(CheckForwarding, n.Name, tried, n.ForwardingErr.Error(), ""))
		return
	}
	var off []string
	fine := true
	for _, s := range n.Forwarding {
		wrong, todo := s.Problem(n.Forward)
		switch {
		case s.CostsRoutes():
			v.add(newFault(CheckForwarding, n.Name, "", tried, wrong, todo))
		case len(s.Advertised) > 0:
			v.add(newWarning(CheckForwarding, n.Name, "", tried, wrong, todo))
		default:
			off = append(off, s.Off...)
		}
		fine = fine && wrong == ""
	}
	switch {
	case len(off) > 0:
		v.add(newFault(CheckForwarding, n.Name, "", tried,
			joinWords(off)+" is 0: packets of containers for other hosts are dropped here",
			fmt.Sprintf("`sysctl -w %s=1`, and put it into /etc/sysctl.d; with forward = true in the network's block leno "+
				"switches it on where it may", off[0])))
	case fine:
		v.add(newOK(CheckForwarding, n.Name, tried, "forwarding is on"))
	}
}

// maxPartial is how many rules that drop only some packets get a finding each.
const maxPartial = 5

// judgeRules judges the rules of other programs that block containers' packets.
func (v *verdict) judgeRules(n Network) {
	const tried = "read all firewall rules of this host"
	partial := 0
	for _, o := range n.Obstacles {
		more := ""
		if o.More > 0 {
			more = fmt.Sprintf(" (and %d like it)", o.More)
		}
		f := newFault(CheckRules, n.Name, "", tried, fmt.Sprintf("%s: %q%s: %s", o.Where, o.Rule, more, o.Effect), o.Advice)
		if o.Partial {
			f.Status = api.FindingWarning
			if partial++; partial > maxPartial {
				partial += o.More
				continue
			}
		}
		v.add(f)
	}
	if partial > maxPartial {
		v.add(newWarning(CheckRules, n.Name, "", tried, fmt.Sprintf("%d more rules drop some packets between containers",
			partial-maxPartial), "they may be intended; see `iptables-save` and `nft list ruleset`"))
	}
	switch {
	case len(n.Obstacles) > 0:
	case n.RulesErr != nil:
		v.add(newUnknown(CheckRules, n.Name, tried, n.RulesErr.Error(), ""))
	default:
		v.add(newOK(CheckRules, n.Name, tried, "no rule drops overlay packets"))
	}
}

// isLeaseMissing reports whether the store has no such lease.
func isLeaseMissing(err error) bool {
	return errors.Is(err, registry.ErrLeaseNotFound) || errors.Is(err, registry.ErrLeaseRevoked)
}

// SetRecord sets Record or RecordErr to the result of reading the record.
func (l *Lease) SetRecord(record registry.Lease, err error) {
	switch {
	case err == nil:
		l.Record = &record
	case !isLeaseMissing(err):
		l.RecordErr = err
	}
}

// findPrefix returns the first prefix that contains the address, and whether there is one.
func findPrefix(list []netip.Prefix, a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return list[i], true
}
