package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	claims "github.com/lenonet/leno/registry/claim"
)

// maxTries limits how often a change is tried while the Node changes at the same time.
const maxTries = 10

// Acquire implements registry.Leases. The subnets are those that Kubernetes has assigned to this host's Node, whatever
// the claim prefers. Without a Node or its podCIDR, the error wraps registry.ErrLeaseNotFound.
//
// The Node belongs to the machine that runs under its name, so another node id or other addresses in its annotations
// are replaced, but not both: then two hosts use the Node, and the error is an ErrDuplicateNode. The operator's
// annotations public-ip-overwrite and public-ipv6-overwrite replace the claim's addresses.
func (c *Client) Acquire(ctx context.Context, n registry.Network, claim registry.Claim) (registry.Lease, error) {
	var lease registry.Lease
	err := c.check(n.Name)
	if err == nil {
		err = claims.Retry(ctx, maxTries, func() (err error) {
			lease, err = c.own.acquire(ctx, n, claim)
			return err
		})
	}
	if err != nil {
		return registry.Lease{}, registry.Wrap(err, "acquire lease in network %s", n.Name)
	}
	return lease, nil
}

func (c *connection) acquire(ctx context.Context, n registry.Network, claim registry.Claim) (registry.Lease, error) {
	if err := c.checkPlan(ctx, n); err != nil {
		return registry.Lease{}, err
	}
	nd, err := c.ownNode(ctx)
	if err != nil {
		return registry.Lease{}, err
	}
	slot, err := nd.slot(n.Plan)
	if err != nil {
		return registry.Lease{}, err
	}
	if claim.PublicIPs, err = nd.overwrite(c.names, claim.PublicIPs); err != nil {
		return registry.Lease{}, err
	}
	lease := claims.Lease(n, claim, slot)
	lease.CreateIndex = nd.created
	wanted, err := annotations(n, lease, c.names)
	if err != nil {
		return registry.Lease{}, err
	}
	if err := c.checkOthers(ctx, n, claim, nd, lease); err != nil {
		return registry.Lease{}, err
	}
	if changes := nd.differing(wanted, c.names); len(changes) > 0 {
		if nd, err = c.annotate(ctx, nd, changes); err != nil {
			return registry.Lease{}, err
		}
	} else if t, _ := c.mirror.Current(); t != nil {
		if known := t.Get(nd.Key()); known != nil && known.Same(nd) {
			nd = known // knows when that was
		}
	}
	l, _, err := nd.lease(n, c.names)
	return l, err
}

// checkPlan returns an ErrConflict if the network has another plan now. If the configuration cannot be read, the one
// before stays in force.
func (c *connection) checkPlan(ctx context.Context, n registry.Network) error {
	now, err := c.network(ctx)
	if err == nil && !slices.Equal(now.Plan, n.Plan) {
		return fmt.Errorf("%w: the network has another plan now", registry.ErrConflict)
	}
	return nil
}

// ownNode reads this host's Node.
func (c *connection) ownNode(ctx context.Context) (*node, error) {
	name := c.conf.NodeName
	if name == "" {
		return nil, fmt.Errorf("%w: the name of this host's Node is not known: set node_name or the environment variable "+
			"NODE_NAME", registry.ErrInvalid)
	}
	nd, err := c.node(ctx, name)
	if errors.Is(err, errNotFound) {
		return nil, fmt.Errorf("%w: Kubernetes has no node %s", registry.ErrLeaseNotFound, name)
	}
	if err == nil && len(nd.podCIDRs) == 0 {
		return nil, fmt.Errorf("%w: node %s has no podCIDR: the controller manager assigns it with --allocate-node-cidrs",
			registry.ErrLeaseNotFound, name)
	}
	return nd, err
}

// slot returns the slot that has the Node's subnets, one of each pool.
func (n *node) slot(plan registry.Plan) (slot uint64, err error) {
	subnets, err := n.subnets(plan)
	if err != nil {
		return 0, fmt.Errorf("node %s: %w", n.name, err)
	}
	invalid := func(reason string) error {
		var pools []string
		for _, p := range plan {
			pools = append(pools, fmt.Sprintf("%s in subnets of /%d", p.Prefix, p.SubnetLen))
		}
		return fmt.Errorf("%w: node %s has the podCIDRs %s, the network has %s: %s", registry.ErrInvalid, n.name,
			strings.Join(n.podCIDRs, ", "), strings.Join(pools, " and "), reason)
	}
	if len(subnets) < len(plan) {
		return 0, invalid("no subnet of each pool")
	}
	for i, s := range subnets {
		this, err := plan.Slot(s)
		switch {
		case err != nil:
			return 0, invalid(strings.Replace(err.Error(), registry.ErrInvalid.Error()+": ", "", 1))
		case i > 0 && this != slot:
			return 0, invalid(fmt.Sprintf("subnets number %d and %d of their pools; leno needs the same number in both",
				slot, this))
		}
		slot = this
	}
	return slot, nil
}

// overwrite returns the addresses under which other hosts shall reach this one: those that the operator has set in
// place of this host's own of the same family.
func (n *node) overwrite(a names, addrs []netip.Addr) ([]netip.Addr, error) {
	for _, name := range []string{a.overwrite, a.overwriteV6} {
		text := n.annotations[name]
		if text == "" {
			continue
		}
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Is4() != (name == a.overwrite) {
			return nil, fmt.Errorf("%w: annotation %s of node %s: %q is not an address of that family",
				registry.ErrInvalid, name, n.name, text)
		}
		isFamily := func(o netip.Addr) bool { return o.Is4() == ip.Is4() }
		i := slices.IndexFunc(addrs, isFamily)
		addrs = slices.DeleteFunc(slices.Clone(addrs), isFamily)
		if i < 0 {
			i = len(addrs)
		}
		addrs = slices.Insert(addrs, min(i, len(addrs)), ip)
	}
	return addrs, nil
}

// checkOthers returns an error if another host has its lease on the claim's Node, if an older Node has a subnet of the
// lease that the claim gets, or if another Node has the lease of a host that could be mistaken for the claim's.
func (c *connection) checkOthers(
	ctx context.Context, n registry.Network, claim registry.Claim, own *node, lease registry.Lease,
) error {
	var held *registry.Lease
	if l, foreign, err := own.lease(n, c.names); err == nil && !foreign {
		if isTaken(l, claim) {
			return &registry.RivalError{Lease: l, Err: fmt.Errorf("%w: host %q (%s, node id %s) has the lease on node %[5]s: "+
				"set another node_name in the kubernetes block of one of the two or, if that host is gone, run "+
				"`kubectl annotate node %[5]s %[6]s-`",
				registry.ErrDuplicateNode, l.Node, registry.Join(l.PublicIPs), l.NodeID, own.name, lenoAnnotation)}
		}
		if l.Session == claim.Session {
			held = &l
		}
	}
	t := c.mirror.Followed()
	if t == nil {
		var err error
		if t, err = c.mirror.Refresh(ctx); err != nil {
			return err
		}
	}
	var first error
	read, _ := c.reader(n)
	isOwn := func(r *belief.Record) bool { return r.Key == own.Key() }
	others := slices.DeleteFunc(c.leases.Stored(t, n, read), isOwn)
	for _, r := range belief.Disown(append(others, &belief.Record{Key: own.Key(), Lease: lease})) {
		if isOwn(r) && r.Err != nil {
			return fmt.Errorf("%w: node %s: %s; delete one of the two Nodes, which gets another podCIDR when it registers "+
				"again", registry.ErrHeld, own.name, strings.TrimPrefix(r.Err.Error(), registry.ErrInvalid.Error()+": "))
		}
		if r.Err != nil || isOwn(r) {
			continue
		}
		err := registry.Contradicts(r.Lease, claim, held)
		if err != nil && (first == nil || r.Lease.NodeID != claim.NodeID) {
			first = err
		}
	}
	return first
}

// isTaken reports whether the lease on the Node of a claim is that of another host. A record that is older than the
// claim's own is not: it came back when the store was set back.
func isTaken(l registry.Lease, c registry.Claim) bool {
	here := registry.Lease{PublicIPs: c.PublicIPs, Backend: c.Backend}
	return l.NodeID != c.NodeID && !registry.SameMachine(l, here) && !(c.Running && l.ModifyIndex < c.Since)
}

// differing returns how to change the annotations that hosts write into the wanted ones.
func (n *node) differing(wanted map[string]string, a names) map[string]*string {
	out := map[string]*string{}
	for _, name := range a.written() {
		value, want := wanted[name]
		have, exists := n.annotations[name]
		switch {
		case want && (!exists || have != value):
			out[name] = &value
		case !want && exists:
			out[name] = nil
		}
	}
	return out
}

// isOf reports whether the Node has the lease of the host that holds l.
func (n *node) isOf(l registry.Lease) bool {
	record, own := n.annotations[lenoAnnotation]
	uid, _, _ := strings.Cut(l.Session, sessionSeparator)
	return own && n.uid == uid && registry.NodeIDOf([]byte(record)) == l.NodeID
}

// Renew implements registry.Leases.
func (c *Client) Renew(ctx context.Context, l registry.Lease) error {
	nd, err := c.own.node(ctx, c.conf.NodeName)
	switch {
	case errors.Is(err, errNotFound):
		err = fmt.Errorf("%w: Kubernetes has no node %s", registry.ErrLeaseLost, c.conf.NodeName)
	case err == nil && !nd.isOf(l):
		err = fmt.Errorf("%w: node %s has the lease of another host or none", registry.ErrLeaseLost, nd.name)
	}
	return registry.Wrap(err, "renew lease %s", l.Subnet())
}

// Release implements registry.Leases. It removes the annotations that leno has written, also from a Node that had this
// host's lease under another name. If flannel has written its own since, these stay.
func (c *Client) Release(ctx context.Context, l registry.Lease) error {
	err := claims.Retry(ctx, maxTries, func() error { return c.own.release(ctx, l) })
	return registry.Wrap(err, "release lease %s", l.Subnet())
}

func (c *connection) release(ctx context.Context, l registry.Lease) error {
	nd, err := c.nodeOf(ctx, l)
	if err != nil || nd == nil {
		return err
	}
	changes := map[string]*string{lenoAnnotation: nil}
	if _, _, err := nd.lease(c.definitionOr(ctx, nd), c.names); err == nil { // flannel's annotations agree with leno's
		changes = nd.differing(nil, c.names)
	}
	_, err = c.annotate(ctx, nd, changes)
	if errors.Is(err, errNotFound) {
		return nil
	}
	return err
}

// nodeOf returns the Node that has a lease, nil if it is not held.
func (c *connection) nodeOf(ctx context.Context, l registry.Lease) (*node, error) {
	if c.conf.NodeName != "" {
		nd, err := c.node(ctx, c.conf.NodeName)
		if err != nil && !errors.Is(err, errNotFound) {
			return nil, err
		}
		if err == nil && nd.isOf(l) {
			return nd, nil
		}
	}
	t, err := c.mirror.Refresh(ctx)
	if err != nil {
		return nil, err
	}
	for _, nd := range t.Records {
		if !nd.isOf(l) {
			continue
		}
		// The tree may have an older version of a Node of which only other parts have changed.
		nd, err := c.node(ctx, nd.name)
		if errors.Is(err, errNotFound) || err == nil && !nd.isOf(l) {
			return nil, nil
		}
		return nd, err
	}
	return nil, nil
}

// definitionOr returns the network, or the one that a Node's subnets imply if its configuration cannot be read any
// more.
func (c *connection) definitionOr(ctx context.Context, nd *node) registry.Network {
	if n, err := c.network(ctx); err == nil {
		return n
	}
	return registry.Network{Name: c.conf.Network, Plan: nd.impliedPlan()}
}

// WatchLease implements registry.Leases.
func (c *Client) WatchLease(ctx context.Context, n registry.Network, subnet netip.Prefix, after uint64) (
	registry.Lease, uint64, error) {
	slot, err := n.Plan.Slot(subnet)
	if err == nil {
		err = c.check(n.Name)
	}
	if err != nil {
		return registry.Lease{}, 0, registry.Wrap(err, "watch lease")
	}
	conn := c.own
	read, _ := conn.reader(n)
	var found *belief.Record
	var index uint64
	err = conn.mirror.Await(ctx, after == 0, func(t *tree) (bool, time.Time) {
		found = nil
		for _, r := range belief.Disown(conn.leases.Stored(t, n, read)) {
			isUsable := r.Err == nil && r.Lease.Slot == slot
			if isUsable || r.Err != nil && found == nil && t.Get(r.Key).covers(n.Plan, slot) {
				found = r
			}
			if isUsable {
				break
			}
		}
		content, latest := "", uint64(1)
		if found != nil {
			latest = found.Lease.ModifyIndex
			content = fmt.Sprintf("%s %d %v", found.Lease.Session, latest, found.Err)
		}
		index = conn.versions.Index(fmt.Sprint("lease ", slot), content, latest)
		return index != after, time.Time{}
	})
	if err == nil && found == nil {
		err = registry.ErrLeaseNotFound
	} else if err == nil {
		err = found.Err
	}
	if err != nil {
		return registry.Lease{}, index, registry.Wrap(err, "lease %s of network %s", subnet, n.Name)
	}
	return found.Lease, index, nil
}

// covers reports whether the Node's first subnet is that of a slot.
func (n *node) covers(plan registry.Plan, slot uint64) bool {
	subnets, err := n.subnets(plan)
	if err != nil || len(subnets) == 0 {
		return false
	}
	this, err := plan.Slot(subnets[0])
	return err == nil && this == slot
}

// WatchLeases implements registry.Leases.
func (c *Client) WatchLeases(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	if err := c.check(n.Name); err != nil {
		return registry.LeaseSet{}, 0, registry.Wrap(err, "watch leases")
	}
	read, kept := c.own.reader(n)
	set, index, err := c.own.leases.Watch(ctx, c.own.mirror, n, after, read, kept)
	return set, index, registry.Wrap(err, "watch leases of network %s", n.Name)
}

// Followed returns when the API server last confirmed the Nodes.
func (c *Client) Followed(string) time.Time {
	return c.own.leases.LastCertain(c.own.mirror.LastConfirmed())
}
