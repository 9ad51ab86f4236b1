package network

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

// A Status is what the API shows of this host's part in a network. It is immutable.
type Status struct {
	Definition   registry.Network
	Defined      bool
	Local        api.Local
	Lease        lease.Status
	Datapath     datapath.Status
	Reservations []registry.Reservation // as read last
}

// Status returns what the API shows.
func (r *Runner) Status() Status {
	definition := r.definition.now()
	inForce, defined, _ := r.definition.inForce.Get()
	out := Status{
		Definition:   inForce,
		Defined:      defined,
		Lease:        r.lease.Status(),
		Datapath:     r.datapath.Status(),
		Reservations: r.peers.Reservations(),
	}
	out.Local = api.Local{
		State:       r.report.State(),
		Subnets:     out.Lease.Lease.Subnets,
		SubnetFile:  r.local.SubnetFile,
		Link:        out.Datapath.Link,
		Backend:     out.Datapath.Backend,
		MTU:         out.Datapath.MTU,
		MTUReason:   out.Datapath.MTUReason,
		Underlay:    out.Datapath.Underlay,
		Peers:       out.Datapath.Report.Peers,
		Notes:       out.Datapath.Report.Notes,
		Applied:     out.Datapath.Applied,
		ModifyIndex: definition.applied,
		Renewed:     out.Lease.Renewed,
		Differs:     definition.differs,
		Followed:    r.peers.Followed(),
	}
	if definition.ignored != "" {
		out.Local.Notes = append([]string{definition.ignored}, out.Local.Notes...)
	}
	if s := out.Datapath.Report.Switch; s != nil {
		out.Local.Switch = &api.Switch{From: s.From, To: s.To, Moved: s.Moved, Stopped: s.Stopped, Fault: s.Fault}
		for _, waiting := range s.Waiting {
			out.Local.Switch.Waiting = append(out.Local.Switch.Waiting, api.WaitingPeer(waiting))
		}
	}
	if found := r.resumed.get(); found != nil && out.Local.Subnets == nil {
		out.Local.Subnets = found.subnets
	}
	return out
}

// Local returns this host's block of the network, or its defaults for a network without one.
func (r *Runner) Local() config.Network { return r.local }

// Config returns the agent's configuration as it was when the runner was created.
func (r *Runner) Config() config.Config { return r.config }

// Lease returns the lease that this host holds.
func (r *Runner) Lease() (registry.Lease, bool) {
	lease, held, _ := r.lease.Lease().Get()
	return lease, held
}

// Judge returns what the store's answer, when it was asked for the definition, means for the one that is in force on
// this host. It returns belief.NoAnswer if none is.
func (r *Runner) Judge(stored registry.Network, err error) belief.Verdict {
	return r.definition.judge(stored, err)
}

// WasLeft reports whether this host has left the network because it was deleted.
func (r *Runner) WasLeft() bool { return r.definition.wasLeft() }

// Differs returns where this host's block differs from the definition n. A block without pools does not differ.
func (r *Runner) Differs(n registry.Network) []string { return r.definition.differs(n) }

// UsesLink reports whether the underlay depends on the device, or may come to depend on it.
func (r *Runner) UsesLink(link string) bool { return r.datapath.UsesLink(link) }

// Reaches reports whether packets to other hosts may take a route to the prefix.
func (r *Runner) Reaches(prefix netip.Prefix) bool { return r.datapath.Reaches(prefix) }

// CopySubnetFile also writes the subnet file to another path. It does nothing if there is no subnet file of this
// network.
func (r *Runner) CopySubnetFile(to string) error { return r.file.copyTo(to) }

// Leases returns what is known of the leases of all hosts.
func (r *Runner) Leases() *peers.Follower { return r.peers }

// Renew renews the session of this host's lease before it is due, with the store of the caller.
func (r *Runner) Renew(ctx context.Context, store registry.Registry) (api.Renewal, error) {
	return r.lease.Renew(ctx, store)
}

// Release releases this host's lease with the caller's store and leaves the network. It blocks until the request is
// carried out or refused.
func (r *Runner) Release(ctx context.Context, store registry.Registry) error {
	defer r.peers.Invalidate() // the runner no longer watches the leases
	return r.lease.Release(ctx, store)
}

// PeerList returns the peers sorted by name, without their traffic counters.
func (r *Runner) PeerList() api.PeerList {
	snap, _ := r.peers.Snapshot()
	leases, own := snap.Set.Leases, r.lease.Status().Lease
	if before, ok := r.Resumed(); ok {
		leases, own = before.Leases, before.Own
	}
	s := r.datapath.Status()
	out := peers.List(leases, own, s.Report.Skipped)
	all := encrypts(r.deps.Datapaths.Backends, s.Backend, s.Report.Switch)
	for i := range out.Peers {
		out.Peers[i].Encrypted = all && out.Peers[i].Skipped == ""
	}
	return out
}

// encrypts reports whether packets to and from every peer are encrypted. During a switch, they may use either backend.
func encrypts(types map[string]backend.Type, kind string, s *backend.Switch) bool {
	if s != nil {
		return types[s.From].Encrypts && types[s.To].Encrypts
	}
	return types[kind].Encrypts
}

// Peers returns the peers with their traffic counters, if the backend has any.
func (r *Runner) Peers() api.PeerList {
	out := r.PeerList()
	s := r.datapath.Status()
	if count := s.Abilities.Counters; count != nil {
		counted := count()
		out.Drops = counted[""].Drops
		for i := range out.Peers {
			out.Peers[i].Counters = countersOf(counted, out.Peers[i].Node)
			out.Peers[i].LastHandshake = counted[out.Peers[i].Node].Handshake
			out.Peers[i].Endpoint = counted[out.Peers[i].Node].Endpoint
		}
	}
	if totals := s.Abilities.Totals; totals != nil {
		if all, err := totals(); err == nil { // the metrics log the error
			out.Totals = countersOf(map[string]backend.Counters{"": all}, "")
		}
	}
	return out
}

func countersOf(all map[string]backend.Counters, node string) *api.Counters {
	c, ok := all[node]
	if !ok {
		return nil
	}
	return &api.Counters{
		RxPackets: c.RxPackets,
		RxBytes:   c.RxBytes,
		TxPackets: c.TxPackets,
		TxBytes:   c.TxBytes,
		Drops:     c.Drops,
	}
}

// Probed returns this host's part in the network for a probe. It returns an error if this host has no subnet or no
// underlay, because then there is nothing to send from.
func (r *Runner) Probed() (probe.Host, error) {
	s := r.Status()
	lease, held := r.Lease()
	definition := s.Definition
	if before, ok := r.Resumed(); ok {
		lease, held, definition = before.Own, true, before.Network
	}
	if !held || s.Local.Underlay.Interface == "" {
		return probe.Host{}, api.Errorf(http.StatusConflict,
			"network %s cannot be probed yet: %s", r.local.Name, s.Local.State)
	}
	return probe.Host{
		Network:    r.local.Name,
		Backend:    definition.Backend.Type,
		Options:    carriage.Of(definition.Carriage()).Current.Running(r.deps.Datapaths.Backends),
		Link:       s.Local.Link,
		Subnets:    lease.Subnets,
		MTU:        s.Local.MTU,
		Underlay:   s.Local.Underlay,
		VRF:        r.datapath.Status().VRF,
		Masquerade: r.local.IPMasq,
	}, nil
}
