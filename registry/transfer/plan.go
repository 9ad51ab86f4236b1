package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/registry"
)

// plan reads both stores and fills in what there is to do. It writes nothing.
func (c *copier) plan(ctx context.Context, report *Report) error {
	set, _, err := c.from.WatchNetworks(ctx, 0)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	for _, name := range c.o.Networks {
		if _, ok := set.Find(name); ok {
			continue
		}
		if reason, bad := set.Unusable(name); bad {
			return fmt.Errorf("source: network %s: %s", name, reason)
		}
		return fmt.Errorf("source: network %s: %w", name, registry.ErrNetworkNotFound)
	}
	for _, d := range set.Deleted {
		if c.isWanted(d.Network) {
			reason := "the network was deleted at " + d.Time.UTC().Format(time.RFC3339)
			report.Records = append(report.Records, Record{Network: d.Network, Outcome: Outcome{Skipped, reason}})
		}
	}
	for _, b := range set.Bad {
		if c.isWanted(b.Network) {
			report.addBad(b.Network, b)
		}
	}
	for _, n := range set.Networks {
		if !c.isWanted(n.Name) {
			continue
		}
		planned, bad, err := c.planNetwork(ctx, n)
		if err != nil {
			return err
		}
		report.Networks = append(report.Networks, planned)
		for _, b := range bad {
			report.addBad(n.Name, b)
		}
	}
	return nil
}

func (r *Report) addBad(network string, b registry.BadRecord) {
	b = b.Shortened()
	r.Records = append(r.Records, Record{network, b.Key, Outcome{Failed, b.Reason}})
}

// planNetwork returns what there is to do for one network of the source, and the source's unusable records.
func (c *copier) planNetwork(ctx context.Context, n registry.Network) (Network, []registry.BadRecord, error) {
	out := Network{Name: n.Name, Outcome: toCopy, Reservations: []Reservation{}, Leases: []Lease{}, source: n}
	leases, _, err := c.from.WatchLeases(ctx, n, 0)
	if err != nil {
		return out, nil, fmt.Errorf("source: %w", err)
	}
	reservations, _, err := c.from.WatchReservations(ctx, n, 0)
	if err != nil {
		return out, nil, fmt.Errorf("source: %w", err)
	}
	bad := slices.Concat(leases.Bad, reservations.Bad)
	for _, r := range reservations.Reservations {
		planned := Reservation{Subnet: r.Subnet.String(), Host: r.Host(), Outcome: toCopy, source: r}
		if _, err := registry.CheckNewReservation(n, r); err != nil {
			planned.Outcome = Outcome{Failed, err.Error()}
		}
		isOther := func(l registry.Lease) bool {
			return l.Slot == r.Slot && !r.For(registry.Claim{Node: l.Node, NodeID: l.NodeID})
		}
		if i := slices.IndexFunc(leases.Leases, isOther); i >= 0 {
			planned.after = leases.Leases[i].Subnet().String()
		}
		out.Reservations = append(out.Reservations, planned)
	}
	for _, l := range leases.Leases {
		out.Leases = append(out.Leases, c.planLease(l, leases.Leases))
	}
	view, err := c.compare(ctx, &out)
	if err != nil {
		return out, bad, err
	}
	if out.Result == Failed {
		reason := "the network is not copied"
		for i := range out.Reservations {
			out.Reservations[i].skip(reason)
		}
		for i := range out.Leases {
			out.Leases[i].skip(reason)
		}
		return out, bad, nil
	}
	for i := range out.Reservations {
		out.Reservations[i].compare(view)
	}
	isObsolete := func(there registry.Lease) bool {
		return slices.ContainsFunc(out.Leases, func(l Lease) bool {
			return l.Result == ToCopy && l.source.Held() && l.source.Slot != there.Slot &&
				!there.Held() && c.claim(l.source).Same(there)
		})
	}
	for _, there := range view.Leases {
		if isObsolete(there) {
			out.obsolete = append(out.obsolete, there)
		}
	}
	view.Leases = slices.DeleteFunc(view.Leases, isObsolete)
	for i := range out.Leases {
		c.judge(&out.Leases[i], view)
	}
	out.holdBack()
	return out, bad, nil
}

// planLease returns a lease of the source, skipped if its host cannot have it in the destination. all are the leases of
// the network.
func (c *copier) planLease(l registry.Lease, all []registry.Lease) Lease {
	out := Lease{Subnet: l.Subnet().String(), Node: l.Node, NodeID: l.NodeID, Outcome: toCopy, source: l}
	switch {
	case l.Foreign:
		out.foreign = true
		out.skip("its host does not run leno")
		return out
	case l.Missing:
		out.Result, out.Reason = Failed, "the store has lost the record, and its host is about to write it again"
		return out
	}
	for _, other := range all {
		if other.Slot != l.Slot && isSameHost(l, other) && isLater(other, l) {
			out.skip(fmt.Sprintf("its host has %s now", other.Subnet()))
		}
	}
	return out
}

// isLater reports whether lease a is a later one of its host than lease b. A missing lease is, because a store that was
// set back shows earlier ones.
func isLater(a, b registry.Lease) bool {
	if a.Missing != b.Missing {
		return a.Missing
	}
	if a.Held() != b.Held() {
		return a.Held()
	}
	return cmp.Or(cmp.Compare(a.ModifyIndex, b.ModifyIndex), cmp.Compare(a.Slot, b.Slot)) > 0
}

// isSameHost reports whether two leases have a node id, a node name or an address in common, so that only one of them
// can be held.
func isSameHost(a, b registry.Lease) bool {
	return a.NodeID == b.NodeID || a.Node == b.Node || registry.SameEndpoint(a, b)
}

// compare reads the destination's view of a network and sets the result for the definition.
func (c *copier) compare(ctx context.Context, n *Network) (registry.Situation, error) {
	there, err := c.to.Network(ctx, n.Name)
	view := registry.Situation{Network: n.source}
	switch {
	case errors.Is(err, registry.ErrNetworkNotFound):
		// Leases and reservations may be left of an earlier definition.
	case errors.Is(err, registry.ErrInvalid):
		n.Result, n.Reason = Failed, "destination: "+err.Error()
		return view, nil
	case err != nil:
		return view, fmt.Errorf("destination: %w", err)
	default:
		n.Result, n.there, view.Network = Present, there, there
		if differences := c.differences(n.source, there); len(differences) > 0 {
			n.Result, n.Reason = Failed, "the destination has another definition: "+strings.Join(differences, "; ")
			return view, nil
		}
	}
	leases, _, err := c.to.WatchLeases(ctx, view.Network, 0)
	if errors.Is(err, registry.ErrUncertain) && n.Result == ToCopy {
		err = nil // the network has never been defined there
	}
	if err != nil {
		return view, fmt.Errorf("destination: %w", err)
	}
	reservations, _, err := c.to.WatchReservations(ctx, view.Network, 0)
	if err != nil {
		return view, fmt.Errorf("destination: %w", err)
	}
	view.Leases, view.Reservations = leases.Leases, reservations.Reservations
	for _, b := range slices.Concat(leases.Bad, reservations.Bad) {
		if subnet, err := b.Subnet(); err == nil {
			view.Bad = append(view.Bad, registry.BadSlot{Prefix: subnet})
		}
	}
	return view, nil
}

// differences names what two definitions of a network differ in.
func (c *copier) differences(source, there registry.Network) (out []string) {
	if c.o.Normalize != nil {
		source.Backend, there.Backend = c.o.Normalize(source.Backend), c.o.Normalize(there.Backend)
	}
	for _, d := range registry.Differences(source, there) {
		out = append(out, fmt.Sprintf("%s is %s in the source and %s there",
			d.Field, cmp.Or(d.A, "not set"), cmp.Or(d.B, "not set")))
	}
	a, b := source.Carriage(), there.Carriage()
	if a.Backend = b.Backend; !a.Equal(b) {
		out = append(out, "the switch to another backend or to new keys is in another state in the source than there")
	}
	return out
}

// compare sets the result for a reservation that the destination has, or cannot have. One in flannel is for an address,
// and which host has it is for the operator to say.
func (r *Reservation) compare(view registry.Situation) {
	for _, other := range view.Reservations {
		same, err := r.source.Beside(other)
		switch {
		case r.Result != ToCopy:
		case same, r.source.Address.IsValid() && r.source.Slot == other.Slot:
			r.Result = Present
		case err != nil:
			r.Result, r.Reason = Failed, err.Error()
		}
	}
	if r.Result == ToCopy && r.source.Address.IsValid() {
		r.Result, r.Reason = Failed, fmt.Sprintf("it is for the host with the address %s: reserve it there with `leno "+
			"reservation add -node=NAME %s %s`", r.source.Address, r.source.Network, r.Subnet)
	}
}

// judge sets the result for a lease according to the destination's view: the claim would succeed, or it is not needed,
// or why it would fail.
func (c *copier) judge(l *Lease, view registry.Situation) {
	if l.Result != ToCopy {
		return
	}
	claim := c.claim(l.source)
	for _, there := range view.Leases {
		if !claim.Same(there) {
			continue
		}
		switch {
		case there.Slot == l.source.Slot && there.Held():
			l.Result, l.Reason = Present, ""
			return
		case there.Held() && l.source.Held():
			l.Result, l.Reason = Failed, fmt.Sprintf("the host holds %s in the destination", there.Subnet())
			return
		case !l.source.Held(): // the host may have been using the destination since
			if l.Result = Present; there.Slot != l.source.Slot {
				l.Result, l.Reason = Skipped, fmt.Sprintf("its host has %s in the destination", there.Subnet())
			}
			return
		}
	}
	if _, err := registry.Choose(view, claim, nil); err != nil {
		l.Result, l.Reason = Failed, err.Error()
	}
}
