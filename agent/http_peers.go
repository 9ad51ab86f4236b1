package agent

import (
	"fmt"
	"net/http"
	"net/netip"

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
	find := func() (*runner, error) {
		run, ok := a.runner(n.Name)
		if !ok {
			return nil, &api.Error{Code: http.StatusNotFound, Message: fmt.Sprintf("this host takes no part in network %s", n.Name)}
		}
		return run, nil
	}
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
			_, _, part := a.env.shown.get()
			out := []<-chan struct{}{part}
			if run, err := find(); err == nil {
				_, _, leases := run.snapshot.get()
				_, _, own := run.lease.get()
				out = append(out, leases, own)
			}
			return out
		}}, err
}

// peers is what the API says of the runner's.
func (r *runner) peers() reply {
	out := api.PeerList{Peers: []api.Peer{}}
	quiet := out
	snap, _, _ := r.snapshot.get()
	lease, _, _ := r.lease.get()
	if before, ok := r.carriedOn(); ok {
		snap.set.Leases, lease = before.leases, before.own
	}
	v := r.shown()
	held := map[netip.Prefix]bool{} // of two records under one name only one may be
	for _, l := range snap.set.Leases {
		held[l.Subnet()] = l.Held()
	}
	var counted map[string]backend.Counters
	if v.counter != nil {
		counted = v.counter.Counters()
		out.Drops = counted[""].Drops
	}
	if v.meter != nil {
		if all, err := v.meter.Totals(); err == nil { // it stands in the metrics' log why not
			out.Totals = counters(map[string]backend.Counters{"": all}, "")
		}
	}
	skips := map[string]string{}
	for _, s := range v.report.Skipped {
		skips[s.Node] = s.Reason
	}
	for _, p := range peersOf(snap.set.Leases, lease) {
		peer := api.Peer{Node: p.Node, Subnets: p.Subnets, PublicIPs: p.PublicIPs, Backend: p.Backend,
			Held: held[p.Subnets[0]], Skipped: skips[p.Node]}
		quiet.Peers = append(quiet.Peers, peer)
		peer.Counters = counters(counted, p.Node)
		out.Peers = append(out.Peers, peer)
	}
	return reply{body: out, quiet: quiet}
}

func counters(all map[string]backend.Counters, node string) *api.Counters {
	c, ok := all[node]
	if !ok {
		return nil
	}
	return &api.Counters{RxPackets: c.RxPackets, RxBytes: c.RxBytes, TxPackets: c.TxPackets, TxBytes: c.TxBytes, Drops: c.Drops}
}
