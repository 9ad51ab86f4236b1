package agent

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

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// change is one definition taking the place of another. What it means is
// decided here and nowhere else, from values alone.
type change struct {
	old          registry.Network // the zero value when there is none
	new          registry.Network // effective
	leases       []registry.Lease // of old, sorted by slot
	bad          []registry.BadRecord
	reservations []registry.Reservation
	left         registry.ReservationSet // of a network that is not there
	others       []registry.Network      // the store's, old among them or not
	kinds        map[string]backend.Type
}

// What an operator can do where a change is refused.
const (
	wayAside  = "define a second network with the new values, move the containers to it, then delete this one"
	wayWindow = "define a second network with the new values and move the containers to it, or force it when packets may stop"
)

// outOfRange is the misfit of a slot that is no longer given out.
const outOfRange = "is outside the new range"

// minMTU6 is what every link must carry for IPv6 (RFC 8200).
const minMTU6 = 1280

// plan says what would change, for every host, and what speaks against it: a
// change that takes a subnet or packets from a host that holds a lease is
// refused.
func (c change) plan() api.NetworkPlan {
	p := api.NetworkPlan{Name: c.new.Name, Action: api.ActionCreate, ModifyIndex: c.old.ModifyIndex,
		Changes: c.differences(), Hosts: []api.HostChange{}, Refused: []api.Refusal{}, Reservations: reservations(c.left)}
	if c.exists() {
		p.Action = api.ActionUpdate
		if len(p.Changes) == 0 {
			p.Action = api.ActionNone
			return p
		}
		room := c.room()
		for _, l := range c.leases {
			p.Hosts = append(p.Hosts, api.HostChange{Node: l.Node, Subnet: l.Subnet(), Held: l.Held(), What: c.happens(l, room)})
		}
		p.Refused = append(p.Refused, c.refusedHosts()...)
		p.Refused = append(p.Refused, room.refused()...)
	}
	for _, refusals := range [][]api.Refusal{c.refusedBackend(), c.refusedReservations(), c.refusedNeighbours()} {
		p.Refused = append(p.Refused, refusals...)
	}
	return p
}

func (c change) exists() bool { return c.old.Name != "" }

// differences compares effective values one by one.
func (c change) differences() []api.Change {
	out := []api.Change{}
	from, to := map[string]string{}, c.fields(c.new)
	if c.exists() {
		from = c.fields(c.old)
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

// fields is a network as names and values.
func (c change) fields(n registry.Network) map[string]string {
	out := map[string]string{"backend.type": n.Backend.Type}
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

// options is the backend's effective options; as they stand when this leno
// cannot read them.
func (c change) options(n registry.Network) map[string]json.RawMessage {
	object := n.Backend.Options()
	if kind, ok := c.kinds[n.Backend.Type]; ok {
		if effective, err := kind.Normalize(object); err == nil {
			object = effective
		}
	}
	var out map[string]json.RawMessage
	if json.Unmarshal(object, &out) != nil {
		return nil
	}
	return out
}

// interruptions is the options that change and stop packets, with why.
func (c change) interruptions() map[string]string {
	out := map[string]string{}
	if c.old.Backend.Type != c.new.Backend.Type {
		return out
	}
	from, to := c.options(c.old), c.options(c.new)
	for option, why := range c.kinds[c.new.Backend.Type].Interrupts {
		if string(from[option]) != string(to[option]) {
			out[option] = why
		}
	}
	return out
}

// room is how many subnets of the new plan are free for the hosts that cannot keep
// theirs and have none reserved.
type room struct {
	free      uint64
	held, all int // those hosts: with a lease that is held, and all of them
}

func (c change) room() room {
	var out room
	kept := registry.LeaseSet{Bad: c.bad}
	for _, l := range c.leases {
		if c.misfit(l) == "" {
			l.Slot, _ = c.new.Plan.Slot(l.Subnet()) // a slot of the new plan, or it would not fit
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
	for _, r := range c.reservations {
		if !c.void(r) {
			r.Slot, _ = c.new.Plan.Slot(r.Subnet)
			reserved = append(reserved, r)
		}
	}
	out.free = registry.Free(c.new.Plan, kept, reserved)
	return out
}

// reservedFor is the subnet of the new plan that is reserved for the host, if no other
// live host is on it.
func (c change) reservedFor(l registry.Lease) (netip.Prefix, bool) {
	host := registry.Claim{Node: l.Node, NodeID: l.NodeID}
	i := slices.IndexFunc(c.reservations, func(r registry.Reservation) bool {
		return r.For(host) && !c.void(r) &&
			!slices.ContainsFunc(c.leases, func(o registry.Lease) bool { return o.Held() && slices.Contains(o.Subnets, r.Subnet) })
	})
	if i < 0 {
		return netip.Prefix{}, false
	}
	return c.reservations[i].Subnet, true
}

// elsewhere is what becomes of a host that cannot keep its subnet. Hosts whose lease
// has lapsed come after those that live.
func (r room) elsewhere(l registry.Lease, why string) string {
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

// refused is that living hosts would be left without a subnet.
func (r room) refused() []api.Refusal {
	if uint64(r.held) <= r.free {
		return nil
	}
	return []api.Refusal{{Reason: fmt.Sprintf("hosts that need another subnet: %d, free in the new range: %d; the rest would wait for one", r.held, r.free),
		Way: "make the range larger, or take hosts out of the network before", Force: true}}
}

// happens is what becomes of one host.
func (c change) happens(l registry.Lease, room room) []string {
	var out []string
	if why := c.misfit(l); why != "" {
		if subnet, ok := c.reservedFor(l); ok {
			out = append(out, fmt.Sprintf("takes another subnet, %s, which is reserved for it: %s %s", subnet, l.Subnet(), why))
		} else {
			out = append(out, room.elsewhere(l, why))
		}
	} else {
		kept, lost, gained := c.subnets(l)
		out = append(out, "keeps "+join(kept))
		if c.renamed(l) {
			out = append(out, renames)
		}
		if len(lost) > 0 {
			out = append(out, "loses "+join(lost))
		}
		if len(gained) > 0 {
			out = append(out, "gains "+join(gained))
		}
	}
	if c.old.Backend.Type != c.new.Backend.Type {
		out = append(out, fmt.Sprintf("changes from backend %s to %s: packets stop until its peers have too", c.old.Backend.Type, c.new.Backend.Type))
	}
	stops := c.interruptions()
	for _, option := range slices.Sorted(maps.Keys(stops)) {
		out = append(out, fmt.Sprintf("packets stop for a moment: %s", stops[option]))
	}
	return out
}

// misfit is why the host cannot keep its slot; "" when it can. A lease that
// lacks a family of its slot fits, so does one with a family that goes.
func (c change) misfit(l registry.Lease) string {
	slot, err := c.new.Plan.Slot(l.Subnet())
	if err != nil {
		return "is no subnet of the new pools"
	}
	whole := c.new.Plan.Subnets(slot)
	for _, have := range l.Subnets {
		if want, ok := ofFamily(whole, have.Addr()); ok && want != have {
			return "goes with another subnet of the other family in the new pools"
		}
	}
	if !c.new.Plan.InRange(slot) {
		return outOfRange
	}
	return ""
}

// renames is what happens to a lease that was named by its IPv6 subnet.
const renames = "its lease moves to another key, since IPv4 names it: packets stop until its peers have read that"

// renamed says whether the slot's first subnet is another one.
func (c change) renamed(l registry.Lease) bool {
	slot, err := c.new.Plan.Slot(l.Subnet())
	return err == nil && c.new.Plan.Subnets(slot)[0] != l.Subnet()
}

// subnets sorts the subnets of a lease that fits, and those of its slot.
func (c change) subnets(l registry.Lease) (kept, lost, gained []netip.Prefix) {
	slot, err := c.new.Plan.Slot(l.Subnet())
	if err != nil {
		return nil, l.Subnets, nil
	}
	whole := c.new.Plan.Subnets(slot)
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

func ofFamily(subnets []netip.Prefix, a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(subnets, func(p netip.Prefix) bool { return p.Addr().Is4() == a.Is4() })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return subnets[i], true
}

// held is the leases of living hosts. A lapsed one stands against nothing: its
// host takes another subnet when it returns.
func (c change) held() []registry.Lease {
	return slices.DeleteFunc(slices.Clone(c.leases), func(l registry.Lease) bool { return !l.Held() })
}

// ground is one reason against a change, which several hosts may give.
type ground struct {
	text  string // %s stands for the hosts
	way   string
	force bool
}

// refusedHosts is what speaks against the change on living hosts, each reason
// once with all of its hosts.
func (c change) refusedHosts() []api.Refusal {
	var order []ground
	hosts := map[ground][]string{}
	for _, l := range c.held() {
		for _, g := range c.grounds(l) {
			if !slices.Contains(order, g) {
				order = append(order, g)
			}
			hosts[g] = append(hosts[g], fmt.Sprintf("%s (%s)", l.Node, l.Subnet()))
		}
	}
	var out []api.Refusal
	for _, g := range order {
		out = append(out, api.Refusal{Reason: fmt.Sprintf(g.text, some(hosts[g])), Way: g.way, Force: g.force})
	}
	return out
}

// grounds is what speaks against the change on one host.
func (c change) grounds(l registry.Lease) (out []ground) {
	why := c.misfit(l)
	_, lost, gained := c.subnets(l)
	switch {
	case why == outOfRange:
		out = append(out, ground{"%s would lose the subnet, and containers their addresses: it " + why,
			"leave it in the range, or move the host before: reserve it a subnet that stays and revoke its lease", true})
	case why != "":
		out = append(out, ground{"%s would lose the subnet, and containers their addresses: it " + why, wayAside, true})
	case c.renamed(l):
		out = append(out, ground{"IPv4 would name the lease of %s, which moves to another key: packets stop until peers have read that", wayWindow, true})
	case len(lost) > 0:
		out = append(out, ground{"containers on %s would lose their addresses of one family", wayAside, true})
	}
	for _, p := range c.new.Plan.Prefixes() {
		if slices.ContainsFunc(l.PublicIPs, p.Contains) {
			out = append(out, ground{fmt.Sprintf("pool %s contains the address between hosts of %%s", p),
				"choose a pool that contains no host's address", false})
		}
	}
	for _, s := range gained {
		family := backend.Family(s.Addr())
		self := backend.Peer{PublicIPs: l.PublicIPs}
		if _, ok := self.PublicIP(s.Addr()); c.kinds[c.new.Backend.Type].OwnFamily && !ok {
			out = append(out, ground{fmt.Sprintf("backend %s needs an %s address between hosts, which %%s has not", c.new.Backend.Type, family),
				"give the host one, or use a backend that wraps packets", false})
		}
		if s.Addr().Is6() && l.MTU < minMTU6 {
			out = append(out, ground{fmt.Sprintf("IPv6 needs an MTU of %d, and on %%s it is less", minMTU6), "raise the MTU between hosts", false})
		}
	}
	return out
}

// refusedBackend is what would stop packets on every host.
func (c change) refusedBackend() []api.Refusal {
	if len(c.held()) == 0 {
		return nil
	}
	if c.old.Backend.Type != c.new.Backend.Type {
		return []api.Refusal{{Reason: fmt.Sprintf("backend %s becomes %s: packets stop between hosts that have changed and those that have not",
			c.old.Backend.Type, c.new.Backend.Type), Way: wayWindow, Force: true}}
	}
	var out []api.Refusal
	stops := c.interruptions()
	for _, option := range slices.Sorted(maps.Keys(stops)) {
		out = append(out, api.Refusal{Reason: fmt.Sprintf("backend.%s changes: packets stop, since %s", option, stops[option]), Way: wayWindow, Force: true})
	}
	return out
}

// void says whether the reservation is of no subnet that the new plan gives to hosts.
func (c change) void(r registry.Reservation) bool {
	slot, err := c.new.Plan.Slot(r.Subnet)
	return err != nil || !c.new.Plan.InRange(slot) || c.new.Plan.Subnets(slot)[0] != r.Subnet
}

// refusedReservations is those that would be void.
func (c change) refusedReservations() []api.Refusal {
	var void []string
	for _, r := range c.reservations {
		if c.void(r) {
			void = append(void, fmt.Sprintf("%s (for %s)", r.Subnet, cmp.Or(r.Node, r.NodeID)))
		}
	}
	if len(void) == 0 {
		return nil
	}
	return []api.Refusal{{Reason: fmt.Sprintf("the reservation of %s would be void", some(void)), Way: "remove it first, and reserve a subnet that stays", Force: true}}
}

// refusedNeighbours is what the new definition would share with other networks,
// and the old one did not. A host carries one of two that overlap.
func (c change) refusedNeighbours() []api.Refusal {
	var out []api.Refusal
	for _, o := range c.others {
		if o.Name == c.new.Name {
			continue
		}
		for _, mine := range c.new.Plan.Prefixes() {
			for _, theirs := range o.Plan.Prefixes() {
				if mine.Overlaps(theirs) && !slices.ContainsFunc(c.old.Plan.Prefixes(), theirs.Overlaps) {
					out = append(out, api.Refusal{Reason: fmt.Sprintf("pool %s overlaps %s of network %s: a host can take part in one of them only", mine, theirs, o.Name),
						Way: "choose a pool that is free", Force: true})
				}
			}
		}
		if mine, theirs := c.port(c.new), c.port(o); mine.Collides(theirs) && !c.port(c.old).Collides(theirs) {
			out = append(out, api.Refusal{Reason: fmt.Sprintf("it needs %s: a host can take part in one of them only", mine.Against(theirs, o.Name)),
				Way: "choose another in the backend's options", Force: true})
		}
	}
	return out
}

// errNotDefinable says that another network is in the way of the one a block defines.
var errNotDefinable = errors.New("the network is not defined by its block")

// checkDefinition refuses a network that is about to be defined by a host's own block,
// for the reasons for which `leno network apply` refuses it without -force: it shares
// with one of others, the networks that are defined, what a host can use for one
// network only. The error wraps errNotDefinable.
func checkDefinition(n registry.Network, others []registry.Network, kinds map[string]backend.Type) error {
	var reasons []string
	for _, r := range (change{new: n, others: others, kinds: kinds}).refusedNeighbours() {
		reasons = append(reasons, fmt.Sprintf("%s; %s", r.Reason, r.Way))
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; or define it with `leno network apply -force`", errNotDefinable, strings.Join(reasons, "; "))
}

// port is the one that the network's backend needs.
func (c change) port(n registry.Network) backend.Port {
	return c.kinds[n.Backend.Type].Uses(n.Backend.Options())
}

// some is a list for a sentence, the first few of it.
func some(all []string) string {
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
