package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/catalog"
	"github.com/lenonet/leno/registry"
)

// lapses is what becomes of a lease that could not be given up.
const lapses = "it lapses by itself, and other hosts remove it after lease.hold; `leno lease revoke` does at once"

// findStored finds what is this host's in the store. When that cannot be asked,
// what the files tell of is left, and said.
func (s *sweep) findStored(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.askStore(ctx); err != nil {
		told := false
		for _, t := range s.networks {
			if s.wants(t.name) && t.saved.Session != "" && len(t.saved.Subnets) > 0 {
				told = true
				s.left(Remnant{Kind: RemnantLease, Name: t.saved.Subnets[0].String(), Network: t.name}, fmt.Errorf("%w; %s", err, lapses))
			}
		}
		if !told {
			s.left(Remnant{Kind: RemnantLease, Name: "any", Network: s.o.Network},
				fmt.Errorf("nobody could look for leases of this host: %w; to leave the store alone, -keep-lease", err))
		}
	}
}

// store opens it once.
func (s *sweep) store() (registry.Registry, error) {
	if s.o.Registry == nil {
		reg, _, err := openRegistry(s.config, s.log, nil)
		if err != nil {
			return nil, err
		}
		s.o.Registry = reg
	}
	return s.o.Registry, nil
}

// poolsInStore are the network's, for a host that has nothing that tells them.
func (s *sweep) poolsInStore(ctx context.Context, network string) ([]netip.Prefix, error) {
	reg, err := s.store()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	n, err := reg.Network(ctx, network)
	return n.Plan.Prefixes(), err
}

func (s *sweep) askStore(ctx context.Context) error {
	reg, err := s.store()
	if err != nil {
		return err
	}
	sweeper, ok := reg.(registry.Sweeper)
	if !ok {
		return nil // it ended with its process
	}
	node, err := nodeName(ctx, s.config.NodeName, reg)
	if err != nil {
		return err
	}
	me := registry.Host{Node: node, NodeID: s.nodeID}
	for _, t := range s.networks {
		if s.wants(t.name) && t.saved.Session != "" {
			me.Sessions = append(me.Sessions, t.saved.Session)
		}
	}
	left, err := sweeper.Left(ctx, s.o.Network, me)
	if err != nil {
		return err
	}
	here := s.addresses()
	for _, l := range left.Leases {
		r := Remnant{Kind: RemnantLease, Name: l.Subnet().String(), Network: l.Network}
		if reason := notOurs(l, me, here); reason != "" {
			s.foreign(r, "%s", reason)
			continue
		}
		s.add(r, timed(func(ctx context.Context) error { return reg.Release(ctx, l) }))
	}
	for _, id := range left.Sessions {
		s.add(Remnant{Kind: RemnantSession, Name: id}, timed(func(ctx context.Context) error { return sweeper.EndSession(ctx, id) }))
	}
	if s.o.Network != "" {
		return nil
	}
	return s.findService(ctx, reg, sweeper, node)
}

// findService finds the agent's entry in the catalogue.
func (s *sweep) findService(ctx context.Context, reg registry.Registry, sweeper registry.Sweeper, node string) error {
	announcer, ok := reg.(registry.Announcer)
	if !ok || s.config.Consul.Service == "" {
		return nil
	}
	shown, ok, err := sweeper.Shown(ctx, catalog.ServiceID(s.config.Consul.Service, node))
	if err != nil || !ok {
		return err
	}
	r := Remnant{Kind: RemnantService, Name: shown.ID}
	if id := shown.Meta[catalog.NodeIDMeta]; s.nodeID != "" && id != s.nodeID {
		s.foreign(r, "it is of the agent with the node id %s", id)
		return nil
	}
	s.add(r, timed(func(ctx context.Context) error { return announcer.Withdraw(ctx, shown) }))
	return nil
}

// timed gives each call its own time.
func timed(call func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return call(ctx)
	}
}

// notOurs says why a lease that names this host is not this host's to give up, ""
// when it is. A state directory may have been copied, and names given twice: what
// somebody holds is ours only with an address of ours.
func notOurs(l registry.Lease, me registry.Host, here []netip.Addr) string {
	sameID, at := me.NodeID != "" && l.NodeID == me.NodeID, addrList(l.PublicIPs)
	isHere := slices.ContainsFunc(l.PublicIPs, func(a netip.Addr) bool { return slices.Contains(here, a) })
	switch {
	case sameID && (isHere || !l.Held()):
		return ""
	case sameID:
		return fmt.Sprintf("a host at %s, which is not this one's address, holds it under this host's node id: was the data_dir copied? Else `leno lease revoke %s %s`", at, l.Network, l.Subnet())
	case l.NodeID == "" && l.Held() && slices.Contains(me.Sessions, l.Session):
		return "" // nothing can be read of it but the lock
	case me.NodeID == "" && l.Node == me.Node && isHere:
		return ""
	}
	return fmt.Sprintf("it is of the host %q at %s with the node id %s", l.Node, at, l.NodeID)
}

func addrList(addrs []netip.Addr) string {
	if len(addrs) == 0 {
		return "no address"
	}
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return strings.Join(out, ", ")
}

// addresses are what other hosts may know this one by.
func (s *sweep) addresses() (out []netip.Addr) {
	if choice, err := s.o.SelectUnderlay(s.config.Underlay, nil, nil); err == nil {
		out = choice.Addrs // a public_ip need not be on any interface
	}
	found, err := net.InterfaceAddrs()
	if err != nil {
		s.log.Warn("addresses of this host cannot be read", "error", errors.Unwrap(err))
	}
	for _, a := range found {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().Unmap())
		}
	}
	return out
}
