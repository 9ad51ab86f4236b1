package agent

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// peers returns the peers with their traffic counters, if the backend has any.
func (r *runner) peers() api.PeerList {
	out := r.peerList()
	v := r.shown().datapath
	if v.Counter != nil {
		counted := v.Counter.Counters()
		out.Drops = counted[""].Drops
		for i := range out.Peers {
			out.Peers[i].Counters = counters(counted, out.Peers[i].Node)
		}
	}
	if v.Meter != nil {
		if all, err := v.Meter.Totals(); err == nil { // the metrics log the error
			out.Totals = counters(map[string]backend.Counters{"": all}, "")
		}
	}
	return out
}

// peerList returns the peers sorted by name, without their traffic counters.
func (r *runner) peerList() api.PeerList {
	out := api.PeerList{Peers: []api.Peer{}}
	snap, _, _ := r.snapshot.Get()
	lease, _, _ := r.lease.Get()
	if before, ok := r.carriedOn(); ok {
		snap.set.Leases, lease = before.Leases, before.Own
	}
	held := map[netip.Prefix]bool{} // by subnet, since two records of the same name may differ
	for _, l := range snap.set.Leases {
		held[l.Subnet()] = l.Held()
	}
	skips := map[string]string{}
	for _, s := range r.shown().datapath.Report.Skipped {
		skips[s.Node] = s.Reason
	}
	for _, p := range peers.Of(snap.set.Leases, lease) {
		out.Peers = append(out.Peers, api.Peer{Node: p.Node, Subnets: p.Subnets, PublicIPs: p.PublicIPs, Backend: p.Backend,
			Held: held[p.Subnets[0]], Skipped: skips[p.Node]})
	}
	slices.SortStableFunc(out.Peers, func(a, b api.Peer) int { return strings.Compare(a.Node, b.Node) })
	return out
}

func counters(all map[string]backend.Counters, node string) *api.Counters {
	c, ok := all[node]
	if !ok {
		return nil
	}
	return &api.Counters{RxPackets: c.RxPackets, RxBytes: c.RxBytes, TxPackets: c.TxPackets, TxBytes: c.TxBytes, Drops: c.Drops}
}
