package definition

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/switchover"
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

	obstacle []api.Refusal // why the network cannot be switched to New, nil if it can
}

// Plan returns what would change, the effect on every host, and the refusals: a change that takes the subnet from a
// host with a held lease, or stops its packets, is refused. A definition that the store has lost is created, although
// it changes the one that hosts have in force.
func (c Change) Plan() api.NetworkPlan {
	p := api.NetworkPlan{Name: c.New.Name, Action: api.ActionCreate, ModifyIndex: c.Version(),
		Changes: c.differences(), Hosts: []api.HostChange{}, Refused: []api.Refusal{},
		Reservations: append([]api.Reservation{}, c.Leftover...)}
	if c.exists() {
		switch {
		case c.Lost:
			p.Changes = Change{New: c.New, Backends: c.Backends}.differences()
		case c.New.Switch != nil && redirects(c.Old.Switch, c.New.Switch):
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
	p.Refused = append(p.Refused, slices.Concat(c.obstacle, c.refusedBackend(), refusedEncryption(c.Old, c.New),
		refusedPools(c.Old.Plan, c.New.Plan),
		refusedAddresses(c.Leases, c.Backends[c.Old.Backend.Type], c.Backends[Intended(c.New).Backend.Type]),
		refusedReservations(c.Reservations, c.New.Plan), refusedNeighbours(c.Backends, c.Old, c.New, c.Others))...)
	return p
}

func (c Change) exists() bool { return c.Old.Name != "" }

// IsNone reports whether New says the same as Old. It does not if only one of them requires encryption during a switch.
func (c Change) IsNone() bool {
	return c.exists() && len(c.differences()) == 0 && !redirects(c.Old.Switch, c.New.Switch) &&
		c.New.Encryption == c.Old.Encryption
}

// redirects reports whether a switch begins, ends or changes its direction.
func redirects(old, now *registry.Switch) bool {
	return (old == nil) != (now == nil) || now != nil && old.Direction != now.Direction
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
	from, to := Intended(c.Old), Intended(c.New)
	to.Backend = WithDefaults(to.Backend, c.Backends)
	if c.exists() {
		from.Backend = WithDefaults(from.Backend, c.Backends)
	}
	out := []api.Change{}
	for _, d := range registry.Differences(from, to) {
		out = append(out, api.Change{Field: d.Field, From: d.A, To: d.B})
	}
	return out
}

// interruptions returns the changed options of a network's backend that interrupt traffic, sorted.
func (t typeSet) interruptions(old, now registry.Network) []string {
	from, to := carriage.Of(old.Carriage()).Current, carriage.Of(now.Carriage()).Current
	if from.Type != to.Type {
		return nil
	}
	return t.running(from).differing(t.running(to), t.interrupting(to.Type))
}

// renamed is the effect on a lease whose key has its IPv6 subnet.
const renamed = "its lease moves to another key, since IPv4 names it: packets stop until its peers have read that"

// effects describes what the change does to one host.
func (c Change) effects(l registry.Lease, room capacity) []string {
	var out []string
	p := place(l, c.New.Plan)
	subnet, reserved := c.reservedFor(l)
	switch {
	case p.reason != "" && reserved:
		out = append(out, fmt.Sprintf("takes another subnet, %s, which is reserved for it: %s %s", subnet, l.Subnet(),
			p.reason))
	case p.reason != "":
		out = append(out, room.relocation(l, p.reason))
	default:
		out = append(out, "keeps "+registry.Join(p.kept))
		if p.renamed {
			out = append(out, renamed)
		}
		if len(p.lost) > 0 {
			out = append(out, "loses "+registry.Join(p.lost))
		}
		if len(p.gained) > 0 && !l.Foreign {
			out = append(out, "gains "+registry.Join(p.gained))
			out = append(out, doubts(l, p.gained, c.Backends[c.New.Backend.Type])...)
		}
	}
	if what := switching(l, c.Old, c.New, c.Backends); what != nil {
		return append(out, what...)
	}
	if c.Old.Backend.Type != c.New.Backend.Type {
		out = append(out, fmt.Sprintf("changes from backend %s to %s: packets stop until its peers have too",
			c.Old.Backend.Type, c.New.Backend.Type))
	}
	for _, option := range typeSet(c.Backends).interruptions(c.Old, c.New) {
		out = append(out, fmt.Sprintf("packets stop for a moment: %s", c.Backends[c.New.Backend.Type].Interrupts[option]))
	}
	return out
}

// uncertainIPv6 is what a plan says of a host that may have IPv6 switched off. Whether it has is not in its lease.
const uncertainIPv6 = "has no IPv6 address between hosts: if IPv6 is switched off on it, its containers get IPv4 alone"

// doubts returns why a host may not carry the subnets that it gains. A backend that does not wrap packets refuses the
// change instead.
func doubts(l registry.Lease, gained []netip.Prefix, kind backend.Type) []string {
	_, has := backend.Peer{PublicIPs: l.PublicIPs}.PublicIP(netip.IPv6Unspecified())
	gainsIPv6 := slices.ContainsFunc(gained, func(p netip.Prefix) bool { return p.Addr().Is6() })
	if !gainsIPv6 || has || !kind.Device || kind.OwnFamily {
		return nil
	}
	return []string{uncertainIPv6}
}

// switching describes what a switch from an old definition to a new one does to a host, and how far the host has moved.
func switching(l registry.Lease, old, now registry.Network, types typeSet) []string {
	def := carriage.Of(now.Carriage())
	if def.Next == nil {
		return nil
	}
	to, moved := nameIn(def, def.Target(), types), def.IsMoved(l.Backend.Options())
	ready, fault := def.Target().Ready(l.Backend.Type, l.Backend.Options())
	switch {
	case l.Foreign && !moved:
		return []string{fmt.Sprintf("stays with %s: it %s", l.Backend.Type, cannotFollow)}
	case old.Switch == nil:
		out := []string{fmt.Sprintf("switches from %s to %s: it has both until all hosts send over %[2]s",
			nameIn(def, def.Current, types), to)}
		if !l.Held() {
			out = append(out, "is away: the switch waits until it is back, or until its lease expires")
		}
		mtu := min(l.MTU, types.mtuOver(l, old, def.Next.Type)) // the smaller MTU of the two backends
		if option := backend.MTUOption(def.Next.Options); option != 0 {
			mtu = min(mtu, option)
		}
		if mtu != l.MTU {
			out = append(out, fmt.Sprintf("its containers' MTU becomes %d instead of %d: those that run keep theirs, and the "+
				"host tells them what fits", mtu, l.MTU))
		}
		return out
	case moved:
		return []string{"sends to all hosts over " + to}
	case ready:
		return []string{"receives over " + to}
	case fault != "":
		return []string{fmt.Sprintf("cannot use %s: %s", to, fault)}
	case !l.Held():
		return []string{fmt.Sprintf("has not prepared %s: it is away", to)}
	}
	return []string{fmt.Sprintf("has not prepared %s yet; an agent older than this one cannot", to)}
}

// nameIn returns the type of a backend of a definition, with its port where both backends of the switch have the same
// type.
func nameIn(def switchover.Definition, spec switchover.Spec, types typeSet) string {
	port := spec.Port(types)
	if def.Next == nil || def.Current.Type != def.Next.Type || port.Number == 0 {
		return spec.Type
	}
	return fmt.Sprintf("%s (%s)", spec.Type, port)
}

// mtuOver returns the overlay's MTU on a host over a backend that network old does not have yet, derived from the size
// of the backends' headers alone, regardless of its option mtu. Of a network that is being switched, the lease has the
// smaller MTU of two backends.
func (t typeSet) mtuOver(l registry.Lease, old registry.Network, kind string) int {
	if len(l.PublicIPs) == 0 {
		return l.MTU
	}
	taken := func(kind string) int {
		if f := t[kind].Overhead; f != nil {
			return f(l.PublicIPs[0])
		}
		return 0
	}
	most := 0
	for _, has := range typesOf(old) {
		most = max(most, taken(has))
	}
	return l.MTU + most - taken(kind)
}

// typesOf returns the types of the network's backends, two during a switch to a backend of another type.
func typesOf(n registry.Network) []string {
	if n.Switch != nil && n.Switch.To.Type != n.Backend.Type {
		return []string{n.Backend.Type, n.Switch.To.Type}
	}
	return []string{n.Backend.Type}
}
