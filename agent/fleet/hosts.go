// Package fleet puts together what one host knows of all hosts of a network, and finds the causes behind what many
// hosts say of the paths between them.
//
// It consists of pure functions. What other hosts say of themselves is a hint: agent/hello bounds it, it is shown as
// theirs, and a host that lies appears only as the subject of its own lines.
package fleet

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// Known is what this host knows of a network.
type Known struct {
	NodeID    string           // of this host
	Leases    []registry.Lease // of all hosts
	Peers     []api.Peer       // with the paths to them
	Own       api.HostSummary  // of this host, without the paths to others
	Summaries map[netip.Prefix]api.HostSummary
	Member    func(node string, addrs []netip.Addr) string // see api.Host
}

// Hosts returns the hosts of a network that have a lease, those with a problem first.
func Hosts(k Known) []api.Host {
	peers := map[netip.Prefix]api.Peer{}
	for _, p := range k.Peers {
		if len(p.Subnets) > 0 {
			peers[p.Subnets[0]] = p
		}
	}
	hello.CountPaths(&k.Own, func(yield func(string, string) bool) {
		for _, p := range k.Peers {
			if p.Held && !yield(p.Node, cmp.Or(p.Path, &api.PeerPath{}).State) {
				return
			}
		}
	})
	out := make([]api.Host, 0, len(k.Leases))
	for _, l := range k.Leases {
		h := api.Host{
			Node: l.Node, Subnets: l.Subnets, PublicIPs: l.PublicIPs, Backend: l.Backend.Type, MTU: l.MTU, Held: l.Held(),
			Own: l.NodeID == k.NodeID, Member: k.Member(l.Node, l.PublicIPs),
		}
		summary, isKnown := k.Summaries[l.Subnet()]
		if h.Own {
			summary, isKnown = k.Own, true
		} else {
			h.Path = peers[l.Subnet()].Path
		}
		if isKnown {
			h.Summary = &summary
		}
		h.Seen = seen(h)
		h.State, h.Reason = judge(h, peers[l.Subnet()].Skipped)
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b api.Host) int {
		return cmp.Or(slices.Index(api.HostStates, a.State)-slices.Index(api.HostStates, b.State),
			strings.Compare(a.Node, b.Node), slices.CompareFunc(a.Subnets, b.Subnets, netip.Prefix.Compare))
	})
	return out
}

// seen returns when something was last received from a host: its summary, or the answer to a packet. A path that is
// lost was answered last just before it was found so.
func seen(h api.Host) (at time.Time) {
	if h.Own {
		return time.Time{}
	}
	if h.Summary != nil {
		at = h.Summary.At
	}
	if h.Path == nil || h.Path.State == "" {
		return at
	}
	answered := h.Path.Tested
	if h.Path.State == api.PathLost {
		answered = h.Path.Since
	}
	if answered.After(at) {
		at = answered
	}
	return at
}

// judge returns the worst that is known of a host. skipped says why it is not in the datapath.
func judge(h api.Host, skipped string) (state, reason string) {
	path := api.PeerPath{}
	if h.Path != nil {
		path = *h.Path
	}
	summary := api.HostSummary{}
	if h.Summary != nil {
		summary = *h.Summary
	}
	switch {
	case h.Member == api.MemberFailed && !h.Own:
		reason = "Consul's agents report its Consul agent as failed"
		switch path.State {
		case api.PathLost:
			reason += "; " + path.Reason
		case api.PathReached, api.PathLossy, api.PathShort:
			reason += "; packets reach the host"
		}
		return api.HostFailed, reason
	case !h.Held:
		return api.HostLapsed, "its lease is no longer held"
	case path.State == api.PathLost:
		return path.State, path.Reason
	case summary.Health == api.Critical:
		return summary.Health, summary.Reason
	case path.State == api.PathShort, path.State == api.PathLossy:
		return path.State, path.Reason
	case summary.Health == api.Warning:
		return summary.Health, summary.Reason
	case skipped != "":
		return api.Warning, "not in the datapath: " + registry.Shorten(skipped, registry.MaxShownReason)
	case summary.Health == api.Passing:
		return api.Passing, ""
	}
	return api.HostUnknown, ""
}

// WithoutTimes returns the hosts without what is measured, and when it was.
func WithoutTimes(hosts []api.Host) []api.Host {
	out := slices.Clone(hosts)
	for i := range out {
		h := &out[i]
		h.Seen = time.Time{}
		h.Path = unmeasured(h.Path)
		if h.Summary != nil {
			s := *h.Summary
			s.At, h.Summary = time.Time{}, &s
		}
	}
	return out
}

// WithoutCounters returns the peers without what is counted or measured.
func WithoutCounters(list api.PeerList) api.PeerList {
	list.Totals, list.Drops = nil, nil
	list.Peers = slices.Clone(list.Peers)
	for i := range list.Peers {
		p := &list.Peers[i]
		p.Counters, p.Path = nil, unmeasured(p.Path)
		if !p.LastHandshake.IsZero() {
			p.LastHandshake = time.Unix(0, 0) // only the first one is a change
		}
	}
	return list
}

func unmeasured(p *api.PeerPath) *api.PeerPath {
	if p == nil {
		return nil
	}
	return &api.PeerPath{State: p.State, Reason: p.Reason, Since: p.Since}
}

// shortenReason returns the beginning of a reason that agent/hello can send, without a part of a command.
func shortenReason(reason string) string {
	out := registry.Shorten(reason, hello.MaxReason)
	if strings.Count(out, "`")%2 == 0 {
		return out
	}
	out = out[:strings.LastIndex(out, "`")]
	if i := strings.LastIndex(out, "; "); i > 0 {
		return out[:i]
	}
	return strings.TrimSpace(out) + "…"
}

// Summarize returns what this host says of itself in a network, without the paths to others.
func Summarize(version string, local api.Local, health api.Health, network string, now time.Time) api.HostSummary {
	out := api.HostSummary{Version: version, Health: api.Passing, Backend: local.Backend, MTU: local.MTU, At: now}
	if len(local.Underlay.Addresses) > 0 {
		out.PublicIP = local.Underlay.Addresses[0].String()
	}
	checks := slices.Clone(health.Checks)
	for _, n := range health.Networks {
		if n.Network == network {
			checks = append(checks, n.Checks...)
		}
	}
	for _, c := range checks {
		if c.Status == api.Critical && out.Health != api.Critical || c.Status == api.Warning && out.Health == api.Passing {
			out.Health = c.Status
			out.Reason = shortenReason(c.Name + ": " + c.Reason)
		}
	}
	return out
}
