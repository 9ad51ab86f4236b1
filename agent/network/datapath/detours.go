package datapath

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
)

// peersInTurn is the number of peers that a look at detours asks the kernel about in turn. It takes less than a
// millisecond with any number of peers.
const peersInTurn = 5

// detours finds the peers to which packets take another route than leno's.
type detours struct {
	turn  int      // counts the peers that were asked about in turn
	found []string // names of the peers with a detour at the last look

	err error // names a peer with a detour and what to do, nil if there is none
	all bool  // each peer that the last look asked about has a detour
}

// choose returns the peers to ask about: those that had a detour at the last look, and the next ones in turn.
func (d *detours) choose(all []backend.Peer) (out []backend.Peer) {
	for _, p := range all {
		if len(out) < peersInTurn && slices.Contains(d.found, p.Node) {
			out = append(out, p)
		}
	}
	for range min(peersInTurn, len(all)) {
		p := all[d.turn%len(all)]
		d.turn++
		if !slices.ContainsFunc(out, func(o backend.Peer) bool { return o.Node == p.Node }) {
			out = append(out, p)
		}
	}
	return out
}

// lookAtDetours finds detours of the packets to some of the peers that are in place, and logs when there are some and
// the look before found none. After a failed pass, or one that did not make all routes, it finds none.
func (c *checks) lookAtDetours(n registry.Network, s backend.State, report backend.Report, failed error) {
	before := c.detours.err
	c.detours.err, c.detours.all = nil, false
	unassigned := report.Switch != nil && report.Switch.Unassigned > 0
	if failed != nil || s.Partial || unassigned || n.Backend.Type == "alloc" {
		return
	}
	peers := c.detours.choose(slices.DeleteFunc(slices.Clone(s.Peers), func(p backend.Peer) bool {
		return slices.ContainsFunc(report.Skipped, func(skip backend.Skip) bool { return skip.Node == p.Node })
	}))
	found, err := c.host.FindDetours(kernel.PathQuery{
		Subnets:      s.Subnets,
		Underlay:     s.Underlay,
		Encapsulated: !c.host.Backends[n.Backend.Type].OwnFamily,
		Peers:        peers,
	})
	if err != nil {
		c.report.Log().Debug("routes to peers are unknown", "error", err)
		return
	}
	c.detours.found = nil
	for _, d := range found {
		c.detours.found = append(c.detours.found, d.Node)
	}
	c.detours.err = errDetours(found, len(peers), n.Plan.Prefixes())
	c.detours.all = len(found) > 0 && len(found) == len(peers)
	if before == nil && c.detours.err != nil {
		c.report.Log().Warn("packets to peers take another route than leno's", "error", c.detours.err)
	}
}

// errDetours returns the error about detours, nil if there are none. It names the first one and how many of the peers
// that the kernel was asked about have one.
func errDetours(found []kernel.Detour, asked int, pools []netip.Prefix) error {
	if len(found) == 0 {
		return nil
	}
	scope := ""
	if asked > 1 {
		scope = fmt.Sprintf(" (%d of %d peers asked about)", len(found), asked)
	}
	return found[0].Err(scope, pools)
}
