package agent

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

func (a *Agent) peerEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/network/{network}/peers", a.block(a.getPeers)},
	}
}

// getPeers are the other hosts as the datapath has them.
func (a *Agent) getPeers(r *http.Request) (shown, error) {
	n, err := a.definition(r)
	if err != nil {
		return shown{}, err
	}
	find := func() (*runner, error) { return a.joined(n.Name) }
	_, err = find()
	return shown{name: "peers of " + n.Name,
		memory: func() (reply, error) {
			run, err := find()
			if err != nil {
				return reply{}, err
			}
			return run.peers(), nil
		},
		changes: func() []<-chan struct{} {
			_, _, part := a.env.shown.Get()
			out := []<-chan struct{}{part}
			if run, err := find(); err == nil {
				_, _, leases := run.snapshot.Get()
				_, _, own := run.lease.Get()
				out = append(out, leases, own)
			}
			return out
		}}, err
}

// joined finds a network this agent takes part in; the error says that it does not.
func (a *Agent) joined(network string) (*runner, error) {
	run, ok := a.runner(network)
	if !ok {
		return nil, &api.Error{Code: http.StatusNotFound, Message: fmt.Sprintf("this host takes no part in network %s", network)}
	}
	return run, nil
}

// peers is what the API says of the runner's.
func (r *runner) peers() reply {
	quiet := r.peerList()
	out := api.PeerList{Peers: slices.Clone(quiet.Peers)}
	v := r.shown()
	if v.counter != nil {
		counted := v.counter.Counters()
		out.Drops = counted[""].Drops
		for i := range out.Peers {
			out.Peers[i].Counters = counters(counted, out.Peers[i].Node)
		}
	}
	if v.meter != nil {
		if all, err := v.meter.Totals(); err == nil { // it stands in the metrics' log why not
			out.Totals = counters(map[string]backend.Counters{"": all}, "")
		}
	}
	return reply{body: out, quiet: quiet}
}

// peerList is the peers alone, without what is counted, sorted by name.
func (r *runner) peerList() api.PeerList {
	out := api.PeerList{Peers: []api.Peer{}}
	snap, _, _ := r.snapshot.Get()
	lease, _, _ := r.lease.Get()
	if before, ok := r.carriedOn(); ok {
		snap.set.Leases, lease = before.leases, before.own
	}
	held := map[netip.Prefix]bool{} // of two records under one name only one may be
	for _, l := range snap.set.Leases {
		held[l.Subnet()] = l.Held()
	}
	skips := map[string]string{}
	for _, s := range r.shown().report.Skipped {
		skips[s.Node] = s.Reason
	}
	for _, p := range peersOf(snap.set.Leases, lease) {
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
