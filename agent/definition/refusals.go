package definition

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// What an operator can do instead of a refused change.
const (
	secondNetwork        = "define a second network with the new values, move the containers to it, then delete this one"
	secondNetworkOrForce = "define a second network with the new values and move the containers to it, or force it when " +
		"packets may stop"
)

// minMTU6 is the smallest MTU in bytes that IPv6 allows on a link (RFC 8200).
const minMTU6 = 1280

// refusedHosts returns the refusals of all hosts with a held lease, each reason once with its hosts, which replace the
// %s in it.
func (c Change) refusedHosts() []api.Refusal {
	var out []api.Refusal
	hosts := map[api.Refusal][]string{}
	for _, l := range held(c.Leases) {
		for _, g := range c.refusals(l) {
			if !slices.Contains(out, g) {
				out = append(out, g)
			}
			hosts[g] = append(hosts[g], fmt.Sprintf("%s (%s)", l.Node, l.Subnet()))
		}
	}
	for i, g := range out {
		out[i].Reason = fmt.Sprintf(g.Reason, FirstFew(hosts[g]))
	}
	return out
}

// refusals returns the reasons against the change on one host, whose name is to replace the %s in them.
func (c Change) refusals(l registry.Lease) (out []api.Refusal) {
	refuse := func(reason, way string, force bool) {
		out = append(out, api.Refusal{Reason: reason, Way: way, Force: force})
	}
	switch p := place(l, c.New.Plan); {
	case p.reason == outOfRange:
		refuse("%s would lose the subnet, and containers their addresses: it "+p.reason,
			"leave it in the range, or move the host before: reserve it a subnet that stays and revoke its lease", true)
	case p.reason != "":
		refuse("%s would lose the subnet, and containers their addresses: it "+p.reason, secondNetwork, true)
	case p.renamed:
		refuse("IPv4 would name the lease of %s, which moves to another key: packets stop until peers have read that",
			secondNetworkOrForce, true)
	case len(p.lost) > 0:
		refuse("containers on %s would lose their addresses of one family", secondNetwork, true)
	}
	if cutsOff(l, c.Old, c.New, c.Backends) {
		refuse("%s would be cut off: each "+cannotFollow,
			"move these hosts to leno first, or force it when packets to and from them may stop", true)
	}
	for _, p := range c.New.Plan.Prefixes() {
		if slices.ContainsFunc(l.PublicIPs, p.Contains) {
			refuse(fmt.Sprintf("pool %s contains the address between hosts of %%s", p),
				"choose a pool that contains no host's address", false)
		}
	}
	for _, kind := range typesOf(c.New) {
		c.checkFamilies(l, kind, refuse)
	}
	return out
}

// checkFamilies finds the reasons why a host cannot carry the families of the new plan over one of the backends, of the
// given type. A backend that the network has already is judged by the subnets that the host gains, so that nothing that
// works today is refused.
func (c Change) checkFamilies(l registry.Lease, kind string, refuse func(reason, way string, force bool)) {
	prefixes, mtu, way := place(l, c.New.Plan).gained, l.MTU, "raise the MTU between hosts"
	if mtu == backend.MTUOption(c.Old.Backend.Options()) {
		way = "change the option mtu of the backend before"
	}
	little := fmt.Sprintf("IPv6 needs an MTU of %d, and on %%s it is less", minMTU6)
	if !slices.Contains(typesOf(c.Old), kind) {
		prefixes, mtu = c.New.Plan.Prefixes(), typeSet(c.Backends).mtuOver(l, c.Old, kind)
		little = fmt.Sprintf("IPv6 needs an MTU of %d, and backend %s leaves less on %%s", minMTU6, kind)
	}
	self := backend.Peer{PublicIPs: l.PublicIPs}
	for _, p := range prefixes {
		if _, ok := self.PublicIP(p.Addr()); c.Backends[kind].OwnFamily && !ok {
			refuse(fmt.Sprintf("backend %s needs an %s address between hosts, which %%s has not", kind,
				backend.Family(p.Addr())), "give the host one, or use a backend that wraps packets", false)
		}
		if p.Addr().Is6() && mtu < minMTU6 {
			refuse(little, way, false)
		}
	}
}

// refusedAddresses returns a refusal if hosts share a public address, and the new backend cannot tell them apart.
func refusedAddresses(leases []registry.Lease, old, target backend.Type) []api.Refusal {
	if !old.SharedAddress || target.SharedAddress {
		return nil
	}
	first := map[netip.Addr]string{}
	var hosts []string
	for _, l := range leases {
		if l.SharesAddress() {
			hosts = append(hosts, l.Node+" (underlay.public_ports)")
			continue
		}
		for _, a := range l.PublicIPs {
			if other, taken := first[a]; taken && l.Held() {
				hosts = append(hosts, fmt.Sprintf("%s (as %s)", l.Node, other))
				break
			} else if l.Held() {
				first[a] = l.Node
			}
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	return []api.Refusal{{Reason: fmt.Sprintf("backend %s needs a public address for each host, and others have that "+
		"of %s", target.Name, FirstFew(hosts)),
		Way: "give each host an address of its own"}}
}

// refusedBackend returns the refusals of backend changes that interrupt traffic on every host.
func (c Change) refusedBackend() []api.Refusal {
	if len(held(c.Leases)) == 0 || !c.isCarried() || c.obstacle != nil || c.New.Switch != nil {
		return nil
	}
	if c.Old.Backend.Type != c.New.Backend.Type {
		return []api.Refusal{{Reason: fmt.Sprintf("backend %s becomes %s: packets stop between hosts that have changed and "+
			"those that have not", c.Old.Backend.Type, c.New.Backend.Type), Way: secondNetworkOrForce, Force: true}}
	}
	var out []api.Refusal
	for _, option := range typeSet(c.Backends).interruptions(c.Old, c.New) {
		out = append(out, api.Refusal{Reason: fmt.Sprintf("backend.%s changes: packets stop, since %s", option,
			c.Backends[c.New.Backend.Type].Interrupts[option]), Way: secondNetworkOrForce, Force: true})
	}
	return out
}

// DropsEncryption reports whether a network's old definition requires encryption, at the latest at the end of a switch,
// and the new one does not.
func DropsEncryption(old, now registry.Network) bool {
	return Intended(old).Encryption != "" && Intended(now).Encryption == ""
}

// refusedEncryption returns a refusal if the new definition no longer requires encryption.
func refusedEncryption(old, now registry.Network) []api.Refusal {
	if !DropsEncryption(old, now) {
		return nil
	}
	return []api.Refusal{{Reason: "the network would no longer require encryption",
		Way: fmt.Sprintf("keep encryption = %q and a backend that encrypts", Intended(old).Encryption), Force: true}}
}

// refusedPools returns a refusal for each pool that takes the way to addresses of the Internet from hosts.
func refusedPools(old, plan registry.Plan) (out []api.Refusal) {
	for _, p := range plan.Prefixes() {
		isOld := func(o netip.Prefix) bool { return registry.Contains(o, p) }
		if registry.IsPublic(p) && !slices.ContainsFunc(old.Prefixes(), isOld) {
			out = append(out, api.Refusal{Reason: fmt.Sprintf("pool %s contains public addresses, which hosts could no longer "+
				"reach", p), Way: "choose a private pool, or force it when these addresses are your own", Force: true})
		}
	}
	return out
}

// refusedReservations returns a refusal if reservations would become void in a plan.
func refusedReservations(reservations []registry.Reservation, plan registry.Plan) []api.Refusal {
	var void []string
	for _, r := range reservations {
		if isVoid(r, plan) {
			void = append(void, fmt.Sprintf("%s (for %s)", r.Subnet, cmp.Or(r.Node, r.NodeID)))
		}
	}
	if len(void) == 0 {
		return nil
	}
	return []api.Refusal{{Reason: fmt.Sprintf("the reservation of %s would be void", FirstFew(void)),
		Way: "remove it first, and reserve a subnet that stays", Force: true}}
}

// refusedNeighbours returns the conflicts of the new definition with other networks that the old one did not have. A
// host can take part in only one of two networks that conflict.
func refusedNeighbours(types typeSet, old, now registry.Network, others []registry.Network) (out []api.Refusal) {
	refuse := func(way, format string, args ...any) {
		out = append(out, api.Refusal{Reason: fmt.Sprintf(format, args...) + ": a host can take part in one of them only",
			Way: way, Force: true})
	}
	for _, o := range others {
		if o.Name == now.Name {
			continue
		}
		for _, mine := range now.Plan.Prefixes() {
			for _, theirs := range o.Plan.Prefixes() {
				if mine.Overlaps(theirs) && !slices.ContainsFunc(old.Plan.Prefixes(), theirs.Overlaps) {
					refuse("choose a pool that is free", "pool %s overlaps %s of network %s", mine, theirs, o.Name)
				}
			}
		}
		for _, mine := range types.ports(now) {
			for _, theirs := range types.ports(o) {
				if mine.Collides(theirs) && !slices.ContainsFunc(types.ports(old), theirs.Collides) {
					refuse("choose another in the backend's options", "it needs %s", mine.Against(theirs, o.Name))
				}
			}
		}
	}
	return out
}

// ErrNotDefinable means that the network of a configuration block conflicts with another network.
var ErrNotDefinable = errors.New("the network is not defined by its block")

// CheckBlock returns an error if a host must not define n, the network of its configuration block, because it conflicts
// with one of others, the networks that are defined. `leno network apply` without -force refuses it for the same
// reasons. The error wraps ErrNotDefinable.
func CheckBlock(n registry.Network, others []registry.Network, kinds map[string]backend.Type) error {
	var reasons []string
	for _, r := range refusedNeighbours(kinds, registry.Network{}, n, others) {
		reasons = append(reasons, fmt.Sprintf("%s; %s", r.Reason, r.Way))
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; or define it with `leno network apply -force`", ErrNotDefinable,
		strings.Join(reasons, "; "))
}
