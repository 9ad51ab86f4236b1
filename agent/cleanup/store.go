package cleanup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/agent/catalog"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/conns"
)

// A recordFinder finds the records of this host in the store.
type recordFinder struct {
	host     *host
	list     *leftovers
	registry Registry // nil before it is needed
}

// close closes the store, if it was opened.
func (f *recordFinder) close() error {
	if f.registry == nil || f.registry.Abilities().Close == nil {
		return nil
	}
	return f.registry.Abilities().Close()
}

// lapses says what happens to a lease that could not be released.
func (f *recordFinder) lapses() string {
	if f.host.config.Store() == config.StoreKubernetes {
		return "it stays until its Node is deleted or `kubectl annotate node NODE leno.lenonet.io/lease-` removes it"
	}
	return "it lapses by itself, and other hosts remove it after lease.hold; `leno lease revoke` does at once"
}

// removedBy returns the command that removes a lease of another host.
func (f *recordFinder) removedBy(l registry.Lease) string {
	if f.host.config.Store() == config.StoreKubernetes {
		return "kubectl annotate node " + l.Node + " leno.lenonet.io/lease-"
	}
	return fmt.Sprintf("leno lease revoke %s %s", l.Network, l.Subnet())
}

// findAll finds this host's records in the store. If the store does not answer, it reports the leases that the
// files name as left.
func (f *recordFinder) findAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, retry.CallTimeout)
	defer cancel()
	if err := f.findHostRecords(ctx); err != nil {
		named := false
		for _, t := range f.host.networks {
			if f.host.isWanted(t.name) && t.saved.Session != "" && len(t.saved.Subnets) > 0 {
				named = true
				f.list.addLeft(Leftover{Kind: Lease, Name: t.saved.Subnets[0].String(), Network: t.name},
					fmt.Errorf("%w; %s", err, f.lapses()))
			}
		}
		if !named {
			f.list.addLeft(Leftover{Kind: Lease, Name: "any", Network: f.host.o.Network},
				fmt.Errorf("the store could not be searched for leases of this host: %w; "+
					"to leave the store alone, -keep-lease", err))
		}
	}
}

// store opens the store once.
func (f *recordFinder) store() (Registry, error) {
	if f.registry == nil {
		reg, err := f.host.o.Open(f.host.config, f.host.o.Logger)
		if err != nil {
			return nil, err
		}
		f.registry = reg
	}
	return f.registry, nil
}

// pools returns the pools of a network from the store, for a host on which no file contains them.
func (f *recordFinder) pools(ctx context.Context, network string) ([]netip.Prefix, error) {
	reg, err := f.store()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, retry.CallTimeout)
	defer cancel()
	n, err := reg.Network(ctx, network)
	return n.Plan.Prefixes(), err
}

// findHostRecords adds the leases, the sessions and the service of this host.
func (f *recordFinder) findHostRecords(ctx context.Context) error {
	reg, err := f.store()
	if err != nil {
		return err
	}
	records := reg.Abilities().Records
	if records == nil {
		return nil
	}
	node, err := state.NodeName(ctx, f.host.config.NodeName, reg.Abilities().NodeName)
	if err != nil {
		return err
	}
	me := registry.Host{Node: node, NodeID: f.host.nodeID}
	for _, t := range f.host.networks {
		if f.host.isWanted(t.name) && t.saved.Session != "" {
			me.Sessions = append(me.Sessions, t.saved.Session)
		}
	}
	left, err := records.HostRecords(ctx, f.host.o.Network, me)
	if err != nil {
		return err
	}
	own := f.addresses()
	for _, l := range left.Leases {
		r := Leftover{Kind: Lease, Name: l.Subnet().String(), Network: l.Network}
		if reason := whyForeign(l, me, own, f.removedBy(l)); reason != "" {
			f.list.addForeign(r, "%s", reason)
			continue
		}
		f.list.add(r, withTimeout(func(ctx context.Context) error { return reg.Release(ctx, l) }))
	}
	for _, id := range left.Sessions {
		end := func(ctx context.Context) error { return records.EndSession(ctx, id) }
		f.list.add(Leftover{Kind: Session, Name: id}, withTimeout(end))
	}
	if f.host.o.Network != "" {
		return nil
	}
	return f.findService(ctx, reg.Abilities().Catalog, node)
}

// findService finds the agent's service in the catalogue.
func (f *recordFinder) findService(ctx context.Context, catalogue registry.Catalog, node string) error {
	if catalogue == nil || f.host.config.Consul.Service == "" {
		return nil
	}
	service, ok, err := catalogue.RegisteredService(ctx, catalog.ServiceID(f.host.config.Consul.Service, node))
	if err != nil || !ok {
		return err
	}
	r := Leftover{Kind: Service, Name: service.ID}
	if id := service.Meta[catalog.NodeIDMeta]; f.host.nodeID != "" && id != f.host.nodeID {
		f.list.addForeign(r, "it is of the agent with the node id %s", id)
		return nil
	}
	f.list.add(r, withTimeout(func(ctx context.Context) error { return catalogue.Withdraw(ctx, service) }))
	return nil
}

// withTimeout bounds each call.
func withTimeout(call func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, retry.CallTimeout)
		defer cancel()
		return call(ctx)
	}
}

// whyForeign returns why a lease that names this host must not be released, or "" if it may. A state directory may have
// been copied, and two hosts may have the same name. So a lease that is held is this host's only if it has one of this
// host's addresses, own.
// removedBy is the command that removes the lease.
func whyForeign(l registry.Lease, me registry.Host, own []netip.Addr, removedBy string) string {
	sameID, at := me.NodeID != "" && l.NodeID == me.NodeID, cmp.Or(registry.Join(l.PublicIPs), "no address")
	isOwn := func(a netip.Addr) bool { return slices.Contains(own, a) }
	local := l.LocalIPs() // behind NAT, other hosts have the public address, too
	isHere := slices.ContainsFunc(l.PublicIPs, isOwn) && (len(local) == 0 || slices.ContainsFunc(local, isOwn))
	switch {
	case sameID && (isHere || !l.Held()):
		return ""
	case sameID:
		return fmt.Sprintf("a host at %s, which is not this one's address, holds it under this host's node id: "+
			"was the data_dir copied? Else `%s`", at, removedBy)
	case l.NodeID == "" && l.Held() && slices.Contains(me.Sessions, l.Session):
		return "" // only the lock can be read
	case me.NodeID == "" && l.Node == me.Node && isHere:
		return ""
	}
	return fmt.Sprintf("it is of the host %q at %s with the node id %s", l.Node, at, l.NodeID)
}

// addresses returns the addresses by which other hosts may know this one.
func (f *recordFinder) addresses() (out []netip.Addr) {
	if choice, err := f.host.o.SelectUnderlay(f.host.config.Underlay); err == nil {
		out = choice.Addrs // a public_ip may not be on any interface
	}
	own, err := conns.HostAddrs()
	if err != nil {
		f.host.o.Logger.Warn("addresses of this host cannot be read", "error", errors.Unwrap(err))
	}
	return append(out, own...)
}
