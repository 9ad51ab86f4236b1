package definition

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// A Change replaces a network's definition by another. This package alone decides what that means for the hosts, from
// values only.
type Change struct {
	Old          registry.Network // the zero value if the network is new
	New          registry.Network // with all defaults
	Leases       []registry.Lease // of Old, sorted by slot
	BadRecords   []registry.BadRecord
	Reservations []registry.Reservation
	Leftover     []api.Reservation       // reservations in the store for a network that is new
	Others       []registry.Network      // all networks in the store; may include Old
	Backends     map[string]backend.Type // by name, for example "vxlan"

	// Lost means that the store has lost Old, which hosts have in force, or its last change. Leases may then lack hosts.
	// Stored is the ModifyIndex of the version that the store has instead, 0 for none or a deletion.
	Lost   bool
	Stored uint64

	// Declined means that hosts do not follow the definition in the store, whose ModifyIndex is Stored: see
	// registry.Network.Foreign. Old is the one that they have in force.
	Declined bool

	obstacle *api.Refusal // why the network cannot be switched to New, nil if it can
}

// What an operator can do instead of a refused change.
const (
	secondNetwork        = "define a second network with the new values, move the containers to it, then delete this one"
	secondNetworkOrForce = "define a second network with the new values and move the containers to it, or force it when packets may stop"
)

// outOfRange is the error of a slot that is outside the new range.
const outOfRange = "is outside the new range"

// minMTU6 is the smallest MTU in bytes that IPv6 allows on a link (RFC 8200).
const minMTU6 = 1280

// Plan returns what would change, the effect on every host, and the refusals: a change that takes the subnet from a
// host with a held lease, or stops its packets, is refused. A definition that the store has lost is created, although it
// changes the one that hosts have in force.
func (c Change) Plan() api.NetworkPlan {
	p := api.NetworkPlan{Name: c.New.Name, Action: api.ActionCreate, ModifyIndex: c.Version(),
		Changes: c.differences(), Hosts: []api.HostChange{}, Refused: []api.Refusal{}, Reservations: append([]api.Reservation{}, c.Leftover...)}
	if c.exists() {
		switch {
		case c.Lost:
			p.Changes = Change{New: c.New, Backends: c.Backends}.differences()
		case c.redirects() && c.New.Switch != nil:
			p.Action = api.ActionSwitch
		case !c.IsNone(), c.Declined:
			p.Action = api.ActionUpdate
		default:
			p.Action = api.ActionNone
			if c.New.Switch == nil {
				return p
			}
		}
		room := c.capacity()
		for _, l := range c.Leases {
			p.Hosts = append(p.Hosts, api.HostChange{Node: l.Node, Subnet: l.Subnet(), Held: l.Held(), What: c.effects(l, room)})
		}
		p.Refused = append(p.Refused, c.refusedHosts()...)
		p.Refused = append(p.Refused, room.refused()...)
	}
	for _, refusals := range [][]api.Refusal{c.refusedSwitch(), c.refusedBackend(), c.refusedAddresses(), c.refusedReservations(), c.refusedNeighbours()} {
		p.Refused = append(p.Refused, refusals...)
	}
	return p
}

func (c Change) exists() bool { return c.Old.Name != "" }

// IsNone reports whether New says the same as Old. It does not if only one of them requires encryption during a switch.
func (c Change) IsNone() bool {
	return c.exists() && len(c.differences()) == 0 && !c.redirects() && c.New.Encryption == c.Old.Encryption
}

// Version returns the ModifyIndex of the definition in the store, 0 if there is none or a deletion.
func (c Change) Version() uint64 {
	if c.Lost || c.Declined {
		return c.Stored
	}
	return c.Old.ModifyIndex
}

// differences compares the effective values of the definitions.
func (c Change) differences() []api.Change {
	out := []api.Change{}
	from, to := map[string]string{}, c.fields(Intended(c.New))
	if c.exists() {
		from = c.fields(Intended(c.Old))
	}
	all := maps.Clone(from)
	maps.Copy(all, to)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if from[name] != to[name] {
			out = append(out, api.Change{Field: name, From: from[name], To: to[name]})
		}
	}
	return out
}

// fields returns the values of a definition by name, for example "ipv4.prefix".
func (c Change) fields(n registry.Network) map[string]string {
	out := map[string]string{"backend.type": n.Backend.Type}
	if n.Encryption != "" {
		out["encryption"] = n.Encryption
	}
	for name, value := range c.options(n) {
		text := string(value)
		if json.Unmarshal(value, &text) != nil || string(value) == "null" {
			text = string(value)
		}
		out["backend."+name] = text
	}
	for _, p := range n.Plan {
		family := "ipv4."
		if p.Prefix.Addr().Is6() {
			family = "ipv6."
		}
		out[family+"prefix"] = p.Prefix.String()
		out[family+"subnet_len"] = strconv.Itoa(p.SubnetLen)
		out[family+"min"] = p.Min.String()
		out[family+"max"] = p.Max.String()
	}
	return out
}

// options returns the effective options of the network's backend, or the options as they are stored if this version of
// leno does not know the backend.
func (c Change) options(n registry.Network) optionSet {
	return parseOptions(c.effective(n.Backend))
}

// interruptions returns the changed options that interrupt traffic, with the reason for each.
func (c Change) interruptions() map[string]string {
	out := map[string]string{}
	if c.Old.Backend.Type != c.New.Backend.Type {
		return out
	}
	from, to := c.running(carriage.Of(c.Old.Carriage()).Current), c.running(carriage.Of(c.New.Carriage()).Current)
	for option, why := range c.Backends[c.New.Backend.Type].Interrupts {
		if string(from[option]) != string(to[option]) {
			out[option] = why
		}
	}
	return out
}

// capacity compares the free subnets of the new plan with the hosts that need one: those that cannot keep theirs and
// have none reserved.
type capacity struct {
	free      uint64
	held, all int // hosts that need a subnet: those with a held lease, and all
}

func (c Change) capacity() capacity {
	var out capacity
	kept := registry.LeaseSet{Bad: c.BadRecords}
	for _, l := range c.Leases {
		if c.subnetError(l) == "" {
			l.Slot, _ = c.New.Plan.Slot(l.Subnet()) // a slot of the new plan, or it would not fit
			kept.Leases = append(kept.Leases, l)
			continue
		}
		if _, ok := c.reservedFor(l); ok {
			continue
		}
		out.all++
		if l.Held() {
			out.held++
		}
	}
	var reserved []registry.Reservation
	for _, r := range c.Reservations {
		if !c.isVoid(r) {
			r.Slot, _ = c.New.Plan.Slot(r.Subnet)
			reserved = append(reserved, r)
		}
	}
	out.free = registry.Free(c.New.Plan, kept, reserved)
	return out
}

// reservedFor returns the subnet of the new plan that is reserved for the lease's host, unless another host holds it.
func (c Change) reservedFor(l registry.Lease) (netip.Prefix, bool) {
	host := registry.Claim{Node: l.Node, NodeID: l.NodeID}
	i := slices.IndexFunc(c.Reservations, func(r registry.Reservation) bool {
		return r.For(host) && !c.isVoid(r) &&
			!slices.ContainsFunc(c.Leases, func(o registry.Lease) bool { return o.Held() && slices.Contains(o.Subnets, r.Subnet) })
	})
	if i < 0 {
		return netip.Prefix{}, false
	}
	return c.Reservations[i].Subnet, true
}

// relocation describes what happens to a host that cannot keep its subnet because of why. Hosts with a held lease come
// before those whose lease has lapsed.
func (r capacity) relocation(l registry.Lease, why string) string {
	hosts := r.held
	if !l.Held() {
		hosts = r.all
	}
	switch {
	case uint64(hosts) <= r.free:
		return fmt.Sprintf("takes another subnet: %s %s", l.Subnet(), why)
	case r.free == 0:
		return fmt.Sprintf("finds no other subnet: %s %s, in which none is free", l.Subnet(), why)
	}
	return fmt.Sprintf("may find no other subnet: %s %s, in which %d of %d hosts would find one", l.Subnet(), why, r.free, hosts)
}

// refused returns a refusal if hosts with a held lease would be left without a subnet.
func (r capacity) refused() []api.Refusal {
	if uint64(r.held) <= r.free {
		return nil
	}
	return []api.Refusal{{Reason: fmt.Sprintf("hosts that need another subnet: %d, free in the new range: %d; the rest would wait for one", r.held, r.free),
		Way: "make the range larger, or take hosts out of the network before", Force: true}}
}

// effects describes what the change does to one host.
func (c Change) effects(l registry.Lease, room capacity) []string {
	var out []string
	if why := c.subnetError(l); why != "" {
		if subnet, ok := c.reservedFor(l); ok {
			out = append(out, fmt.Sprintf("takes another subnet, %s, which is reserved for it: %s %s", subnet, l.Subnet(), why))
		} else {
			out = append(out, room.relocation(l, why))
		}
	} else {
		kept, lost, gained := c.compareSubnets(l)
		out = append(out, "keeps "+join(kept))
		if c.isRenamed(l) {
			out = append(out, renamed)
		}
		if len(lost) > 0 {
			out = append(out, "loses "+join(lost))
		}
		if len(gained) > 0 {
			out = append(out, "gains "+join(gained))
			out = append(out, c.doubts(l, gained)...)
		}
	}
	if what := c.switching(l); what != nil {
		return append(out, what...)
	}
	if c.Old.Backend.Type != c.New.Backend.Type {
		out = append(out, fmt.Sprintf("changes from backend %s to %s: packets stop until its peers have too", c.Old.Backend.Type, c.New.Backend.Type))
	}
	stops := c.interruptions()
	for _, option := range slices.Sorted(maps.Keys(stops)) {
		out = append(out, fmt.Sprintf("packets stop for a moment: %s", stops[option]))
	}
	return out
}

// subnetError returns why the host cannot keep its slot, or "" if it can. A lease may lack a family of its slot, or
// have one that the new definition removes.
func (c Change) subnetError(l registry.Lease) string {
	slot, err := c.New.Plan.Slot(l.Subnet())
	if err != nil {
		return "is no subnet of the new pools"
	}
	whole := c.New.Plan.Subnets(slot)
	for _, have := range l.Subnets {
		if want, ok := ofFamily(whole, have.Addr()); ok && want != have {
			return "goes with another subnet of the other family in the new pools"
		}
	}
	if !c.New.Plan.InRange(slot) {
		return outOfRange
	}
	return ""
}

// renamed is the effect on a lease whose key has its IPv6 subnet.
const renamed = "its lease moves to another key, since IPv4 names it: packets stop until its peers have read that"

// isRenamed reports whether the first subnet of the lease's slot changes.
func (c Change) isRenamed(l registry.Lease) bool {
	slot, err := c.New.Plan.Slot(l.Subnet())
	return err == nil && c.New.Plan.Subnets(slot)[0] != l.Subnet()
}

// compareSubnets compares the subnets of a lease with those of its slot in the new plan.
func (c Change) compareSubnets(l registry.Lease) (kept, lost, gained []netip.Prefix) {
	slot, err := c.New.Plan.Slot(l.Subnet())
	if err != nil {
		return nil, l.Subnets, nil
	}
	whole := c.New.Plan.Subnets(slot)
	for _, s := range l.Subnets {
		if slices.Contains(whole, s) {
			kept = append(kept, s)
		} else {
			lost = append(lost, s)
		}
	}
	for _, s := range whole {
		if !slices.Contains(l.Subnets, s) {
			gained = append(gained, s)
		}
	}
	return kept, lost, gained
}

// uncertainIPv6 is what a plan says of a host that may have IPv6 switched off. Whether it has is not in its lease.
const uncertainIPv6 = "has no IPv6 address between hosts: if IPv6 is switched off on it, its containers get IPv4 alone"

// doubts returns why a host may not carry the subnets that it gains. A backend that does not wrap packets refuses the
// change instead.
func (c Change) doubts(l registry.Lease, gained []netip.Prefix) []string {
	kind := c.Backends[c.New.Backend.Type]
	self := backend.Peer{PublicIPs: l.PublicIPs}
	_, has := self.PublicIP(netip.IPv6Unspecified())
	gainsIPv6 := slices.ContainsFunc(gained, func(p netip.Prefix) bool { return p.Addr().Is6() })
	if !gainsIPv6 || has || !kind.Device || kind.OwnFamily {
		return nil
	}
	return []string{uncertainIPv6}
}

func ofFamily(subnets []netip.Prefix, a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(subnets, func(p netip.Prefix) bool { return p.Addr().Is4() == a.Is4() })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return subnets[i], true
}

// heldLeases returns the leases that are held. A lapsed lease is no reason to refuse a change: its host takes another
// subnet when it returns.
func (c Change) heldLeases() []registry.Lease {
	return slices.DeleteFunc(slices.Clone(c.Leases), func(l registry.Lease) bool { return !l.Held() })
}

// A refusal is one reason against a change. It may apply to several hosts.
type refusal struct {
	text  string // %s stands for the hosts
	way   string
	force bool
}

// refusedHosts returns the refusals of all hosts with a held lease, each reason once with its hosts.
func (c Change) refusedHosts() []api.Refusal {
	var order []refusal
	hosts := map[refusal][]string{}
	for _, l := range c.heldLeases() {
		for _, g := range c.refusals(l) {
			if !slices.Contains(order, g) {
				order = append(order, g)
			}
			hosts[g] = append(hosts[g], fmt.Sprintf("%s (%s)", l.Node, l.Subnet()))
		}
	}
	var out []api.Refusal
	for _, g := range order {
		out = append(out, api.Refusal{Reason: fmt.Sprintf(g.text, FirstFew(hosts[g])), Way: g.way, Force: g.force})
	}
	return out
}

// refusedAddresses returns a refusal if hosts share a public address, and the new backend cannot tell them apart.
func (c Change) refusedAddresses() []api.Refusal {
	target := Intended(c.New).Backend.Type
	if !c.Backends[c.Old.Backend.Type].SharedAddress || c.Backends[target].SharedAddress {
		return nil
	}
	first := map[netip.Addr]string{}
	var hosts []string
	for _, l := range c.Leases {
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
	return []api.Refusal{{Reason: fmt.Sprintf("backend %s needs a public address for each host, and others have that of %s", target, FirstFew(hosts)),
		Way: "give each host an address of its own"}}
}

// refusals returns the reasons against the change on one host.
func (c Change) refusals(l registry.Lease) (out []refusal) {
	why := c.subnetError(l)
	_, lost, gained := c.compareSubnets(l)
	switch {
	case why == outOfRange:
		out = append(out, refusal{"%s would lose the subnet, and containers their addresses: it " + why,
			"leave it in the range, or move the host before: reserve it a subnet that stays and revoke its lease", true})
	case why != "":
		out = append(out, refusal{"%s would lose the subnet, and containers their addresses: it " + why, secondNetwork, true})
	case c.isRenamed(l):
		out = append(out, refusal{"IPv4 would name the lease of %s, which moves to another key: packets stop until peers have read that", secondNetworkOrForce, true})
	case len(lost) > 0:
		out = append(out, refusal{"containers on %s would lose their addresses of one family", secondNetwork, true})
	}
	if c.cutsOff(l) {
		out = append(out, refusal{"%s would be cut off: each " + cannotFollow,
			"move these hosts to leno first, or force it when packets to and from them may stop", true})
	}
	for _, p := range c.New.Plan.Prefixes() {
		if slices.ContainsFunc(l.PublicIPs, p.Contains) {
			out = append(out, refusal{fmt.Sprintf("pool %s contains the address between hosts of %%s", p),
				"choose a pool that contains no host's address", false})
		}
	}
	for _, kind := range kindsOf(c.New) {
		out = append(out, c.refusedFamilies(l, kind, gained)...)
	}
	return out
}

// kindsOf returns the types of the network's backends, two during a switch to a backend of another type.
func kindsOf(n registry.Network) []string {
	out := []string{n.Backend.Type}
	if n.Switch != nil && n.Switch.To.Type != n.Backend.Type {
		out = append(out, n.Switch.To.Type)
	}
	return out
}

// refusedFamilies returns the reasons why a host cannot carry the families of the new plan over one of the backends, of
// the given type. A backend that the network has already is judged by the subnets that the host gains, so that nothing
// that works today is refused.
func (c Change) refusedFamilies(l registry.Lease, kind string, gained []netip.Prefix) (out []refusal) {
	prefixes, mtu, way := gained, l.MTU, "raise the MTU between hosts"
	if mtu == backend.MTUOption(c.Old.Backend.Options()) {
		way = "change the option mtu of the backend before"
	}
	little := fmt.Sprintf("IPv6 needs an MTU of %d, and on %%s it is less", minMTU6)
	if !slices.Contains(kindsOf(c.Old), kind) {
		prefixes, mtu = c.New.Plan.Prefixes(), c.mtuOver(l, kind)
		little = fmt.Sprintf("IPv6 needs an MTU of %d, and backend %s leaves less on %%s", minMTU6, kind)
	}
	self := backend.Peer{PublicIPs: l.PublicIPs}
	for _, p := range prefixes {
		if _, ok := self.PublicIP(p.Addr()); c.Backends[kind].OwnFamily && !ok {
			out = append(out, refusal{fmt.Sprintf("backend %s needs an %s address between hosts, which %%s has not", kind, backend.Family(p.Addr())),
				"give the host one, or use a backend that wraps packets", false})
		}
		if p.Addr().Is6() && mtu < minMTU6 {
			out = append(out, refusal{little, way, false})
		}
	}
	return out
}

// refusedBackend returns the refusals of backend changes that interrupt traffic on every host.
func (c Change) refusedBackend() []api.Refusal {
	if len(c.heldLeases()) == 0 || !c.isCarried() || c.obstacle != nil || c.New.Switch != nil {
		return nil
	}
	if c.Old.Backend.Type != c.New.Backend.Type {
		return []api.Refusal{{Reason: fmt.Sprintf("backend %s becomes %s: packets stop between hosts that have changed and those that have not",
			c.Old.Backend.Type, c.New.Backend.Type), Way: secondNetworkOrForce, Force: true}}
	}
	var out []api.Refusal
	stops := c.interruptions()
	for _, option := range slices.Sorted(maps.Keys(stops)) {
		out = append(out, api.Refusal{Reason: fmt.Sprintf("backend.%s changes: packets stop, since %s", option, stops[option]), Way: secondNetworkOrForce, Force: true})
	}
	return out
}

// isVoid reports whether the new plan does not assign the reserved subnet to hosts.
func (c Change) isVoid(r registry.Reservation) bool {
	slot, err := c.New.Plan.Slot(r.Subnet)
	return err != nil || !c.New.Plan.InRange(slot) || c.New.Plan.Subnets(slot)[0] != r.Subnet
}

// refusedReservations returns a refusal if reservations would become void.
func (c Change) refusedReservations() []api.Refusal {
	var void []string
	for _, r := range c.Reservations {
		if c.isVoid(r) {
			void = append(void, fmt.Sprintf("%s (for %s)", r.Subnet, cmp.Or(r.Node, r.NodeID)))
		}
	}
	if len(void) == 0 {
		return nil
	}
	return []api.Refusal{{Reason: fmt.Sprintf("the reservation of %s would be void", FirstFew(void)), Way: "remove it first, and reserve a subnet that stays", Force: true}}
}

// refusedNeighbours returns the conflicts of the new definition with other networks that the old one did not have. A
// host can take part in only one of two networks that conflict.
func (c Change) refusedNeighbours() []api.Refusal {
	var out []api.Refusal
	for _, o := range c.Others {
		if o.Name == c.New.Name {
			continue
		}
		for _, mine := range c.New.Plan.Prefixes() {
			for _, theirs := range o.Plan.Prefixes() {
				if mine.Overlaps(theirs) && !slices.ContainsFunc(c.Old.Plan.Prefixes(), theirs.Overlaps) {
					out = append(out, api.Refusal{Reason: fmt.Sprintf("pool %s overlaps %s of network %s: a host can take part in one of them only", mine, theirs, o.Name),
						Way: "choose a pool that is free", Force: true})
				}
			}
		}
		for _, mine := range c.ports(c.New) {
			for _, theirs := range c.ports(o) {
				if mine.Collides(theirs) && !slices.ContainsFunc(c.ports(c.Old), theirs.Collides) {
					out = append(out, api.Refusal{Reason: fmt.Sprintf("it needs %s: a host can take part in one of them only", mine.Against(theirs, o.Name)),
						Way: "choose another in the backend's options", Force: true})
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
	for _, r := range (Change{New: n, Others: others, Backends: kinds}).refusedNeighbours() {
		reasons = append(reasons, fmt.Sprintf("%s; %s", r.Reason, r.Way))
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; or define it with `leno network apply -force`", ErrNotDefinable, strings.Join(reasons, "; "))
}

// ports returns the ports that the network's backends need, and the one that its next keys will need if they are rotated
// periodically.
func (c Change) ports(n registry.Network) []backend.Port {
	def := carriage.Of(n.Carriage())
	out := def.Ports(c.Backends)
	if c.Backends[n.Backend.Type].Rotates(def.Current.Options) == 0 {
		return out
	}
	if next, err := rotated(def, c.Backends); err == nil {
		out = append(out, next.Next.Port(c.Backends))
	}
	return out
}

// FirstFew joins a list for a sentence. Of a long list it names the first five and counts the rest.
func FirstFew(all []string) string {
	const most = 5
	if len(all) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
	}
	return strings.Join(all, ", ")
}

func join(prefixes []netip.Prefix) string {
	var out []string
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return strings.Join(out, ", ")
}
