package agent

import (
	"fmt"
	"net/http"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

func (a *Agent) peerEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/network/{network}/peers", a.wrap(a.getPeers)},
	}
}

// getPeers are the other hosts as the datapath has them.
func (a *Agent) getPeers(r *http.Request) (reply, error) {
	n, err := a.definition(r)
	if err != nil {
		return reply{}, err
	}
	run, ok := a.runner(n.Name)
	if !ok {
		return reply{}, &api.Error{Code: http.StatusNotFound, Message: fmt.Sprintf("this host takes no part in network %s", n.Name)}
	}
	out := api.PeerList{Peers: []api.Peer{}}
	snap, _, _ := run.snapshot.get()
	lease, _, _ := run.lease.get()
	if before, ok := run.carriedOn(); ok {
		snap.set.Leases, lease = before.leases, before.own
	}
	v := run.shown()
	held := map[string]bool{}
	for _, l := range snap.set.Leases {
		held[l.Node] = held[l.Node] || l.Held()
	}
	var counted map[string]backend.Counters
	if v.counter != nil {
		counted = v.counter.Counters()
		out.Drops = counted[""].Drops
	}
	skips := map[string]string{}
	for _, s := range v.report.Skipped {
		skips[s.Node] = s.Reason
	}
	for _, p := range peersOf(snap.set.Leases, lease) {
		out.Peers = append(out.Peers, api.Peer{Node: p.Node, Subnets: p.Subnets, PublicIPs: p.PublicIPs, Backend: p.Backend,
			Held: held[p.Node], Skipped: skips[p.Node], Counters: counters(counted, p.Node)})
	}
	return reply{out, snap.index}, nil
}

func counters(all map[string]backend.Counters, node string) *api.Counters {
	c, ok := all[node]
	if !ok {
		return nil
	}
	return &api.Counters{RxPackets: c.RxPackets, RxBytes: c.RxBytes, TxPackets: c.TxPackets, TxBytes: c.TxBytes, Drops: c.Drops}
}
